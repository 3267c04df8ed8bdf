"""By what models come to memory and leave it: what the operator sets, and constants beside it."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.config.engine import ResidencyConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyPolicy(ResidencyConfig):
    """The ``[residency]`` section with constants of its own. What each of these is for stands behind it."""

    evict_weights: bool = True
    """Keep the sessions of models whose weights leave memory, where that is possible: paging weights in again is many
    times faster than making a session."""
    early_bytes: int = 32 << 20
    """Models with at least so much in a file of weights answer while their fast session is still made: that of a
    smaller one is made before it would be noticed."""
    verify: bool = True
    """Hold weights that come back to memory against their digests: a disk that rots must not answer."""
    loads_at_once: int = 2
    """Models that load while requests wait: one that is slow does not hold up the next, and two share one disk well."""
    hold_factor: float = 1.0
    """How many times its load time a model stays after it was loaded, so that loads never take over half the time."""
    retry_ns: int = 5_000_000
    """How often a load looks for room when all models are in use: as long as a short batch."""
    backoff_ns: int = 1_000_000_000
    backoff_ns_max: int = 60_000_000_000
    """The first and the longest pause after failed loads of a model, doubled by each: a file that was being copied is
    served soon, and one that stays broken costs a load a minute."""
