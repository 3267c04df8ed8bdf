"""A controller as it is served, over real TLS, and boxes and people who ask it."""

from __future__ import annotations

import asyncio
import json
import secrets
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPSConnection
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from msgspec import Struct
from zstandard import ZstdCompressor

from appliance.controller.blobs import DirectoryBlobs
from appliance.controller.fleet_store import FleetStore
from appliance.controller.home import Home, Settings, make_home, open_home
from appliance.controller.server import NO_CHECK_TIME, application, end_tasks, server_tls
from appliance.fleet import messages
from appliance.fleet.messages import Acknowledged, Batch, Enrolled, Enrolment, Poll, Polled, Refusal

DAY_MS = 24 * 3_600_000
START_MS = 1_800_000_000_000


def csr(key: ec.EllipticCurvePrivateKey) -> str:
    """A signing request of a box; the name in it counts for nothing."""
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "whatever")])
    request = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, SHA256())
    return request.public_bytes(Encoding.PEM).decode()


@dataclass
class Served:
    """A controller that runs. ``now_ms`` is its clock, which tests set."""

    folder: Path
    admin: str
    authority: str
    port: int = 0
    now_ms: int = START_MS
    home: Home = field(init=False)

    def tls(self, identity: Path | None = None) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.load_verify_locations(cadata=self.authority)
        context.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
        if identity is not None:
            context.load_cert_chain(str(identity))
        return context

    def ask(self, method: str, path: str, body: Any = None, token: str | None = None) -> tuple[int, Any]:
        """A request of a person."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode() if body is not None else None
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        url = f"https://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data, headers, method=method)
        try:
            with urllib.request.urlopen(request, context=self.tls()) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            return error.code, json.load(error)

    def done(self, method: str, path: str, body: Any = None) -> Any:
        """A request of the admin, which succeeds."""
        status, found = self.ask(method, path, body, self.admin)
        assert status == 200, found
        return found

    def token(self, **body: object) -> str:
        return str(self.done("POST", "/api/v1/tokens/enrolment", body)["token"])


class Box:
    """A box, with a key of its own."""

    def __init__(self, served: Served, name: str = "") -> None:
        self.served = served
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = name
        self.identity: Path | None = None

    def post(self, path: str, message: Struct | bytes) -> tuple[int, bytes]:
        body = message if isinstance(message, bytes) else messages.encode(message)
        return self.request("POST", path, body, {"Content-Type": messages.CONTENT_TYPE})

    def request(self, method: str, path: str, body: Any = None, headers: Any = None) -> tuple[int, bytes]:
        connection = HTTPSConnection("127.0.0.1", self.served.port, context=self.served.tls(self.identity))
        try:
            connection.request(method, path, body, headers or {})
            answer = connection.getresponse()
            self.headers = answer.headers
            return answer.status, answer.read()
        finally:
            connection.close()

    def try_enrol(self, token: str) -> tuple[int, bytes]:
        return self.post(messages.ENROL, Enrolment(token=token, request=csr(self.key), name=self.name))

    def enrol(self, token: str) -> Box:
        status, data = self.try_enrol(token)
        assert status == 200, data
        enrolled = messages.decode(data, Enrolled)
        self.name = enrolled.device
        self.hold(enrolled.certificate)
        return self

    def hold(self, certificate: str) -> None:
        self.identity = self.served.folder.parent / f"{self.name}-{secrets.token_hex(4)}.pem"
        key = self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self.identity.write_bytes(key + certificate.encode())

    def poll(self, **told: Any) -> Polled:
        status, data = self.post(messages.POLL, Poll(**told))
        assert status == 200, data
        return messages.decode(data, Polled)

    def send(self, batch: Batch) -> Acknowledged:
        status, data = self.post(messages.TELEMETRY, ZstdCompressor().compress(messages.encode(batch)))
        assert status == 200, data
        return messages.decode(data, Acknowledged)


def code(answer: tuple[int, bytes]) -> tuple[int, str]:
    """The status of a refusal, and its code."""
    return answer[0], messages.decode(answer[1], Refusal).code


def running(served: Served) -> Iterator[Served]:
    """Serve the controller of the folder until the iterator goes on."""
    served.home = home = open_home(served.folder)
    loop, up = asyncio.new_event_loop(), threading.Event()
    runner = web.AppRunner(application(home, lambda: served.now_ms), access_log=None, shutdown_timeout=0.1)

    async def start() -> None:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", served.port, ssl_context=server_tls(home)).start()
        served.port = runner.addresses[0][1]
        up.set()

    def turn() -> None:
        loop.run_until_complete(start())
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.run_until_complete(end_tasks())
        loop.close()

    thread = threading.Thread(target=turn)
    thread.start()
    assert up.wait(30)
    try:
        yield served
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        home.close()


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FleetStore]:
    """The database alone, empty."""
    found = FleetStore(f"sqlite:///{tmp_path / 'fleet.db'}")
    yield found
    found.close()


@pytest.fixture
def blobs(tmp_path: Path) -> DirectoryBlobs:
    """The blobs alone, none."""
    return DirectoryBlobs(tmp_path / "blobs")


@pytest.fixture
def made(tmp_path: Path) -> Served:
    settings = Settings(url="https://127.0.0.1:1", address="127.0.0.1:0")
    folder = tmp_path / "controller"
    admin = make_home(folder, settings, [], [], START_MS)
    found = open_home(folder)
    authority = found.authority.pem
    found.close()
    return Served(folder, admin, authority)


@pytest.fixture
def served(made: Served) -> Iterator[Served]:
    yield from running(made)
