"""What scenarios share: builds of versions, and the machine that is made once and copied by each."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from appliance.image.release import MACHINES
from image.disk import compose
from image.place import ROOT, Place
from tests.image.vm import Machine, new_disk

Facts = dict[str, object]

BASE: Final = "1.0.0"
NEXT: Final = "1.0.1"
BROKEN: Final = "1.0.2"
STORE: Final = "--state-dir /var/lib/appliance"
"""Of the machine's own store, for commands that run in it."""
LOOP: Final = (
    "import time; b = time.process_time(); sum(i * i for i in range(2000000)); print(time.process_time() - b)"
)
"""Work for one processor, whose time it tells."""
SILENT: Final = """\
# A daemon that starts, says that it is ready, and never answers.
[Service]
ExecStart=
ExecStart=/usr/bin/sh -c 'systemd-notify --ready; exec sleep infinity'
NotifyAccess=all
WatchdogSec=0
"""


@dataclass(frozen=True, kw_only=True)
class World:
    """See the module. ``place`` is the build's folder; ``keys`` are others than those that it makes itself."""

    place: Place
    variant: str = "cpu"
    keys: Path | None = None

    def of(self, architecture: str) -> World:
        """The one for machines of that architecture, which has a folder of its own beside this one."""
        if architecture == self.place.architecture:
            return self
        folder = self.place.folder.with_name(f"{self.place.folder.name}-{architecture}")
        return replace(self, place=Place(folder=folder, architecture=architecture))

    def folder(self, name: str) -> Path:
        """The folder of a scenario."""
        return self.place.folder / "tests" / name

    def disk(self, version: str = BASE) -> Path:
        """The disk of a version, built where it is not there yet."""
        path = self.place.folder / f"{self.place.built(version).name}.disk.raw"
        if not path.exists():
            self._build(version)
        return path

    def release(self, version: str) -> Path:
        """The release of a version, built where it is not there yet."""
        path = self.place.folder / f"release-{version}"
        if not path.exists():
            self._build(version)
        return path

    def fresh(self, name: str, version: str = BASE) -> Path:
        """A disk that was never started, for the scenario."""
        return new_disk(self.place, self.disk(version), self.folder(name))

    def pair(self, name: str, tried: str, *, proven: bool = False) -> Path:
        """A raw disk for the scenario, on which the base proved itself and the version ``tried`` was just installed, or
        is ``proven``, too."""
        self.disk(BASE), self.disk(tried)
        target = self.folder(name) / "pair.raw"
        target.parent.mkdir(parents=True, exist_ok=True)
        before, after = (self.place.built(version, self.variant) for version in (BASE, tried))
        compose(self.place, before, target, after, proven=proven)
        return target

    def _build(self, version: str) -> None:
        command = [sys.executable, "-m", "image.build", "--folder", str(self.place.folder)]
        command += ["--image-version", version, "--variant", self.variant]
        command += ["--architecture", self.place.architecture]
        if self.keys is not None:
            command += ["--keys", str(self.keys)]
        if version == BROKEN:
            extra = self.folder("broken-tree")
            shutil.rmtree(extra, ignore_errors=True)
            unit = extra / "usr/lib/systemd/system/appliance.service.d/50-silent.conf"
            unit.parent.mkdir(parents=True)
            unit.write_text(SILENT)
            command += ["--extra", str(extra)]
        done = subprocess.run(command, cwd=ROOT, check=False, timeout=2400)
        if done.returncode != 0:
            raise SystemExit(f"image {version} could not be built")


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """One scenario: ``run`` gives what it measured of a world of that ``architecture``, or fails."""

    name: str
    about: str
    run: Callable[[World], Facts]
    architecture: str = MACHINES[0]

    @property
    def folder(self) -> str:
        """How its folder is called, among those of its architecture."""
        return self.name.removeprefix(f"{self.architecture}-")


def boot_figures(machine: Machine) -> Facts:
    """What the guest says of its own start, by its own clock, and how much slower it computes than this machine."""
    machine.run(
        "for i in $(seq 60); do systemctl is-system-running --wait && break; sleep 1; done", check=False
    )
    said = machine.run("systemd-analyze time", check=False).strip().splitlines()
    answered = (
        float(machine.run("systemctl show -P ExecMainExitTimestampMonotonic appliance-image-check")) / 1e6
    )
    slower = slowness(machine)
    return {
        "guest": said[0].strip() if said else "",
        "guest, kernel to first answer, s": round(answered, 1),
        "the guest computes slower than this machine, times": round(slower, 1),
        "scaled by that, kernel to first answer, s": round(answered / slower, 1),
        "critical chain": machine.run(
            "systemd-analyze critical-chain appliance.service --no-pager", check=False
        ).strip(),
        "failed units": machine.run("systemctl --failed --no-legend --plain", check=False).strip(),
    }


def slowness(machine: Machine) -> float:
    """How many times slower the guest computes than this machine."""
    here = subprocess.run(["python3", "-c", LOOP], capture_output=True, text=True, check=True).stdout
    return float(machine.run(f"python3 -c {LOOP!r}")) / float(here)
