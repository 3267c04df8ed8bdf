"""Every message between daemon, zygote and worker: one closed set of types, one codec, one version number.

A message is a msgpack array ``[version, kind, body]`` of bounded size. Tensors never travel here: messages carry
offsets into the arena.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import msgpack  # type: ignore[import-untyped]

from appliance.domain.model import ModelVersion
from appliance.workers.batch_codec import KnownResults, decode_result, decode_run, plain_results
from appliance.workers.codec import Decoder, MessageInvalid, decoder_for, to_plain
from appliance.workers.port import (
    PLAIN_LOAD,
    Assessment,
    Fetch,
    Learn,
    LoadStage,
    LoadWish,
    Run,
    RunResult,
    WorkerSettings,
)

__all__ = [
    "MAX_MESSAGE_BYTES",
    "Build",
    "Built",
    "EvictWeights",
    "Evicted",
    "Exited",
    "Fetch",
    "Finished",
    "Forget",
    "Fork",
    "ForkFailed",
    "Forked",
    "FromWorker",
    "Kill",
    "KillSent",
    "Learn",
    "Load",
    "Loaded",
    "MessageInvalid",
    "PageIn",
    "PagedIn",
    "Progress",
    "Ready",
    "Refused",
    "Run",
    "Stop",
    "Stored",
    "ToWorker",
    "Unload",
    "decode",
    "encode",
]

PROTOCOL_VERSION: Final = 2
MAX_MESSAGE_BYTES: Final = 16 << 20


# --- daemon to worker (with Run, Fetch and Learn of the port)


class Load(NamedTuple):
    model: int
    version: ModelVersion
    wish: LoadWish = PLAIN_LOAD


class EvictWeights(NamedTuple):
    model: int


class PageIn(NamedTuple):
    model: int
    verify: bool


class Build(NamedTuple):
    """Build the packed form of a version."""

    model: int
    version: ModelVersion


class Unload(NamedTuple):
    model: int


class Forget(NamedTuple):
    """Plans that were learned, of which no more requests come."""

    plans: tuple[int, ...]


class Stop(NamedTuple):
    """Leave after everything that came before."""


# --- worker to daemon, one answer to each Load, Run and Fetch (but those that only forget), in their order, and beside
# them one to each Load in the background, EvictWeights, PageIn and Build, in theirs; before that of a Load that asked
# for it comes, any number of times, how far it is


class Progress(NamedTuple):
    model: int
    stage: LoadStage
    done_bytes: int
    total_bytes: int


class Loaded(NamedTuple):
    model: int
    seeds: tuple[tuple[int, int], ...]
    load_ns: int
    memory_bytes: int
    assessment: Assessment | None = None
    evictable_bytes: int = 0
    packed: bool = False


class Refused(NamedTuple):
    model: int
    reason: str
    assessed: bool = False
    not_as_stored: bool = False


class Evicted(NamedTuple):
    model: int
    ns: int


class PagedIn(NamedTuple):
    model: int
    nbytes: int
    ns: int
    failure: str


class Built(NamedTuple):
    model: int
    name: str
    nbytes: int
    ns: int
    failure: str
    later: bool = False


class Finished(NamedTuple):
    batch: int
    results: tuple[RunResult, ...]
    gather_ns: int
    run_ns: int
    scatter_ns: int


class Stored(NamedTuple):
    """The answer to a Fetch."""

    result: RunResult


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


class Exited(NamedTuple):
    """``status`` is what waitpid gave."""

    worker: int
    status: int


ToWorker = Load | Unload | Run | Fetch | Learn | Forget | Stop | EvictWeights | PageIn | Build
FromWorker = Loaded | Refused | Finished | Stored | Evicted | PagedIn | Built | Progress
ToZygote = Fork | Kill
FromZygote = Ready | Forked | ForkFailed | Exited | KillSent
Message = ToWorker | FromWorker | ToZygote | FromZygote

_TYPES: Final[Sequence[type]] = (
    *(Load, Unload, Run, Fetch, Learn, Forget, Stop, EvictWeights, PageIn, Build),
    *(Loaded, Refused, Finished, Stored, Evicted, PagedIn, Built, Progress),
    *(Fork, Kill, Ready, Forked, ForkFailed, Exited, KillSent),
)
_KINDS: Final[Mapping[type, int]] = MappingProxyType({kind: number for number, kind in enumerate(_TYPES)})
_FINISHED: Final = _KINDS[Finished]


def _decode_finished(plain: Any, known: KnownResults) -> Finished:
    if type(plain) is not tuple or len(plain) != len(Finished._fields):
        raise MessageInvalid(f"expected the {len(Finished._fields)} fields of Finished")
    batch, results, gather_ns, run_ns, scatter_ns = plain
    if not (type(batch) is type(gather_ns) is type(run_ns) is type(scatter_ns) is int):
        raise MessageInvalid("batch and times must be integers")
    return Finished(batch, known.decode(results), gather_ns, run_ns, scatter_ns)


def _decode_stored(plain: Any) -> Stored:
    if type(plain) is not tuple or len(plain) != 1:
        raise MessageInvalid("expected one result")
    return Stored(decode_result(plain[0]))


_BY_HAND: Final[Mapping[type, Decoder]] = MappingProxyType({Run: decode_run, Stored: _decode_stored})
_DECODERS: Final[Sequence[Decoder]] = tuple(_BY_HAND.get(kind) or decoder_for(kind) for kind in _TYPES)


def encode(message: Message, packer: msgpack.Packer | None = None) -> bytes:
    """The message without its length. A ``packer`` from new_packer saves making one each time."""
    body: object = message
    if type(message) is Finished:
        body = (message.batch, plain_results(message.results), *message[2:])
    elif type(message) is Stored:
        body = plain_results((message.result,))
    packed: bytes = (packer or new_packer()).pack((PROTOCOL_VERSION, _KINDS[type(message)], body))
    if len(packed) > MAX_MESSAGE_BYTES:
        raise MessageInvalid(
            f"a {type(message).__name__} message of {len(packed)} bytes exceeds the limit of {MAX_MESSAGE_BYTES}"
        )
    return packed


def new_packer() -> msgpack.Packer:
    """What encode packs with."""
    return msgpack.Packer(default=to_plain)


def decode(
    payload: bytes | bytearray | memoryview, allowed: frozenset[type], known: KnownResults | None = None
) -> Message:
    """The message in ``payload`` (no length in front); raises MessageInvalid unless it is one of ``allowed``.

    ``known`` remembers, for one stream, the shapes of results that come again and again.
    """
    try:
        version, kind, body = msgpack.unpackb(payload, use_list=False, strict_map_key=False)
    except (ValueError, TypeError) as problem:
        raise MessageInvalid(f"not a message: {problem}") from problem
    if kind == _FINISHED and version == PROTOCOL_VERSION and known is not None and Finished in allowed:
        return _decode_finished(body, known)  # the one that comes for every batch
    if version != PROTOCOL_VERSION:
        raise MessageInvalid(f"protocol version {version!r}; this side speaks {PROTOCOL_VERSION}")
    if type(kind) is not int or not 0 <= kind < len(_TYPES) or _TYPES[kind] not in allowed:
        raise MessageInvalid(f"message kind {kind!r} has no place here")
    if kind == _FINISHED:
        return _decode_finished(body, KnownResults() if known is None else known)
    message: Message = _DECODERS[kind](body)
    return message


TO_WORKER: Final = frozenset((Load, Unload, Run, Fetch, Learn, Forget, Stop, EvictWeights, PageIn, Build))
FROM_WORKER: Final = frozenset((Loaded, Refused, Finished, Stored, Evicted, PagedIn, Built, Progress))
TO_ZYGOTE: Final = frozenset((Fork, Kill))
FROM_ZYGOTE: Final = frozenset((Ready, Forked, ForkFailed, Exited, KillSent))
