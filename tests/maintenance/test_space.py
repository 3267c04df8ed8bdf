"""What the store's disk has taken and left is looked at, and since when packed forms are there."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from appliance.config.store import StoreConfig
from appliance.maintenance.scrubbing import Scrubbing
from appliance.maintenance.store_figures import store_figures
from appliance.store.layout import BUILDING_FORM, FORMS
from appliance.store.writer import open_store
from appliance.workers.forms import FORM_FILE
from tests.store.arrivals import arrival
from tests.store.stores import install

BUILT_S = 1_700_000_000.0
CONFIG = StoreConfig(free_floor_bytes=3, quota_bytes=1 << 40)


def put_form(state: Path, name: str) -> None:
    form = state / FORMS / name
    form.mkdir(parents=True)
    (form / "weights.bin").write_bytes(bytes(5000))
    (form / FORM_FILE).write_bytes(b"{}")
    os.utime(form / FORM_FILE, (BUILT_S, BUILT_S))


async def test_what_is_taken_and_left_and_when_forms_were_built(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with open_store(state, StoreConfig(free_floor_bytes=0)) as store:
        install(store, arrival("digits", 1), want=True, now_ms=7_000)
        install(store, arrival("idle", 1), want=False, now_ms=8_000)
        catalog = store.catalog
    digest = next(version.digest for model, version in catalog.installed() if model.name == "digits")
    scrubbing = Scrubbing(state, CONFIG, lambda: 0, print)
    watch = scrubbing.disk
    await watch.look()
    before = watch.space
    put_form(state, f"{digest}-{'1' * 16}")
    put_form(state, f"{BUILDING_FORM}{'e' * 64}-{'1' * 16}")
    await watch.look()
    assert before.taken_bytes > 0
    assert watch.space.taken_bytes == before.taken_bytes + 2 * 5002
    assert watch.space.free_bytes > 0
    assert watch.space.forms == {digest: BUILT_S}
    figures = store_figures(catalog, scrubbing, CONFIG, 1, "")
    assert (figures.quota_bytes, figures.free_floor_bytes) == (1 << 40, 3)
    assert [(each.name, each.kind, each.made_s) for each in figures.artifacts] == [
        ("digits", "package", 7.0),
        ("digits", "packed form", BUILT_S),
    ]


async def test_a_box_on_which_nothing_is_installed_yet_tells_what_its_disk_has_left(tmp_path: Path) -> None:
    """It was enrolled: none of the store's directories is there."""
    watch = Scrubbing(tmp_path, CONFIG, lambda: 0, print).disk
    await watch.look()
    assert watch.space.taken_bytes == 0
    assert watch.space.free_bytes > 0


async def test_a_store_that_cannot_be_looked_at_stays_as_it_was_told(tmp_path: Path) -> None:
    state = tmp_path / "state"
    with open_store(state, StoreConfig(free_floor_bytes=0)) as store:
        install(store, arrival("digits", 1), want=True, now_ms=7_000)
    watch = Scrubbing(state, CONFIG, lambda: 0, print).disk
    await watch.look()
    told = watch.space
    shutil.rmtree(state)
    await watch.look()
    assert watch.space == told
