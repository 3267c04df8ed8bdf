"""Every message there and back, and nothing else."""

from __future__ import annotations

import random

import msgpack  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.assessment import Assessment, Deviation
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import (
    Batching,
    FormRoom,
    ModelVersion,
    QueuePolicy,
    TimeoutAction,
    VersionChoice,
    VersionPolicy,
    Warmup,
    WarmupInput,
    WeightsFile,
)
from appliance.domain.side_by_side import SideBySide
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.workers import messages
from appliance.workers.codec import MessageInvalid, decoder_for, to_plain
from appliance.workers.lane import FrameReader, FrameWriter
from appliance.workers.messages import (
    FROM_WORKER,
    FROM_ZYGOTE,
    TO_WORKER,
    TO_ZYGOTE,
    Build,
    CallRefused,
    EvictWeights,
    Exited,
    Forget,
    Fork,
    Forked,
    ForkFailed,
    Kill,
    KillSent,
    Load,
    Message,
    PageIn,
    Ready,
    Stop,
    Unload,
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
    Learn,
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
from appliance.workers.settings import WorkerSettings

KIND_OF_LOADED = encode(ModelLoaded(1, 1, (), 1, 1))[2]
EVERYTHING = TO_WORKER | FROM_WORKER | TO_ZYGOTE | FROM_ZYGOTE
SPEC = TensorSpec(name="ä/0", datatype=Datatype.BF16, shape=(-1, 3), optional=True)
VERSION = ModelVersion(
    name="m",
    version=3,
    platform="p",
    backend="b",
    runtime="onnx",
    path="/x",
    file_bytes=1 << 40,
    inputs=(SPEC,),
    outputs=(SPEC, SPEC),
    max_batch_size=4,
    batching=Batching(
        preferred_batch_size=(2, 4),
        priority_queue_policy={1: QueuePolicy(timeout_action=TimeoutAction.DELAY, max_queue_size=9)},
    ),
    weights=WeightsFile(path="/w", size=9, digest="ab", pieces=("cd", "ef")),
    golden="/g",
    digest="ab",
    forms="/forms",
    form_room=FormRoom(state="/state", quota_bytes=1 << 40, free_floor_bytes=7),
    labels={"y": ("cat", "dog")},
    label_files={"y": "pets.txt"},
    model_file="m.onnx",
    policy=VersionPolicy(choice=VersionChoice.SPECIFIC, numbers=(2, 5)),
    warmups=(Warmup(name="w", batch_size=1, count=2, inputs=(WarmupInput(spec=SPEC, file="/f"),)),),
    parameters={"k": "v"},
)
ITEM = RunItem(1 << 50, 2, ((2, 3), None, ()), (24, 0, 4), 4096, (0, 2), 8192, 64)
RESULT = RunResult(7, ItemStatus.TOO_LARGE, ((1, 2), ()), (8, 4), 128, "why")
ASSESSMENT = Assessment(2, (Deviation("y", 0.5, 1e-6),), 1, 200, 3, 4, 2)
SAMPLES: list[Message] = [
    Load(1, VERSION, LoadWish(background=True)),
    Load(1, VERSION, LoadWish(room_bytes=1 << 40)),
    EvictWeights(1),
    PageIn(1),
    Build(1, VERSION),
    Unload(1),
    Run(1, 2, (ITEM, ITEM)),
    Run(1, 2, ()),
    Fetch(1, 2, 3),
    Learn(1, 2, 3, 4, 5, ((4, 3), None), (48, 0), (0, 2), ((4,), ()), (16, 1)),
    Forget((1, 2)),
    Stop(),
    ModelLoaded(7, 1, ((1, 100), (2, 150)), 5, 6, ASSESSMENT, 7, True),
    ModelLoaded(7, 1, (), 5, 6),
    ModelLoaded(7, 1, (), 5, 6, device_bytes=8, note="1 of 9 nodes runs elsewhere"),
    WeightsEvicted(7, 1, 2),
    WeightsPagedIn(7, 1, 2, 3, "why"),
    FormJudged(1, 7, "d" * 64 + "-0123", FormVerdict.DROPPED, "it rotted"),
    FormBuilt(7, 1, "form", 2, 3, None),
    FormBuilt(7, 1, "", 0, 3, "no room", True),
    FormBuilt(
        7, 1, "form", 2, 3, None, False, (SideBySide(1, 41, 2_900, 1_000, 2.9), SideBySide(4, 9, 1, 2, 0.5))
    ),
    ModelProgress(7, 1, LoadStage.WARM_UP, 3, 4),
    ModelRefused(7, 1, "no"),
    ModelRefused(7, 1, "no", True, True),
    ModelRefused(7, 1, "no", full=True),
    ModelRefused(7, 1, "no", unsupported=True),
    RunFinished(7, 1, (RESULT, RESULT), 1, 2, 3),
    Fetched(7, RESULT),
    Fork(1, WorkerSettings(2, (0, 1), 1 << 33)),
    Kill(1),
    Ready(("onnx",)),
    Forked(1, 2),
    ForkFailed(1, "no"),
    KillSent(1),
    CallRefused(1, 42),
    Exited(1, 139),
]


@pytest.mark.parametrize("message", SAMPLES, ids=lambda each: type(each).__name__)
def test_there_and_back(message: Message) -> None:
    back = decode(encode(message), EVERYTHING)
    assert back == message
    assert type(back) is type(message)


def test_every_message_is_tried() -> None:
    assert {type(message) for message in SAMPLES} == set(EVERYTHING)


@pytest.mark.parametrize("message", SAMPLES, ids=lambda each: type(each).__name__)
def test_each_field_is_checked(message: Message) -> None:
    """Replace one value anywhere in the message by one of another type: MessageInvalid, never another error."""
    version, kind, body = _unpack(message)
    mutants = list(_mutants(body))
    assert mutants or not body
    for mutant in mutants:
        packed = msgpack.packb((version, kind, mutant))
        with pytest.raises(MessageInvalid):
            decode(packed, EVERYTHING)


def _unpack(message: Message) -> tuple[int, int, tuple[object, ...]]:
    version, kind, body = msgpack.unpackb(encode(message), use_list=False, strict_map_key=False)
    return version, kind, body


def _mutants(value: object) -> list[object]:
    """``value`` with one thing of another type in it, in every place."""
    if isinstance(value, tuple):
        mutants: list[object] = [
            1.5,
            value[0] if len(value) == 1 and not isinstance(value[0], tuple) else "x",
        ]
        for index, each in enumerate(value):
            mutants += [(*value[:index], mutant, *value[index + 1 :]) for mutant in _mutants(each)]
        return mutants
    if isinstance(value, dict):
        return [{key: mutant} for key, each in value.items() for mutant in _mutants(each)] + [[1, 2]]
    if value is None:
        return [1.5]
    if isinstance(value, float):
        return ["x", b"raw"]
    return [1.5, b"raw"]


@pytest.mark.parametrize("cut", [1, 2])
def test_missing_and_extra_fields(cut: int) -> None:
    for message in SAMPLES:
        version, kind, body = _unpack(message)
        bodies = (
            [(*body, 0)] if not body else [body[:-cut] if len(body) >= cut else (0, 0), (*body, *[0] * cut)]
        )
        for changed in bodies:
            with pytest.raises(MessageInvalid):
                decode(msgpack.packb((version, kind, changed)), EVERYTHING)


def test_only_what_is_allowed_here() -> None:
    for message in SAMPLES:
        with pytest.raises(MessageInvalid, match="has no place here"):
            decode(encode(message), EVERYTHING - {type(message)})


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(data: bytes) -> None:
    try:
        decode(data, EVERYTHING)
    except MessageInvalid:
        return
    assert decode(encode(decode(data, EVERYTHING)), EVERYTHING) == decode(data, EVERYTHING)


def test_damaged_messages_are_messages_or_refused() -> None:
    generator = random.Random(11)
    for message in SAMPLES:
        good = encode(message)
        for _ in range(300):
            damaged = bytearray(good)
            damaged[generator.randrange(len(damaged))] = generator.randrange(256)
            try:
                decode(damaged, EVERYTHING)
            except MessageInvalid:
                continue


@pytest.mark.parametrize("depth", [10, 500, 900, 985, 1_000, 1_010, 1_022, 100_000])
def test_deep_nesting_is_refused(depth: int) -> None:
    """In the place of a number; what is said of it holds nothing of it, and is soon said."""
    nested = b"\x91" * depth + b"\x01"
    for at in range(1, 4):
        fields = [b"\x01"] * at + [nested]
        payload = b"\x93" + msgpack.packb(messages.PROTOCOL_VERSION) + bytes((KIND_OF_LOADED,))
        payload += bytes((0x90 | len(fields),)) + b"".join(fields)
        with pytest.raises(MessageInvalid) as refused:
            decode(payload, messages.FROM_WORKER)
        assert len(str(refused.value)) < 100


def test_workers_say_no_maps() -> None:
    """Keys that collide in a map cost the square of their number."""
    payload = msgpack.packb((messages.PROTOCOL_VERSION, KIND_OF_LOADED, ({1: 2}, 1)))
    with pytest.raises(MessageInvalid, match="not a message"):
        decode(payload, messages.FROM_WORKER)


def test_what_is_wrong_is_told_by_type_alone() -> None:
    payload = msgpack.packb((messages.PROTOCOL_VERSION, KIND_OF_LOADED, ["secret" * 10_000] * 9))
    with pytest.raises(MessageInvalid) as refused:
        decode(payload, messages.FROM_WORKER)
    assert "secret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_workers_say_little() -> None:
    length = (messages.FROM_WORKER_BYTES_MAX + 1).to_bytes(4, "little")
    with pytest.raises(MessageInvalid, match="exceeds the limit"):
        FrameReader(messages.FROM_WORKER).feed(length)
    assert FrameReader(TO_WORKER).feed(length) == []


def test_a_message_that_is_too_large_is_not_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "MAX_MESSAGE_BYTES", 100)
    with pytest.raises(MessageInvalid, match="exceeds the limit"):
        encode(ModelRefused(7, 1, "x" * 200))


def test_foreign_types_have_no_place() -> None:
    with pytest.raises(TypeError, match="object has no place"):
        to_plain(object())
    with pytest.raises(TypeError, match="has no place"):
        decoder_for(object)
    with pytest.raises(TypeError, match="has no place"):
        decoder_for(int | str)


@pytest.mark.parametrize("step", [1, 2, 3, 7, 100, 10_000])
def test_frames_however_they_arrive(step: int) -> None:
    stream = b"".join(map(FrameWriter().frame, SAMPLES))
    reader = FrameReader(EVERYTHING)
    heard = [
        message
        for start in range(0, len(stream), step)
        for message in reader.feed(stream[start : start + step])
    ]
    assert heard == SAMPLES


@pytest.mark.parametrize("step", [1, 4, 100])
def test_a_length_beyond_the_limit_is_refused_at_once(step: int) -> None:
    stream = (messages.MAX_MESSAGE_BYTES + 1).to_bytes(4, "little") + b"x" * 100
    reader = FrameReader(EVERYTHING)

    def feed() -> None:
        for start in range(0, len(stream), step):
            reader.feed(stream[start : start + step])

    with pytest.raises(MessageInvalid, match="exceeds the limit"):
        feed()
