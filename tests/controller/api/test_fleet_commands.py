"""What a person at a terminal sees of a fleet: tables that fit, reasons, and words about what he got wrong."""

from __future__ import annotations

import io
import json
import re
import shutil
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.failure import Exit
from appliance.cli.fleet import devices
from appliance.cli.fleet.session import PROFILE, Controller, Profile, write_profile
from appliance.cli.main import main
from appliance.domain.digest import digest_of
from appliance.fleet import messages, records
from appliance.fleet.messages import ModelReport, Report
from tests.cli.test_help_text import Screen
from tests.controller.api.desk import Box, Desk
from tests.controller.api.test_people_api import packages, released
from tests.tools.models import mlp_home

__all__ = ["packages"]

NewBox = Callable[..., Box]
Fleet = Callable[..., tuple[int, str, str]]


@pytest.fixture
def fleet(
    desk: Desk, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Fleet:
    """Commands of the first admin, on a screen of eighty columns."""
    monkeypatch.setenv(PROFILE, str(tmp_path / "profile.json"))
    monkeypatch.setenv("COLUMNS", "80")
    url = f"https://127.0.0.1:{desk.port}"
    write_profile(Profile(url=url, token=desk.admin, authority=desk.home.authority.pem))

    def run(*words: str) -> tuple[int, str, str]:
        status = main(["fleet", *words])
        told = capsys.readouterr()
        assert all(
            len(line) <= 80 for line in told.out.splitlines() if ": " not in line and "ea1." not in line
        )
        return status, told.out, told.err

    return run


def test_why_a_version_is_not_there_and_who_holds_one_stands_with_the_devices(
    fleet: Fleet, new_box: NewBox
) -> None:
    refused = ModelReport(name="m", phase="refused", reason="is signed by no trusted key")
    held = ModelReport(name="n", wanted=1, serving=1, phase="held", reason="held by hand (rollback)")
    going = ModelReport(name="o", wanted=2, serving=1, phase="transfer")
    for name, model in (("box-1", refused), ("box-2", held), ("box-3", going)):
        new_box(name, group="site").tell(models=(model,))
    out = fleet("devices")[1]
    assert "m/- (refused)" in out
    assert "box-1: m refused: is signed by no trusted key" in out
    assert "n/1 (held)" in out
    assert "box-2: n held: held by hand (rollback)" in out
    assert "o/1 to 2 (transfer)" in out


def test_a_box_that_holds_what_is_wished_otherwise_is_not_shown_as_there(
    fleet: Fleet, desk: Desk, new_box: NewBox
) -> None:
    """Who waited for the wish was told that it is held."""
    held = ModelReport(name="n", wanted=1, serving=1, phase="held", reason="held by hand (rollback)")
    done = ModelReport(name="m", wanted=1, serving=1, phase="done")
    for name, models, converged in (("a", (done, held), True), ("b", (done,), True), ("c", (held,), False)):
        box = new_box(name, group="site")
        box.polled()
        known = desk.person().get(f"/devices/{name}")["generation"]
        report = Report(device=name, generation=known, models=models, converged=converged)
        told = {"root": 1, "timestamp": known, "snapshot": known, "targets": known}
        box.polled(**told, report=messages.encode(report), report_digest="x")
    shown = re.findall(r"^([abc]) .* 1 of 1 +(held|yes|not yet) ", fleet("devices")[1], re.MULTILINE)
    assert shown == [("a", "held"), ("b", "yes"), ("c", "not yet")]
    told_programs = {each["name"]: each["converged"] for each in desk.person().get("/devices")}
    assert told_programs == {"a": True, "b": True, "c": False}, "it did all that the fleet may decide"


def test_of_many_devices_those_are_shown_that_are_asked_for_and_all_are_counted(
    fleet: Fleet, desk: Desk, new_box: NewBox
) -> None:
    failed = ModelReport(name="m", phase="failed", reason="its worker died")
    for name, group in (("a", "site"), ("b", "site"), ("c", "other"), ("d", "other")):
        box = new_box(name, group=group)
        box.polled()
        told = {"root": 1, "timestamp": 1, "snapshot": 1, "targets": 1}
        report = Report(
            device=name, generation=1, models=(failed,) * (name == "b"), converged=name not in "bd"
        )
        box.polled(**told, report=messages.encode(report), report_digest="x")
    person = desk.person()
    person.post("/devices/d/revoke")

    def shown(*words: str) -> tuple[list[str], str]:
        status, out, _ = fleet("devices", *words)
        assert status == Exit.OK
        names = [each["name"] for each in json.loads(fleet("devices", *words, "--json")[1])]
        assert names == re.findall(r"^([abcdeg]) ", out, re.MULTILINE)
        return names, out.splitlines()[-1]

    assert shown() == (
        ["a", "b", "c", "d"],
        "4 devices: 2 there, 1 not yet there, 1 revoked; 3 not heard from for a day",
    )
    assert shown("--not-there")[0] == ["b"]
    assert shown("--group", "site")[0] == ["a", "b"]
    assert shown("--group", "other", "--not-there")[0] == []
    assert shown("--group", "none") == ([], "no device is in the group 'none'")
    assert shown("b") == (["b"], "b: m failed: its worker died")
    desk.now_ms = int(time.time() * 1000) - 7_000_000
    new_box("e", group="site").polled()
    assert shown("--silent", "7200") == (
        ["a", "b", "c"],
        "5 devices: 2 there, 2 not yet there, 1 revoked; 3 not heard from for 2 h",
    )
    new_box("g", group="new")
    assert shown("--silent", "7200", "--group", "new") == (
        ["g"],
        "1 device: 1 not yet there; 1 never heard from",
    )
    assert shown("--silent", "3600", "--group", "site")[0] == ["a", "b", "e"]
    assert shown("--silent", "7200", "--not-there")[0] == ["a", "b", "c", "e", "g"]
    for name, says in (
        ("f", "there is no device 'f'"),
        ("a/b", "'a/b' is no device: 1 to 64 of the characters"),
    ):
        status, _, err = fleet("devices", name)
        assert status in (Exit.REFUSED, Exit.USAGE)
        assert says in err


def test_who_watches_many_devices_sees_the_urgent_ones_on_his_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("LINES", "12")
    screen = Screen()
    monkeypatch.setattr("sys.stdout", screen)
    fine = {
        "group": "g",
        "state": "active",
        "seen_ms": 1,
        "told_generation": 1,
        "generation": 1,
        "freshness": "fresh",
    }
    fine |= {"models": [], "problems": [], "wishes": {}, "settings": {}, "converged": True}
    found = [{**fine, "name": f"box-{number}"} for number in range(50)]
    found[30]["converged"] = False
    found[40] |= {"problems": ["is on fire"], "converged": False}
    found[45]["state"] = "conflict"
    devices._fill_screen(found, devices._summary(found, ""))
    lines = screen.getvalue().splitlines()
    assert len(lines) == 11
    assert [line.split()[0] for line in lines[1:5]] == ["box-45", "box-40", "box-30", "box-0"]
    (left,) = re.findall(r"^\W*\[2m\.\.\. (\d+) more", "\n".join(lines), re.MULTILINE)
    assert int(left) == 50 - sum(line.startswith("box-") and " g " in line for line in lines)
    assert any(line.startswith("box-45: has seen newer documents") for line in lines)
    counted = "50 devices: 47 there, 2 not yet there, 1 in conflict; 50 not heard from for a day"
    assert " ".join(each.strip() for each in lines[-2:]) == counted


def test_all_that_is_wanted_in_a_group_stands_in_one_column(
    fleet: Fleet, desk: Desk, new_box: NewBox
) -> None:
    new_box("a", group="site")
    person = desk.person()
    for name in ("poll_s", "rate_bytes_per_s", "month_bytes", "month_day"):
        person.post("/settings", {"name": f"fleet.{name}", "group": "site", "value": 28})
    assert fleet("groups")[1].splitlines() == [
        "group devices there failed silent wanted",
        "site  1       0     0      1      fleet.month_bytes=28, fleet.month_day=28,",
        "                                  fleet.poll_s=28, fleet.rate_bytes_per_s=28",
    ]


def test_groups_say_how_many_devices_are_there_failed_and_are_silent(
    fleet: Fleet, desk: Desk, new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = ModelReport(name="m", phase="failed", reason="its worker died")
    for name, group in (("a", "one"), ("b", "one"), ("c", "other")):
        box = new_box(name, group=group)
        box.polled()
        told = {"root": 1, "timestamp": 1, "snapshot": 1, "targets": 1}
        report = Report(device=name, generation=1, models=(failed,) * (name == "b"), converged=name != "b")
        box.polled(**told, report=messages.encode(report), report_digest="x")
    desk.now_ms += 86_400_001
    desk.person().post("/devices/c/revoke")
    new_box("d", group="one").polled()
    new_box("e", group="other")
    words = [line.split() for line in fleet("groups")[1].splitlines()]
    assert words == [
        ["group", "devices", "there", "failed", "silent", "wanted"],
        ["one", "3", "1", "1", "2", "-"],
        ["other", "2", "0", "0", "1", "-"],
    ]
    counted = [[each[what] for what in words[0][1:5]] for each in json.loads(fleet("groups", "--json")[1])]
    assert counted == [[3, 1, 1, 2], [2, 0, 0, 1]]

    get = Controller.get

    def of_an_earlier_release(self: Controller, path: str, **query: Any) -> Any:
        kept = ("name", "devices", "wishes", "settings")
        return [{what: each[what] for what in kept} for each in get(self, path, **query)]

    monkeypatch.setattr(Controller, "get", of_an_earlier_release)
    assert fleet("groups")[1].splitlines()[1].split() == ["one", "3", "-", "-", "-", "-"]


def test_the_audit_log_is_told_in_words_that_a_screen_sets_apart(
    fleet: Fleet, desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    new_box("a", group="site")
    released(desk, packages[1])
    fleet("want", "m=1", "--group", "site", "--order")
    fleet("want", "m=0", "--group", "site")
    fleet("want", "m", "--group", "site", "--withdraw")
    told = " ".join(fleet("audit")[1].split())
    assert "want model=m, scope=group/site, wish.order=true, wish.version=1 " in told
    assert "want model=m, scope=group/site, wish.version=0 " in told
    assert told.endswith("want model=m, scope=group/site, wish=null")
    assert [each["what"] for each in json.loads(fleet("audit", "--most", "2", "--json")[1])] == [
        "want",
        "want",
    ]


def test_what_is_wished_of_one_device_alone_is_shown(
    fleet: Fleet, desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    new_box("box-1", group="site")
    released(desk, packages[1])
    fleet("want", "m=1", "--device", "box-1")
    fleet("setting", "fleet.poll_s=30", "--device", "box-1")
    assert "box-1: for it alone: m=1, fleet.poll_s=30" in fleet("devices")[1]
    (device,) = desk.person().get("/devices")
    assert (device["wishes"]["m"]["version"], device["settings"]) == (1, {"fleet.poll_s": 30})


def test_a_wish_for_a_group_without_devices_comes_with_the_command_that_takes_it_back(
    fleet: Fleet, desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    new_box("box-1", group="site")
    released(desk, packages[1])
    said = fleet("want", "m=1", "--group", "stie")[1]
    undo = "appliance fleet want m --withdraw --group stie"
    assert said == f"done; no device is in the group 'stie' so far: '{undo}' takes the wish back\n"
    said = fleet("setting", "fleet.poll_s=30", "--group", "stie")[1]
    assert "'appliance fleet setting fleet.poll_s --group stie' takes the setting back" in said
    assert [each["name"] for each in desk.person().get("/groups")] == ["site", "stie"]
    assert fleet("want", "m=1", "--group", "site")[1] == "done; 1 device\n"

    for words in (undo.split()[2:], ["setting", "fleet.poll_s", "--group", "stie"]):
        assert fleet(*words)[:2] == (Exit.OK, "done; no device is in the group 'stie' so far\n")
    assert [each["name"] for each in desk.person().get("/groups")] == ["site"]


def test_what_was_never_wished_or_set_is_not_said_to_be_taken_back(
    fleet: Fleet, desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    new_box("box-1", group="site")
    released(desk, packages[1])
    fleet("want", "m=1", "--device", "box-1")
    withdraw = ("want", "m", "--withdraw")
    assert fleet(*withdraw, "--group", "stie")[:2] == (
        Exit.OK,
        "the group 'stie' had no wish for m; nothing was changed\n",
    )
    nothing = json.loads(fleet(*withdraw, "--group", "site", "--json")[1])
    assert nothing == {"devices": 1, "before": False, "halts": []}
    assert json.loads(fleet(*withdraw, "--device", "box-1", "--json")[1]) == {**nothing, "before": True}
    assert fleet(*withdraw, "--device", "box-1")[1] == (
        "the device 'box-1' had no wish for m of its own; nothing was changed\n"
    )
    assert fleet("setting", "fleet.poll_s", "--group", "site")[1] == (
        "the group 'site' had no setting fleet.poll_s; nothing was changed\n"
    )


def test_a_device_in_conflict_comes_with_what_to_do(
    fleet: Fleet, desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    box = new_box("box-1", group="site")
    box.poll(targets=90, timestamp=90, snapshot=90, root=1)
    assert "box-1: has seen newer documents" in (out := fleet("devices")[1])
    assert "'appliance fleet resume box-1'" in out


def test_records_are_told_in_words(fleet: Fleet, new_box: NewBox) -> None:
    event = records.Event(what="waits", fields={"step": "install m/1", "why": "no disk"})
    minute = records.Minute(
        window_ms=60_000,
        uptime_ms=90_000,
        versions=(records.VersionMinute(name="m", version=1, outcomes=(7, 1)),),
    )
    lost = records.Lost(epoch="b" * 32, first=3, last=5, reason="bound")
    box = new_box("box-1", group="site")
    box.send([records.encode(each) for each in (event, minute, lost)])
    out = fleet("logs")[1]
    for text in ("waits: step=install m/1, why=no disk", "minute: m/1=8", "last=5, reason=bound"):
        assert text in " ".join(out.split())


def test_a_package_whose_maker_nobody_trusts_is_released_with_a_warning(
    fleet: Fleet, packages: dict[int, Path], tmp_path: Path
) -> None:
    status, out, err = fleet("release", str(packages[1]))
    assert (status, "m/1 is released" in out) == (Exit.OK, True)
    assert "m/1: no key that the fleet's root names has signed it, so boxes refuse it" in err
    junk = tmp_path / "junk.model"
    junk.write_bytes(b"junk")
    status, _, err = fleet("release", str(junk))
    assert status == Exit.REFUSED
    assert err.startswith("appliance fleet release: the package: ")


def test_a_release_without_a_golden_set_is_told_of_where_one_before_has_one(
    fleet: Fleet, desk: Desk, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = mlp_home(tmp_path / "source")
    packages = [tmp_path / f"mlp-{number}.model" for number in (1, 2, 3)]
    assert main(["model", "golden", str(home)]) == Exit.OK
    for number, package in enumerate(packages, 1):
        words = ["model", "pack", str(home / "1"), "--version", str(number), "-o", str(package)]
        assert main([*words, "--no-proof"]) == Exit.OK
        shutil.rmtree(home / "1" / "golden", ignore_errors=True)
    capsys.readouterr()
    lost = "mlp/{} has no golden set, and mlp/1 has one"
    assert lost.format(2) not in fleet("release", str(packages[1]))[2], "none was released yet"
    assert "golden" not in fleet("release", str(packages[0]))[2]
    status, _, err = fleet("release", str(packages[2]))
    assert status == Exit.OK
    assert lost.format(3) in err
    assert lost.format(2) in fleet("release", str(packages[1]))[2], "again"
    blobs = desk.home.blobs
    blobs.path(digest_of(packages[0].read_bytes())).unlink()
    assert fleet("release", str(packages[1]))[0] == Exit.OK, "what is lost stands in the way of nothing"


def test_a_token_comes_with_its_name_and_is_listed(fleet: Fleet) -> None:
    status, out, err = fleet("token", "--group", "site")
    assert (status, out.startswith("ea1."), out.count("\n")) == (Exit.OK, True, 1)
    name = err.split("'")[1]
    assert "good until" in err
    listed = fleet("tokens")[1]
    assert name in listed
    assert "box of site" in listed
    assert fleet("token", "--revoke", name)[1] == "done\n"
    assert "withdrawn" in fleet("tokens")[1]


def test_who_withdraws_the_last_token_of_an_admin_is_told_how_to_come_back(fleet: Fleet, desk: Desk) -> None:
    first = desk.admin.partition(":")[0]
    assert fleet("token", "--person", "ann", "--role", "admin", "--hours", "1")[0] == Exit.OK
    assert fleet("token", "--person", "bob", "--role", "operator")[0] == Exit.OK
    status, out, err = fleet("token", "--revoke", "bob")
    assert (status, out, err) == (Exit.OK, "done\n", ""), "he was none"
    assert fleet("token", "--person", "eve", "--role", "admin")[0] == Exit.OK
    assert fleet("token", "--revoke", "eve")[1:] == ("done\n", ""), "there are others"
    desk.now_ms += 2 * 3_600_000
    assert fleet("token", "--revoke", "ann")[1:] == ("done\n", ""), "it was over, and the first is good"
    status, out, err = fleet("token", "--revoke", first)
    assert (status, out) == (Exit.OK, "done\n")
    assert err == (
        "that was the last token of an admin: nobody can make or withdraw tokens of people, or shut devices out. "
        "'appliance controller token DIR --person NAME' makes one where the controller is, as its user\n"
    )
    assert fleet("tokens")[0] != Exit.OK


def test_the_last_token_of_an_admin_is_told_to_programs(fleet: Fleet, desk: Desk) -> None:
    fleet("token", "--person", "ann", "--role", "admin", "--hours", "1")
    desk.now_ms += 2 * 3_600_000
    found = desk.person().post(f"/tokens/{desk.admin.partition(':')[0]}/revoke")
    assert found == {"devices": 0, "last_admin": True}, "the other one is over"


def test_tokens_for_many_boxes_come_at_once(fleet: Fleet) -> None:
    status, out, err = fleet("token", "--group", "site", "--count", "3")
    tokens = out.splitlines()
    assert (status, len(set(tokens)), all(each.startswith("ea1.") for each in tokens)) == (Exit.OK, 3, True)
    assert err.startswith("3 tokens, shown this once; good until ")
    status, out, err = fleet("token", "--group", "site", "--count", "2", "--json")
    documents = [json.loads(line) for line in out.splitlines()]
    assert (status, err, [sorted(each) for each in documents]) == (
        Exit.OK, "", [["expires_ms", "name", "token"]] * 2,
    )  # fmt: skip
    listed = json.loads(fleet("tokens", "--json")[1])
    assert sum(each["group"] == "site" for each in listed) == 5
    assert {each["name"] for each in documents} <= {each["name"] for each in listed}


def test_how_many_tokens_were_made_is_told_where_the_others_are_not(
    fleet: Fleet, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever makes them is shut out before the third."""
    asked: list[str] = []

    def post(self: Controller, path: str, body: Mapping[str, object] | None = None) -> object:
        asked.append(path)
        if len(asked) == 3:
            desk.person().post(f"/tokens/{desk.admin.partition(':')[0]}/revoke")
        return really(self, path, body)

    really = Controller.post
    monkeypatch.setattr(Controller, "post", post)
    status, out, err = fleet("token", "--group", "site", "--count", "4")
    assert (status, len(out.splitlines())) == (Exit.REFUSED, 2)
    assert err.endswith("too old, or was withdrawn; 2 of 4 tokens were made before, and were shown\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (("--device", "d", "--count", "2"), "--count is for boxes of a group"),
        (("--person", "eve", "--count", "2"), "--count is for boxes of a group"),
        (("--revoke", "a", "--count", "2"), "nothing else"),
        (("--person", "eve", "--group", "site"), "--group and --device are for boxes"),
        (("--role", "viewer"), "--role is for a person"),
        (("--group", "a", "--device", "b"), "give --group or --device"),
        (("--revoke", "a", "--hours", "3"), "nothing else"),
        (("--person", "x y"), "not a name: a-z 0-9 . _ -, at most 64, not a dot first"),
    ],
)
def test_what_a_token_cannot_be_is_refused(fleet: Fleet, words: tuple[str, ...], says: str) -> None:
    status, out, err = fleet("token", *words)
    assert (status != Exit.OK, out) == (True, "")
    assert says in err


@pytest.mark.parametrize(
    ("url", "token", "authority", "says"),
    [
        ("http://127.0.0.1:1", "a:b", True, "is no URL of a controller"),
        ("https://127.0.0.1:x", "a:b", True, "is no URL of a controller"),
        ("https://", "a:b", True, "is no URL of a controller"),
        ("", "", True, "no token was given"),
        ("", "a:b", True, "this token is not known here"),
        ("", "a:b", False, "is no certificate"),
    ],
)
def test_a_login_that_cannot_be_says_why(
    fleet: Fleet,
    desk: Desk,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    url: str,
    token: str,
    authority: bool,
    says: str,
) -> None:
    before = (tmp_path / "profile.json").read_bytes()
    place = tmp_path / "authority.crt"
    place.write_text(desk.home.authority.pem if authority else "-----BEGIN junk")
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{token}\n"))
    status, _, err = fleet("login", url or f"https://127.0.0.1:{desk.port}", "--authority", str(place))
    assert status in (Exit.USAGE, Exit.REFUSED)
    assert says in err
    assert (tmp_path / "profile.json").read_bytes() == before


@pytest.mark.parametrize(
    ("url", "address"),
    [("https://a.example:9443", "0.0.0.0:9443"), ("https://a.example", "0.0.0.0:443")],
)
def test_a_controller_listens_where_its_url_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str, address: str
) -> None:
    assert main(["controller", "init", str(tmp_path / "c"), "--url", url]) == Exit.OK
    assert json.loads((tmp_path / "c" / "settings.json").read_text())["address"] == address
    assert "Boxes trust no maker of packages yet" in capsys.readouterr().out
    for wrong in ("http://a.example", "https://a.example:port", "https://"):
        assert main(["controller", "init", str(tmp_path / "d"), "--url", wrong]) == Exit.USAGE
        assert "is no https URL" in capsys.readouterr().err


@pytest.mark.parametrize("number", ["", "x", "\u0663", "1" * 20, "1" * 5000])
def test_what_is_no_number_of_a_version_is_said(fleet: Fleet, number: str) -> None:
    assert fleet("want", f"m={number}", "--group", "site")[::2] == (
        Exit.USAGE, f"appliance fleet want: 'm={number}' is no MODEL=VERSION\n",
    )  # fmt: skip
    assert fleet("release", "--withdraw", f"m/{number}")[::2] == (
        Exit.USAGE, f"appliance fleet release: 'm/{number}' is no MODEL/VERSION\n",
    )  # fmt: skip
