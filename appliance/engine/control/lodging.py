"""What versions take in memory, as far as is known, and the memory that is kept for those on their way to serving.

A swap needs the old and the new version in memory at the same time, so others are put out for a version on its way -
but only where that makes enough room. What never fits beside pins and the version that it replaces takes nobody's
place: one at a time is tried above the budget, if the machine has the memory; else it waits, and says why. Pure, but
for what it remembers. Owner: the residence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple

from appliance.config.residency import ResidencyConfig
from appliance.core.memory.residency_port import Footprint, Form, Kept
from appliance.core.memory.waits import (
    Budget,
    NeverFits,
    WaitsBesidePins,
    WaitsForIdle,
    WaitsForMachine,
    WaitsForMemory,
    WaitsForOvercommit,
)
from appliance.domain.model import VersionState
from appliance.engine.requests.costs import Costs
from appliance.engine.versions.routes import Served
from appliance.engine.versions.wording import budget_text, megabytes, wait_text
from appliance.workers.port import ModelLoaded

PROCESS_BYTES = 11 << 19
"""Of a worker process, beside what its models take: the private pages of one with a model of 10 MB, of 100 and of 500,
less the model, were 5.5 MiB each."""
VISITORS_MAX = 2
"""Versions for which others are put out so that they can prove themselves, at a time."""
EVICTABLE_PARTS = 3
"""Weights that are a smaller part of what a model takes than one in so many do not pay being let go alone: an unpacked
model that its runtime packed for itself."""
SPARE_BYTES = 128 << 20
"""What the machine must have left when a version is tried above the budget."""
PATIENCE_NS: Final = 3_000_000_000
"""So long memory is kept for a version while nobody can be put out for it, because all are in use."""
PAUSE_NS: Final = 10_000_000_000
"""Before it is tried again for such a version."""
LOOK_NS: Final = 1_000_000_000
"""How often it is looked whether what does not fit would."""


class Measured(NamedTuple):
    """Of one version, as its workers said: private memory and mapped weights of one process. ``packed``: it ran from a
    form, which takes otherwise than the version does without."""

    memory_bytes: int
    weights_bytes: int
    load_ns: int
    packed: bool = False


class Stay(NamedTuple):
    """What versions that serve take: all of them now, and those that stay whatever comes."""

    used_bytes: int
    pinned_bytes: int


class Room(NamedTuple):
    """Whether there is memory to load a version. ``reason`` says of one that waits for what may never come for what;
    ``again_ns`` is when to ask again (0: at the next turn). ``kept``: it is kept for it until it is there, from others,
    too, so that it has to be asked for whoever else waits."""

    there: bool
    reason: WaitsForMemory | None = None
    again_ns: int = 0
    kept: bool = False


THERE: Final = Room(True)
LATER: Final = Room(False)
KEPT: Final = Room(False, kept=True)


class Lodging:
    """``budget_bytes`` is what all versions together may take; ``spare_bytes`` tells what the machine has left,
    ``costs`` what was measured before."""

    def __init__(
        self,
        config: ResidencyConfig,
        budget_bytes: int,
        spare_bytes: Callable[[], int] = lambda: 1 << 62,
        costs: Costs | None = None,
    ) -> None:
        self._costs = costs
        self._config = config
        self._budget_bytes = budget_bytes
        self._spare_bytes = spare_bytes
        self._measured: dict[int, Measured] = {}
        self._reserved: dict[int, int] = {}
        self._since_ns: dict[int, int] = {}
        self._visitors: set[int] = set()
        self._guests: dict[int, int] = {}
        """What is tried above the budget, and what it will take."""
        self._beside: dict[int, Served] = {}
        """What those on their way replace, which stays meanwhile."""
        self._kept: dict[int, int] = {}
        """What serves no more and is still there: to go back to, or with its last requests."""
        self._kept_above: dict[int, int] = {}
        """The same of a guest and what it has replaced, of which the one that serves takes all there is."""

    # --- versions that serve

    def measured(self, served: Served, event: ModelLoaded) -> None:
        """A worker has loaded it; the largest of them counts."""
        known = self._measured.get(served.id)
        memory_bytes, load_ns = event.memory_bytes, event.load_ns
        if known is not None and known.packed == event.packed:
            memory_bytes, load_ns = max(known.memory_bytes, memory_bytes), max(known.load_ns, load_ns)
        self._measured[served.id] = Measured(memory_bytes, event.evictable_bytes, load_ns, event.packed)
        if self._costs is not None:
            self._costs.loaded(served, event)

    def came_back(self, served: Served, ns: int) -> None:
        """It is about to be RESIDENT again, which took ``ns``."""
        if self._costs is not None:
            self._costs.took(served, ns, page_in=served.form is Form.WEIGHTS_EVICTED)

    def settles(self, served: Served) -> bool:
        """Whether a version is to be looked after from now on."""
        ready = served.state is VersionState.READY and served.model.on_cpu
        return ready and served.id in self._measured and (served.opened or served.form is not Form.RESIDENT)

    def footprint(self, served: Served) -> Footprint:
        """Its memory: that of all its processes, whose weights are the same pages, kept or not."""
        return self._footprint(served, self._measured[served.id])

    def _footprint(self, served: Served, measured: Measured) -> Footprint:
        memory_bytes, weights_bytes, *_ = measured
        processes = max(served.model.instance_count, 1)
        pays = self._config.evict_weights and weights_bytes * EVICTABLE_PARTS >= memory_bytes
        total = (memory_bytes + PROCESS_BYTES) * processes + weights_bytes
        return Footprint(total, weights_bytes if pays else 0)

    def _guess(self, served: Served) -> Measured:
        """What it will take: what it took before, unless that could never fit, or else what its files tell."""
        known = self._costs.of(served) if self._costs is not None else None
        if known is not None:
            before = Measured(known.memory_bytes, known.weights_bytes, known.load_ns, known.packed)
            if self._footprint(served, before).bytes <= self._budget_bytes:
                return before
        weights = served.model.weights
        mapped = weights.size if weights is not None else 0
        return Measured(max(served.model.file_bytes - mapped, 0), mapped, 0)

    def _expected_bytes(self, served: Served) -> int:
        return self._footprint(served, self._guess(served)).bytes

    def kept(self, served: Served) -> Kept:
        """What is wished of it: by the operator, and for as long as a version is tried beside it."""
        name = served.model.name
        keep_warm_ns = int(self._config.keep_warm_s.get(name, 0) * 1e9)
        return Kept(served.id, name in self._config.pins, keep_warm_ns, served.diversion is not None)

    def load_ns(self, served: Served) -> int:
        """How long loading it took, without its process."""
        return self._measured[served.id].load_ns

    def costs_ns(self, served: Served) -> tuple[int, int]:
        """How long loading it and paging its weights in take, as far as is known (0: it is not)."""
        measured = self._measured[served.id]
        known = self._costs.of(served) if self._costs is not None else None
        if known is None or known.packed != measured.packed:
            return measured.load_ns, 0
        return known.load_ns or measured.load_ns, known.page_in_ns

    def rest(self, served: Served, used_bytes: int) -> bool:
        """Whether there is no room now for a version that is known to serve, not even without its weights: then it is
        looked after out of memory, with the size that it had before or that is guessed, until it has been loaded."""
        if served.id in self._reserved:  # room is being made for it
            return False
        guess = self._guess(served)
        need, evictable_bytes = self._footprint(served, guess)
        least = need - evictable_bytes
        if used_bytes + least <= self.left_bytes or need > self._budget_bytes:
            return False
        self._measured[served.id] = guess
        return True

    # --- versions on their way

    @property
    def left_bytes(self) -> int:
        """What there is for versions that serve."""
        return max(self._budget_bytes - sum(self._reserved.values()) - sum(self._kept.values()), 0)

    @property
    def others_bytes(self) -> int:
        """What is taken, or will be, by versions that do not serve: on their way, or kept to go back to."""
        above = sum(self._guests.values()) + sum(self._kept_above.values())
        return sum(self._reserved.values()) + sum(self._kept.values()) + above

    @property
    def keeps(self) -> bool:
        """Whether there are versions to go back to, or that leave; ``forget_gone`` finds out when there are none."""
        return bool(self._kept or self._kept_above)

    @property
    def whole_bytes(self) -> int:
        """What there is when nothing is on its way."""
        return self._budget_bytes

    def budget(self, kept_bytes: int) -> Budget:
        """What there is, of which so much cannot be had."""
        return Budget(
            bytes=self._budget_bytes, configured=bool(self._config.budget_bytes), kept_bytes=kept_bytes
        )

    def budget_in_words(self, pinned_bytes: int) -> str:
        """The budget, and what cannot be had of it."""
        return budget_text(self.budget(pinned_bytes))

    def problems(
        self, versions: Iterable[Served], kept: Mapping[Served, Kept], is_aside: Callable[[str], bool]
    ) -> Iterator[str]:
        """What cannot be as it is configured; ``kept`` says what is wished of those that serve, ``is_aside`` which
        models are there and not wanted at present."""
        pinned = {served for served, wish in kept.items() if wish.pinned}
        names: dict[str, int] = {}
        serving: list[tuple[Served, int]] = []
        hopeless: list[str] = []
        for served in versions:
            if served.state is VersionState.LOADING and isinstance(served.waiting, NeverFits):
                hopeless.append(f"{served.key} {wait_text(served.waiting)}")
            measured = served.id in self._measured
            size_bytes = self.footprint(served).bytes if measured else self._expected_bytes(served)
            if served.state is VersionState.READY and measured:
                serving.append((served, size_bytes))
            names[served.model.name] = max(names.get(served.model.name, 0), size_bytes)
        for key, wanted in (("pins", self._config.pins), ("keep_warm_s", self._config.keep_warm_s)):
            for name in wanted:
                if name not in names and not is_aside(name):
                    yield f"residency.{key} names '{name}', and there is no such model"
        pinned_bytes = sum(names.get(name, 0) for name in self._config.pins)
        if pinned_bytes > self._budget_bytes:
            yield f"residency.pins need about {megabytes(pinned_bytes)}, and {self.budget_in_words(0)}"
        yield from hopeless
        stays = sum(size_bytes for served, size_bytes in serving if served in pinned)
        for served, size_bytes in serving:
            others = stays - (size_bytes if served in pinned else 0)
            if size_bytes + others > self._budget_bytes:
                yield f"{served.key} takes {megabytes(size_bytes)} and does not fit: {self.budget_in_words(others)}"

    def ask(self, served: Served, before: Served | None, stay: Stay, now_ns: int) -> Room:
        """Keep memory for ``served``, which replaces ``before``, if that can be had. Where memory is kept, it is
        there when what is used is within ``left_bytes``."""
        if served.id in self._guests:
            return THERE
        if served.id in self._reserved:
            return self._wait(served, stay, now_ns)
        need = self._expected_bytes(served)
        beside = self.footprint(before).bytes if before is not None and before.id in self._measured else 0
        if need + beside + stay.pinned_bytes > self._budget_bytes:
            return self._above(served, before, need, beside, stay, now_ns)
        fits = stay.used_bytes + need <= self.left_bytes
        crowded = len(self._visitors) >= VISITORS_MAX or need + beside + stay.pinned_bytes > self.left_bytes
        if not fits and crowded:
            served.deferred = True
            return LATER
        if not fits:
            self._visitors.add(served.id)
            served.deferred = True
        self._reserved[served.id] = need
        self._since_ns[served.id] = now_ns
        if before is not None:
            self._beside[served.id] = before
        return THERE if fits else KEPT

    def _wait(self, served: Served, stay: Stay, now_ns: int) -> Room:
        if stay.used_bytes <= self.left_bytes:
            return THERE
        if now_ns - self._since_ns[served.id] < PATIENCE_NS:
            return KEPT
        need = self._reserved[served.id]
        self._give_up(served.id)
        return Room(False, WaitsForIdle(need_bytes=need), now_ns + PAUSE_NS)

    def _above(
        self, served: Served, before: Served | None, need: int, beside: int, stay: Stay, now_ns: int
    ) -> Room:
        """It does not fit, whoever leaves."""
        if before is None:
            never = need > self._budget_bytes
            wait = NeverFits if never else WaitsBesidePins
            budget = self.budget(0 if never else stay.pinned_bytes)
            return Room(False, wait(need_bytes=need, budget=budget), now_ns + LOOK_NS)
        if self._guests or self._kept_above:
            return Room(False, WaitsForOvercommit(), now_ns + LOOK_NS)
        spare = self._spare_bytes()
        if spare < need + SPARE_BYTES:
            budget = self.budget(stay.pinned_bytes)
            reason = WaitsForMachine(need_bytes=need, beside_bytes=beside, left_bytes=spare, budget=budget)
            return Room(False, reason, now_ns + LOOK_NS)
        self._guests[served.id] = need
        self._beside[served.id] = before
        return THERE

    def protects(self, model: int) -> bool:
        """Whether it stays in memory because a version that is to replace it is on its way."""
        return any(before.id == model for before in self._beside.values())

    def release(
        self, served: Callable[[int], Served | None], current: Callable[[str], Served | None]
    ) -> bool:
        """Forget those that serve, or never will, but for what they take until they have left; True when there is more
        memory than before, or less. ``current`` is what serves under a name."""
        left_bytes = self.left_bytes
        for model, need in (*self._reserved.items(), *self._guests.items()):
            known = served(model)
            if known is not None and known.state is VersionState.LOADING:
                continue
            kept = self._kept if model in self._reserved else self._kept_above
            before = self._beside.get(model)
            if before is not None and before.state is VersionState.UNLOADING:
                self._keep(before, known, kept)
            if known is not None and known.state is VersionState.UNLOADING:
                kept[model] = min(self._bytes_now(known), need)
            self._give_up(model)
        for model in list(self._measured):
            known = served(model)
            if known is None:
                del self._measured[model]
            elif known.state is VersionState.UNLOADING and known.model.on_cpu:
                heir = current(known.model.name)
                above = heir is not None and heir.id in self._kept_above
                self._keep(known, heir, self._kept_above if above else self._kept)
        for kept in (self._kept, self._kept_above):
            for model in list(kept):
                known = served(model)
                if known is None or known.state is not VersionState.UNLOADING:
                    del kept[model]
        return self.left_bytes != left_bytes

    def _keep(self, leaving: Served, heir: Served | None, kept: dict[int, int]) -> None:
        """``leaving`` takes memory until it has left, where it does not count already; ``heir`` serves in its place."""
        if leaving.id in self._kept or leaving.id in self._kept_above:
            return
        size_bytes = self._bytes_now(leaving)
        kept[leaving.id] = min(size_bytes, self._left_by(heir)) if kept is self._kept else size_bytes

    def forget_gone(self, served: Callable[[int], Served | None]) -> bool:
        """What was kept and has left takes no memory any more, which what serves again does, as ``release`` finds out;
        True when there is more than before."""
        left_bytes = self.left_bytes
        for kept in (self._kept, self._kept_above):
            for model in list(kept):
                known = served(model)
                if known is None or known.state not in (VersionState.UNLOADING, VersionState.READY):
                    del kept[model]
        return self.left_bytes != left_bytes

    def _left_by(self, served: Served | None) -> int:
        """What is left beside a version that serves now and may have turned out larger than was guessed: no more than
        this may be kept for what it replaced, or it would be put out itself, for a version that gets no requests."""
        taken = self.footprint(served).bytes if served is not None and served.id in self._measured else 0
        return max(self._budget_bytes - taken, 0)

    def _give_up(self, model: int) -> None:
        self._visitors.discard(model)
        for known in (self._reserved, self._guests, self._since_ns, self._beside):
            known.pop(model, None)

    def _bytes_now(self, served: Served) -> int:
        if served.id not in self._measured or served.form is Form.COLD:
            return 0
        footprint = self.footprint(served)
        return footprint.bytes - (footprint.evictable_bytes if served.form is Form.WEIGHTS_EVICTED else 0)
