"""Mutated models: whatever the bytes are, the reader answers or raises ArtefactError, and it agrees with protobuf.

A failing case is replayed by its seed: it is in the test's name.
"""

from __future__ import annotations

import random

import onnx
import pytest
from google.protobuf.message import DecodeError

from appliance.domain.errors import ArtefactError
from appliance.repository.onnx.summary import GraphSummary
from models.generate import MODELS
from tests.repository.onnx_files import external_tensor, plain_model, summary, tensors_of

SEEDS = 40
MUTATIONS = 50
SOURCES = ("handmade", "add_sub", "endless", "external", "map_out", "optional_type", "odd_names")


def _source(name: str) -> bytes:
    if name != "handmade":
        return MODELS[name].build().model
    model = plain_model(["batch", 4, None])
    model.graph.node[0].attribute.add(name="a").tensors.append(external_tensor("w", "w.bin", offset=1))
    model.functions.add(name="f").node.add(op_type="Constant").attribute.add(name="c").floats.extend(
        [1.0] * 20
    )
    return model.SerializeToString()


def _mutated(data: bytes, chance: random.Random) -> bytes:
    """A few bytes changed, taken out, doubled or put in."""
    result = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(result) + 1)
        size = chance.choice((1, 1, 2, 8, 64))
        kind = chance.randrange(5)
        if kind == 0:
            result[at : at + size] = chance.randbytes(len(result[at : at + size]))
        elif kind == 1:
            del result[at : at + size]
        elif kind == 2:
            result[at:at] = result[at : at + size]
        elif kind == 3:
            result[at:at] = chance.choice(
                (b"\xff" * size, b"\0" * size, b"\x3a\x02", b"\x0b", chance.randbytes(size))
            )
        elif at < len(result):
            result[at] ^= 1 << chance.randrange(8)
        if not result:
            result = bytearray(b"\0")
    return bytes(result)


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("source", SOURCES)
def test_mutations_give_an_answer_or_a_clear_error(source: str, seed: int) -> None:
    chance = random.Random(f"{source}/{seed}")
    data = _source(source)
    for _ in range(MUTATIONS):
        mutated = _mutated(data, chance)
        try:
            found = summary(mutated)
        except ArtefactError:
            continue
        _check_against_protobuf(mutated, found)


def _check_against_protobuf(data: bytes, found: GraphSummary) -> None:
    """What we read must be what the runtime will read, when it reads it at all."""
    try:
        model = onnx.load_model_from_string(data)
    except DecodeError:
        return  # stricter than we are, for instance about text that is not UTF-8
    assert len(found.inputs) == len(model.graph.input)
    assert [port.name for port in found.outputs] == [value.name for value in model.graph.output]
    assert found.ir_version == model.ir_version
    expected = list(tensors_of(model))
    assert len(found.tensors) == len(expected)
    outside = [tensor for tensor in expected if tensor.data_location == onnx.TensorProto.EXTERNAL]
    assert sum(tensor.outside for tensor in found.tensors) >= len(outside)
    assert found.flaws or len(found.external) >= len(outside)
