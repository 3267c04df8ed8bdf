"""A version as it is shown to people."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Final

from appliance.domain.model import VersionState
from appliance.engine.port import LoadStatus, TrialStatus, VersionStatus
from appliance.engine.versions.routes import Served

STILL_PREVIOUS: Final = "still serving the previous file; the new one"
"""How the reason of a version begins that serves, but not from the file that was asked for; what the new one does
follows."""
IS_LOADING: Final = "is loading"
ON_TRIAL: Final = "is on trial"
COMING: Final = tuple(f"{STILL_PREVIOUS} {what}" for what in ("waits", IS_LOADING, ON_TRIAL))
"""How such a reason begins while the new one may still come; any other says that it will not."""
NEVER_FITS: Final = "can never fit into memory"
"""How the reason of a version begins that is not even loaded, and will not be as long as nothing else is configured."""


def version_status(
    served: Served,
    *,
    reason: str,
    queued: int,
    running: int,
    workers: tuple[int, ...],
    trial: TrialStatus | None,
    tries_left: int,
    next_try_ms: int,
) -> VersionStatus:
    """All of it, as of now."""
    proof = served.assessment
    return VersionStatus(
        name=served.model.name,
        version=served.model.version,
        state=served.state,
        reason=reason,
        queued=queued,
        running=running,
        workers=workers,
        statistics=served.meter.frozen(),
        trust=served.model.trust,
        residency=served.form.value,
        trial=trial,
        tries_left=tries_left,
        next_try_ms=next_try_ms,
        run_p50_ns=proof.p50_ns if proof is not None else 0,
        run_p99_ns=proof.p99_ns if proof is not None else 0,
        fallen_back=served.fallen_back,
        untried=served.untried,
        load_ns=served.load_ns,
        loading=_loading(served),
    )


def _loading(served: Served) -> LoadStatus | None:
    progress = served.progress
    if progress is None or served.state is not VersionState.LOADING:
        return None
    return LoadStatus(progress.stage.value, progress.done_bytes, progress.total_bytes)


def next_try(at_ms: int) -> str:
    """When a version that was given up is tried again, in words; ``at_ms`` is by the wall clock, in UTC here: boxes of
    one fleet stand in many zones."""
    return f"next try at {datetime.fromtimestamp(at_ms / 1_000, UTC):%Y-%m-%d %H:%M:%SZ}"


def with_next_try(reason: str, at_ms: int) -> str:
    """Why a version does not serve, and when it is tried again (0: it is not)."""
    return f"{reason}; {next_try(at_ms)}" if at_ms else reason
