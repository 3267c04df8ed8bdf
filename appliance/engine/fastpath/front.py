"""What may listen for HTTP in the edge's place, as a port: it serves by itself requests that it was taught, and hands
the connections of all others to the edge.

An edge and a door know nothing of one another; both know this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from appliance.domain.inference import RequestPlan
from appliance.domain.tensor import Datatype
from appliance.frontend.listening.access import UnixAccess
from appliance.frontend.listening.certificates import Certificates
from appliance.frontend.quota.quotas import Account
from appliance.workers.port import Shape

Adopt = Callable[[int, str, int, str, Account], None]
"""Takes a connection over: the descriptor of a stream, the client's network address ("": it has none), how often a
worker died with the first request on it, who the client is by its certificate ("": that is not known), and what it may
ask."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontTerms:
    """Where a front listens and what it must keep. Sizes are bytes, times seconds. ``access`` is that to Unix sockets
    that it makes. ``certificates``: TLS is spoken over TCP, and of clients that must show theirs ``client_names`` may
    come (none: all). ``server`` is what answers name themselves; ``full`` is the whole answer to a connection too many,
    ``crowded`` to one too many from its address, ``plain`` to a client that does not speak TLS."""

    addresses: tuple[str, ...]
    reuse_port: bool
    access: UnixAccess
    certificates: Certificates | None
    client_names: tuple[str, ...]
    handshake_timeout_s: float
    max_connections: int
    max_connections_per_peer: int
    max_json_bytes: int
    max_body_bytes: int
    max_header_bytes: int
    max_headers: int
    keepalive_s: float
    write_stall_s: float
    compress_min_bytes: int
    server: str
    full: bytes
    crowded: bytes
    plain: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Wording:
    """How requests bring their tensors, and how their answers are worded. ``inputs`` and ``outputs``, in the order of
    request and answer, name the datatype of each tensor that is JSON (None: it is binary). An answer is ``opening``,
    the id as a member of a JSON object where there is one, ``pieces`` with the elements of the outputs that are JSON
    between them, and the binary outputs."""

    inputs: tuple[Datatype | None, ...]
    outputs: tuple[Datatype | None, ...]
    opening: bytes
    pieces: tuple[bytes, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontFigures:
    """What a front did by itself and has open: ``answers`` are pairs of status and count, ``serving`` counts requests
    that it is serving now; ``handshakes`` are pairs of why and how many TLS handshakes came to nothing."""

    connections: int
    refused_connections: int
    serving: int
    answers: tuple[tuple[int, int], ...]
    handshakes: tuple[tuple[str, int], ...]


class HttpFront(Protocol):
    """Listens for HTTP in front of the edge. All calls come from the event loop's thread."""

    @property
    def available(self) -> bool:
        """Whether it can listen: its door is open."""

    @property
    def serves(self) -> bool:
        """Whether there may be requests that it serves by itself; else it is only a way round."""

    def open(self, terms: FrontTerms, adopt: Adopt) -> tuple[str, ...]:
        """Listen; gives the addresses as bound. Connections that it does not serve by itself are given to ``adopt``.
        Raises AddressUnavailable and OperatorError."""

    def admit(self) -> None:
        """Accept connections on inherited sockets as well, which ``open`` left alone. Raises OperatorError."""

    def reload(self, certificates: Certificates) -> None:
        """Show these from the next connection on. Raises OperatorError, and goes on with the old ones, when they cannot
        be used."""

    def head_of(self, target: str, text: bytes) -> bytes | None:
        """What makes a request recognisable that has this target and this JSON before its binary tensors, whatever its
        id is and whatever tensors are in that JSON; None: nothing does."""

    def teach(
        self,
        head: bytes,
        plan: RequestPlan,
        shapes: Sequence[Shape],
        sizes: Sequence[int],
        wording: Wording,
    ) -> None:
        """Requests with ``head`` are of ``plan``, and their outputs have these shapes and sizes in bytes."""

    def figures(self) -> FrontFigures:
        """A value to show."""

    async def end(self) -> None:
        """Take no more connections, let clients take what they were sent, and close those that wait. May be called
        twice, and without ``open``."""
