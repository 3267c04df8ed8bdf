"""Packed forms beside a store: they count, and leave when an install needs their room."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from appliance.domain.errors import StoreFull
from appliance.store.catalog import Catalog, CatalogModel
from appliance.store.eviction import Lacking, Tenancy, plan_room
from appliance.store.installation import Installed, eviction_words
from appliance.store.layout import FORMS, REFUSED_FORM
from appliance.store.views import StoredForm
from appliance.store.writer import StoreWriter, open_store
from tests.store.arrivals import arrival, assert_served, contents_of
from tests.store.catalogs import stored_version
from tests.store.stores import NO_FLOOR, install


def put_form(state: Path, digest: str, size: int, of: str = "1") -> Path:
    """A packed form as the daemon leaves it there."""
    form = state / FORMS / f"{digest}-{of * 16}"
    form.mkdir(parents=True)
    (form / "weights.bin").write_bytes(bytes(size))
    return form


def bytes_in(state: Path) -> int:
    places = (state / "blobs", state / FORMS)
    return sum(path.stat().st_size for place in places for path in place.rglob("*") if path.is_file())


def installed(store: StoreWriter, version: int, now_ms: int, name: str = "digits") -> Installed:
    return install(
        store, arrival(name, version, contents_of(version, b"%d" % version * 4000)), want=True, now_ms=now_ms
    )


def test_packed_forms_count_for_the_quota_and_leave_before_any_version(state: Path) -> None:
    with open_store(state, NO_FLOOR) as store:
        old, new = (installed(store, 1, at, name) for at, name in ((100_000, "old"), (900_000, "new")))
        forms = [put_form(state, each.digest, 8000) for each in (old, new)]
    for version, gone, there in ((2, "old/1", [False, True]), (3, "new/1", [False, False])):
        quota = bytes_in(state) + 1000
        with open_store(state, replace(NO_FLOOR, quota_bytes=quota)) as store:
            told = installed(store, version, 1_000_000 + version, "new")
            assert (told.evicted, told.evicted_forms) == ((), (gone,)), "first what was wanted long ago"
            assert_served(state, store.catalog)
        assert [form.exists() for form in forms] == there
        assert bytes_in(state) <= quota
    with open_store(state, replace(NO_FLOOR, quota_bytes=bytes_in(state) + 8000)) as store:
        told = installed(store, 4, 1_000_004, "new")
        assert (told.evicted, told.evicted_forms) == ((), ())


def test_forms_and_then_versions_make_room_and_nothing_leaves_where_both_are_not_enough(state: Path) -> None:
    with open_store(state, replace(NO_FLOOR, quota_bytes=14_000)) as store:
        first, second = (installed(store, number, number * 100_000) for number in (1, 2))
        form, gone = put_form(state, second.digest, 500), put_form(state, "f" * 64, 500)
        mark = put_form(state, first.digest, 0)
        (mark / REFUSED_FORM).write_bytes(b"wrong")
        with pytest.raises(StoreFull, match=r"packed forms included \(1005 B now\)"):
            install(
                store, arrival(version=3, contents=contents_of(3, b"3" * 12_000)), want=True, now_ms=300_000
            )
        assert form.exists()
        assert gone.exists()
        told = installed(store, 3, 300_000)
        assert (told.evicted, set(told.evicted_forms)) == (("digits/1",), {"digits/2", ""})
        assert not form.exists()
        assert not gone.exists()
        assert mark.exists(), "it takes no room, and keeps a wrong form from being built again"
        assert bytes_in(state) <= 14_000


def test_forms_of_what_a_daemon_runs_leave_last_and_count_for_no_free_space(state: Path) -> None:
    catalog = Catalog(
        models=(
            CatalogModel(
                name="m",
                versions=tuple(stored_version("m", number, f"{number}/w", size=1000) for number in (1, 2)),
                wanted=2,
            ),
        )
    )
    idle, runs = (version.digest for _, version in catalog.installed())
    forms = (StoredForm("a", idle, 100, False), StoredForm("b", runs, 1_000_000, False))
    tenancy = Tenancy(catalog=catalog, forms=forms, running={runs}, staying=(), kept=())

    def leaving(quota: int, disk: int) -> tuple[list[str], list[int]] | None:
        found = plan_room(tenancy, Lacking(quota, disk), 1_000_000)
        return found and ([form.name for form in found.forms], [each.version for each in found.versions])

    assert leaving(50, 50) == (["a"], [])
    assert leaving(150, 0) == (["a", "b"], [])
    assert leaving(0, 150) == (["a"], [1]), "a worker may have it mapped"
    assert leaving(0, 100_000) is None


def test_forms_are_told_by_the_versions_that_they_are_of() -> None:
    said = "packed forms removed to make room: those of"
    assert eviction_words((), ()) == ()
    assert eviction_words(("m/1", "m/2"), ()) == ("evicted to make room: m/1, m/2",)
    assert eviction_words((), ("m/2", "", "m/1", "m/2")) == (f"{said} m/1, m/2",)
    assert eviction_words((), ("",)) == (f"{said} what is not installed any more",)
