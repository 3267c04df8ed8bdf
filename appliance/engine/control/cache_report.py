"""What there is to tell of the model cache: what came into memory and left it, what was verified of weights by what
workers say of it, and what cannot be in memory as it is configured.

Weights lie in a file of their own and come with the digests of their pieces where their package was installed; nothing
else can be verified. Loads and page-ins verify always. Owner: the model cache.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from appliance.core.memory.accountant import Accountant
from appliance.core.memory.budget import Limit, NeverFits, ResidencyPolicy
from appliance.core.memory.footprint import Residency
from appliance.domain.device import CPU, DeviceName
from appliance.domain.model import ModelVersion
from appliance.engine.control.sizes import Sizes
from appliance.engine.environment import RequestLog
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.served import Served
from appliance.engine.versions.wording import limit_text, megabytes, wait_text
from appliance.telemetry.snapshot import ResidencyFigures
from appliance.workers.port import ModelLoaded, ModelRefused, WeightsPagedIn


class CacheTally:
    """Owned by the model cache. ``figures`` are the sums so far."""

    def __init__(self) -> None:
        self.figures = ResidencyFigures()

    def count(self, **more: int) -> None:
        """Add to the figures of these names."""
        figures = self.figures
        self.figures = figures._replace(**{key: getattr(figures, key) + more[key] for key in more})

    def loaded(self, version: ModelVersion, event: ModelLoaded) -> None:
        """Count a load that read its weights to the end: all of the file, or what a session of a packed form has of its
        own."""
        if version.weights is not None and _verifiable(version):
            size = event.evictable_bytes if event.packed else version.weights.size
            self.count(verified=1, verified_bytes=size)

    def paged_in(self, version: ModelVersion, event: WeightsPagedIn) -> None:
        """Count weights that were read and verified for a session that is there."""
        if not _verifiable(version):
            return
        if event.failure is not None:
            self.count(not_as_stored=1)
        else:
            self.count(verified=1, verified_bytes=event.nbytes)

    def refused(self, event: ModelRefused) -> None:
        """Count a load that was refused."""
        self.count(not_as_stored=event.not_as_stored)


def _verifiable(version: ModelVersion) -> bool:
    return version.on_cpu and version.weights is not None and bool(version.weights.pieces)


class CacheReport:
    """Asks the others; keeps only what it found of problems last, as it logs each once."""

    def __init__(
        self,
        *,
        config: ResidencyPolicy,
        memory: Accountant,
        sizes: Sizes,
        routes: Routes,
        tally: CacheTally,
        log: RequestLog,
    ) -> None:
        self._config = config
        self._memory = memory
        self._sizes = sizes
        self._routes = routes
        self._tally = tally
        self._log = log
        self._problems: tuple[str, ...] = ()

    def look(self, versions: Collection[Served], serving: Collection[Served]) -> None:
        """Find what cannot be, of all ``versions`` there are and those ``serving`` that are looked after, and log what
        is new of it."""
        now = Situation(
            versions=versions,
            serving=serving,
            unfit=self._memory.unfit(),
            limits={device: self._memory.limit(device) for device in self._memory.devices},
        )
        found = tuple(problems(self._config, self._sizes, self._routes, now))
        for problem in found:
            if problem not in self._problems:
                self._log.event("models do not fit as configured", reason=problem)
        self._problems = found

    def figures(self, serving: Iterable[Served]) -> ResidencyFigures:
        """For people, as of now."""
        stood = {device: self._memory.statistics(device) for device in self._memory.devices}
        host, sums = stood.get(CPU), stood.values()
        evicted = [each for each in serving if each.memory.residency is Residency.WEIGHTS_EVICTED]
        return self._tally.figures._replace(
            budget_bytes=host.budget_bytes if host is not None else 0,
            used_bytes=host.used_bytes + host.other_bytes if host is not None else 0,
            problems=self._problems,
            waiting=sum(each.waiting_requests for each in sums),
            waiting_bytes=sum(each.waiting_bytes for each in sums),
            weights_evicted_bytes=sum(self._sizes.footprint(each).evictable_bytes for each in evicted),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Situation:
    """``versions`` are all there are, ``serving`` those of them that are looked after; ``unfit`` says of those on their
    way which can never fit; ``limits`` is what there is of each device."""

    versions: Iterable[Served]
    serving: Iterable[Served]
    unfit: Mapping[int, NeverFits]
    limits: Mapping[DeviceName, Limit]


def problems(config: ResidencyPolicy, sizes: Sizes, routes: Routes, now: Situation) -> Iterator[str]:
    """Everything that does not fit, and names that no model has."""
    largest: dict[str, Served] = {}
    for served in now.versions:
        known = largest.setdefault(served.model.name, served)
        if sizes.expected(served).bytes > sizes.expected(known).bytes:
            largest[served.model.name] = served
    for key, wanted in (("pins", config.pins), ("keep_warm_s", config.keep_warm_s)):
        for name in wanted:
            if name not in largest and not routes.is_aside(name):
                yield f"residency.{key} names '{name}', and there is no such model"
    for device, limit in now.limits.items():
        pinned = [largest[name] for name in config.pins if name in largest]
        needed = sum(sizes.expected(served).bytes for served in pinned if served.memory.device == device)
        if needed > limit.bytes:
            yield f"residency.pins need about {megabytes(needed)}, and {limit_text(limit)}"
    for served in now.versions:
        if served.id in now.unfit:
            yield f"{served.key} {wait_text(now.unfit[served.id])}"
    yield from _too_large(config, sizes, now)


def _too_large(config: ResidencyPolicy, sizes: Sizes, now: Situation) -> Iterator[str]:
    for device, limit in now.limits.items():
        here = {each: sizes.footprint(each).bytes for each in now.serving if each.memory.device == device}
        stays = {each: size for each, size in here.items() if each.model.name in config.pins}
        for served, size_bytes in here.items():
            others = sum(stays.values()) - stays.get(served, 0)
            if size_bytes + others > limit.bytes:
                beside = Limit(bytes=limit.bytes, configured=limit.configured, kept_bytes=others)
                yield f"{served.key} takes {megabytes(size_bytes)} and does not fit: {limit_text(beside)}"
