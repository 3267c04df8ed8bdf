"""What a scan has to say that was not said before: problems, settings without effect, where KIND_AUTO runs."""

from __future__ import annotations

from collections.abc import Callable

from appliance.domain.errors import Problem
from appliance.repository.directory import RepositoryScan


class ScanNews:
    """``report`` writes a log line, and ``tell_auto`` the one about KIND_AUTO, when the first model that says it is
    found."""

    def __init__(self, report: Callable[..., None], tell_auto: Callable[[], None]) -> None:
        self._report = report
        self._tell_auto: Callable[[], None] | None = tell_auto
        self._told: frozenset[Problem] = frozenset()

    def forget(self) -> None:
        """Say all that is wrong with the next scan, said before or not."""
        self._told = frozenset()

    def tell(self, found: RepositoryScan) -> None:
        """Say it of this scan."""
        for problem in found.problems:
            if problem not in self._told:
                self._report(
                    "model cannot be served", file=problem.file, key=problem.key, reason=problem.text
                )
        for note in found.notes:
            if note not in self._told:
                self._report("setting has no effect", file=note.file, key=note.key, note=note.text)
        self._told = frozenset((*found.problems, *found.notes))
        if found.auto and self._tell_auto is not None:
            self._tell_auto()
            self._tell_auto = None
