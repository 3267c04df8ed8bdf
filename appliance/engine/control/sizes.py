"""What versions take in memory and what bringing them there costs: as measured, here or before a restart, or guessed.

Costs are kept across restarts with what they proved: without that the first decisions after a start rest on guesses
from files. A measurement counts for a quarter, and only what changes by an eighth is written: these are estimates, and
disks of boxes wear. Owner: the model cache.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Final

from appliance.core.memory.footprint import Footprint, Residency, Size
from appliance.core.memory.homes import CONTEXT_BYTES, room_bytes
from appliance.domain.device import CPU, DeviceName
from appliance.domain.model import ModelVersion
from appliance.engine.versions.records import Cost, Records
from appliance.engine.versions.served import Served
from appliance.workers.port import ModelLoaded

SHARE: Final = 4
FREE_PARTS: Final = 2
GROWTH_PARTS: Final = 2
"""Of what versions have taken since they were loaded no more counts than leaves one part in so many to others."""
NEGLIGIBLE: Final = 8


class Costs:
    """``box`` says of a version what its costs hold for, as its proof does."""

    def __init__(self, records: Records, box: Callable[[ModelVersion], str]) -> None:
        self._records = records
        self._box = box

    def of(self, served: Served) -> Cost | None:
        """What it cost when it was measured last, in this process or an earlier one."""
        return self._records.cost(served.identity, self._box(served.model))

    def loaded(self, served: Served, event: ModelLoaded) -> None:
        """A worker has loaded it, and says what it takes."""
        known = self.of(served)
        if known is not None and known.packed != event.packed:
            known = None
        self._keep(
            served,
            Cost(
                memory_bytes=event.memory_bytes,
                weights_bytes=event.evictable_bytes,
                load_ns=known.load_ns if known is not None else event.load_ns,
                page_in_ns=known.page_in_ns if known is not None else 0,
                packed=event.packed,
            ),
        )

    def took(self, served: Served, ns: int, *, page_in: bool) -> None:
        """It came back to memory, all of it or its weights alone, in ``ns``."""
        known = self.of(served)
        if known is None or ns <= 0:
            return
        before_ns = known.page_in_ns if page_in else known.load_ns
        after_ns = before_ns + (ns - before_ns) // SHARE if before_ns else ns
        self._keep(
            served, known._replace(page_in_ns=after_ns) if page_in else known._replace(load_ns=after_ns)
        )

    def _keep(self, served: Served, cost: Cost) -> None:
        known = self.of(served)
        if known is None or known.packed != cost.packed or any(map(_differ, known[:4], cost[:4])):
            self._records.weigh(served.identity, self._box(served.model), cost)


def _differ(known: int, now: int) -> bool:
    return abs(now - known) * NEGLIGIBLE > known


def _context_bytes(model: ModelVersion) -> int:
    """What its process has of a device before it has a model, where that is its own: the context of the one that
    others share is nobody's."""
    return CONTEXT_BYTES if model.own_worker and not model.on_cpu else 0


class Sizes:
    """``evict_weights``: weights may leave memory alone; ``limits`` are what there is of each device; ``costs`` keeps
    what was measured across restarts."""

    def __init__(
        self, evict_weights: bool, limits: Mapping[DeviceName, int], costs: Costs | None = None
    ) -> None:
        self._evict_weights = evict_weights
        self._limits = limits
        self._costs = costs
        self._sizes: dict[int, Size] = {}
        self._grown: dict[int, dict[int, int]] = {}
        """What versions take, by their ids, in each of their workers where that is more than when they were loaded."""
        self._growth_max: dict[int, int] = {}
        """How much of that counts at most."""
        self._bounded_by: object = None
        """The versions by which that is so: those that serve and those that stay; None: sizes have changed since."""

    def measured(self, served: Served, event: ModelLoaded, room_bytes: int = 0) -> None:
        """Take in what a worker said that has loaded it; the largest of them counts. Of a device no more than there was
        for it (``room_bytes``, 0: that is not known): what is above is in what its process has beside, or a word that
        would put others out, and is not remembered for its next load."""
        costs = self._costs
        if not served.model.on_cpu:  # of the device's memory, of which weights cannot leave alone
            known = self._sizes.get(served.id) or self._guess(served)
            limit_bytes = self._limits.get(served.memory.device, 1 << 62) - _context_bytes(served.model)
            said_bytes = min(event.device_bytes, max(limit_bytes, 0), room_bytes or event.device_bytes)
            costs = costs if event.device_bytes <= (room_bytes or event.device_bytes) else None
            device_bytes = said_bytes or known.memory_bytes + known.weights_bytes
            event = event._replace(memory_bytes=device_bytes, evictable_bytes=0)
        self.ended_in(served.id, event.worker)  # of the session that was there before
        size = Size(event.memory_bytes, event.evictable_bytes, event.load_ns, event.packed)
        self._sizes[served.id] = size.widened(self._sizes.get(served.id))
        self._bounded_by = None
        if costs is not None:
            costs.loaded(served, event)

    def assumed(self, served: Served) -> None:
        """Have it count as it is expected to be, until it has been loaded."""
        self._sizes[served.id] = self._guess(served)
        self._bounded_by = None

    def grew(self, served: Served, worker: int, memory_bytes: int) -> None:
        """It takes so much in that worker now: the runtime keeps the memory of the largest batch that ran."""
        self._grown.setdefault(served.id, {})[worker] = memory_bytes
        self._bounded_by = None

    def bound_growth(self, serving: Collection[Served], stays: Collection[int]) -> list[Served]:
        """Have as much of what versions have taken since they were loaded count as leaves room for the largest other
        one beside those that stay in memory: those that have grown may put others out, but keep none away for good.
        What stays leaves half to others, and of one that may leave half of what is beside it counts in any case. Gives
        those that count otherwise than before."""
        here = [each for each in serving if each.model.on_cpu]
        goes_by = frozenset(each.id for each in here), frozenset(stays)
        if goes_by == self._bounded_by or not any(self._growth(each.id) for each in here):
            return []
        self._bounded_by = goes_by
        before = {each.id: self.footprint(each).bytes for each in here}
        loaded = {each.id: self._of(each, self._sizes[each.id]).bytes for each in here}
        left_bytes = self._limits.get(CPU, 1 << 62) - sum(
            loaded[each.id] for each in here if each.id in stays
        )
        going = [each for each in here if each.id not in stays]
        largest = sorted(
            (each for each in going if loaded[each.id] <= left_bytes), key=lambda it: -loaded[it.id]
        )
        kept_bytes = max(loaded[largest[0].id], left_bytes // GROWTH_PARTS) if largest else 0
        # For one other alone, any that is always in use would keep it away.
        room_bytes = left_bytes - kept_bytes
        for each in here:
            if each.id in stays:
                self._growth_max[each.id] = max(room_bytes, 0)
                grown_bytes = min(self._growth(each.id), max(room_bytes, 0))
                room_bytes, left_bytes = room_bytes - grown_bytes, left_bytes - grown_bytes
        for each in going:
            other_bytes = next((loaded[it.id] for it in largest if it is not each), 0)
            room_bytes = max(left_bytes - loaded[each.id], 0)
            self._growth_max[each.id] = max(room_bytes - other_bytes, room_bytes // GROWTH_PARTS)
        return [each for each in here if self.footprint(each).bytes != before[each.id]]

    def _growth(self, model: int) -> int:
        """What it takes more than when it was loaded."""
        if not (grown := self._grown.get(model)):
            return 0
        return sum(max(each - self._sizes[model].memory_bytes, 0) for each in grown.values())

    def left(self, served: Served) -> None:
        """It leaves its workers, and what it has taken since it was loaded goes with it."""
        self._grown.pop(served.id, None)
        self._bounded_by = None

    def ended(self, worker: int) -> list[int]:
        """The worker's memory is free; gives the versions that had taken more there."""
        return [model for model in self._grown if self.ended_in(model, worker)]

    def ended_in(self, model: int, worker: int) -> bool:
        """What it took there is free; gives whether that was more than when it was loaded."""
        ended = self._grown.get(model, {}).pop(worker, None) is not None
        self._bounded_by = None if ended else self._bounded_by
        return ended

    def came_back(self, served: Served, ns: int, *, by_page_in: bool) -> None:
        """Take in how long bringing it back took."""
        if self._costs is not None:
            self._costs.took(served, ns, page_in=by_page_in)

    def forget(self, model: int) -> None:
        """Forget a version."""
        for known in (self._sizes, self._grown, self._growth_max):
            known.pop(model, None)

    # --- what is asked

    def knows(self, model: int) -> bool:
        """Whether it was measured, or is assumed to be as was guessed."""
        return model in self._sizes

    def known(self) -> tuple[int, ...]:
        """All versions of which that is so."""
        return tuple(self._sizes)

    def footprint(self, served: Served) -> Footprint:
        """Its memory: that of all its processes, whose weights are the same pages."""
        footprint = self._of(served, self._sizes[served.id])
        if not (grown_bytes := self._growth(served.id)):
            return footprint
        # At most all there is: what takes more by itself would only be put out and loaded, again and again.
        limit_bytes = max(self._limits.get(served.memory.device, 1 << 62) - footprint.bytes, 0)
        counted_bytes = min(grown_bytes, self._growth_max.get(served.id, limit_bytes))
        return footprint._replace(bytes=footprint.bytes + counted_bytes)

    def expected(self, served: Served) -> Footprint:
        """What it takes, or is expected to."""
        return self._of(served, self._sizes.get(served.id) or self._guess(served))

    def room_bytes(self, served: Served, free_bytes: int) -> int:
        """What its session may take of its device, where others leave so much of the budget."""
        context_bytes = _context_bytes(served.model)
        return room_bytes(free_bytes - context_bytes, self.expected(served).bytes - context_bytes)

    def form_room_bytes(self, served: Served, free_bytes: int) -> int:
        """What a worker that builds its form may take of its device: half of what is left beside its context and the
        version itself, where others leave so much of the budget, as the other half is for what is loaded meanwhile. 0:
        less than the session that it makes of it takes."""
        needed = self.expected(served).bytes
        room_bytes = (free_bytes - needed - CONTEXT_BYTES) // FREE_PARTS
        return room_bytes if room_bytes >= needed else 0

    def guessed(self, served: Served) -> Footprint:
        """What it is expected to take when it is loaded."""
        return self._of(served, self._guess(served))

    def bytes_now(self, served: Served) -> int:
        """What it takes as it is (0: nothing is known of it)."""
        return self.footprint(served).at(served.memory.residency) if served.id in self._sizes else 0

    def session_bytes(self, served: Served) -> int:
        """What one session of it takes (0: nothing is known of it)."""
        size = self._sizes.get(served.id)
        return size.memory_bytes + size.weights_bytes if size is not None else 0

    def weights_now(self, served: Served) -> int:
        """Those of its weights that are in memory."""
        resident = served.memory.residency is Residency.RESIDENT
        return self._sizes[served.id].weights_bytes if resident else 0

    def load_ns(self, served: Served) -> int:
        """How long loading it took, without its process."""
        return self._sizes[served.id].load_ns

    def costs_ns(self, served: Served) -> tuple[int, int]:
        """How long loading it and paging its weights in take, as far as is known (0: it is not)."""
        size = self._sizes[served.id]
        known = self._costs.of(served) if self._costs is not None else None
        if known is None or known.packed != size.packed:
            return size.load_ns, 0
        return known.load_ns or size.load_ns, known.page_in_ns

    def _of(self, served: Served, size: Size) -> Footprint:
        # One session, in the one process that all on the device share, or in its own.
        if not served.model.on_cpu:
            return Footprint(size.memory_bytes + size.weights_bytes + _context_bytes(served.model), 0)
        return size.footprint(served.model.instance_count, evict_weights=self._evict_weights)

    def _guess(self, served: Served) -> Size:
        """What it will take: what it took before, unless that could never fit, or else what its files tell."""
        known = self._costs.of(served) if self._costs is not None else None
        if known is not None:
            before = Size(known.memory_bytes, known.weights_bytes, known.load_ns, known.packed)
            if self._of(served, before).bytes <= self._limits.get(served.memory.device, 1 << 62):
                return before
        if not served.model.on_cpu:
            return Size(served.model.weight_bytes, 0)
        weights = served.model.weights
        mapped = weights.size if weights is not None else 0
        return Size(max(served.model.file_bytes - mapped, 0), mapped)
