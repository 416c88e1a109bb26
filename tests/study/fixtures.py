"""Fixtures of all tests that run a study."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def software_is_unstated() -> Iterator[None]:
    """Plans of tests are the same from a wheel, which has a digest, and from the sources."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("predbayes_study.kit.kit.software_digest", lambda: "")
        yield


@pytest.fixture(scope="module")
def quick_results() -> Iterator[None]:
    """For modules about the steps of a study: neither its model nor its figures matter there."""
    from tests.study import world

    with world.quick_results():
        yield
