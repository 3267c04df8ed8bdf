"""Descriptors: all that the system gives are used, and too few for the connections are told."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.frontend.listening.sockets import WORKERS_NEED, descriptor_shortage
from tests.appliance_process import ApplianceProcess

SPARE = 64


def test_what_leaves_enough_for_workers_is_no_shortage() -> None:
    assert descriptor_shortage(1000, 1000 + WORKERS_NEED) == ""


def test_a_shortage_says_what_is_allowed_and_what_would_do() -> None:
    said = descriptor_shortage(16_384, 4096)
    assert "take 16384 descriptors, and the system allows this process 4096" in said
    assert f"to {16_384 + WORKERS_NEED}" in said


@pytest.fixture
def low_limit() -> Iterator[int]:
    """Processes start with hardly more descriptors than this one has open; gives how many they may have."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = max(map(int, os.listdir("/proc/self/fd"))) + SPARE
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_the_daemon_takes_all_that_the_system_gives_and_tells_when_that_is_too_little(
    tmp_path: Path, low_limit: int
) -> None:
    with ApplianceProcess(tmp_path, {"http": {"max_connections": low_limit}}) as served:
        served.wait_ready()
        assert resource.prlimit(served.pid, resource.RLIMIT_NOFILE) == (low_limit, low_limit)
        served.wait_log("connections can use up the descriptors that workers need")
