"""The ``[quotas]`` section of the configuration: a default for every client, and numbers of their own for
those that are named."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_network
from typing import Final

from appliance.config.listening import client_name_problems
from appliance.domain.address import address_of

RATE_MAX: Final = 1_000_000.0
COUNT_MAX: Final = 1_000_000
_RATE: Final = {"min": 0, "max": RATE_MAX}
_COUNT: Final = {"min": 0, "max": COUNT_MAX}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientQuota:
    """What one client may ask; 0: no bound. It has these numbers alone, whatever the default is. Raises ValueError for
    a burst without a rate."""

    requests_per_s: float = field(
        default=0.0, metadata={**_RATE, "help": "inference requests per second; 0: as many as it likes"}
    )
    burst: int = field(
        default=0,
        metadata={
            **_COUNT,
            "help": "requests that may come at once; 0: as many as in one second, at least one",
        },
    )
    in_flight: int = field(
        default=0, metadata={**_COUNT, "help": "inference requests that are not answered yet; 0: no bound"}
    )

    def __post_init__(self) -> None:
        if problems := list(self.contradictions()):
            raise ValueError("; ".join(problems))

    def contradictions(self) -> Iterator[str]:
        """What is wrong with settings that one another rule out."""
        if self.burst and not self.requests_per_s:
            yield "burst bounds what comes at once of requests_per_s; give both, or neither"


def client_problems(clients: Mapping[str, ClientQuota]) -> Iterator[str]:
    """What is wrong with the names of clients, one text for each that no client can have, or that stands for a client
    that is named already."""
    seen: dict[str, str] = {}
    for name in clients:
        if text := _problem(name):
            yield text
            continue
        address = address_of(name)
        known = seen.setdefault(address or (name if "://" in name else name.lower()), name)
        if known != name:
            yield f"'{name}' and '{known}' are one client; keep one of them"


def _problem(name: str) -> str:
    if address_of(name) is not None:
        return ""
    if _is_network(name):
        return (
            f"'{name}' is a network: name single addresses, or set the default, which holds for each address"
        )
    return next(client_name_problems([name]), "")


def _is_network(name: str) -> bool:
    try:
        ip_network(name, strict=False)
    except ValueError:
        return False
    return True


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotasConfig(ClientQuota):
    """The ``[quotas]`` section: the default, and ``clients`` by name. A client is who its certificate says it is, else
    its IPv4 address or IPv6 network of 64 bits. All who come over Unix sockets are the one client ``unix``, for whom
    there is no default. Raises ValueError as ClientQuota."""

    requests_per_s: float = field(
        default=0.0,
        metadata={
            **_RATE,
            "help": "inference requests per second of each client that is not named; 0: no bound",
        },
    )
    clients: Mapping[str, ClientQuota] = field(
        default_factory=dict,
        metadata={
            "help": "single clients, as [quotas.clients.NAME] with requests_per_s, burst and in_flight: NAME is an "
            "address, unix, or a name in a certificate as in tls_client_names, where *. stands for each client that "
            "it fits; who is named has these numbers alone",
            "check": client_problems,
        },
    )

    @property
    def default(self) -> ClientQuota:
        """What holds for every client that is not named."""
        return ClientQuota(requests_per_s=self.requests_per_s, burst=self.burst, in_flight=self.in_flight)


def certified_names(config: QuotasConfig) -> Iterator[str]:
    """The named clients that only a certificate can tell."""
    return (name for name in config.clients if address_of(name) is None)
