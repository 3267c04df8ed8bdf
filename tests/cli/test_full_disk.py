"""A disk that is full, met by every command that writes: which one, how much is free, what frees some."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.config.telemetry import TraceConfig
from appliance.store.full_disk import WAY_OUT
from appliance.telemetry.trace import open_tracer
from models.generate import write_model
from tests.cli.conftest import Pack, Run
from tests.store.test_disks import fill_up, may_mount, mount

DIGITS = Path(__file__).parents[2] / "models" / "digits"

pytestmark = pytest.mark.skipif(not may_mount(), reason="mounting needs root, and leave to do it")


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of one mebibyte."""
    place = tmp_path / "disk"
    place.mkdir()
    mount("-t", "tmpfs", "-o", "size=1m", "none", str(place))
    yield place
    subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)


@pytest.fixture
def state(disk: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLUMNS", "200")
    return disk / "state"


@pytest.mark.parametrize(
    "command",
    [
        ["want", "digits/1"],
        ["rollback", "digits"],
        ["trial", "digits/1", "--canary", "10"],
        ["pin", "digits/1"],
        ["uninstall", "digits/1"],
        ["install"],
    ],
    ids=lambda words: words[0],
)
def test_commands_on_a_store_say_what_is_full(
    appliance: Run, pack: Pack, disk: Path, command: list[str]
) -> None:
    for version in (1, 2):
        assert appliance("model", "install", str(pack(version)))[0] == Exit.OK
    package = pack(3)
    fill_up(disk / "filler")
    status, _, err = appliance("model", *command, *([str(package)] if command == ["install"] else []))
    assert status == Exit.REFUSED
    assert f"No space left on device: 0 B are free on the disk of '{disk / 'state'}', " in err
    assert " are needed; " in err
    assert err.endswith(f"{WAY_OUT}\n")
    assert appliance("store", "gc")[0] == appliance("store", "usage")[0] == Exit.OK, "needs no room"


@pytest.mark.parametrize("command", ["pack", "keygen", "golden", "import", "optimise"])
def test_commands_that_make_files_say_what_is_full(
    disk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    if command in ("pack", "optimise"):
        pytest.importorskip("onnx")
    source = str(DIGITS if command == "optimise" else write_model("mlp", tmp_path / "models"))
    words = {
        "pack": [source, "-o", str(disk / "m.model")],
        "keygen": [str(disk / "site.key")],
        "golden": [source, "--random", "2", "-o", str(disk / "golden")],
        "import": [source, "-o", str(disk / "models")],
        "optimise": [source, "-o", str(disk / "variants")],
    }[command]
    fill_up(disk / "filler")
    assert main(["model", command, *words]) in (Exit.USAGE, Exit.REFUSED)
    told = capsys.readouterr().err
    assert f"No space left on device: 0 B are free on the disk of '{disk}" in told
    assert told.endswith(f"{WAY_OUT}\n")
    assert source not in told, "what was read is not what is full"


def test_traces_that_are_lost_to_a_full_disk_are_told(disk: Path) -> None:
    said: list[tuple[str, str]] = []
    config = TraceConfig(one_in=1, file=str(disk / "traces.jsonl"))
    tracer = open_tracer(config, lambda event, error: said.append((event, error)))
    assert tracer is not None
    fill_up(disk / "filler")
    sink = tracer._sink
    for _ in range(3):
        sink.write(bytes(8192))
    sink.close(20)
    ((event, error),) = said
    assert event == "traces cannot be written"
    assert error.endswith(WAY_OUT)
