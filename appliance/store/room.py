"""What leaves the disk where room is lacking: packed forms first, then versions, those that cost the least. Pure.

A form can be built again on this box, so it goes before any version; the forms of what a daemon runs go last, and only
for the sake of the quota: a worker may have them mapped, and gives their room on the disk back when it ends. No version
goes that is wanted, pinned, on trial or running. How likely a version is to be used again is taken as one over the time
since it was last wanted (or came), which falls as that time grows; a version that was never wanted counts like one
that was wanted when it came.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from appliance.config.store import StoreConfig
from appliance.store.catalog import Catalog, InstalledVersion
from appliance.store.eviction import Candidate, choose
from appliance.store.forms import StoredForm

REFETCH_BYTES_PER_S = 1_000_000
"""How fast an evicted version comes again, where that was not measured: a slow line, so that what is far is kept."""
SHORTEST_AGE_S = 60.0
"""Ages below are taken as this: clocks are stepped, and installs come in bursts."""


class Lacking(NamedTuple):
    """Bytes that are missing: within the quota, and on the disk above its floor; 0 or less: none."""

    quota: int
    disk: int

    def less(self, quota: int, disk: int) -> Lacking:
        """What is missing still when so much is freed."""
        return Lacking(self.quota - quota, self.disk - disk)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenancy:
    """What is on the disk: ``running`` are manifest digests of what a daemon runs, ``staying`` of versions that may not
    go for another reason; ``kept`` are blobs that stay whatever goes."""

    catalog: Catalog
    forms: Sequence[StoredForm]
    running: Collection[str]
    staying: Collection[str]
    kept: Collection[str]


class Leaving(NamedTuple):
    """What is to go."""

    forms: tuple[StoredForm, ...]
    versions: tuple[Candidate, ...]


def plan_room(tenancy: Tenancy, lacking: Lacking, config: StoreConfig, now_ms: int) -> Leaving | None:
    """What has to leave so that nothing is lacking; None where all that may leave is not enough."""
    forms = [each for each in tenancy.forms if each.bytes and not each.refused]
    rates = {version.digest: _rate_per_s(version, now_ms) for _, version in tenancy.catalog.installed()}
    idle = _cheapest([each for each in forms if each.digest not in tenancy.running], rates, max(lacking))
    left = lacking.less(_bytes(idle), _bytes(idle))
    busy = _cheapest([each for each in forms if each.digest in tenancy.running], rates, left.quota)
    left = left.less(_bytes(busy), 0)
    offered = candidates(tenancy.catalog, {*tenancy.running, *tenancy.staying}, now_ms)
    kept = {*tenancy.kept, *kept_blobs(tenancy.catalog, offered)}
    versions = choose(offered, kept, max(left))
    return None if versions is None else Leaving((*idle, *busy), versions)


def _bytes(forms: Iterable[StoredForm]) -> int:
    return sum(each.bytes for each in forms)


def _cheapest(forms: Sequence[StoredForm], rates: dict[str, float], needed: int) -> list[StoredForm]:
    """Those that free ``needed`` bytes at the least cost, or all. Building takes as long as a form has bytes; what is
    not installed is not used again."""
    offered = {
        each.name: Candidate(
            name=each.name,
            version=0,
            blobs={each.name: each.bytes},
            rate_per_s=rates.get(each.digest, 0.0),
            fetch_s=float(each.bytes),
        )
        for each in forms
    }
    chosen = choose(tuple(offered.values()), (), needed)
    names = offered.keys() if chosen is None else {each.name for each in chosen}
    return [each for each in forms if each.name in names]


def candidates(catalog: Catalog, running: Collection[str], now_ms: int) -> tuple[Candidate, ...]:
    """What may go; ``running`` are manifest digests of what a daemon runs, or what may not go for another reason."""
    return tuple(
        _candidate(model.name, version, now_ms)
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


def _candidate(name: str, version: InstalledVersion, now_ms: int) -> Candidate:
    return Candidate(
        name=name,
        version=version.version,
        blobs={file.digest: file.size for file in version.files},
        rate_per_s=_rate_per_s(version, now_ms),
        fetch_s=version.fetch_ms / 1000 if version.fetch_ms else version.bytes / REFETCH_BYTES_PER_S,
    )


def _rate_per_s(version: InstalledVersion, now_ms: int) -> float:
    age_s = (now_ms - max(version.installed_at_ms, version.last_wanted_ms)) / 1000
    return 1 / max(age_s, SHORTEST_AGE_S)
