"""Which versions come back quickly, and what is remembered of those that did."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.domain.device_wish import ON_CPU, ON_CUDA, DeviceWish
from appliance.domain.model import WeightsFile
from appliance.engine.control.early_sessions import EarlySessions, comes_quickly
from appliance.engine.versions.served import Served
from appliance.telemetry.meter import VersionMeter
from tests.domain.sample import make_version
from tests.engine.versions import make_served

ONE, OTHER = 11, 12
LARGE = WeightsFile(path="weights.bin", size=1000)


@pytest.fixture
def served() -> Served:
    return make_served(id=5, model=make_version("a", 1), fingerprint="", meter=VersionMeter("a", 1))


@pytest.mark.parametrize(
    ("weights", "device", "quickly"),
    [
        (LARGE, ON_CPU, True),
        (LARGE, ON_CUDA, False),
        (replace(LARGE, size=999), ON_CPU, False),
        (None, ON_CPU, False),
    ],
)
def test_large_versions_with_weights_of_their_own_come_back_quickly(
    weights: WeightsFile | None, device: DeviceWish, quickly: bool
) -> None:
    assert comes_quickly(replace(make_version("a", 1), weights=weights, device=device), 1000) is quickly


def test_each_worker_makes_the_fast_session_when_its_weights_are_there(served: Served) -> None:
    sessions = EarlySessions()
    sessions.asked(served, 100)
    for worker in (ONE, OTHER):
        sessions.opened(served, worker)
    assert sessions.busy(served.id)
    assert sessions.arrived(served, ONE, 350)
    assert not sessions.arrived(served, ONE, 360), "once"
    assert not sessions.renewed(served.id, OTHER), "it has not begun"
    assert sessions.arrived(served, OTHER, 370)
    assert sessions.renewed(served.id, ONE)
    assert sessions.busy(served.id)
    assert sessions.renewed(served.id, OTHER)
    assert not sessions.busy(served.id)


def test_a_fill_that_nobody_came_back_by_starts_nothing(served: Served) -> None:
    assert not EarlySessions().arrived(served, ONE, 10)


def test_how_long_it_took_is_known_from_the_last_time(served: Served) -> None:
    sessions = EarlySessions()
    assert sessions.took_ns(served, 900) == 900
    sessions.asked(served, 100)
    sessions.opened(served, ONE)
    sessions.arrived(served, ONE, 350)
    assert sessions.took_ns(served, 900) == 250
    sessions.forget(served.id)
    assert sessions.took_ns(served, 900) == 900
    assert not sessions.busy(served.id)


def test_who_is_started_again_later_tells_nothing_of_how_long_coming_back_takes(served: Served) -> None:
    sessions = EarlySessions()
    sessions.asked(served, 100)
    for worker in (ONE, OTHER):
        sessions.opened(served, worker)
    sessions.arrived(served, ONE, 150)
    sessions.arrived(served, OTHER, 350)
    sessions.lost(OTHER)
    sessions.opened(served, OTHER)
    assert sessions.arrived(served, OTHER, 90_000)
    assert sessions.took_ns(served, 900) == 250


@pytest.mark.parametrize("arrived", [False, True])
def test_a_worker_that_is_gone_is_not_waited_for(served: Served, arrived: bool) -> None:
    sessions = EarlySessions()
    sessions.asked(served, 0)
    sessions.opened(served, ONE)
    if arrived:
        sessions.arrived(served, ONE, 10)
    sessions.lost(OTHER)
    assert sessions.busy(served.id)
    sessions.lost(ONE)
    assert not sessions.busy(served.id)
