"""Stores that tests write: how they are set, and what lies in them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from appliance.config.store import StoreConfig
from appliance.store.incoming import IncomingPackage
from appliance.store.installation import Installed, InstallRequest
from appliance.store.writer import StoreWriter

NO_FLOOR = StoreConfig(free_floor_bytes=0)
"""The machine that runs the tests may be as full as it likes."""


def install(store: StoreWriter, package: IncomingPackage, **wished: Any) -> Installed:
    """Install ``package`` as it is ``wished``: see InstallRequest."""
    return store.install(InstallRequest(package=package, **wished))


def blobs_in(state: Path) -> set[str]:
    """Digests of all blobs that are there."""
    return {path.name for path in (state / "blobs").rglob("*") if path.is_file()}


def blob_of(store: StoreWriter, name: str, version: int, path: str) -> str:
    """The digest of a file of an installed version."""
    model = store.catalog.model(name)
    assert model is not None
    installed = model.version(version)
    assert installed is not None
    return next(file.digest for file in installed.files if file.path == f"{name}/{path}")
