"""What the door is told of prices: those of kinds that requests may have, and of no others."""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from typing import cast

from appliance.engine.direct import DirectDoor
from appliance.engine.routes import Catalog, CatalogVersion
from appliance.inference import RequestHead, TensorHead
from appliance.model import ModelVersion
from appliance.validation import plan_request
from appliance.workers.port import LaneMemory, Learn
from tests.engine.rig import Rig
from tests.words.sample import make_version


class DoorDouble:
    """Keeps the prices; of the rest only what this test meets."""

    def __init__(self) -> None:
        self.prices: dict[int, tuple[int, ...]] = {}

    def attach(self, **shared: object) -> None:
        """Nothing to do."""

    def forget(self, model: int | None) -> None:
        """Nothing to do."""

    def news(self) -> tuple[Sequence[object], Sequence[int]]:
        return (), ()

    def in_flight(self, model: int) -> int:
        return 0

    def parked(self, model: int) -> int:
        return 0

    def price(self, kind: int, *price: int) -> None:
        self.prices[kind] = price

    def forget_price(self, kind: int) -> None:
        del self.prices[kind]


class RingRig(Rig):
    """A rig whose workers could share memory with a door."""

    @property
    def rings(self) -> bool:
        return True

    def forget(self, worker: int, plans: tuple[int, ...]) -> None:
        """Nothing to do."""


def test_prices_of_models_that_are_gone_are_forgotten() -> None:
    rig, door = RingRig(make_version("m", 1)), DoorDouble()
    assert rig.engine.direct.attach(cast(DirectDoor, door), 0)
    known = set()
    for version in (1, 2, 3):
        model = make_version("m", version)
        rig.engine.apply(Catalog(versions=(CatalogVersion(model=model, fingerprint=""),)))
        rig.turns()
        served = rig.engine.resolve("m", "")
        assert served.version == version
        head = RequestHead(model_name="m", model_version="", inputs=(TensorHead("x", "FP32", (1, 4)),))
        taught = rig.engine.direct.teach(plan_request(served, head), ((1, 2),))
        assert taught is not None
        rig.turns()
        assert taught.kind in door.prices
        known.add(taught.kind)
    assert len(known) == 3
    rig.engine.apply(Catalog(versions=()))
    rig.turns()
    assert door.prices == {}


class LaneDescriptors:
    """Memory of a lane that nobody maps."""

    def fileno(self) -> int:
        return -1

    doorbell = fileno


class FullDoor(DoorDouble):
    """Has no descriptor left for a lane; can grant none."""

    def open_lane(self, *lane: int) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))


class LaneRig(RingRig):
    """A rig whose workers do share memory."""

    def memory(self, worker: int) -> LaneMemory | None:
        return cast(LaneMemory, LaneDescriptors())


def test_a_lane_for_which_no_descriptor_is_left_serves_ungranted() -> None:
    rig = LaneRig(make_version("m", 1))
    assert rig.engine.direct.attach(cast(DirectDoor, FullDoor()), 0)
    rig.engine.apply(Catalog(versions=(CatalogVersion(model=make_version("m", 2), fingerprint=""),)))
    rig.turns()
    assert rig.engine.resolve("m", "").version == 2


class IdleDoor(DoorDouble):
    """Nothing is in flight on its lanes."""

    def open_lane(self, *lane: int) -> None:
        """Nothing to do."""

    def grant(self, lane: int, limit: int) -> bool:
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
    rig, door = AskedRig(make_version("m", 1)), IdleDoor()
    assert rig.engine.direct.attach(cast(DirectDoor, door), 0)
    rig.engine.apply(Catalog(versions=(CatalogVersion(model=make_version("m", 2), fingerprint=""),)))
    rig.turns()
    head = RequestHead(model_name="m", model_version="", inputs=(TensorHead("x", "FP32", (1, 4)),))
    assert rig.engine.direct.teach(plan_request(rig.engine.resolve("m", ""), head), ((1, 2),)) is not None
    before = rig.asked
    rig.turns()
    assert rig.asked == before
