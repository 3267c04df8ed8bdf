"""Models that an operator loads and unloads by hand, and the files that were given with them."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

from appliance.config.repository import RepositoryConfig
from appliance.core.rollout.catalog import Catalog, CatalogProblem
from appliance.domain.errors import InvalidRequest
from appliance.engine.engine import Engine
from appliance.engine.versions.wording import given_by_hand
from appliance.repository.directory import RepositoryScan
from appliance.repository.model_directory import read_model_directory
from appliance.sources.overlay import Overlay, Selection
from appliance.sources.source import Source
from appliance.sources.watcher import Watcher

TIDY_S: Final = 1.0
"""How often it is looked whether versions have left whose files were given and are not wanted any more."""

UNLOADED: Final = (
    "unloaded by hand; it serves again when it is loaded by hand, or when the appliance starts anew"
)


class ModelsByHand:
    """What was changed by hand, and the disk space of files that were given. Owner: the reconciler."""

    def __init__(
        self, source: Source, engine: Engine, repository: RepositoryConfig, watcher: Watcher
    ) -> None:
        self._source = source
        self._engine = engine
        self._repository = repository
        self._watcher = watcher
        self._selection = Selection()
        self._overlay = Overlay()
        self._tidying: asyncio.TimerHandle | None = None
        self._stopped = False

    def over(self, found: RepositoryScan) -> RepositoryScan:
        """``found`` with what was changed by hand in its place."""
        return self._selection.over(found)

    def with_reasons(self, catalog: Catalog, found: RepositoryScan) -> Catalog:
        """What was changed by hand says so, whatever the source asks for meanwhile."""
        devices = {(each.model.name, str(each.model.version)): each.model.device for each in found.servable}
        devices |= {(each.name, each.version): each.device for each in found.broken}
        aside = [
            CatalogProblem(name=name, version=version, reason=UNLOADED, device=devices[name, version].first)
            for name, version in self._selection.aside(found)
        ]
        passed_over = [
            CatalogProblem(name=name, version=version, reason=given_by_hand(name))
            for name, version in self._selection.given(found)
        ]
        versions = (
            replace(each, trial=None, order=False, by_hand=True)
            if self._selection.is_given(each.model.name)
            else each
            for each in catalog.versions
        )
        return replace(catalog, versions=tuple(versions), aside=(*aside, *passed_over))

    def read(self, name: str, config: bytes | None, files: Mapping[str, bytes]) -> RepositoryScan | None:
        """What is to be served as ``name``, from the source or from ``files``; None: there is no such model. Blocks."""
        if not files:
            return self._source.model(name, config)
        if config is None:
            raise InvalidRequest(f"failed to load '{name}': files are given, but no config with them")
        root = str(self._overlay.put(name, files))
        reading = read_model_directory(root, name, self._repository, config)
        if reading is None or not reading.servable:
            self._overlay.drop([root])
        return reading

    def kept(self, name: str, own: RepositoryScan) -> RepositoryScan | None:
        """What was given as ``name`` by its configuration alone, as long as the source still holds ``own``."""
        return self._selection.kept(name, own)

    def give(self, name: str, reading: RepositoryScan, own: RepositoryScan | None) -> None:
        """Serve ``reading`` as ``name`` from here on, whatever the source holds: ``own``, where that is only configured
        otherwise."""
        self._selection.replace(name, reading, own)
        for entry in reading.servable:
            self._overlay.keep(entry.model.path)

    def take_back(self, name: str) -> None:
        """Serve ``name`` from the source again."""
        self._selection.take_back(name)

    def put_aside(self, name: str) -> None:
        """Serve nothing of this name."""
        self._selection.put_aside(name)

    def tidy(self) -> None:
        """Files that were given leave the disk when nobody wants them and no version is here that lies in them."""
        if self._tidying is not None:
            self._tidying.cancel()
            self._tidying = None
        if self._stopped:
            return
        unwanted = self._overlay.without(self._selection.paths())
        held = [model.path for model in self._engine.held()]
        unused = unwanted & self._overlay.without(held)
        if unused:
            self._overlay.forget(unused)
            self._watcher.later(partial(self._overlay.drop, unused))
        if unwanted - unused:
            self._tidying = asyncio.get_running_loop().call_later(TIDY_S, self.tidy)

    def drop_leftovers(self) -> None:
        """Remove what a daemon before this one left. Blocks."""
        self._overlay.drop_leftovers()

    def stop(self) -> None:
        """Look at no files any more."""
        self._stopped = True
        if self._tidying is not None:
            self._tidying.cancel()

    def close(self) -> None:
        """Remove all that was given."""
        self._overlay.close()
