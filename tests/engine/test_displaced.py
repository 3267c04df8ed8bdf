"""Requests whose version goes while it is out of memory wait for the one that serves instead, or are told when."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from appliance.core.memory.budget import ResidencyPolicy
from appliance.core.memory.footprint import PROCESS_BYTES
from appliance.core.rollout.catalog import CatalogVersion
from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.errors import Cancelled, DeadlineExpired, ModelAway
from appliance.domain.inference import NO_DEADLINE, Answer, RequestHead, TensorHead
from appliance.domain.validation import plan_request
from appliance.engine.port import Submission
from appliance.engine.requests.request import Request
from appliance.engine.requests.waiting_room import Displaced
from appliance.telemetry.meter import VersionMeter
from tests.engine.memory_terms import terms_of
from tests.engine.versions import make_served
from tests.simulation.scripted_workers import MS
from tests.simulation.swap_world import REFUSED_ANEW, SOUND, SwapWorld, version_of


def head_of(name: str) -> RequestHead:
    """A request that names no version."""
    return RequestHead(model_name=name, model_version="", inputs=(TensorHead("x", "FP32", (1, 2)),))


class TwoVersionsWorld(SwapWorld):
    """Two models, of which the first has a second version beside the first; room for one, which ``m1`` has."""

    def __init__(self, fate: str) -> None:
        terms = terms_of(ResidencyPolicy(evict_weights=False), PROCESS_BYTES + 6_000)
        super().__init__(8, names=2, swap=RolloutPolicy(watch_s=0.1), residency=terms)
        self.outcomes: list[Any] = []
        self.tried = (CatalogVersion(model=self.next_version("m0", fate), fingerprint=""),)
        self.start()
        self.run(10_000)
        self.ask("m1")
        self.run(10_000)
        assert [each.residency for each in self.engine.status().versions] == ["cold", "cold", "resident"]
        assert self.engine.resolve("m0", "").version == 2
        self.outcomes.clear()

    def run(self, ms: int) -> None:
        """Let time pass."""
        self.world.run(self.world.now + ms * MS)

    def ask(self, name: str, deadline_ns: int = NO_DEADLINE) -> None:
        """One more."""
        plan = plan_request(self.engine.resolve(name, ""), head_of(name))
        self.engine.submit(
            Submission(
                plan, request_id="", arrived_ns=self.world.now, deadline_ns=deadline_ns, on_done=self._ended
            ),
            [b"\x01" * 8],
        )

    def _ended(self, outcome: Any) -> None:
        self.outcomes.append(outcome)
        if isinstance(outcome, Answer):
            outcome.release()


@pytest.mark.parametrize("fate", [SOUND, REFUSED_ANEW], ids=["nobody wants it", "it is given up"])
def test_who_waits_for_a_version_that_goes_waits_for_the_one_that_serves(fate: str) -> None:
    world = TwoVersionsWorld(fate)
    for _ in range(3):
        world.ask("m0")
    world.run(3)
    assert world.engine.status().residency.waiting == 3
    if fate == SOUND:
        world.tried = ()
        world.apply()
    world.run(10_000)
    assert [outcome.model.version for outcome in world.outcomes] == [1, 1, 1]
    assert world.engine.status().residency.misses == 4, "each of them counts once"


def test_who_would_be_late_then_is_told_when_to_come_back() -> None:
    world = TwoVersionsWorld(REFUSED_ANEW)
    with pytest.raises(ModelAway) as early:
        world.ask("m0", world.world.now + MS)
    first_ns = world.world.now + early.value.retry_after_ns
    for later in range(100):
        world.ask("m0", first_ns + later * 5 * MS)
    world.run(10_000)
    ended = [type(outcome) for outcome in world.outcomes]
    assert set(ended) == {DeadlineExpired, ModelAway, Answer}
    assert ended.index(ModelAway) > ended.index(DeadlineExpired), "who was late already"
    assert all(outcome.retry_after_ns > 0 for outcome in world.outcomes if isinstance(outcome, ModelAway))
    world.settle()


def test_who_is_cancelled_before_it_is_known_what_serves_waits_for_nothing() -> None:
    outcomes: list[Any] = []
    rerouting = SimpleNamespace(reroute=lambda request: False, follow=lambda request: True)
    completion = SimpleNamespace(end=lambda request, error, result: outcomes.append(error))
    pace, cold = SimpleNamespace(soon=lambda: None), SimpleNamespace(ask=lambda *asked: None)
    displaced = Displaced(cast(Any, rerouting), cast(Any, completion), cast(Any, pace))
    model = version_of("m", 1, SOUND)
    served = make_served(id=1, model=model, fingerprint="", meter=VersionMeter("m", 1))
    submission = Submission(plan_request(model, head_of("m")), "", 0, NO_DEADLINE, outcomes.append)
    request = Request(1, submission, served, NO_DEADLINE)
    displaced.add(request)
    request.cancelled = True
    displaced.settle(cast(Any, cold), 0)
    displaced.settle(cast(Any, cold), 0)
    assert [type(outcome) for outcome in outcomes] == [Cancelled]
