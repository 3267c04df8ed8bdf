"""``appliance infer`` at a socket on which somebody listens and nobody speaks yet, as while systemd's socket starts the
appliance: it waits, and what it says when that was in vain."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from appliance.cli import connection, oip_client
from appliance.cli.failure import Exit
from appliance.cli.main import main
from tests.conftest import Serve

Where = Callable[[Path], tuple[socket.socket, str]]


def by_port(folder: Path) -> tuple[socket.socket, str]:
    listener = socket.create_server(("127.0.0.1", 0))
    return listener, f"127.0.0.1:{listener.getsockname()[1]}"


def by_path(folder: Path) -> tuple[socket.socket, str]:
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "s"))
    listener.listen()
    return listener, f"unix:{folder / 's'}"


def carry(source: socket.socket, sink: socket.socket) -> None:
    with suppress(OSError):
        while piece := source.recv(65536):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


@pytest.mark.parametrize("where", [by_port, by_path])
def test_a_server_that_speaks_late_is_waited_for(
    serve: Serve,
    model_directory: Callable[..., Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    where: Where,
) -> None:
    daemon = serve(model_directory("mlp"))
    listener, address = where(tmp_path)
    monkeypatch.setattr(oip_client, "CONNECT_S", 0.2)
    monkeypatch.setattr(connection, "PROBE_S", 0.2)
    host, port = daemon.grpc.rsplit(":", 1)

    def speak_late() -> None:
        """Carry the channel's connection to the daemon only when another one has looked whether anybody speaks, as one
        did before."""
        listener.accept()[0].close()
        first = listener.accept()[0]
        second = listener.accept()[0]
        while second.recv(4096):
            pass
        with first, second, socket.create_connection((host, int(port))) as server:
            back = threading.Thread(target=carry, args=(server, first))
            back.start()
            carry(first, server)
            back.join(10.0)

    thread = threading.Thread(target=speak_late, daemon=True)
    thread.start()
    with listener:
        assert main(["infer", "mlp", "--zeros", "--url", address]) == Exit.OK, capsys.readouterr().err
        thread.join(10.0)
    assert not thread.is_alive()


@pytest.mark.parametrize("where", [by_port, by_path])
def test_who_never_speaks_is_told_as_that(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path, where: Where
) -> None:
    for module, patience in ((oip_client, "CONNECT_S"), (oip_client, "SILENT_S"), (connection, "PROBE_S")):
        monkeypatch.setattr(module, patience, 0.2)
    listener, address = where(tmp_path)
    with listener:
        assert main(["infer", "mlp", "--zeros", "--url", address]) == Exit.UNREACHABLE
    told = capsys.readouterr().err
    assert f"something takes connections at {address} and says nothing" in told
    assert told.count("\n") == 1


def test_the_librarys_own_lines_stay_away() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
    program = "import sys; from appliance.cli.main import main; sys.exit(main(sys.argv[1:]))"
    words = [sys.executable, "-c", program, "infer", "mlp", "--zeros", "--url", address]
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=30)
    assert done.returncode == Exit.UNREACHABLE
    assert done.stderr.count("\n") == 1, done.stderr
