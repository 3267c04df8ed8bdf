"""What a controller writes to its log: a line for people where it listens, and objects as the daemon has them; what
becomes of rollouts, and once what stands in their way."""

from __future__ import annotations

import asyncio
import json
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.controller import server
from appliance.controller.rollout_steps import RolloutSteps, Stepped
from appliance.fleet.rollout import FailedDevice, Rollout, State, Wave

MAIN = "from appliance.cli.main import main; raise SystemExit(main())"


def test_its_log_has_one_object_a_line(tmp_path: Path) -> None:
    home = tmp_path / "controller"
    words = ["--url", "https://127.0.0.1:1", "--address", "127.0.0.1:0"]
    assert main(["controller", "init", str(home), *words]) == Exit.OK
    command = [sys.executable, "-c", MAIN, "controller", "serve", str(home)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert (line.startswith("The controller listens at 127.0.0.1:"), out, process.returncode) == (True, "", 0)
    said = [json.loads(each) for each in err.splitlines()]
    assert [(each["event"], each["level"]) for each in said] == [
        ("controller serves", "info"),
        ("controller stopped", "info"),
    ]
    assert (said[0]["url"], said[0]["at"] in line) == ("https://127.0.0.1:1", True)


def test_what_becomes_of_rollouts_is_told_and_what_stands_in_their_way_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    halted = Rollout(
        number=3, model="m", version=2, by="ann", at_ms=1, since_ms=2, state=State.HALTED, reason="1 device refused it",
        waves=(Wave(groups=("a",), began_ms=1), Wave(groups=("b",))),
        failed=(FailedDevice(device="north", phase="failed", reason="golden"),),
    )  # fmt: skip
    found = [Stepped([]), Stepped([], "no"), Stepped([], "no"), Stepped([halted]), Stepped([], "no")]
    told: list[tuple[str, dict[str, object]]] = []

    def step(self: RolloutSteps, now_ms: int) -> Stepped:
        if not found:
            raise asyncio.CancelledError
        return found.pop(0)

    monkeypatch.setattr(RolloutSteps, "step", step)
    monkeypatch.setattr(server, "ROLL_OUT_S", 0)
    home: Any = SimpleNamespace(store=None, blobs=None, package_keys=(), keys=None)
    with pytest.raises(asyncio.CancelledError):
        asyncio.run(server._roll_out(home, lambda what, **fields: told.append((what, fields))))
    trouble = ("a rollout cannot go on now", {"error": "no"})
    said = {
        "number": 3,
        "model": "m",
        "version": 2,
        "wave": 1,
        "reason": "1 device refused it",
        "failed": ["north"],
    }
    assert told == [trouble, ("rollout halted", said), trouble]
