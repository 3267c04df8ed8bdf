"""Finding commands, usage errors, and the manners of starting quickly."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import pytest

from appliance import __version__
from appliance.cli.failure import Exit
from appliance.cli.main import STORE, TABLE, main


def loaded_by(*words: str) -> set[str]:
    """Top-level modules that a command loads."""
    program = (
        "import sys; from appliance.cli.main import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: pass\n"
        "print(*{name.partition('.')[0] for name in sys.modules}, file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", program, *words], check=True, capture_output=True, text=True)
    return set(done.stderr.split())


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version"]) == Exit.OK
    version, front_end = capsys.readouterr().out.splitlines()
    assert version == f"appliance {__version__}"
    kind = "native 0" if find_spec("edge_appliance_native") else "python (the native one: "
    assert front_end.startswith(f"front end: {kind}")


def test_version_of_everything(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["version", "--all"]) == Exit.OK
    assert "grpcio " in capsys.readouterr().out


def test_no_command_shows_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == Exit.USAGE
    shown = capsys.readouterr().out
    assert all(command in shown for command in TABLE.commands)
    assert "exit status" in shown


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["statsu"]) == Exit.USAGE
    assert "did you mean 'status'" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        *([name] for name, entry in TABLE.commands.items() if isinstance(entry.place, str)),
        *(["store", name] for name in STORE.commands),
    ],
)
def test_each_command_has_help_with_exit_statuses(
    words: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert ended.value.code == Exit.OK
    assert "exit status" in capsys.readouterr().out


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--version"]])
def test_help_and_version_as_options(words: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(words)
    assert ended.value.code == Exit.OK


def test_the_version_loads_no_package() -> None:
    assert not loaded_by("version") & {"grpc", "rich", "google", "numpy", "aiohttp", "structlog", "asyncio"}


def test_help_of_infer_loads_neither_numpy_nor_a_terminal_library() -> None:
    assert not loaded_by("infer", "--help") & {"numpy", "rich", "PIL", "onnxruntime", "aiohttp"}


def test_a_reader_that_leaves_is_not_an_error() -> None:
    program = "import sys; from appliance.cli.main import main; sys.exit(main(['config', 'show']))"
    command = subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert command.stdout is not None
    command.stdout.close()
    assert command.stderr is not None
    with command:
        assert command.stderr.read() == ""
    assert command.returncode == Exit.OK


def test_going_back_loads_nothing_that_reads_models() -> None:
    """An operator waits for it: what reads graphs is half of what the command would load."""
    program = "import sys, appliance.cli.model.rollout; print('appliance.repository.model_directory' in sys.modules)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert said.stdout == "False\n"
