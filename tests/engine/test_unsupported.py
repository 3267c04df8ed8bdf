"""What the installed runtime does not know is not tried again as it is, and is tried when something of it changes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.core.rollout import actions as do
from appliance.core.rollout import events as told
from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.core.rollout.phase import Phase
from appliance.core.rollout.records import Ending
from appliance.core.rollout.version import Version
from tests.domain.sample import make_version
from tests.engine.rollout_rig import NOW_MS, RolloutRig

LATER_NS = 601 * 1_000_000_000


def want(rig: RolloutRig, entry: CatalogVersion) -> None:
    """This is wanted from now on."""
    rig.tell(told.Wanted(catalog=Catalog(versions=(entry,)), asked=frozenset(), wall_ms=NOW_MS))


def refused(rig: RolloutRig, entry: CatalogVersion, **more: bool) -> Version:
    """What was wanted, and its worker will not have."""
    rig.opens = False
    want(rig, entry)
    for _ in range(2):
        rig.start()
    (version,) = (each for each in rig.core.registry.versions.values() if each.phase is Phase.LOADING)
    rig.tell(told.Refused(version.id, "its ir_version is 99", **more))
    rig.tell(told.Changed(NOW_MS))
    return version


@pytest.mark.parametrize("unsupported", [True, False])
def test_what_the_runtime_does_not_know_is_not_tried_again_by_itself(unsupported: bool) -> None:
    rig = RolloutRig()
    entry, other = (CatalogVersion(model=make_version(name, 1), fingerprint="f") for name in ("m", "n"))
    version = refused(rig, entry, unsupported=unsupported)
    assert bool(rig.core.retries.next_try_ms(version)) == (not unsupported)
    rig.start(LATER_NS)
    tried = [action for action in rig.done if isinstance(action, do.Retried)]
    assert bool(tried) == (not unsupported)
    if unsupported:
        wall_ms = NOW_MS + LATER_NS // 1_000_000
        catalog = Catalog(versions=(entry, other))
        rig.tell(told.Wanted(catalog=catalog, asked=frozenset(), wall_ms=wall_ms), LATER_NS)
        assert rig.core.registry.find(version.slot) is version, "a change elsewhere is none of its files"


@pytest.mark.parametrize("how", ["asked", "other files", "another configuration"])
def test_what_the_runtime_does_not_know_is_tried_when_something_of_it_changes(how: str) -> None:
    rig = RolloutRig()
    entry = CatalogVersion(model=make_version("m", 1), fingerprint="f")
    version = refused(rig, entry, unsupported=True)
    changed = {
        "asked": entry,
        "other files": replace(entry, fingerprint="g"),
        "another configuration": replace(entry, model=replace(entry.model, max_batch_size=3)),
    }[how]
    asked = frozenset({"m"} if how == "asked" else ())
    rig.opens = True
    rig.tell(told.Wanted(catalog=Catalog(versions=(changed,)), asked=asked, wall_ms=NOW_MS))
    rig.start()
    (again,) = rig.serving
    assert again is not version
    assert rig.core.registry.find(version.slot) is again


def test_a_version_on_trial_that_the_runtime_does_not_know_leaves_what_serves_at_once() -> None:
    rig = RolloutRig()
    want(rig, CatalogVersion(model=make_version("m", 1), fingerprint="a"))
    rig.start()
    (old,) = rig.serving
    new = refused(rig, CatalogVersion(model=make_version("m", 2), fingerprint="b"), unsupported=True)
    assert new.phase is Phase.FAILED
    assert rig.core.registry.current("m") is old
    assert rig.records.history("m")[-1].ending is Ending.REFUSED
