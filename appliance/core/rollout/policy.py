"""By what versions replace one another: what the operator sets, and constants beside it."""

from __future__ import annotations

from dataclasses import dataclass

from appliance.config.swap import SwapConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutPolicy(SwapConfig):
    """The ``[swap]`` section with constants of its own. What each of these is for stands behind it."""

    loads: int = 2
    """Versions that load in the background at a time: one large one does not hold up all others, and requests keep the
    rest of the disk and of the processors."""
    retry_max_s: float = 86_400.0
    """The longest pause before a version that was given up is tried again: a box is never left alone for over a day."""
    mirrored_in_flight: int = 4
    """Mirrored requests at a time; more are left out, so that comparing never queues behind itself."""
    mirrored_bytes: int = 64 << 10
    """How much of each answer is compared: what differs at all differs early, and four answers are held at a time."""
    tolerance_absolute: float = 1e-3
    tolerance_relative: float = 1e-2
    """How far numbers in answers may differ: other kernels and quantised weights stay within it, another model not."""
    differing_percent: float = 1.0
    """Mirrored answers that may differ: a class whose two best scores are equal falls either way now and then."""
    patience_s: float = 600.0
    """The longest a stage lasts; then what was seen is enough, or a model that is seldom asked would stay on trial."""
    latency_slack_us: int = 1_000
    """Runs may take this much longer on top of ``latency_factor``: below it, the system's own noise is what differs."""
    engine_apart_factor: float = 1.25
    """Where an engine could not be run beside its session, runs of it may take so many times those of the session: both
    figures are of few runs, measured at two times. Else see ``domain/side_by_side``. Nothing is added to either: the
    version is there already without its engine, and is not to become slower by what is there to make it faster."""
    engine_gain: float = 10.0
    """Where nothing is known of a session that the version before had before its engine: so many times as long as its
    engine's runs it may have taken. Few engines are as fast; what replaces it is held to something all the same."""
    hang_factor: float = 10.0
    hang_slack_ms: int = 1_000
    """A run on trial that takes so many times as long as any before, and this much longer, hangs: ten times is beyond
    any noise, and a second is what a machine under load adds to a short run. A factor of 0: only
    ``workers.run_timeout_ms`` holds."""
    crashes: int = 1
    """Crashes on trial that end a version: the version before serves, so nothing is gained by more."""
