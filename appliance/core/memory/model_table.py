"""The models of one device, and the sums over them, which are kept as they change."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.core.memory.footprint import Footprint, Residency
from appliance.core.memory.model import ARRIVING, LEAVING, Model, Move


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
