"""What the front end is told of prices: those of kinds that requests may have, and of no others."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import Any, cast

from appliance.config.engine import EngineConfig
from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.core.scheduling.actions import GrantLease, RevokeLease
from appliance.domain.inference import NO_DEADLINE, RequestHead, TensorHead
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.domain.validation import plan_request
from appliance.engine.engine import BATCH_KEYS_PER_MODEL
from appliance.engine.fastpath.direct import LeasingFrontEnd, RequestTemplate, Tally
from appliance.engine.fastpath.lanes import OFFER_NS
from appliance.engine.fastpath.leases import NOTHING_LEASED
from appliance.engine.port import Submission
from appliance.workers.port import LaneMemory, Learn
from tests.domain.sample import make_version
from tests.engine.rig import Rig


class ServerDouble:
    """Keeps the prices; of the rest only what this test meets."""

    def __init__(self) -> None:
        self.prices: dict[int, tuple[int, ...]] = {}

    def attach(self, **shared: object) -> None:
        """Nothing to do."""

    def drop_templates(self, model: int | None) -> None:
        """Nothing to do."""

    def news(self) -> tuple[Sequence[object], Sequence[int]]:
        return (), ()

    def in_flight(self, model: int) -> int:
        return 0

    def backlog(self, model: int) -> int:
        return 0

    def price(self, kind: int, *price: int) -> None:
        self.prices[kind] = price

    def forget_price(self, kind: int) -> None:
        del self.prices[kind]


class RingRig(Rig):
    """A rig whose workers could share memory with a front end."""

    @property
    def rings(self) -> bool:
        return True

    def forget(self, worker: int, plans: tuple[int, ...]) -> None:
        """Nothing to do."""


def test_prices_of_models_that_are_gone_are_forgotten() -> None:
    rig, front_end = RingRig(make_version("m", 1)), ServerDouble()
    assert rig.engine.leases.attach(cast(LeasingFrontEnd, front_end), 0)
    known = set()
    for version in (1, 2, 3):
        model = make_version("m", version)
        rig.engine.apply(Catalog(versions=(CatalogVersion(model=model, fingerprint=""),)))
        rig.turns()
        served = rig.engine.resolve("m", "")
        assert served.version == version
        head = RequestHead(model_name="m", model_version="", inputs=(TensorHead("x", "FP32", (1, 4)),))
        taught = rig.engine.leases.template_of(plan_request(served, head), ((1, 2),))
        assert taught is not None
        rig.turns()
        assert taught.kind in front_end.prices
        known.add(taught.kind)
    assert len(known) == 3
    rig.engine.apply(Catalog(versions=()))
    rig.turns()
    assert front_end.prices == {}


class LaneDescriptors:
    """Memory of a lane that nobody maps."""

    def fileno(self) -> int:
        return -1

    doorbell = fileno


class FullFrontEnd(ServerDouble):
    """Has a descriptor left for so many lanes."""

    def __init__(self) -> None:
        super().__init__()
        self.room = 0
        self.leased: dict[int, int] = {}
        """What may be in flight, by lane."""
        self.offered: list[int] = []

    def open_lane(self, *lane: int) -> None:
        self.offered.append(lane[0])
        if not self.room:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        self.room -= 1
        self.leased[lane[0]] = 0

    def lease(self, lane: int, limit: int) -> bool:
        if lane in self.leased:
            self.leased[lane] = limit
        return lane in self.leased

    def end_lease(self, lane: int) -> bool:
        return self.lease(lane, 0)

    def load(self, lane: int) -> tuple[int, int, int]:
        return 0, 0, 0

    def close_lane(self, lane: int, last: bool) -> tuple[int, int, Sequence[str]]:
        self.leased.pop(lane, None)
        return -1, 0, ()


class LaneRig(RingRig):
    """A rig whose workers do share memory."""

    def memory(self, worker: int) -> LaneMemory | None:
        return cast(LaneMemory, LaneDescriptors())


class Shortage(LaneRig):
    """A rig whose front end takes no lane until it has room: those of one model with two workers. Time passes by
    hand."""

    def __init__(self) -> None:
        self.now_ns = 1_000_000_000_000
        super().__init__(make_version("m", 1))
        self.server = FullFrontEnd()
        assert self.engine.leases.attach(cast(LeasingFrontEnd, self.server), 0)
        twice = make_version("m", 2, instance_count=2)
        self.engine.apply(Catalog(versions=(CatalogVersion(model=twice, fingerprint=""),)))
        self.turns()
        assert self.engine.resolve("m", "").version == 2, "it serves all the same"
        assert not self.server.leased
        self.lanes = sorted(set(self.server.offered))

    def clock(self) -> int:
        return self.now_ns

    def later(self) -> None:
        """When lanes are offered again."""
        self.now_ns += OFFER_NS
        self.turns()

    def under_grant(self) -> list[bool]:
        """What the figures say of each lane."""
        return [self.engine.leases.use(lane)[1] for lane in self.lanes]


def test_lanes_for_which_no_descriptor_was_left_are_leased_when_there_are_some() -> None:
    rig = Shortage()
    limit = EngineConfig().lease_limit
    assert rig.under_grant() == [False, False]
    rig.server.room = 1
    rig.turns()
    assert not rig.server.leased, "it is offered at each turn"
    rig.later()
    assert rig.server.leased == {rig.lanes[0]: limit}
    assert rig.under_grant() == [True, False]
    rig.server.room = 1
    rig.later()
    assert rig.server.leased == dict.fromkeys(rig.lanes, limit)
    rig.engine.leases.perform(RevokeLease(rig.lanes[0]))
    assert rig.server.leased[rig.lanes[0]] == 0


def test_what_was_revoked_or_has_ended_before_there_was_a_descriptor_is_not_leased() -> None:
    rig = Shortage()
    revoked, ended = rig.lanes
    rig.engine.leases.perform(RevokeLease(revoked))
    rig.engine.leases.worker_exited(ended, last=False)
    rig.server.room = 2
    rig.later()
    assert rig.server.leased == {revoked: 0}
    rig.engine.leases.perform(GrantLease(revoked))
    assert rig.server.leased[revoked] > 0


class IdleFrontEnd(ServerDouble):
    """Nothing is in flight on its lanes."""

    def open_lane(self, *lane: int) -> None:
        """Nothing to do."""

    def lease(self, lane: int, limit: int) -> bool:
        return True

    def load(self, lane: int) -> tuple[int, int, int]:
        return 0, 0, 0


class AskedRig(LaneRig):
    """Counts how often somebody wants to know how long a model may run."""

    asked = 0

    def learn(self, worker: int, learn: Learn) -> None:
        """Nothing to do."""

    def run_timeout_ns(self, version: ModelVersion) -> int:
        self.asked += 1
        return super().run_timeout_ns(version)


def test_idle_lanes_cost_no_look_at_what_was_taught() -> None:
    rig, front_end = AskedRig(make_version("m", 1)), IdleFrontEnd()
    assert rig.engine.leases.attach(cast(LeasingFrontEnd, front_end), 0)
    rig.engine.apply(Catalog(versions=(CatalogVersion(model=make_version("m", 2), fingerprint=""),)))
    rig.turns()
    head = RequestHead(model_name="m", model_version="", inputs=(TensorHead("x", "FP32", (1, 4)),))
    assert (
        rig.engine.leases.template_of(plan_request(rig.engine.resolve("m", ""), head), ((1, 2),)) is not None
    )
    before = rig.asked
    rig.turns()
    assert rig.asked == before


class SlottedFrontEnd(IdleFrontEnd):
    """Uses none of its slots."""

    def attach(self, **shared: Any) -> None:
        self.slots = [len(offsets) for _, offsets in shared["slots"]]

    def free_slots(self) -> list[int]:
        return self.slots


class PlanRig(LaneRig):
    """A rig whose model takes vectors of any width, and whose workers note which plans they are told and told to
    forget."""

    def __init__(self) -> None:
        self.learned: list[int] = []
        self.forgotten: list[int] = []
        super().__init__(
            make_version("m", inputs=(TensorSpec(name="x", datatype=Datatype.FP32, shape=(-1,)),))
        )
        self.server = SlottedFrontEnd()
        assert self.engine.leases.attach(cast(LeasingFrontEnd, self.server), 0)

    def learn(self, worker: int, learn: Learn) -> None:
        self.learned.append(learn.plan)

    def forget(self, worker: int, plans: tuple[int, ...]) -> None:
        self.forgotten += plans

    def taught(self, width: int) -> RequestTemplate:
        """The template for one more head of vectors of this width."""
        head = RequestHead(model_name="m", model_version="", inputs=(TensorHead("x", "FP32", (1, width)),))
        plan = plan_request(self.engine.resolve("m", ""), head)
        template = self.engine.leases.template_of(plan, ((1, 2),))
        assert template is not None
        return template


def test_what_no_head_asks_for_any_more_is_forgotten() -> None:
    """Plans, prices and batch keys, however many shapes clients bring."""
    rig = PlanRig()
    twice = make_version("m", 2, inputs=rig.engine.resolve("m", "").inputs)
    rig.engine.apply(Catalog(versions=(CatalogVersion(model=twice, fingerprint=""),)))
    rig.turns()
    widths = range(1, 2 * BATCH_KEYS_PER_MODEL)
    for _ in range(2):
        taught = [rig.taught(width) for width in widths]
        again = rig.taught(1)
        rig.turns()
        assert again == taught[0]
        assert {template.kind for template in taught} == rig.server.prices.keys()
        assert len(rig.server.prices) == len(widths) <= rig.engine.status().batch_keys
        for template in taught:
            rig.engine.leases.release(template.plan)
        assert rig.server.prices.keys() == {again.kind}, "another head has it"
        rig.engine.leases.release(again.plan)
        rig.engine.leases.release(again.plan)
        assert not rig.server.prices
    assert len(rig.learned) == 2 * len(widths)
    assert sorted(rig.forgotten) == sorted(rig.learned)
    for width in range(1000, 1000 + 2 * len(widths)):
        rig.engine.leases.release(rig.taught(width).plan)
    rig.turns()
    assert rig.engine.status().batch_keys == BATCH_KEYS_PER_MODEL


class CountingFrontEnd(IdleFrontEnd):
    """Counts how often it is asked for a lane's load, by lane; ``loads`` and ``tallies`` are what it has to tell."""

    def __init__(self) -> None:
        super().__init__()
        self.groups: dict[int, int] = {}
        self.asked: list[int] = []
        self.loads: dict[int, tuple[int, int, int]] = {}
        self.tallies: list[Tally] = []

    def open_lane(self, *lane: int) -> None:
        self.groups[lane[0]] = lane[1]

    def load(self, lane: int) -> tuple[int, int, int]:
        self.asked.append(lane)
        return self.loads.get(lane, (0, 0, 0))

    def news(self) -> tuple[Sequence[object], Sequence[int]]:
        told, self.tallies = self.tallies, []
        return told, ()

    def close_lane(self, lane: int, last: bool) -> tuple[int, int, Sequence[str]]:
        return -1, 0, ()

    def end_lease(self, lane: int) -> bool:
        return True


class StillRig(LaneRig):
    """Where no time passes."""

    def clock(self) -> int:
        return 1_000_000_000_000


class Box:
    """Six models, each on a leased lane of its own that has nothing to do; nothing was asked of the front end yet."""

    def __init__(self) -> None:
        self.rig, self.server = StillRig(make_version("m", 1)), CountingFrontEnd()
        assert self.rig.engine.leases.attach(cast(LeasingFrontEnd, self.server), 0)
        versions = tuple(
            CatalogVersion(model=make_version(f"m{number}", 1), fingerprint="") for number in range(6)
        )
        self.rig.engine.apply(Catalog(versions=versions))
        self.rig.turns()
        assert len(self.server.groups) == 6 == len(set(self.server.groups.values()))
        self.rig.engine.leases.collect()
        self.rig.turns()
        self.server.asked.clear()

    def submit(self, name: str) -> None:
        head = RequestHead(model_name=name, model_version="", inputs=(TensorHead("x", "FP32", (1, 4)),))
        plan = plan_request(self.rig.engine.resolve(name, ""), head)
        engine = self.rig.engine
        engine.submit(
            Submission(
                plan, request_id="", arrived_ns=engine.now_ns(), deadline_ns=NO_DEADLINE, on_done=print
            ),
            [bytes(16)],
        )

    def tally(self, lane: int) -> Tally:
        return Tally(0, 0, lane, 1, 1, [], [], 0, 0, 0, 0, [])


def test_a_request_through_python_looks_at_the_lanes_of_its_group_only() -> None:
    box = Box()
    box.submit("m3")
    (lane,) = box.server.asked
    box.rig.turns()
    assert box.rig.runs
    assert set(box.server.asked) == {lane}, "nor does its dispatch, which ends the lease"


def test_news_look_at_lanes_that_they_are_about_and_at_those_that_had_work() -> None:
    box = Box()
    busy, told, *_ = box.server.groups
    box.server.loads[busy] = 2, 1_000, 1
    box.server.tallies.append(box.tally(busy))
    box.rig.engine.leases.told()
    assert box.server.asked == [busy]
    box.server.asked.clear()
    box.server.tallies.append(box.tally(told))
    box.rig.engine.leases.told()
    assert sorted(box.server.asked) == sorted((busy, told))
    box.server.asked.clear()
    del box.server.loads[busy]
    box.rig.engine.leases.told()
    assert box.server.asked == [busy], "until it has drained"
    box.server.asked.clear()
    box.rig.engine.leases.told()
    assert not box.server.asked


def test_turns_of_a_box_that_has_nothing_to_do_look_at_no_lane() -> None:
    box = Box()
    box.rig.turns()
    assert not box.server.asked


def test_a_lane_that_a_dead_worker_leaves_work_to_is_looked_at_before() -> None:
    rig, front_end = StillRig(make_version("m", 1)), CountingFrontEnd()
    assert rig.engine.leases.attach(cast(LeasingFrontEnd, front_end), 0)
    twice = make_version("n", 1, instance_count=2)
    rig.engine.apply(Catalog(versions=(CatalogVersion(model=twice, fingerprint=""),)))
    rig.turns()
    dead, other = front_end.groups
    front_end.asked.clear()
    assert rig.engine.leases.worker_exited(dead, last=False) == NOTHING_LEASED
    assert sorted(front_end.asked) == [dead, other]
    assert rig.engine.leases.worker_exited(dead, last=False) == NOTHING_LEASED
    assert len(front_end.asked) == 2, "it is known no more"


def test_whether_models_are_in_flight_costs_no_look_at_lanes() -> None:
    box = Box()
    direct = box.rig.engine.leases
    box.server.tallies.append(box.tally(next(iter(box.server.groups))))
    assert not any(direct.in_flight(model) for model in range(9))
    assert not box.server.asked
    assert box.server.tallies, "it fetches no news either"
    assert direct.is_through(1)
    assert not box.server.tallies, "but who wants all booked gets that"
