"""``infer``, ``status`` and ``top`` against a running appliance."""

from __future__ import annotations

import json
import os
import pty
import shutil
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from appliance.cli.failure import Exit, printable
from appliance.cli.main import main
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.tools.models import photo_model, write

DIGITS = Path(__file__).resolve().parents[2] / "models" / "digits"
SAMPLES = (
    "add_sub",
    "identity_bytes",
    "identity_fp16",
    "identity_bf16",
    "scalar",
    "variable",
    "odd_names",
    "not_onnx",
)

PLAIN_TERMINAL = {**os.environ, "TERM": "xterm"}


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    models = tmp_path_factory.mktemp("models")
    shutil.copytree(DIGITS, models / "digits")
    for name in SAMPLES:
        write_model(name, models)
    (models / "photo" / "1").mkdir(parents=True)
    write(models / "photo" / "1" / "model.onnx", photo_model())
    with ApplianceProcess(models) as process:
        yield process.wait_ready()


class Asked:
    """What a command printed and how it ended."""

    def __init__(self, status: int, out: str, err: str) -> None:
        self.status = status
        self.out = out
        self.err = err

    def json(self) -> Any:
        assert self.status == Exit.OK, self.err
        return json.loads(self.out)


@pytest.fixture
def infer(running: ApplianceProcess, capsys: pytest.CaptureFixture[str]) -> Any:
    def ask(*words: str) -> Asked:
        status = main(["infer", *words, "--url", running.grpc])
        captured = capsys.readouterr()
        return Asked(status, captured.out, captured.err)

    return ask


def test_a_golden_picture_is_recognised(infer: Any) -> None:
    answer = infer("digits", "--input", f"image=@{DIGITS}/golden/3-0003.png")
    assert answer.status == Exit.OK
    assert "three" in answer.out
    assert "digits version 2" in answer.out


def test_classes_as_json(infer: Any) -> None:
    answer = infer("digits", "--input", f"@{DIGITS}/golden/7-0044.png", "--classes", "2", "--json").json()
    (row,) = answer["outputs"][0]["classes"]
    assert row[0]["index"] == 7
    assert row[0]["label"] == "seven"
    assert len(row) == 2


@pytest.mark.parametrize(
    ("size", "rest"), [((16, 16), ""), ((30, 20), "; its proportions changed"), ((8, 8), None)]
)
def test_that_a_picture_was_fitted_is_said(
    infer: Any, tmp_path: Path, size: tuple[int, int], rest: str | None
) -> None:
    picture = tmp_path / "a\nb.png"
    Image.new("L", size).save(picture)
    width, height = size
    name = printable(str(picture))
    said = f"'{name}' of {width} x {height} pixels was fitted to the 8 x 8 that input 'image' takes{rest}"
    answer = infer("digits", "--input", f"@{picture}")
    assert (answer.status, answer.err.replace("\n", "")) == (Exit.OK, "" if rest is None else said)
    told = infer("digits", "--input", f"@{picture}", "--json")
    assert (told.json()["notes"], told.err) == ([] if rest is None else [said], "")


def test_a_version_and_plain_values(infer: Any, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.zeros((2, 8, 8), np.float32))
    words = ("digits", "--version", "1", "--classes", "0", "--json", "--input", f"image=@{tmp_path}/x.npy")
    answer = infer(*words).json()
    assert answer["version"] == "1"
    assert answer["outputs"][0]["shape"] == [2, 10]
    assert sum(answer["outputs"][0]["data"][1]) == pytest.approx(1.0, abs=1e-3)


def test_zeros_and_pictures_are_as_large_as_is_said(infer: Any, tmp_path: Path) -> None:
    """Where the model takes any size: a detector fails pictures of one pixel, and the answer does not say why."""
    small = infer("photo", "--zeros")
    told = "input 'x': its zeros are of shape [1, 3, 1, 1], where it takes [-1, 3, -1, -1]; --shape makes them larger"
    assert (small.status, " ".join(small.err.split())[: len(told)]) == (Exit.REFUSED, told)
    for shape in ("x=1,3,5,4", "x=3,5,4"):
        answer = infer("photo", "--zeros", "--shape", shape, "--json").json()
        assert (answer["outputs"][0]["shape"], answer["notes"]) == ([1, 3, 6, 5], [])
    Image.new("RGB", (8, 8)).save(tmp_path / "p.png")
    answer = infer("photo", "--input", f"@{tmp_path}/p.png", "--shape", "x=3,5,4", "--json").json()
    assert answer["outputs"][0]["shape"] == [1, 3, 6, 5]
    assert "fitted to the 4 x 5" in answer["notes"][0]
    wrong = infer("photo", "--zeros", "--shape", "x=4,5,4")
    assert wrong.status == Exit.USAGE
    assert "'x' takes shape [-1, 3, -1, -1] (-1 is any size); --shape [4, 5, 4] does not fit it" in wrong.err
    wrong = infer("photo", "--zeros", "--shape", "z=3,5,4")
    assert (wrong.status, "model 'photo' has no input 'z'; it has 'x'" in wrong.err) == (Exit.USAGE, True)


def test_two_inputs_and_one_output(infer: Any) -> None:
    metadata = infer("add_sub", "--zeros", "--json").json()
    names = [output["name"] for output in metadata["outputs"]]
    assert len(names) == 2
    refused = infer("add_sub", "--input", ",".join("1" * 16))
    assert refused.status == Exit.USAGE
    assert "the inputs are" in refused.err
    answer = infer("add_sub", "--zeros", "--output", names[1], "--json").json()
    assert [output["name"] for output in answer["outputs"]] == names[1:]


@pytest.mark.parametrize(
    ("model", "typed", "data"),
    [
        ("identity_bytes", '["\u00e9t\u00e9", "", "a,b"]', [["\u00e9t\u00e9", "", "a,b"]]),
        ("identity_bytes", "x=a=b,c=", [["a=b", "c="]]),
        ("identity_bytes", '"a=b"', [["a=b"]]),
        ("identity_fp16", "0.5,-2", [[0.5, -2.0]]),
        ("identity_bf16", "1.5,-0.25", [[1.5, -0.25]]),
        ("identity_fp16", "[[1],[2]]", [[1.0], [2.0]]),
        ("scalar", "3", 9.0),
    ],
)
def test_values_go_and_come_back(infer: Any, model: str, typed: str, data: Any) -> None:
    assert infer(model, "--input", typed, "--json").json()["outputs"][0]["data"] == data


def test_the_table_shortens_long_answers(infer: Any) -> None:
    answer = infer("variable", "--input", json.dumps([list(range(50))]))
    assert "... 42 more" in answer.out


@pytest.mark.parametrize(
    ("words", "status", "text"),
    [
        (("nope", "--zeros"), Exit.REFUSED, "no such model: 'nope'"),
        (("digits", "--zeros", "--version", "9"), Exit.REFUSED, "no such version: digits/9"),
        (("not_onnx", "--zeros"), Exit.REFUSED, "not_onnx"),
        (("digits",), Exit.USAGE, "no input is given; the model takes image FP32 [-1, 8, 8]"),
        (("digits", "--input", "1,2"), Exit.USAGE, "takes shape"),
        (("digits", "--input", "a" * 64), Exit.USAGE, "takes shape"),
        (("digits", "--input", "@none.npy"), Exit.USAGE, "cannot be read"),
        (("digits", "--input", "@none.png"), Exit.USAGE, "cannot be read"),
        (("digits", "--input", "@none.txt"), Exit.USAGE, "neither a .npy file nor a picture"),
        (("digits", "--input", "image=1", "--input", "image=2"), Exit.USAGE, "given twice"),
        (
            ("digits", "--input", "picture=3"),
            Exit.USAGE,
            "model 'digits' has no input 'picture'; it has 'image'",
        ),
        (("add_sub", "--input", "x=3"), Exit.USAGE, "model 'add_sub' has no input 'x'; it has "),
        (("identity_bytes", "--input", "aGk="), Exit.USAGE, "give --input 'x=aGk='"),
        (("digits", "--zeros", "--timeout-ms", "0.01"), Exit.REFUSED, "deadline"),
        (("no\nsuch\x1b[2J", "--zeros"), Exit.REFUSED, r"no\nsuch\x1b[2J"),
        (("digits", "--zeros", "--output", "nope"), Exit.REFUSED, "unexpected inference output 'nope'"),
    ],
)
def test_failures_are_one_sentence(infer: Any, words: tuple[str, ...], status: Exit, text: str) -> None:
    answer = infer(*words)
    assert answer.status == status, answer.err
    assert text in answer.err
    assert answer.err.startswith("appliance infer: ")
    assert "Traceback" not in answer.err
    assert answer.err.count("\n") == 1
    assert answer.out == ""


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("x=@none.npy", "'none.npy' cannot be read: No such file or directory"),
        ("@none/x.png", "'none/x.png' cannot be read: No such file or directory"),
        ("a.b:0=@none.txt", "'none.txt' is neither a .npy file nor a picture"),
    ],
)
def test_files_are_looked_at_before_a_server_is(
    capsys: pytest.CaptureFixture[str], given: str, said: str
) -> None:
    command = ["infer", "m", "--input", given, "--url", "127.0.0.1:1"]
    assert main(command) == Exit.USAGE
    assert said in capsys.readouterr().err


def test_what_names_no_file_waits_for_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    picture = tmp_path / "there.png"
    picture.write_bytes(b"")
    for given in ("x=1", "a@b.npy", f"x=@{picture}"):
        assert main(["infer", "m", "--input", given, "--url", "127.0.0.1:1"]) == Exit.UNREACHABLE
        assert "no server answers at 127.0.0.1:1" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        ["digits", "--priority", "-1"],
        ["digits", "--timeout-ms", "0"],
        ["digits", "--timeout-ms", "inf"],
        ["digits", "--timeout-ms", "nan"],
        ["digits", "--timeout", "10"],
        [],
    ],
)
def test_wrong_options_are_usage_errors(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["infer", *words])
    assert ended.value.code == Exit.USAGE


def test_nobody_there(capsys: pytest.CaptureFixture[str], unused_tcp_port: int) -> None:
    address = f"127.0.0.1:{unused_tcp_port}"
    assert main(["infer", "digits", "--zeros", "--url", address, "--timeout-ms", "200"]) == Exit.UNREACHABLE
    assert address in capsys.readouterr().err
    assert main(["status", "--url", address]) == Exit.UNREACHABLE
    assert main(["top", "--once", "--url", address]) == Exit.UNREACHABLE
    assert "start one with 'appliance serve'" in capsys.readouterr().err


def test_what_is_no_address_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--url", "127.0.0.1:80x"]) == Exit.USAGE
    assert "'127.0.0.1:80x' is not an address" in capsys.readouterr().err


def test_status_shows_models_workers_and_reasons(
    running: ApplianceProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--url", f"http://{running.http}"]) == Exit.OK
    shown = capsys.readouterr().out
    assert "digits/2" in shown
    assert "READY" in shown
    assert "not_onnx/1: " in shown
    assert "MiB" in shown


def test_status_json_is_the_document(running: ApplianceProcess, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["status", "--json", "--url", running.http]) == Exit.OK
    assert json.loads(capsys.readouterr().out)["server"]["name"] == "appliance"


def test_top_once_counts_what_happened_meanwhile(
    running: ApplianceProcess, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["top", "--once", "--json", "--interval", "0.1", "--url", running.http]) == Exit.OK
    document = json.loads(capsys.readouterr().out)
    assert {model["name"] for model in document["models"]} >= {"digits", "add_sub"}
    assert main(["top", "--once", "--interval", "0.1", "--url", running.http]) == Exit.OK
    assert "rate/s" in capsys.readouterr().out


@pytest.mark.parametrize("lines", [30, 8])
def test_top_on_a_terminal_ends_with_q_and_leaves_it_as_it_was(running: ApplianceProcess, lines: int) -> None:
    """With few lines the help is there, too: it stands below all that is shown."""
    master, terminal = pty.openpty()
    termios.tcsetwinsize(terminal, (lines, 100))
    before = termios.tcgetattr(terminal)
    program = "import sys; from appliance.cli.main import main; sys.exit(main())"
    command = [sys.executable, "-c", program, "top", "--interval", "0.1", "--url", running.http]
    top = subprocess.Popen(command, stdin=terminal, stdout=terminal, stderr=terminal, env=PLAIN_TERMINAL)
    try:
        shown = read_until(master, b"q: quit", 30.0)
        os.write(master, b"q")
        shown += read_until(master, b"\x1b[?1049l", 30.0)
        assert top.wait(30.0) == Exit.OK
        assert termios.tcgetattr(terminal) == before
    finally:
        top.kill()
        top.wait()
        os.close(master)
        os.close(terminal)
    assert b"\x1b[?1049h" in shown
    assert (b"digits/2" in shown) == (lines == 30)
    assert (b" more" in shown) == (lines == 8)
    assert b"Traceback" not in shown


def read_until(descriptor: int, wanted: bytes, timeout_s: float) -> bytes:
    """What a terminal shows until ``wanted`` appears."""
    shown = b""
    end = time.monotonic() + timeout_s
    while wanted not in shown:
        assert wait([descriptor], max(end - time.monotonic(), 0)), f"{wanted!r} did not appear in {shown!r}"
        shown += os.read(descriptor, 65_536)
    return shown
