"""A version as it is shown to people."""

from __future__ import annotations

from appliance.domain.model import VersionState
from appliance.engine.port import LoadStatus, TrialStatus, VersionStatus
from appliance.engine.versions.routes import Served
from appliance.engine.versions.wording import Said


def version_status(
    served: Served,
    *,
    said: Said,
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
        reason=said.reason,
        outlook=said.outlook,
        waiting=said.waiting,
        phase=served.phase,
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
