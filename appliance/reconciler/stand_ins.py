"""Versions that stand in for one that is wanted and failed: the next older one that is proven here.

A wanted version that did not prove itself leaves what serves, which is the next older one. Not so where an operator
went back to a version that cannot be loaded any more, or uninstalled what served: then what was wanted before it is
read, and served until what is wanted serves or is another version.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.engine.engine import Engine
from appliance.repository.directory import ServableVersion
from appliance.sources.source import Source

Way = Sequence[ServableVersion]


class StandIn(NamedTuple):
    """What serves for the version ``wanted``; None: nothing else is proven, or it serves already."""

    wanted: int
    entry: CatalogVersion | None


class StandIns:
    """By name of a model. ``incumbents`` are the identities of what was proven last, by name; ``read`` calls its first
    argument where the source is read, and the second one with what that gives in the event loop's thread; ``changed``
    is told that others stand in. Owner: the reconciler."""

    def __init__(
        self,
        source: Source,
        engine: Engine,
        incumbents: Callable[[], Mapping[str, str]],
        read: Callable[[Callable[[], Way], Callable[[Way], None]], None],
        changed: Callable[[], None],
    ) -> None:
        self._source = source
        self._engine = engine
        self._incumbents = incumbents
        self._read = read
        self._changed = changed
        self._found: dict[str, StandIn] = {}
        self._reading: dict[str, int] = {}

    def over(self, catalog: Catalog) -> Catalog:
        """``catalog`` with what stands in, for as long as it has to."""
        lost, found = self._lost(), self._found.items()
        self._found = {
            name: each
            for name, each in found
            if each.entry is not None
            and each.entry.model.digest not in catalog.uninstalled
            and self._is_for(each, lost.get(name))
        }
        stand_ins = {each.entry.model.key: each.entry for each in self._found.values() if each.entry}
        others = (entry for entry in catalog.versions if entry.model.key not in stand_ins)
        return replace(catalog, versions=(*others, *stand_ins.values()))

    def look(self) -> None:
        """See what has failed, and what serves again, since the last time."""
        lost = self._lost()
        if any(each.entry and lost.get(name) != each.wanted for name, each in self._found.items()):
            self._changed()
        for name, number in lost.items():
            known = self._found.get(name)
            if self._reading.get(name) != number and (known is None or not self._is_for(known, number)):
                self._reading[name] = number
                incumbent = self._incumbents().get(name, "")
                self._read(partial(self._source.way_back, name, incumbent), partial(self._take, name, number))

    def _is_for(self, stand_in: StandIn, wanted: int | None) -> bool:
        """Whether it has not failed itself, and ``wanted`` is what it stands in for."""
        entry = stand_in.entry
        failed = entry is not None and self._engine.has_failed(entry.model.name, entry.model.version)
        return wanted == stand_in.wanted and not failed

    def _lost(self) -> dict[str, int]:
        """The wanted versions that failed."""
        wanted = self._source.wanted().items()
        return {name: number for name, number in wanted if self._engine.has_failed(name, number)}

    def _take(self, name: str, number: int, way: Way) -> None:
        """The versions that were wanted before."""
        self._reading.pop(name, None)
        candidates = [
            CatalogVersion(model=each.model, fingerprint=each.fingerprint, order=True) for each in way
        ]
        self._found[name] = StandIn(number, self._engine.stand_in(name, candidates))
        if self._found[name].entry is not None:
            self._changed()
