"""What a machine says of its images, and in which order the boot loader takes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance.domain.errors import OperatorError
from appliance.image import note, reset
from appliance.image.machine import KEPT, entries_in, look, set_tries
from appliance.sync.box import machine_problems
from tests.image.releases import machine


def test_what_is_good_or_has_tries_left_comes_before_what_failed(tmp_path: Path) -> None:
    found = machine(
        tmp_path,
        "edge-appliance_1.9.efi",
        "edge-appliance_1.10+2-1.efi",
        "edge-appliance_1.11+0-3.efi",
        "edge-appliance_nonsense.efi",
        "other_2.0.efi",
        version="1.9",
    )
    assert [(entry.version, entry.word) for entry in found.entries] == [
        ("1.10", "2 of 3 tries left"),
        ("1.9", "good"),
        ("1.11", "failed"),
    ]
    assert found.running is found.entries[1]
    assert found.next is found.entries[0]


def test_a_version_without_tries_is_left_and_one_that_gets_them_is_taken_again(tmp_path: Path) -> None:
    found = machine(tmp_path, "edge-appliance_1.0.efi", "edge-appliance_1.1.efi", version="1.1")
    assert found.running is not None
    left = set_tries(found.folder, found.running, 0)
    assert [entry.version for entry in entries_in(found.folder)] == ["1.0", "1.1"]
    set_tries(found.folder, left, 3)
    assert [entry.file for entry in entries_in(found.folder)] == [
        "edge-appliance_1.1+3.efi",
        "edge-appliance_1.0.efi",
    ]


@pytest.mark.parametrize(
    ("leads", "sealed"), [("/dev/mapper/appliance-var", True), ("/dev/vda6", False), (None, False)]
)
def test_a_machine_tells_whether_its_tpm_sealed_what_it_keeps(
    tmp_path: Path, leads: str | None, sealed: bool
) -> None:
    (tmp_path / "run").mkdir()
    if leads is not None:
        (tmp_path / KEPT).symlink_to(leads)
    assert machine(tmp_path).sealed is sealed


def test_a_machine_with_packages_has_no_image(tmp_path: Path) -> None:
    (tmp_path / "usr/lib").mkdir(parents=True)
    (tmp_path / "usr/lib/os-release").write_text("ID=debian\n")
    with pytest.raises(OperatorError, match="runs no image"):
        look(tmp_path)


def test_the_agent_tells_what_the_gate_left_until_a_start_passes(tmp_path: Path) -> None:
    assert machine_problems(tmp_path) == ()
    note.leave(tmp_path, "version 1.1 of the image did not pass its start: no answer")
    assert "version 1.1" in machine_problems(tmp_path)[0]
    note.leave(tmp_path, "x" * 5_000)
    assert len(machine_problems(tmp_path)[0]) == 1_024
    note.remove(tmp_path)
    note.remove(tmp_path)
    assert machine_problems(tmp_path) == ()


def test_what_root_leaves_to_tell_is_written_to_nothing_that_the_services_user_put_there(
    tmp_path: Path,
) -> None:
    """The state directory is the daemon's own; where it was taken over, links wait in it for root."""
    secret = tmp_path / "var-key"
    secret.write_text("key")
    secret.chmod(0o600)
    (state := tmp_path / "state").mkdir()
    for trap in (".machine-problem.new", "machine-problem"):
        (state / trap).unlink(missing_ok=True)
        (state / trap).symlink_to(secret)
        note.leave(state, "version 1.1 did not\nssh-ed25519 AAAA\x1b[2J")
        assert (secret.read_text(), secret.stat().st_mode & 0o777) == ("key", 0o600)
        assert machine_problems(state) == ("version 1.1 did not ssh-ed25519 AAAA [2J",)
    (state / ".machine-problem.new").hardlink_to(secret)
    note.leave(state, "again")
    assert secret.read_text() == "key"
    if os.geteuid() == 0:
        os.chown(state, 12_345, 12_345)
        note.leave(state, "of its user")
        assert (state / "machine-problem").stat().st_uid == 12_345


def test_a_reset_is_asked_of_the_firmware_or_of_what_is_kept(tmp_path: Path) -> None:
    (tmp_path / reset.VARIABLE).parent.mkdir(parents=True)
    (tmp_path / reset.SETTINGS).parent.mkdir(parents=True)
    reset.ask(tmp_path, keep_models=True)
    assert (tmp_path / reset.SETTINGS).exists()
    assert not (tmp_path / reset.VARIABLE).exists()
    reset.ask(tmp_path, keep_models=False)
    assert (tmp_path / reset.VARIABLE).read_bytes() == b"\x07\x00\x00\x00t\x00"
