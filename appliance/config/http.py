"""The ``[http]`` section of the configuration: addresses and a bound for everything a client can make large
or slow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from appliance.config.listening import ADDRESSES, ListeningConfig, client_name_problems

MEBIBYTE = 1 << 20
ANY_HOST: Final = "*"


def host_problems(hosts: Sequence[str]) -> Iterator[str]:
    """What is wrong with names of the server, one text for each that no client could ask for."""
    for host in hosts:
        name = host.removeprefix("*.")
        letters = name.replace("-", "").replace("_", "").replace(".", "")
        if host != ANY_HOST and not (name.isascii() and letters.isalnum() and "" not in name.split(".")):
            yield f"{host!r} is no host: give a name without a port, '*.' and a domain for all names in it, or '*'"


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpConfig(ListeningConfig):
    """The ``[http]`` section. Sizes are bytes, times seconds."""

    addresses: tuple[str, ...] = field(default=("127.0.0.1:8000",), metadata=ADDRESSES)
    hosts: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "names with a dot by which clients without TLS may ask for this server, besides its own, the hosts "
            "of addresses, and those in .lan, .local, .internal and others that are public nowhere; *.site.example for "
            "all names in a domain; "
            "*: any, where no browser runs that reaches it. IP addresses and names without a dot are always taken",
            "check": host_problems,
        },
    )
    tls_client_ca: str = field(
        default="",
        metadata={
            "help": "PEM file of authorities; clients must then show a certificate that one of them signed, also "
            "for metrics and the status page"
        },
    )
    tls_client_names: tuple[str, ...] = field(
        default=(),
        metadata={
            "help": "who may come with such a certificate, as grpc.tls_client_names has it; empty: everybody "
            "(native front end)",
            "check": client_name_problems,
        },
    )
    handshake_timeout_s: float = field(
        default=10.0,
        metadata={
            "min": 0.1,
            "unit": "s",
            "help": "from a new connection to the end of its TLS handshake",
        },
    )
    max_body_bytes: int = field(
        default=64 * MEBIBYTE,
        metadata={
            "min": 1024,
            "unit": "bytes",
            "help": "largest request body, before and after decompression",
        },
    )
    max_json_answer_bytes: int = field(
        default=64 * MEBIBYTE,
        metadata={
            "min": 1024,
            "unit": "bytes",
            "help": "largest JSON text of tensors in an answer, numbers at the most characters that their datatype may "
            "take (FP32: 25 with the comma); larger ones are refused: they belong into binary tensor data",
        },
    )
    max_bodies_bytes: int = field(
        default=256 * MEBIBYTE,
        metadata={
            "min": 1024,
            "unit": "bytes",
            "help": "all request bodies in memory together; as much again for answers to inferences that clients have "
            "not taken yet",
        },
    )
    max_connections: int = field(
        default=2048,
        metadata={
            "min": 1,
            "help": "open connections; more are answered 503 and closed; the native front end counts those in their "
            "TLS handshake, and closes what is too many of them at once",
        },
    )
    max_connections_per_peer: int = field(
        default=1024,
        metadata={
            "min": 1,
            "help": "open connections from one IPv4 address or IPv6 network of 64 bits; more are answered 503, over "
            "TLS closed at once; raise it where many clients come from one address, as from behind a proxy (native "
            "front end)",
        },
    )
    keepalive_s: float = field(
        default=75.0, metadata={"min": 1, "unit": "s", "help": "how long an idle connection stays open"}
    )
    head_timeout_s: float = field(
        default=10.0,
        metadata={
            "min": 0.1,
            "unit": "s",
            "help": "from the first byte of a request to the end of its headers",
        },
    )
    body_timeout_s: float = field(
        default=60.0, metadata={"min": 0.1, "unit": "s", "help": "from the headers to the end of the body"}
    )
    write_stall_s: float = field(
        default=30.0,
        metadata={
            "min": 0.1,
            "unit": "s",
            "help": "how long a client may take no byte of its answer; over TLS, nothing of its last 64 KiB",
        },
    )

    def contradictions(self) -> Iterator[str]:
        """As of every protocol, and of sizes."""
        yield from ListeningConfig.contradictions(self)
        if self.max_bodies_bytes < self.max_body_bytes:
            yield (
                f"max_bodies_bytes is {self.max_bodies_bytes}, less than one body of max_body_bytes, "
                f"{self.max_body_bytes}; raise the one or lower the other"
            )
