"""Fixtures and settings that all tests share."""

from __future__ import annotations

import socket
import time

import pytest
import torch
from hypothesis import settings

from predbayes.seeding import generator

# Derandomised: a red build can be repeated. Tests of speed are benchmarks, so no deadline. The slow
# tests take `--hypothesis-profile thorough`.
settings.register_profile("predbayes", derandomize=True, deadline=None, max_examples=20)
settings.register_profile("thorough", derandomize=True, deadline=None, max_examples=100)
settings.load_profile("predbayes")


_BEGAN = time.monotonic()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--seconds", type=float, help="skip the tests that are left after this time")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test for which `scripts/check --fast` has no time; the other modes have no limit."""
    seconds = item.config.getoption("--seconds")
    if seconds and time.monotonic() - _BEGAN > seconds:
        pytest.skip(f"{seconds:.0f} seconds are over")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """A test that is left out of the usual run says why it must take so long."""
    for item in items:
        for mark in (*item.iter_markers("slow"), *item.iter_markers("ci")):
            if not mark.args:
                raise pytest.UsageError(f"{item.nodeid}: {mark.name} without a reason")


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> torch.Generator:
    return generator(0, request.node.name)


@pytest.fixture(autouse=True)
def _loopback_only(monkeypatch: pytest.MonkeyPatch) -> None:
    connect = socket.socket.connect

    def guarded(self: socket.socket, address: object) -> None:
        host = address[0] if isinstance(address, tuple) else "unix socket"
        if isinstance(address, tuple) and host not in {"127.0.0.1", "::1", "localhost"}:
            raise AssertionError(f"a test tried to reach {host}")
        connect(self, address)  # type: ignore[arg-type]

    monkeypatch.setattr(socket.socket, "connect", guarded)
