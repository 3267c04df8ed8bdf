"""``appliance model load`` and ``unload`` where the socket, or what tells how far it is, is not what it should be."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import grpc
import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.cli.model import load as load_command
from appliance.cli.oip_client import SERVICE
from tests.cli.test_wait import Screen


class Stranger:
    """An HTTP server that is no appliance."""

    def __init__(self, body: bytes) -> None:
        self.asked = threading.Event()
        stranger = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.end_headers()
                self.wfile.write(body)
                stranger.asked.set()

            def log_message(self, *_: object) -> None:
                pass

        self.server = HTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture(params=[b"hello", b"{}", b'{"format": 1, "models": 5}'])
def stranger(request: pytest.FixtureRequest) -> Iterator[Stranger]:
    found = Stranger(request.param)
    yield found
    found.server.shutdown()
    found.server.server_close()


@pytest.fixture
def control(tmp_path: Path) -> Iterator[Callable[[threading.Event], Path]]:
    """A control socket at which a load lasts until something has happened."""
    server = grpc.server(ThreadPoolExecutor(1))

    def start(happened: threading.Event) -> Path:
        def load(request: bytes, context: grpc.ServicerContext) -> bytes:
            if not happened.wait(20):
                context.abort(grpc.StatusCode.INTERNAL, "it did not happen")
            return b""

        handlers = {"RepositoryModelLoad": grpc.unary_unary_rpc_method_handler(load)}
        server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
        server.add_insecure_port(f"unix:{tmp_path}/control")
        server.start()
        return tmp_path / "control"

    yield start
    server.stop(0).wait()


def test_a_load_goes_on_whoever_else_answers_where_one_looks(
    stranger: Stranger,
    control: Callable[[threading.Event], Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = control(stranger.asked)
    monkeypatch.setattr(sys, "stderr", Screen())
    assert main(["model", "load", "m", "--socket", str(path), "--url", stranger.url]) == Exit.OK
    assert capsys.readouterr().out.startswith("m is live after ")


def test_nobody_is_asked_how_far_it_is_where_there_is_no_bar(
    stranger: Stranger, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(
        path: Path, name: str, parameters: object, timeout_s: float, waiting: Callable[[], None]
    ) -> None:
        waiting()

    monkeypatch.setattr(load_command, "load", load)
    assert main(["model", "load", "m", "--socket", "s", "--url", stranger.url]) == Exit.OK
    assert not stranger.asked.is_set()


WITHOUT_RIGHTS = """
import os, sys
from appliance.cli.main import main
from appliance.cli.model import load
if os.geteuid() == 0:
    os.setgroups([])
    os.setgid(65534)
    os.setuid(65534)
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("command", ["load", "unload"])
def test_a_socket_in_a_directory_that_may_not_be_entered_is_told_in_one_sentence(
    command: str, tmp_path: Path
) -> None:
    (tmp_path / "closed").mkdir(mode=0)
    words = ["model", command, "m", "--socket", str(tmp_path / "closed" / "control")]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT_RIGHTS, *words], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr.count("\n")) == (Exit.UNREACHABLE, 1), done.stderr
    assert "cannot be looked at: Permission denied" in done.stderr


@pytest.mark.parametrize(
    ("said", "status", "words"),
    [
        (
            "failed to load 'm': asks for device 'cuda'",
            Exit.REFUSED,
            "failed to load 'm': asks for device 'cuda' ",
        ),
        ("failed to connect to all addresses", Exit.UNREACHABLE, "no appliance answers at '"),
    ],
)
def test_a_load_that_fails_is_an_answer(
    said: str, status: Exit, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def load(request: bytes, context: grpc.ServicerContext) -> bytes:
        context.set_code(grpc.StatusCode.UNAVAILABLE)
        context.set_details(said)
        return b""

    server = grpc.server(ThreadPoolExecutor(1))
    handlers = {"RepositoryModelLoad": grpc.unary_unary_rpc_method_handler(load)}
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
    server.add_insecure_port(f"unix:{tmp_path}/control")
    server.start()
    assert main(["model", "load", "m", "--socket", str(tmp_path / "control")]) == status
    server.stop(0).wait()
    assert words in capsys.readouterr().err
