"""Finding the commands below ``appliance model``, and making keys."""

from __future__ import annotations

import resource
import stat
from pathlib import Path

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import MODEL, main
from appliance.package.keys import KINDS, read_public_key


def test_no_command_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model"]) == Exit.USAGE
    shown = capsys.readouterr().out
    assert all(command in shown for command in MODEL.commands)
    assert "exit status" in shown
    assert "appliance model COMMAND" in shown


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "keygne"]) == Exit.USAGE
    assert "appliance model: 'keygne' is not a command; did you mean 'keygen'" in capsys.readouterr().err


@pytest.mark.parametrize("command", list(MODEL.commands))
def test_each_command_has_help_with_exit_statuses(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["model", command, "--help"])
    assert ended.value.code == Exit.OK
    shown = capsys.readouterr().out
    assert "exit status" in shown
    assert f"usage: appliance model {command}" in shown


@pytest.mark.parametrize("kind", KINDS)
def test_keygen(kind: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "signing.pem"
    assert main(["model", "keygen", str(place), "--kind", kind]) == Exit.OK
    assert stat.S_IMODE(place.stat().st_mode) == 0o600
    public = read_public_key(tmp_path / "signing.pem.pub")
    assert f"key id {public.keyid}" in capsys.readouterr().out
    before = place.read_bytes()
    assert main(["model", "keygen", str(place)]) == Exit.USAGE
    assert "appliance model keygen: " in capsys.readouterr().err
    assert place.read_bytes() == before


def test_keygen_makes_both_files_or_none(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place, public = tmp_path / "site.key", tmp_path / "site.key.pub"
    public.write_text("another's")
    assert main(["model", "keygen", str(place)]) == Exit.USAGE
    assert "site.key.pub' is there already" in capsys.readouterr().err
    assert (place.exists(), public.read_text()) == (False, "another's")
    public.unlink()
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50, limit[1]))
    try:
        assert main(["model", "keygen", str(place)]) == Exit.USAGE
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
    assert "site.key' cannot be written: File too large" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
    assert main(["model", "keygen", str(place)]) == Exit.OK
