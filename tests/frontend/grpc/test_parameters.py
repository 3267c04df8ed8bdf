"""What parameters mean."""

from __future__ import annotations

import pytest

from appliance.domain.errors import InvalidRequest
from appliance.domain.inference import Parameter
from appliance.domain.protocol import (
    RequestMeaning,
    asks_for_region,
    output_classification,
    region_part,
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
def test_each_key_of_shared_memory_asks_for_it(key: str) -> None:
    assert asks_for_region({key: 1})
    assert not asks_for_region({"mine": 1})


def test_a_part_of_a_region() -> None:
    asked: dict[str, Parameter] = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    assert region_part("input", "x", asked) == ("r", 0, 8)
    found = region_part("input", "x", {**asked, "shared_memory_offset": 4})
    assert found == ("r", 4, 8)
    assert found.parameters() == {**asked, "shared_memory_offset": 4}


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        (
            {"shared_memory_region": 1},
            "parameter 'shared_memory_region' of output 'y' must be the name of a region",
        ),
        (
            {"shared_memory_byte_size": 0},
            "'shared_memory_byte_size' of output 'y' must be given and at least 1",
        ),
        ({"shared_memory_byte_size": -8}, "must not be negative"),
        ({"shared_memory_byte_size": "8"}, "must be an integer"),
        ({"shared_memory_offset": True}, "'shared_memory_offset' of output 'y' must be an integer"),
        ({"shared_memory_offset": -1}, "must not be negative"),
        ({"classification": 1}, "output 'y' asks for 'classification' and for shared memory"),
    ],
)
def test_wrong_parts_of_regions(changed: dict[str, Parameter], text: str) -> None:
    asked: dict[str, Parameter] = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    with pytest.raises(InvalidRequest, match=text):
        region_part("output", "y", {**asked, **changed})


def test_classification_of_an_output() -> None:
    assert output_classification("y", {}) == 0
    assert output_classification("y", {"mine": True}) == 0
    assert output_classification("y", {"classification": 3}) == 3


@pytest.mark.parametrize("value", [0, -1, True, "3"])
def test_wrong_classifications(value: Parameter) -> None:
    with pytest.raises(InvalidRequest, match="parameter 'classification' of output 'y' must"):
        output_classification("y", {"classification": value})
