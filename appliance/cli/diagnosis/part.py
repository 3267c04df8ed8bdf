"""What a support archive is made of, as plain values: parts, where each comes from, and what became of it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Final

MIB: Final = 1 << 20
PROGRAM_S: Final = 30.0
PROGRAM_BYTES: Final = 8 * MIB
FILES_BYTES: Final = 1 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a program prints within ``limit_s``, and of that the lines in which ``noted`` is found, where that is given.
    ``words`` that begin with one of ``program.OURS`` are run by this interpreter."""

    words: tuple[str, ...]
    limit_s: float = PROGRAM_S
    limit_bytes: int = PROGRAM_BYTES
    noted: re.Pattern[str] | None = None

    @property
    def said(self) -> str:
        """As a person would type it."""
        return " ".join(self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Files:
    """What is in ``paths``, or in those of them that are there; the last ``limit_bytes`` of each."""

    paths: tuple[Path, ...]
    limit_bytes: int = FILES_BYTES

    @property
    def said(self) -> str:
        """Their names."""
        return " ".join(map(str, self.paths))


@dataclass(frozen=True, slots=True, kw_only=True)
class Nowhere:
    """A part that cannot be asked for on this box, and why."""

    reason: str
    said: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A file of the archive: its plain ``path`` in it, and what it is ``about``."""

    path: str
    about: str
    source: Program | Files | Nowhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a part came to. ``data`` None: it is missing, and ``note`` says why; else ``note`` says what is odd about
    it, "" for nothing."""

    data: bytes | None
    note: str = ""
