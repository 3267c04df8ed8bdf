"""What the daemon does on the disk by what workers say of packed forms."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.workers.daemon.forms_on_disk import mark_form, take_up_form
from appliance.workers.forms import ANEW_FILE, DROPPED_FILE, FORM_FILE, REFUSED_FILE, make_site
from appliance.workers.messages import Build, Load
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


def test_what_was_built_gets_its_name_and_what_was_not_goes(tmp_path: Path) -> None:
    asked = Build(2, replace(fake(), digest=DIGEST, forms=str(tmp_path)))
    Path(make_site(str(tmp_path), NAME), FORM_FILE).touch()
    built = FormBuilt(1, 2, NAME, 9, 1, "")
    assert take_up_form(asked, built) == built
    assert os.listdir(tmp_path) == [NAME]
    make_site(str(tmp_path), NAME)
    failed = FormBuilt(1, 2, "", 0, 1, "no")
    assert take_up_form(asked, failed) == failed
    assert os.listdir(tmp_path) == [NAME]


def test_a_form_that_was_only_said_to_be_built_is_none(tmp_path: Path) -> None:
    asked = Build(2, replace(fake(), digest=DIGEST, forms=str(tmp_path)))
    make_site(str(tmp_path), NAME)
    said = take_up_form(asked, FormBuilt(1, 2, NAME, 9, 1, ""))
    assert (said.name, said.nbytes) == ("", 0)
    assert "could not be put into its place" in said.failure
    assert os.listdir(tmp_path) == []
