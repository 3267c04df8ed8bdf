"""What leaves the disk where room is lacking: packed forms first, then the versions whose loss is expected to cost the
least per byte. Pure.

A form can be built again on this box, so it goes before any version; the forms of what a daemon runs go last, and only
for the sake of the quota: a worker may have them mapped, and gives their room on the disk back when it ends. No version
goes that is wanted, pinned, on trial or running.

The loss of a version is what it costs to fetch it again, times how likely that is: one over the time since it was last
wanted (or came). Bytes count when no other version has them: blobs that a kept version shares are not freed.
(Greedy-dual by cost and size, Cao and Irani 1997, without the ageing: rates come from outside.)
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from appliance.store.catalog import Catalog, InstalledVersion
from appliance.store.views import StoredForm

REFETCH_BYTES_PER_S: Final = 1_000_000
"""How fast an evicted version comes again, where that was not measured: a slow line, so that what is far is kept."""
SHORTEST_AGE_S: Final = 60.0
"""Ages below are taken as this: clocks are stepped, and installs come in bursts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A version that may go. ``blobs`` are its sizes by digest, ``rate_per_s`` how often it is expected to be used,
    ``fetch_s`` how long it takes to come again."""

    name: str
    version: int
    blobs: Mapping[str, int]
    rate_per_s: float
    fetch_s: float

    @property
    def loss(self) -> float:
        """Seconds of fetching per second that its absence is expected to cost."""
        return self.rate_per_s * self.fetch_s


def choose(
    candidates: Sequence[Candidate], kept: Collection[str], needed: int
) -> tuple[Candidate, ...] | None:
    """Versions that together free at least ``needed`` bytes; None when all of them do not. ``kept`` are digests of
    blobs that stay whatever is chosen."""
    rest = {(each.name, each.version): each for each in candidates}
    holders = Counter(digest for each in candidates for digest in each.blobs)
    holders.update(kept)
    chosen: list[Candidate] = []
    free = 0
    while free < needed:
        if not rest:
            return None
        best = min(rest.values(), key=lambda each: _price(each, holders, needed - free))
        del rest[best.name, best.version]
        free += _gain(best, holders)
        holders.subtract(best.blobs.keys())
        chosen.append(best)
    return tuple(_needed(chosen, holders, free - needed))


def _needed(chosen: Sequence[Candidate], holders: Counter[str], spare: int) -> Sequence[Candidate]:
    """The chosen, without those whose bytes are not needed after all; the dearest loss is spared first. One that is
    spared keeps blobs for others, which may be spared then."""
    left = sorted(chosen, key=lambda one: (-one.loss, one.name, one.version))
    while True:
        for each in left:
            bytes_back = sum(size for digest, size in each.blobs.items() if not holders[digest])
            if bytes_back <= spare:
                spare -= bytes_back
                holders.update(each.blobs.keys())
                left.remove(each)
                break
        else:
            return left


def _gain(candidate: Candidate, holders: Counter[str]) -> int:
    """Bytes that only it still has."""
    return sum(size for digest, size in candidate.blobs.items() if holders[digest] == 1)


def _price(candidate: Candidate, holders: Counter[str], lacking: int) -> tuple[bool, float, str, int]:
    """Loss per byte that its going would free now, of those that are lacking; what frees nothing comes last."""
    gain = min(_gain(candidate, holders), lacking)
    loss = candidate.loss / gain if gain else candidate.loss
    return (not gain, loss, candidate.name, candidate.version)


class Lacking(NamedTuple):
    """Bytes that are missing: within the quota, and on the disk above its floor; 0 or less: none."""

    quota: int
    disk: int


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

    forms: tuple[StoredForm, ...] = ()
    versions: tuple[Candidate, ...] = ()


def plan_room(tenancy: Tenancy, lacking: Lacking, now_ms: int) -> Leaving | None:
    """What has to leave so that nothing is lacking; None where all that may leave is not enough."""
    catalog, running = tenancy.catalog, tenancy.running
    rates = {version.digest: _rate_per_s(version, now_ms) for _, version in catalog.installed()}
    forms = [each for each in tenancy.forms if each.bytes and not each.refused]
    idle = _cheapest((each for each in forms if each.digest not in running), rates, max(lacking))
    quota, disk = (each - _bytes(idle) for each in lacking)
    busy = _cheapest((each for each in forms if each.digest in running), rates, quota)
    offered = candidates(catalog, {*running, *tenancy.staying}, now_ms)
    may_go = {(each.name, each.version) for each in offered}
    staying = (
        version for model, version in catalog.installed() if (model.name, version.version) not in may_go
    )
    kept = {*tenancy.kept, *(file.digest for version in staying for file in version.files)}
    versions = choose(offered, kept, max(quota - _bytes(busy), disk))
    return None if versions is None else Leaving((*idle, *busy), versions)


def _bytes(forms: Iterable[StoredForm]) -> int:
    return sum(each.bytes for each in forms)


def _cheapest(forms: Iterable[StoredForm], rates: Mapping[str, float], needed: int) -> list[StoredForm]:
    """Those that free ``needed`` bytes at the least cost, or all. Building takes as long as a form has bytes, so what a
    byte costs is how likely the form is to be used; what is not installed is not used again."""
    chosen: list[StoredForm] = []
    for form in sorted(forms, key=lambda each: (rates.get(each.digest, 0.0), each.bytes, each.name)):
        if _bytes(chosen) < needed:
            chosen.append(form)
    return chosen


def candidates(catalog: Catalog, running: Collection[str], now_ms: int) -> tuple[Candidate, ...]:
    """What may go; ``running`` are manifest digests of what a daemon runs, or what may not go for another reason."""
    return tuple(
        _candidate(model.name, version, now_ms)
        for model, version in catalog.installed()
        if version.version not in (model.wanted, *model.pins, model.trial.version if model.trial else 0)
        and version.digest not in running
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
