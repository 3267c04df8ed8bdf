"""What a command is told to read and is not there: a mistake of the command line, and no verdict on anything."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from tests.cli.conftest import Pack

COMMANDS = (
    "infer mlp --ca NONE",
    "status --ca NONE",
    "trace --file NONE",
    "model pack NONE -o OUT",
    "model pack MODEL -o OUT --key NONE",
    "model pack MODEL -o OUT --measured NONE",
    "model pack MODEL -o OUT --provenance @NONE",
    "model verify NONE",
    "model verify PACKAGE --trusted-key NONE",
    "model inspect NONE",
    "model import NONE -o OUT",
    "model sign NONE --key KEY",
    "model sign PACKAGE --key NONE",
    "model sign PACKAGE --key NONE --secret-file NONE",
    "model install NONE --state-dir STATE",
    "model load mlp --socket STATE --file 1/m=NONE",
    "model golden NONE -o OUT",
    "model golden MODEL -o OUT --case NONE.npz",
    "model bench NONE",
    "model optimise NONE -o OUT",
    "runtime check onnx --model NONE",
    "fleet root make --previous NONE -o OUT",
    "fleet root make --key NONE -o OUT",
    "fleet root make --key KEY.pub --online NONE -o OUT",
    "fleet root make --key KEY.pub --package-key NONE -o OUT",
    "fleet root sign NONE --key KEY",
    "fleet root sign KEY --key NONE",
    "fleet root show NONE",
    "fleet root get --controller NONE -o OUT",
    "fleet root publish NONE --controller STATE",
    "fleet root publish KEY --controller NONE",
    "sync enrol @NONE --state-dir STATE",
    "bundle export OUT --controller NONE",
    "bundle inspect NONE",
    "controller init OUT --url https://localhost:1 --package-key NONE",
    "controller serve NONE",
    "controller token NONE --person me",
    "config check NONE",
    "config show NONE",
)


@pytest.mark.parametrize("command", COMMANDS)
def test_a_missing_file_is_a_mistake_of_the_command_line(
    command: str,
    tmp_path: Path,
    pack: Pack,
    digits: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["model", "keygen", "KEY"]) == Exit.OK
    Path("STATE").mkdir()
    there = {"PACKAGE": str(pack()), "MODEL": str(digits)}
    capsys.readouterr()
    assert main([there.get(word, word) for word in command.split()]) == Exit.USAGE
    told = capsys.readouterr()
    assert "NONE" in told.err
    assert "[Errno" not in told.err, "the system's words alone, and the place once"
    assert not told.out
