"""What a box and its controller send one another: the paths, the messages, their limits. Values only; docs/FLEET.md has
the same to the byte.

All bodies are msgpack, but for ranges of streams, which are the stream's own bytes. Messages are arrays in the order of
their fields; a reader takes fewer fields than it knows for defaults and ignores more, so either side may be the newer
one. A refusal is any status of 400 and above with a ``Refusal``.
"""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

import msgspec
from msgspec import Meta, Struct

from appliance.fleet.documents import DOCUMENT_BYTES_MAX, Count, DigestOrNone, Name, Text
from appliance.fleet.records import Lost

PROTOCOL: Final = 1
CONTENT_TYPE: Final = "application/msgpack"

ENROL: Final = "/device/v1/enrol"
RENEW: Final = "/device/v1/renew"
POLL: Final = "/device/v1/poll"
TELEMETRY: Final = "/device/v1/telemetry"
STREAMS: Final = "/device/v1/streams/"
"""The stream of the digest that follows, whole or by Range."""
INDEXES: Final = "/device/v1/indexes/"
"""The index of the digest that follows: the digests of the stream's pieces, 32 bytes each."""

ANSWER_BYTES_MAX: Final = 2 * DOCUMENT_BYTES_MAX
REQUEST_BYTES_MAX: Final = 4 << 20
TELEMETRY_BYTES_MAX: Final = 1 << 20
"""Of a batch as it is sent; unpacked it has at most ``TELEMETRY_UNPACKED_MAX``."""
TELEMETRY_UNPACKED_MAX: Final = 8 << 20

M = TypeVar("M", bound=Struct)

Pem = Annotated[str, Meta(max_length=16 << 10)]
Metadata = Annotated[bytes, Meta(max_length=512_000)]


class Refusal(Struct, frozen=True, array_like=True):
    """Why a request was refused: a ``code`` for programs, a ``text`` for people, and in how many seconds to come again
    (0: as always)."""

    code: Annotated[str, Meta(max_length=64)]
    text: Text
    retry_after_s: Count = 0


class Enrolment(Struct, frozen=True, array_like=True, kw_only=True):
    """A box that belongs to no fleet yet. ``token`` is what the operator gave it, ``request`` a certificate signing
    request with the key that it made, ``name`` what it would like to be called, "" for a name of the controller's
    choice; ``inventory`` is as in records."""

    protocol: Count = PROTOCOL
    token: Annotated[str, Meta(max_length=1024)]
    request: Pem
    name: Annotated[str, Meta(max_length=64)] = ""
    inventory: dict[str, str] = {}


class Enrolled(Struct, frozen=True, array_like=True, kw_only=True):
    """What a box is from now on: its ``device`` name, its certificate, those that it trusts as its controller's, and
    the first root of signed metadata, from which all later ones follow."""

    device: Name
    certificate: Pem
    authorities: Pem
    root: Metadata


class Renewal(Struct, frozen=True, array_like=True, kw_only=True):
    """A box that wants its certificate anew. It comes with the old one, expired or not."""

    request: Pem


class Renewed(Struct, frozen=True, array_like=True, kw_only=True):
    """The new certificate, and the authorities as they are now."""

    certificate: Pem
    authorities: Pem


class ModelReport(Struct, frozen=True, array_like=True, kw_only=True):
    """How a model stands on the box: the version that is ``wanted`` and the one that is ``serving`` (0: none), versions
    that are ``installed``, the ``phase`` of the wanted one, why it waits or failed (``code`` for programs, ``reason``
    for people), bytes of it that are still to come, and whether the fleet brought it."""

    name: Name
    wanted: Count = 0
    serving: Count = 0
    installed: tuple[Count, ...] = ()
    phase: Annotated[str, Meta(max_length=64)] = ""
    code: Annotated[str, Meta(max_length=64)] = ""
    reason: Text = ""
    missing_bytes: Count = 0
    managed: bool = False


class Drift(Struct, frozen=True, array_like=True, kw_only=True):
    """Where the box differs from what is asked because its operator decided so: what he did (``want``, ``pin``,
    ``rollback``, ``trial``, ``uninstall``), to which version, who he is and when that was, by the box's clock."""

    model: Name
    what: Annotated[str, Meta(max_length=64)]
    version: Count = 0
    who: Annotated[str, Meta(max_length=256)] = ""
    since_ms: Count = 0


class Report(Struct, frozen=True, array_like=True, kw_only=True):
    """How the box stands. ``generation`` is what it works towards, ``trusted_generation`` the newest that it trusts;
    they differ where the newest cannot be done (``problems``). ``freshness`` is "fresh", "stale" or "frozen";
    ``serving`` whether a daemon answers requests; ``outbox_bytes`` what waits to be sent."""

    device: Name
    agent: Annotated[str, Meta(max_length=64)] = ""
    generation: Count = 0
    trusted_generation: Count = 0
    converged: bool = False
    freshness: Annotated[str, Meta(max_length=16)] = ""
    serving: bool = False
    models: Annotated[tuple[ModelReport, ...], Meta(max_length=1024)] = ()
    drift: Annotated[tuple[Drift, ...], Meta(max_length=4096)] = ()
    problems: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()
    settings: dict[str, str] = {}
    outbox_bytes: Count = 0
    budget_left_bytes: Annotated[int, Meta(ge=-1)] = -1
    wall_ms: Count = 0


class Poll(Struct, frozen=True, array_like=True, kw_only=True):
    """A box that asks what is wanted. The versions are of the metadata that it has and trusts (0: none);
    ``report_digest`` is of the report that it would send, and ``report`` that one encoded, or nothing where the
    controller has it."""

    protocol: Count = PROTOCOL
    root: Count = 0
    timestamp: Count = 0
    snapshot: Count = 0
    targets: Count = 0
    report_digest: DigestOrNone = ""
    report: Annotated[bytes, Meta(max_length=1 << 20)] = b""


class Polled(Struct, frozen=True, array_like=True, kw_only=True):
    """What the box does not have: signed metadata, the roots one after another, and the document; nothing where it has
    the newest. ``now_ms`` is the controller's clock, ``poll_s`` when to come again, ``renew`` whether the certificate
    should be renewed, ``wants_report`` whether it lacks the report of that digest, ``group`` that of the device, to be
    shown ("": none, or a controller of an earlier release)."""

    now_ms: Count
    poll_s: Count
    renew: bool = False
    wants_report: bool = False
    roots: Annotated[tuple[Metadata, ...], Meta(max_length=256)] = ()
    timestamp: Metadata = b""
    snapshot: Metadata = b""
    targets: Metadata = b""
    document: Annotated[bytes, Meta(max_length=DOCUMENT_BYTES_MAX)] = b""
    group: Annotated[str, Meta(pattern=r"^([a-z0-9_-][a-z0-9._-]{0,63})?$(?!\n)")] = ""


class Batch(Struct, frozen=True, array_like=True, kw_only=True):
    """Records of one outbox in order, as it lies in the body of ``TELEMETRY`` after zstd: the ``stream`` they belong to
    ("serve", "sync"), its ``epoch``, the sequence number of the first, and each record as its own msgpack value, with
    numbers one after another. ``lost`` are the numbers before ``first`` that will not come; the controller keeps
    them with the records, in one step, so that each number is held or accounted for."""

    stream: Annotated[str, Meta(pattern=r"^[a-z]{1,16}$(?!\n)")]
    epoch: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}$(?!\n)")]
    first: Count
    records: Annotated[tuple[bytes, ...], Meta(max_length=65_536)]
    lost: Annotated[tuple[Lost, ...], Meta(max_length=64)] = ()


class Acknowledged(Struct, frozen=True, array_like=True, kw_only=True):
    """What the controller has of that stream and epoch on its disk for good: everything before ``next``."""

    stream: str
    epoch: str
    next: Count


def encode(message: Struct) -> bytes:
    """The message's bytes."""
    return msgspec.msgpack.encode(message)


def decode(data: bytes, kind: type[M]) -> M:
    """The message of that ``kind``. Raises MessageInvalid."""
    try:
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MessageInvalid(f"is no {kind.__name__}: {error}") from error


class MessageInvalid(ValueError):
    """Bytes that are not the message that they should be."""
