"""TLS to a port of the appliance: whom a command trusts and who it is, from ``--ca``, ``--cert`` and ``--key``."""

from __future__ import annotations

import argparse
import socket
import ssl
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.cli.arguments import contents
from appliance.cli.failure import CommandFailed, Exit

GRPC: Final = "grpc"
HTTP: Final = "http"
ALPN: Final[Mapping[str, str]] = MappingProxyType({GRPC: "h2", HTTP: "http/1.1"})


class Tls(NamedTuple):
    """PEM texts; ``ca`` is None for the authorities that this machine trusts, ``certificate`` and ``key`` for a client
    that shows none. ``server_name`` is what the
    certificate of the server must bear in the place of the host that is called ("": that host). ``context`` is the same
    for the standard library, whose words tell what is wrong."""

    ca: bytes | None
    certificate: bytes | None
    key: bytes | None
    server_name: str
    context: ssl.SSLContext

    def over(self, plain: socket.socket, host: str, protocols: Iterable[str]) -> ssl.SSLSocket:
        """TLS over the connection ``plain`` to ``host``, for any of the ``protocols``. Raises OSError."""
        self.context.set_alpn_protocols([ALPN[each] for each in protocols])
        return self.context.wrap_socket(plain, server_hostname=self.server_name or host)

    def refusal(self, host: str, port: int, timeout_s: float) -> str:
        """Why no TLS connection for gRPC to there comes about; "" when nothing speaks against one. Raises OSError when
        nobody listens there."""
        with socket.create_connection((host, port), timeout_s) as plain:
            try:
                with self.over(plain, host, (GRPC,)) as client:
                    client.recv(1)  # with TLS 1.3 a server that misses our certificate says so only now
            except ssl.SSLError as error:
                return words(error)
            except OSError:
                return ""
        return ""


def words(error: ssl.SSLError) -> str:
    """What went wrong, as a person says it."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    return (error.reason or str(error)).replace("_", " ").lower()


def refused(address: str, why: str) -> CommandFailed:
    """What to tell of a server at ``address`` with which no TLS connection comes about."""
    return CommandFailed(
        f"something answers at {address}, but TLS with it failed: {why}; --ca must hold who signed the server's "
        "certificate, --server-name a name in it, and --cert and --key what the server wants to see",
        Exit.UNREACHABLE,
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.add_argument(
        "--ca",
        type=Path,
        metavar="FILE",
        help="speak TLS; PEM file of the authorities that may have signed the server's certificate, or of that itself",
    )
    parser.add_argument(
        "--cert", type=Path, metavar="FILE", help="PEM file of the certificate to show; takes --key"
    )
    parser.add_argument("--key", type=Path, metavar="FILE", help="PEM file of its private key")
    parser.add_argument(
        "--server-name",
        default="",
        metavar="NAME",
        help="name that the server's certificate must bear (default: the host of --url)",
    )


def tls_of(arguments: argparse.Namespace, trusted: Path | None = None, server_name: str = "") -> Tls | None:
    """What the arguments say, else ``trusted`` and ``server_name``; None: no TLS. Raises CommandFailed."""
    ca, certificate, key = arguments.ca or trusted, arguments.cert, arguments.key
    if arguments.ca is not None or arguments.server_name:
        server_name = arguments.server_name
    if (certificate is None) != (key is None):
        raise CommandFailed("--cert and --key go together; give both or neither")
    if ca is None:
        if certificate is not None or arguments.server_name:
            raise CommandFailed("--cert, --key and --server-name are for TLS, which takes --ca")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # as the gRPC library has it
    pem = contents(ca)
    try:
        context.load_verify_locations(cadata=pem.decode("ascii", "replace"))
    except (ssl.SSLError, ValueError, TypeError) as error:  # TypeError: what is no text
        raise CommandFailed(f"'{ca}' cannot be used as --ca: it must hold certificates in PEM") from error
    if certificate is None or key is None:
        return Tls(pem, None, None, server_name, context)
    shown = (contents(certificate), contents(key))
    try:
        # The empty password keeps OpenSSL from asking on the terminal for that of an encrypted key.
        context.load_cert_chain(certificate, key, password="")
    except (ssl.SSLError, ValueError) as error:
        text = "both must be PEM, belong together and need no password"
        raise CommandFailed(f"'{certificate}' with the key '{key}' cannot be used: {text}") from error
    return Tls(pem, *shown, server_name, context)
