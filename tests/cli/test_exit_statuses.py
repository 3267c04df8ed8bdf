"""Exit statuses, of real processes, as the README has them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest

from appliance.cli.command_table import CommandTable
from appliance.cli.failure import Exit
from appliance.cli.main import TABLE, main
from tests.conftest import Serve
from tests.tools.models import endless_model
from tests.tools.models import write as write_onnx

PROGRAM = (
    sys.executable,
    "-c",
    "import sys; from appliance.cli.main import main; sys.exit(main(sys.argv[1:]))",
)


def commands(table: CommandTable = TABLE, above: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of each command there is."""
    for name, entry in table.commands.items():
        if isinstance(entry.place, CommandTable):
            yield from commands(entry.place, (*above, name))
        else:
            yield *above, name


def status_of(*words: str) -> int:
    return subprocess.run([*PROGRAM, *words], capture_output=True, check=False, timeout=60).returncode


def test_each_class_of_failure_has_its_status(
    serve: Serve, model_directory: Callable[..., Path], tmp_path: Path
) -> None:
    url = serve(model_directory("mlp")).http
    broken = tmp_path / "broken.toml"
    broken.write_text("models = 5")
    assert status_of("status", "mlp", "--url", url) == 0
    for words in (["infer", "none", "--zeros"], ["status", "none"], ["model", "list", "none"]):
        assert status_of(*words, "--url", url) == 1
    assert status_of("config", "check", str(broken)) == 1
    for words in (["nope"], ["infer"], ["status", "--url", "a:b"], ["status", "--config", str(broken)]):
        assert status_of(*words) == 2
    assert status_of("serve", "--models", str(tmp_path / "none")) == 2
    for words in (["status"], ["top", "--once"], ["model", "list"]):
        assert status_of(*words, "--url", "127.0.0.1:1") == 3


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_each_command_has_help_and_refuses_what_it_does_not_know(
    words: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    for option, status in (("--help", Exit.OK), ("--no-such-option", Exit.USAGE)):
        with pytest.raises(SystemExit) as ended:
            main([*words, option])
        assert (ended.value.code or 0) == status
        said = capsys.readouterr()
        shown, silent = (said.out, said.err) if status is Exit.OK else (said.err, said.out)
        assert shown.startswith(f"usage: appliance {' '.join(words)} ")
        assert not silent


def interrupted(*words: str, once: Callable[[int], AbstractContextManager[object]]) -> None:
    """Press Ctrl-C as a terminal does, for all of the command's processes, ``once`` it is under way."""
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen([*PROGRAM, *words], start_new_session=True, **pipes) as process:  # type: ignore[call-overload]
        try:
            with once(process.pid):
                os.killpg(process.pid, signal.SIGINT)
                said = process.communicate(timeout=30)[1]
        finally:
            process.kill()
    assert process.returncode == Exit.INTERRUPTED, said
    assert not said, "nobody is told what was just asked for"


@pytest.mark.parametrize(
    "words", [("infer", "m", "--zeros"), ("status",), ("top", "--once"), ("model", "list")], ids=" ".join
)
def test_what_waits_for_a_silent_appliance_is_interrupted(words: tuple[str, ...]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent.settimeout(30)
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        interrupted(*words, "--url", address, once=lambda _: silent.accept()[0])


def test_what_waits_for_a_silent_control_socket_is_interrupted(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as silent:
        silent.bind(str(tmp_path / "control"))
        silent.listen()
        silent.settimeout(30)
        words = ("model", "load", "m", "--socket", str(tmp_path / "control"))
        interrupted(*words, once=lambda _: silent.accept()[0])


@pytest.mark.parametrize("words", [("bench",), ("golden", "--random", "1")], ids=" ".join)
def test_what_runs_a_model_without_end_is_interrupted(words: tuple[str, ...], tmp_path: Path) -> None:
    model = write_onnx(tmp_path / "m" / "1" / "model.onnx", endless_model())

    def at_work(process: int) -> AbstractContextManager[None]:
        children = Path(f"/proc/{process}/task/{process}/children")
        while not children.read_text():
            os.sched_yield()
        return nullcontext()

    interrupted("model", words[0], str(model), *words[1:], once=at_work)


def test_what_is_interrupted_says_so(serve: Serve, model_directory: Callable[..., Path]) -> None:
    url = serve(model_directory("mlp")).http
    words = [*PROGRAM, "top", "--json", "--interval", "0.1", "--url", url]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline(), "it is under way"
        process.send_signal(signal.SIGINT)
        assert process.wait(30) == 130
        assert process.stderr is not None
        assert b"Traceback" not in process.stderr.read()


@pytest.mark.parametrize("command", ["bench", "golden", "optimise", "pack", "import", "inspect", "verify"])
def test_what_is_not_there_is_no_verdict_on_a_model(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", command, str(tmp_path / "nowhere")]) == Exit.USAGE
    assert "No such file or directory" in capsys.readouterr().err
