"""Where an image is made: the folders of a build, and how commands run inside the tools tree."""

from __future__ import annotations

import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from appliance.image.machine import ARCHITECTURES
from appliance.image.release import IMAGE, MACHINES

ROOT: Final = Path(__file__).resolve().parents[1]
HERE: Final = ROOT / "image"


def processor_of(architecture: str) -> str:
    """What the kernel calls that architecture."""
    return next(word for word, name in ARCHITECTURES.items() if name == architecture)


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """``folder`` is everything's; inside the tools tree it is /build, and the repository is /source. Images that are
    made there are for ``architecture``."""

    folder: Path
    architecture: str = MACHINES[0]

    def inside(self, path: Path) -> str:
        """The path as commands in the tools tree see it."""
        return f"/build/{path.resolve().relative_to(self.folder.resolve())}"

    def built(self, version: str, variant: str = "cpu") -> Built:
        """That version, as a build leaves it here."""
        return Built(
            version=version, folder=self.folder / "out", variant=variant, architecture=self.architecture
        )

    def run(self, *command: str, log: Path | None = None) -> None:
        """Run a command in the tools tree; what it prints goes to ``log``. Ends the build where it fails."""
        with open(log or "/dev/null", "ab") as output:
            done = subprocess.run(
                self.command(*command), stdin=subprocess.DEVNULL, stdout=output, stderr=output, check=False
            )
        if done.returncode != 0:
            said = f"; why: {log}" if log else ""
            raise SystemExit(f"make: {command[0]} ended with status {done.returncode}{said}")

    def output(self, *command: str) -> str:
        """What a command prints."""
        return subprocess.run(self.command(*command), capture_output=True, text=True, check=True).stdout

    def command(self, *command: str) -> list[str]:
        """The command line that runs a command in the tools tree."""
        return [str(HERE / "enter"), str(self.folder), *command]


@dataclass(frozen=True, slots=True, kw_only=True)
class Built:
    """What a build of one version left in ``folder``; ``variant`` and ``architecture`` are of those that
    releases have."""

    version: str
    folder: Path
    variant: str = "cpu"
    architecture: str = MACHINES[0]

    @property
    def name(self) -> str:
        """How its files begin."""
        return f"{IMAGE}_{self.version}"

    @property
    def kernel(self) -> Path:
        """The kernel, with its initrd and its command line."""
        return self.folder / f"{self.name}.efi"

    @property
    def boot(self) -> Path:
        """The boot partition."""
        return self._one("esp.raw")

    @property
    def root(self) -> Path:
        """The root."""
        return self._one(f"root-{self.architecture}.{'?' * 32}.raw")

    @property
    def sums(self) -> Path:
        """The tree of sums over the root."""
        return self._one(f"root-{self.architecture}-verity.*.raw")

    @property
    def manifest(self) -> Path:
        """Which packages are in it."""
        return self.folder / f"{self.name}.manifest"

    def _one(self, pattern: str) -> Path:
        found = sorted(self.folder.glob(f"{self.name}.{pattern}"))
        if len(found) != 1:
            raise SystemExit(f"make: {self.folder} has {len(found)} files {self.name}.{pattern}, not one")
        return found[0]
