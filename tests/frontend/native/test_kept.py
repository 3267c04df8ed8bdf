"""What a daemon listens on outlives it where the service manager keeps it, and is let go when it listens elsewhere."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.generate import write_model
from tests.appliance_process import to_toml
from tests.frontend.http.raw_client import binary_request
from tests.fronts import NATIVE, Sections, needs_native, with_front_end

pytestmark = needs_native
LAUNCHER = """
import os, sys
names, given = sys.argv[1], [int(each) for each in sys.argv[2].split(",") if each]
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(given)), LISTEN_FDNAMES=names)
high = [os.dup2(each, 100 + index, inheritable=False) for index, each in enumerate(given)]
for each in given:
    os.close(each)
for index, each in enumerate(high):
    os.dup2(each, 3 + index)
os.execv(sys.executable, [sys.executable, "-c",
    "import sys; from appliance.cli.main import main; sys.exit(main())", *sys.argv[3:]])
"""
INFER = binary_request("mlp", {"x": (1, 64)})


class Keeper:
    """A service manager that keeps what it is given, as far as it is asked to."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.kept: dict[str, int] = {}
        self._heard = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._heard.bind(str(folder / "notify"))
        self._heard.settimeout(30.0)
        self._process: subprocess.Popen[str] | None = None

    def start(self, http: str) -> None:
        """Start a daemon that listens there, with what is kept, and wait until it serves."""
        config = self.folder / "config.toml"
        sections: Sections = {
            "grpc": {"addresses": []},
            "daemon": {"drain_notice_s": 0.0},
            "http": {"addresses": [http]},
        }
        config.write_text(to_toml(with_front_end(NATIVE, sections)))
        names, given = ":".join(self.kept), ",".join(map(str, self.kept.values()))
        command = [sys.executable, "-c", LAUNCHER, names, given, "serve", "--config", str(config)]
        self._process = subprocess.Popen(
            [*command, "--models", str(self.folder / "models")],
            pass_fds=tuple(self.kept.values()),
            env={**os.environ, "NOTIFY_SOCKET": str(self.folder / "notify")},
            text=True,
        )
        while not self._hear():
            pass

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            assert self._process.wait(30) == 0
            self._process = None

    def close(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait(30)
        self._heard.close()
        for each in self.kept.values():
            os.close(each)

    def _hear(self) -> bool:
        """Do what the next message asks for; gives whether the daemon serves."""
        text, descriptors, _, _ = socket.recv_fds(self._heard, 4096, 8)
        name = re.search(rb"FDNAME=(.*)", text)
        if text.startswith(b"FDSTORE=1"):
            assert name is not None
            self.kept[name[1].decode()] = descriptors.pop()
        elif text.startswith(b"FDSTOREREMOVE=1"):
            assert name is not None
            os.close(self.kept.pop(name[1].decode()))
        for each in descriptors:
            os.close(each)
        return b"READY=1" in text


@pytest.fixture
def keeper(tmp_path: Path) -> Iterator[Keeper]:
    write_model("mlp", tmp_path / "models")
    made = Keeper(tmp_path)
    yield made
    made.close()


@pytest.fixture
def port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


def answers(client: socket.socket) -> bool:
    client.sendall(INFER)
    return client.recv(12) == b"HTTP/1.1 200"


def test_who_comes_while_there_is_no_daemon_is_answered_by_the_next(keeper: Keeper, port: int) -> None:
    place = f"127.0.0.1:{port}"
    keeper.start(place)
    assert list(keeper.kept) == [f"kept.127.0.0.1_{port}"]
    for _ in range(2):  # what was kept stays kept
        keeper.stop()
        with socket.create_connection(("127.0.0.1", port), 60.0) as client:
            client.sendall(INFER)
            keeper.start(place)
            assert client.recv(12) == b"HTTP/1.1 200"
        assert list(keeper.kept) == [f"kept.127.0.0.1_{port}"]


def test_what_is_in_the_way_of_another_address_is_let_go(keeper: Keeper, port: int) -> None:
    keeper.start(f"127.0.0.1:{port}")
    keeper.stop()
    keeper.start(f"0.0.0.0:{port}")
    assert list(keeper.kept) == [f"kept.0.0.0.0_{port}"]
    with socket.create_connection(("127.0.0.1", port), 60.0) as client:
        assert answers(client)


def test_what_nobody_is_to_listen_on_any_more_is_closed(keeper: Keeper, port: int) -> None:
    keeper.start(f"127.0.0.1:{port}")
    keeper.stop()
    keeper.start("127.0.0.1:0")
    assert not keeper.kept
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.1", port), 5.0)
