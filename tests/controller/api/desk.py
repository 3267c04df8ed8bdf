"""A controller that is really served, with people and boxes that talk to it over real TLS."""

from __future__ import annotations

import asyncio
import http.client
import json
import ssl
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec
import zstandard
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

from appliance.controller.home import Home, Settings, make_home, open_home
from appliance.controller.server import application, end_tasks, server_tls
from appliance.fleet import messages
from appliance.fleet.messages import Batch, Enrolled, Enrolment, Poll, Polled, Refusal, Report

START_MS = 1_795_500_000_000
DAY_MS = 86_400_000
M = TypeVar("M", bound=msgspec.Struct)


class Desk:
    """A controller in a thread of its own, in ``folder``; ``now_ms`` is its clock, to be set. One that is made names
    the makers with ``package_keys``."""

    def __init__(self, folder: Path, package_keys: Sequence[Path] = ()) -> None:
        self.folder = folder
        self.now_ms = START_MS
        self.admin = ""
        if not folder.exists():
            settings = Settings(url="https://127.0.0.1:1", address="127.0.0.1:0")
            self.admin = make_home(folder, settings, (), package_keys, self.now_ms)
        self.home: Home = open_home(folder)
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._runner: web.AppRunner | None = None
        self.port = 0

    def __enter__(self) -> Self:
        self._thread.start()
        self.port = asyncio.run_coroutine_threadsafe(self._start(), self._loop).result(30)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._runner is not None
        asyncio.run_coroutine_threadsafe(self._end(self._runner), self._loop).result(30)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        self.home.close()

    async def _end(self, runner: web.AppRunner) -> None:
        await runner.cleanup()
        await end_tasks()

    async def _start(self) -> int:
        self._runner = web.AppRunner(
            application(self.home, lambda: self.now_ms), access_log=None, shutdown_timeout=1.0
        )
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=server_tls(self.home)).start()
        port: int = self._runner.addresses[0][1]
        return port

    def person(self, token: str = "") -> Person:
        """Somebody with that token, or the first admin."""
        return Person(self, token or self.admin)

    def enrolment_token(self, **request: object) -> str:
        """A token for a box."""
        found: str = self.person().post("/tokens/enrolment", request)["token"]
        return found


class Person:
    """Asks as JSON; ``status`` is that of the last answer."""

    def __init__(self, desk: Desk, token: str) -> None:
        self._desk = desk
        self._token = token
        self.status = 0

    def get(self, path: str) -> Any:
        return self.ask("GET", path)

    def post(self, path: str, body: object = None) -> Any:
        return self.ask("POST", path, b"" if body is None else json.dumps(body).encode())

    def ask(self, method: str, path: str, body: bytes = b"") -> Any:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self._desk.home.authority.pem)
        connection = http.client.HTTPSConnection("127.0.0.1", self._desk.port, timeout=60, context=context)
        try:
            headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
            connection.request(method, f"/api/v1{path}", body, headers)
            answer = connection.getresponse()
            self.status = answer.status
            return json.loads(answer.read())
        finally:
            connection.close()


class Box:
    """A box's side of the device API, with its key and certificate, and no agent behind it."""

    def __init__(self, desk: Desk, folder: Path, key: ec.EllipticCurvePrivateKey | None = None) -> None:
        self._desk = desk
        self._folder = folder
        self.key = key or ec.generate_private_key(ec.SECP256R1())
        self.pem = ""
        self.device = ""
        self.status = 0
        folder.mkdir(parents=True, exist_ok=True)

    def request(self) -> str:
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "somebody else")])
        made = x509.CertificateSigningRequestBuilder().subject_name(name).sign(self.key, SHA256())
        return made.public_bytes(Encoding.PEM).decode()

    def enrol(self, token: str, name: str = "") -> Enrolled | Refusal:
        """Enrol; the certificate is used from now on."""
        found = self.ask(messages.ENROL, Enrolment(token=token, request=self.request(), name=name), Enrolled)
        if isinstance(found, Enrolled):
            self.pem, self.device = found.certificate, found.device
        return found

    def poll(self, **versions: Any) -> Polled | Refusal:
        return self.ask(messages.POLL, Poll(**versions), Polled)

    def polled(self, **versions: Any) -> Polled:
        found = self.poll(**versions)
        assert isinstance(found, Polled), found
        return found

    def tell(self, **report: Any) -> Polled | Refusal:
        """Poll with a report."""
        said = messages.encode(Report(device=self.device, **report))
        return self.poll(report=said, report_digest="x")

    def send(self, records: list[bytes], first: int = 0, stream: str = "serve", epoch: str = "a" * 32) -> Any:
        """Hand over telemetry."""
        batch = Batch(stream=stream, epoch=epoch, first=first, records=tuple(records))
        body = zstandard.compress(messages.encode(batch))
        return self.raw(
            "POST", messages.TELEMETRY, body, lambda data: messages.decode(data, messages.Acknowledged)
        )

    def ask(self, path: str, message: msgspec.Struct, kind: type[M]) -> M | Refusal:
        found: M | Refusal = self.raw(
            "POST", path, messages.encode(message), lambda data: messages.decode(data, kind)
        )
        return found

    def raw(self, method: str, path: str, body: bytes, read: Callable[[bytes], Any], **headers: str) -> Any:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self._desk.home.authority.pem)
        if self.pem:
            path_of = self._folder / "identity.pem"
            key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            path_of.write_bytes(key + self.pem.encode())
            context.load_cert_chain(str(path_of))
        connection = http.client.HTTPSConnection("127.0.0.1", self._desk.port, timeout=60, context=context)
        try:
            connection.request(method, path, body, {"Content-Type": messages.CONTENT_TYPE, **headers})
            answer = connection.getresponse()
            self.status, data = answer.status, answer.read()
        finally:
            connection.close()
        return messages.decode(data, Refusal) if self.status >= 400 else read(data)
