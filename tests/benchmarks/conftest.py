"""Fixtures of tests that run a study."""

from tests.study.fixtures import quick_results, software_is_unstated  # noqa: F401
