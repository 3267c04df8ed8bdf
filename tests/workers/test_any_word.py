"""Every field of everything that a worker can say, at every value that nobody expects: believed within bounds, or it is
nonsense. Fields are found by their types, so a new one is tried as well."""

from __future__ import annotations

import math
import socket
import types
import typing
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple

import pytest

from appliance.domain.assessment import Assessment, Deviation
from appliance.domain.load_wish import LoadWish
from appliance.domain.side_by_side import SIZES_MAX, SideBySide
from appliance.workers.codec import MessageInvalid
from appliance.workers.daemon.pending_replies import BYTES_MAX, COUNT_MAX, SLACK_NS
from appliance.workers.daemon.process import WorkerProcess
from appliance.workers.jail.access import FORM_BYTES_MIN
from appliance.workers.lane import DaemonLane, socket_pair
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
    REASON_CHARACTERS_MAX,
    SEEDS_MAX,
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
from tests.workers.bench import fake

WORKER, MODEL, BATCH, TICKET = 7, 3, 11, 50
DIGEST = "d" * 64
FORM = f"{DIGEST}-0123456789abcdef"
VERSION = replace(fake(), digest=DIGEST)
ITEM = RunItem(TICKET, 1, ((1, 4),), (16,), 0, (0,), 64, 64)
RIGHT = RunResult(TICKET, ItemStatus.OK, ((1, 4),), (16,), 0, "")
FAILED = RunResult(TICKET, ItemStatus.FAILED, (), (), 0, "why")
LARGE = RunResult(TICKET, ItemStatus.TOO_LARGE, ((1, 32),), (128,), 128, "")
PROOF = Assessment(1, (Deviation("y", 0.5, 0.5),), 1, 5, 3, 4, 2)
TOLD = LoadWish(assess=True, tell=True)

COMPARED = (SideBySide(COUNT_MAX, COUNT_MAX, 300 + SLACK_NS, 1, 10.0 * (300 + SLACK_NS)),) * SIZES_MAX
NUMBERS = (0, 1, -1, -(1 << 63), 1 << 31, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
FRACTIONS = (0.0, -0.0, -1.0, math.nan, math.inf, -math.inf, 5e-324, 1.7e308)
TEXTS = ("", "x" * 20_000, "\x00", "\x1b[2J", "../" * 50, "\U0010ffff" * 8193)
VALUES: dict[type, tuple[Any, ...]] = {
    int: NUMBERS,
    float: FRACTIONS,
    str: TEXTS,
    bool: (False, True),
    **{
        enum: tuple(enum)
        for enum in (ItemStatus, LoadStage, FormVerdict)
    },
}  # fmt: skip
LENGTHS = (0, 2, 100, 5_000)
WORDS_MAX = 1 << 10


class Word(NamedTuple):
    """Something that is true, and what makes it so."""

    asked: tuple[Load | Run | Fetch | EvictWeights | PageIn | Build, ...]
    said: FromWorker


WORDS = (
    Word((Load(MODEL, VERSION, TOLD),), ModelLoaded(WORKER, MODEL, ((1, 10),), 5, 6, PROOF, 7, True)),
    Word((Load(MODEL, VERSION),), ModelRefused(WORKER, MODEL, "no", True, True)),
    Word((Load(MODEL, VERSION, TOLD),), ModelProgress(WORKER, MODEL, LoadStage.READING, 3, 4)),
    Word((Load(MODEL, VERSION),), FormJudged(WORKER, MODEL, FORM, FormVerdict.DROPPED, "it rotted")),
    *(
        Word((Run(BATCH, MODEL, (ITEM,)),), RunFinished(WORKER, BATCH, (result,), 1, 2, 3))
        for result in (RIGHT, FAILED, LARGE)
    ),
    Word((Fetch(TICKET, 4096, 128),), Fetched(WORKER, FAILED)),
    Word((EvictWeights(MODEL),), WeightsEvicted(WORKER, MODEL, 5)),
    Word((PageIn(MODEL),), WeightsPagedIn(WORKER, MODEL, 7, 8, "why")),
    Word((Build(MODEL, VERSION),), FormBuilt(WORKER, MODEL, FORM, 7, 8, None)),
    Word((Build(MODEL, VERSION),), FormBuilt(WORKER, MODEL, FORM, 7, 8, None, False, COMPARED[:1])),
    Word((Build(MODEL, VERSION),), FormBuilt(WORKER, MODEL, "", 0, 8, "no room", True)),
)

LATE_NS = 100 + SLACK_NS
MOST = ModelLoaded(WORKER, MODEL, ((COUNT_MAX, 1),) * SEEDS_MAX, LATE_NS, BYTES_MAX, None, FORM_BYTES_MIN)
BOUNDS = (
    Word((Load(MODEL, VERSION),), MOST),
    Word((Load(MODEL, VERSION),), ModelLoaded(WORKER, MODEL, ((1, LATE_NS),), 0, 0)),
    Word((Load(MODEL, VERSION),), ModelRefused(WORKER, MODEL, "x" * REASON_CHARACTERS_MAX)),
    *(
        Word((Load(MODEL, VERSION, TOLD),), MOST._replace(assessment=proof))
        for proof in (
            PROOF._replace(p50_ns=4),
            PROOF._replace(runs=COUNT_MAX),
            Assessment(0, (), 0, 0, 0, 0, 0),
        )
    ),
    Word(
        (Load(MODEL, VERSION, TOLD),), ModelProgress(WORKER, MODEL, LoadStage.READING, BYTES_MAX, BYTES_MAX)
    ),
    Word((PageIn(MODEL),), WeightsPagedIn(WORKER, MODEL, BYTES_MAX, 300 + SLACK_NS, None)),
    Word((Build(MODEL, VERSION),), FormBuilt(WORKER, MODEL, FORM, 0, 0, None)),
    Word((Build(MODEL, VERSION),), FormBuilt(WORKER, MODEL, FORM, 7, 8, None, False, COMPARED)),
)
"""As far as a word may go."""


def changed(value: Any, annotation: Any) -> Iterator[tuple[str, Any]]:
    """``value`` with one thing in it that nobody expects, and where."""
    if annotation in VALUES:
        yield from (("", other) for other in VALUES[annotation])
    elif typing.get_origin(annotation) in (typing.Union, types.UnionType):
        (present,) = (each for each in typing.get_args(annotation) if each is not types.NoneType)
        yield "", None
        if value is not None:
            yield from changed(value, present)
    elif typing.get_origin(annotation) is tuple:
        yield from _changed_array(value, typing.get_args(annotation))
    else:
        hints = typing.get_type_hints(annotation)
        for name in annotation._fields:
            for where, other in changed(getattr(value, name), hints[name]):
                yield f".{name}{where}", value._replace(**{name: other})


def _changed_array(value: tuple[Any, ...], members: tuple[Any, ...]) -> Iterator[tuple[str, Any]]:
    if members[-1] is Ellipsis:
        if value:
            yield from ((f"*{length}", value[:1] * length) for length in LENGTHS)
        members = members[:1] * len(value)
    for index, (each, member) in enumerate(zip(value, members, strict=True)):
        for where, other in changed(each, member):
            yield f"[{index}]{where}", (*value[:index], other, *value[index + 1 :])


@pytest.fixture
def made() -> Iterator[Callable[[Word], WorkerProcess]]:
    """Gives a worker that owes an answer."""
    lanes: list[socket.socket] = []

    def make(word: Word) -> WorkerProcess:
        ours, theirs = socket_pair()
        lanes.extend((ours, theirs))
        process = WorkerProcess(WORKER, DaemonLane(ours), None)
        owes = process.pending
        if not isinstance(word.asked[0], Load):
            owes.owe_load(Load(MODEL, VERSION), 100, 200)
            owes.settle(ModelLoaded(WORKER, MODEL, (), 5, 6))
        for asked in word.asked:
            if isinstance(asked, Load):
                owes.owe_load(asked, 100, 200)
            elif isinstance(asked, Run):
                owes.owe_run(asked)
            elif isinstance(asked, Fetch):
                owes.owe_fetch(asked, 300)
            else:
                owes.expect_background(asked, 300)
        return process

    yield make
    for each in lanes:
        each.close()


def test_every_word_is_tried() -> None:
    assert {type(word.said) for word in WORDS} == FROM_WORKER


@pytest.mark.parametrize("word", [*WORDS, *BOUNDS], ids=lambda word: type(word.said).__name__)
def test_what_is_true_is_believed(made: Callable[[Word], WorkerProcess], word: Word) -> None:
    assert made(word).pending.settle(word.said) is word.asked[0]


@pytest.mark.parametrize("word", WORDS, ids=lambda word: type(word.said).__name__)
def test_any_other_word_is_believed_within_bounds_or_nonsense(
    made: Callable[[Word], WorkerProcess], word: Word
) -> None:
    tried = believed = 0
    for where, said in changed(word.said, type(word.said)):
        tried += 1
        if (event := heard(made(word), said)) is not None:
            believed += 1
            assert list(beyond(event)) == [], where
    assert 0 < believed < tried


def heard(process: WorkerProcess, said: Any) -> Any:
    """What comes of it; None: it was nonsense."""
    try:
        message: Any = decode(encode(said), FROM_WORKER)
        asked = process.pending.settle(message)
    except MessageInvalid:
        return None
    return process.seen(message, asked, now_ns=1 << 40)


def beyond(value: Any) -> Iterator[object]:
    """What of an event would do harm."""
    if isinstance(value, str):
        yield from [len(value)] * (len(value) > REASON_CHARACTERS_MAX)
    elif isinstance(value, float):
        yield from [value] * (not value >= 0)
    elif isinstance(value, int):
        yield from [value] * (not 0 <= value <= BYTES_MAX)
    elif isinstance(value, tuple):
        yield from [len(value)] * (len(value) > WORDS_MAX)
        for each in value:
            yield from beyond(each)
