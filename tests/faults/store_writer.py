"""A writer of a store to be killed and cheated: installs two versions, goes back, uninstalls one, and says after each
step that it is done. A call that does nothing (``access``) marks where the store's own calls begin.

    python -m tests.faults.store_writer STATE PACKAGE-1 PACKAGE-2
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from appliance.config.store import StoreConfig
from appliance.domain.errors import StoreRefused
from appliance.package.reader import open_package
from appliance.store.incoming import IncomingPackage
from appliance.store.writer import StoreWriter, open_store
from tests.store.stores import install

MARK = "/the-store-begins-here"
STEPS = ("install 1", "install 2", "uninstall 1")


def main(state: Path, first: Path, second: Path) -> None:
    """Do all steps."""
    os.access(MARK, os.F_OK)
    with open_store(state, StoreConfig(free_floor_bytes=0)) as store:
        _install(store, first)
        _said(STEPS[0])
        _install(store, second)
        _said(STEPS[1])
        _uninstall(store, 1)
        _said(STEPS[2])


def _install(store: StoreWriter, package: Path) -> None:
    with open_package(package) as reader:
        arrival = IncomingPackage(
            manifest=reader.manifest,
            manifest_bytes=reader.manifest_bytes,
            signatures=reader.signatures,
            trust="unsigned",
            contents=((blob.digest, blob.size, blob.stream) for blob in reader.blobs()),
        )
        install(store, arrival, want=True, now_ms=1, downgrade=True)


def _uninstall(store: StoreWriter, number: int) -> None:
    model = store.catalog.model("digits")
    if model is None or model.version(number) is None:
        raise StoreRefused("nothing to uninstall")
    store.uninstall("digits", number)


def _said(step: str) -> None:
    os.write(1, f"{step}\n".encode())


if __name__ == "__main__":
    main(*map(Path, sys.argv[1:]))
