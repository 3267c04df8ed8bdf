"""Clocks that are wrong, on either side: the agent's command and the real controller come to the same."""

from __future__ import annotations

import base64
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import msgpack

from appliance.cli.sync import session
from appliance.durable import RealFolder
from appliance.outbox.outbox import Outbox, Policy
from appliance.store.catalog_file import read_catalog
from tests.cli.conftest import Pack, Run, appliance, config, files_of, pack, state
from tests.controller.conftest import DAY_MS, START_MS, Served, made, served

__all__ = ["appliance", "config", "files_of", "made", "pack", "served", "state"]

LATER = START_MS + 400 * DAY_MS
CALENDAR = """[fleet]
month_bytes = 9000000
windows = ["Mon-Sun 00:00-23:59 Europe/Berlin"]
"""


def token_of(served: Served) -> str:
    """A token for a box, which names the port where the controller is."""
    text = served.token().removeprefix("ea1.")
    said = msgpack.decode(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
    said[0] = f"https://127.0.0.1:{served.port}"
    return "ea1." + base64.urlsafe_b64encode(msgpack.encode(said)).decode().rstrip("=")


def row(served: Served) -> Any:
    (found,) = served.done("GET", "/api/v1/devices")
    return found


@pytest.mark.timeout(180)
@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ((0, LATER, START_MS), (START_MS, START_MS, START_MS)),
        ((START_MS, START_MS, START_MS), (0, LATER, START_MS)),
        ((LATER, 0, START_MS), (0, LATER, 0)),
    ],
    ids=["the controller's", "the box's", "each another"],
)
def test_whatever_the_clocks_show_what_is_wanted_comes_and_what_was_done_is_told(
    served: Served,
    appliance: Run,
    state: Path,
    config: Path,
    pack: Pack,
    monkeypatch: pytest.MonkeyPatch,
    theirs: tuple[int, ...],
    ours: tuple[int, ...],
) -> None:
    """At each step the controller's people wish for more, at their own time; then the clocks are set."""
    config.write_text(config.read_text() + CALENDAR)
    box = {"now": ours[0]}
    monkeypatch.setattr(session, "CLOCK", replace(session.CLOCK, wall_ms=lambda: box["now"]))
    status, _, err = appliance("sync", "enrol", token_of(served), "--name", "box-1")
    assert status == 0, err
    place = state / "outbox" / "serve"
    place.mkdir(parents=True)
    records = [msgpack.encode(["event", number]) for number in range(len(theirs))]
    with Outbox(RealFolder(place), 1 << 20, Policy.DROP_OLDEST) as outbox:
        for step, (served_now, box_now) in enumerate(zip(theirs, ours, strict=True)):
            served.now_ms = START_MS
            released = served.ask("POST", "/api/v1/releases", pack(step + 1).read_bytes(), served.admin)
            assert released[0] == 200, released
            wish = {"model": "digits", "device": "box-1", "wish": {"version": step + 1}}
            served.done("POST", "/api/v1/want", wish)
            served.now_ms, box["now"] = served_now, box_now
            outbox.append([records[step]])
            status, out, err = appliance("sync", "once")
            assert status == 0, (step, out, err)
            (model,) = (read_catalog(state) or pytest.fail("nothing is there")).models
            assert model.wanted == step + 1
            served.now_ms = START_MS
            found = row(served)
            assert (found["state"], found["told_generation"]) == ("active", found["generation"]), step
    with served.home.store.transaction() as rows:
        told = [each for each in rows.telemetry("box-1", -1, 100, 1 << 20) if each.stream == "serve"]
    held = {each.number: each.record for each in told}
    assert (len(told), [held[number] for number in sorted(held)]) == (len(records), records)
