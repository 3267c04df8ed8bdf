"""The ``[store]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field


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
