"""Waiting for a wish at a real controller, whose boxes tell it what the test has them tell."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.failure import Exit
from appliance.cli.fleet import waiting
from appliance.cli.fleet.session import PROFILE, Profile, read_profile, write_profile
from appliance.controller.tokens import HOUR_MS
from appliance.fleet import messages
from appliance.fleet.messages import ModelReport, Report
from tests.controller.api.desk import Box, Desk
from tests.controller.api.test_fleet_commands import Fleet, fleet
from tests.controller.api.test_people_api import packages, released
from tests.faults.cut_proxy import CutProxy

__all__ = ["fleet", "packages"]

NewBox = Callable[..., Box]
WANT = ("want", "m=1", "--group", "site", "--wait")
PROGRAM = "import sys; from appliance.cli.main import main; sys.exit(main(sys.argv[1:]))"
SERVES_ONE = ModelReport(name="m", wanted=1, serving=1, phase="done")


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting, "LOOK_S", 0.05)


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


def soon(do: Callable[[], object], after_s: float = 0.4) -> None:
    threading.Timer(after_s, do).start()


def generation(desk: Desk) -> int:
    return int(desk.person().get("/devices/north")["generation"])


def test_a_report_of_before_the_wish_ends_no_waiting(fleet: Fleet, desk: Desk, box: Box) -> None:
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
    soon(lambda: follows(box, desk, SERVES_ONE))
    status, out, error = fleet(*WANT, "--timeout", "20")
    assert (status, error) == (Exit.OK, "")
    assert "north: serves it" in out
    assert "m/1 serves on 1 of 1 device after " in out


def test_the_same_wish_again_is_there_when_the_box_was_heard_again(
    fleet: Fleet, desk: Desk, box: Box
) -> None:
    fleet("want", "m=1", "--group", "site")
    follows(box, desk, SERVES_ONE)
    before = generation(desk)
    status, out, _ = fleet(*WANT, "--timeout", "0.5", "--json")
    assert (status, json.loads(out)["counts"]["unheard"]) == (Exit.OVERDUE, 1)
    soon(lambda: says(box, desk, before, SERVES_ONE))
    assert fleet(*WANT, "--timeout", "20")[0] == Exit.OK
    soon(lambda: says(box, desk, before, ModelReport(name="m", wanted=1, phase="prove")))
    assert fleet(*WANT, "--timeout", "1")[0] == Exit.OVERDUE, "it serves it no more"
    assert generation(desk) == before


def test_who_heard_of_the_version_between_has_to_say_that_it_is_back(
    fleet: Fleet, desk: Desk, box: Box
) -> None:
    fleet("want", "m=1", "--group", "site")
    box.polled()
    says(box, desk, 1, SERVES_ONE)
    fleet("want", "m=2", "--group", "site")
    says(box, desk, 1, SERVES_ONE)  # and is told of version 2
    going = ModelReport(name="m", wanted=2, serving=1, phase="activate", reason="no window is open")
    soon(lambda: says(box, desk, 2, going), 0.3)
    soon(lambda: says(box, desk, 3, going), 1.0)
    status, _, error = fleet(*WANT, "--timeout", "2")
    assert status == Exit.OVERDUE, "version 1 serves, and version 2 may be next"
    assert "north: activate: no window is open; it serves version 1" in error
    soon(lambda: says(box, desk, 3, SERVES_ONE))
    assert fleet(*WANT, "--timeout", "20")[0] == Exit.OK


def test_a_program_gets_one_document_however_it_ends(fleet: Fleet, desk: Desk, box: Box) -> None:
    bad = ModelReport(name="m", wanted=1, phase="failed", reason="golden case 'a'")
    soon(lambda: follows(box, desk, bad))
    status, out, error = fleet(*WANT, "--timeout", "20", "--json")
    assert (status, json.loads(out)["outcome"]) == (Exit.STOPPED, "stopped")
    (standing,) = json.loads(out)["standings"]
    assert (standing["device"], standing["place"], standing["reason"]) == (
        "north",
        "refused",
        "golden case 'a'",
    )
    assert "\nnorth: failed: golden case 'a'" in error
    soon(lambda: follows(box, desk, SERVES_ONE))
    status, out, error = fleet(*WANT, "--timeout", "20", "--json")
    assert (status, error) == (Exit.OK, "")
    assert json.loads(out)["counts"] == {"serves": 1, "unheard": 0, "coming": 0, "held": 0, "refused": 0}


def test_a_wish_that_gives_way_to_another_is_not_waited_for(fleet: Fleet, desk: Desk, box: Box) -> None:
    for instead, says_so in (({"version": 2}, "gave way to m=2"), (None, "was taken back")):
        body = {"model": "m", "group": "site", "wish": instead}
        soon(lambda body=body: desk.person().post("/want", body))  # type: ignore[misc]
        status, _, error = fleet(*WANT, "--timeout", "20")
        assert (status, f"the wish that is waited for {says_so} meanwhile" in error) == (Exit.REFUSED, True)


def test_where_there_is_nobody_nothing_is_there(fleet: Fleet, desk: Desk, box: Box) -> None:
    status, _, error = fleet("want", "m=1", "--group", "stie", "--wait")
    assert status == Exit.REFUSED
    assert "there is no device to wait for: the group 'stie' has none" in error
    soon(lambda: desk.person().post("/devices/north/revoke"))
    status, _, error = fleet("want", "m=1", "--device", "north", "--wait", "--timeout", "20")
    assert (status, "the device 'north' has none that it is for" in error) == (Exit.REFUSED, True)


def test_whose_own_wish_is_another_one_is_named_and_not_waited_for(
    fleet: Fleet, desk: Desk, box: Box, new_box: NewBox
) -> None:
    new_box("south", group="site")
    fleet("want", "m=2", "--device", "south")
    soon(lambda: follows(box, desk, SERVES_ONE))
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


def test_a_controller_that_is_gone_is_asked_until_time_is_over(fleet: Fleet, desk: Desk, box: Box) -> None:
    with CutProxy(f"127.0.0.1:{desk.port}", 1 << 20) as proxy:
        write_profile(replace(read_profile(), url=f"https://{proxy.address}"))
        status, out, error = fleet(*WANT, "--timeout", "1")
    assert status == Exit.UNREACHABLE
    assert out.count("does not answer") == 1, "said once, and asked again and again"
    assert "whether m/1 serves everywhere is not known: the controller at " in error
    assert desk.person().get("/groups")[0]["wishes"]["m"]["version"] == 1


def test_who_may_not_ask_any_more_is_told(fleet: Fleet, desk: Desk, box: Box) -> None:
    soon(lambda: setattr(desk, "now_ms", desk.now_ms + 366 * 24 * HOUR_MS))
    status, _, error = fleet(*WANT, "--timeout", "20")
    assert status == Exit.REFUSED
    assert "whether m/1 serves everywhere is not known: this token is not known here" in error


class Terminal:
    """A command that has a terminal of eighty columns to itself."""

    def __init__(self, profile: Path, *words: str) -> None:
        process, self._screen = pty.fork()
        if process == 0:
            environment = {
                **os.environ,
                PROFILE: str(profile),
                "TERM": "xterm",
                "COLUMNS": "80",
                "LINES": "24",
            }
            os.execve(sys.executable, [sys.executable, "-c", PROGRAM, "fleet", *words], environment)
        self._process = process
        self.written = ""

    def until(self, text: str) -> None:
        end_s = time.monotonic() + 60
        while text not in self.written:
            assert time.monotonic() < end_s, self.written
            self._read()

    def interrupt(self) -> None:
        os.write(self._screen, b"\x03")

    def ended(self) -> int:
        while self._read():
            pass
        os.close(self._screen)
        return os.waitstatus_to_exitcode(os.waitpid(self._process, 0)[1])

    def _read(self) -> bool:
        ready, _, _ = select.select([self._screen], [], [], 1.0)
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


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_ctrl_c_leaves_the_wish_and_says_so(
    fleet: Fleet, desk: Desk, box: Box, tmp_path: Path, form: tuple[str, ...]
) -> None:
    screen = Terminal(tmp_path / "profile.json", *WANT, *form)
    screen.until("not heard from since the wish")
    screen.interrupt()
    assert screen.ended() == Exit.INTERRUPTED
    shown = plain(screen.written)
    assert "appliance fleet want: the waiting was interrupted: m/1 serves on 0 of 1 device" in shown
    assert ('"outcome": "interrupted"' in shown) == bool(form)
    assert "Traceback" not in shown
    assert desk.person().get("/groups")[0]["wishes"]["m"]["version"] == 1


def test_a_program_that_is_interrupted_gets_its_document(desk: Desk, box: Box, tmp_path: Path) -> None:
    profile = tmp_path / "profile.json"
    url = f"https://127.0.0.1:{desk.port}"
    environment = {**os.environ, PROFILE: str(profile)}
    os.environ[PROFILE], before = str(profile), os.environ.get(PROFILE)
    try:
        write_profile(Profile(url=url, token=desk.admin, authority=desk.home.authority.pem))
    finally:
        os.environ.pop(PROFILE) if before is None else os.environ.update({PROFILE: before})
    words = [sys.executable, "-c", PROGRAM, "fleet", *WANT, "--json"]
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(words, env=environment, **pipes) as process:
        while not desk.person().get("/groups")[0]["wishes"]:
            time.sleep(0.05)
        time.sleep(1.0)  # so that it waits
        process.send_signal(signal.SIGINT)
        out, error = process.communicate(timeout=30)
    assert process.returncode == Exit.INTERRUPTED
    assert json.loads(out)["outcome"] == "interrupted"
    assert b"the wish stays" in error
