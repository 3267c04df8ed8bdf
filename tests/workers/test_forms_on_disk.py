"""What the daemon does on the disk by what workers say of packed forms."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.domain.model import ModelVersion
from appliance.runtimes.runtime import GRAPH_FILE
from appliance.workers.daemon.forms_on_disk import mark_form, take_up_form
from appliance.workers.forms import (
    ANEW_FILE,
    DROPPED_FILE,
    FORM_BYTES_MAX,
    FORM_FILE,
    REFUSED_FILE,
    WEIGHTS_FILE,
    make_site,
)
from appliance.workers.jail.access import longest_file
from appliance.workers.messages import Load
from appliance.workers.port import FormBuilt, FormJudged, FormVerdict
from tests.workers.bench import fake

DIGEST = "d" * 64
NAME = f"{DIGEST}-0123456789abcdef"


@pytest.mark.parametrize(
    ("verdict", "anew", "left"),
    [
        (FormVerdict.PROVEN, True, [FORM_FILE]),
        (FormVerdict.DROPPED, False, [DROPPED_FILE, FORM_FILE]),
        (FormVerdict.DROPPED, True, [ANEW_FILE, FORM_FILE, REFUSED_FILE]),
        (FormVerdict.REFUSED, False, [FORM_FILE, REFUSED_FILE]),
    ],
)
def test_verdicts_leave_their_marks(
    tmp_path: Path, verdict: FormVerdict, anew: bool, left: list[str]
) -> None:
    (tmp_path / NAME).mkdir()
    for name in (FORM_FILE, *([ANEW_FILE] if anew else [])):
        (tmp_path / NAME / name).touch()
    version = replace(fake(), digest=DIGEST, forms=str(tmp_path))
    mark_form(Load(2, version), FormJudged(1, 2, NAME, verdict, "why"))
    assert sorted(os.listdir(tmp_path / NAME)) == left


def test_a_form_that_is_not_there_is_not_marked(tmp_path: Path) -> None:
    version = replace(fake(), digest=DIGEST, forms=str(tmp_path))
    mark_form(Load(2, version), FormJudged(1, 2, NAME, FormVerdict.REFUSED, "why"))
    assert os.listdir(tmp_path) == []


def built_in(forms: Path, *files: str) -> ModelVersion:
    """A version, with these files where its form is built."""
    site = Path(make_site(str(forms), NAME))
    for name in files:
        (site / name).write_bytes(b"123")
    return replace(fake(), digest=DIGEST, forms=str(forms))


def test_what_was_built_gets_its_name_and_what_was_not_goes(tmp_path: Path) -> None:
    version = built_in(tmp_path, FORM_FILE, GRAPH_FILE)
    built = FormBuilt(1, 2, NAME, 9, 1, None)
    for _ in range(2):
        assert take_up_form(version, built) == built._replace(nbytes=6)
        assert os.listdir(tmp_path) == [NAME]
        make_site(str(tmp_path), NAME)
    for said in (FormBuilt(1, 2, "", 0, 1, "no"), None):
        built_in(tmp_path, FORM_FILE)
        assert take_up_form(version, said) == said
        assert os.listdir(tmp_path) == [NAME]


def test_a_form_that_was_only_said_to_be_built_is_none(tmp_path: Path) -> None:
    version = built_in(tmp_path)
    said = take_up_form(version, FormBuilt(1, 2, NAME, 9, 1, None))
    assert said is not None
    assert (said.name, said.nbytes) == ("", 0)
    assert "could not be put into its place" in str(said.failure)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("what", ["another file", "a link", "too much"])
def test_what_no_builder_leaves_is_no_form(tmp_path: Path, what: str) -> None:
    version = built_in(tmp_path, FORM_FILE, GRAPH_FILE, *(["more"] if what == "another file" else []))
    site = tmp_path / f".building-{NAME}"
    if what == "a link":
        (site / WEIGHTS_FILE).symlink_to("/etc/hostname")
    elif what == "too much":
        os.truncate(site / GRAPH_FILE, longest_file(version) + FORM_BYTES_MAX - 2)
    said = take_up_form(version, FormBuilt(1, 2, NAME, 9, 1, None))
    assert said is not None
    assert "other files, or larger ones" in str(said.failure)
    assert os.listdir(tmp_path) == []
