"""A catalog that is lost or cannot be believed is replaced by one made anew, under the writer's lock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from appliance.domain.errors import CatalogInvalid, CatalogNewer, StoreRefused
from appliance.durable import Folder, ensure_directory, read_whole, replace_file
from appliance.store.catalog_codec import CATALOG_BYTES_MAX, decode, encode
from appliance.store.catalog_file import Rebuilt, check_any_remains, counted
from appliance.store.layout import BLOBS, CATALOG, DAMAGED_CATALOG, INCOMING, VIEWS
from appliance.store.trouble import told
from appliance.store.writer import locked


def rebuild_catalog(state: Path, make: Callable[[Folder], Rebuilt]) -> Rebuilt:
    """Have the catalog be what ``make`` says (``catalog_file.rebuilt``), where it is lost or cannot be believed; one
    that cannot is kept beside it. Raises StoreRefused when there is nothing to repair, CatalogNewer, StoreBusy and
    StoreUnavailable."""
    with locked(state) as folder, told(str(state), "make the catalog anew"):
        data = read_whole(folder, CATALOG, CATALOG_BYTES_MAX)
        if data is not None:
            _check_broken(data, state)
        else:
            check_any_remains(folder, str(state))
        for directory in (BLOBS, VIEWS, INCOMING):
            ensure_directory(folder, directory)
        made = make(folder)
        if data is not None:
            replace_file(folder, DAMAGED_CATALOG, f"{INCOMING}/{CATALOG}", data)
            generation = max(made.catalog.generation, counted(data) + 1)
            made = replace(made, catalog=replace(made.catalog, generation=generation))
        replace_file(folder, CATALOG, f"{INCOMING}/{CATALOG}", encode(made.catalog))
        return made


def _check_broken(data: bytes, state: Path) -> None:
    try:
        decode(data, str(state / CATALOG))
    except CatalogNewer:
        raise
    except CatalogInvalid:
        return
    raise StoreRefused(f"'{state / CATALOG}' is as it should be; there is nothing to make anew")
