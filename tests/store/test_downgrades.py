"""Old packages that are as well signed as ever: installing one is an order, and a signed minimum ends it for good."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.domain.digest import digest_of
from appliance.domain.errors import CatalogInvalid, PackageInvalid, StoreRefused
from appliance.domain.manifest_codec import decode as decode_manifest
from appliance.domain.manifest_codec import encode as encode_manifest
from appliance.store.catalog import Catalog, Floor, Trial, TrialMode
from appliance.store.catalog_codec import decode, encode
from appliance.store.catalog_file import rebuilt
from appliance.store.incoming import IncomingPackage
from appliance.store.writer import StoreWriter, locked, open_store
from tests.domain.manifests import manifest_of
from tests.store.arrivals import arrival_of, contents_of
from tests.store.stores import NO_FLOOR, install

TRUSTED = "key k"


def signed(version: int, minimum: int | None = None, trust: str = TRUSTED) -> IncomingPackage:
    files = contents_of(version)
    manifest = replace(manifest_of(files, name="digits", version=version), minimum_version=minimum)
    return arrival_of(manifest, files, trust=trust)


def install_signed(store: StoreWriter, *versions: int, want: bool = True) -> None:
    for version in versions:
        install(store, signed(version), want=want, now_ms=version)


def wanted(store: StoreWriter) -> int:
    model = store.catalog.model("digits")
    return model.wanted if model else 0


@pytest.mark.parametrize("want", [True, False])
def test_an_older_version_than_was_ever_wanted_is_not_installed_without_an_order(
    store: StoreWriter, want: bool
) -> None:
    install_signed(store, 1, 3)
    before = store.catalog
    with pytest.raises(StoreRefused, match=r"digits/2 is older than digits/3.*--downgrade installs it"):
        install_signed(store, 2, want=want)
    assert store.catalog == before
    install(store, signed(2), want=want, now_ms=9, downgrade=True)
    assert wanted(store) == (2 if want else 3)
    store.want("digits", 3, 9)
    store.uninstall("digits", 2)
    with pytest.raises(StoreRefused, match="older than digits/3"):
        install_signed(store, 2, want=want)


def test_orders_among_what_is_installed_are_free_and_what_was_newest_stays_so(store: StoreWriter) -> None:
    install_signed(store, 1, 2, 3)
    store.roll_back("digits", 9)
    store.want("digits", 1, 9)
    assert wanted(store) == 1
    store.uninstall("digits", 3)
    store.uninstall("digits", 2)
    with pytest.raises(StoreRefused, match="older than digits/3"):
        install_signed(store, 2)


def test_to_repair_an_older_version_takes_no_order_unless_that_makes_it_wanted(store: StoreWriter) -> None:
    install_signed(store, 1, 2)
    install_signed(store, 1, want=False)
    with pytest.raises(StoreRefused, match="with --no-want it is only repaired"):
        install_signed(store, 1)
    store.want("digits", 1, 9)
    install_signed(store, 1)
    assert wanted(store) == 1


def test_to_uninstall_a_model_is_no_way_around(store: StoreWriter, state: Path) -> None:
    install_signed(store, 4)
    store.uninstall("digits")
    assert store.catalog.models == ()
    assert decode(encode(store.catalog), "catalog") == store.catalog
    with pytest.raises(StoreRefused, match="older than digits/4"):
        install_signed(store, 3)
    install_signed(store, 5)


def test_nothing_below_a_signed_minimum_is_made_wanted(store: StoreWriter) -> None:
    install_signed(store, 1, 2)
    install(store, signed(4, 3), want=True, now_ms=4)
    refused = r"digits/2 is not made wanted: a signed package of digits says that 3 is the lowest version"
    with pytest.raises(StoreRefused, match=refused):
        store.want("digits", 2, 9)
    with pytest.raises(StoreRefused, match=refused):
        store.try_out("digits", Trial(version=2, mode=TrialMode.CANARY, percent=5))
    with pytest.raises(StoreRefused, match=refused):
        install(store, signed(2), want=True, now_ms=9, downgrade=True)
    with pytest.raises(StoreRefused, match="to: 3 is the lowest that a signed package allows, not 2, 1"):
        store.roll_back("digits", 9)
    store.uninstall("digits")
    with pytest.raises(StoreRefused, match="3 is the lowest version"):
        install(store, signed(2), want=True, now_ms=9, downgrade=True, progress=_nothing_is_read)
    assert install(store, signed(2), want=False, now_ms=9, downgrade=True).changed


def _nothing_is_read(count: int) -> None:
    raise AssertionError("refused only after it was read")


def test_a_minimum_only_grows_and_takes_a_trusted_signature(store: StoreWriter) -> None:
    install_signed(store, 1)
    install(store, signed(5, 4, trust="unsigned"), want=True, now_ms=5)
    assert store.catalog.floor("digits").minimum == 0
    install(store, signed(6, 4), want=True, now_ms=6)
    install(store, signed(7, 2), want=True, now_ms=7)
    assert store.catalog.floor("digits") == Floor(name="digits", newest=7, minimum=4)
    install(store, signed(5, 4, trust="unsigned"), want=False, now_ms=8)
    assert wanted(store) == 7, "what is wanted stays so"


def test_a_minimum_that_comes_with_what_is_not_wanted_leaves_what_serves(store: StoreWriter) -> None:
    install_signed(store, 1)
    install(store, signed(2, 2), want=False, now_ms=2)
    assert wanted(store) == 1


def test_a_catalog_without_floors_is_one_that_earlier_releases_read(store: StoreWriter, state: Path) -> None:
    install_signed(store, 1, 2)
    assert "floors" not in json.loads(encode(store.catalog))["catalog"]
    store.roll_back("digits", 9)
    assert json.loads(encode(store.catalog))["catalog"]["floors"] == {"digits": {"minimum": 0, "newest": 2}}


@pytest.mark.parametrize("value", [-1, 1 << 63, 1 << 64, "1", True, None, 1.5])
@pytest.mark.parametrize("key", ["minimum", "newest"])
def test_floors_that_cannot_be_are_told(value: object, key: str) -> None:
    plain = json.loads(encode(Catalog(floors=(Floor(name="digits", newest=1),))))
    plain["catalog"]["floors"]["digits"][key] = value
    body = json.dumps(plain["catalog"], ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode()
    plain["checksum"] = digest_of(body)
    with pytest.raises(CatalogInvalid, match=r"floors\.digits"):
        decode(json.dumps(plain).encode(), "catalog")


@pytest.mark.parametrize(
    ("minimum", "trust", "found"), [(2, TRUSTED, 2), (2, "unsigned", 0), (None, TRUSTED, 0)]
)
def test_a_catalog_made_anew(state: Path, minimum: int | None, trust: str, found: int) -> None:
    with open_store(state, NO_FLOOR) as store:
        install(store, signed(3, minimum), want=True, now_ms=3)
    with locked(state) as folder:
        made = rebuilt(folder, trust_of=lambda *papers: trust, served={"digits": 3}, now_ms=9)
    assert made.catalog.floor("digits") == Floor(name="digits", newest=3, minimum=found)


@pytest.mark.parametrize("minimum", [0, -1, 4, 1 << 63, True, "3", None])
def test_a_manifest_says_a_minimum_that_its_own_version_keeps(minimum: object) -> None:
    manifest = replace(manifest_of(contents_of(3), name="digits", version=3), minimum_version=3)
    data = encode_manifest(manifest)
    assert decode_manifest(data) == manifest
    bad = data.replace(b'"minimum_version":3', b'"minimum_version":' + json.dumps(minimum).encode())
    assert bad != data
    with pytest.raises(PackageInvalid, match=r"minimum_version|canonical"):
        decode_manifest(bad)
