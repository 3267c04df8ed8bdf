"""Which installed versions may be evicted, and what each would cost: from the catalog to candidates. Pure.

Never one that is wanted, pinned, on trial or running. How likely a version is to be used again is taken as one over the
time since it was last wanted (or came), which falls as that time grows; a version that nobody ever wanted counts like
one that was wanted when it came.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from appliance.store.catalog import Catalog, InstalledVersion
from appliance.store.eviction import Candidate
from appliance.store.settings import StoreConfig

SHORTEST_AGE_S = 60.0
"""Ages below are taken as this: clocks are stepped, and installs come in bursts."""


def candidates(
    catalog: Catalog, running: Collection[str], config: StoreConfig, now_ms: int
) -> tuple[Candidate, ...]:
    """What may go; ``running`` are manifest digests of what a daemon runs, or what may not go for another reason."""
    return tuple(
        _candidate(model.name, version, config, now_ms)
        for model, version in catalog.installed()
        if version.version not in (model.wanted, *model.pins, model.trial.version if model.trial else 0)
        and version.digest not in running
    )


def kept_blobs(catalog: Catalog, offered: Sequence[Candidate]) -> frozenset[str]:
    """Digests that versions which are no candidates have."""
    may_go = {(each.name, each.version) for each in offered}
    return frozenset(
        file.digest
        for model, version in catalog.installed()
        if (model.name, version.version) not in may_go
        for file in version.files
    )


def _candidate(name: str, version: InstalledVersion, config: StoreConfig, now_ms: int) -> Candidate:
    age_s = (now_ms - max(version.installed_at_ms, version.last_wanted_ms)) / 1000
    return Candidate(
        name=name,
        version=version.version,
        blobs={file.digest: file.size for file in version.files},
        rate_per_s=1 / max(age_s, SHORTEST_AGE_S),
        fetch_s=version.fetch_ms / 1000 if version.fetch_ms else version.bytes / config.refetch_bytes_per_s,
    )
