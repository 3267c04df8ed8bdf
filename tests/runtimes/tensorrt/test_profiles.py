"""Which shapes an engine is built for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.domain.errors import LoadFailed
from appliance.domain.model import Batching
from appliance.domain.tensor import Datatype
from appliance.runtimes.tensorrt.profiles import Limits, first_that_holds, profiles_of
from tests.workers.bench import spec, version_of

IMAGE = spec("image", Datatype.FP32, 8, 8)
TOKENS = spec("tokens", Datatype.INT64, -1)
OUTPUT = spec("y", Datatype.FP32, 10)


def batched(most: int, *preferred: int) -> list[tuple[int, int, int]]:
    """The batch sizes of the profiles of a model."""
    batching = Batching(preferred_batch_size=preferred) if preferred else None
    version = version_of("m", [IMAGE], [OUTPUT], max_batch_size=most, batching=batching)
    limits = [profile.inputs["image"] for profile in profiles_of(version)]
    assert all(each[1:] == (8, 8) for limit in limits for each in limit)
    return [(limit.least[0], limit.usual[0], limit.most[0]) for limit in limits]


def test_one_profile_holds_all_batches_and_each_preferred_size_has_its_own() -> None:
    assert batched(32) == [(1, 32, 32)]
    assert batched(32, 16, 4) == [(4, 4, 4), (16, 16, 16), (1, 16, 32)]
    assert batched(8, 8, 8) == [(8, 8, 8), (1, 8, 8)]
    assert batched(64, 1, 2, 4, 8, 16) == [(4, 4, 4), (8, 8, 8), (16, 16, 16), (1, 16, 64)], (
        "few, the largest"
    )


def test_the_narrowest_profile_that_holds_a_request_runs_it() -> None:
    version = version_of(
        "m", [IMAGE], [OUTPUT], max_batch_size=8, batching=Batching(preferred_batch_size=(4,))
    )
    profiles = profiles_of(version)
    found = [first_that_holds(profiles, {"image": (rows, 8, 8)}) for rows in (0, 1, 4, 5, 8, 9)]
    assert found == [None, 1, 0, 1, 1, None]
    assert first_that_holds(profiles, {"image": (4, 8)}) is None
    assert profiles[-1].text == "'image' [1, 8, 8] to [8, 8, 8]"


def test_a_model_that_is_not_batched_has_one_profile() -> None:
    (profile,) = profiles_of(version_of("m", [IMAGE], [OUTPUT]))
    assert profile.inputs == {"image": Limits((8, 8), (8, 8), (8, 8))}


def test_free_dimensions_end_where_the_model_says() -> None:
    version = version_of("m", [TOKENS], [OUTPUT], max_batch_size=2, parameters={"tensorrt_free_max": "128"})
    (profile,) = profiles_of(version)
    assert profile.inputs == {"tokens": Limits((1, 1), (2, 128), (2, 128))}


def test_free_dimensions_end_at_the_largest_that_requests_had_where_the_model_does_not_say() -> None:
    picture = spec("picture", Datatype.FP32, 3, -1, -1)
    seen = {"tokens": (77,), "picture": (224, 0), "gone": (9,)}
    version = version_of("m", [TOKENS, picture, IMAGE], [OUTPUT], max_batch_size=2, free_sizes=seen)
    (profile,) = profiles_of(version)
    assert profile.inputs["tokens"] == Limits((1, 1), (2, 77), (2, 77))
    assert profile.inputs["picture"] == Limits((1, 3, 1, 1), (2, 3, 224, 1), (2, 3, 224, 1))
    (profile,) = profiles_of(replace(version, parameters={"tensorrt_free_max": "8"}))
    assert profile.inputs["picture"].most == (2, 3, 8, 8), "what the model says counts"


def test_sizes_of_requests_are_those_of_the_model_s_own_shape_as_well() -> None:
    reshapes, seen = {"tokens": (-1, 1)}, {"tokens": (77,)}
    (profile,) = profiles_of(version_of("m", [TOKENS], [OUTPUT], input_reshapes=reshapes, free_sizes=seen))
    assert profile.inputs["tokens"].most == (77, 1)


@pytest.mark.parametrize("seen", [{"image": (8,)}, {"tokens": (7, 7)}])
def test_sizes_that_are_not_of_the_input_say_nothing(seen: dict[str, tuple[int, ...]]) -> None:
    version = version_of("m", [TOKENS], [OUTPUT], free_sizes=seen)
    with pytest.raises(LoadFailed, match=r"free dimensions of 'tokens'"):
        profiles_of(version)


@pytest.mark.parametrize("parameters", [{}, {"tensorrt_free_max": "0"}])
def test_free_dimensions_without_an_end_are_told_of(parameters: dict[str, str]) -> None:
    version = version_of("m", [IMAGE, TOKENS], [OUTPUT], max_batch_size=2, parameters=parameters)
    with pytest.raises(LoadFailed, match=r"free dimensions of 'tokens' .* parameter tensorrt_free_max"):
        profiles_of(version)


def test_shapes_are_the_model_s_own_and_not_those_that_clients_see() -> None:
    version = version_of("m", [spec("x", Datatype.FP32, 64)], [OUTPUT], input_reshapes={"x": (8, 8)})
    assert profiles_of(version)[0].inputs["x"].most == (8, 8)


def test_an_input_that_may_be_left_out_is_told_of() -> None:
    optional = spec("bias", Datatype.FP32, 4, optional=True)
    with pytest.raises(LoadFailed, match="'bias' may be left out"):
        profiles_of(version_of("m", [IMAGE, optional], [OUTPUT]))
