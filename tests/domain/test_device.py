"""The words for devices: printed, parsed, asked for."""

from __future__ import annotations

import pytest

from appliance.domain.device import (
    CPU,
    ON_CPU,
    ON_CUDA,
    DeviceKind,
    DeviceName,
    DeviceWish,
    cuda,
    parse_device,
    parse_wish,
)


@pytest.mark.parametrize(("device", "text"), [(CPU, "cpu"), (cuda(0), "cuda:0"), (cuda(17), "cuda:17")])
def test_a_name_is_read_as_it_is_printed(device: DeviceName, text: str) -> None:
    assert str(device) == text
    assert parse_device(text) == device


def test_the_kind_alone_is_the_first_one() -> None:
    assert parse_device("cuda") == cuda(0)


@pytest.mark.parametrize(
    "text", ["", "gpu", "cuda:", "cuda:-1", "cuda:x", "cuda:²", "cpu:0", "cuda:99999999999", "CPU"]
)
def test_what_names_no_device_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="is no device; expected one of cpu, cuda"):
        parse_device(text)
    with pytest.raises(ValueError, match="is no device; expected one of cpu, cuda"):
        parse_wish(text)


@pytest.mark.parametrize(
    ("text", "wish"),
    [("cpu", ON_CPU), ("cuda", ON_CUDA), ("cuda:0", DeviceWish(DeviceKind.CUDA, (0,)))],
)
def test_a_wish_of_one_word_is_read_as_it_is_printed(text: str, wish: DeviceWish) -> None:
    assert parse_wish(text) == wish
    assert str(wish) == text


def test_there_is_one_processor() -> None:
    with pytest.raises(AssertionError):
        DeviceName(DeviceKind.CPU, 1)


@pytest.mark.parametrize(
    ("wish", "allowed", "first", "text"),
    [
        (ON_CPU, {CPU}, CPU, "cpu"),
        (ON_CUDA, {cuda(0), cuda(1), cuda(2)}, cuda(0), "cuda"),
        (DeviceWish(DeviceKind.CUDA, (1, 2)), {cuda(1), cuda(2)}, cuda(1), "cuda:1,2"),
    ],
)
def test_a_wish_allows_those_of_its_kind_that_it_names(
    wish: DeviceWish, allowed: set[DeviceName], first: DeviceName, text: str
) -> None:
    assert {each for each in (CPU, cuda(0), cuda(1), cuda(2)) if wish.allows(each)} == allowed
    assert (wish.first, str(wish)) == (first, text)
