"""The models of one device: what each takes, what is being done to it and what waits for it, and the sums over them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum

from appliance.core.memory.footprint import Footprint, LoadCost, Residency


class Move(Enum):
    """What is being done to a model."""

    NONE = "none"
    LOADING = "loading"
    PAGING_IN = "paging in"
    EVICTING = "evicting"
    UNLOADING = "unloading"


ARRIVING = frozenset({Move.LOADING, Move.PAGING_IN})
LEAVING = frozenset({Move.EVICTING, Move.UNLOADING})


@dataclass(slots=True, eq=False)
class Retention:
    """What keeps a model in memory: it is ``pinned`` always, ``held`` for the time being; else it stays for
    ``keep_warm_ns`` after its last request, and until ``until_ns`` in any case."""

    pinned: bool = False
    held: bool = False
    keep_warm_ns: int = 0
    until_ns: int = 0


@dataclass(slots=True, eq=False)
class Model:
    """A model that serves. ``residency``, ``move``, ``footprint`` and what retains it are changed by its table alone.

    ``arrival`` orders models by when they came. ``waiting`` are the bytes of each request that waits. Until
    ``wished_until_ns`` it is worth loading for requests that were refused and may come back; ``not_before_ns`` ends the
    pause after ``failures`` loads that failed in a row.
    """

    model: int
    footprint: Footprint
    load: LoadCost
    page_in: LoadCost
    residency: Residency = Residency.COLD
    move: Move = Move.NONE
    moving_since_ns: int = 0
    arrival: int = 0
    used_ns: int = 0
    retention: Retention = field(default_factory=Retention)
    waiting: dict[int, int] = field(default_factory=dict)
    wished_until_ns: int = 0
    failures: int = 0
    not_before_ns: int = 0

    @property
    def bytes_now(self) -> int:
        """Memory it takes, or will when it has arrived."""
        if self.residency is Residency.RESIDENT or self.move in ARRIVING:
            return self.footprint.bytes
        return self.footprint.at(self.residency)

    @property
    def bytes_leaving(self) -> int:
        """What is about to be given back."""
        if self.move is Move.EVICTING:
            return self.footprint.evictable_bytes
        return self.bytes_now if self.move is Move.UNLOADING else 0

    @property
    def bytes_missing(self) -> int:
        """What it needs beside what it takes now, to be RESIDENT."""
        return self.footprint.bytes - self.bytes_now + self.bytes_leaving

    @property
    def resident(self) -> bool:
        """Requests can go to it."""
        return self.residency is Residency.RESIDENT and self.move is Move.NONE

    @property
    def stays(self) -> bool:
        """Whether it is to be RESIDENT, asked for or not."""
        return self.retention.pinned or self.retention.held

    @property
    def may_leave(self) -> bool:
        """Whether it takes memory, and nothing but time and requests in flight may speak against putting it out."""
        there = self.move is Move.NONE and self.residency is not Residency.COLD
        return there and not (self.retention.pinned or self.retention.held or self.waiting)

    @property
    def waits_without_weights(self) -> bool:
        """Whether requests wait for it, and all that it has in memory is what evicting its weights left."""
        there = self.move is Move.NONE and self.residency is Residency.WEIGHTS_EVICTED
        return there and bool(self.waiting) and not self.stays

    @property
    def available_ns(self) -> int:
        """From when on it may be put out, as far as time alone says."""
        if self.residency is not Residency.RESIDENT:
            return 0
        kept = self.retention
        return max(kept.until_ns, self.used_ns + kept.keep_warm_ns if kept.keep_warm_ns else 0)

    @property
    def comes_by_page_in(self) -> bool:
        """Whether it takes a page-in, not a load, to have it RESIDENT again, from how it is or will be."""
        if self.move is Move.UNLOADING or self.residency is Residency.COLD:
            return False
        return self.residency is Residency.WEIGHTS_EVICTED or self.move is Move.EVICTING


class ModelTable:
    """What models that serve take. ``arriving`` are those that are loaded or paged in."""

    __slots__ = ("_arrivals", "arriving", "leaving_bytes", "models", "retained_bytes", "used_bytes")

    def __init__(self) -> None:
        self.models: dict[int, Model] = {}
        self.arriving: dict[int, Model] = {}
        self.used_bytes = 0
        self.leaving_bytes = 0
        self.retained_bytes = 0
        """What is kept for the models that have it, or are to have it."""
        self._arrivals = 0

    def __iter__(self) -> Iterator[Model]:
        return iter(self.models.values())

    def add(self, model: Model, residency: Residency) -> None:
        """Keep ``model``, which is COLD and not retained so far, and is as ``residency`` says."""
        assert model.model not in self.models, f"model {model.model} serves already"
        self.models[model.model] = model
        self.arrive(model)
        self.become(model, residency, Move.NONE)

    def remove(self, model: Model) -> None:
        """Forget ``model``."""
        self.retain(model, pinned=False, held=False)
        self.become(model, Residency.COLD, Move.NONE)
        del self.models[model.model]

    def arrive(self, model: Model) -> None:
        """Put ``model`` last in the order of arrival."""
        self._arrivals += 1
        model.arrival = self._arrivals

    def become(
        self, model: Model, residency: Residency, move: Move, footprint: Footprint | None = None
    ) -> None:
        """Change what ``model`` takes: nothing else does."""
        self._book(model, -1)
        model.residency, model.move = residency, move
        model.footprint = footprint or model.footprint
        self._book(model, 1)
        if move in ARRIVING:
            self.arriving[model.model] = model
        else:
            self.arriving.pop(model.model, None)

    def retain(self, model: Model, *, pinned: bool, held: bool) -> None:
        """Change whether ``model`` stays."""
        self._book(model, -1)
        model.retention.pinned, model.retention.held = pinned, held
        self._book(model, 1)

    def retained_beside(self, model: int | None) -> int:
        """What is kept for models other than ``model``."""
        own = self.models.get(model) if model is not None else None
        return self.retained_bytes - (own.footprint.bytes if own is not None and own.stays else 0)

    def _book(self, model: Model, sign: int) -> None:
        self.used_bytes += sign * model.bytes_now
        self.leaving_bytes += sign * model.bytes_leaving
        self.retained_bytes += sign * model.footprint.bytes * model.stays

    def check_integrity(self) -> None:
        """Raise AssertionError where sums are not those of the models."""
        assert self.used_bytes == sum(each.bytes_now for each in self), "used bytes do not add up"
        assert self.leaving_bytes == sum(each.bytes_leaving for each in self), "leaving bytes do not add up"
        retained = sum(each.footprint.bytes for each in self if each.stays)
        assert self.retained_bytes == retained, "retained bytes do not add up"
        assert set(self.arriving) == {each.model for each in self if each.move in ARRIVING}, "who arrives"
        for each in self:
            assert not (each.resident and each.waiting), (
                f"requests wait for model {each.model}, which is there"
            )
            assert each.move not in LEAVING or each.residency is not Residency.COLD, (
                f"{each.model} leaves twice"
            )
