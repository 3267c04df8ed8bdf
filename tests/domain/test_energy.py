"""What an inference costs, and how it is said."""

from __future__ import annotations

import pytest

from appliance.domain.device_reading import VersionEnergy
from appliance.domain.energy import InferenceEnergy, cost_text, inference_energy, joules_text, watts_text

USED = VersionEnergy(joules=360.0, inferences=100, window_s=10.0)


def test_a_million_of_one_joule_each_are_so_many_kwh() -> None:
    assert inference_energy(USED, 0.30) == pytest.approx((3.6, 0.30))


@pytest.mark.parametrize(
    ("used", "price", "found"),
    [
        (None, 0.30, None),
        (VersionEnergy(joules=360.0, inferences=0, window_s=10.0), 0.30, None),
        (USED, 0.0, InferenceEnergy(3.6, None)),
        (VersionEnergy(joules=0.0, inferences=9, window_s=10.0), 0.30, InferenceEnergy(0.0, 0.0)),
    ],
)
def test_what_is_not_known_is_not_nothing(
    used: VersionEnergy | None, price: float, found: InferenceEnergy | None
) -> None:
    assert inference_energy(used, price) == found


@pytest.mark.parametrize(
    ("joules", "text"),
    [
        (0.0, "0 uJ"),
        (3.1e-7, "0.310 uJ"),
        (3.1e-4, "310 uJ"),
        (0.02, "20.0 mJ"),
        (1.254, "1.25 J"),
        (81_234.0, "81234 J"),
    ],
)
def test_joules_for_people(joules: float, text: str) -> None:
    assert joules_text(joules) == text


@pytest.mark.parametrize(
    ("cost", "text"), [(0.0, "0"), (0.001666, "0.00167"), (12.5, "12.5"), (4_321_000.0, "4321000")]
)
def test_money_for_people(cost: float, text: str) -> None:
    assert cost_text(cost) == text


def test_watts_for_people() -> None:
    assert (watts_text(6.54), watts_text(80.5)) == ("6.5 W", "80 W")
