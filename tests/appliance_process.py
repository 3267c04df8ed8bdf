"""A real ``appliance serve`` in a process of its own, for tests: starts on free ports, tells when it is ready, ends."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

START_S = 60.0
PAUSE_S = 0.01
"""Between two looks: without it they take the processor from what is waited for."""
STOP_S = 40.0


class ApplianceProcess:
    """``models`` None: the arguments say what is served. ``sections`` are TOML sections by name; listening addresses
    default to free ports of 127.0.0.1. ``before`` is Python that the daemon's process runs first, to break it.
    ``python`` is that of the environment to serve from, which has the appliance installed; None: this one."""

    def __init__(
        self,
        models: Path | None,
        sections: Mapping[str, Mapping[str, Any]] | None = None,
        *,
        arguments: tuple[str, ...] = (),
        environment: Mapping[str, str] | None = None,
        before: str = "",
        python: Path | None = None,
    ) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="appliance-test-")
        folder = Path(self._folder.name)
        self.log_path = folder / "log"
        self.config_path = config = folder / "config.toml"
        config.write_text(
            to_toml(
                {
                    "grpc": {"addresses": ["127.0.0.1:0"]},
                    "http": {"addresses": ["127.0.0.1:0"]},
                    "daemon": {"drain_notice_s": 0.0},
                },
                sections or {},
            )
        )
        self._notify = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._notify.bind(str(folder / "notify"))
        self.messages: list[str] = []
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *((str(python), "-P") if python is not None else (sys.executable,)), "-c",
                    f"{before}\nimport sys; from appliance.cli.main import main; sys.exit(main())", "serve",
                    *(("--models", str(models)) if models else ()), "--config", str(config), *arguments,
                ],
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                env={**os.environ, "NOTIFY_SOCKET": str(folder / "notify"), **(environment or {})},
            )  # fmt: skip
        self.grpc = ""
        self.http = ""
        self.metrics = ""

    @property
    def pid(self) -> int:
        """Process id of the daemon."""
        return self.process.pid

    def log(self) -> str:
        """Everything it printed so far."""
        return self.log_path.read_text(errors="replace")

    def wait_log(self, text: str, timeout_s: float = START_S, times: int = 1) -> None:
        """Wait until what it printed holds ``text`` so many ``times``: lines are written by a thread of their own."""
        end = time.monotonic() + timeout_s
        while self.log().count(text) < times:
            assert time.monotonic() < end, f"never said '{text}':\n{self.log()}"
            time.sleep(PAUSE_S)

    def wait_for(self, text: str, timeout_s: float = START_S) -> str:
        """Wait for a message to the service manager that holds ``text``; fails with the log when it ends instead."""
        end = time.monotonic() + timeout_s
        for message in self.messages:
            if text in message:
                return message
        while time.monotonic() < end:
            message = self.next_message(timeout_s=0.2)
            if not message:
                if self.process.poll() is not None:
                    break
                continue
            self.messages.append(message)
            if text in message:
                return message
        raise AssertionError(
            f"no '{text}' from the daemon (exit {self.process.poll()}); its log:\n{self.log()}"
        )

    def next_message(self, timeout_s: float = START_S) -> str:
        """The next message to the service manager, "" when none comes in time."""
        self._notify.settimeout(timeout_s)
        try:
            return self._notify.recv(4096).decode()
        except TimeoutError:
            return ""

    def drop_messages(self) -> None:
        """Forget what was said until now."""
        while self.next_message(timeout_s=0.001):
            pass

    def wait_ready(self) -> Self:
        """Wait until the first load has settled, and learn the addresses."""
        status = self.wait_for("READY=1")
        found = re.search(r"gRPC on ([^\s,]+).*HTTP on ([^\s,]+)(?:.*metrics on (\S+))?", status)
        assert found, status
        self.grpc, self.http, self.metrics = found[1], found[2], found[3] or ""
        return self

    def get(self, path: str, timeout_s: float = 10.0) -> bytes:
        """Body of an HTTP GET."""
        with urllib.request.urlopen(f"http://{self.http}{path}", timeout=timeout_s) as reply:
            return bytes(reply.read())

    def status(self) -> Any:
        """The document behind /status.json."""
        return json.loads(self.get("/status.json"))

    def until(self, what: str, holds: Any, timeout_s: float = 30.0) -> Any:
        """Poll /status.json until ``holds(document)`` is true; gives the document."""
        end = time.monotonic() + timeout_s
        while True:
            document = self.status()
            if holds(document):
                return document
            if time.monotonic() > end:
                raise AssertionError(f"never saw {what}; last status: {document}\nlog:\n{self.log()}")
            time.sleep(PAUSE_S)

    def signal(self, number: int) -> None:
        """Send the daemon a signal."""
        self.process.send_signal(number)

    def stop(self) -> int:
        """SIGTERM and wait; gives the exit status."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"the daemon did not stop in {STOP_S} s; its log:\n{self.log()}") from None

    def close(self) -> None:
        """Whatever happens, nothing stays behind."""
        try:
            if self.process.poll() is None:
                self.stop()
        finally:
            self._notify.close()
            self._folder.cleanup()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def to_toml(*layers: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections as TOML text; later layers win key by key. Nested mappings become inline tables."""
    sections: dict[str, dict[str, Any]] = {}
    for layer in layers:
        for name, section in layer.items():
            sections.setdefault(name, {}).update(section)
    lines: list[str] = []
    for name, section in sections.items():
        lines.append(f"[{name}]")
        lines.extend(f"{key} = {json.dumps(value)}" for key, value in section.items())
    return "\n".join(lines) + "\n"
