"""Fixtures of tests about tables."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from predbayes_study.plan.schema import Plan


@pytest.fixture
def plan(request: pytest.FixtureRequest) -> Plan:
    """Return the plan whose text the module has."""
    return Plan.loads(request.module.PLAN)


@pytest.fixture
def write(tmp_path: Path) -> Callable[..., Path]:
    def write(content: str | bytes, name: str = "rows.csv") -> Path:
        path = tmp_path / name
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return path

    return write
