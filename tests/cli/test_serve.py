"""``appliance serve``: flags over the file, and what it says once it serves."""

from __future__ import annotations

import argparse
import os
import pty
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.main import main
from appliance.cli.serve import add_arguments, configured, example, welcome
from appliance.config.grpc import GrpcConfig
from appliance.config.listening import FrontEndKind
from appliance.config.telemetry import LogFormat
from appliance.domain.model import VersionState
from appliance.engine.port import IndexEntry
from appliance.frontend.port import Bound

if TYPE_CHECKING:
    from tests.appliance_process import ApplianceProcess


def arguments(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


def test_flags_win_over_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "a.toml"
    for name in ("from-file", "m"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path)
    file.write_text('models = "from-file"\n[grpc]\naddresses = ["127.0.0.1:1"]\nstream_window = 3\n')
    config = configured(arguments("--config", str(file), "--grpc", "127.0.0.1:2", "--http", "[::1]:3"))
    assert config.models == "from-file"
    assert (config.grpc.addresses, config.grpc.stream_window) == (("127.0.0.1:2",), 3)
    assert config.http.addresses == ("[::1]:3",)
    words = ("--models", "m", "--log-format", "json", "--frontend", "python")
    config = configured(arguments("--config", str(file), *words))
    assert (config.models, config.log.format) == ("m", LogFormat.JSON)
    assert config.frontend.kind is FrontEndKind.PYTHON


def test_a_bad_file_lists_its_problems(tmp_path: Path) -> None:
    file = tmp_path / "a.toml"
    file.write_text("[grpc]\nx = 1\ny = 2\n")
    with pytest.raises(CommandFailed, match=r"grpc\.x.*\n.*grpc\.y"):
        configured(arguments("--config", str(file)))


class Started:
    front_end = FrontEndKind.PYTHON
    bound = Bound(("127.0.0.1:8001",), ("127.0.0.1:8000",))

    def __init__(self, *index: IndexEntry) -> None:
        self.index = index


def entry(name: str, state: VersionState = VersionState.READY, reason: str = "") -> IndexEntry:
    return IndexEntry(name=name, version="1", state=state, reason=reason)


def test_the_welcome_names_what_is_ready_and_what_is_not(tmp_path: Path) -> None:
    started: Any = Started(entry("good"), entry("bad", VersionState.UNAVAILABLE, "no file"))
    text = welcome(started, str(tmp_path), GrpcConfig())
    assert "Serving gRPC on 127.0.0.1:8001, HTTP on 127.0.0.1:8000 (python front end)" in text
    assert "Ready: good/1" in text
    assert "Not ready: bad/1: no file" in text
    assert "infer good --zeros" in text


def test_what_the_log_has_told_on_the_same_terminal_is_told_by_name(tmp_path: Path) -> None:
    broken = [entry(name, VersionState.UNAVAILABLE, "no file") for name in ("bad", "worse")]
    started: Any = Started(*broken, entry("slow", VersionState.LOADING), entry("good"))
    lines = welcome(started, str(tmp_path), GrpcConfig(), logged=True).splitlines()
    assert [line for line in lines if line.startswith("Not ready")] == [
        "Not ready: slow/1: is still being loaded",
        "Not ready, for reasons that the log above gives: bad/1, worse/1",
    ]


def on_terminal(models: Path, *words: str) -> str:
    """What ``serve`` writes to a terminal until it serves."""
    ours, its = pty.openpty()
    code = "import sys; from appliance.cli.main import main; sys.exit(main())"
    ports = ("--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0")
    command = [sys.executable, "-c", code, "serve", "--models", str(models), *ports, *words]
    with open(ours, "rb", buffering=0) as terminal:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=its, stderr=its)
        os.close(its)
        said = b""
        try:
            while b"Try:" not in said:
                said += terminal.read(1 << 16)
        finally:
            process.kill()
            process.wait()
    return said.decode()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ((), 1),
        (("--log-format", "console"), 1),
        (("--log-format", "json"), 2),
        (("--config", "quiet.toml"), 1),
    ],
)
def test_why_a_model_does_not_serve_is_told_once_on_a_terminal(
    model_directory: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, words: tuple[str, ...], told: int
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quiet.toml").write_text('[log]\nlevel = "error"\n')
    models = model_directory("mlp")
    (models / "bad" / "1").mkdir(parents=True)
    (models / "bad" / "1" / "model.onnx").write_text("x")
    said = on_terminal(models, *words)
    assert said.count("is not an ONNX model") == told
    assert "bad/1" in said.partition("Not ready")[2]


def test_a_thousand_models_do_not_flood_the_screen(tmp_path: Path) -> None:
    many = [entry(f"m{number}") for number in range(1_000)]
    broken = [entry(f"b{number}", VersionState.UNAVAILABLE, "x") for number in range(1_000)]
    started: Any = Started(*many, *broken)
    text = welcome(started, str(tmp_path), GrpcConfig())
    assert "and 980 more" in text
    assert len(text.splitlines()) < 30


def test_no_model_is_said(tmp_path: Path) -> None:
    started: Any = Started()
    assert "No model" in welcome(started, str(tmp_path), GrpcConfig())


def test_the_line_to_copy_uses_a_golden_picture(tmp_path: Path) -> None:
    golden = tmp_path / "my models" / "digits" / "golden"
    golden.mkdir(parents=True)
    (golden / "b.png").touch()
    (golden / "a.png").touch()
    line = example("digits", tmp_path / "my models", "127.0.0.1:9")
    assert shlex.split(line)[1:] == [
        "infer",
        "digits",
        "--input",
        f"@{golden / 'a.png'}",
        "--url",
        "127.0.0.1:9",
    ]


def test_the_line_to_copy_works(serve: Any, model_directory: Any, capsys: pytest.CaptureFixture[str]) -> None:
    process: ApplianceProcess = serve(model_directory("mlp"))
    process.wait_log("Try:")
    (line,) = [line for line in process.log().splitlines() if line.startswith("Try:")]
    words = shlex.split(line.removeprefix("Try:"))
    assert main(words[1:]) == Exit.OK
    assert "mlp version 1" in capsys.readouterr().out


def test_a_directory_that_is_not_there_is_the_operators(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    serving = ["serve", "--models", str(tmp_path / "none"), "--grpc", "127.0.0.1:0", "--http", "127.0.0.1:0"]
    assert main(serving) == Exit.USAGE
    assert str(tmp_path / "none") in capfd.readouterr().err
