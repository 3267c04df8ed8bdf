"""The sections ``[store]``, of model versions on disk, and ``[packages]``, of whose may be installed there."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """How much the store may take, and how it is looked after."""

    quota_bytes: int = field(
        default=0,
        metadata={
            "min": 0,
            "unit": "bytes",
            "help": "most bytes of blobs and packed forms in the store; 0: as many as fit",
        },
    )
    free_floor_bytes: int = field(
        default=1 << 30,
        metadata={
            "min": 0,
            "unit": "bytes",
            "help": "what an install, or building a packed form, leaves free on the disk",
        },
    )
    scrub_bytes_per_s: int = field(
        default=50_000_000,
        metadata={"min": 1, "unit": "bytes/s", "help": "how fast the scrub reads at most"},
    )
    scrub_interval_h: float = field(
        default=168.0,
        metadata={"min": 0.001, "unit": "h", "help": "how often every blob is read again to find bit rot"},
    )


class Unsigned(Enum):
    """What becomes of a package that no trusted key has signed: it is not installed; is; or is neither installed nor
    served any more, where it was installed before its key was withdrawn."""

    REFUSE = "refuse"
    ALLOW = "allow"
    NEVER = "never"


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
        metadata={
            "help": "packages without a signature of a trusted key: refuse to install them, allow it, or never serve "
            "them either, although they are installed"
        },
    )
