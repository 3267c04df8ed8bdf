"""Which heads of requests have a template, or can have none: each is considered once, until templates are forgotten.
Pure."""

from __future__ import annotations

from typing import Final, Protocol

from appliance.domain.model import ModelVersion

HEADS_MAX: Final = 4096


class Epochs(Protocol):
    """What knows when templates were forgotten."""

    def epoch(self, model: ModelVersion) -> int:
        """A number that becomes another one when the templates of ``model`` are forgotten."""


class ConsideredHeads:
    """``epochs`` tells when the templates of a version are forgotten. Owner: a TemplateMaker."""

    def __init__(self, epochs: Epochs) -> None:
        self._epochs = epochs
        self._heads: dict[bytes, tuple[ModelVersion, int]] = {}
        self._swept = -1
        """The generation in which the heads were last gone through."""

    def is_due(self, head: bytes, model: ModelVersion, planned: int, generation: int) -> bool:
        """Whether ``head``, a request for ``model``, is to be considered now; then it is not again. ``planned`` is the
        generation in which it was planned: what was planned before the present ``generation`` may be another version's
        by now."""
        if planned != generation:
            return False
        known, now = self._heads.get(head), (model, self._epochs.epoch(model))
        if known is not None and known[1] == now[1]:
            return False
        if known is None and len(self._heads) >= HEADS_MAX and not self._sweep(generation):
            return False
        self._heads[head] = now
        return True

    def _sweep(self, generation: int) -> bool:
        """Drop heads that were forgotten; whether there is room then. In one generation that is worth it once."""
        if self._swept != generation:
            self._swept = generation
            known = self._heads.items()
            self._heads = {head: then for head, then in known if self._epochs.epoch(then[0]) == then[1]}
        return len(self._heads) < HEADS_MAX
