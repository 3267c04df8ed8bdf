"""Exit statuses, of real processes, as the README has them."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from tests.conftest import Serve

PROGRAM = (
    sys.executable,
    "-c",
    "import sys; from appliance.cli.main import main; sys.exit(main(sys.argv[1:]))",
)


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
