"""A controller for tests of the box's side: real TLS, real signatures, and any answer that a test wants.

It has no store and no policy: a test says what is wanted. Whatever comes is kept for the test to look at.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import ssl
import threading
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Address
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import msgspec
from aiohttp import web
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID
from zstandard import ZstdDecompressor

from appliance.controller.online_keys import OnlineKeys
from appliance.controller.root import RootPlan, make_root, sign_root
from appliance.controller.server import end_tasks
from appliance.controller.signing import DeviceMetadata, sign_document, sign_timestamp
from appliance.domain.digest import digest_of
from appliance.fleet import messages
from appliance.fleet.documents import DesiredState, Setting, Transfer, WishedModel, WishedVersion
from appliance.fleet.messages import (
    Acknowledged,
    Batch,
    Enrolled,
    Enrolment,
    Poll,
    Polled,
    Refusal,
    Renewal,
    Renewed,
    Report,
)
from appliance.fleet.metadata import Counters
from appliance.package.keys import PublicKey, make_key, open_signer, public_key_of
from appliance.package.reader import open_package
from appliance.transfer.build import build

Answer = Callable[[web.Request], Awaitable[web.StreamResponse]]
DEVICE = "box-1"


class Authority:
    """Issues certificates, of whatever time."""

    def __init__(self, name: str = "authority") -> None:
        self.key = ec.generate_private_key(ec.SECP256R1())
        self.name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        basic = x509.BasicConstraints(ca=True, path_length=0)
        builder = self._builder(self.name, self.key.public_key(), timedelta(0)).add_extension(basic, True)
        self.certificate = builder.sign(self.key, SHA256())

    @property
    def pem(self) -> str:
        return self.certificate.public_bytes(Encoding.PEM).decode()

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.certificate.public_bytes(Encoding.DER)).digest()

    def server(self, folder: Path, shift: timedelta = timedelta(0)) -> ssl.SSLContext:
        """TLS of a controller at 127.0.0.1 whose certificate is of now and a ``shift``."""
        key = ec.generate_private_key(ec.SECP256R1())
        names = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH])
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "controller")])
        builder = self._builder(name, key.public_key(), shift)
        certificate = builder.add_extension(names, False).add_extension(usage, False).sign(self.key, SHA256())
        file = folder / f"server-{self.name.rfc4514_string()}.pem"
        secret = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        file.write_bytes(secret + certificate.public_bytes(Encoding.PEM) + self.pem.encode())
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(str(file))
        context.load_verify_locations(cadata=self.pem)
        context.verify_mode = ssl.CERT_OPTIONAL
        context.verify_flags |= ssl.VerifyFlags(0x200000)
        return context

    def client(self, request: str, shift: timedelta = timedelta(0)) -> str:
        """A certificate for a device's request."""
        asked = x509.load_pem_x509_csr(request.encode())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, DEVICE)])
        usage = x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH])
        key = asked.public_key()
        assert isinstance(key, ec.EllipticCurvePublicKey)
        builder = self._builder(name, key, shift).add_extension(usage, False)
        return builder.sign(self.key, SHA256()).public_bytes(Encoding.PEM).decode()

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, shift: timedelta
    ) -> x509.CertificateBuilder:
        now = datetime.now(UTC) + shift
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self.name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - timedelta(hours=1))
            .not_valid_after(now + timedelta(days=7))
        )


class ControllerDouble:
    """See the module. A context in which it listens, in a thread of its own."""

    def __init__(self, folder: Path, shift: timedelta = timedelta(0)) -> None:
        self.authority = Authority()
        self.connections: set[int] = set()
        self.records: dict[tuple[str, str], dict[int, bytes]] = {}
        self.files: dict[str, bytes] = {}
        self.chunk = 64 << 10
        self.chunk_s = 0.0
        self.sent_bytes = 0
        self._folder = folder
        self._shift = shift
        self._tls = self.authority.server(folder, shift)
        self.keys = OnlineKeys.create(folder / "online")
        self._offline = open_signer(
            str(_written(folder / "offline.pem", make_key("ed25519")[0])), lambda what: ""
        )
        self._plan = RootPlan(
            offline=[public_key_of(self._offline)],
            threshold=1,
            online=self.keys.public(),
            packages=[],
            expires=datetime.now(UTC) + timedelta(days=1000),
        )
        self.root = sign_root(make_root(self._plan), self._offline)
        self.roots: tuple[bytes, ...] = ()
        self.metadata: DeviceMetadata | None = None
        self.generation = 0
        self.polls: list[Poll] = []
        self.reports: list[Report] = []
        self.enrolments: list[Enrolment] = []
        self.renewals = 0
        self.poll_s = 5
        self.expired = False
        self.renew = False
        self.group = ""
        self.full: Refusal | None = None
        self.fulls = 0
        self.now_ms: Callable[[], int] = lambda: int(datetime.now(UTC).timestamp() * 1000)
        self.instead: Answer | None = None
        self.port = 0
        self._heard = threading.Condition()
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._serve, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        assert self._ready.wait(10)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._loop is not None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(20)

    @property
    def url(self) -> str:
        return f"https://127.0.0.1:{self.port}"

    def token(self, url: str = "", authority: bytes = b"") -> str:
        """What the operator of a box is given."""
        said = [url or self.url, "t1", b"s" * 32, authority or self.authority.digest]
        return "ea1." + base64.urlsafe_b64encode(msgspec.msgpack.encode(said)).decode().rstrip("=")

    def want(
        self, *models: WishedModel, settings: dict[str, Setting] | None = None, generation: int = 0
    ) -> None:
        """Sign a document that says this."""
        self.generation = generation or self.generation + 1
        ordered = tuple(sorted(models, key=lambda each: each.name))
        state = DesiredState(
            device=DEVICE, generation=self.generation, models=ordered, settings=settings or {}
        )
        before = self.metadata.counters if self.metadata else Counters()
        before = msgspec.structs.replace(before, targets=min(before.targets, self.generation - 1))
        self.metadata = sign_document(self.keys, state, before, datetime.now(UTC))

    def stamp(self) -> None:
        """Sign the timestamp anew."""
        assert self.metadata is not None
        self.metadata = sign_timestamp(self.keys, self.metadata, datetime.now(UTC))

    def let_sign(self, maker: PublicKey) -> None:
        """Publish a next root, with which ``maker`` may sign packages."""
        after = make_root(replace(self._plan, packages=[maker]), self.root)
        self.roots = (sign_root(after, self._offline, self.root),)

    def wait(self, what: Callable[[], Any], limit_s: float = 60) -> None:
        """Until ``what`` is so; looked at whenever something came."""
        with self._heard:
            assert self._heard.wait_for(what, limit_s), "it did not come to that"

    @property
    def last(self) -> Report | None:
        return self.reports[-1] if self.reports else None

    def _serve(self) -> None:
        self._loop = asyncio.new_event_loop()
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self._start())
        self._ready.set()
        self._loop.run_forever()
        self._loop.run_until_complete(self._runner.cleanup())
        self._loop.run_until_complete(end_tasks())
        self._loop.close()

    async def _start(self) -> None:
        app = web.Application(client_max_size=8 << 20)
        app.router.add_post("/{path:.*}", self._answer)
        app.router.add_get("/{path:.*}", self._file)
        self._runner = web.AppRunner(app, keepalive_timeout=3600, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, ssl_context=self._tls)
        await site.start()
        self.port = self._runner.addresses[0][1]

    def offer(self, package: Path, base: Path | None = None) -> WishedVersion:
        """Have the streams of a package, whole and as differences to ``base``, to be had; gives the wish for it."""
        with open_package(package) as reader:
            manifest, digest = reader.manifest, digest_of(reader.manifest_bytes)
        ways = []
        for each in (None, base) if base else (None,):
            built = build(package, each, self._folder / "built")
            self.files[f"{messages.STREAMS}{built.stream}"] = (self._folder / "built").read_bytes()
            self.files[f"{messages.INDEXES}{built.index_digest}"] = built.index
            way = Transfer(stream=built.stream, size=built.size, index=built.index_digest, base=built.base)
            ways.append(way)
        return WishedVersion(
            version=manifest.version, manifest=digest, total_bytes=manifest.total_bytes, transfers=tuple(ways)
        )

    async def _file(self, request: web.Request) -> web.StreamResponse:
        """A range of a stream or an index; perhaps the connection breaks in the middle of it."""
        data = self.files.get(request.path)
        if data is None:
            return web.Response(status=404)
        first, last = (int(each) for each in request.headers["Range"].removeprefix("bytes=").split("-"))
        headers = {
            "Content-Type": "application/octet-stream",
            "Content-Range": f"bytes {first}-{last}/{len(data)}",
            "Content-Length": str(last + 1 - first),
        }
        response = web.StreamResponse(status=206, headers=headers)
        await response.prepare(request)
        for at in range(first, last + 1, self.chunk):
            chunk = data[at : min(at + self.chunk, last + 1)]
            await response.write(chunk)
            self.sent_bytes += len(chunk)
            await asyncio.sleep(self.chunk_s)
        await response.write_eof()
        return response

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        self.connections.add(id(request.transport))
        if self.instead is not None:
            return await self.instead(request)
        body = await request.read()
        with self._heard:
            answer, status = self._said(request, body)
            self._heard.notify_all()
        return web.Response(
            body=messages.encode(answer), status=status, headers={"Content-Type": messages.CONTENT_TYPE}
        )

    def _said(self, request: web.Request, body: bytes) -> tuple[msgspec.Struct, int]:
        if request.path == messages.ENROL:
            enrolment = messages.decode(body, Enrolment)
            self.enrolments.append(enrolment)
            certificate = self.authority.client(enrolment.request, self._shift)
            return Enrolled(
                device=DEVICE, certificate=certificate, authorities=self.authority.pem, root=self.root
            ), 200
        assert request.transport is not None
        if not request.transport.get_extra_info("peercert"):
            return Refusal("no-certificate", "who are you?"), 403
        if request.path == messages.TELEMETRY and self.full is not None:
            self.fulls += 1
            return self.full, 429
        if request.path == messages.TELEMETRY:
            return self._told(messages.decode(ZstdDecompressor().decompress(body), Batch)), 200
        if request.path == messages.RENEW:
            self.renewals += 1
            self.expired = self.renew = False
            certificate = self.authority.client(messages.decode(body, Renewal).request)
            return Renewed(certificate=certificate, authorities=self.authority.pem), 200
        if self.expired:
            return Refusal("certificate-expired", "renew it"), 403
        return self._polled(messages.decode(body, Poll)), 200

    def _told(self, batch: Batch) -> Acknowledged:
        held = self.records.setdefault((batch.stream, batch.epoch), {})
        held.update(zip(count(batch.first), batch.records, strict=False))
        return Acknowledged(stream=batch.stream, epoch=batch.epoch, next=batch.first + len(batch.records))

    def _polled(self, poll: Poll) -> Polled:
        self.polls.append(poll)
        if poll.report:
            self.reports.append(messages.decode(poll.report, Report))
        said = Polled(now_ms=self.now_ms(), poll_s=self.poll_s, renew=self.renew, group=self.group)
        if poll.root == 1:
            said = msgspec.structs.replace(said, roots=self.roots)
        if self.metadata is None or poll.timestamp == self.metadata.counters.timestamp:
            return said
        signed = self.metadata
        said = msgspec.structs.replace(said, timestamp=signed.timestamp)
        if poll.snapshot != signed.counters.snapshot:
            said = msgspec.structs.replace(
                said, snapshot=signed.snapshot, targets=signed.targets, document=signed.document
            )
        return said


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    path.chmod(0o600)
    return path
