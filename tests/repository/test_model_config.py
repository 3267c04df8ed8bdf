"""Every field of config.pbtxt: what it does when it is right, and what is said when it is wrong."""

from __future__ import annotations

from typing import Any

import pytest

from appliance.domain.device import DeviceKind
from appliance.domain.device_wish import ON_CPU, ON_CUDA, DeviceWish
from appliance.domain.model import Batching, QueuePolicy, TimeoutAction, VersionChoice, VersionPolicy
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.repository.model_directory import CONFIG_BYTES_MAX, LABEL_BYTES_MAX
from tests.repository.conftest import ReadModel
from tests.repository.onnx_files import model_of, port
from tests.repository.outcomes import only_problem, served

WHOLE = """
name: "m"
platform: "onnxruntime_onnx"
backend: "onnxruntime"
max_batch_size: 16
input [ { name: "x" data_type: TYPE_FP32 format: FORMAT_NONE dims: [ 4 ] reshape { shape: [ 4 ] } } ]
output [ { name: "y" data_type: TYPE_FP32 dims: [ 4 ] label_filename: "labels.txt" } ]
version_policy: { latest { num_versions: 2 } }
instance_group [ { name: "both" count: 2 kind: KIND_CPU }, { kind: KIND_AUTO } ]
default_model_filename: "model.onnx"
dynamic_batching {
  preferred_batch_size: [ 4, 8 ]
  max_queue_delay_microseconds: 100
  preserve_ordering: false
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5000 max_queue_size: 7 }
  priority_queue_policy [ { key: 1 value { timeout_action: REJECT allow_timeout_override: false } } ]
}
parameters { key: "run_timeout_ms" value { string_value: "250" } }
parameters { key: "allow_interface_change" value { string_value: "false" } }
parameters: { key: "empty", value: { } }
model_warmup [ { name: "zeros" batch_size: 2 count: 3
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 4 ] zero_data: true } } } ]
model_transaction_policy { decoupled: false }
"""


def test_everything_a_config_can_say(read_model: ReadModel) -> None:
    found = read_model(WHOLE, files={"labels.txt": b"zero\r\none\n\nthree\n"})
    model = served(found)
    assert [(note.key, "no effect" in note.text) for note in found.notes] == [('parameters["empty"]', True)]
    assert (model.name, model.version, model.platform, model.backend, model.runtime) == (
        "m",
        1,
        "onnxruntime_onnx",
        "onnxruntime",
        "onnx",
    )
    assert model.inputs == (TensorSpec(name="x", datatype=Datatype.FP32, shape=(4,)),)
    assert model.outputs == (TensorSpec(name="y", datatype=Datatype.FP32, shape=(4,)),)
    assert model.max_batch_size == 16
    assert (model.label_files, model.model_file) == ({"y": "labels.txt"}, "model.onnx")
    assert model.policy == VersionPolicy(count=2)
    assert model.labels == {"y": ("zero", "one", "", "three")}
    assert (model.instance_count, model.device) == (3, ON_CPU)
    assert model.parameters == {"run_timeout_ms": "250", "allow_interface_change": "false", "empty": ""}
    assert model.batching == Batching(
        preferred_batch_size=(4, 8),
        max_queue_delay_us=100,
        priority_levels=3,
        default_priority_level=2,
        default_queue_policy=QueuePolicy(
            timeout_action=TimeoutAction.DELAY, default_timeout_us=5000, max_queue_size=7
        ),
        priority_queue_policy={1: QueuePolicy(allow_timeout_override=False)},
    )
    (warmup,) = model.warmups
    assert (warmup.name, warmup.batch_size, warmup.count) == ("zeros", 2, 3)
    assert warmup.inputs[0].spec == TensorSpec(name="x", datatype=Datatype.FP32, shape=(4,))


@pytest.mark.parametrize(
    ("written", "policy"),
    [
        ("", VersionPolicy()),
        ("version_policy { latest { num_versions: 7 } }", VersionPolicy(count=7)),
        ("version_policy { all { } }", VersionPolicy(choice=VersionChoice.ALL)),
        (
            "version_policy { specific { versions: [ 1 ] } }",
            VersionPolicy(choice=VersionChoice.SPECIFIC, numbers=(1,)),
        ),
    ],
)
def test_a_version_knows_the_policy_that_picked_it(
    read_model: ReadModel, written: str, policy: VersionPolicy
) -> None:
    assert served(read_model(written)).policy == policy


def _io(extra: str = "", *, x: str = "", y: str = "") -> str:
    return f'input [ {{ name: "x" {x} }} ]\noutput [ {{ name: "y" {y} }} ]\nmax_batch_size: 8\n{extra}'


def _warm(tensor: str, rest: str = "") -> str:
    return _io(f'model_warmup {{ name: "w" {rest} inputs {{ key: "x" value {{ {tensor} }} }} }}')


WARM_X = "data_type: TYPE_FP32 dims: [ 4 ]"

PROBLEMS: list[tuple[str, str, str]] = [
    ('name: "n"', "name", "is 'n', which is not what the directory is called"),
    ("name: m", "name", "expected a string in quotes, found 'm'"),
    ('name: "a" name: "m"', "name", "is given 2 times"),
    (r'name: "\xff"', "name", "is not UTF-8"),
    ('platform: "tensorrt_plan"', "platform", "'tensorrt_plan' is not offered"),
    ('platform: "onnxruntime_onnx" backend: "python"', "backend", "contradicts the platform"),
    ('backend: "python"', "backend", "'python' is not enabled; it is Python code, which is never run here"),
    (
        'backend: "openvino"',
        "backend",
        "'openvino' is not enabled; give the ONNX model it was made from, or install a package that runs OpenVINO's",
    ),
    ('backend: "onnx"', "backend", "'onnx' is not enabled"),
    (
        'backend: "fake"',
        "backend",
        "'fake' is not enabled; a package for it is installed: add it to the setting",
    ),
    ('backend: "nosuch"', "backend", "'nosuch' is not enabled; enabled are: onnxruntime"),
    ("max_batch_size: -1", "max_batch_size", "-1 is out of range"),
    ("max_batch_size: 3000000000", "max_batch_size", "is out of range"),
    ("max_batch_size: 0x" + 4_000 * "f", "max_batch_size", "0xffff"),
    ("max_batch_size: 0" + 5_000 * "7", "max_batch_size", "is out of range"),
    ("max_batch_size: 1.5", "max_batch_size", "expected a whole number, found '1.5'"),
    ("max_batch_size: 089", "max_batch_size", "expected a whole number"),
    ('max_batch_size: "8"', "max_batch_size", 'expected a whole number, found "8"'),
    ("max_batch_size { }", "max_batch_size", "expected a whole number, found '{ ... }'"),
    ("max_bach_size: 8", "max_bach_size", "unknown field 'max_bach_size'; did you mean 'max_batch_size'?"),
    ("wholly_different: 8", "wholly_different", "unknown field 'wholly_different'"),
    ('default_model_filename: "../x"', "default_model_filename", "is not the plain name of a file"),
    ('default_model_filename: "a/b"', "default_model_filename", "is not the plain name of a file"),
    (
        _io(x="data_type: TYPE_INT32"),
        "input[0].data_type",
        "is TYPE_INT32, but 'x' is TYPE_FP32 in the graph",
    ),
    (_io(x="data_type: TYPE_FLOAT"), "input[0].data_type", "expected one of TYPE_BOOL, "),
    (_io(x='data_type: "TYPE_FP32"'), "input[0].data_type", "expected one of TYPE_BOOL, "),
    (
        _io(x="dims: [ 5 ]"),
        "input[0].dims",
        "[5] does not fit the graph's [4] after the batch dimension of 'x'",
    ),
    (_io(x="dims: [ -1 ]"), "input[0].dims", "[-1] does not fit the graph's [4]"),
    (_io(x="dims: [ 8, 4 ]"), "input[0].dims", "[8, 4] does not fit"),
    (_io(x="dims: [ 0 ]"), "input[0].dims", "0 is not a dimension"),
    (_io(x="dims: [ -2 ]"), "input[0].dims[0]", "-2 is out of range"),
    (_io(x="dims: [ 4, a ]"), "input[0].dims[1]", "expected a whole number"),
    (
        _io(x="dims: [ 4 ] reshape { shape: [ 2, 2 ] }"),
        "input[0].reshape",
        "[2, 2] does not fit the graph's [4]",
    ),
    (
        _io(x="dims: [ 2, 3 ] reshape { shape: [ 4 ] }"),
        "input[0].reshape",
        "shape [4] has 4 elements and dims [2, 3] 6; make them equal",
    ),
    (
        _io(y="dims: [ 2, -1, 3 ] reshape { shape: [ 3, -1, 2 ] }"),
        "output[0].reshape",
        "shape [3, -1, 2] has 3 x free x 2 elements and dims [2, -1, 3] 2 x free x 3; make them equal",
    ),
    (_io(y="dims: [ 4 ] reshape { shape: [ -1 ] }"), "output[0].reshape", "[-1] has 1 x free x 1 elements"),
    (_io(x="dims: [ 4 ] reshape { }"), "input[0].reshape", "shape [] has 1 elements and dims [4] 4"),
    (_io(x="dims: [ 4 ] reshape { shape: [ 0 ] }"), "input[0].reshape", "0 is not a dimension"),
    (_io(x="reshape { shape: [ 4 ] }"), "input[0].reshape", "needs dims"),
    (
        _io(x="dims: [ 4 ] reshape { shape: [ 1, 1, 1, 1, 1, 1, 1, 1, 4 ] }"),
        "input[0]",
        "shape has rank 9; at most 8",
    ),
    (
        _io(x=f"dims: [ {', '.join(['9223372036854775807'] * 500)} ] reshape {{ shape: [ 4 ] }}"),
        "input[0]",
        "shape has rank 500; at most 8",
    ),
    (_io(x="dims: [ 4 ] reshape { shap: [ 4 ] }"), "input[0].reshape.shap", "did you mean 'shape'?"),
    (_io(x="allow_ragged_batch: true"), "input[0].allow_ragged_batch", "is not offered"),
    (_io(x="is_shape_tensor: true"), "input[0].is_shape_tensor", "is not offered"),
    (_io(y="is_non_linear_format_io: true"), "output[0].is_non_linear_format_io", "is not offered"),
    (_io(x="optional: true"), "input[0].optional", "the graph has no default for 'x'"),
    (_io(x="optional: yes"), "input[0].optional", "expected true or false, found 'yes'"),
    (_io(x='label_filename: "l"'), "input[0].label_filename", "unknown field"),
    (_io(y="dims: [ 3 ]"), "output[0].dims", "[3] does not fit the graph's [4]"),
    (_io(y="data_type: TYPE_FP16"), "output[0].data_type", "is TYPE_FP16, but 'y' is TYPE_FP32"),
    (_io(y='label_filename: "no.txt"'), "output[0].label_filename", "'no.txt' is missing"),
    (
        _io(y='label_filename: "../no.txt"'),
        "output[0].label_filename",
        "is not a path inside the model's directory",
    ),
    (_io(y='label_filename: "1"'), "output[0].label_filename", "'1' is a directory, not a file"),
    (_io('input { name: "z" }'), "input[1]", "the graph has no input 'z'; it has 'x'"),
    (_io('output { name: "z" }'), "output[1]", "the graph has no output 'z'; it has 'y'"),
    (_io('input { name: "x" }'), "input[1]", "input 'x' is given twice"),
    (_io("input { }"), "input[1].name", "is missing"),
    (_io("input: 7"), "input[1]", "expected '{ ... }', found '7'"),
    ('input [ ] output { name: "y" }', "input", "the graph's input 'x' is missing"),
    ("output [ ]", "output", "lists no output"),
    ("dynamic_batching { preserve_ordering: true }", "dynamic_batching.preserve_ordering", "is not offered"),
    (
        _io("dynamic_batching { preferred_batch_size: [ 4, 9 ] }"),
        "dynamic_batching.preferred_batch_size",
        "9 is above the largest batch, 8",
    ),
    (
        "dynamic_batching { preferred_batch_size: 0 }",
        "dynamic_batching.preferred_batch_size[0]",
        "0 is out of range",
    ),
    (
        "dynamic_batching { default_priority_level: 1 }",
        "dynamic_batching.default_priority_level",
        "needs priority_levels",
    ),
    ("dynamic_batching { priority_levels: 2 }", "dynamic_batching.default_priority_level", "must be 1 to 2"),
    (
        "dynamic_batching { priority_levels: 2 default_priority_level: 3 }",
        "dynamic_batching.default_priority_level",
        "must be 1 to 2, the priority_levels; found 3",
    ),
    (
        "dynamic_batching { priority_levels: 1073741824 }",
        "dynamic_batching.priority_levels",
        "is out of range",
    ),
    (
        "dynamic_batching { priority_queue_policy { key: 1 value { } } }",
        "dynamic_batching.priority_queue_policy[1]",
        "there is no priority level 1; priority_levels is not set",
    ),
    (
        "dynamic_batching { priority_levels: 2 default_priority_level: 1 priority_queue_policy { key: 3 value { } } }",
        "dynamic_batching.priority_queue_policy[3]",
        "there is no priority level 3; the priority levels are 1 to 2",
    ),
    (
        "dynamic_batching { default_queue_policy { timeout_action: WAIT } }",
        "dynamic_batching.default_queue_policy.timeout_action",
        "expected one of REJECT, DELAY, found 'WAIT'",
    ),
    (
        "dynamic_batching { default_queue_policy { max_queue_siz: 1 } }",
        "dynamic_batching.default_queue_policy.max_queue_siz",
        "did you mean 'max_queue_size'?",
    ),
    ("dynamic_batching { max_queue_delay: 1 }", "dynamic_batching.max_queue_delay", "unknown field"),
    ("version_policy { }", "version_policy", "needs exactly one of"),
    ("version_policy { all { } latest { } }", "version_policy", "needs exactly one of"),
    (
        "version_policy { latest { num_versions: 0 } }",
        "version_policy.latest.num_versions",
        "0 is out of range",
    ),
    ("version_policy { specific { } }", "version_policy.specific.versions", "names no version"),
    ("version_policy { all { x: 1 } }", "version_policy.all.x", "unknown field"),
    ("instance_group { kind: KIND_MODEL }", "instance_group[0].kind", "'KIND_MODEL' is not offered"),
    ('instance_group { kind: "KIND_CPU" }', "instance_group[0].kind", "expected a name without quotes"),
    ("instance_group { count: -1 }", "instance_group[0].count", "-1 is out of range"),
    ("instance_group { count: 65 }", "instance_group", "asks for 65 instances; the limit is 64"),
    (
        "instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU } ]",
        "instance_group",
        "groups on different devices",
    ),
    ("instance_group { kind: KIND_CPU gpus: [ 0 ] }", "instance_group[0].gpus", "not of KIND_GPU"),
    ("instance_group { kind: KIND_GPU gpus: [ 64 ] }", "instance_group[0].gpus[0]", "63"),
    ("instance_group { rate_limiter { } }", "instance_group[0].rate_limiter", "is not offered"),
    ("instance_group { passive: true }", "instance_group[0].passive", "is not offered"),
    ('instance_group { profile: "0" }', "instance_group[0].profile", "is not offered"),
    (
        'parameters { key: "allow_interface_change" value { string_value: "yes" } }',
        'parameters["allow_interface_change"].string_value',
        "must be 'true' or 'false'",
    ),
    (
        'parameters { key: "own_worker" value { string_value: "yes" } }',
        'parameters["own_worker"].string_value',
        "must be 'true' or 'false'",
    ),
    (
        'parameters { key: "a" value { string_value: 1 } }',
        'parameters["a"].string_value',
        "expected a string",
    ),
    (
        'parameters { key: "a" value { } } parameters { key: "a" value { } }',
        "parameters[1].key",
        'key "a" is given twice',
    ),
    ('parameters { key: "a" val { } }', "parameters[0].val", "did you mean 'value'?"),
    ('parameters { key: "a" value: "b" }', 'parameters["a"]', "expected '{ ... }', found \"b\""),
    ("sequence_batching { }", "sequence_batching", "list the inputs of the graph that it fed"),
    ("ensemble_scheduling { }", "ensemble_scheduling", "is not offered"),
    ("model_operations { }", "model_operations", "no library is loaded"),
    ("model_repository_agents { }", "model_repository_agents", "no plug-in runs"),
    ("model_transaction_policy { decoupled: true }", "model_transaction_policy.decoupled", "one response"),
    (
        "optimization { execution_accelerators { } }",
        "optimization.execution_accelerators",
        'backend: "tensorrt"',
    ),
    ("optimization { grph { } }", "optimization.grph", "did you mean 'graph'?"),
    (_io("model_warmup { }"), "model_warmup[0].name", "is missing"),
    (_warm(f"{WARM_X}"), 'model_warmup[0].inputs["x"]', "needs exactly one of zero_data"),
    (
        _warm(f"{WARM_X} zero_data: true random_data: true"),
        'model_warmup[0].inputs["x"]',
        "needs exactly one of",
    ),
    (
        _warm("data_type: TYPE_FP16 dims: 4 zero_data: true"),
        'model_warmup[0].inputs["x"]',
        "is TYPE_FP16, but",
    ),
    (
        _warm("dims: [ 5 ] zero_data: true"),
        'model_warmup[0].inputs["x"]',
        "dims [5] do not fit the input's [4]",
    ),
    (_warm("dims: [ -1 ] zero_data: true"), 'model_warmup[0].inputs["x"].dims[0]', "-1 is out of range"),
    (_warm("zero_data: true"), 'model_warmup[0].inputs["x"]', "dims [] do not fit the input's [4]"),
    (
        _warm(f'{WARM_X} input_data_file: "no"'),
        'model_warmup[0].inputs["x"]',
        "input_data_file 'no' is missing",
    ),
    (_warm(f'{WARM_X} input_data_file: "../f"'), 'model_warmup[0].inputs["x"]', "is not a path inside"),
    (
        _warm(f"{WARM_X} zero_data: true", "batch_size: 9"),
        "model_warmup[0]",
        "batch_size 9 is too large; max_batch_size is 8",
    ),
    (_warm(f"{WARM_X} zero_data: true", "count: 10001"), "model_warmup[0].count", "is out of range"),
]


@pytest.mark.parametrize(("config", "key", "text"), PROBLEMS)
def test_what_is_wrong_is_said_with_file_place_and_key(
    read_model: ReadModel, config: str, key: str, text: str
) -> None:
    found = read_model(config)
    problems = [problem for problem in found.problems if problem.key == key]
    assert problems, found.problems
    assert any(text in problem.text for problem in problems), problems
    assert all(problem.file.startswith("m/config.pbtxt:") for problem in found.problems)
    assert found.servable == ()


HARMLESS: list[tuple[str, dict[str, Any]]] = [
    ("", {"max_batch_size": 32, "batching": Batching()}),
    ('name: "m" backend: ""', {"max_batch_size": 32, "batching": Batching()}),
    ("max_batch_size: 8", {"max_batch_size": 8, "batching": None}),
    ("max_batch_size: 0x10", {"max_batch_size": 16}),
    ("max_batch_size: 010", {"max_batch_size": 8}),
    ("max_batch_size: 8 dynamic_batching { }", {"max_batch_size": 8, "batching": Batching()}),
    ("max_batch_size: 0", {"max_batch_size": 0, "batching": None}),
    ('input { name: "x" dims: [ -1, 4 ] }', {"max_batch_size": 0, "batching": None}),
    ('input { name: "x" data_type: TYPE_FP32 }', {"max_batch_size": 32, "batching": Batching()}),
    (_io(x="dims: 4"), {"max_batch_size": 8}),
    (_io('batch_input [ ] metric_tags [ ] runtime: ""'), {"max_batch_size": 8}),
    ("dynamic_batching { preferred_batch_size: 32 }", {"batching": Batching(preferred_batch_size=(32,))}),
    ("max_batch_size: 0 dynamic_batching { }", {"max_batch_size": 0, "batching": Batching()}),
    ("instance_group { }", {"instance_count": 1, "device": ON_CPU}),
    ("instance_group { count: 0 }", {"instance_count": 1}),
    (
        "instance_group { count: 4 kind: KIND_GPU gpus: [ 2, 0, 2 ] }",
        {"instance_count": 4, "device": DeviceWish(DeviceKind.CUDA, (0, 2))},
    ),
    ("version_policy { latest { } }", {"version": 1}),
    ("", {"cuda_graphs": True}),
    ("optimization { cuda { } }", {"cuda_graphs": True}),
    ("optimization { cuda { graphs: false } }", {"cuda_graphs": False}),
    ("version_policy { specific { versions: [ 1 ] } }", {"version": 1}),
]


def test_all_that_is_wrong_with_what_is_asked_of_a_gpu_is_told_at_once(read_model: ReadModel) -> None:
    config = """instance_group { kind: KIND_GPU gpus: [ 64 ] }
    parameters { key: "min_compute_capability" value { string_value: "Ada" } }
    parameters { key: "gpu_uuids" value { string_value: "GPU-1;GPU-2" } }"""
    assert [problem.key for problem in read_model(config).problems] == [
        "instance_group[0].gpus[0]",
        'parameters["min_compute_capability"].string_value',
        'parameters["gpu_uuids"].string_value',
    ]


def test_several_groups_of_gpus_are_any_of_them(read_model: ReadModel) -> None:
    two = "instance_group [ { kind: KIND_GPU gpus: [ 1 ] }, { kind: KIND_GPU count: 2 gpus: [ 0 ] } ]"
    model = served(read_model(two))
    assert (model.instance_count, model.device) == (3, DeviceWish(DeviceKind.CUDA, (0, 1)))
    any_of_all = "instance_group [ { kind: KIND_GPU gpus: [ 1 ] }, { kind: KIND_GPU } ]"
    assert served(read_model(any_of_all)).device == ON_CUDA


@pytest.mark.parametrize(("config", "expected"), HARMLESS)
def test_what_is_left_out_comes_from_the_graph(
    read_model: ReadModel, config: str, expected: dict[str, Any]
) -> None:
    model = served(read_model(config))
    assert {name: getattr(model, name) for name in expected} == expected


@pytest.mark.parametrize(
    ("config", "key"),
    [
        (
            "optimization { cuda { graphs: true busy_wait_events: true } }",
            "optimization.cuda.busy_wait_events",
        ),
        ("optimization { eager_batching: true }", "optimization.eager_batching"),
        ("response_cache { enable: true }", "response_cache"),
        ('metric_tags { key: "a" value: "b" }', "metric_tags"),
        (_io(x="format: FORMAT_NCHW"), "input[0].format"),
        ('instance_group { host_policy: "gpu0" }', "instance_group[0].host_policy"),
    ],
)
def test_hints_are_accepted_and_said_to_have_no_effect(read_model: ReadModel, config: str, key: str) -> None:
    found = read_model(config)
    assert served(found).notes == (f"{key}: {found.notes[0].text}",)
    assert [note.key for note in found.notes] == [key]
    assert "accepted" in found.notes[0].text


@pytest.mark.parametrize(
    "said", ["0", "-1", "soon", "1.5", "1" * 5_000, "1000000000000", "3600001", "\u0661"]
)
def test_a_time_out_that_may_not_be(read_model: ReadModel, said: str) -> None:
    """One that no run reaches switches the detection of hangs off; one of thousands of digits once ended serving."""
    config = f'parameters {{ key: "run_timeout_ms" value {{ string_value: "{said}" }} }}'
    problem = only_problem(read_model(config))
    assert "run_timeout_ms must be milliseconds above 0 and at most 3600000" in problem.text
    assert len(problem.text) < 200


def test_all_problems_are_told_at_once(read_model: ReadModel) -> None:
    found = read_model(
        'name: "n"\nmax_batch_size: x\ninput { name: "x" data_type: TYPE_INT8 dims: [ 9 ] }\n'
        'output { name: "q" label_filename: "none.txt" }\nfoo: 1\n'
    )
    assert {problem.key for problem in found.problems} == {
        "name",
        "max_batch_size",
        "input[0].data_type",
        "input[0].dims",
        "output[0]",
        "output[0].label_filename",
        "foo",
    }
    (broken,) = found.broken
    assert broken.version == "1"
    assert "config.pbtxt:2:1: max_batch_size: expected a whole number, found 'x'" in broken.reason


def test_a_syntax_error_is_placed(read_model: ReadModel) -> None:
    problem = only_problem(read_model("max_batch_size: 8\ninput [\n"))
    assert (problem.file, problem.key) == ("m/config.pbtxt:3:1", "")
    assert "expected a value, found the end of the file" in problem.text


def test_a_config_that_is_too_large(read_model: ReadModel) -> None:
    problem = only_problem(read_model("#" * (CONFIG_BYTES_MAX + 1)))
    assert problem.file == "m/config.pbtxt"
    assert problem.text == f"has {CONFIG_BYTES_MAX + 1} bytes; at most {CONFIG_BYTES_MAX} are read"


def test_labels_that_are_too_large_or_no_text(read_model: ReadModel) -> None:
    config = _io(y='label_filename: "l.txt"')
    large = read_model(config, files={"l.txt": b"l" * (LABEL_BYTES_MAX + 1)})
    assert f"has {LABEL_BYTES_MAX + 1} bytes; at most {LABEL_BYTES_MAX} are read" in only_problem(large).text
    assert "is not UTF-8 text (byte 1)" in only_problem(read_model(config, files={"l.txt": b"a\xff"})).text
    for nothing in (b"\n", b""):
        found = read_model(config, files={"l.txt": nothing})
        (note,) = served(found).notes
        assert note == "output[0].label_filename: 'l.txt' holds no label: classes are told without one"


def test_labels_of_one_file_are_kept_once(read_model: ReadModel) -> None:
    outputs = [port(name, ("batch", 4)) for name in "yzw"]
    config = "".join(
        f'output {{ name: "{name}" label_filename: "{file}" }}\n'
        for name, file in (("y", "l.txt"), ("z", "./l.txt"), ("w", "other.txt"))
    )
    files = {"l.txt": b"zero\none\n", "other.txt": b"two\n"}
    model = served(read_model(config, graph=model_of([port("x", ("batch", 4))], outputs), files=files))
    assert model.labels["y"] is model.labels["z"]
    assert model.labels == {"y": ("zero", "one"), "z": ("zero", "one"), "w": ("two",)}
