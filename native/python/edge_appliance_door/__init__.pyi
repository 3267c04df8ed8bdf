"""The native front door: an HTTP/2 server for gRPC on a thread of its own, which never takes the
interpreter's lock.

It carries calls and decides nothing: Python is handed whole messages and answers with messages and
statuses. All methods are cheap and may be called from one Python thread, the one that polls; none blocks.
A call is named by an integer that is never used again; a method given the id of a call that has ended does
nothing and says so with False. What a call of that kind cannot do, or not yet (a second ``read`` before
its MESSAGE), is a ValueError.
"""

from collections.abc import Mapping, Sequence
from typing import Final

__version__: Final[str]

UNARY: Final = 0
"""Kind of a method whose one request message is delivered with the call."""
STREAM: Final = 1
"""Kind of a method whose request messages are asked for one by one."""

CALL: Final = 0
"""Event ``(CALL, call, method, message, deadline_ns, metadata, peer)``: an RPC arrived. ``method`` is the
index given to ``Door``; ``message`` the request of a UNARY method, as an object with the buffer protocol
(``bytes`` when it is small), or None; ``deadline_ns`` on CLOCK_MONOTONIC (0: none); ``metadata`` the ASCII
custom metadata, a tuple of (key, value) pairs, keys in lower case (pseudo-headers, ``grpc-*`` but not
``triton_*``, ``content-type``, ``te`` and ``user-agent`` are left out); ``peer`` is the address as gRPC
writes it ("ipv4:10.0.0.1:5", "ipv6:[::1]:5", "unix:" for Unix sockets)."""
MESSAGE: Final = 1
"""Event ``(MESSAGE, call, message)``: what ``read`` asked for; None when the client's side has ended. Like
SENT, it may still come for a call that was ended while it waited to be polled."""
SENT: Final = 2
"""Event ``(SENT, call)``: the message given to ``send`` was taken by the transport; there is room for the
next."""
GONE: Final = 3
"""Event ``(GONE, call)``: the client cancelled, its deadline passed or it went away before the call was
ended. The id is dead."""

class Door:
    """``listeners`` are descriptors of listening, non-blocking TCP or Unix sockets, which the door takes
    over. ``methods`` are pairs of full path ("/package.Service/Method") and kind; a path that is not among
    them is answered with UNIMPLEMENTED. ``limits`` holds every key of LIMITS. Nothing is served before
    ``start``.

    Raises ValueError for a missing, unknown or impossible limit, naming it; OSError when a descriptor
    cannot be used.
    """

    def __init__(
        self,
        *,
        listeners: Sequence[int],
        methods: Sequence[tuple[str, int]],
        limits: Mapping[str, int],
        tls: Tls | None = None,
    ) -> None: ...
    def start(self) -> None:
        """Start the thread and accept connections."""

    def fileno(self) -> int:
        """A descriptor that is readable while events wait; poll it, never read it."""

    def poll(self) -> list[tuple[object, ...]]:
        """All events that wait, oldest first; the empty list when there are none. Never blocks."""

    def reply(self, call: int, message: bytes | Sequence[bytes | memoryview]) -> bool:
        """End a UNARY call well with ``message``, given whole or in pieces, which are copied before this
        returns. When clients have not taken so many answers that there is no memory for this one, it ends
        with RESOURCE_EXHAUSTED instead, which is not told."""

    def read(self, call: int) -> bool:
        """Ask a STREAM call for its next message: one MESSAGE event will come, or GONE."""

    def send(self, call: int, message: bytes | Sequence[bytes | memoryview]) -> bool:
        """Write one message to a STREAM call; the next only after SENT. Without memory for it, the call ends
        with RESOURCE_EXHAUSTED, and GONE is told."""

    def finish(self, call: int, code: int, text: str = "", metadata: Sequence[tuple[str, str]] = ()) -> bool:
        """End a call of either kind with a status and trailing metadata; ``code`` 0 ends a STREAM call
        well."""

    def drain(self) -> None:
        """Send GOAWAY, close the listeners and take no new calls; those under way go on."""

    def close(self) -> None:
        """Cut everything and end the thread; returns when it has ended. May be called twice."""

    def statistics(self) -> dict[str, int]:
        """Counts since the start: ``connections_open``, ``connections_total``, ``connections_refused``,
        ``accept_failures`` (the kernel had no connection to give), ``calls_open``, ``calls_total``,
        ``bytes_in_flight``, ``answer_bytes`` (answers that clients have not taken yet),
        ``answer_bytes_refused`` (answers given up for want of memory), ``resets``, ``panics`` (faults
        of the door itself), and for each limit how often it was enforced, by its name; that of the
        limit ``bytes_in_flight`` is ``bytes_in_flight_refused``, and ``connection_bytes_refused`` where
        it was the half that one connection may hold. ``keepalive_ms`` counts the pings sent."""

class Tls:
    """Server certificates, PEM. ``client_ca`` given: clients must show a certificate that it signed. Unix
    sockets are always in the clear. Raises ValueError that says which of them is unusable and why."""

    def __init__(self, certificate: bytes, key: bytes, client_ca: bytes = b"") -> None: ...
    def reload(self, certificate: bytes, key: bytes, client_ca: bytes = b"") -> None:
        """Use these from the next connection on; raises ValueError and keeps the old ones when they are
        unusable."""

LIMITS: Final[tuple[str, ...]]
"""``message_bytes`` (largest request message; more is RESOURCE_EXHAUSTED), ``metadata_bytes`` (largest
header list), ``streams_per_connection``, ``connections``, ``connections_per_peer`` (by IPv4 address or
IPv6 network of 64 bits), ``bytes_in_flight`` (request messages held at any time, all calls together; more
is RESOURCE_EXHAUSTED, as is more than half of it, or one message if that is more, over one connection; the
same bounds hold once more for answers that clients have not taken yet, and half of it again for what
clients send ahead, beyond 64 KiB for each connection), ``keepalive_ms``, ``keepalive_timeout_ms``,
``connection_age_ms`` (0: no bound), ``handshake_ms`` (TLS and HTTP/2 preface), ``idle_body_ms`` (time in
which a request body must progress by 64 KiB or to the end of its message; else it is cut with
DEADLINE_EXCEEDED), ``write_stall_ms`` (time in which a client must take 64 KiB of an answer, or its rest;
else it is cut), ``resets_per_connection`` (RST_STREAM before the call was answered, per 10 s; more closes
the connection with ENHANCE_YOUR_CALM), ``pings_per_connection`` (pings by the client per 10 s beyond those
that answer data; likewise)."""
