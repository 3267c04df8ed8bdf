"""The native front end: an HTTP/2 server for gRPC on a thread of its own, which never takes the
interpreter's lock.

Python decides and the front end executes: calls are handed over as whole messages and answered with messages and
statuses, and requests with a template, on lanes that are leased (``FastPath``), are served without Python. All
methods are cheap and may be called from one Python thread, the one that polls; none blocks. A call is named by an
integer that is never used again; a method given the id of a call that has ended does nothing and says so
with False. What a call of that kind cannot do, or not yet (a second ``read`` before its MESSAGE), is a
ValueError.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Protocol

__version__: Final[str]

UNARY: Final = 0
"""Kind of a method whose one request message is delivered with the call."""
STREAM: Final = 1
"""Kind of a method whose request messages are asked for one by one."""

CALL: Final = 0
"""Event ``(CALL, call, method, message, deadline_ns, metadata, who, attempts, client, arrived_ns, user)``: an RPC
arrived. ``method`` is the index given to ``NativeServer``; ``message`` the request of a UNARY method, as an object with
the buffer protocol (``bytes`` when it is small), or None; ``deadline_ns`` on CLOCK_MONOTONIC (0: none); ``metadata``
the ASCII custom metadata, a tuple of (key, value) pairs, keys in lower case (pseudo-headers, ``grpc-*`` but not
``triton_*``, ``content-type``, ``te`` and ``user-agent`` are left out); ``who`` is the client as quotas tell them apart
(its name, its IPv4 address or IPv6 network, "unix"); ``attempts`` how often a worker died with it while the front end
served it by itself; ``client`` who the client is by its certificate: the first URI among the alternative names of the
subject, else the first DNS name, else the common name ("": it showed none, or none of these up to 255 bytes);
``arrived_ns`` when its headers came, on CLOCK_MONOTONIC; ``user`` the client's user on this machine when it connected,
as the kernel tells it over a Unix socket (-1: that is not known, as over TCP)."""
MESSAGE: Final = 1
"""Event ``(MESSAGE, call, message, attempts, deadline_ns, over, arrived_ns)``: what ``read`` asked for; None when the
client's side has ended, or is taken to have. ``attempts`` is how often a worker died with it while the front end
served it by itself, ``deadline_ns`` its own deadline if the front end knows of one (0: that of the stream), ``over``
why it is not to be served: what ``Account.take`` would have told of it, and in words (None: it is), ``arrived_ns``
when it began to come, as in CALL. Like SENT, it may still come for a call that was ended while it waited to be
polled."""
SENT: Final = 2
"""Event ``(SENT, call)``: the message given to ``send`` was taken by the transport; there is room for the
next."""
GONE: Final = 3
"""Event ``(GONE, call)``: the client cancelled, its deadline passed or it went away before the call was
ended. The id is dead."""

NEWS: Final = 4
"""Event ``(NEWS,)``: ``FastPath.news`` has something to tell, of at most 2 ms ago."""
TURNED_AWAY: Final = 5
"""Event ``(TURNED_AWAY, peer, client, section)``: a client whose certificate is good was turned away for its name,
within the TLS handshake, at a port of ``section``: "grpc" or "http". At most 50 in ten seconds are told;
``clients_refused`` and ``http_clients_refused`` count all."""

HTTP: Final = 6
"""Event ``(HTTP, descriptor, client, attempts, name, account, user)``: a connected Unix stream socket, Python's from
here on, that speaks for an HTTP connection: whatever ``client`` (its IP address, or "" over a Unix socket) sends that
the front end does not serve by itself comes over it, byte for byte, and what is answered goes back. ``attempts`` is how
often a worker died with the first request on it while the front end served that; ``name`` is who the client is by its
certificate, as in CALL; ``account`` is the client's Account, for this connection; ``user`` is the client's user, as in
CALL: that of the descriptor is the daemon's own."""

OVER_QUOTA: Final = 7
"""Event ``(OVER_QUOTA, client, reason)``: requests of a client are refused for its quota. Told at most once in ten
seconds of each client, and 50 times of all; ``Quotas.figures`` counts all."""

HANDSHAKE: Final = 8
"""Event ``(HANDSHAKE, peer, reason, text)``: a TLS handshake of gRPC came to nothing; ``reason`` is "late", "plain" (no
TLS was spoken) or "failed", ``text`` says more. One of each reason is told in a minute;
``handshakes_late``, ``handshakes_plain`` and ``handshakes_failed`` count all. Names are TURNED_AWAY's."""

class NativeServer:
    """``listeners`` are descriptors of listening, non-blocking TCP or Unix sockets, which the front end takes
    over, here and wherever it is given such: its own when that returns, the caller's as before when it
    raises. ``methods`` are pairs of full path ("/package.Service/Method") and kind; a path that is not among
    them is answered with UNIMPLEMENTED. ``limits`` holds every key of LIMITS. Nothing is served before
    ``start``. ``quotas`` are asked for each request, or message of a stream, of the methods with the indices
    ``inferences``, and for HTTP.

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
        quotas: Quotas | None = None,
        inferences: Sequence[int] = (),
    ) -> None: ...
    def start(self) -> None:
        """Start the thread and accept connections."""

    def listen(self, *, listeners: Sequence[int]) -> None:
        """Accept connections on these listening sockets as well, which the front end takes over. Raises OSError, and
        RuntimeError before ``start``."""

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

    def stop_reading(self, call: int) -> bool:
        """Begin to read no other message from the client of a STREAM call: ``read`` gives the one that has begun to
        come and what is still to be handed over, then None."""

    def send(self, call: int, message: bytes | Sequence[bytes | memoryview]) -> bool:
        """Write one message to a STREAM call; the next only after SENT. Without memory for it, the call ends
        with RESOURCE_EXHAUSTED, and GONE is told."""

    def finish(self, call: int, code: int, text: str = "", metadata: Sequence[tuple[str, str]] = ()) -> bool:
        """End a call of either kind with a status and trailing metadata; ``code`` 0 ends a STREAM call
        well."""

    def fast_path(self) -> FastPath:
        """What the front end may serve by itself."""

    def serve_http(
        self,
        *,
        listeners: Sequence[int],
        limits: Mapping[str, int],
        hosts: Sequence[str] | None,
        server: str,
        full: bytes,
        crowded: bytes,
        plain: bytes = b"",
        tls: Tls | None = None,
    ) -> None:
        """Serve HTTP/1.1 as well on these listening sockets, which the front end takes over. ``limits`` are
        ``connections`` (one more is sent ``full`` and closed), ``connections_per_peer`` (likewise
        ``crowded``), ``line_bytes``, ``headers``, ``json_bytes`` and ``body_bytes`` (requests beyond any of
        them are passed on), ``keepalive_ms`` (a connection that waits longer for a request is closed),
        ``handshake_ms`` (the time for TLS),
        ``write_stall_ms`` (a client that takes no byte for so long is cut off) and ``compress_bytes``
        (answers that may be of this size are passed on for clients that accept gzip or deflate, and nothing
        else where an answer has binary tensors). ``hosts`` are names that requests may be for, in small letters, one
        that begins with a dot for all that end in it, besides addresses and names without a dot (None: any); others
        are passed on. ``server`` names the server in answers. Raises ValueError
        and OSError, and RuntimeError before ``start``. With ``tls`` that is spoken over TCP, connections too
        many are closed without a word, and a client that does not speak it is sent ``plain``."""

    def listen_http(self, *, listeners: Sequence[int]) -> None:
        """Serve HTTP on these as well. Raises OSError, and RuntimeError before ``serve_http``."""

    def end_http(self) -> None:
        """Take no more HTTP connections and close those that wait for a request; the others end with what they
        serve."""

    def drain(self) -> None:
        """Send GOAWAY, close the listeners and take no new calls; those under way go on."""

    def close(self) -> None:
        """Cut everything and end the thread; returns when it has ended. May be called twice."""

    def statistics(self) -> dict[str, int]:
        """Counts since the start: ``connections_open``, ``connections_total``, ``connections_refused``,
        ``clients_refused`` (turned away for the name in their certificate), ``handshakes_late``,
        ``handshakes_plain`` and ``handshakes_failed`` (of TLS, as HANDSHAKE has it), ``accept_failures`` (the kernel
        had no connection to give), ``calls_open``, ``calls_total``, ``calls_refused`` (more than
        32,768 under way of one client, or four times as many in all), ``bytes_in_flight``, ``answer_bytes``
        (answers that clients have not taken yet), ``templates`` (that there are), ``templates_retired``,
        ``answer_bytes_refused`` (answers given up for want of
        memory), ``resets``, ``protocol_errors`` and ``window_errors`` (what the HTTP/2 library refused by
        itself), ``panics`` (faults of the front end itself), and for each limit how often it was enforced, by
        its name; that of the limit ``bytes_in_flight`` is ``bytes_in_flight_refused``, and
        ``connection_bytes_refused`` where it was the half that one connection may hold. ``keepalive_ms``
        counts the pings sent. Of HTTP: ``http_listeners``, ``http_connections_open``,
        ``http_connections_refused``, ``http_connections_per_peer`` (refused for too many from one address),
        ``http_unavailable`` (those of both that were told so, which over TLS nobody is),
        ``http_serving`` (requests that the front end serves by itself now),
        ``http_answered``, ``http_late``, ``http_over_quota`` (refused before they were read, for their
        client's quota) and ``http_expired`` (how it ended them), ``http_json`` (those
        answered with a tensor that came or went as JSON), ``http_uploads`` (whose tensors were copied into
        their slot while they came), ``http_passed`` (requests
        handed to the edge), ``http_tunnels`` (connections handed to it for good), ``http_handshakes_late``,
        ``http_handshakes_plain`` (clients that did not speak TLS), ``http_clients_refused`` (turned away for
        their name), ``http_handshakes_failed`` (of TLS, for any other reason) and ``http_stalled``
        (clients that took nothing of an answer)."""

class Quotas:
    """What clients may ask, by the rule of ``native/src/listen/quota.rs``; without bounds until ``set``.
    ``Terms`` are (label, interval_ns, tolerance_ns, in_flight, rate_text, in_flight_text)."""

    def __init__(self) -> None: ...
    def set(
        self,
        default: tuple[str, int, int, int, str, str],
        named: Sequence[tuple[str, tuple[str, int, int, int, str, str]]],
        max_clients: int,
        now_ns: int,
    ) -> None:
        """These terms hold from now on: ``default`` for all but those with a name, of which the first that fits
        counts, and those over Unix sockets, who are ``unix``."""

    def account(self, client: str, now_ns: int) -> Account:
        """That of a client: an address, ``unix``, or a name in a certificate."""

    def figures(self) -> tuple[int, list[tuple[str, int, int]]]:
        """How many clients are known, and by label how often they were refused for want of tokens, and for what was
        in flight."""

class Account:
    """One client, for one connection to the edge."""

    @property
    def client(self) -> str: ...
    def arrived_ns(self) -> int:
        """When the inference came that is being passed on, on CLOCK_MONOTONIC; 0 where that is not known, or was asked
        before."""

    def take(self, now_ns: int) -> tuple[int, bool]:
        """A request came: 0 when it is let in and to be given back, -2 when whoever passed it on has let it in
        already, -1 when too many are in flight, else nanoseconds until the next token; and whether the refusal is
        to be told."""

    def give(self) -> None: ...
    def reason(self, wait_ns: int) -> str:
        """Why ``take`` told ``wait_ns``."""

class FastPath:
    """Requests that a front end serves by itself: it recognises those that it has a template of by their head, copies
    their tensors into a slot, gives them to a lane that is leased and has room, and answers from what the worker
    leaves there. Whatever does not go well arrives as a CALL, or as a MESSAGE of its stream, as if nothing had
    happened. All methods return at once."""

    def attach(
        self,
        *,
        method: int,
        arena_bytes: int,
        slots: Sequence[tuple[int, Sequence[int]]],
        bounds_ns: Sequence[int],
        slow_ns: int,
    ) -> None:
        """Before ``NativeServer.start``, once: the index of the method; the size of each memory object that tensors lie
        in; the ``slots`` of each that are the front end's from now on, as size and offsets, ascending, in whole pages;
        the bounds of the buckets in which durations are counted; the duration above which a request is told by itself
        (0: none is). Raises ValueError."""

    def serve_stream(self, method: int, requests: int, nbytes: int) -> None:
        """Before ``NativeServer.start``, once: the index of the STREAM method whose messages are such requests too,
        how many of them may be under way on one stream, and how many bytes of messages beyond which no more are read.
        The front end reads those streams ahead of ``read``; what it does not serve arrives as MESSAGEs, and the end
        of the client's side when nothing is left that could. Each message of Python's answers one MESSAGE. Raises
        ValueError the second time."""

    def open_lane(self, lane: int, group: int, memory: int, doorbell: int, tensors: tuple[int, int]) -> None:
        """A worker's lane, without a lease; ``memory`` and ``doorbell`` are the descriptors of a LaneMemory, fresh.
        ``tensors`` are the number and the descriptor of the memory object that the worker has: lanes with the same
        number share it. Raises ValueError when it is open already, OSError when that is no lane's memory, or the
        object cannot be mapped."""

    def close_lane(self, lane: int, last: bool) -> tuple[int, int, list[str]]:
        """The worker's process has ended: what it had arrives as CALLs, what may have run with ``attempts`` 1, or 2 if
        that was one request and this is its ``last``. Gives the model of what it had had for longest (-1: nothing),
        how many requests it had, and the clients of those that may have run."""

    def hold(self, client: str, model: int, until_ns: int) -> None:
        """What this client, as quotas tell clients apart, asks of a model until then arrives as CALLs."""

    def lease(self, lane: int, limit: int) -> bool:
        """Lease the lane: up to ``limit`` requests (at most 1024) may be in flight on it. False: there is no such
        lane."""

    def end_lease(self, lane: int) -> bool:
        """Nothing is given to the lane any more once this has returned."""

    def load(self, lane: int) -> tuple[int, int, int]:
        """Requests that the worker has, the work that they are in ns, and since when it has something to do and
        has completed nothing (0: it has nothing)."""

    def add_template(
        self,
        head: bytes,
        *,
        template: int,
        kind: int,
        model: int,
        group: int,
        rows: int,
        inputs: Sequence[tuple[int, int]],
        out_offset: int,
        span: int,
        opening: bytes,
        described: bytes,
        outputs: Sequence[tuple[bytes, int, int]],
        closing: bytes,
        late_text: str,
        default_timeout_ns: int,
        input_texts: Sequence[str] = (),
        output_texts: Sequence[str] = (),
    ) -> None:
        """Requests with this ``head`` (all of the message but id and raw tensors) have inputs of exactly these
        (bytes, offset in the slot), in the request's order, and are answered with ``opening``, the id,
        ``described``, and the outputs as (bytes before it, offset in the slot, bytes); on a stream ``closing``
        follows, and all of it is the ``infer_response`` of the message. The worker writes outputs from
        ``out_offset``; ``span`` is what the slot must hold. Over HTTP, ``input_texts`` and ``output_texts`` name
        by its format character of ``struct`` each tensor that is JSON ("": binary; no members: all are); outputs
        that are JSON come before the others, and ``closing`` behind the last of them. ValueError when a tensor
        leaves its slot or is not of its format."""

    def retire_template(self, head: bytes, spare: bool) -> bool:
        """Drop the template of a head, but with ``spare`` not one for which a request came since this was asked last.
        Whether there is none now."""

    @staticmethod
    def http_head(target: str, json: bytes) -> bytes | None:
        """What ``add_template`` takes as the head of HTTP requests with this target and this JSON before their binary
        tensors, whatever the id in it is, whatever is in the arrays that are ``data`` of its inputs, and whatever
        white space is between its words. None for
        what is no inference, or uncommon: those requests are never the front end's. ``opening`` is then the answer's
        JSON up to the id and ``described`` what follows it."""

    def drop_templates(self, model: int | None = None) -> None:
        """Drop the templates of a model, or all. What is in flight ends as it would have."""

    def price(
        self, kind: int, charge_per_row_ns: int, batch_ns: int, margin_ns: int, batch_rows: int = 0
    ) -> None:
        """What requests of a kind cost from now on: one that could not be answered ``margin_ns`` before its deadline
        is refused with RESOURCE_EXHAUSTED and ``late_text``, unless nothing is in flight or something has a later
        deadline: then it is a CALL. Kept until ``forget_price``, whatever is dropped of its templates."""

    def forget_price(self, kind: int) -> None:
        """There will be no template of this kind again: they cost nothing."""

    def in_flight(self, model: int) -> int:
        """Requests of a model that a worker may still touch, or that are not answered yet."""

    def backlog(self, model: int) -> int:
        """Requests of a model that wait here for a lease or for Python. They are nobody's in flight."""

    def free_slots(self) -> list[int]:
        """How many slots of each size are free."""

    def news(self) -> tuple[list[tuple[object, ...]], list[int]]:
        """What happened since the last call, in sums per (model, kind, lane): (model, kind, lane, requests,
        rows, batches, stages, refused, cancelled, expired, budget_ns, slow). ``batches`` are (rows, count,
        gather, run, scatter); ``stages`` are queue, gather, run, scatter and total as (counts per bucket,
        sum); ``slow`` are (id, those five, client) of some requests that took long; all in ns. Then the lanes
        whose workers said what cannot be."""

    def sample(self, one_in: int) -> None:
        """Trace one request in so many of those that the front end serves by itself; 0, as at first: none."""

    def traces(self) -> list[tuple[int, int, int, bytes, bytes, tuple[int, ...]]]:
        """The traced requests that were answered since the last call, at most 64: (model, lane, rows, request id,
        ``traceparent`` of the client, stamps). The stamps are when it arrived, was taken, was given to the worker,
        was taken by that, was put into a batch, had run, had its outputs split off, and was answered, on
        CLOCK_MONOTONIC in ns. NEWS tells that there are some."""

class Tls:
    """Server certificates, PEM. ``client_ca`` given: clients must show a certificate that it signed, and that
    bears one of ``client_names``, if there are any; ``*.`` at the front of one stands for one label of a
    host's name. Others are turned away within the handshake, with the alert "access denied". ``protocol`` is
    told to clients that ask (ALPN). Unix sockets are always in the clear. Raises ValueError that says which of
    them is unusable and why."""

    def __init__(
        self,
        certificate: bytes,
        key: bytes,
        client_ca: bytes = b"",
        client_names: Sequence[str] = (),
        protocol: str = "h2",
    ) -> None: ...
    def reload(self, certificate: bytes, key: bytes, client_ca: bytes = b"") -> None:
        """Use these from the next connection on; raises ValueError and keeps the old ones when they are
        unusable."""

class LaneMemory:
    """The memory that the front end and one worker share: their two rings. Made by the daemon, one for each worker
    process; the worker and the front end map it by its descriptor, which stays this object's. Raises OSError when
    there is none."""

    def __init__(self) -> None: ...
    def fileno(self) -> int: ...
    def doorbell(self) -> int:
        """The eventfd that the worker writes to when the front end sleeps; this lane's alone."""

    def mail(self) -> None:
        """Tell the worker that something was written to its socket. Cheap; from any thread."""

class OverlappedRun(Protocol):
    """A run that a device does by itself. What raises has the batch handed over."""

    def begin(self) -> object:
        """Begin it: its inputs are there."""

    def ended(self) -> bool:
        """Whether it has ended; not asked before it has begun."""

    def finish(self) -> object:
        """Wait for its outputs."""

class WorkerRing:
    """The worker's end of its lane. Used in the worker's process only, by one thread.

    ``memory_fd`` is that of a ``LaneMemory`` and ``doorbell_fd`` the eventfd that the front end sleeps on; both are
    duplicated. ``arena`` is writable memory, in which all offsets count. Raises OSError when the descriptors are
    not such, ValueError when the arena is read-only.
    """

    def __init__(self, memory_fd: int, doorbell_fd: int, arena: memoryview) -> None: ...
    def wait(self, timeout_ms: int) -> int:
        """Sleep until something is there, at most ``timeout_ms``: bit 0 mail, bit 1 submissions; 0 after that
        time, or earlier for no reason. Mail is told once: read the socket until nothing is left there."""

    def add_template(
        self,
        template: int,
        kind: int,
        rows: int,
        max_rows: int,
        input_sizes: Sequence[int],
        output_sizes: Sequence[int],
    ) -> None:
        """Know a template: bytes of its tensors for ``rows`` rows, in the model's input order and in the order of the
        wanted outputs. Each lies at the next multiple of 64 from ``offset`` or ``out_offset``. Raises ValueError
        for a template that is known, has no rows, or whose rows have other sizes than those of its kind."""

    def drop_template(self, template: int) -> None:
        """Know it no more, and keep none of its runs, nor of the batches of its kind; nothing when it was not known."""

    def take(self) -> tuple[int, int, int, int, int, int] | None:
        """The next batch as (kind, template, rows, count, offset, out_offset): as many submissions from the front as
        are of one kind and have ``max_rows`` rows together, at least one. Template and offsets, in bytes of the arena,
        are those of the first. None when nothing waits or mail has come, which goes first.

        On the way, what is late is completed EXPIRED, what the front end has withdrawn WITHDRAWN (3), what is of an
        unknown template or lies outside of the arena HAND_OVER. After ``serve`` or ``serve_one`` said so, the batch
        that they left. Raises RuntimeError when the batch before has not been completed."""

    def gather(self, address: int, nbytes: int) -> None:
        """Copy the inputs of the batch to ``nbytes`` of memory at ``address``: input after input, each at the next
        multiple of 64, row after row. Raises ValueError when they do not fit."""

    def scatter(self, address: int, nbytes: int) -> None:
        """Copy outputs that lie so to the places of the requests."""

    def complete(self, status: int, gather_ns: int, run_ns: int, scatter_ns: int) -> None:
        """Tell the end of all requests of the batch: 0 OK, 1 HAND_OVER (Python shall try), 2 EXPIRED; and what its
        steps took."""

    def serve(self, timeout_ms: int) -> int:
        """Run batches as they come, those for which a run is kept, until something else is to be done: 1 mail has
        come, told once; 2 a batch is out for which no run is kept, and ``take`` tells of it; 0 nothing came for
        ``timeout_ms``, or for no reason. A run that raises has its batch handed over and all runs of its kind
        dropped. Raises RuntimeError when a batch has not been completed, or from within a run."""

    def serve_one(self) -> int:
        """Run one batch, if one waits and no mail goes first: 4 it ran or was handed over; 2 as for ``serve``; 0
        there was none."""

    def keep_alone(self, kind: int, template: int, at: tuple[int, int], run: Callable[[], object]) -> int:
        """Call ``run`` for a request of this template that is a batch of its own and lies ``at`` these (offset,
        out_offset). Returns how many runs are kept in all."""

    def keep_merged(
        self, kind: int, rows: int, source: tuple[int, int], place: tuple[int, int], run: Callable[[], object]
    ) -> int:
        """Call ``run`` for batches of so many rows: their inputs are gathered in ``source``, their outputs scattered
        from ``place``, both memory as (address, bytes) that must be there until ``drop_runs``. Returns how many runs
        are kept in all."""

    def keep_turns(
        self, kind: int, max_rows: int, starts: Sequence[int], nbytes: int, addresses: tuple[int, int]
    ) -> None:
        """Gather batches of a kind that a device runs by itself at these two addresses in turn, each with room for
        ``nbytes`` and ``max_rows`` rows, the inputs from ``starts`` on: one while another is run. They must be there
        until ``drop_runs``."""

    def keep_overlapped(
        self, kind: int, rows: int, turn: int, place: tuple[int, int], run: OverlappedRun
    ) -> int:
        """Have batches of so many rows that were gathered at the address ``turn`` of ``keep_turns`` run by ``run``,
        whose outputs are scattered from ``place`` as for ``keep_merged``. ``serve`` begins one that can take no more
        before the one before it has ended, else when that has; ``serve_one`` runs one alone. Returns how many runs
        are kept in all."""

    def drop_runs(self, kind: int | None = None) -> None:
        """Keep no runs, or none of a kind. The one thing here that another thread may do."""

def scan(message: bytes) -> tuple[bytes, bytes, list[tuple[int, int]]] | None:
    """What the front end's scanner reads in a ModelInferRequest, for tests: the head, the id (empty: none), and
    where each raw tensor begins and ends. None for messages that go the long way: fields that are not length-
    delimited or unknown, more than 64 tensors, a head of more than 4096 bytes, two ids, an id that is not
    UTF-8, a broken encoding."""

def json_read(code: str, text: bytes, elements: int) -> bytes | None:
    """The bytes of a tensor of ``elements`` whose JSON array has ``text`` between its brackets, as the front end reads
    it, for tests; ``code`` is the format character of ``struct``. None for what is left to the edge, also because
    it is wrong."""

def json_written(code: str, raw: bytes) -> bytes | None:
    """What the front end writes between the brackets of the JSON array of a tensor, for tests. None for another
    ``code``."""

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
that answer data; likewise), ``control_frames_per_connection`` (frames of any kind that carry nothing, per 10 s
and beyond what calls and their bytes justify; likewise. A SETTINGS counts 32 times, a call that ends for the
client's error four times)."""
