"""A token that is made where the controller is: the way in where all are lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.controller import tokens
from appliance.controller.by_hand import desk_of
from appliance.controller.home import Settings, make_home
from appliance.controller.server import wall_ms
from appliance.domain.manifest import NAME_RULE

SETTINGS = Settings(url="https://127.0.0.1:1", address="127.0.0.1:0")


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    make_home(tmp_path / "controller", SETTINGS, [], [], 0)  # its own admin's token is long over
    return tmp_path / "controller"


def test_it_lets_in_with_its_role_and_replaces_the_one_before(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    for role in ("admin", "viewer"):
        assert main(["controller", "token", str(folder), "--person", "ann", "--role", role]) == 0
        made.append(capsys.readouterr().out.strip())
    with desk_of(folder) as desk, desk.store.transaction() as rows:
        first, second = (tokens.person(rows, each, wall_ms()) for each in made)
        assert first is None
        assert second is not None
        assert second.role == "viewer"
        assert tokens.person(rows, made[1], wall_ms() + 25 * tokens.HOUR_MS) is None, "a day is over"


def test_what_makes_none_is_told_and_changes_nothing(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("A nn", ""):
        assert main(["controller", "token", str(folder), "--person", name]) == 2
        assert f"cannot be called '{name}'; take a name of {NAME_RULE}" in capsys.readouterr().err
    with desk_of(folder) as desk, desk.store.transaction() as rows:
        name, _ = tokens.make_enrolment(rows, "https://a", b"", "ann", wall_ms() + 1000)
    assert main(["controller", "token", str(folder), "--person", name]) == 2
    assert "box's token" in capsys.readouterr().err
