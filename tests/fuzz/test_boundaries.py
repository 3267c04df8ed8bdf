"""A short run of each boundary's fuzzer, and every input that any run ever kept."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings

from tests.fronts import EVERY_FRONT_END
from tests.fuzz import grpc_calls, http_requests
from tests.fuzz.boundaries import BOUNDARIES, OF_FILES
from tests.fuzz.boundary import KEPT, Boundary, Judge
from tests.fuzz.served import Served, served

LONGER = int(os.environ.get("FUZZ_TIMES", "1"))
"""So many times as many inputs as a change is judged by."""


def short_run(boundary: Boundary, judge: Judge) -> None:
    for case in boundary.inputs():
        judge(case)
    quick = settings(
        max_examples=boundary.examples * LONGER, database=None, suppress_health_check=list(HealthCheck)
    )
    quick(given(case=boundary.cases)(judge))()


@pytest.mark.parametrize("name", OF_FILES)
def test_no_file_or_message_breaks_a_rule(name: str) -> None:
    with OF_FILES[name].opened() as judge:
        short_run(OF_FILES[name], judge)


@pytest.fixture(scope="module", params=EVERY_FRONT_END, ids=str)
def daemon(request: pytest.FixtureRequest) -> Iterator[tuple[str, Served]]:
    """One for all sockets of a front end."""
    with served(request.param) as found:
        yield request.param, found


@pytest.mark.parametrize("to", ["http", "grpc", "control", "local"])
def test_no_client_breaks_a_rule(daemon: tuple[str, Served], to: str) -> None:
    front_end, found = daemon
    boundary = http_requests.boundary(front_end) if to == "http" else grpc_calls.boundary(to, front_end)
    short_run(boundary, lambda case: found.say(to, case, patient=to != "http"))


def test_whatever_is_kept_belongs_to_a_boundary() -> None:
    assert {path.name for path in KEPT.iterdir()} <= {boundary.kept for boundary in BOUNDARIES.values()}
