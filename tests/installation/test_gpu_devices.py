"""What the unit for a GPU does before the daemon starts: which device files it has made, and which of them the drop-in
lets the daemon use. Driver and `nvidia-modprobe` are *simulated*: the latter takes its words as NVIDIA's source does.
"""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest

from packages.cuda_runtime import DEVICES

TOOL = """#!/bin/sh
minors='' uvm='' caps=''
while [ $# != 0 ]; do
  case $1 in
  -u) uvm=1 ;;
  -c) minors="$minors $2"; shift ;;
  -f) caps="$caps $2"; shift ;;
  *) echo "Invalid commandline" >&2; exit 1 ;;
  esac
  shift
done
for each in $minors; do
  # with -u, numbers are those of nvidia-uvm, and the next one is that of nvidia-uvm-tools
  if [ -n "$uvm" ]; then
    [ "$each" = 0 ] && touch @DEV@/nvidia-uvm @DEV@/nvidia-uvm-tools
  elif [ "$each" = 255 ]; then
    touch @DEV@/nvidiactl
  else
    touch @DEV@/nvidia$((each))
  fi
done
for each in $caps; do touch @DEV@/nvidia-cap"$(sed -n 's/^DeviceFileMinor: //p' "$each")"; done
"""
ALL_OF_ONE = {"nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"}
DRIVERS = {
    "525 to 535": ("nvidia-frontend", "nvidia-nvswitch", "nvidia-nvlink", "nvidia-caps", "nvidia-uvm"),
    "from 545 on": ("nvidia", "nvidiactl", "nvidia-nvswitch", "nvidia-nvlink", "nvidia-caps", "nvidia-uvm"),
}
"""What drivers register, as `/proc/devices` has it: by the first name, all of major 195."""


class Box:
    """A machine that is simulated, in a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.dev, self.bin = root / "dev", root / "bin"
        for folder in (self.dev, self.bin, root / "sys/bus/pci/devices", root / "proc/driver/nvidia"):
            folder.mkdir(parents=True)
        for name in ("cat", "sed", "touch"):
            (self.bin / name).symlink_to(shutil.which(name) or name)
        self.program("modprobe", "#!/bin/sh\n")
        self.program("nvidia-modprobe", TOOL.replace("@DEV@", str(self.dev)))

    def program(self, name: str, text: str) -> None:
        """Lay a command out."""
        (self.bin / name).write_text(text)
        (self.bin / name).chmod(0o755)

    def has(self, slot: str, vendor: str, kind: str) -> None:
        """A device is on the bus."""
        (folder := self.root / "sys/bus/pci/devices" / slot).mkdir()
        (folder / "vendor").write_text(f"{vendor}\n")
        (folder / "class").write_text(f"{kind}\n")

    def took(self, slot: str, minor: int) -> None:
        """The driver took it, under a number."""
        (folder := self.root / "proc/driver/nvidia/gpus" / slot).mkdir(parents=True)
        (folder / "information").write_text(f"Model: \t\t NVIDIA L4\nDevice Minor: \t {minor}\n")

    def instance(self, path: str, minor: int) -> None:
        """There is a capability of MIG."""
        (folder := self.root / "proc/driver/nvidia/capabilities" / path).mkdir(parents=True)
        (folder / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\n")

    def run(self) -> subprocess.CompletedProcess[str]:
        """Run what the unit runs."""
        text = re.sub(r"(?<=[ \t])/(?=(sys|proc)/)", f"{self.root}/", (DEVICES / "devices").read_text())
        return subprocess.run(
            ["/bin/sh", "-c", text], env={"PATH": str(self.bin)}, capture_output=True, text=True, check=False
        )

    def files(self) -> set[str]:
        """The device files."""
        return {path.name for path in self.dev.iterdir()}


@pytest.fixture(name="box")
def _box(tmp_path: Path) -> Box:
    box = Box(tmp_path)
    box.has("0000:00:00.0", "0x8086", "0x060000")
    return box


def test_a_gpu_has_the_files_that_cuda_opens(box: Box) -> None:
    box.has("0000:01:00.0", "0x10de", "0x030200")
    box.has("0000:01:00.1", "0x10de", "0x040300")  # its sound
    box.took("0000:01:00.0", 0)
    done = box.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert box.files() == {*ALL_OF_ONE, "nvidia0"}


def test_only_what_the_driver_took_has_a_file_by_the_drivers_number(box: Box) -> None:
    for number, slot in enumerate(("0000:01:00.0", "0000:02:00.0", "0000:03:00.0")):
        box.has(slot, "0x10de", "0x030000")
        if number != 1:  # a virtual machine has that one
            box.took(slot, number)
    assert box.run().returncode == 0
    assert box.files() == {*ALL_OF_ONE, "nvidia0", "nvidia2"}


def test_instances_of_mig_have_theirs(box: Box) -> None:
    box.has("0000:01:00.0", "0x10de", "0x030200")
    box.took("0000:01:00.0", 0)
    for path, minor in (("mig/config", 1), ("gpu0/mig/gi1", 12), ("gpu0/mig/gi1/ci0", 13)):
        box.instance(path, minor)
    done = box.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert box.files() == {*ALL_OF_ONE, "nvidia0", "nvidia-cap12", "nvidia-cap13"}, (
        "none to make instances by"
    )


def test_a_gpu_that_the_driver_did_not_take_is_told_of(box: Box) -> None:
    box.has("0000:01:00.0", "0x10de", "0x030200")
    done = box.run()
    assert done.returncode == 1
    assert "the driver took none" in done.stderr


def test_a_driver_without_its_tool_is_told_of(box: Box) -> None:
    box.has("0000:01:00.0", "0x10de", "0x030200")
    (box.bin / "nvidia-modprobe").unlink()
    done = box.run()
    assert done.returncode == 1
    assert "no nvidia-modprobe" in done.stderr


def test_without_a_gpu_nothing_is_done(box: Box) -> None:
    for name in ("modprobe", "nvidia-modprobe"):
        (box.bin / name).unlink()
    done = box.run()
    assert (done.returncode, done.stderr) == (0, "")
    assert "there is no NVIDIA device" in done.stdout


@pytest.mark.parametrize("registered", DRIVERS.values(), ids=DRIVERS)
def test_the_daemon_may_use_what_each_driver_calls_its_devices(registered: tuple[str, ...]) -> None:
    text = (DEVICES / "appliance-gpu.conf").read_text()
    allowed = set(re.findall(r"^DeviceAllow=char-(\S+) rw$", text, re.MULTILINE))
    assert {registered[0], "nvidia-uvm", "nvidia-caps"} <= allowed & set(registered)
    assert not allowed & {"nvidia-nvswitch", "nvidia-nvlink"}


def test_a_driver_that_hangs_does_not_keep_the_daemon_from_starting() -> None:
    unit = (DEVICES / "appliance-gpu.service").read_text()
    assert re.search(r"^TimeoutStartSec=[1-9][0-9]*$", unit, re.MULTILINE), "a oneshot has none by itself"
