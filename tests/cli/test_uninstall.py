"""``appliance model uninstall`` of what served last, by what the daemon left on the disk."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from appliance.cli.failure import Exit
from appliance.core.rollout.records import Change, Ending
from appliance.engine.versions.history import FILE, encoded
from appliance.store.catalog import CatalogModel, identity_of
from appliance.store.catalog_file import read_catalog
from appliance.store.layout import INCUMBENTS
from tests.cli.conftest import Pack, Run


def installed(state: Path) -> CatalogModel:
    catalog = read_catalog(state)
    assert catalog is not None
    return catalog.models[0]


def tell(state: Path, *endings: tuple[int, Ending]) -> None:
    """What a daemon wrote into its history."""
    model = installed(state)
    lines = []
    for number, ending in endings:
        version = model.version(number)
        assert version is not None
        identity = identity_of(model.name, version)
        lines.append(
            encoded(Change(at_ms=1, name=model.name, version=number, identity=identity, ending=ending))
        )
    (state / "serve").mkdir(exist_ok=True)
    (state / "serve" / FILE).write_bytes(b"".join(lines))


@pytest.fixture
def three(appliance: Run, pack: Pack, state: Path) -> Path:
    """Versions 1, 2 and 3, wanted one after the other."""
    appliance("model", "install", str(pack()), str(pack(2)), str(pack(3)))
    return state


def test_the_last_one_that_served_goes_by_force_alone(appliance: Run, three: Path) -> None:
    tell(three, (1, Ending.LIVE), (2, Ending.REFUSED), (3, Ending.LIVE), (3, Ending.ROLLED_BACK))
    status, out, err = appliance("model", "uninstall", "digits/1")
    assert (status, out) == (Exit.REFUSED, "")
    assert err == (
        "appliance model uninstall: digits/1 is the last version of digits that has proved itself here, and digits/3, "
        "which is wanted, has not: nothing of digits might be left to serve; have that prove itself first, uninstall "
        "all of digits, or say --force\n"
    )
    assert [each.version for each in installed(three).versions] == [1, 2, 3]
    assert appliance("model", "uninstall", "digits/2")[0] == Exit.OK, "it never served"
    assert appliance("model", "uninstall", "digits/1", "--force")[0] == Exit.OK
    assert [each.version for each in installed(three).versions] == [3]


def test_what_was_proven_last_is_known_without_a_history(appliance: Run, three: Path) -> None:
    first = installed(three).versions[0]
    (three / INCUMBENTS).parent.mkdir(exist_ok=True)
    (three / INCUMBENTS).write_text(json.dumps({"models": {"digits": identity_of("digits", first)}}))
    assert appliance("model", "uninstall", "digits/1")[0] == Exit.REFUSED
    tell(three, (1, Ending.GIVEN_UP))
    assert appliance("model", "uninstall", "digits/1")[0] == Exit.OK, "it cannot serve any more"


@pytest.mark.parametrize("others", [(2, Ending.LIVE), (3, Ending.LIVE)])
def test_one_of_several_that_served_goes(appliance: Run, three: Path, others: tuple[int, Ending]) -> None:
    tell(three, (1, Ending.LIVE), others)
    assert appliance("model", "uninstall", "digits/1")[0] == Exit.OK


def test_where_an_operator_went_back_from_there_is_no_way_to(appliance: Run, three: Path) -> None:
    """Version 3 stands in for nothing then."""
    tell(three, (2, Ending.LIVE), (3, Ending.LIVE))
    assert appliance("model", "rollback", "digits")[0] == Exit.OK
    assert appliance("model", "want", "digits/1")[0] == Exit.OK
    assert appliance("model", "uninstall", "digits/2")[0] == Exit.REFUSED


def test_all_of_a_model_goes_and_what_never_served_does(appliance: Run, three: Path) -> None:
    assert appliance("model", "uninstall", "digits/1")[0] == Exit.OK, "nothing has served here"
    tell(three, (2, Ending.LIVE))
    assert appliance("model", "uninstall", "digits")[0] == Exit.OK
