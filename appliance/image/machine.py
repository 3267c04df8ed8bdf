"""What image this machine runs, which others lie on its disk, and how they stand with the boot loader.

The boot loader keeps a version's tries in the name of its file: ``edge-appliance_1.4+2-1.efi`` has two left and one
behind it, ``edge-appliance_1.4.efi`` proved itself. So what is read here is what the next start goes by.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from appliance.domain.errors import OperatorError
from appliance.image.release import IMAGE, version_key

ARCHITECTURES: Final[Mapping[str, str]] = MappingProxyType({"x86_64": "x86-64", "aarch64": "arm64"})
"""The kernel's words and those of the image."""
TRIES: Final = 3
ENTRIES: Final = "EFI/Linux"
KEPT: Final = "run/appliance-var"
"""Leads to what is mounted on /var (appliance-var.service)."""
_ENTRY: Final = re.compile(
    rf"{IMAGE}_(?P<version>[0-9]{{1,6}}(\.[0-9]{{1,6}}){{1,3}})"
    r"(\+(?P<left>[0-9]{1,3})(-(?P<done>[0-9]{1,3}))?)?\.efi"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A version that the boot loader offers. ``left`` is how many tries it has to prove itself, None once it did."""

    version: str
    file: str
    left: int | None = None
    done: int = 0

    @property
    def word(self) -> str:
        """How it stands."""
        if self.left is None:
            return "good"
        return f"{self.left} of {self.left + self.done} tries left" if self.left else "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """See the module. ``entries`` are in the order in which the boot loader prefers them; ``folder`` is where they
    lie. What the box keeps is ``sealed`` where its TPM alone opens it."""

    version: str
    variant: str
    architecture: str
    folder: Path
    entries: tuple[Entry, ...]
    sealed: bool

    @property
    def running(self) -> Entry | None:
        """The entry of what runs."""
        return next((entry for entry in self.entries if entry.version == self.version), None)

    @property
    def next(self) -> Entry | None:
        """What the next start takes."""
        return self.entries[0] if self.entries else None

    def entry(self, version: str) -> Entry | None:
        """The entry of that version."""
        return next((entry for entry in self.entries if entry.version == version), None)


def look(root: Path = Path("/")) -> Machine:
    """This machine, or what lies below ``root``. Raises OperatorError where it runs no image of this product."""
    said = _os_release(root / "usr/lib/os-release")
    if said.get("IMAGE_ID") != IMAGE or "IMAGE_VERSION" not in said:
        raise OperatorError(
            "this machine runs no image of the appliance; packages are updated as others are (docs/OPERATIONS.md)"
        )
    folder = next((each for each in (root / "efi", root / "boot") if (each / ENTRIES).is_dir()), None)
    if folder is None:
        raise OperatorError("the boot partition is not there: neither /efi nor /boot has EFI/Linux")
    machine = os.uname().machine
    return Machine(
        version=said["IMAGE_VERSION"],
        variant=said.get("VARIANT_ID", ""),
        architecture=ARCHITECTURES.get(machine, machine),
        folder=folder / ENTRIES,
        entries=entries_in(folder / ENTRIES),
        sealed=_leads_to(root / KEPT).startswith("/dev/mapper/"),
    )


def entries_in(folder: Path) -> tuple[Entry, ...]:
    """The entries in that folder, the boot loader's first choice first. Raises OperatorError."""
    try:
        names = sorted(os.listdir(folder))
    except OSError as error:
        raise OperatorError(f"'{folder}' cannot be read: {error.strerror}") from error
    found = [entry for entry in map(_entry, names) if entry is not None]
    return tuple(sorted(found, key=lambda entry: (entry.left != 0, version_key(entry.version)), reverse=True))


def set_tries(folder: Path, entry: Entry, left: int) -> Entry:
    """Give the entry so many tries: none has the boot loader take another. Raises OperatorError."""
    behind = f"-{TRIES - left}" if left < TRIES else ""
    name = f"{IMAGE}_{entry.version}+{left}{behind}.efi"
    try:
        os.rename(folder / entry.file, folder / name)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise OperatorError(f"'{folder / entry.file}' cannot be renamed: {error.strerror}") from error
    return Entry(version=entry.version, file=name, left=left, done=TRIES - left)


def _entry(name: str) -> Entry | None:
    found = _ENTRY.fullmatch(name)
    if found is None:
        return None
    left, done = found["left"], found["done"]
    return Entry(
        version=found["version"], file=name, left=None if left is None else int(left), done=int(done or 0)
    )


def _leads_to(path: Path) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""


def _os_release(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {key: value.strip().strip("\"'") for key, _, value in pairs}
