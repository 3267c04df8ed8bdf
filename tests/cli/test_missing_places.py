"""Directories that a command is given and that are not there."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from tests.cli.conftest import Pack


def test_what_was_never_there_did_not_vanish(
    tmp_path: Path, pack: Pack, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its parents are not made: one of them may be a disk that is not mounted."""
    state = tmp_path / "none" / "x" / "y"
    words = ["model", "install", str(pack()), "--allow-unsigned", "--state-dir", str(state)]
    assert main(words) == Exit.USAGE
    assert f"there is no '{tmp_path / 'none'}'; make it, or mount its disk" in capsys.readouterr().err
    assert main(["serve", "--state-dir", str(state)]) == Exit.USAGE
    assert f"there is no '{state}'; make it" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("model", "pack", "m"), ("model", "import", "m"), ("model", "golden", "m"), ("model", "bench", "m"),
        ("model", "optimise", "m"), ("model", "verify", "m"), ("model", "inspect", "m"), ("model", "install", "m"),
        ("status",), ("sync", "status"), ("serve",),
    ],
    ids=" ".join,
)  # fmt: skip
@pytest.mark.parametrize("file", ["none.toml", "."])
def test_a_configuration_that_cannot_be_read_is_no_verdict(
    words: tuple[str, ...],
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--config", file]) == Exit.USAGE
    assert f"{file}: cannot be read: " in capsys.readouterr().err
