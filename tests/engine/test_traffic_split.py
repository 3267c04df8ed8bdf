"""Which requests concern a version on trial: as many as were asked for, and of whoever takes turns."""

from __future__ import annotations

import pytest

from appliance.core.rollout.catalog import TrialWish
from appliance.domain.inference import RequestHead, RequestPlan, TensorHead
from appliance.domain.validation import plan_request
from appliance.engine.versions.served import TrafficSplit
from appliance.telemetry.meter import VersionMeter
from tests.domain.sample import make_version
from tests.engine.versions import make_served

HEAD = RequestHead(model_name="m", model_version="", inputs=(TensorHead("x", "FP32", (1, 4)),))


def split_of(percent: float, wish: TrialWish | None = None) -> tuple[TrafficSplit, RequestPlan]:
    """One to another version of the sample, and a request that it may concern."""
    model = make_version()
    served = make_served(id=2, model=model, fingerprint="f", meter=VersionMeter("m", 2), identity="m/2@f")
    unseen = VersionMeter("m", 2)
    made = TrafficSplit(
        served, wish or TrialWish(canary_percent=percent), percent, shadow=False, unseen=unseen
    )
    return made, plan_request(model, HEAD)


@pytest.mark.parametrize("percent", [0.5, 10, 33, 60, 100])
def test_a_share_is_kept_at_every_moment(percent: float) -> None:
    one, plan = split_of(percent)
    for asked in range(1, 2_001):
        one.take(plan, {})
        assert asked * percent / 100 - 2 < one.taken <= asked * percent / 100 + 1


@pytest.mark.parametrize("clients", [2, 5, 10])
def test_clients_that_take_turns_share_it_alike(clients: int) -> None:
    one, plan = split_of(10)
    taken = [0] * clients
    for asked in range(10_000):
        taken[asked % clients] += one.take(plan, {}) is not None
    assert sum(taken) == pytest.approx(1_000, abs=1)
    assert min(taken) > 0.7 * 1_000 / clients


def test_another_wish_counts_from_the_next_request_on() -> None:
    one, plan = split_of(10)
    one.renew(TrialWish(canary_percent=10, header="x-site", value="berlin"), 10)
    assert one.take(plan, {}) is None
    assert all(one.take(plan, {"x-site": "berlin"}) for _ in range(20))
    assert not any(one.take(plan, {"x-site": "paris"}) for _ in range(20))
    one.renew(TrialWish(canary_percent=100), 100)
    assert one.take(plan, {}) is not None
