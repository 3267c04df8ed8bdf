"""What a worker says: whatever its bytes are, they are an answer that can be true, or end the worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import msgpack  # type: ignore[import-untyped]
from hypothesis import strategies as st

from appliance.core.scheduling.profile import ServiceTime
from appliance.domain.assessment import Assessment, Deviation
from appliance.domain.load_wish import LoadWish
from appliance.domain.side_by_side import SideBySide
from appliance.workers.codec import MessageInvalid
from appliance.workers.daemon.pending_replies import BYTES_MAX, PendingReplies
from appliance.workers.messages import (
    FROM_WORKER,
    Build,
    EvictWeights,
    FromWorker,
    Load,
    PageIn,
    decode,
    encode,
)
from appliance.workers.port import (
    Fetch,
    Fetched,
    FormBuilt,
    FormJudged,
    FormVerdict,
    ItemStatus,
    LoadStage,
    ModelLoaded,
    ModelProgress,
    ModelRefused,
    Run,
    RunFinished,
    RunItem,
    RunResult,
    WeightsEvicted,
    WeightsPagedIn,
)
from tests.fuzz.boundary import Boundary, Judge, RuleBroken
from tests.fuzz.mutations import DEEP, DIGITS, HOSTILE, changed, changed_bytes
from tests.workers.bench import fake

WORKER, MODEL, TIMEOUT_NS = 7, 3, 1_000_000
ITEM = RunItem(50, 1, ((1, 4),), (16,), 0, (0,), 64, 64)
RIGHT = RunResult(50, ItemStatus.OK, ((1, 4),), (16,), 0, "")
LARGE = RunResult(50, ItemStatus.TOO_LARGE, ((1, 32),), (128,), 128, "")
FAILED = RunResult(50, ItemStatus.FAILED, (), (), 0, "no")
LOADED = ModelLoaded(WORKER, MODEL, ((1, 10), (2, 15)), 5, 6)
NAME = f"{'0' * 64}-cpu"
VERSION = replace(fake(), digest="0" * 64)
ERROR_MAX = 500


def _loaded() -> PendingReplies:
    owes = PendingReplies(WORKER)
    owes.owe_load(Load(MODEL, VERSION), TIMEOUT_NS, TIMEOUT_NS)
    owes.settle(LOADED)
    return owes


def _loading() -> PendingReplies:
    owes = PendingReplies(WORKER)
    wish = LoadWish(assess=True, tell=True)
    owes.owe_load(Load(MODEL, VERSION, wish), TIMEOUT_NS, TIMEOUT_NS)
    return owes


def _running() -> PendingReplies:
    owes = _loaded()
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    return owes


def _fetching() -> PendingReplies:
    owes = _running()
    owes.settle(RunFinished(WORKER, 1, (LARGE,), 1, 2, 3))
    owes.owe_fetch(Fetch(50, 4096, 128), TIMEOUT_NS)
    return owes


def _aside(task: EvictWeights | PageIn | Build) -> Callable[[], PendingReplies]:
    def state() -> PendingReplies:
        owes = _loaded()
        owes.expect_background(task, TIMEOUT_NS)
        return owes

    return state


STATES: tuple[Callable[[], PendingReplies], ...] = (
    _loading,
    _running,
    _fetching,
    _aside(EvictWeights(MODEL)),
    _aside(PageIn(MODEL)),
    _aside(Build(MODEL, VERSION)),
)
ANSWERS: tuple[FromWorker, ...] = (
    LOADED,
    LOADED._replace(assessment=Assessment(3, (Deviation("y", 0.5, 0.1),), 6, 2, 10, 20, 0)),
    ModelRefused(WORKER, MODEL, "no"),
    ModelProgress(WORKER, MODEL, next(iter(LoadStage)), 5, 10),
    RunFinished(WORKER, 1, (RIGHT,), 1, 2, 3),
    RunFinished(WORKER, 1, (LARGE,), 1, 2, 3),
    RunFinished(WORKER, 1, (FAILED,), 1, 2, 3),
    Fetched(WORKER, RIGHT),
    WeightsEvicted(WORKER, MODEL, 5),
    WeightsPagedIn(WORKER, MODEL, 5, 6, None),
    FormBuilt(WORKER, MODEL, NAME, 5, 6, None),
    FormBuilt(WORKER, MODEL, NAME, 5, 6, None, compared=(SideBySide(1, 41, 29, 10, 2.9),)),
    FormJudged(WORKER, MODEL, NAME, next(iter(FormVerdict)), "why"),
)
PACKED = [encode(answer) for answer in ANSWERS]
TREES = [msgpack.unpackb(each, use_list=False) for each in PACKED]


def _fits(value: Any) -> bool:
    return not isinstance(value, int) or -(1 << 63) <= value < 1 << 64


def _written(tree: Any) -> bytes:
    """As msgpack; what cannot be in it is left as its beginning."""

    def odd(value: Any) -> Any:
        return str(value)

    packed: bytes = msgpack.packb(tree, default=odd, unicode_errors="surrogatepass")
    deep, digits = (msgpack.packb(word) for word in (DEEP, DIGITS))
    return packed.replace(deep, b"\x91" * 3000).replace(digits, b"\xdd\xff\xff\xff\xff")


CASES = st.one_of(
    changed(TREES, HOSTILE.filter(_fits)).map(_written), changed_bytes(PACKED), st.sampled_from(PACKED)
)


def _numbers(value: Any) -> Iterator[int]:
    """Those that somebody reads: of a result that failed not its shapes, of one that fits not what it needs."""
    if isinstance(value, RunResult):
        read = () if value.status.failed else (value.shapes, value.sizes)
        yield from _numbers((*read, value.needed if value.status is ItemStatus.TOO_LARGE else 0))
    elif isinstance(value, tuple):
        for each in value:
            yield from _numbers(each)
    elif type(value) is int:
        yield value


def judge(case: bytes) -> None:
    """Decode it, and settle it with workers that owe each kind of answer."""
    try:
        message = decode(case, FROM_WORKER)
    except MessageInvalid as error:
        _check_error(error)
        return
    for state in STATES:
        try:
            state().settle(message)  # type: ignore[arg-type]
        except MessageInvalid as error:
            _check_error(error)
            continue
        if any(abs(number) > BYTES_MAX for number in _numbers(tuple(message))):
            raise RuleBroken("believed a number that nothing on this machine can have")
        if isinstance(message, ModelLoaded):
            ServiceTime(3.0, message.seeds)


def _check_error(error: MessageInvalid) -> None:
    if len(str(error)) > ERROR_MAX:
        raise RuleBroken(f"an error of {len(str(error))} characters")


@contextmanager
def opened() -> Iterator[Judge]:
    yield judge


BOUNDARY = Boundary(kept="worker_messages", cases=CASES, opened=opened, examples=1000)
