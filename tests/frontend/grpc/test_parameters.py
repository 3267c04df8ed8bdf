"""What parameters mean."""

from __future__ import annotations

import pytest

from appliance.domain.errors import InvalidRequest, Unsupported
from appliance.domain.inference import Parameter
from appliance.domain.protocol import (
    RequestMeaning,
    check_input_parameters,
    output_classification,
    request_meaning,
)


def test_nothing_means_nothing() -> None:
    assert request_meaning({}) == RequestMeaning(0, 0, False)


def test_meaningful_and_unknown_keys_together() -> None:
    parameters: dict[str, Parameter] = {
        "priority": 2, "timeout": 5000, "triton_enable_empty_final_response": True, "mine": "x", "sequence_id": 0,
        "sequence_start": False,
    }  # fmt: skip
    assert request_meaning(parameters) == RequestMeaning(2, 5000, True)


@pytest.mark.parametrize(
    ("parameters", "text"),
    [
        ({"triton_mystery": 1}, "parameter 'triton_mystery' is not known"),
        ({"priority": -1}, "parameter 'priority' must not be negative, got -1"),
        ({"priority": True}, "parameter 'priority' must be an integer, got True"),
        ({"priority": "high"}, "parameter 'priority' must be an integer"),
        ({"timeout": -5}, "parameter 'timeout' must not be negative"),
        ({"timeout": 0.5}, "parameter 'timeout' must be an integer"),
        ({"sequence_id": 7}, "sequence_id 7 is given, but no model here keeps state"),
        ({"sequence_id": "s"}, "sequence_id 's' is given"),
        ({"sequence_id": True}, "must be an integer or a string"),
        ({"sequence_start": 1}, "parameter 'sequence_start' must be a boolean"),
        ({"triton_enable_empty_final_response": 1}, "must be a boolean, got 1"),
    ],
)
def test_wrong_request_parameters(parameters: dict[str, Parameter], text: str) -> None:
    with pytest.raises(InvalidRequest, match=text):
        request_meaning(parameters)


@pytest.mark.parametrize("key", ["shared_memory_region", "shared_memory_byte_size", "shared_memory_offset"])
def test_shared_memory_is_not_offered(key: str) -> None:
    with pytest.raises(Unsupported, match="input 'x' asks for client shared memory"):
        check_input_parameters("x", {key: 1})
    with pytest.raises(Unsupported, match="output 'y' asks for client shared memory"):
        output_classification("y", {key: 1})


def test_classification_of_an_output() -> None:
    assert output_classification("y", {}) == 0
    assert output_classification("y", {"mine": True}) == 0
    assert output_classification("y", {"classification": 3}) == 3


@pytest.mark.parametrize("value", [0, -1, True, "3"])
def test_wrong_classifications(value: Parameter) -> None:
    with pytest.raises(InvalidRequest, match="parameter 'classification' of output 'y' must"):
        output_classification("y", {"classification": value})
