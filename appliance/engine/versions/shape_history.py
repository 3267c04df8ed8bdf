"""How large the free dimensions of requests have been, by model: what engines are built for.

It is looked at when a shape is new to a version and was answered, not for each request: what the model does not take
tells nothing of what it can. One of the model's versions tells for the next, if that has the same free dimensions.
Owner: the engine.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from appliance.domain.free_sizes import FreeSizes, free_counts, largest, sizes_of
from appliance.domain.model import ModelVersion
from appliance.runtimes.runtime import is_for_requests

SETTLED_NS: Final = 600_000_000_000
"""So long after they have last grown, sizes are what requests have: an engine for them is worth its build."""
LONGEST_NS: Final = 3_600_000_000_000
"""After the first request they are taken as they are: else one that is a little larger every few minutes would keep a
model from its engine for ever."""
MODELS_MAX: Final = 4096
"""That are remembered; of more, the one goes that grew first."""

_Interface = tuple[str, tuple[tuple[str, int], ...]]
"""The name of a model, and its inputs with free dimensions, and how many of these each has."""


class _Known(NamedTuple):
    """The largest sizes, when they grew last, and when there were any first."""

    sizes: FreeSizes
    grown_ns: int
    first_ns: int


class ShapeHistory:
    """Of models whose engines have to be built for what requests bring; of all others nothing is kept."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._known: dict[_Interface, _Known] = {}

    def note(self, model: ModelVersion, shapes: tuple[tuple[int, ...] | None, ...]) -> None:
        """A request for ``model`` that it answered had ``shapes``, without the batch dimension."""
        if not is_for_requests(model):
            return
        key = _interface(model)
        now_ns = self._clock()
        before = self._known.get(key, _Known({}, now_ns, now_ns))
        sizes = largest(before.sizes, sizes_of(model.inputs, shapes))
        if sizes != before.sizes:
            self._known.pop(key, None)
            self._known[key] = _Known(sizes, now_ns, before.first_ns)
            if len(self._known) > MODELS_MAX:
                del self._known[next(iter(self._known))]

    def sizes(self, model: ModelVersion) -> FreeSizes:
        """The largest that requests for the model had; nothing where there was none."""
        known = self._known.get(_interface(model))
        return {} if known is None else known.sizes

    def settled_ns(self, model: ModelVersion) -> int:
        """When they are what requests have, unless they grow before; 0: none told of each input yet."""
        key = _interface(model)
        known = self._known.get(key)
        if known is None or len(known.sizes) < len(key[1]):
            return 0
        return min(known.grown_ns + SETTLED_NS, known.first_ns + LONGEST_NS)


def _interface(model: ModelVersion) -> _Interface:
    return model.name, tuple(free_counts(model.inputs).items())
