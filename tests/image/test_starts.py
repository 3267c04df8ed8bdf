"""Starts that come to nothing are counted by the initrd's own script, and settled by the version that came up."""

from __future__ import annotations

import subprocess
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from appliance.cli.image import settle as command
from appliance.cli.main import main
from appliance.image.machine import entries_in
from appliance.image.starts import GIVEN_UP, VARIABLE, given_up, settle
from tests.image.releases import machine

SCRIPT: Final = Path(__file__).resolve().parents[2].joinpath(
    "image/mkosi/mkosi.images/initrd/mkosi.extra/usr/lib/appliance/count-starts"
)  # fmt: skip
LOADER: Final = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f"
ATTRIBUTES: Final = b"\7\0\0\0"
STARTS: Final = 5
AGAIN: Final = 10


def firmware(folder: Path, *entries: str) -> Path:
    """Its variables after the boot loader started the first of these."""
    said = {"LoaderEntries": entries, "LoaderEntrySelected": entries[:1]}
    for name, texts in said.items():
        data = b"".join(f"{each}\0".encode("utf-16-le") for each in texts)
        (folder / f"{name}-{LOADER}").write_bytes(ATTRIBUTES + data)
    return folder


def start(folder: Path) -> int:
    return subprocess.run(["/bin/sh", str(SCRIPT), str(folder)], check=False, timeout=20).returncode


def test_after_five_starts_another_good_version_is_started_once(tmp_path: Path) -> None:
    names = ("edge-appliance_1.1.efi", "edge-appliance_1.2+1-2.efi", "edge-appliance_1.0.efi", "auto-reboot")
    folder = firmware(tmp_path, *names)
    once = folder / f"LoaderEntryOneShot-{LOADER}"
    for count in range(1, STARTS + 1):
        assert start(folder) == 0
        assert (folder / VARIABLE.name).read_bytes() == ATTRIBUTES + str(count).encode()
        assert not once.exists()
    assert start(folder) == AGAIN
    assert once.read_bytes() == ATTRIBUTES + "edge-appliance_1.0.efi\0".encode("utf-16-le")
    assert (folder / VARIABLE.name).read_bytes() == ATTRIBUTES + GIVEN_UP + b" 0"
    assert start(folder) == 0, "the other one counts its own starts"
    assert (folder / VARIABLE.name).read_bytes() == ATTRIBUTES + GIVEN_UP + b" 1", (
        "and knows why it is started"
    )


def test_where_there_is_no_other_version_the_only_one_is_started_on_and_on(tmp_path: Path) -> None:
    folder = firmware(tmp_path, "edge-appliance_1.1.efi", "auto-reboot")
    assert [start(folder) for _ in range(3 * STARTS)] == [0] * (3 * STARTS)
    assert not (folder / f"LoaderEntryOneShot-{LOADER}").exists()


def test_what_came_up_takes_the_tries_of_what_was_given_up(tmp_path: Path) -> None:
    found = machine(tmp_path, "edge-appliance_1.0.efi", "edge-appliance_1.1.efi", version="1.0")
    variable = tmp_path / "variable"
    variable.write_bytes(ATTRIBUTES + GIVEN_UP + b" 1")
    gone = given_up(found, variable)
    assert gone is not None
    settle(found, gone, variable)
    assert [(each.version, each.word) for each in entries_in(found.folder)] == [
        ("1.0", "good"),
        ("1.1", "failed"),
    ]
    assert not variable.exists()
    settle(found, given_up(found, variable), variable)


def test_a_start_that_came_to_something_costs_nobody_a_try(tmp_path: Path) -> None:
    """One that was counted; and one of the very version that had been given up."""
    for number, (said, runs) in enumerate(((b"4", "1.0"), (GIVEN_UP + b" 2", "1.1"))):
        found = machine(
            tmp_path / str(number), "edge-appliance_1.0.efi", "edge-appliance_1.1.efi", version=runs
        )
        variable = tmp_path / "variable"
        variable.write_bytes(ATTRIBUTES + said)
        assert given_up(found, variable) is None
        settle(found, None, variable)
        assert not variable.exists()
        assert {each.word for each in entries_in(found.folder)} == {"good"}


def test_a_state_directory_in_which_nothing_can_be_left_keeps_no_start_from_being_settled(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else whoever took the daemon over has the next starts come to nothing, and the version before started."""
    found = machine(tmp_path, "edge-appliance_1.0.efi", "edge-appliance_1.1.efi", version="1.0")
    (state := tmp_path / "state").mkdir()
    (state / "machine-problem").mkdir()
    (tmp_path / "appliance.toml").write_text(f'state_dir = "{state}"\n')
    (variable := tmp_path / "variable").write_bytes(ATTRIBUTES + GIVEN_UP + b" 1")
    monkeypatch.setattr(command, "this_machine", lambda: found)
    monkeypatch.setattr(command, "given_up", partial(given_up, variable=variable))
    monkeypatch.setattr(command, "settle", partial(settle, variable=variable))
    assert main(["image", "settle", "--config", str(tmp_path / "appliance.toml")]) == 0
    assert not variable.exists()
    assert "the fleet cannot be told" in capsys.readouterr().out
