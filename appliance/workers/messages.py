"""Every message between daemon, supervisor and worker: one closed set of types, one codec, one version number.

A message is a msgpack array ``[version, kind, body]``; on a stream it follows its length as a little-endian uint32.
Sizes are bounded before memory is taken. Tensors never travel here: messages carry offsets into the arena.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]

from appliance.model import ModelVersion
from appliance.workers.batch_codec import decode_result, decode_results, decode_run, plain_results
from appliance.workers.codec import Decoder, MessageInvalid, decoder_for, to_plain
from appliance.workers.port import Fetch, Run, RunResult, WorkerSettings

__all__ = [
    "MAX_MESSAGE_BYTES",
    "Exited",
    "Fetch",
    "Finished",
    "Fork",
    "ForkFailed",
    "Forked",
    "FrameReader",
    "FromWorker",
    "Kill",
    "Load",
    "Loaded",
    "MessageInvalid",
    "Ready",
    "Refused",
    "Run",
    "Stop",
    "Stored",
    "ToWorker",
    "Unload",
    "decode",
    "encode",
    "encode_frame",
]

PROTOCOL_VERSION: Final = 1
MAX_MESSAGE_BYTES: Final = 16 << 20

_LENGTH = struct.Struct("<I")


# --- daemon to worker (with Run and Fetch of the port)


class Load(NamedTuple):
    model: int
    version: ModelVersion


class Unload(NamedTuple):
    model: int


class Stop(NamedTuple):
    """Leave after everything that came before."""


# --- worker to daemon, one answer to each Load, Run and Fetch (but those that only forget), in their order


class Loaded(NamedTuple):
    model: int
    seeds: tuple[tuple[int, int], ...]
    load_ns: int
    memory_bytes: int


class Refused(NamedTuple):
    model: int
    reason: str


class Finished(NamedTuple):
    batch: int
    results: tuple[RunResult, ...]
    gather_ns: int
    run_ns: int
    scatter_ns: int


class Stored(NamedTuple):
    """The answer to a Fetch."""

    result: RunResult


# --- daemon to supervisor and back


class Fork(NamedTuple):
    """Fork a worker; its end of the lane comes with this message as a descriptor."""

    worker: int
    settings: WorkerSettings


class Kill(NamedTuple):
    worker: int


class Ready(NamedTuple):
    """The runtimes are imported; forks are served. ``runtimes`` are their names."""

    runtimes: tuple[str, ...]


class Forked(NamedTuple):
    worker: int
    pid: int


class ForkFailed(NamedTuple):
    worker: int
    reason: str


class Exited(NamedTuple):
    """``status`` is what waitpid gave."""

    worker: int
    status: int


ToWorker = Load | Unload | Run | Fetch | Stop
FromWorker = Loaded | Refused | Finished | Stored
ToSupervisor = Fork | Kill
FromSupervisor = Ready | Forked | ForkFailed | Exited
Message = ToWorker | FromWorker | ToSupervisor | FromSupervisor

_TYPES: Final[Sequence[type]] = (
    *(Load, Unload, Run, Fetch, Stop),
    *(Loaded, Refused, Finished, Stored),
    *(Fork, Kill, Ready, Forked, ForkFailed, Exited),
)
_KINDS: Final[Mapping[type, int]] = MappingProxyType({kind: number for number, kind in enumerate(_TYPES)})
_TIMES: Final = (int, int, int)


def _decode_finished(plain: Any) -> Finished:
    if type(plain) is not tuple or len(plain) != len(Finished._fields):
        raise MessageInvalid(f"expected the {len(Finished._fields)} fields of Finished")
    batch, results, *times = plain
    if type(batch) is not int or tuple(map(type, times)) != _TIMES:
        raise MessageInvalid("batch and times must be integers")
    return Finished(batch, decode_results(results), *times)


def _decode_stored(plain: Any) -> Stored:
    if type(plain) is not tuple or len(plain) != 1:
        raise MessageInvalid("expected one result")
    return Stored(decode_result(plain[0]))


_BY_HAND: Final[Mapping[type, Decoder]] = MappingProxyType(
    {Run: decode_run, Finished: _decode_finished, Stored: _decode_stored}
)
_DECODERS: Final[Sequence[Decoder]] = tuple(_BY_HAND.get(kind) or decoder_for(kind) for kind in _TYPES)


def encode(message: Message) -> bytes:
    """The message without its length."""
    body: object = message
    if type(message) is Finished:
        body = (message.batch, plain_results(message.results), *message[2:])
    elif type(message) is Stored:
        body = plain_results((message.result,))
    packed: bytes = msgpack.packb((PROTOCOL_VERSION, _KINDS[type(message)], body), default=to_plain)
    if len(packed) > MAX_MESSAGE_BYTES:
        raise MessageInvalid(
            f"a {type(message).__name__} message of {len(packed)} bytes exceeds the limit of {MAX_MESSAGE_BYTES}"
        )
    return packed


def encode_frame(message: Message) -> bytes:
    """The message with its length in front, as it goes through a stream."""
    packed = encode(message)
    return _LENGTH.pack(len(packed)) + packed


def decode(payload: bytes | bytearray | memoryview, allowed: frozenset[type]) -> Message:
    """The message in ``payload`` (no length in front); raises MessageInvalid unless it is one of ``allowed``."""
    try:
        envelope = msgpack.unpackb(payload, use_list=False, strict_map_key=False)
        version, kind, body = envelope
    except (ValueError, TypeError) as problem:
        raise MessageInvalid(f"not a message: {problem}") from problem
    if version != PROTOCOL_VERSION:
        raise MessageInvalid(f"protocol version {version!r}; this side speaks {PROTOCOL_VERSION}")
    if type(kind) is not int or not 0 <= kind < len(_TYPES) or _TYPES[kind] not in allowed:
        raise MessageInvalid(f"message kind {kind!r} has no place here")
    message: Message = _DECODERS[kind](body)
    return message


TO_WORKER: Final = frozenset((Load, Unload, Run, Fetch, Stop))
FROM_WORKER: Final = frozenset((Loaded, Refused, Finished, Stored))
TO_SUPERVISOR: Final = frozenset((Fork, Kill))
FROM_SUPERVISOR: Final = frozenset((Ready, Forked, ForkFailed, Exited))


class FrameReader:
    """Cuts a byte stream into payloads. Owned by the one reader of the stream."""

    def __init__(self) -> None:
        self._partial = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The payloads that are complete now. Raises MessageInvalid as soon as a length exceeds MAX_MESSAGE_BYTES."""
        if self._partial:
            self._partial += data
            if not self._has_frame():
                return []
            data = bytes(self._partial)
            self._partial.clear()
        return self._cut(data)

    def _has_frame(self) -> bool:
        if len(self._partial) < _LENGTH.size:
            return False
        length: int = _LENGTH.unpack_from(self._partial)[0]
        return length > MAX_MESSAGE_BYTES or len(self._partial) >= _LENGTH.size + length

    def _cut(self, data: bytes) -> list[bytes]:
        payloads: list[bytes] = []
        position, end = 0, len(data)
        while position + _LENGTH.size <= end:
            (length,) = _LENGTH.unpack_from(data, position)
            if length > MAX_MESSAGE_BYTES:
                raise MessageInvalid(f"a message of {length} bytes exceeds the limit of {MAX_MESSAGE_BYTES}")
            stop = position + _LENGTH.size + length
            if stop > end:
                break
            payloads.append(data[position + _LENGTH.size : stop])
            position = stop
        if position < end:
            self._partial += data[position:]
        return payloads
