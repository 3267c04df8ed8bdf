"""How every reader sees a store: the catalog at one moment, and where versions lie. Needs no lock."""

from __future__ import annotations

from pathlib import Path

from appliance.domain.errors import StoreUnavailable
from appliance.durable import RealFolder, read_whole
from appliance.store.catalog import Catalog
from appliance.store.catalog_codec import CATALOG_BYTES_MAX, decode
from appliance.store.layout import CATALOG
from appliance.store.loss import check_not_lost


def read_catalog(state: Path) -> Catalog | None:
    """The catalog of the state directory; None where nothing is installed yet. A reader that has seen one and finds
    none later has lost its disk: no catalog is ever removed. Raises CatalogInvalid, CatalogLost and
    StoreUnavailable."""
    try:
        folder = RealFolder(state)
        try:
            data = read_whole(folder, CATALOG, CATALOG_BYTES_MAX)
            if data is None:
                check_not_lost(folder, str(state))
        finally:
            folder.close()
    except OSError as error:
        reason = error.strerror or error
        raise StoreUnavailable(
            f"'{state / CATALOG}' cannot be read: {reason}; is its disk mounted?"
        ) from error
    return None if data is None else decode(data, str(state / CATALOG))
