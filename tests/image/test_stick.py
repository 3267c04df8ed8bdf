"""What a stick brings is taken whole and bounded, or not at all: anybody may have put it in."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from image.place import HERE

EXTRA: Final = HERE / "mkosi/mkosi.extra"
SCRIPT: Final = EXTRA / "usr/lib/edge-appliance-image/stick"
NETWORK: Final = "[Network]\nDHCP=yes\n"
SPEAKS: Final = '#!/bin/sh\necho "$(basename "$0") $*" >>"$CALLS"\n'


class Box:
    """The script with folders and programs of its own; what is on the stick lies where it would be mounted."""

    def __init__(self, root: Path) -> None:
        self.place, self.kept, self._calls = root / "stick", root / "kept", root / "calls"
        self.fleet, self._script, self._programs = root / "controller", root / "script", root / "programs"
        (self.place / "network").mkdir(parents=True)
        self._programs.mkdir()
        for name in ("mount", "umount", "findmnt", "systemctl", "appliance"):
            (self._programs / name).write_text(SPEAKS)
            (self._programs / name).chmod(0o755)
        text = SCRIPT.read_text()
        for there, here in (
            ("/run/appliance-stick", self.place),
            ("/var/lib/appliance-image", self.kept),
            ("/var/lib/appliance/fleet/controller", self.fleet),
        ):
            assert there in text
            text = text.replace(there, str(here))
        self._script.write_text(text)

    def put_in(self) -> str:
        """What is said, and what was run."""
        environment = {"PATH": f"{self._programs}:{os.environ['PATH']}", "CALLS": str(self._calls)}
        done = subprocess.run(
            ["/bin/sh", str(self._script), "take", "/dev/sdz1"], env=environment, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True, timeout=40,
        )  # fmt: skip
        return done.stdout + self._calls.read_text()

    def networks(self) -> list[str]:
        """The files of networks that were taken."""
        return sorted(path.name for path in (self.kept / "network").iterdir())


@pytest.fixture(name="box")
def _box(tmp_path: Path) -> Box:
    return Box(tmp_path)


def huge(path: Path) -> None:
    """A file that takes no room on the stick, and all of it where it is copied to."""
    path.touch()
    os.truncate(path, 4 << 30)


def test_what_is_right_is_taken_and_readable_by_whom_it_must_be(box: Box) -> None:
    (box.place / "network/10-site.network").write_text(NETWORK)
    (box.place / "enrol").write_text("token")
    (box.place / "appliance.toml").touch()
    said = box.put_in()
    assert "the stick brings the network 10-site.network" in said
    assert f"appliance image configure {box.place}/appliance.toml" in said
    assert "restart appliance-enrol.service" in said
    assert (box.kept / "network/10-site.network").read_text() == NETWORK
    assert (box.kept / "network/10-site.network").stat().st_mode & 0o777 == 0o644
    assert (box.kept / "enrol").stat().st_mode & 0o777 == 0o600


def test_what_is_huge_fills_no_disk_and_leaves_what_was_there(box: Box) -> None:
    (box.place / "network/10-site.network").write_text(NETWORK)
    box.put_in()
    for name in ("network/10-site.network", "enrol"):
        huge(box.place / name)
    assert "more than 65536 bytes" in box.put_in()
    assert box.networks() == ["10-site.network"]
    assert (box.kept / "network/10-site.network").read_text() == NETWORK
    assert not (box.kept / "enrol").exists()
    assert sum(path.stat().st_size for path in box.kept.rglob("*") if path.is_file()) == len(NETWORK)


def test_networks_are_bounded_in_number_over_all_sticks(box: Box) -> None:
    for number in range(40):
        (box.place / f"network/{number}.network").write_text(NETWORK)
    assert "no more are taken" in box.put_in()
    for path in (box.place / "network").iterdir():
        path.rename(path.with_name(f"other-{path.name}"))
    box.put_in()
    assert len(box.networks()) == 32


@pytest.mark.parametrize("name", ["a\nb", "\x1b[2J", "a b", ".hidden", "\u202e", "$(reboot)"])
def test_a_name_that_would_show_as_something_else_is_not_taken_or_shown(box: Box, name: str) -> None:
    (box.place / f"network/{name}.network").write_text(NETWORK)
    said = box.put_in()
    assert name not in said
    assert box.networks() == []


def test_a_box_of_a_fleet_keeps_no_other_token(box: Box) -> None:
    box.fleet.touch()
    (box.place / "enrol").write_text("token")
    assert "belongs to a fleet" in box.put_in()
    assert not (box.kept / "enrol").exists()


def test_only_file_systems_without_links_and_devices_are_mounted(box: Box) -> None:
    """A link to what root alone may read would be followed; and the kernel reads others with far more code."""
    said = box.put_in()
    assert "mount -t vfat,exfat -o ro,nodev,nosuid,noexec /dev/sdz1" in said


def test_a_site_can_close_it() -> None:
    unit = (EXTRA / "usr/lib/systemd/system/appliance-stick@.service").read_text()
    assert "ConditionPathExists=!/etc/appliance/no-stick\n" in unit
    assert "ConditionCredential=!appliance.no-stick\n" in unit
