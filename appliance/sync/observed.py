"""What the agent sees of its box: the catalog, and what the daemon says of itself in its files.

Only read, and no lock is taken: a daemon need not run. What did not change since the last look is not read again.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from appliance.core.rollout.records import Change, Ending
from appliance.core.rollout.version import Artifact
from appliance.domain.errors import StoreUnavailable
from appliance.engine.versions.history import FILE, FILE_BEFORE, read_history
from appliance.store.catalog import Catalog
from appliance.store.catalog_file import read_catalog
from appliance.store.layout import CATALOG, SERVE
from appliance.store.running import read_holder, read_running

FAILED: Final = frozenset({Ending.REFUSED, Ending.ROLLED_BACK, Ending.GIVEN_UP})
"""Endings by which the box's rollout says that a version will not serve."""
BLAMELESS: Final = frozenset({Ending.ABANDONED, Ending.RECALLED, Ending.WITHDRAWN, Ending.POSTPONED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Sight:
    """How the box is. ``live``: the version that answers requests, by model; ``failed``: by model, versions that the
    rollout gave up or led back, and why; ``free_bytes``: of the disk that the store is on."""

    catalog: Catalog = field(default_factory=Catalog)
    serving: bool = False
    live: Mapping[str, int] = field(default_factory=dict)
    failed: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    free_bytes: int = 0


class Observer:
    """Looks at the state directory ``state``. Owner: one thread."""

    def __init__(self, state: Path) -> None:
        self._state = state
        self._catalog = _Kept()
        self._history = _Kept()
        self._read_catalog = Catalog()
        self._changes: tuple[Change, ...] = ()

    def look(self) -> Sight:
        """How the box is now. Raises StoreUnavailable, CatalogInvalid and CatalogLost."""
        if self._catalog.is_new(self._state / CATALOG):
            self._read_catalog = read_catalog(self._state) or Catalog()
            self._catalog.was_read()
        serve = self._state / SERVE
        if self._history.is_new(serve / FILE_BEFORE, serve / FILE):
            try:
                self._changes = read_history(serve)
            except OSError as error:
                raise StoreUnavailable(
                    f"the history in '{serve}' cannot be read: {error.strerror}"
                ) from error
            self._history.was_read()
        serving = read_holder(self._state) is not None
        found = os.statvfs(self._state)
        return Sight(
            catalog=self._read_catalog,
            serving=serving,
            live=self._live() if serving else {},
            failed=failures(self._read_catalog, self._changes),
            free_bytes=found.f_bavail * found.f_frsize,
        )

    def _live(self) -> Mapping[str, int]:
        """What served after the last change of each model, where it runs still, as far as the daemon says."""
        last = {change.name: change.after for change in self._changes if change.after}
        try:
            running = {(each.name, each.version) for each in read_running(self._state)}
        except StoreUnavailable:
            return last
        return {name: version for name, version in last.items() if (name, version) in running}


def failures(catalog: Catalog, changes: tuple[Change, ...]) -> Mapping[str, Mapping[int, str]]:
    """Why versions that are installed, with these contents, failed when they were tried last."""
    digests = {(model.name, each.version): each.digest for model, each in catalog.installed()}
    found: dict[str, dict[int, str]] = {}
    for change in changes:
        digest = digests.get((change.name, change.version))
        if change.artifact is not Artifact.AS_PACKAGED or change.ending in BLAMELESS or digest is None:
            continue
        if "@" in change.identity and not change.identity.endswith(f"@{digest}"):
            continue
        of_model = found.setdefault(change.name, {})
        if change.ending in FAILED:
            of_model[change.version] = change.reason or change.ending.value
        else:
            of_model.pop(change.version, None)
    return {name: versions for name, versions in found.items() if versions}


class _Kept:
    """Files as they were when they were read last."""

    def __init__(self) -> None:
        self._stamps: tuple[object, ...] | None = None
        self._seen: tuple[object, ...] | None = None

    def is_new(self, *files: Path) -> bool:
        """Whether one of them is another one, or has changed, since they ``was_read``: what could not be read is new
        the next time, too."""
        self._seen = tuple(map(_stamp, files))
        return self._seen != self._stamps

    def was_read(self) -> None:
        """As they were when they were looked at last, before they were read: a change meanwhile is seen."""
        self._stamps = self._seen


def _stamp(file: Path) -> object:
    try:
        found = file.stat()
    except OSError:
        return None
    return (found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns)
