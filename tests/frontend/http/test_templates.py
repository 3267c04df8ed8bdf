"""Which templates of requests the HTTP application gives, without a native front end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from appliance.domain.inference import OutputTensor, PlannedInput, RequestHead, RequestPlan
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype
from appliance.engine.port import EnginePort
from appliance.frontend.http.infer_request import JSON_DATA, InferHead
from appliance.frontend.http.infer_response import InferResponse, encode, identity
from appliance.frontend.http.json_tensor import json_pieces
from appliance.frontend.http.plan_cache import Planned
from appliance.frontend.http.templates import TemplateKeeper, TemplateMaker, Wording

TARGET = "/v2/models/m/infer"
MODEL = cast(ModelVersion, type("Model", (), {"name": 'q"m', "version": 3})())
OUTPUTS = (
    OutputTensor("a", Datatype.FP32, (1, 2), b"12345678"),
    OutputTensor("b", Datatype.INT8, (1, 3), b"abc"),
)


@dataclass(slots=True)
class KeeperDouble:
    """Knows a request by its JSON; notes what it is taught."""

    lessons: list[tuple[bytes, list[tuple[int, ...]], list[int], Wording]] = field(default_factory=list)

    def head_of(self, target: str, text: bytes) -> bytes | None:
        """Nothing, when it is called odd."""
        return None if b"odd" in text else target.encode() + text

    def keep(
        self, head: bytes, plan: object, shapes: Sequence[Any], sizes: Sequence[int], wording: Wording
    ) -> None:
        """Noted."""
        self.lessons.append((head, list(shapes), list(sizes), wording))


@dataclass(slots=True)
class Generation:
    """An engine of which only the generation counts, and how often it had front ends forget."""

    generation: int = 1
    forgotten: int = 0

    def epoch(self, model: object) -> int:
        """Of every model."""
        return self.forgotten


def planned(
    *,
    binary_default: bool = True,
    binary: dict[str, bool] | None = None,
    generation: int = 1,
    json_input: Datatype | None = None,
) -> Planned:
    head = RequestHead(model_name="m", model_version="", inputs=())
    request = InferHead(
        request_id="",
        head=head,
        sizes=(4, JSON_DATA) if json_input else (4,),
        data=(None, [1]) if json_input else (None,),
        binary_outputs=binary or {},
        binary_default=binary_default,
    )
    inputs = [
        PlannedInput(name="i", source=source, datatype=datatype, shape=(1,), nbytes=4, elements=1)
        for source, datatype in enumerate((Datatype.INT32, json_input))
        if datatype
    ]
    plan = RequestPlan(model=MODEL, head=head, rows=1, inputs=tuple(inputs), outputs=(), merge_shape=())
    return Planned(request=request, plan=plan, generation=generation)


@pytest.fixture
def keeper() -> KeeperDouble:
    return KeeperDouble()


@pytest.fixture
def engine() -> Generation:
    return Generation()


@pytest.fixture
def teacher(keeper: KeeperDouble, engine: Generation) -> TemplateMaker:
    return TemplateMaker(cast(TemplateKeeper, keeper), cast(EnginePort, engine))


async def _answer(
    request_id: str, binary: dict[str, bool], outputs: Sequence[OutputTensor] = OUTPUTS
) -> InferResponse:
    return await encode(outputs, MODEL, request_id, binary, True, 4096)


@pytest.mark.parametrize("request_id", ["", "7", 'an "id"'])
@pytest.mark.parametrize("binary", [{}, {"a": False}, {"b": False}, {"a": False, "b": False}], ids=str)
async def test_the_pieces_the_id_and_the_elements_make_the_answer(
    keeper: KeeperDouble, teacher: TemplateMaker, request_id: str, binary: dict[str, bool]
) -> None:
    teacher.consider(b"head", planned(binary=binary), OUTPUTS)
    [(head, shapes, sizes, wording)] = keeper.lessons
    assert (head, shapes, sizes) == (b"head", [(1, 2), (1, 3)], [8, 3])
    described, *pieces = wording.pieces
    made = wording.opening + identity(request_id) + described
    for output, datatype in zip(OUTPUTS, wording.outputs, strict=True):
        assert datatype is (None if binary.get(output.name, True) else output.datatype)
        if datatype:
            made += ",".join(json_pieces(datatype, bytes(output.data), "")).encode() + pieces.pop(0)
    assert not pieces
    assert made == (await _answer(request_id, binary)).parts[0]


def test_a_head_is_taught_once_until_it_is_forgotten(
    keeper: KeeperDouble, engine: Generation, teacher: TemplateMaker
) -> None:
    for generation, forgotten in ((1, 0), (1, 0), (2, 0), (3, 1), (3, 1)):
        engine.generation, engine.forgotten = generation, forgotten
        teacher.consider(b"head", planned(generation=generation), OUTPUTS)
    assert len(keeper.lessons) == 2


def test_what_was_planned_in_an_older_generation_is_not_taught(
    keeper: KeeperDouble, engine: Generation, teacher: TemplateMaker
) -> None:
    """Its answer came after the models changed: the front was told to forget it, and shall not learn it again."""
    old = planned(generation=engine.generation)
    engine.generation += 1
    teacher.consider(b"head", old, OUTPUTS)
    assert not keeper.lessons
    teacher.consider(b"head", planned(generation=engine.generation), OUTPUTS)
    assert len(keeper.lessons) == 1


def test_inputs_that_came_as_json_are_named(keeper: KeeperDouble, teacher: TemplateMaker) -> None:
    teacher.consider(b"head", planned(json_input=Datatype.FP64), OUTPUTS)
    [(_, _, _, wording)] = keeper.lessons
    assert wording.inputs == (None, Datatype.FP64)


def test_what_is_odd_long_or_text_is_not_recognised(teacher: TemplateMaker) -> None:
    assert teacher.head_of(TARGET, b"{}", planned()) == TARGET.encode() + b"{}"
    assert not teacher.head_of(TARGET, b"odd", planned())
    assert not teacher.head_of(TARGET, b" " * 4097, planned())
    assert teacher.head_of(TARGET, b" " * 4097, planned(json_input=Datatype.FP32)), (
        "most of it may be tensors"
    )
    assert not teacher.head_of(TARGET, b"{}", planned(json_input=Datatype.BYTES))


def test_outputs_that_are_strings_are_not_taught(keeper: KeeperDouble, teacher: TemplateMaker) -> None:
    strings = (OutputTensor("a", Datatype.BYTES, (1,), b"\x01\0\0\0x"),)
    teacher.consider(b"head", planned(binary_default=False), strings)
    assert not keeper.lessons
