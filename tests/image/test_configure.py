"""A configuration that a box is given is taken as it is, or not at all, and the fleet hears which."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.cli.main import main
from appliance.sync.box import machine_problems


@pytest.fixture(name="state")
def _state(tmp_path: Path) -> Path:
    (state := tmp_path / "state").mkdir()
    (tmp_path / "now.toml").write_text(f'state_dir = "{state}"\n')
    return state


def give(folder: Path, text: str) -> int:
    (folder / "given.toml").write_text(text)
    return main(["image", "configure", str(folder / "given.toml"), "--config", str(folder / "now.toml")])


def test_a_good_one_is_in_force_and_readable(tmp_path: Path, state: Path) -> None:
    text = f'state_dir = "{state}"\n[log]\nlevel = "debug"\n'
    assert give(tmp_path, text) == 0
    assert (tmp_path / "now.toml").read_text() == text
    assert (tmp_path / "now.toml").stat().st_mode & 0o777 == 0o644
    assert sorted(path.name for path in tmp_path.iterdir()) == ["given.toml", "now.toml", "state"]


def test_a_wrong_one_changes_nothing_and_the_fleet_hears_all_that_is_wrong_until_one_is_taken(
    tmp_path: Path, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = (tmp_path / "now.toml").read_text()
    assert give(tmp_path, f'state_dir = "{state}"\nnonsense = 1\n[grpc]\naddresses = ["here"]\n') != 0
    said = capsys.readouterr().err
    (told,) = machine_problems(state)
    for text in (said, told):
        assert "the one before stays" in text
        assert "nonsense" in text
        assert "grpc.addresses" in text
    assert (tmp_path / "now.toml").read_text() == before
    assert give(tmp_path, before) == 0
    assert machine_problems(state) == ()


def test_one_that_is_no_toml_is_refused_and_one_before_that_is_broken_is_no_obstacle(
    tmp_path: Path, state: Path
) -> None:
    (tmp_path / "now.toml").write_text("= broken")
    assert give(tmp_path, "\0") != 0
    assert (tmp_path / "now.toml").read_text() == "= broken"
    assert give(tmp_path, f'state_dir = "{state}"\n') == 0
