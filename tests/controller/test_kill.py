"""A controller that is killed again and again while it is used, or whose disk fails: what it said that it has, it has,
once."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.client import HTTPException
from urllib.error import URLError

import pytest
from zstandard import ZstdCompressor

from appliance.controller import tables
from appliance.controller.audit import first_wrong
from appliance.controller.fleet_store import ROW_BYTES
from appliance.controller.home import open_home
from appliance.fleet import messages
from appliance.fleet.messages import Acknowledged, Batch
from tests.controller.conftest import Box, Served

MAIN = "from appliance.cli.main import main; raise SystemExit(main())"
GONE = (OSError, HTTPException, URLError)
EPOCH = "e" * 32
# Python's ssl module leaves a socket to the collector whose server is killed while the two shake hands.
pytestmark = pytest.mark.filterwarnings(
    "ignore:Exception ignored in. <ssl.SSLSocket:pytest.PytestUnraisableExceptionWarning"
)
KILLS = 4


class Load:
    """Uses a controller until it is gone, or said ``failures`` times that its disk fails; keeps what it was told."""

    def __init__(self, served: Served, failures: int = 0) -> None:
        self.served = served
        self.failures = failures
        self.failed = 0
        self.enrolled: set[str] = set()
        self.acknowledged: dict[str, int] = {}
        self.settings: list[int] = []
        self.answers = 0
        self.enough = threading.Event()

    def count(self, target: int) -> None:
        self.answers += 1
        if self.failures:
            if self.failed >= self.failures:
                self.enough.set()
        elif self.answers >= target and self.enrolled and self.settings and self.acknowledged:
            self.enough.set()

    def ask(self, path: str, body: object) -> dict[str, str] | None:
        """What the controller answers; None when its database failed, and it said so."""
        status, found = self.served.ask("POST", path, body, self.served.admin)
        if status == 200:
            return dict(found)
        assert self.failures, found
        assert (status, found["code"]) == (503, "trouble"), found
        self.failed += 1
        return None

    def enrol(self, target: int) -> None:
        while True:
            made = self.ask("/api/v1/tokens/enrolment", {})
            if made is None:
                continue
            status, _ = Box(self.served, f"new-{made['name']}").try_enrol(made["token"])
            if status == 200:
                self.enrolled.add(f"new-{made['name']}")
            self.count(target)

    def tell(self, target: int, box: Box) -> None:
        at = self.acknowledged.get(box.name, 0)
        while True:
            batch = Batch(stream="serve", epoch=EPOCH, first=at, records=(b"\x01",) * 3)
            status, data = box.post(messages.TELEMETRY, ZstdCompressor().compress(messages.encode(batch)))
            if status == 200:
                at = self.acknowledged[box.name] = messages.decode(data, Acknowledged).next
            self.count(target)

    def wish(self, target: int) -> None:
        while True:
            value = (self.settings[-1] if self.settings else 30) + 1
            body = {"device": "box-0", "name": "fleet.poll_s", "value": value}
            if self.ask("/api/v1/settings", body) is not None:
                self.settings.append(value)
            self.count(target)


@contextmanager
def process(served: Served, around: Sequence[str] = ()) -> Iterator[subprocess.Popen[str]]:
    command = [*around, sys.executable, "-c", MAIN, "controller", "serve", str(served.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as found:
        try:
            assert found.stdout is not None
            line = found.stdout.readline()
            served.port = int(line.split(" for ")[0].rsplit(":", 1)[1])
            yield found
        finally:
            with suppress(ProcessLookupError):
                os.killpg(found.pid, signal.SIGKILL)


def until_killed(
    served: Served, load: Load, boxes: list[Box], target: int, around: Sequence[str] = ()
) -> None:
    """Use it by many at once, and kill it as soon as it gave so many answers, and some of each kind since the first."""
    load.answers = 0
    load.enough.clear()
    jobs = [lambda: load.enrol(target), lambda: load.wish(target)]
    jobs += [lambda box=box: load.tell(target, box) for box in boxes]  # type: ignore[misc]

    def work(job: object) -> None:
        with suppress(*GONE):
            job()  # type: ignore[operator]

    with process(served, around) as found:
        threads = [threading.Thread(target=work, args=(job,)) for job in jobs]
        for thread in threads:
            thread.start()
        enough = load.enough.wait(60)
        os.killpg(found.pid, signal.SIGKILL)
        for thread in threads:
            thread.join(60)
            assert not thread.is_alive()
        assert enough, f"{load.answers} of {target} answers came"


@pytest.mark.parametrize("seed", range(3))
def test_what_was_acknowledged_is_there_after_each_kill(made: Served, seed: int) -> None:
    randomly = random.Random(seed)
    load, boxes = Load(made), enrolled_boxes(made)
    for _ in range(KILLS):
        until_killed(made, load, boxes, randomly.randrange(1, 40))
        check(made, load)


def enrolled_boxes(served: Served) -> list[Box]:
    with process(served):
        return [Box(served, f"box-{number}").enrol(served.token()) for number in range(2)]


@pytest.mark.parametrize("call", ["pwrite64", "fsync,fdatasync"])
@pytest.mark.parametrize("error", ["EIO", "ENOSPC"])
def test_what_was_acknowledged_is_there_after_a_disk_that_failed(made: Served, call: str, error: str) -> None:
    """A kernel that fails some calls; the controller says so, goes on, and begins again after a kill."""
    if shutil.which("strace") is None:
        pytest.skip("there is no strace here")
    boxes, load = enrolled_boxes(made), Load(made, failures=5)
    files = [str(made.folder / f"fleet.db{end}") for end in ("", "-wal")]
    words = ["strace", "-f", "-qq", "-o", os.devnull, *(f"--trace-path={each}" for each in files)]
    words += ["-e", f"inject={call}:error={error}:when=3+4"]  # of each thread
    until_killed(made, load, boxes, 0, words)
    check(made, load)
    load.failures = 0
    until_killed(made, load, boxes, 10)
    check(made, load)


def test_what_was_acknowledged_is_there_after_a_disk_that_took_a_part(made: Served) -> None:
    """A file system that takes a part of a write, and then no more."""
    boxes, load = enrolled_boxes(made), Load(made, failures=5)
    kibibytes = (made.folder / "fleet.db").stat().st_size // 1024 + 65
    until_killed(made, load, boxes, 0, ["bash", "-c", f'ulimit -f {kibibytes}; exec "$@"', "-"])
    check(made, load)
    load.failures = 0
    until_killed(made, load, boxes, 10)
    check(made, load)


def check(served: Served, load: Load) -> None:
    """Compare what it holds with what it acknowledged; it may hold what its last answer would have said."""
    home = open_home(served.folder)
    try:
        with home.store.transaction() as rows:
            devices = {row.name for row in rows.all(tables.devices)}
            held: dict[str, list[int]] = {}
            for row in rows.all(tables.telemetry):
                held.setdefault(row.device, []).append(row.number)
            sizes = {row.name: row.telemetry_bytes for row in rows.all(tables.devices)}
            setting = rows.one(tables.settings, scope="device/box-0", name="fleet.poll_s")
            used = [row.used_by for row in rows.all(tables.tokens) if row.used_by]
            lines = rows.audit_lines(0, 100_000)
            gaps = rows.all(tables.losses)
        assert load.enrolled <= devices
        assert sorted(used) == sorted(devices)
        assert gaps == []
        for name, end in load.acknowledged.items():
            assert held[name] == list(range(len(held[name])))
            assert end <= len(held[name]) <= end + 3
            assert sizes[name] == (ROW_BYTES + 1) * len(held[name]) + ROW_BYTES
            load.acknowledged[name] = len(held[name])
        if load.settings:
            assert setting is not None
            assert load.settings[-1] <= int(setting.value) <= load.settings[-1] + 1
        assert first_wrong(lines) == 0
        assert len([line for line in lines if line.what == "enrolled"]) == len(devices)
    finally:
        home.close()


def test_what_is_no_http_fills_no_log(made: Served) -> None:
    command = [sys.executable, "-c", MAIN, "controller", "serve", str(made.folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as found:
        assert found.stdout is not None
        assert found.stderr is not None
        port = int(found.stdout.readline().split(" for ")[0].rsplit(":", 1)[1])
        for nonsense in (b"\x00\r\n\r\n", b"GET / HTTP/1.1\r\nHost: \x01\r\n\r\n"):
            plain = socket.create_connection(("127.0.0.1", port), 30)
            with made.tls().wrap_socket(plain, server_hostname="127.0.0.1") as link:
                link.sendall(nonsense)
                assert link.recv(100).startswith(b"HTTP/1.0 400 ")
        found.terminate()
        events = [json.loads(line)["event"] for line in found.stderr]
    assert events == ["controller serves", "controller stopped"]
