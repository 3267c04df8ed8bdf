"""Forms of earlier versions, from which that of the next one may be made: of the same model, vouched for by the same,
and sealed by this box."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.domain.model import ModelVersion
from appliance.domain.regular_file import read_file
from appliance.runtimes.runtime import ENGINE_FILE, LIKE_FILE, Donor, RuntimeSettings
from appliance.workers.child.form_builder import build_form
from appliance.workers.daemon.forms_on_disk import for_worker, take_up_form
from appliance.workers.forms import (
    BUILDING,
    FAMILY_FILE,
    FORM_FILE,
    REFUSED_FILE,
    SEAL_FILE,
    WEIGHTS_FILE,
)
from appliance.workers.jail.access import access_to, access_to_build
from appliance.workers.jail.support import Support
from appliance.workers.port import FormBuilt, FormVerdict
from appliance.workers.seal import kin_of
from tests.workers.test_sealed_forms import Box, Engines, form_of
from tests.workers.transformers import flip_bit

OTHER = "e" * 64


@pytest.fixture(autouse=True)
def keeps_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the kernel is on which this is tried."""
    monkeypatch.setattr("appliance.workers.seal.kernel_support", lambda: Support(landlock=1, filter=True))


@pytest.fixture
def family(tmp_path: Path) -> Box:
    """A box with a form from which others may be made."""
    box = Box(tmp_path / "serve", Engines(like="abc"))
    box.build()
    return box


def next_version(box: Box, **changes: object) -> ModelVersion:
    return replace(box.version, version=2, digest=OTHER, **changes)  # type: ignore[arg-type]


def build_next(box: Box, **changes: object) -> tuple[Donor, ...]:
    """What a builder of the next version is given, which the daemon looked for before."""
    version = next_version(box, **changes)
    box.version = replace(version, kin=kin_of(version))
    box.build()
    return box.runtime.donors[-1]


def test_a_form_of_an_earlier_version_is_given_to_who_builds_the_next(family: Box) -> None:
    before = form_of(family)
    assert LIKE_FILE not in os.listdir(before)
    (donor,) = build_next(family)
    assert donor.path == str(before / ENGINE_FILE)
    assert read_file(donor.path, 100, donor.digest) == b"an engine"
    assert donor.like == "abc"
    assert family.loads_packed()
    assert kin_of(next_version(family)) == (before.name,)


def test_a_version_is_not_its_own_kin(family: Box) -> None:
    assert kin_of(family.version) == ()


@pytest.mark.parametrize(
    "changes", [{"name": "another"}, {"trust": "key 0123"}, {"forms": ""}, {"digest": ""}]
)
def test_forms_of_other_models_and_of_other_people_are_not_given(
    family: Box, changes: dict[str, str]
) -> None:
    assert kin_of(next_version(family))
    assert kin_of(replace(next_version(family), **changes)) == ()  # type: ignore[arg-type]


def test_a_form_that_nothing_is_like_is_of_no_family(tmp_path: Path) -> None:
    box = Box(tmp_path / "serve")
    box.build()
    assert not (form_of(box) / FAMILY_FILE).exists()
    assert kin_of(next_version(box)) == ()


def test_a_builder_that_says_whose_its_form_is_says_nothing(family: Box) -> None:
    """What it leaves under that name is no file of a form."""
    version = next_version(family)
    name, nbytes, _ = build_form(for_worker(version), family.runtime, RuntimeSettings(), family.judge)
    (family.forms / f"{BUILDING}{name}" / FAMILY_FILE).write_bytes(b"mine")
    built = take_up_form(version, FormBuilt(1, 1, name, nbytes, 1, None))
    assert built is not None
    assert "other files" in str(built.failure)


@pytest.mark.parametrize("file", [FAMILY_FILE, FORM_FILE])
def test_a_family_that_does_not_hold_is_none(family: Box, file: str) -> None:
    flip_bit(str(form_of(family) / file), 3)
    assert kin_of(next_version(family)) == ()


@pytest.mark.parametrize("file", [SEAL_FILE, FORM_FILE])
def test_what_does_not_hold_any_more_when_it_is_built_is_not_given(family: Box, file: str) -> None:
    version = next_version(family)
    family.version = replace(version, kin=kin_of(version))
    flip_bit(str(form_of(family) / file), 3)
    family.build()
    assert family.runtime.donors[-1] == ()


def test_what_is_tied_to_something_else_is_not_given(family: Box) -> None:
    family.runtime.identity = "TensorRT 11.5, driver 580, GPU-1"
    assert build_next(family) == ()


def test_what_was_refused_is_not_given_even_without_its_mark(family: Box) -> None:
    form = form_of(family)
    engine = (form / ENGINE_FILE).read_bytes()
    family.judge(form.name, FormVerdict.REFUSED, "golden case 'a': wrong")
    (form / REFUSED_FILE).unlink()
    (form / ENGINE_FILE).write_bytes(engine)
    (form / WEIGHTS_FILE).write_bytes(b"")
    assert build_next(family) == ()


def test_without_landlock_there_is_no_family(family: Box, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("appliance.workers.seal.kernel_support", lambda: Support(landlock=0, filter=True))
    assert kin_of(next_version(family)) == ()


def test_a_builder_may_read_the_forms_of_its_kin_and_who_serves_may_not(family: Box) -> None:
    version = replace(next_version(family), kin=("one", "two"))
    extra = {str(family.forms / name) for name in version.kin}
    assert set(access_to_build(version).reads) == {*access_to(version).reads, *extra}
    assert not extra & set(access_to(version).reads)
