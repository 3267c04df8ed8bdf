"""What the edge teaches to whoever listens in its place, without anybody who does."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from appliance.engine.front import HttpFront
from appliance.engine.port import EnginePort
from appliance.http.infer_request import InferHead
from appliance.http.infer_response import InferResponse, encode
from appliance.http.plan_cache import Planned
from appliance.http.teaching import Teacher
from appliance.inference import OutputTensor, RequestHead, RequestPlan
from appliance.model import ModelVersion
from appliance.tensor import Datatype

TARGET = "/v2/models/m/infer"
MODEL = cast(ModelVersion, type("Model", (), {"name": 'q"m', "version": 3})())
OUTPUTS = (
    OutputTensor("a", Datatype.FP32, (1, 2), b"12345678"),
    OutputTensor("b", Datatype.INT8, (1, 3), b"abc"),
)


@dataclass(slots=True)
class FrontDouble:
    """Knows a request by its JSON; notes what it is taught."""

    lessons: list[tuple[bytes, list[tuple[int, ...]], list[int], bytes, bytes]] = field(default_factory=list)

    def head_of(self, target: str, text: bytes) -> bytes | None:
        """Nothing, when it is called odd."""
        return None if b"odd" in text else target.encode() + text

    def teach(
        self,
        head: bytes,
        plan: object,
        shapes: Sequence[Any],
        sizes: Sequence[int],
        opening: bytes,
        rest: bytes,
    ) -> None:
        """Noted."""
        self.lessons.append((head, list(shapes), list(sizes), opening, rest))


@dataclass(slots=True)
class Generation:
    """An engine of which only the generation counts."""

    generation: int = 1


def planned(
    *, binary_default: bool = True, binary: dict[str, bool] | None = None, generation: int = 1
) -> Planned:
    head = RequestHead(model_name="m", model_version="", inputs=())
    request = InferHead(
        request_id="",
        head=head,
        sizes=(4,),
        data=(None,),
        binary_outputs=binary or {},
        binary_default=binary_default,
    )
    plan = RequestPlan(model=MODEL, head=head, rows=1, inputs=(), outputs=(), merge_shape=())
    return Planned(request=request, plan=plan, generation=generation)


@pytest.fixture
def front() -> FrontDouble:
    return FrontDouble()


@pytest.fixture
def engine() -> Generation:
    return Generation()


@pytest.fixture
def teacher(front: FrontDouble, engine: Generation) -> Teacher:
    return Teacher(cast(HttpFront, front), cast(EnginePort, engine))


async def _answer(request_id: str) -> InferResponse:
    return await encode(OUTPUTS, MODEL, request_id, {}, True)


@pytest.mark.parametrize("request_id", ["", "7", 'an "id"'])
async def test_the_pieces_and_the_id_make_the_answer(
    front: FrontDouble, teacher: Teacher, request_id: str
) -> None:
    answer = await _answer(request_id)
    teacher.consider(TARGET, b"{}", planned(), request_id, OUTPUTS, answer)
    [(head, shapes, sizes, opening, rest)] = front.lessons
    assert (head, shapes, sizes) == (TARGET.encode() + b"{}", [(1, 2), (1, 3)], [8, 3])
    without = await _answer("")
    assert opening + rest == without.parts[0]


async def test_a_head_is_taught_once_in_a_generation(
    front: FrontDouble, engine: Generation, teacher: Teacher
) -> None:
    answer = await _answer("")
    for generation in (1, 1, 2, 2):
        engine.generation = generation
        teacher.consider(TARGET, b"{}", planned(generation=generation), "", OUTPUTS, answer)
    assert len(front.lessons) == 2


async def test_what_was_planned_in_an_older_generation_is_not_taught(
    front: FrontDouble, engine: Generation, teacher: Teacher
) -> None:
    """Its answer came after the models changed: the front was told to forget it, and shall not learn it again."""
    answer = await _answer("")
    old = planned(generation=engine.generation)
    engine.generation += 1
    teacher.consider(TARGET, b"{}", old, "", OUTPUTS, answer)
    assert not front.lessons
    teacher.consider(TARGET, b"{}", planned(generation=engine.generation), "", OUTPUTS, answer)
    assert len(front.lessons) == 1


async def test_what_has_text_in_it_or_is_odd_is_not_taught(front: FrontDouble, teacher: Teacher) -> None:
    answer = await _answer("")
    for asked in (planned(binary_default=False), planned(binary={"b": False})):
        teacher.consider(TARGET, b"{}", asked, "", OUTPUTS, answer)
    teacher.consider(TARGET, b"odd", planned(), "", OUTPUTS, answer)
    assert not front.lessons
    assert not teacher.wants(planned(), b" " * 4097)
