"""Every message between daemon, zygote and worker: one closed set of types, one codec, one version number.

A message is a msgpack array ``[version, kind, body]`` of bounded size. Tensors never travel here: messages carry
offsets into the memory of the worker's group. What a worker says are the events of the port, with its own number in
front.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NamedTuple, get_args

import msgpack  # type: ignore[import-untyped]

from appliance.domain.load_wish import PLAIN_LOAD, LoadWish
from appliance.domain.model import ModelVersion
from appliance.workers.codec import Decoder, MessageInvalid, decoder_for, to_plain
from appliance.workers.port import (
    Fetch,
    Fetched,
    FormBuilt,
    FormJudged,
    Learn,
    ModelLoaded,
    ModelProgress,
    ModelRefused,
    Run,
    RunFinished,
    WeightsEvicted,
    WeightsPagedIn,
)
from appliance.workers.settings import WorkerSettings

PROTOCOL_VERSION: Final = 8
MAX_MESSAGE_BYTES: Final = 16 << 20
FROM_WORKER_BYTES_MAX: Final = 1 << 20
"""The results of the largest batch, with room to spare: tensors lie in slots."""
ARRAY_MAX: Final = 1 << 17


# --- daemon to worker (with Run, Fetch and Learn of the port)


class Load(NamedTuple):
    model: int
    version: ModelVersion
    wish: LoadWish = PLAIN_LOAD


class EvictWeights(NamedTuple):
    model: int


class PageIn(NamedTuple):
    model: int


class Build(NamedTuple):
    """Build the packed form of a version. ``room_bytes`` as in LoadWish, of all that its worker takes."""

    model: int
    version: ModelVersion
    room_bytes: int = 0


class Unload(NamedTuple):
    model: int


class Forget(NamedTuple):
    """Plans that were learned, of which no more requests come."""

    plans: tuple[int, ...]


class Stop(NamedTuple):
    """Leave after everything that came before."""


# --- daemon to zygote and back


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


class KillSent(NamedTuple):
    """The answer to a Kill: the worker is ending, or has ended."""

    worker: int


class CallRefused(NamedTuple):
    """The worker's jail has refused it the system call of this number, for the first time."""

    worker: int
    number: int


class Exited(NamedTuple):
    """``status`` is what waitpid gave."""

    worker: int
    status: int


ToWorker = Load | Unload | Run | Fetch | Learn | Forget | Stop | EvictWeights | PageIn | Build
FromWorker = (
    ModelLoaded
    | ModelRefused
    | RunFinished
    | Fetched
    | WeightsEvicted
    | WeightsPagedIn
    | FormBuilt
    | FormJudged
    | ModelProgress
)
"""One answer to each Load, Run and Fetch (but those that only forget), in their order, and beside them one to each Load
in the background, EvictWeights, PageIn and Build, in theirs; before that of a Load that asked for it comes, any number
of times, how far it is, and before that of a load or a packed form what became of one that was there."""
ToZygote = Fork | Kill
FromZygote = Ready | Forked | ForkFailed | Exited | KillSent | CallRefused
Message = ToWorker | FromWorker | ToZygote | FromZygote

TO_WORKER: Final[frozenset[type]] = frozenset(get_args(ToWorker))
FROM_WORKER: Final[frozenset[type]] = frozenset(get_args(FromWorker))
TO_ZYGOTE: Final[frozenset[type]] = frozenset(get_args(ToZygote))
FROM_ZYGOTE: Final[frozenset[type]] = frozenset(get_args(FromZygote))

_TYPES: Final[Sequence[type]] = get_args(Message)
_KINDS: Final[Mapping[type, int]] = MappingProxyType({kind: number for number, kind in enumerate(_TYPES)})
_DECODERS: Final[Sequence[Decoder]] = tuple(map(decoder_for, _TYPES))


def encode(message: Message, packer: msgpack.Packer | None = None) -> bytes:
    """The message without its length. A ``packer`` from new_packer saves making one each time. Raises MessageInvalid
    for what no message can hold, as numbers beyond 64 bits and names that are no text."""
    try:
        packed: bytes = (packer or new_packer()).pack((PROTOCOL_VERSION, _KINDS[type(message)], message))
    except (TypeError, ValueError, OverflowError) as problem:
        raise MessageInvalid(
            f"a {type(message).__name__} message cannot hold this ({type(problem).__name__})"
        ) from problem
    if len(packed) > MAX_MESSAGE_BYTES:
        raise MessageInvalid(
            f"a {type(message).__name__} message of {len(packed)} bytes exceeds the limit of {MAX_MESSAGE_BYTES}"
        )
    return packed


def new_packer() -> msgpack.Packer:
    """What encode packs with."""
    return msgpack.Packer(default=to_plain)


def decode(payload: bytes | bytearray | memoryview, allowed: frozenset[type]) -> Message:
    """The message in ``payload`` (no length in front); raises MessageInvalid unless it is one of ``allowed``."""
    # Of a map, keys that collide cost their square, and workers say none.
    maps, arrays = (0, ARRAY_MAX) if allowed is FROM_WORKER else (MAX_MESSAGE_BYTES, MAX_MESSAGE_BYTES)
    try:
        version, kind, body = msgpack.unpackb(
            payload, use_list=False, strict_map_key=False, max_map_len=maps, max_array_len=arrays
        )
        if type(version) is not int or version != PROTOCOL_VERSION:
            raise MessageInvalid(f"another version of the protocol; this side speaks {PROTOCOL_VERSION}")
        if type(kind) is not int or not 0 <= kind < len(_TYPES) or _TYPES[kind] not in allowed:
            raise MessageInvalid("a kind of message that has no place here")
        message: Message = _DECODERS[kind](body)
    except MessageInvalid:
        raise
    except Exception as problem:  # noqa: BLE001 - condemns the sender
        # Whatever decoding does, its sender wrote it. The text of an exception may hold all that was written.
        raise MessageInvalid(f"not a message ({type(problem).__name__})") from None
    return message


def bytes_max(allowed: frozenset[type]) -> int:
    """How long a message may be that is one of ``allowed``: workers say little, and are told of whole models."""
    return FROM_WORKER_BYTES_MAX if allowed is FROM_WORKER else MAX_MESSAGE_BYTES
