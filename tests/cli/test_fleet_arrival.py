"""Where devices are on the way to what was wished, by what the controller tells of them."""

from __future__ import annotations

import io
from typing import Any

import pytest
from rich.console import Console

from appliance.cli.fleet.arrival_view import (
    LISTED_MAX,
    TOLD_CHARACTERS,
    counts,
    expected,
    frame,
    line,
    outstanding_lines,
)
from appliance.cli.fleet.waiting import LOOK_S, LOOK_S_MOST, pause_s
from appliance.fleet.arrival import (
    IN_CONFLICT,
    LEFT_ALONE,
    NOTHING_LEFT,
    SILENT,
    UNCONFIRMED,
    Mark,
    Place,
    Wished,
    arrival_of,
)

WISHED = Wished(model="m", version=2, group="site")
MARKS = {"box": Mark(seen_ms=1000, told=3, generation=4)}


def model(**said: Any) -> Any:
    plain = {"wanted": 2, "serving": 2, "phase": "done", "reason": "", "missing_bytes": 0, "managed": True}
    return {"name": "m", **plain, **said}


def device(name: str = "box", *, of: Any = None, **said: Any) -> Any:
    """One that was told of the wish and says that it serves what is wished, unless ``said`` is something else."""
    return {
        "name": name, "group": "site", "state": "active", "seen_ms": 2000, "told_generation": 4, "generation": 4,
        "models": [of or model()], "problems": [], "wishes": {}, **said,
    }  # fmt: skip


def place(found: Any, wished: Wished = WISHED) -> tuple[Place, str]:
    (standing,) = arrival_of(wished, [found], MARKS).standings
    return standing.place, standing.reason


def test_a_device_is_there_when_it_says_so_by_a_report_that_is_newer_than_the_wish() -> None:
    assert place(device()) == (Place.SERVES, "")
    assert place(device(seen_ms=1000, told_generation=3)) == (Place.UNHEARD, "")
    assert place(device(told_generation=3)) == (Place.COMING, UNCONFIRMED)
    assert place(device(told_generation=4, seen_ms=1000)) == (Place.SERVES, ""), "it came by a bundle"


def test_a_wish_that_changed_no_document_is_there_when_the_device_was_heard_again() -> None:
    """The report of long ago says that all is as wished."""
    first = arrival_of(WISHED, [device()])
    assert first.standings[0].place is Place.UNHEARD
    assert arrival_of(WISHED, [device()], first.marks).standings[0].place is Place.UNHEARD
    heard = arrival_of(WISHED, [device(seen_ms=3000)], first.marks)
    assert heard.is_everywhere
    lost = arrival_of(WISHED, [device(seen_ms=4000, of=model(serving=1, phase="prove"))], heard.marks)
    assert not lost.is_everywhere, "what it said before counts for nothing"


def test_what_is_wished_of_other_models_meanwhile_takes_nobody_back() -> None:
    assert place(device(generation=9)) == (Place.SERVES, "")


def test_what_serves_before_a_box_follows_the_wish_is_not_there() -> None:
    """A wish goes back to version 2 while version 3 comes: version 2 serves still, and version 3 may be next."""
    waits = model(wanted=3, phase="activate", reason="no activation window is open")
    assert place(device(of=waits)) == (Place.COMING, "activate: no activation window is open")


def test_what_was_fetched_or_is_wanted_is_not_what_serves() -> None:
    coming = model(wanted=1, serving=1, phase="transfer", missing_bytes=5 << 20, reason="the link is off")
    assert place(device(of=coming)) == (Place.COMING, "transfer, 5.0 MiB to come: the link is off")
    assert place(device(of=model(serving=1, phase="prove"), problems=["disk"])) == (
        Place.COMING,
        "prove: disk",
    )
    assert place(device(of=model(serving=0, phase="prove")))[0] is Place.COMING
    assert place(device(models=[])) == (Place.COMING, SILENT)
    assert place(device(of=model(wanted=1, serving=1))) == (Place.COMING, NOTHING_LEFT)


@pytest.mark.parametrize("phase", ["failed", "refused"])
def test_who_does_not_go_on_is_told_with_the_reason(phase: str) -> None:
    bad = model(serving=1, phase=phase, reason="golden case 'a'")
    found = arrival_of(WISHED, [device(of=bad), device("other")], MARKS)
    assert (found.is_stopped, found.is_everywhere) == (True, False)
    assert outstanding_lines(found)[0] == f"box: {phase}: golden case 'a'; it serves version 1"
    before = device(of=bad, told_generation=3, seen_ms=1000)
    assert place(before) == (Place.UNHEARD, ""), "that was about the wish before"


def test_a_trial_or_prefetch_that_fails_later_is_none_of_it() -> None:
    assert place(device(of=model(phase="refused", reason="version 7 is signed by no trusted key"))) == (
        Place.SERVES,
        "",
    )


def test_who_is_held_ends_the_waiting_when_all_others_are_there() -> None:
    held = device(of=model(serving=1, phase="held", reason="held by hand (rollback of version 1 by ann)"))
    going = device("other", of=model(serving=1, phase="prove"))
    marks = {**MARKS, "other": MARKS["box"]}
    assert not arrival_of(WISHED, [held, going], marks).is_stopped
    found = arrival_of(WISHED, [held, device("other")], marks)
    assert found.is_stopped
    assert outstanding_lines(found) == [
        "box: held: by hand (rollback of version 1 by ann); it serves version 1"
    ]
    assert place(device(state="conflict", told_generation=90)) == (Place.HELD, IN_CONFLICT)


def test_nothing_of_a_model_is_there_when_nothing_serves() -> None:
    none = Wished(model="m", version=0, group="site")
    assert place(device(models=[]), none) == (Place.SERVES, "")
    assert place(device(of=model(wanted=0, serving=1, phase="uninstall")), none)[0] is Place.COMING
    assert place(device(of=model(managed=False)), none) == (Place.HELD, LEFT_ALONE)


def test_a_wish_for_nothing_is_told_as_one() -> None:
    """As "nothing of m serves on 0 of 1 device" it says the contrary of what is meant."""
    none = Wished(model="m", version=0, group="site")
    gone = arrival_of(none, [device(models=[])], MARKS)
    assert counts(none, gone) == "m no longer serves on 1 of 1 device"
    assert line(gone.standings[0]) == "box: serves nothing of it"
    going = arrival_of(none, [device(of=model(wanted=0, serving=1, phase="uninstall"))], MARKS)
    assert counts(none, going) == "m no longer serves on 0 of 1 device, 1 on the way"
    assert outstanding_lines(going) == ["box: uninstall; it serves version 1"]
    assert line(arrival_of(WISHED, [device()], MARKS).standings[0]) == "box: serves it"


def test_a_wish_concerns_its_group_but_for_those_that_are_shut_out_or_have_one_of_their_own() -> None:
    own = {"m": {"version": 3}}
    same = {"m": {"version": 2}}
    devices = [
        device(), device("gone", state="revoked"), device("far", group="other"), device("own", wishes=own),
        device("same", wishes=same),
    ]  # fmt: skip
    found = arrival_of(WISHED, devices)
    assert [each.device for each in found.standings] == ["box", "same"]
    assert list(found.apart) == ["own"]
    alone = Wished(model="m", version=3, device="own")
    assert [each.device for each in arrival_of(alone, devices).standings] == ["own"]


def test_who_joins_late_counts_from_then_on() -> None:
    """A wish of its own was taken back: its report of before is not about the group's."""
    apart = device(wishes={"m": {"version": 3}})
    first = arrival_of(WISHED, [apart], MARKS)
    joined = arrival_of(WISHED, [device(generation=5)], first.marks)
    assert joined.standings[0].place is Place.UNHEARD
    assert arrival_of(WISHED, [device(generation=5, seen_ms=9000)], joined.marks).standings[0].reason == (
        UNCONFIRMED
    )


def test_many_devices_are_not_all_named() -> None:
    found = arrival_of(WISHED, [device(f"box-{number:02}") for number in range(LISTED_MAX + 2)])
    lines = outstanding_lines(found)
    assert (len(lines), lines[-1]) == (
        LISTED_MAX + 1,
        "and 2 more; 'appliance fleet devices --not-there' shows all",
    )
    assert counts(WISHED, found) == "m/2 serves on 0 of 22 devices, 22 not heard from since"
    console = Console(file=io.StringIO(), width=80, height=12)
    console.print(frame(WISHED, found, "", console, 65))
    shown = console.file.getvalue().splitlines()  # type: ignore[attr-defined]
    assert len(shown) <= 12
    assert "0:01:05" in shown[0]
    assert "more" in shown[-2]


def test_what_devices_say_stays_off_the_terminals_controls() -> None:
    bad = model(serving=1, phase="failed", reason="a\x1b[2Jb\nc")
    found = arrival_of(WISHED, [device(of=bad)], MARKS)
    console = Console(file=io.StringIO(), width=80)
    console.print(frame(WISHED, found, "the controller\x1b is gone", console, 0))
    shown = console.file.getvalue()  # type: ignore[attr-defined]
    assert "\x1b" not in shown
    assert "failed: a\\x1b[2Jb\\nc" in shown


def test_nobody_heard_of_is_never_taken_for_there() -> None:
    found = arrival_of(WISHED, [device(seen_ms=0, told_generation=0, models=[])])
    assert not found.is_everywhere
    assert line(found.standings[0]) == "box: not heard from since the wish; never heard from at all"
    assert not arrival_of(WISHED, []).is_everywhere


def test_when_a_box_is_to_be_heard_from_is_said_where_its_report_tells_how_often_it_asks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_ms = 1_800_000_000_000
    monkeypatch.setattr("time.time", lambda: now_ms / 1000)
    asks: dict[str, Any] = {"poll_s": 60, "told_generation": 3}
    first = [
        device("near", seen_ms=now_ms - 20_000, **asks), device("older", seen_ms=now_ms - 20_000),
        device("late", seen_ms=now_ms - 300_000, **asks), device("new", seen_ms=0, poll_s=0),
    ]  # fmt: skip
    found = arrival_of(WISHED, first)
    assert [text.partition("; last ")[2] for text in map(line, found.standings)] == [
        "5 min ago, next is overdue; it said that it serves version 2",
        "20 s ago, next within 52 s; it said that it serves version 2",
        "",
        "20 s ago; it said that it serves version 2",
    ], "late, near, new and older"
    assert expected(found) == "; 1 asks again within 52 s"
    asked = arrival_of(WISHED, [device("near", seen_ms=now_ms - 1000, **asks)], found.marks)
    assert line(asked.standings[0]) == f"near: {UNCONFIRMED}, next within 71 s; it serves version 2"
    there = arrival_of(WISHED, [device("near", seen_ms=now_ms, poll_s=60)], found.marks)
    assert (there.standings[0].due_ms, expected(there)) == (0, ""), "it has said all"
    ahead = arrival_of(WISHED, [device(seen_ms=now_ms + 600_000, **asks)])
    assert expected(ahead) == "; 1 asks again within 72 s", "the controller's clock is another one"


def test_the_controller_is_asked_less_often_the_longer_it_takes() -> None:
    assert pause_s(0.0) == LOOK_S
    assert LOOK_S < pause_s(120.0) < pause_s(400.0) <= pause_s(86_400.0) == LOOK_S_MOST


def test_what_a_device_says_at_length_is_told_in_part() -> None:
    """A report may have megabytes of it."""
    long = model(serving=1, phase="prove", reason="x\x1b[2J" * 1000)
    standing = arrival_of(WISHED, [device(of=long, problems=["y" * 4096] * 64)], MARKS).standings[0]
    assert len(standing.reason) > 64 * 4096, "programs get all of it"
    assert len(line(standing)) < TOLD_CHARACTERS + 100
    assert line(standing).endswith(" ...; it serves version 1")
