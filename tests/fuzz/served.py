"""A daemon that hears what fuzzers say: it lives, answers others, keeps its memory, and logs no defect of its own."""

from __future__ import annotations

import json
import os
import re
import socket
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from appliance.frontend.regions.registry import FOLDER
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.fronts import FRONT_ENDS, Sections, with_front_end
from tests.fuzz.boundary import RuleBroken

ANSWER_S: Final = 0.05
HANG_S: Final = 30.0
GROWTH_BYTES: Final = 1 << 30
ASKED_EACH: Final = 25
"""So many hostile inputs for one request of somebody else."""
LINE: Final = re.compile(r"[0-9-]{10}T[0-9:.]{15}Z \[[a-z]+ *\] .*")
OF_LIBRARY: Final = re.compile(r"ExecuteBatchError|\[grpc\._cython\.cygrpc\]|_server_main_loop")
"""What gRPC's library has a traceback for: clients that go away within a stream, and paths that are not UTF-8, after
which another server takes its place; whoever waited for the one before is sent away."""
BACK_S: Final = 10.0
DEFECT: Final = re.compile(r"Traceback|panicked|nobody foresaw|Unhandled|\[(?:error|critical) ")
TENSOR: Final = {"datatype": "INT32", "shape": [1, 16], "data": list(range(16))}
INPUT: Final = json.dumps({"inputs": [{"name": name, **TENSOR} for name in ("INPUT0", "INPUT1")]}).encode()
MODEL: Final = "add_sub"
KEY: Final = "/appliance-fuzz"
KEY_BYTES: Final = 4096
"""A region that "local" may register. Always the same, so that what was kept fits."""


class Served:
    """``say`` judges one input, at the address that ``to`` names: "http", "grpc", "control", or "local", which is
    gRPC where this user may have shared memory."""

    def __init__(self, daemon: ApplianceProcess, control: Path, local: Path) -> None:
        self.daemon = daemon
        self._sockets = {"control": str(control), "local": str(local)}
        self._said = 0
        self._read = daemon.log_path.stat().st_size
        self._before_bytes = self._memory_bytes()

    def say(self, to: str, data: bytes, *, patient: bool = False) -> None:
        """Say it on a connection of its own, and see that it ends; ``patient``: wait for a word before leaving."""
        with self._connected(to) as client:
            with suppress(OSError):
                client.sendall(data)
                if patient:
                    client.settimeout(ANSWER_S)
                    with suppress(TimeoutError):
                        client.recv(1 << 16)
                client.shutdown(socket.SHUT_WR)
            client.settimeout(HANG_S)
            try:
                while client.recv(1 << 16):
                    pass
            except TimeoutError:
                raise RuleBroken("the connection never ends") from None
            except OSError:
                pass
        self._said += 1
        self.check()

    def check(self) -> None:
        """Raise RuleBroken when the daemon is not well."""
        if self.daemon.process.poll() is not None:
            raise RuleBroken(
                f"the daemon ended with {self.daemon.process.returncode}:\n{self.daemon.log()[-3000:]}"
            )
        self._check_log()
        if self._said % ASKED_EACH == 0:
            self._check_others()

    def _check_log(self) -> None:
        if self.daemon.log_path.stat().st_size == self._read:
            return
        with self.daemon.log_path.open("rb") as log:
            log.seek(self._read)
            text = log.read().decode(errors="replace")
            self._read = log.tell()
        if OF_LIBRARY.search(text):
            return
        if DEFECT.search(text):
            raise RuleBroken(f"logged a defect: {text[:3000]}")
        for line in text.removesuffix("\n").split("\n"):
            if not LINE.fullmatch(line) or not line.isprintable():
                raise RuleBroken(f"logged what is no line of its own: {line[:1000]!r}")

    def _check_others(self) -> None:
        with self._connected("http") as client:
            client.settimeout(HANG_S)
            head = f"POST /v2/models/{MODEL}/infer HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            client.sendall(
                f"{head}Connection: close\r\nContent-Length: {len(INPUT)}\r\n\r\n".encode() + INPUT
            )
            answer = b""
            while part := client.recv(1 << 16):
                answer += part
        if not answer.startswith(b"HTTP/1.1 200") or b'"OUTPUT0"' not in answer:
            raise RuleBroken(f"somebody else was answered {answer[:500]!r}")
        if (grown := self._memory_bytes() - self._before_bytes) > GROWTH_BYTES:
            raise RuleBroken(f"took {grown >> 20} MiB of memory")
        json.dumps(self.daemon.status())

    def _memory_bytes(self) -> int:
        status = Path(f"/proc/{self.daemon.pid}/status").read_text()
        found = re.search(r"RssAnon:\s+(\d+) kB", status)
        return int(found[1]) << 10 if found else 0

    def _connected(self, to: str) -> socket.socket:
        end = time.monotonic() + BACK_S
        while True:
            try:
                return self._connect(to)
            except (ConnectionRefusedError, ConnectionResetError, FileNotFoundError):
                if time.monotonic() > end or self.daemon.process.poll() is not None:
                    raise RuleBroken(
                        f"nobody listens any more; its log:\n{self.daemon.log()[-3000:]}"
                    ) from None
                time.sleep(0.05)

    def _connect(self, to: str) -> socket.socket:
        if to in self._sockets:
            client = socket.socket(socket.AF_UNIX)
            client.settimeout(HANG_S)
            try:
                client.connect(self._sockets[to])
            except OSError:
                client.close()
                raise
            return client
        host, port = (self.daemon.http if to == "http" else self.daemon.grpc).rsplit(":", 1)
        return socket.create_connection((host, int(port)), HANG_S)


@contextmanager
def served(front_end: str) -> Iterator[Served]:
    """A daemon with this front end and one model."""
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        root, control, local = (Path(name) / each for each in ("models", "control", "local"))
        write_model(MODEL, root)
        sections: Sections = {
            "control": {"socket": str(control)},
            "log": {"format": "console"},
            "grpc": {"max_message_bytes": 1 << 20, "addresses": ["127.0.0.1:0", f"unix:{local}"]},
            "http": {"addresses": ["127.0.0.1:0", f"unix:{local}-http"]},
            "shared_memory": {"users": [str(os.getuid())], "max_bytes": 1 << 20},
        }
        region = Path(FOLDER + KEY)
        region.write_bytes(bytes(KEY_BYTES))
        with ApplianceProcess(root, with_front_end(FRONT_ENDS[front_end], sections)) as daemon:
            daemon.wait_ready().wait_log("Try: ")
            found = Served(daemon, control, local)
            yield found
            found.check()
        region.unlink(missing_ok=True)
