"""The ``[packages]`` section of the configuration: whose signatures count, and what becomes of packages
without one."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


class Unsigned(Enum):
    """What becomes of a package that no trusted key has signed."""

    REFUSE = "refuse"
    ALLOW = "allow"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackagesConfig:
    """Which packages may be installed. Paths in a file are relative to that file."""

    trusted_keys: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "files with public keys (PEM), relative to this one; a package signed by any of them is trusted",
        },
    )
    unsigned: Unsigned = field(
        default=Unsigned.REFUSE,
        metadata={"help": "packages without a signature of a trusted key: refuse them, or allow them"},
    )
