"""Waiting for a wish at a real controller, whose boxes tell it what the test has them tell."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path
from typing import IO, Any

import pytest

from appliance.cli.failure import Exit
from appliance.cli.fleet import waiting
from appliance.cli.fleet.session import PROFILE, Controller, read_profile, write_profile
from appliance.config.fleet import FleetConfig
from appliance.controller.contact import POLL_S
from appliance.controller.tokens import HOUR_MS
from appliance.fleet import messages
from appliance.fleet.messages import ModelReport, Report
from tests.controller.api.desk import Box, Desk
from tests.controller.api.test_fleet_commands import Fleet, fleet
from tests.controller.api.test_people_api import packages, released
from tests.faults.cut_proxy import CutProxy

__all__ = ["fleet", "packages"]

NewBox = Callable[..., Box]
Between = list[Callable[[], object]]
WANT = ("want", "m=1", "--group", "site", "--wait")
PROGRAM = "import sys; from appliance.cli.main import main; sys.exit(main(sys.argv[1:]))"
TOLD: dict[str, Any] = {
    "name": "north", "group": "site", "state": "active", "seen_ms": 1, "generation": 1, "told_generation": 1,
    "models": [
        {"name": "m", "wanted": 1, "serving": 1, "phase": "done", "reason": "", "missing_bytes": 0, "managed": True},
    ],
    "problems": [], "wishes": {},
}  # fmt: skip
SERVES_ONE = ModelReport(name="m", wanted=1, serving=1, phase="done")


@pytest.fixture(autouse=True)
def between(monkeypatch: pytest.MonkeyPatch) -> Between:
    """What happens between looks, one after each. A look may take as long as this machine makes it."""
    happens: Between = []

    def pause_s(_: float) -> float:
        if happens:
            happens.pop(0)()
        return 0.05

    monkeypatch.setattr(waiting, "pause_s", pause_s)
    monkeypatch.setattr(waiting, "LOOK_S_LEAST", 60.0)
    return happens


@pytest.fixture
def box(desk: Desk, new_box: NewBox, packages: dict[int, Path]) -> Box:
    """One of the group, which was never heard; two versions are released."""
    released(desk, packages[1])
    released(desk, packages[2])
    return new_box("north", group="site")


def says(box: Box, desk: Desk, told: int, *models: ModelReport) -> None:
    """Have it poll, some time later, as one that knows the document ``told``."""
    desk.now_ms += 5_000
    report = messages.encode(Report(device=box.device, generation=told, models=models))
    box.polled(root=1, timestamp=told, snapshot=told, targets=told, report=report, report_digest="x")


def follows(box: Box, desk: Desk, *models: ModelReport) -> None:
    """Have it told what is wanted, and say what it makes of it."""
    desk.now_ms += 5_000
    box.polled()
    says(box, desk, generation(desk), *models)


def generation(desk: Desk) -> int:
    return int(desk.person().get("/devices/north")["generation"])


def test_a_report_of_before_the_wish_ends_no_waiting(
    fleet: Fleet, desk: Desk, box: Box, between: Between
) -> None:
    """It served version 1 long ago; version 2 was wished meanwhile, which it may have made live."""
    fleet("want", "m=1", "--group", "site")
    box.polled()
    says(box, desk, 1, SERVES_ONE)
    fleet("want", "m=2", "--group", "site")
    assert desk.person().get("/devices")[0]["models"][0]["serving"] == 1
    status, out, error = fleet(*WANT, "--timeout", "0.5")
    assert status == Exit.OVERDUE
    assert "m/1 serves on 0 of 1 device, 1 not heard from since" in out
    assert "north: not heard from since the wish; last " in error
    assert error.rstrip().endswith("; it said that it serves version 1")
    between.append(lambda: follows(box, desk, SERVES_ONE))
    status, out, error = fleet(*WANT, "--timeout", "20")
    assert (status, error) == (Exit.OK, "")
    assert "north: serves it" in out
    assert "m/1 serves on 1 of 1 device after " in out


def test_who_waits_is_told_by_when_a_box_asks_next(fleet: Fleet, desk: Desk, box: Box) -> None:
    desk.now_ms = int(time.time() * 1000)
    box.tell(settings={"fleet.poll_s": "30 (set on the box)"})
    status, out, error = fleet(*WANT, "--timeout", "0.5")
    assert status == Exit.OVERDUE
    assert re.match(
        r"m/1 serves on 0 of 1 device, 1 not heard from since; 1 asks again within 3[56] s\n", out
    )
    assert re.search(r"north: not heard from since the wish; last \d s ago, next within 3\d s\n", error)


@pytest.mark.parametrize(
    ("said", "poll_s"), [("60", 60), ("30 (set on the box)", 30), ("", 0), ("often", 0), ("9" * 4000, 0)]
)
def test_how_often_a_box_asks_is_what_it_says(desk: Desk, box: Box, said: str, poll_s: int) -> None:
    box.tell(settings={"fleet.poll_s": said})
    assert desk.person().get("/devices/north")["poll_s"] == poll_s


def test_a_box_that_is_told_by_its_controller_how_often_to_ask_asks_as_often_as_it_reports() -> None:
    """Its report has the default then."""
    assert FleetConfig().poll_s == POLL_S


def test_the_same_wish_again_is_there_when_the_box_was_heard_again(
    fleet: Fleet, desk: Desk, box: Box, between: Between
) -> None:
    fleet("want", "m=1", "--group", "site")
    follows(box, desk, SERVES_ONE)
    before = generation(desk)
    status, out, _ = fleet(*WANT, "--timeout", "0.5", "--json")
    assert (status, json.loads(out)["counts"]["unheard"]) == (Exit.OVERDUE, 1)
    between.append(lambda: says(box, desk, before, SERVES_ONE))
    assert fleet(*WANT, "--timeout", "20")[0] == Exit.OK
    between.append(lambda: says(box, desk, before, ModelReport(name="m", wanted=1, phase="prove")))
    assert fleet(*WANT, "--timeout", "3")[0] == Exit.OVERDUE, "it serves it no more"
    assert generation(desk) == before


def test_a_report_that_the_box_has_replaced_ends_no_waiting(
    fleet: Fleet, desk: Desk, box: Box, between: Between
) -> None:
    """The database came back from a backup, and the box names a report that was lost with the other one."""
    fleet("want", "m=1", "--group", "site")
    follows(box, desk, SERVES_ONE)
    before = generation(desk)

    def names_another() -> None:
        desk.now_ms += 5_000
        known = {"root": 1, "timestamp": before, "snapshot": before, "targets": before}
        assert box.polled(**known, report_digest="f" * 64).wants_report

    between.append(names_another)
    status, out, _ = fleet(*WANT, "--timeout", "2", "--json")
    assert (status, json.loads(out)["counts"]["unheard"]) == (Exit.OVERDUE, 1)
    between.append(lambda: says(box, desk, before, ModelReport(name="m", phase="failed", reason="no")))
    assert fleet(*WANT, "--timeout", "20")[0] == Exit.STOPPED


def test_who_heard_of_the_version_between_has_to_say_that_it_is_back(
    fleet: Fleet, desk: Desk, box: Box, between: Between
) -> None:
    fleet("want", "m=1", "--group", "site")
    box.polled()
    says(box, desk, 1, SERVES_ONE)
    fleet("want", "m=2", "--group", "site")
    says(box, desk, 1, SERVES_ONE)  # and is told of version 2
    going = ModelReport(name="m", wanted=2, serving=1, phase="activate", reason="no window is open")
    between.append(lambda: says(box, desk, 2, going))
    between.append(lambda: says(box, desk, 3, going))
    status, _, error = fleet(*WANT, "--timeout", "4")
    assert status == Exit.OVERDUE, "version 1 serves, and version 2 may be next"
    assert "north: activate: no window is open; it serves version 1" in error
    between.append(lambda: says(box, desk, 3, SERVES_ONE))
    assert fleet(*WANT, "--timeout", "20")[0] == Exit.OK


def test_who_waits_for_nothing_of_a_model_is_told_that_it_no_longer_serves(
    fleet: Fleet, desk: Desk, box: Box, between: Between
) -> None:
    between.append(lambda: follows(box, desk, ModelReport(name="m", wanted=0, serving=1, phase="uninstall")))
    between.append(lambda: says(box, desk, generation(desk)))
    status, out, error = fleet("want", "m=0", "--group", "site", "--wait", "--timeout", "20")
    assert (status, error) == (Exit.OK, "")
    assert "m no longer serves on 0 of 1 device, 1 on the way" in out
    assert "north: uninstall; it serves version 1" in out
    assert "north: serves nothing of it" in out
    assert out.splitlines()[-1].startswith("m no longer serves on 1 of 1 device after ")
    assert "nothing of m serves" not in out


def test_a_program_gets_one_document_however_it_ends(
    fleet: Fleet, desk: Desk, box: Box, between: Between
) -> None:
    bad = ModelReport(name="m", wanted=1, phase="failed", reason="golden case 'a'")
    between.append(lambda: follows(box, desk, bad))
    status, out, error = fleet(*WANT, "--timeout", "20", "--json")
    assert (status, json.loads(out)["outcome"]) == (Exit.STOPPED, "stopped")
    (standing,) = json.loads(out)["standings"]
    assert (standing["device"], standing["place"], standing["reason"]) == (
        "north",
        "refused",
        "golden case 'a'",
    )
    assert "\nnorth: failed: golden case 'a'" in error
    between.append(lambda: follows(box, desk, SERVES_ONE))
    status, out, error = fleet(*WANT, "--timeout", "20", "--json")
    assert (status, error) == (Exit.OK, "")
    assert json.loads(out)["counts"] == {"serves": 1, "unheard": 0, "coming": 0, "held": 0, "refused": 0}


def test_a_wish_that_gives_way_to_another_is_not_waited_for(
    fleet: Fleet, desk: Desk, box: Box, between: Between
) -> None:
    for instead, says_so in (({"version": 2}, "gave way to m=2"), (None, "was taken back")):
        body = {"model": "m", "group": "site", "wish": instead}
        between.append(partial(desk.person().post, "/want", body))
        status, _, error = fleet(*WANT, "--timeout", "20")
        assert (status, f"the wish that is waited for {says_so} meanwhile" in error) == (Exit.REFUSED, True)


def test_where_there_is_nobody_nothing_is_there(fleet: Fleet, desk: Desk, box: Box, between: Between) -> None:
    status, _, error = fleet("want", "m=1", "--group", "stie", "--wait")
    assert status == Exit.REFUSED
    assert "there is no device to wait for: the group 'stie' has none" in error
    assert "the wish stays, and 'appliance fleet want m --withdraw --group stie' takes it back" in error
    between.append(lambda: desk.person().post("/devices/north/revoke"))
    status, _, error = fleet("want", "m=1", "--device", "north", "--wait", "--timeout", "20")
    assert (status, "the device 'north' has none that it is for" in error) == (Exit.REFUSED, True)
    assert "'appliance fleet want m --withdraw --device north' takes it back" in error


def test_whose_own_wish_is_another_one_is_named_and_not_waited_for(
    fleet: Fleet, desk: Desk, box: Box, between: Between, new_box: NewBox
) -> None:
    new_box("south", group="site")
    fleet("want", "m=2", "--device", "south")
    between.append(lambda: follows(box, desk, SERVES_ONE))
    status, out, _ = fleet(*WANT, "--timeout", "20")
    assert (status, "m/1 serves on 1 of 1 device after" in out) == (Exit.OK, True)
    assert "not waited for, another version is wished for it alone: south" in out


@pytest.mark.parametrize(
    ("words", "says_so"),
    [
        (("m", "--withdraw"), "leave out --withdraw"),
        (("m=1", "--trial", "2"), "leave out --trial"),
        (("m",), "is no MODEL=VERSION"),
    ],
)
def test_what_cannot_be_waited_for_is_not_wished(
    fleet: Fleet, desk: Desk, box: Box, words: tuple[str, ...], says_so: str
) -> None:
    status, _, error = fleet("want", *words, "--group", "site", "--wait")
    assert (status, says_so in error) == (Exit.USAGE, True)
    assert all(not each["wishes"] for each in desk.person().get("/groups"))


@pytest.mark.parametrize("words", [("m=1",), ("m", "--withdraw")])
def test_how_long_to_wait_without_waiting_is_refused(
    fleet: Fleet, desk: Desk, box: Box, words: tuple[str, ...]
) -> None:
    status, _, error = fleet("want", *words, "--group", "site", "--timeout", "5")
    assert (status, "--timeout is for --wait: give --wait as well" in error) == (Exit.USAGE, True)
    assert all(not each["wishes"] for each in desk.person().get("/groups"))


def test_a_controller_that_is_gone_is_asked_until_time_is_over(fleet: Fleet, desk: Desk, box: Box) -> None:
    with CutProxy(f"127.0.0.1:{desk.port}", 1 << 20) as proxy:
        write_profile(replace(read_profile(), url=f"https://{proxy.address}"))
        status, out, error = fleet(*WANT, "--timeout", "1")
    assert status == Exit.UNREACHABLE
    assert out.count("does not answer") == 1, "said once, and asked again and again"
    assert "whether m/1 serves everywhere is not known: the controller at " in error
    assert desk.person().get("/groups")[0]["wishes"]["m"]["version"] == 1


def test_a_controller_that_fails_for_a_while_has_ended_nothing(
    fleet: Fleet, desk: Desk, box: Box, between: Between
) -> None:
    def rename(before: str, after: str) -> None:
        with sqlite3.connect(desk.folder / "fleet.db") as database:
            database.execute(f"ALTER TABLE {before} RENAME TO {after}")

    def mend() -> None:
        rename("away", "devices")
        follows(box, desk, SERVES_ONE)

    between.append(lambda: rename("devices", "away"))
    between.append(mend)
    status, out, error = fleet(*WANT, "--timeout", "30")
    assert (status, error) == (Exit.OK, "")
    assert "the database failed" in out


@pytest.mark.parametrize("knows_groups", [True, False])
def test_who_waits_for_a_group_asks_for_it_alone_and_is_right_where_the_controller_tells_of_all(
    fleet: Fleet, desk: Desk, box: Box, between: Between, new_box: NewBox, monkeypatch: pytest.MonkeyPatch,
    knows_groups: bool,
) -> None:  # fmt: skip
    """A controller of an earlier release takes no notice of what it does not know."""
    new_box("far", group="other")
    fleet("want", "m=2", "--group", "other")
    asked, get = list[tuple[str, dict[str, Any]]](), Controller.get

    def noted(self: Controller, path: str, **query: Any) -> Any:
        asked.append((path, query))
        return get(self, path, **(query if knows_groups else {}))

    monkeypatch.setattr(Controller, "get", noted)
    between.append(lambda: follows(box, desk, SERVES_ONE))
    status, out, error = fleet(*WANT, "--timeout", "20")
    assert (status, error) == (Exit.OK, "")
    assert "m/1 serves on 1 of 1 device after " in out
    looks = {(path, *query.items()) for path, query in asked}
    assert looks == {("/devices", ("group", "site")), ("/groups", ("group", "site"))}


def test_who_may_not_ask_any_more_is_told(fleet: Fleet, desk: Desk, box: Box, between: Between) -> None:
    between.append(lambda: setattr(desk, "now_ms", desk.now_ms + 366 * 24 * HOUR_MS))
    status, _, error = fleet(*WANT, "--timeout", "20")
    assert status == Exit.REFUSED
    assert "whether m/1 serves everywhere is not known: this token is not known here" in error


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/devices", None),
        ("/devices", [{}]),
        ("/devices", [{"name": "north", "group": "site"}]),
        ("/devices", [{**TOLD, "seen_ms": 10**400}]),
        ("/devices", [{**TOLD, "models": [{**TOLD["models"][0], "serving": 10**5000}]}]),
        ("/devices/north", {"name": ["north"]}),
        ("/devices/north", []),
        ("/groups", [{"name": "site", "wishes": {"m": 5}}]),
        ("/groups", {"code": "x"}),
    ],
)
def test_what_tells_of_no_devices_is_no_controller_and_a_program_gets_its_document(
    fleet: Fleet, desk: Desk, box: Box, monkeypatch: pytest.MonkeyPatch, path: str, answer: Any
) -> None:
    get = Controller.get
    monkeypatch.setattr(
        Controller, "get", lambda self, asked, **query: answer if asked == path else get(self, asked, **query)
    )
    scope = ("--device", "north") if path == "/devices/north" else ("--group", "site")
    status, out, error = fleet("want", "m=1", *scope, "--wait", "--timeout", "0.5", "--json")
    assert (status, json.loads(out)["outcome"]) == (Exit.UNREACHABLE, "unknown")
    assert "what answers at https://127.0.0.1:" in error
    assert "is no controller; the wish stays" in error


def test_a_controller_whose_answer_never_ends_keeps_nobody_beyond_his_time(
    fleet: Fleet, desk: Desk, box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never silent: each byte comes in time."""
    over = threading.Event()
    monkeypatch.setattr(Controller, "get", lambda self, path, **query: over.wait(60))
    monkeypatch.setattr(waiting, "LOOK_S_LEAST", 0.1)
    began_s = time.monotonic()
    status, _, error = fleet(*WANT, "--timeout", "0.5")
    over.set()
    assert time.monotonic() - began_s < 30
    assert (status, "does not answer: it was not done when time was over" in error) == (
        Exit.UNREACHABLE,
        True,
    )


@pytest.mark.parametrize("json_too", [(), ("--json",)])
def test_who_closes_the_output_is_not_told_that_it_serves(
    fleet: Fleet, desk: Desk, box: Box, tmp_path: Path, json_too: tuple[str, ...]
) -> None:
    """As in ``fleet want ... --wait | head -0``: the exit status is all that is left."""
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "wb") as output:
        words = (*WANT, "--timeout", "0.5", *json_too)
        assert Terminal(tmp_path / "profile.json", *words, output=output).ended() == Exit.OVERDUE


class Terminal:
    """A command that has a terminal of eighty columns, but for its ``output`` where that goes elsewhere."""

    def __init__(self, profile: Path, *words: str, output: IO[bytes] | None = None) -> None:
        self._screen, end = pty.openpty()
        environment = {**os.environ, PROFILE: str(profile), "TERM": "xterm", "COLUMNS": "80", "LINES": "24"}
        command = [sys.executable, "-c", PROGRAM, "fleet", *words]
        self._process = subprocess.Popen(
            command, stdin=end, stdout=output or end, stderr=end, env=environment
        )
        os.close(end)
        self.written = ""

    def until(self, text: str) -> None:
        end_s = time.monotonic() + 60
        while text not in self.written:
            assert time.monotonic() < end_s, self.written
            self._read()

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def ended(self) -> int:
        while self._read():
            pass
        os.close(self._screen)
        return self._process.wait(30)

    def _read(self) -> bool:
        ready = wait([self._screen], 1.0)
        try:
            data = os.read(self._screen, 1 << 16) if ready else b""
        except OSError:  # it has ended
            return False
        self.written += data.decode()
        return bool(data) or not ready


def plain(written: str) -> str:
    """Without the terminal's controls."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", written)


def test_who_watches_sees_a_picture_that_goes(fleet: Fleet, desk: Desk, box: Box, tmp_path: Path) -> None:
    screen = Terminal(tmp_path / "profile.json", *WANT, "--timeout", "60")
    screen.until("never heard from at all")
    coming = ModelReport(
        name="m", wanted=0, phase="transfer", missing_bytes=3 << 20, reason="the link is off"
    )
    follows(box, desk, coming)
    screen.until("transfer, 3.0 MiB to come: the link is off")
    follows(box, desk, SERVES_ONE)
    assert screen.ended() == Exit.OK
    shown = plain(screen.written)
    for text in (
        "m/1",
        "0:00:0",
        "m/1 serves on 0 of 1 device, 1 not heard from since",
        "1 on the way",
        "north",
    ):
        assert text in shown
    assert shown.rstrip().splitlines()[-1].startswith("m/1 serves on 1 of 1 device after ")
    assert screen.written.rindex("\x1b[?25h") > screen.written.rindex("\x1b[?25l"), (
        "the cursor is there again"
    )


def test_ctrl_c_leaves_the_wish_and_says_so(fleet: Fleet, desk: Desk, box: Box, tmp_path: Path) -> None:
    screen = Terminal(tmp_path / "profile.json", *WANT)
    screen.until("not heard from since the wish")
    screen.interrupt()
    assert screen.ended() == Exit.INTERRUPTED
    shown = plain(screen.written)
    assert "appliance fleet want: the waiting was interrupted: m/1 serves on 0 of 1 device" in shown
    assert "the wish stays" in shown
    assert "Traceback" not in shown
    assert desk.person().get("/groups")[0]["wishes"]["m"]["version"] == 1


def test_a_document_comes_alone_also_where_a_person_watches_and_interrupts(
    fleet: Fleet, desk: Desk, box: Box, tmp_path: Path
) -> None:
    place = tmp_path / "document.json"
    with place.open("wb") as output:
        screen = Terminal(tmp_path / "profile.json", *WANT, "--json", output=output)
        screen.until("not heard from since the wish")
        screen.interrupt()
        assert screen.ended() == Exit.INTERRUPTED
    told = json.loads(place.read_bytes())
    assert (told["outcome"], told["counts"]["unheard"]) == ("interrupted", 1)
