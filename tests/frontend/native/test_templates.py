"""Which templates of HTTP requests are made, without a native front end."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import pytest

from appliance.domain.inference import OutputTensor, PlannedInput, RequestHead, RequestPlan
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype
from appliance.engine.fastpath.direct import RequestTemplate
from appliance.frontend.http.infer_request import JSON_DATA, InferHead, Planned
from appliance.frontend.http.infer_response import InferResponse, encode, identity
from appliance.frontend.http.json_tensor import json_pieces
from appliance.frontend.native.heads import Heads
from appliance.frontend.native.templates import HEAD_BYTES_MAX, HttpTemplates
from appliance.frontend.turns import Turns

TARGET = "/v2/models/m/infer"
MODEL = cast(ModelVersion, type("Model", (), {"name": 'q"m', "version": 3})())
OUTPUTS = (
    OutputTensor("a", Datatype.FP32, (1, 2), b"12345678"),
    OutputTensor("b", Datatype.INT8, (1, 3), b"abc"),
)


@dataclass(slots=True)
class FastPathDouble:
    """Knows a request by its JSON; notes the templates that it is given, by their heads."""

    given: list[tuple[bytes, dict[str, Any]]] = field(default_factory=list)

    def http_head(self, target: str, text: bytes) -> bytes | None:
        """Nothing, when it is called odd."""
        return None if b"odd" in text else target.encode() + text

    def add_template(self, head: bytes, **template: Any) -> None:
        """Noted."""
        self.given.append((head, template))


class DirectDouble:
    """Leases anything; each output lies at its number."""

    def template_of(self, plan: object, shapes: Sequence[tuple[int, ...]]) -> RequestTemplate:
        """Of these shapes."""
        return RequestTemplate(1, 0, 0, 0, 1, (), 0, 0, tuple(range(len(shapes))), "late", 0)

    def release(self, plan: int) -> None:
        """Nothing is held of it."""


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
def fast_path() -> FastPathDouble:
    return FastPathDouble()


@pytest.fixture
def engine() -> Generation:
    return Generation()


@pytest.fixture
def templates(fast_path: FastPathDouble, engine: Generation) -> HttpTemplates:
    path, epochs, direct = cast(Any, fast_path), cast(Any, engine), cast(Any, DirectDouble())
    return HttpTemplates(path, epochs, direct, Heads(epochs, path, direct))


async def _answer(
    request_id: str, binary: dict[str, bool], outputs: Sequence[OutputTensor] = OUTPUTS
) -> InferResponse:
    return await encode(outputs, MODEL, request_id, binary, True, 4096, Turns())


@pytest.mark.parametrize("request_id", ["", "7", 'an "id"'])
@pytest.mark.parametrize("binary", [{}, {"a": False}, {"b": False}, {"a": False, "b": False}], ids=str)
async def test_the_pieces_the_id_and_the_elements_make_the_answer(
    fast_path: FastPathDouble, templates: HttpTemplates, request_id: str, binary: dict[str, bool]
) -> None:
    templates.consider(b"head", planned(binary=binary), OUTPUTS, "client")
    [(head, template)] = fast_path.given
    assert head == b"head"
    made = template["opening"] + identity(request_id) + template["described"]
    for output, code, (piece, place, size) in zip(
        OUTPUTS, template["output_texts"], template["outputs"], strict=True
    ):
        assert (place, size) == (OUTPUTS.index(output), len(output.data))
        assert code == ("" if binary.get(output.name, True) else output.datatype.code)
        made += piece
        if code:
            made += ",".join(json_pieces(output.datatype, bytes(output.data), "")).encode()
    assert made + template["closing"] == (await _answer(request_id, binary)).parts[0]


def test_a_head_is_taught_once_until_it_is_forgotten(
    fast_path: FastPathDouble, engine: Generation, templates: HttpTemplates
) -> None:
    for generation, forgotten in ((1, 0), (1, 0), (2, 0), (3, 1), (3, 1)):
        engine.generation, engine.forgotten = generation, forgotten
        templates.consider(b"head", planned(generation=generation), OUTPUTS, "client")
    assert len(fast_path.given) == 2


def test_what_was_planned_in_an_older_generation_is_not_taught(
    fast_path: FastPathDouble, engine: Generation, templates: HttpTemplates
) -> None:
    """Its answer came after the models changed: the front was told to forget it, and shall not learn it again."""
    old = planned(generation=engine.generation)
    engine.generation += 1
    templates.consider(b"head", old, OUTPUTS, "client")
    assert not fast_path.given
    templates.consider(b"head", planned(generation=engine.generation), OUTPUTS, "client")
    assert len(fast_path.given) == 1


def test_inputs_that_came_as_json_are_named(fast_path: FastPathDouble, templates: HttpTemplates) -> None:
    templates.consider(b"head", planned(json_input=Datatype.FP64), OUTPUTS, "client")
    [(_, template)] = fast_path.given
    assert template["input_texts"] == ["", Datatype.FP64.code]


def test_what_is_odd_long_or_text_is_not_recognised(templates: HttpTemplates) -> None:
    assert templates.head_of(TARGET, b"{}", planned()) == TARGET.encode() + b"{}"
    assert not templates.head_of(TARGET, b"odd", planned())
    assert not templates.head_of(TARGET, b" " * (HEAD_BYTES_MAX + 1), planned())
    assert templates.head_of(TARGET, b" " * (HEAD_BYTES_MAX + 1), planned(json_input=Datatype.FP32)), (
        "most of it may be tensors"
    )
    assert not templates.head_of(TARGET, b"{}", planned(json_input=Datatype.BYTES))


def test_outputs_that_are_strings_are_not_taught(fast_path: FastPathDouble, templates: HttpTemplates) -> None:
    strings = (OutputTensor("a", Datatype.BYTES, (1,), b"\x01\0\0\0x"),)
    templates.consider(b"head", planned(binary_default=False), strings, "client")
    assert not fast_path.given
