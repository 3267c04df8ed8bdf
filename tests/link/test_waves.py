"""A version that goes out in waves to real boxes, by a real controller that is killed meanwhile; and one that is bad,
which reaches no box but the pilot and is taken back."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from demo.fleet import WATCH_S, Controller
from tests.link.test_want_wait import fleet, standing, waited

LIMIT_S = 120.0
WAVES = ("--wave", "pilot", "--wave", "sites", "--stay", str(WATCH_S + 2))


async def until(controller: Controller, over: Callable[[Any], bool]) -> Any:
    """The newest rollout, as soon as it is as it shall be."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            found = json.loads(await controller.ask("rollouts", "--json"))[-1]
            if over(found):
                return found
            await asyncio.sleep(0.3)


@pytest.mark.timeout(400)
async def test_a_version_reaches_boxes_wave_by_wave_and_a_bad_one_the_pilot_alone(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (controller, _):
        await controller.ask("group", "south", "pilot")
        for group in ("pilot", "sites"):
            status, _, error = await waited(controller, "m=1", "--group", group, "--timeout", "120")
            assert (status, error) == (0, "")

        assert "rollout 1 of m/2 runs in wave 1 of 2" in await controller.ask("rollout", "m=2", *WAVES)
        await until(controller, lambda found: found["waves"][0]["serving"] == 1)
        assert (await standing(controller))["north"]["models"][0]["wanted"] == 1, (
            "it stays at the pilot first"
        )
        assert controller.process is not None
        controller.process.kill()
        await controller.process.wait()
        await controller.serve()
        done = await until(controller, lambda found: found["state"] != "running")
        assert (done["state"], [wave["there"] for wave in done["waves"]]) == ("done", [1, 1])
        assert all(each["models"][0]["serving"] == 2 for each in (await standing(controller)).values())

        await controller.ask("rollout", "m=3", *WAVES, "--back")
        bad = await until(controller, lambda found: found["state"] != "running")
        assert (bad["state"], bad["reason"]) == ("taken back", "1 device refused it or went back, and 0 may")
        assert [each["device"] for each in bad["failed"]] == ["south"]
        assert bad["failed"][0]["reason"].startswith("golden")
        status, _, error = await waited(controller, "m=2", "--group", "pilot", "--timeout", "120")
        assert (status, error) == (0, ""), "the box that refused is told of the way back, and serves on"
        assert (await standing(controller))["north"]["models"][0]["serving"] == 2
        lines = json.loads(await controller.ask("audit", "--json"))
        wished = [json.loads(each["detail"]) for each in lines if each["what"] == "want"]
        assert [each["scope"] for each in wished if each["wish"]["version"] == 3] == ["group/pilot"]
