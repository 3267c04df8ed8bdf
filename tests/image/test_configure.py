"""A configuration that a box is given is taken as it is, or not at all, and the fleet hears which."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from appliance import configuration
from appliance.cli.main import main
from appliance.config.tree import ApplianceConfig
from appliance.package.keys import make_key, public_pem
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


def test_what_was_checked_is_what_is_taken(
    tmp_path: Path, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stick is whose hands it is in: it may give other bytes whenever it is read again."""
    harmless, other = f'state_dir = "{state}"\n', f'state_dir = "{state}"\n[workers]\nconfinement = "off"\n'
    check = configuration.load_for_next_start

    def swapped(path: Path) -> ApplianceConfig:
        (tmp_path / "given.toml").write_text(other)
        return check(path)

    monkeypatch.setattr(configuration, "load_for_next_start", swapped)
    assert give(tmp_path, harmless) == 0
    assert (tmp_path / "now.toml").read_text() == harmless


def test_keys_are_looked_for_where_the_configuration_will_be(tmp_path: Path, state: Path) -> None:
    """With keys that only the stick has, the service would not start once it is taken out."""
    (stick := tmp_path / "stick").mkdir()
    given = stick / "appliance.toml"
    given.write_text(f'state_dir = "{state}"\n[packages]\ntrusted_keys = ["site.pub"]\n')
    words = ["image", "configure", str(given), "--config", str(tmp_path / "now.toml")]
    _, public = make_key("ed25519")
    (stick / "site.pub").write_bytes(public_pem(public))
    before = (tmp_path / "now.toml").read_text()
    assert main(words) != 0
    assert (tmp_path / "now.toml").read_text() == before
    (stick / "site.pub").rename(tmp_path / "site.pub")
    assert main(words) == 0
    assert (tmp_path / "now.toml").read_text() == given.read_text()


@pytest.mark.parametrize("what", ["huge", "pipe", "directory", "device"])
def test_what_is_no_file_of_a_sensible_size_is_refused_at_once(
    tmp_path: Path, state: Path, what: str
) -> None:
    given = tmp_path / "given"
    if what == "huge":
        given.touch()
        os.truncate(given, 1 << 40)
    elif what == "pipe":
        os.mkfifo(given)
    elif what == "directory":
        given.mkdir()
    else:
        given.symlink_to("/dev/zero")
    assert main(["image", "configure", str(given), "--config", str(tmp_path / "now.toml")]) != 0
    assert "the one before stays" in machine_problems(state)[0]


def test_what_the_fleet_is_told_has_no_control_characters(tmp_path: Path, state: Path) -> None:
    assert give(tmp_path, '"a\\n\\u001b[2Jfine" = 1\n') != 0
    assert machine_problems(state)[0].isprintable()
