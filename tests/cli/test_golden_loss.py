"""A version without a golden set, where one before it has one: told by what packs, installs and wants it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from tests.cli.conftest import Run
from tests.tools.models import mlp_home

TOLD = (
    "mlp/{} has no golden set, and {} has one: nothing holds the answers of mlp/{} to what is known to be right. "
    "'appliance model golden' makes a set of the model, and 'pack' takes it along.\n"
)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """Versions 1, 2 and 3; the first has a golden set, the second one that only promises."""
    home = mlp_home(tmp_path / "source")
    assert main(["model", "golden", str(home)]) == Exit.OK
    for number in (2, 3):
        shutil.copytree(home / "1", home / str(number), ignore=shutil.ignore_patterns("golden"))
    return home


def packed(home: Path, number: int, *words: str) -> str:
    target = home.parent / f"mlp-{number}.model"
    assert (
        main(["model", "pack", str(home / str(number)), "--no-proof", "-o", str(target), *words]) == Exit.OK
    )
    return str(target)


def test_a_package_without_a_set_is_told_of_where_one_before_it_has_one(
    home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    capsys.readouterr()
    packed(home, 1)
    told = capsys.readouterr()
    assert "golden     boxes hold its answers to its golden set" in told.out
    assert told.err == ""
    packed(home, 3)
    told = capsys.readouterr()
    assert "golden     none: answers are held to nothing" in told.out
    assert told.err == TOLD.format(3, "version 1 of its directory", 3)
    packed(home, 2, "--promise", "1:1000000", "--json")
    told = capsys.readouterr()
    assert json.loads(told.out)["golden"] is False, "a promise says nothing of answers"
    assert told.err == TOLD.format(2, "version 1 of its directory", 2)
    shutil.move(home / "1" / "golden", home / "golden")
    packed(home, 3, "--force", "--json")
    told = capsys.readouterr()
    assert json.loads(told.out)["golden"] is True, "a set by the versions is of all of them"
    assert told.err == ""


def test_a_version_that_is_wanted_without_a_set_is_told_of(
    appliance: Run, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, three = packed(home, 1), packed(home, 2, "--promise", "1:1000000"), packed(home, 3)
    capsys.readouterr()
    assert "golden" not in appliance("model", "install", one)[1]
    assert appliance("model", "install", two)[1].endswith(TOLD.format(2, "mlp/1", 2))
    assert "golden" not in appliance("model", "install", three, "--no-want")[1]
    assert appliance("model", "want", "mlp/3")[1].endswith(TOLD.format(3, "mlp/1", 3))
    assert "golden" not in appliance("model", "want", "mlp/1")[1]


def test_where_none_had_a_set_nothing_is_lost(appliance: Run, home: Path) -> None:
    for package in [packed(home, number) for number in (2, 3)]:
        assert "has no golden set" not in appliance("model", "install", package)[1]
