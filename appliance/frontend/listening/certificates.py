"""The certificates of a port's TLS: read from the configured files, and whether they can be used.

The standard library's OpenSSL is asked, so that a check needs no front end and says what is wrong in its words.
"""

from __future__ import annotations

import asyncio
import os
import ssl
import stat
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, NamedTuple

from appliance.config.listening import ListeningConfig
from appliance.domain.errors import OperatorError

NO_CHECK_TIME: Final = 0x200000
"""X509_V_FLAG_NO_CHECK_TIME of OpenSSL, which the standard library does not name."""


class Certificates(NamedTuple):
    """PEM texts. ``client_ca`` is empty when clients need no certificate."""

    certificate: bytes
    key: bytes
    client_ca: bytes


def read_certificates(config: ListeningConfig, section: str) -> Certificates | None:
    """What the files of ``config``, the ``section`` of the configuration, hold, checked; None when TLS is off. Raises
    OperatorError with everything that is wrong."""
    if not config.tls_certificate:
        return None
    problems = [f"{section}.{key}: {text}" for key, text in certificate_problems(config)]
    if problems:
        raise OperatorError("; ".join(problems))
    try:
        return Certificates(
            Path(config.tls_certificate).read_bytes(),
            Path(config.tls_key).read_bytes(),
            Path(config.tls_client_ca).read_bytes() if config.tls_client_ca else b"",
        )
    except OSError as error:
        raise OperatorError(f"a file of the TLS settings went away: {error}") from error


async def reread_certificates(
    config: ListeningConfig, section: str, show: Callable[[Certificates], None] = lambda _: None
) -> str:
    """Read the certificates of a port that speaks TLS again and ``show`` them from the next connection on; gives until
    when the server's holds ("": no client takes it now). Raises OperatorError, and the old ones stay, when they cannot
    be used. Files are read off the loop's thread: a slow disk must not stall requests."""
    certificates = await asyncio.to_thread(read_certificates, config, section)
    assert certificates is not None
    show(certificates)
    bearer = await asyncio.to_thread(bearer_of, config)
    return bearer.until if bearer else ""


def server_context(config: ListeningConfig, protocol: str) -> ssl.SSLContext:
    """What a server in this process speaks TLS with, from files that were checked; ``protocol`` is what it then speaks,
    for clients that ask (ALPN). Raises OperatorError when they changed meanwhile."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION  # which costs the server more than the client
    context.set_alpn_protocols([protocol])
    try:
        context.load_cert_chain(config.tls_certificate, config.tls_key, password="")
        if config.tls_client_ca:
            context.load_verify_locations(config.tls_client_ca)
            context.verify_mode = ssl.CERT_REQUIRED
    except (ssl.SSLError, OSError, ValueError) as error:
        raise OperatorError(
            f"a file of the TLS settings cannot be used any more: {_reason(error)}"
        ) from error
    return context


class Bearer(NamedTuple):
    """The name in a certificate, by its alternative names or else its common name, and until when, as OpenSSL writes
    it."""

    names: tuple[str, ...]
    until: str


class CertificateEnds:
    """When the certificates end that the servers of ``ports`` show, by the names of these, in seconds since 1970.
    Owner: the event loop's thread."""

    def __init__(self, ports: Mapping[str, ListeningConfig]) -> None:
        self._ports = {
            name: config for name, config in ports.items() if config.tls_certificate and config.addresses
        }
        self._ends: dict[str, int] = {}

    async def read(self, port: str) -> None:
        """Read that of ``port``, which shows it from now on; it stays as it was told where it cannot be read."""
        if port in self._ports:
            bearer = await asyncio.to_thread(bearer_of, self._ports[port], whenever=True)
            if bearer is not None:
                self._ends[port] = int(ssl.cert_time_to_seconds(bearer.until))

    def ends(self) -> Mapping[str, int]:
        """What was read last."""
        return dict(self._ends)


def bearer_of(config: ListeningConfig, *, whenever: bool = False) -> Bearer | None:
    """The name in the server's certificate; None where no client would take it, as when it has expired, unless it is
    asked ``whenever`` that holds.

    The standard library tells what is in a certificate only to a peer: so it is shown to one, in memory."""
    client, server = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
    if whenever:
        client.verify_flags |= ssl.VerifyFlags(NO_CHECK_TIME)
    asked, told = ssl.MemoryBIO(), ssl.MemoryBIO()
    try:
        client.load_verify_locations(config.tls_certificate)
        server.load_cert_chain(config.tls_certificate, config.tls_key, password="")
        sides = (client.wrap_bio(told, asked), server.wrap_bio(asked, told, server_side=True))
        for side in (*sides, sides[0]):
            with suppress(ssl.SSLWantReadError):
                side.do_handshake()
        shown: Any = sides[0].getpeercert()
    except (ssl.SSLError, OSError, ValueError):
        return None
    names = [value for _, value in shown.get("subjectAltName", ())]
    common = [value for part in shown["subject"] for key, value in part if key == "commonName"]
    return Bearer(tuple(names or common), shown["notAfter"])


def certificate_problems(config: ListeningConfig) -> Iterator[tuple[str, str]]:
    """The keys whose files cannot be used, and why."""
    if not (config.tls_certificate and config.tls_key):  # one alone is told of as that
        return
    files = {key: getattr(config, key) for key in ("tls_certificate", "tls_key", "tls_client_ca")}
    unreadable = [(key, text) for key, path in files.items() if path and (text := _unreadable(path))]
    yield from unreadable
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    if not {"tls_certificate", "tls_key"} & {key for key, _ in unreadable}:
        try:
            # The empty password keeps OpenSSL from asking on the terminal for that of an encrypted key.
            context.load_cert_chain(config.tls_certificate, config.tls_key, password="")
        except (ssl.SSLError, OSError, ValueError) as error:
            pair = f"'{config.tls_certificate}' with the key '{config.tls_key}'"
            yield (
                "tls_certificate",
                f"{pair} cannot be used: {_reason(error)}; both must be PEM, belong together and need no password",
            )
    if config.tls_client_ca and "tls_client_ca" not in dict(unreadable):
        try:
            context.load_verify_locations(config.tls_client_ca)
        except (ssl.SSLError, OSError) as error:
            yield (
                "tls_client_ca",
                f"'{config.tls_client_ca}' cannot be used: {_reason(error)}; it must hold certificates in PEM",
            )


def _unreadable(path: str) -> str:
    try:
        with open(path, "rb", opener=_at_once) as file:
            if stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                return ""
        reason = "it is not a file"
    except OSError as error:
        reason = str(error.strerror)
    return f"'{path}' cannot be read: {reason}; give a file that the appliance may read"


def _at_once(path: str, flags: int) -> int:
    """A pipe would be waited for."""
    return os.open(path, flags | os.O_NONBLOCK)


def _reason(error: Exception) -> str:
    """What is wrong, without the place in OpenSSL's C source where it was met."""
    known = getattr(error, "reason", None)
    return str(known).replace("_", " ").lower() if known else str(error)
