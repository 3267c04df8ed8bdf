"""What is said of a model's parameters: those that it may have, spelt this way or that, and those that do nothing."""

from __future__ import annotations

import pytest

from appliance.domain.session_options import OF_ENGINES
from tests.repository.conftest import ReadModel
from tests.repository.outcomes import only_problem, served


@pytest.mark.parametrize("key", sorted(OF_ENGINES))
def test_what_is_for_engines_is_noted_of_models_of_another_backend(read_model: ReadModel, key: str) -> None:
    said = f"""instance_group {{ kind: KIND_GPU }}
    parameters {{ key: "{key}" value {{ string_value: "1" }} }}"""
    (note,) = read_model(said).notes
    assert note.key == f'parameters["{key}"]'
    assert note.text.endswith('has no effect here: it is for models with backend: "tensorrt"')


@pytest.mark.parametrize(("said", "own"), [("true", True), ("1", True), ("false", False), ("0", False)])
def test_a_flag_is_said_in_words_or_digits(read_model: ReadModel, said: str, own: bool) -> None:
    found = read_model(
        f"""backend: "tensorrt" instance_group {{ kind: KIND_GPU }}
        parameters {{ key: "own_worker" value {{ string_value: "{said}" }} }}
        parameters {{ key: "tensorrt_refit" value {{ string_value: "{said}" }} }}""",
        runtimes=("onnx", "tensorrt"),
    )
    assert served(found).own_worker is own
    assert not found.notes


@pytest.mark.parametrize("key", ["own_worker", "tensorrt_refit"])
def test_what_is_no_flag_is_a_problem_that_says_both_spellings(read_model: ReadModel, key: str) -> None:
    said = f'parameters {{ key: "{key}" value {{ string_value: "yes" }} }}'
    problem = only_problem(read_model(said))
    assert problem.text == f"{key} must be 'true' or 'false' ('1' or '0'), not 'yes'"


def test_a_misspelt_parameter_is_told_what_it_may_be(read_model: ReadModel) -> None:
    found = read_model("""parameters { key: "gpu_uuid" value { string_value: "GPU-1" } }
    parameters { key: "cudnn_conv_algo_search" value { string_value: "1" } }""")
    assert [note.text.partition("here")[2] for note in found.notes] == ["; did you mean 'gpu_uuids'?", ""]


@pytest.mark.parametrize(
    ("value", "where", "text"),
    [
        ("double_value: 8.9", ".double_value", """unknown field 'double_value'; say string_value: "8.9\""""),
        ('strin_value: "8.9"', ".strin_value", """unknown field 'strin_value'; say string_value: "8.9\""""),
        ("other { a: 1 }", ".other", """unknown field 'other'; say string_value: "...\""""),
        ("other: [] more: 2", ".other", """unknown field 'other'; say string_value: "...\""""),
    ],
)
@pytest.mark.parametrize("key", ["min_compute_capability", "run_timeout_ms", "anything"])
def test_a_parameter_that_is_given_otherwise_than_as_a_string_is_one_problem(
    read_model: ReadModel, key: str, value: str, where: str, text: str
) -> None:
    problem = only_problem(read_model(f'parameters {{ key: "{key}" value {{ {value} }} }}'))
    assert (problem.key, problem.text) == (f'parameters["{key}"]{where}', text)


def test_each_parameter_that_is_given_otherwise_is_told(read_model: ReadModel) -> None:
    found = read_model("""parameters { key: "intra_op_thread_count" value { int64_value: 2 } }
    parameters { key: "own_worker" value { bool_value: true } }""")
    assert [problem.text.partition("say ")[2] for problem in found.problems] == [
        'string_value: "2"',
        'string_value: "true"',
    ]


def test_a_field_beside_the_string_is_unknown(read_model: ReadModel) -> None:
    said = 'parameters { key: "own_worker" value { string_value: "true" bool_value: true } }'
    assert only_problem(read_model(said)).text == "unknown field 'bool_value'"
