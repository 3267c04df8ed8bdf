"""The engine's status completed by what never became a version: models whose files or configuration are broken.

Pure but for asking the engine. They are what a person opens a status page for.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from appliance.engine.port import EnginePort, EngineStatus, IndexEntry, VersionStatus
from appliance.telemetry.meter import VersionMeter


def overview(engine: EnginePort) -> EngineStatus:
    """``engine.status()`` with every entry of the index among its versions, by name and version."""
    return with_index(engine.status(), engine.index(ready_only=False))


def with_index(status: EngineStatus, index: Iterable[IndexEntry]) -> EngineStatus:
    """``status`` with the entries of ``index`` that it lacks; a version that cannot be told is 0."""
    known = {(version.name, str(version.version)) for version in status.versions}
    missing = [_idle(entry) for entry in index if (entry.name, entry.version) not in known]
    if not missing:
        return status
    versions = sorted((*status.versions, *missing), key=lambda version: (version.name, version.version))
    return replace(status, versions=tuple(versions))


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
    )
