"""What an operator changed by hand on top of a source: models put aside, and models given by hand. Pure.

Lives as long as the daemon: a restart goes by the source alone.
"""

from __future__ import annotations

from appliance.repository.directory import RepositoryScan, merged
from appliance.repository.model_directory import ModelReading


class Selection:
    """Which models of a scan count, and which are replaced. Owner: the event loop's thread."""

    def __init__(self) -> None:
        self._aside: set[str] = set()
        self._given: dict[str, ModelReading] = {}

    def put_aside(self, name: str) -> None:
        """Serve nothing of this name, whatever the source holds."""
        self._aside.add(name)
        self._given.pop(name, None)

    def take_back(self, name: str) -> None:
        """Serve what the source holds of this name."""
        self._aside.discard(name)
        self._given.pop(name, None)

    def replace(self, name: str, reading: ModelReading) -> None:
        """Serve this in the place of what the source holds of the name."""
        self._aside.discard(name)
        self._given[name] = reading

    def paths(self) -> tuple[str, ...]:
        """Where the models lie that were given by hand."""
        return tuple(entry.model.path for given in self._given.values() for entry in given.servable)

    def aside(self, scan: RepositoryScan) -> tuple[tuple[str, str], ...]:
        """Names and versions of what the source holds and is put aside."""
        return tuple(each for each in _keys(scan) if each[0] in self._aside)

    def given(self, scan: RepositoryScan) -> tuple[tuple[str, str], ...]:
        """Names and versions of what the source holds and does not count, because the model was given by hand."""
        return tuple(each for each in _keys(scan) if each[0] in self._given)

    def is_given(self, name: str) -> bool:
        """Whether the model counts as given by hand."""
        return name in self._given

    def over(self, scan: RepositoryScan) -> RepositoryScan:
        """The scan as it counts."""
        if not self._aside and not self._given:
            return scan
        gone = self._aside | self._given.keys()
        kept = ModelReading(
            servable=tuple(entry for entry in scan.servable if entry.model.name not in gone),
            broken=tuple(entry for entry in scan.broken if entry.name not in gone),
            notes=scan.notes,
        )
        return merged([kept, *(self._given[name] for name in sorted(self._given))])


def _keys(scan: RepositoryScan) -> list[tuple[str, str]]:
    broken = [(entry.name, entry.version) for entry in scan.broken]
    return [(entry.model.name, str(entry.model.version)) for entry in scan.servable] + broken
