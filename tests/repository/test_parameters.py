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
