"""What is mounted on /var is the partition beside the root, whatever else has one of its name."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from image.place import HERE

SCRIPT: Final = HERE / "mkosi/mkosi.extra/usr/lib/edge-appliance-image/var"


def opened(root: Path, blkid: str = "ext4") -> subprocess.CompletedProcess[str]:
    """What the script does on a machine whose kernel tells of its disks below ``root``."""
    (programs := root / "programs").mkdir(exist_ok=True)
    label = f'case "$*" in *PART_ENTRY_NAME*) cat {root}/labels/"${{6##*/}}" ;; *) echo {blkid} ;; esac'
    for name, does in (("mountpoint", "echo 254:0"), ("blkid", label), ("systemd-cryptsetup", "true")):
        (programs / name).write_text(f'#!/bin/sh\necho "$@" >>{root}/calls\n{does}\n')
        (programs / name).chmod(0o755)
    text = SCRIPT.read_text()
    for there, here in (("/sys/dev", f"{root}/sys/dev"), ("/run/", f"{root}/")):
        text = text.replace(there, here)
    (root / "script").write_text(text)
    environment = {"PATH": f"{programs}:{os.environ['PATH']}"}
    return subprocess.run(
        ["/bin/sh", str(root / "script"), "open"], env=environment, capture_output=True, text=True,
        check=False, timeout=40,
    )  # fmt: skip


def disk(root: Path, name: str, *labels: str) -> Path:
    """A disk as the kernel tells of it, and what is written on it."""
    (root / "labels").mkdir(exist_ok=True)
    for number, label in enumerate(labels, 1):
        (part := root / f"sys/block/{name}/{name}{number}").mkdir(parents=True)
        (part / "partition").touch()
        (part / "uevent").write_text(f"MAJOR=8\nDEVNAME={name}{number}\nDEVTYPE=partition\n")
        (root / "labels" / part.name).write_text(label)
    return root / f"sys/block/{name}"


@pytest.fixture(name="root")
def _root(tmp_path: Path) -> Path:
    """A verity root on the disk sdb, while a stick, sda, has partitions of the same names."""
    names = ("esp", "edge-appliance_1.0_verity", "edge-appliance_1.0_root", "appliance-var-old")
    disk(tmp_path, "sda", *names[:3], "appliance-var")
    own = disk(tmp_path, "sdb", *names, "appliance-var")
    (slaves := tmp_path / "sys/dev/block/254:0/slaves").mkdir(parents=True)
    for part in ("sdb2", "sdb3"):
        (slaves / part).symlink_to(own / part)
    return tmp_path


def test_a_stick_with_a_partition_of_that_name_is_not_taken_for_it(root: Path) -> None:
    done = opened(root)
    assert done.returncode == 0, done.stdout + done.stderr
    assert os.readlink(root / "appliance-var") == "/dev/sdb5"


def test_a_sealed_one_is_opened_by_the_tpm_there(root: Path) -> None:
    assert opened(root, "crypto_LUKS").returncode == 0
    assert "attach appliance-var /dev/sdb5 - luks" in (root / "calls").read_text()


def test_where_the_disk_has_none_another_disks_is_not_taken(root: Path) -> None:
    (root / "labels/sdb5").write_text("other")
    done = opened(root)
    assert done.returncode != 0
    assert "has no partition appliance-var" in done.stdout
    assert not (root / "appliance-var").is_symlink()
