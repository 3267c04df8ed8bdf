"""A version as it is shown to people."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from appliance.core.memory.budget import WaitsForDevice
from appliance.core.memory.footprint import Residency
from appliance.core.rollout.phase import SERVING, UNLOADED, Phase
from appliance.core.rollout.reasons import Failed, InterfaceChanged, Outlook, broken_promise
from appliance.core.rollout.registry import Registry
from appliance.core.rollout.version import Version
from appliance.domain.assessment import Assessment
from appliance.domain.exit_cause import ExitCause
from appliance.domain.model import MIXED_ROWS, VersionState
from appliance.engine.port import IndexEntry
from appliance.engine.versions.served import Served
from appliance.engine.versions.wording import (
    DEVICE,
    STILL_PREVIOUS,
    Said,
    change_words,
    given_by_hand,
    remark_text,
    setback_text,
    verdict_text,
    waiting_word,
)
from appliance.telemetry.meter import VersionMeter
from appliance.telemetry.snapshot import (
    GoldenStatus,
    InterfaceRow,
    LoadStatus,
    TrialStatus,
    VersionStatus,
)

RESTARTED: Final = tuple(cause for cause in ExitCause if cause is not ExitCause.STOPPED)
"""Why workers end that are started again."""


def version_status(
    served: Served,
    *,
    said: Said,
    queued: int,
    running: int,
    held_clients: int,
    workers: tuple[int, ...],
    memory: tuple[int, int],
    trial: TrialStatus | None,
    tries_left: int,
    next_try_ms: int,
) -> VersionStatus:
    """All of it, as of now; ``memory`` is what it takes, and how much of that are its weights."""
    proof, untried = served.version.assessment, served.version.untried
    memory_bytes, weights_bytes = memory
    return VersionStatus(
        name=served.model.name,
        version=served.model.version,
        device=served.memory.device,
        homeless=_is_homeless(served),
        state=served.state,
        reason=said.reason,
        outlook=said.outlook,
        waiting=said.waiting,
        phase=served.phase,
        queued=queued,
        running=running,
        held_clients=held_clients,
        workers=workers,
        statistics=served.meter.frozen(),
        trust=served.model.trust,
        residency=(Residency.COLD if served.phase is Phase.FAILED else served.memory.residency).value,
        trial=trial,
        tries_left=tries_left,
        next_try_ms=next_try_ms,
        run_p50_ns=proof.p50_ns if proof is not None else 0,
        run_p99_ns=proof.p99_ns if proof is not None else 0,
        fallen_back=served.requests.fallen_back,
        memory_bytes=memory_bytes,
        weights_bytes=weights_bytes,
        restarts={cause.value: served.placed.restarts[cause] for cause in RESTARTED},
        packed=served.packed,
        golden=_golden(proof) if proof is not None and proof.cases else None,
        interface=_interface(served.version),
        untried=remark_text(untried) if untried is not None else "",
        notes=(
            *served.model.notes,
            *filter(None, (served.unbuilt, served.placed.uncaptured, served.placed.note, _mixed(served))),
        ),
        load_ns=served.placed.load_ns,
        loading=_loading(served),
    )


def _mixed(served: Served) -> str:
    """Why its requests run one by one, "" where they do not."""
    return MIXED_ROWS if served.placed.mixes else ""


def _is_homeless(served: Served) -> bool:
    """Whether no device was found for it; who is refused for the fault of one has that."""
    setback, waiting = served.version.setback, served.version.waiting
    absent = isinstance(setback, Failed) and setback.homeless
    return not served.model.on_cpu and (absent or isinstance(waiting, WaitsForDevice))


def _golden(proof: Assessment) -> GoldenStatus:
    broken = broken_promise(proof)
    return GoldenStatus(
        proof.cases,
        verdict_text(broken) if broken is not None else "",
        max((each.absolute for each in proof.worst), default=0.0),
        max((each.relative for each in proof.worst), default=0.0),
    )


def _interface(version: Version) -> tuple[InterfaceRow, ...]:
    """What differs, where it is held back for that."""
    why = version.setback
    verdict = why.why if isinstance(why, Failed) else why
    changes = verdict.changes if isinstance(verdict, InterfaceChanged) else ()
    return tuple(InterfaceRow(*change_words(change)) for change in changes)


def _loading(served: Served) -> LoadStatus | None:
    progress = served.placed.progress
    if progress is None or served.state is not VersionState.LOADING:
        return None
    return LoadStatus(progress.stage.value, progress.done_bytes, progress.total_bytes)


def with_index(versions: Sequence[VersionStatus], index: Iterable[IndexEntry]) -> tuple[VersionStatus, ...]:
    """``versions`` with the entries of ``index`` that are not among them, by name and version: models whose files or
    configuration are broken never became one. A version that cannot be told is 0."""
    known = {(version.name, str(version.version)) for version in versions}
    missing = [_idle(entry) for entry in index if (entry.name, entry.version) not in known]
    return tuple(sorted((*versions, *missing), key=lambda version: (version.name, version.version)))


def _idle(entry: IndexEntry) -> VersionStatus:
    version = int(entry.version) if entry.version.isascii() and entry.version.isdigit() else 0
    return VersionStatus(
        name=entry.name,
        version=version,
        state=entry.state,
        reason=entry.reason,
        outlook=entry.outlook,
        waiting=entry.waiting,
        queued=0,
        running=0,
        workers=(),
        statistics=VersionMeter(entry.name, version).frozen(),
        residency=Residency.COLD.value,
        device=entry.device,
        homeless=not entry.device.is_cpu,
    )


def said_of(served: Served, registry: Registry) -> Said:
    """Why what its name and number mean is not READY, or what keeps it from serving the files that were asked for last.
    The form that a version is to run from is no file that was asked for, nor is its copy for another device."""
    version = served.version
    if served.barred:
        return Said(served.reason, waiting=DEVICE)
    if version.phase not in SERVING:
        why = version.setback if version.setback is not None else version.waiting
        return Said(remark_text(why) if why is not None else "", waiting=waiting_word(version.waiting))
    name, slot = version.model.name, version.slot
    new = registry.incoming.get(slot)
    if new is not None and not new.is_copy:
        return _said_beside(new)
    if (setback := registry.setbacks.get(slot)) is not None:
        return Said(f"{STILL_PREVIOUS} {setback_text(setback)}", Outlook.SUCCESSOR_FAILED)
    if version.retiring and name in registry.troubled:
        reason = f"serving what was loaded before; the files now have problems: {registry.troubled[name]}"
        return Said(reason, Outlook.FILES_BROKEN)
    return Said(given_by_hand(name), Outlook.BY_HAND) if slot in registry.by_hand else Said()


def _said_beside(new: Version) -> Said:
    """What a version serves meanwhile for which ``new`` is on its way."""
    if new.waiting is not None:
        does, outlook = remark_text(new.waiting), Outlook.SUCCESSOR_WAITS
    elif new.phase in UNLOADED:
        does, outlook = "is loading", Outlook.SUCCESSOR_LOADS
    else:
        does, outlook = "is on trial", Outlook.SUCCESSOR_ON_TRIAL
    return Said(f"{STILL_PREVIOUS} {does}", outlook, waiting_word(new.waiting))
