"""What a person does to a model on the box is kept as a hold of it, by the very change, until that is lifted."""

from __future__ import annotations

import os
import pwd
from pathlib import Path

import pytest

from appliance.cli import person
from appliance.cli.failure import Exit
from appliance.store.catalog import Catalog, HandAct, Hold
from appliance.store.catalog_file import read_catalog
from tests.cli.conftest import Pack, Run

ME = pwd.getpwuid(os.getuid()).pw_name


@pytest.fixture(autouse=True)
def nobody_logged_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Whoever runs the tests, and however he came here."""
    monkeypatch.setattr(person, "LOGIN", tmp_path / "no-login")
    monkeypatch.delenv("SUDO_UID", raising=False)


def catalog_in(state: Path) -> Catalog:
    catalog = read_catalog(state)
    assert catalog is not None
    return catalog


def hold_in(state: Path) -> Hold | None:
    return catalog_in(state).hold("digits")


def test_each_command_holds_what_it_changes_and_who_it_was(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", "--no-want", str(pack()))
    assert hold_in(state) is None, "nothing that is served has changed"
    commands = [
        (("install", str(pack(2))), HandAct.INSTALL, 2),
        (("want", "digits/1"), HandAct.WANT, 1),
        (("rollback", "digits"), HandAct.ROLLBACK, 2),
        (("trial", "digits/1", "--canary", "5"), HandAct.TRIAL, 1),
        (("trial", "digits", "--stop"), HandAct.TRIAL_STOP, 0),
        (("pin", "digits/1"), HandAct.PIN, 1),
        (("unpin", "digits/1"), HandAct.UNPIN, 1),
        (("uninstall", "digits/1"), HandAct.UNINSTALL, 1),
        (("uninstall", "digits"), HandAct.UNINSTALL, 0),
    ]
    for words, what, version in commands:
        before = catalog_in(state).generation
        status, out, err = appliance("model", *words)
        assert status == Exit.OK, err
        assert "held by hand" not in out, "there is no fleet to be told of"
        hold = hold_in(state)
        assert hold is not None
        assert (hold.what, hold.version, hold.who) == (what, version, f"{ME} (uid {os.getuid()})")
        assert hold.since_ms > 0
        assert catalog_in(state).generation == before + 1, "the change and its hold are one"
    assert catalog_in(state).models == ()


def test_doing_the_same_again_holds_it_since_the_first_time(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", str(pack()))
    before = catalog_in(state)
    appliance("model", "install", str(pack()))
    assert catalog_in(state) == before
    out = appliance("model", "want", "digits/1")[1]
    assert out == "digits/1 is wanted already; nothing was changed\n"
    hold = hold_in(state)
    assert hold is not None
    assert hold.what is HandAct.WANT, "who says that it is wanted means that"


def test_a_box_of_a_fleet_is_told_and_resume_lifts_it(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", "--no-want", str(pack()), str(pack(2)))
    (state / "fleet").mkdir()
    (state / "fleet" / "controller").touch()
    told = "held by hand: the fleet leaves digits alone until 'appliance model resume digits'\n"
    for words in (
        ("want", "digits/1"),
        ("install", str(pack(2))),
        ("rollback", "digits"),
        ("trial", "digits/2", "--shadow", "5"),
        ("trial", "digits", "--stop"),
        ("pin", "digits/2"),
        ("unpin", "digits/2"),
        ("uninstall", "digits/2"),
    ):
        assert appliance("model", *words)[1].endswith(told), words
    status, out, _ = appliance("model", "resume", "digits")
    assert status == Exit.OK
    assert out.startswith(
        f"digits is not held any more: uninstall of version 2 by {ME} (uid {os.getuid()}), 20"
    )
    assert hold_in(state) is None
    assert catalog_in(state).models[0].wanted == 1
    assert appliance("model", "resume", "digits")[1] == "digits is not held; nothing was changed\n"


def test_who_lets_a_pinned_version_go_after_its_hold_was_lifted_needs_no_second_resume(
    appliance: Run, pack: Pack, state: Path
) -> None:
    appliance("model", "install", "--no-want", str(pack()), str(pack(2)))
    (state / "fleet").mkdir()
    (state / "fleet" / "controller").touch()
    assert "held by hand" in appliance("model", "pin", "digits/2")[1]
    out = appliance("model", "resume", "digits")[1]
    assert out.splitlines()[1:] == ["digits/2 stays pinned; 'appliance model unpin digits/2' lets it go"]
    assert catalog_in(state).models[0].pins == (2,)
    assert appliance("model", "unpin", "digits/2")[1] == "digits/2 is not pinned any more\n"
    assert (catalog_in(state).models[0].pins, hold_in(state)) == ((), None)

    appliance("model", "want", "digits/1")
    appliance("model", "pin", "digits/2")
    assert "held by hand" in appliance("model", "unpin", "digits/2")[1], "what was wanted by hand stands"
    assert hold_in(state) is not None


def test_all_that_is_held_can_be_let_go_at_once(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", str(pack()))
    appliance("model", "uninstall", "digits")
    assert appliance("model", "resume")[0] == Exit.USAGE
    assert appliance("model", "resume", "digits", "--all")[0] == Exit.USAGE
    status, _, err = appliance("model", "resume", "digit")
    assert (status, "digits" in err) == (Exit.REFUSED, True)
    assert appliance("model", "resume", "--all")[1].startswith("digits is not held any more: uninstall by ")
    assert catalog_in(state).holds == ()


def test_what_is_refused_holds_nothing(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", "--no-want", str(pack()))
    for words in (("rollback", "digits"), ("want", "digits/7"), ("uninstall", "digits/7")):
        assert appliance("model", *words)[0] == Exit.REFUSED
    assert catalog_in(state).holds == ()


@pytest.mark.parametrize(
    ("login", "sudo", "own", "said"),
    [
        ("4294967295", "", 0, "root (uid 0)"),
        ("4294967295", "7", 0, "{seven} (uid 7) as root"),
        ("7", "", 0, "{seven} (uid 7) as root"),
        ("7", "0", 7, "{seven} (uid 7)"),
        ("4294967295", "0", 7, "{seven} (uid 7)"),
        ("7", "0", 0, "{seven} (uid 7) as root"),
        ("what", "", 4_000_000_000, "unknown (uid 4000000000)"),
    ],
    ids=["no login", "by sudo", "by su", "logged in", "who is not root says nothing", "both", "no name"],
)
def test_who_it_was(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, login: str, sudo: str, own: int, said: str
) -> None:
    (tmp_path / "login").write_text(login)
    monkeypatch.setattr(person, "LOGIN", tmp_path / "login")
    monkeypatch.setattr(os, "getuid", lambda: own)
    if sudo:
        monkeypatch.setenv("SUDO_UID", sudo)
    assert person.who() == said.format(seven=pwd.getpwuid(7).pw_name)
