"""HTTP in front of the edge, by the native door: it listens, serves what it was taught, and hands all else over."""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Sequence
from typing import Final

from edge_appliance_door import Door, Grants, Tls

from appliance.domain.errors import OperatorError
from appliance.domain.inference import RequestPlan
from appliance.domain.tensor import Datatype
from appliance.engine.fastpath.direct import DirectEngine
from appliance.engine.fastpath.front import Adopt, FrontFigures, FrontTerms, Wording
from appliance.frontend.listening.certificates import Certificates
from appliance.frontend.listening.sockets import Listeners, inherited
from appliance.frontend.native.templates import Texts, tell
from appliance.frontend.quota.quotas import Account
from appliance.workers.port import Shape

POLL_S: Final = 0.005
FLUSH_S: Final = 0.5
"""How long clients get to take their last answers."""

STATUSES: Final = (
    (200, ("http_answered",)),
    (429, ("http_late", "http_over_quota")),
    (504, ("http_expired",)),
    (400, ("http_handshakes_plain",)),
    (503, ("http_unavailable",)),
)
"""The answers that the door makes to requests and to connections, and under which names it counts them."""

HANDSHAKES: Final = (
    ("failed", "http_handshakes_failed"),
    ("late", "http_handshakes_late"),
    ("name", "http_clients_refused"),
    ("plain", "http_handshakes_plain"),
)
"""Why handshakes come to nothing, and under which names it counts them."""
PROTOCOL: Final = "http/1.1"


class NativeFront:
    """HttpFront over the native door. Owner: the event loop's thread."""

    def __init__(self) -> None:
        self._listeners = Listeners("http", dual_stack=False)
        self._door: Door | None = None
        self._direct: DirectEngine | None = None
        self._grants: Grants | None = None
        self._adopt: Adopt | None = None
        self._tls: Tls | None = None

    def attach(self, door: Door, direct: DirectEngine | None) -> None:
        """``door`` serves from here on; with ``direct``, what it was taught by itself."""
        self._door = door
        self._direct = direct
        self._grants = door.grants()

    @property
    def available(self) -> bool:
        """See HttpFront."""
        return self._door is not None

    @property
    def serves(self) -> bool:
        """See HttpFront."""
        return self._direct is not None

    def open(self, terms: FrontTerms, adopt: Adopt) -> tuple[str, ...]:
        """See HttpFront."""
        door = self._door
        assert door is not None, "a front without a door"
        self._adopt = adopt
        bound = self._listeners.open(
            terms.addresses,
            inherited(os.environ, os.getpid()),
            reuse_port=terms.reuse_port,
            access=terms.access,
        )
        try:
            if terms.certificates is not None:
                self._tls = Tls(*terms.certificates, terms.client_names, PROTOCOL)
            self._listeners.hand_over(
                lambda listeners: door.serve_http(
                    listeners=listeners,
                    limits=_limits(terms),
                    server=terms.server,
                    full=terms.full,
                    crowded=terms.crowded,
                    plain=terms.plain,
                    tls=self._tls,
                )
            )
        except (OSError, ValueError) as error:
            self._listeners.close()
            raise OperatorError(f"the native door cannot listen for HTTP: {error}") from error
        return bound

    def admit(self) -> None:
        """See HttpFront."""
        door = self._door
        if door is not None and self._adopt is not None:
            try:
                self._listeners.hand_over_inherited(lambda listeners: door.listen_http(listeners=listeners))
            except OSError as error:
                raise OperatorError(f"the native door cannot take over the sockets: {error}") from error

    def reload(self, certificates: Certificates) -> None:
        """See HttpFront."""
        if self._tls is not None:
            try:
                self._tls.reload(*certificates)
            except ValueError as error:
                raise OperatorError(f"the native door refuses the certificates: {error}") from error

    def adopted(self, descriptor: int, client: str, attempts: int, name: str, account: Account) -> None:
        """The door has handed a connection over."""
        assert self._adopt is not None, "a connection before anybody listened"
        self._adopt(descriptor, client, attempts, name, account)

    def head_of(self, target: str, text: bytes) -> bytes | None:
        """See HttpFront."""
        return None if self._grants is None else self._grants.http_head(target, text)

    def teach(
        self,
        head: bytes,
        plan: RequestPlan,
        shapes: Sequence[Shape],
        sizes: Sequence[int],
        wording: Wording,
    ) -> None:
        """See HttpFront."""
        taught = None if self._direct is None else self._direct.teach(plan, shapes)
        if taught is None or self._grants is None:
            return
        described, *following = wording.pieces
        closing = following.pop() if following else b""
        between = iter(
            [b"", *following]
        )  # what stands before each output that is JSON, but for what all begins with
        pieces = [b"" if datatype is None else next(between) for datatype in wording.outputs]
        texts = Texts(_codes(wording.inputs), _codes(wording.outputs))
        tell(self._grants, head, taught, wording.opening, described, pieces, sizes, closing, texts)

    def figures(self) -> FrontFigures:
        """See HttpFront."""
        counts = {} if self._door is None else self._door.statistics()
        answers = [(status, sum(counts.get(name, 0) for name in names)) for status, names in STATUSES]
        return FrontFigures(
            connections=counts.get("http_connections_open", 0),
            refused_connections=counts.get("http_connections_refused", 0)
            + counts.get("http_connections_per_peer", 0),
            serving=counts.get("http_serving", 0),
            answers=tuple((status, count) for status, count in answers if count),
            handshakes=tuple((why, counts.get(name, 0)) for why, name in HANDSHAKES),
        )

    async def end(self) -> None:
        """See HttpFront."""
        door = self._door
        if door is None or self._adopt is None:
            return
        door.end_http()
        end = time.monotonic() + FLUSH_S
        while _busy(door.statistics()) and time.monotonic() < end:  # noqa: ASYNC110  the door can only be asked
            await asyncio.sleep(POLL_S)
        self._listeners.close()


def _busy(counts: dict[str, int]) -> bool:
    return bool(counts["http_listeners"] or counts["http_connections_open"])


def _codes(datatypes: Sequence[Datatype | None]) -> list[str]:
    """Format characters of ``struct``; empty for what is binary."""
    return ["" if datatype is None else datatype.code for datatype in datatypes]


def _limits(terms: FrontTerms) -> dict[str, int]:
    """By the door's names."""
    return {
        "connections": terms.max_connections,
        "connections_per_peer": terms.max_connections_per_peer,
        "line_bytes": terms.max_header_bytes,
        "headers": terms.max_headers,
        "json_bytes": terms.max_json_bytes,
        "body_bytes": terms.max_body_bytes,
        "keepalive_ms": math.ceil(terms.keepalive_s * 1000),
        "handshake_ms": math.ceil(terms.handshake_timeout_s * 1000),
        "write_stall_ms": math.ceil(terms.write_stall_s * 1000),
        "compress_bytes": terms.compress_min_bytes,
    }
