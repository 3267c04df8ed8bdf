"""A real controller that is killed while a version goes out in waves: it goes on when it is started again."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance.fleet import messages
from appliance.fleet.documents import decode
from appliance.fleet.messages import ModelReport, Report
from tests.controller.api.test_people_api import packages
from tests.controller.conftest import Box, Served
from tests.controller.test_kill import process

__all__ = ["packages"]

LIMIT_S = 30.0
PAUSE_S = 0.4
"""Of a box between polls: more often it is refused."""
# Python's ssl module leaves a socket to the collector whose server is killed while the two shake hands.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
)


class Follower:
    """A box that has what is wished serve, and says so."""

    def __init__(self, box: Box) -> None:
        self.box = box
        self.known = 0
        self.version = 0

    def turn(self) -> None:
        known, model = (
            self.known,
            ModelReport(name="m", wanted=self.version, serving=self.version, phase="done"),
        )
        report = messages.encode(
            Report(device=self.box.name, generation=known, models=(model,) * (self.version > 0))
        )
        found = self.box.poll(
            root=1, timestamp=known, snapshot=known, targets=known, report=report, report_digest="x"
        )
        if found.document:
            state = decode(found.document)
            self.known = state.generation
            self.version = next((each.wanted.version for each in state.models if each.wanted), 0)


def until(served: Served, boxes: list[Follower], over: Callable[[Any], bool]) -> Any:
    """Have the boxes poll until the rollout is as it shall be."""
    end_s = time.monotonic() + LIMIT_S
    while True:
        (found,) = served.done("GET", "/api/v1/rollouts")
        if over(found):
            return found
        assert time.monotonic() < end_s, found
        for each in boxes:
            each.turn()
        threading.Event().wait(PAUSE_S)


@pytest.mark.timeout(120)
def test_it_goes_on_after_each_kill(made: Served, packages: dict[int, Path]) -> None:
    with process(made) as found:
        boxes = [
            Follower(Box(made, f"box-{group}").enrol(made.token(group=group))) for group in ("pilot", "site")
        ]
        made.done("POST", "/api/v1/releases", packages[1].read_bytes())
        plan = {"model": "m", "version": 1, "waves": [["pilot"], ["site"]], "stay_s": 1}
        made.done("POST", "/api/v1/rollouts", plan)
        os.killpg(found.pid, signal.SIGKILL)
    with process(made) as found:
        until(made, boxes, lambda rollout: rollout["waves"][0]["serving"] + rollout["waves"][0]["there"] > 0)
        assert boxes[1].version == 0, "its wave has not begun"
        os.killpg(found.pid, signal.SIGKILL)
    with process(made) as found:
        until(made, boxes, lambda rollout: rollout["waves"][1]["began_ms"] > 0)
        os.killpg(found.pid, signal.SIGKILL)
    with process(made):
        done = until(made, boxes, lambda rollout: rollout["state"] != "running")
        assert (done["state"], [each.version for each in boxes]) == ("done", [1, 1])
        assert [wave["there"] for wave in done["waves"]] == [1, 1]
        lines = [each["what"] for each in made.done("GET", "/api/v1/audit")]
        assert lines.count("rollout-wave") == lines.count("rollout-done") == 1
        assert made.done("GET", "/api/v1/audit/check")["first_wrong"] == 0
