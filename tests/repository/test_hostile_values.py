"""Whatever stands in any field of a configuration: it is refused where it is read, with its place, or nothing that is
made of it can fail for its sake."""

from __future__ import annotations

import json
import re

import pytest
from google.protobuf import json_format

from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import byte_size
from appliance.frontend.documents import model_config
from appliance.frontend.grpc.wire_pb import model_config_pb2
from appliance.repository.findings import TEXT_CHARACTERS_MAX
from appliance.repository.section import NAME_BYTES_MAX, TEXT_BYTES_MAX, VALUES_MAX
from appliance.workers.messages import Load, encode
from tests.repository.conftest import ReadModel
from tests.repository.onnx_files import model_of, port
from tests.repository.outcomes import only_problem, served
from tests.repository.test_model_config import WHOLE

LARGE = (str(1 << 31), str(1 << 63), str((1 << 64) - 1), 5_000 * "7", "0x" + 5_000 * "f")
NUMBERS = ("0", "1", "-1", str(-(1 << 63) - 1), "nan", "-inf", "1e999", "1.5")
LISTS = ("{ }", "[ ]", "[ 1, 2, 3, 4, 5, 6, 7, 8, 9 ]")
TEXTS = ("true", "KIND_CPU", '""', '"' + 1_000_000 * "x" + '"')
VALUES = {value[:20]: value for value in (*LARGE, *NUMBERS, *LISTS, *TEXTS)}
MORE = """
instance_group { gpus: [ 0 ] count: 1 kind: KIND_AUTO host_policy: "p" }
optimization { graph { level: 1 } priority: PRIORITY_MAX }
response_cache { enable: true }
"""
VALUE = re.compile(r"(?<=: )(?:\[ \d[\d, ]*\]|\d+|\"[^\"]*\"|true|false|[A-Z]+(?:_\w+)?)(?=\s)")
"""A value of a field."""


TEXT = WHOLE + MORE
PLACES = [match.span() for match in VALUE.finditer(TEXT)]


def check(model: ModelVersion) -> None:
    """Everything that is made of a model elsewhere can be made of this one."""
    document = model_config(model)
    json.dumps(document)
    json_format.ParseDict(document, model_config_pb2.ModelConfig())
    encode(Load(1, model, LoadWish()))
    now_ns = 1 << 62
    if model.batching is not None:
        batching = model.batching
        policies = (batching.default_queue_policy, *batching.priority_queue_policy.values())
        times = (batching.max_queue_delay_us, *(each.default_timeout_us for each in policies))
        assert all(now_ns + us * 1_000 < 1 << 63 for us in times)
        assert len(batching.preferred_batch_size) <= 64
    for spec in (*model.inputs, *model.outputs):
        byte_size(spec.datatype, [max(size, 1) for size in spec.shape])
        assert len(spec.name.encode()) <= NAME_BYTES_MAX
    for warmup in model.warmups:
        assert 1 <= warmup.count <= 10_000
        assert (
            sum(byte_size(each.spec.datatype, each.spec.shape) for each in warmup.inputs) * warmup.batch_size
            <= 1 << 30
        )
    assert all(len(text) <= TEXT_BYTES_MAX for pair in model.parameters.items() for text in pair)


def test_the_fields_are_found() -> None:
    assert len(PLACES) > 40


@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
def test_no_value_of_any_field_goes_further_than_its_reading(read_model: ReadModel, value: str) -> None:
    refused = 0
    for start, end in PLACES:
        found = read_model(TEXT[:start] + value + TEXT[end:], files={"labels.txt": b"one"})
        for problem in found.problems:
            assert "nobody foresaw" not in problem.text, TEXT[start - 40 : start]
            assert len(problem.text) <= TEXT_CHARACTERS_MAX
            assert "config.pbtxt" in problem.file
        refused += bool(found.problems)
        assert bool(found.servable) is not bool(found.problems), TEXT[start - 40 : start]
        for each in found.servable:
            check(each.model)
    assert refused


def test_all_that_is_wrong_is_told_at_once(read_model: ReadModel) -> None:
    text = TEXT
    for start, end in reversed(PLACES):
        if text[start:end].isdigit():
            text = text[:start] + str(1 << 64) + text[end:]
    found = read_model(text, files={"labels.txt": b"one"})
    told = {problem.key for problem in found.problems}
    assert {
        "max_batch_size",
        "version_policy.latest.num_versions",
        "instance_group[0].count",
        "dynamic_batching.max_queue_delay_microseconds",
        "dynamic_batching.priority_levels",
        "dynamic_batching.default_queue_policy.default_timeout_microseconds",
        "dynamic_batching.default_queue_policy.max_queue_size",
        "model_warmup[0].batch_size",
        "model_warmup[0].count",
    } <= told


NAMED = 'parameters { key: "KEY" value { string_value: "VALUE" } } '
BATCHING = "dynamic_batching { preferred_batch_size: [ SIZES ] max_queue_delay_microseconds: DELAY } "
WARMUP = 'model_warmup { name: "big" inputs { key: "x" value { dims: [ 1073741824 ] zero_data: true } } }'


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (
            BATCHING.replace("SIZES", "1, " * 64 + "1").replace("DELAY", "0"),
            "has 65 values; at most 64 are read",
        ),
        (BATCHING.replace("SIZES", "1").replace("DELAY", str(1 << 62)), "is out of range"),
        ("max_batch_size: 1048577", "is out of range"),
        (NAMED.replace("KEY", "k" * 4097), "has 4097 bytes; at most 4096"),
        (NAMED.replace("VALUE", "v" * 65_537), "has 65537 bytes; at most 65536"),
        ("".join(NAMED.replace("KEY", str(each)) for each in range(VALUES_MAX + 1)), "has 1025 values"),
        (r'name: "\xff' + 900_000 * "y" + '"', "has 900001 bytes"),
        (r'name: "\xff"', "is not UTF-8"),
    ],
)
def test_what_is_bounded(read_model: ReadModel, config: str, text: str) -> None:
    assert text in only_problem(read_model(config)).text


def test_a_warm_up_that_a_worker_would_not_survive(read_model: ReadModel) -> None:
    graph = model_of([port("x", ("n",))], [port("y", ("n",))])
    problem = only_problem(read_model(f"max_batch_size: 0 {WARMUP}", graph=graph))
    assert "more than 1073741824 bytes" in problem.text


@pytest.mark.parametrize("dims", ["1099511627776, 1099511627776", "1, " * 8 + "1"])
def test_tensors_that_nobody_can_ever_give(read_model: ReadModel, dims: str) -> None:
    config = """
        backend: "fake"
        input { name: "x" data_type: TYPE_FP32 dims: [ DIMS ] }
        output { name: "y" data_type: TYPE_FP32 dims: [ 4 ] }
    """
    runtimes = ("onnx", "fake")
    problem = only_problem(read_model(config.replace("DIMS", dims), runtimes=runtimes))
    assert re.search("more elements than can be addressed|at most 8 dimensions", problem.text)
    assert served(read_model(config.replace("DIMS", "-1, 4"), runtimes=runtimes)).inputs[0].shape == (-1, 4)
