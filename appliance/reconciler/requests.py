"""What operators asked for by the store's commands: each is heeded once, whatever restarts come between."""

from __future__ import annotations

from collections.abc import Collection, Container

from appliance.engine.versions.records import Records
from appliance.repository.directory import RepositoryScan


class OperatorRequests:
    """By keys of versions, or names of models. ``records`` tell which were heeded by a process before this one."""

    def __init__(self, records: Records) -> None:
        self._records = records
        self._asked_ms = records.asked()
        """By key of the version, as of the last scan, of this process or one before; None: there was none."""
        self._owed: set[str] = set()
        """What was asked for and the engine has not heard of yet, because a fallback serves its model."""
        self._unfit: frozenset[str] | None = None
        """What did not serve when the source could not be read any more; None: it can."""

    def heeded(
        self, found: RepositoryScan, asked: Collection[str], fallbacks: Container[str]
    ) -> frozenset[str]:
        """``asked``, and the versions that were asked for since the last scan, as ``name/version``, without what has to
        wait because its model is among ``fallbacks``. It counts as heeded before the engine begins, or one that takes
        the box down would be news each time."""
        before = self._asked_ms
        asked_ms = {f"{name}/{number}": at for (name, number), at in found.asked_ms.items()}
        news = () if before is None else (key for key, at_ms in asked_ms.items() if before.get(key) != at_ms)
        owed = self._owed.union(asked, news)
        self._owed = {each for each in owed if each.partition("/")[0] in fallbacks}
        self._asked_ms = asked_ms
        self._records.heed({key: at_ms for key, at_ms in asked_ms.items() if key not in self._owed})
        return frozenset(owed - self._owed)

    def source_lost(self, unfit: frozenset[str]) -> None:
        """The source cannot be read any more; ``unfit`` does not serve now."""
        if self._unfit is None:
            self._unfit = unfit

    def source_found(self, unfit: frozenset[str]) -> None:
        """The source can be read again: what was given up meanwhile may have been for that alone, and is asked for."""
        if self._unfit is not None:
            self._owed |= unfit - self._unfit
            self._unfit = None
