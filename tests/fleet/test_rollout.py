"""Rollouts in waves by seed: devices go there, refuse, go dark, go back by themselves and are held, and the controller
starts anew at any step; and each rule by hand."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from appliance.fleet.arrival import Mark, Stay, Wished, arrival_of, together
from appliance.fleet.rollout import (
    FAILURES_MAX,
    GROUPS_MAX,
    REASON_CHARACTERS,
    WAVES_MAX,
    Look,
    Rollout,
    State,
    Step,
    Wave,
    Wishes,
    begun,
    other_wish,
    plan_problems,
    step,
)
from appliance.fleet.told import Device

SEEDS = 150
STAY_S = 300
WATCH_S = 120
"""For how long a device may go back by itself."""
NEW, OLD = 2, 1


@dataclass
class Box:
    """A device: what it knows, what it is at, what it said last, and when it began to say that it serves."""

    name: str
    group: str
    fate: str
    knows: int = 0
    wants: int = 0
    serving: int = OLD
    phase: str = "done"
    live_ms: int = 0
    said: dict[str, Any] = field(default_factory=dict)
    seen_ms: int = 0
    told: int = 0
    serves_since_ms: int = 0

    def poll(self, wish: int, generation: int, now_ms: int) -> None:
        """Say what it is at, and hear what is wished."""
        if not self.said or self.seen_ms < now_ms:
            self._work(now_ms)
            self.seen_ms, self.told = now_ms, self.knows
            self.said = {
                "name": "m", "wanted": self.wants, "serving": self.serving, "phase": self.phase, "reason": self.fate,
                "missing_bytes": 0, "managed": True,
            }  # fmt: skip
            serves = self.serving == self.wants == NEW
            self.serves_since_ms = (self.serves_since_ms or now_ms) if serves else 0
        if generation != self.knows:
            self.knows, self.wants = generation, wish

    def _work(self, now_ms: int) -> None:
        """Do what it knows of, as its fate has it."""
        if self.fate == "held" and self.wants == NEW:
            self.phase = "held"
        elif self.fate == "refuses" and self.wants == NEW:
            self.phase = "refused"
        elif self.fate == "goes back" and self.live_ms and self.wants == NEW:
            if now_ms - self.live_ms < WATCH_S * 1000:
                self.serving, self.phase = OLD, "failed"
        elif self.wants:
            if self.serving != self.wants:
                self.live_ms = now_ms
            self.serving, self.phase = self.wants, "done"

    @property
    def stays(self) -> bool:
        """Whether it said long enough that it serves."""
        return bool(self.serves_since_ms) and self.seen_ms - self.serves_since_ms >= STAY_S * 1000


class World:
    """Groups of devices, a rollout, what is wished, and what is kept of it all: texts, as in a database."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        waves = [
            tuple(f"g{wave}{letter}" for letter in "ab"[: self.random.randint(1, 2)])
            for wave in range(self.random.randint(1, 4))
        ]
        self.bad = self.random.choice([0, 0, 0.1, 0.4])
        self.dark = self.random.choice([0, 0, 0.1])
        self.boxes = [
            Box(f"{group}-{number}", group, self._fate())
            for wave in waves
            for group in wave
            for number in range(self.random.randint(1, 6))
        ]
        self.now_ms = 1_000_000
        self.before = {group: self.random.choice([OLD, OLD, None]) for wave in waves for group in wave}
        self.wished = dict(self.before)
        self.generations = dict.fromkeys(self.before, 1)
        self.marks: dict[str, Mark] = {}
        self.since: dict[str, int] = {}
        rollout = Rollout(
            number=1, model="m", version=NEW, by="ann", at_ms=self.now_ms, since_ms=self.now_ms, stay_s=STAY_S,
            waves=tuple(Wave(groups=groups) for groups in waves), share=self.random.choice([100, 100, 80, 50]),
            allow=self.random.choice([0, 0, 1, 3]), back=self.random.random() < 0.3,
        )  # fmt: skip
        for _ in range(3):
            self.turn(likely=1.0)
        self.kept = b""
        self.take(begun(rollout, self.now_ms))

    def _fate(self) -> str:
        if self.random.random() < self.bad:
            return self.random.choice(["refuses", "goes back", "held"])
        return "dark" if self.random.random() < self.dark else "goes there"

    @property
    def rollout(self) -> Rollout:
        return msgspec.json.decode(self.kept, type=Rollout)

    def take(self, found: Step) -> None:
        """Have what was decided, as one transaction."""
        self.kept = msgspec.json.encode(found.rollout)
        for group in found.wish:
            self.wish(group, NEW)
        if found.rollout.state is State.BACK:
            for group in found.rollout.groups:
                self.wish(group, self.before[group])

    def wish(self, group: str, version: int | None) -> None:
        if self.wished[group] != version:
            self.wished[group] = version
            self.generations[group] += 1

    def turn(self, likely: float = 0.7) -> None:
        """Time goes on, and devices poll or do not."""
        self.now_ms += self.random.randint(5, 60) * 1000
        for box in self.boxes:
            if box.fate != "dark" and self.random.random() < likely:
                box.poll(self.wished[box.group] or 0, self.generations[box.group], self.now_ms)

    def devices(self, group: str) -> list[Device]:
        return [self._told(box) for box in self.boxes if box.group == group]

    def _told(self, box: Box) -> Device:
        found: Any = {
            "name": box.name, "group": box.group, "state": "active", "seen_ms": box.seen_ms,
            "told_generation": box.told, "generation": self.generations[box.group],
            "models": [box.said] if box.said else [], "problems": [], "wishes": {},
        }  # fmt: skip
        return found  # type: ignore[no-any-return]

    def looks(self) -> list[Look]:
        """Where the devices are, by what was kept; a look may be lost before it is kept, as by a kill."""
        found = []
        for wave in self.rollout.begun:
            arrivals = [
                arrival_of(Wished(model="m", version=NEW, group=group), self.devices(group), self.marks)
                for group in wave.groups
            ]
            stay = Stay(STAY_S, self.since)
            stay.look(together(arrivals))
            found.append(Look(together(arrivals), stay))
        return found

    def step(self) -> Step | None:
        """A step of the controller; None: it was killed before what it decided was kept."""
        looks = self.looks()
        if self.random.random() < 0.9:
            self.marks = {name: mark for look in looks for name, mark in look.arrival.marks.items()}
            self.since = {name: at for look in looks for name, at in look.stay.since_ms.items()}
        wished = {group: Wishes(version) for group, version in self.wished.items()}
        other = other_wish(
            self.rollout, wished, {group: Wishes(version) for group, version in self.before.items()}
        )
        found = step(self.rollout, looks, other, self.now_ms)
        if self.random.random() < 0.2:
            return None
        self.take(found)
        return found


def says_refused(world: World, groups: Sequence[str]) -> int:
    """By what devices said last of the new version, once they knew of it."""
    return sum(
        box.group in groups
        and box.told > 1
        and box.said["wanted"] == NEW
        and box.phase in ("refused", "failed")
        for box in world.boxes
    )


def check_done(world: World, wave: Wave) -> None:
    """As many as there should be said long enough that they serve the version."""
    boxes = [box for box in world.boxes if box.group in wave.groups]
    apart = sum(box.phase in ("refused", "failed", "held") and box.told > 1 for box in boxes)
    stay = sum(box.stays for box in boxes)
    assert stay > 0
    assert stay * 100 >= (len(boxes) - apart) * world.rollout.share


@pytest.mark.parametrize("seed", range(SEEDS))
def test_a_rollout_keeps_its_rules_whatever_devices_do_and_whenever_the_controller_dies(seed: int) -> None:
    world = World(seed)
    for _ in range(120):
        world.turn()
        before = world.rollout
        if before.state is not State.RUNNING:
            break
        refused = says_refused(world, before.groups)
        found = world.step()
        if found is None:
            continue
        after = found.rollout
        if refused > before.allow:
            assert after.state is (State.BACK if before.back else State.HALTED)
            assert (found.wish, after.begun != ()) == ((), True)
        if found.wish:
            assert after.state is State.RUNNING
            assert len(after.begun) == len(before.begun) + 1
            assert found.wish == after.begun[-1].groups
        if len(after.begun) > len(before.begun) or after.state is State.DONE:
            check_done(world, after.waves[len(before.begun) - 1])
        assert all(wave.done_ms for wave in after.begun[:-1])
    end = world.rollout
    later = [group for wave in end.waves if not wave.began_ms for group in wave.groups]
    assert all(world.wished[group] == world.before[group] for group in later)
    for group in end.groups:
        assert world.wished[group] == (world.before[group] if end.state is State.BACK else NEW)
    if end.state is State.DONE:
        assert all(wave.done_ms for wave in end.waves)


def test_the_seeds_bring_about_each_end() -> None:
    ends = set()
    for seed in range(SEEDS):
        world = World(seed)
        for _ in range(120):
            world.turn()
            if world.rollout.state is State.RUNNING:
                world.step()
        ends.add(world.rollout.state)
    assert ends == {State.RUNNING, State.HALTED, State.BACK, State.DONE}


# --- each rule


def device(name: str, serving: int = NEW, phase: str = "done", seen_ms: int = 400_000, **said: Any) -> Device:
    found: Any = {
        "name": name, "group": "a", "state": "active", "seen_ms": seen_ms, "told_generation": 2, "generation": 2,
        "models": [
            {
                "name": "m", "wanted": NEW if phase == "done" else OLD, "serving": serving, "phase": phase,
                "reason": "x" * 400, "missing_bytes": 0, "managed": True,
            }
        ],
        "problems": [], "wishes": {}, **said,
    }  # fmt: skip
    return found  # type: ignore[no-any-return]


def after(devices: Sequence[Device], other: str = "", **plan: Any) -> Step:
    """What becomes of a rollout to two waves, whose first has the devices, each of which serves since 0."""
    rollout = Rollout(
        number=7, model="m", version=NEW, by="ann", at_ms=0, since_ms=0,
        waves=(Wave(groups=("a",), began_ms=1), Wave(groups=("b", "c"))), **plan,
    )  # fmt: skip
    marks = {each["name"]: Mark(1, 1, 2) for each in devices}
    arrival = arrival_of(Wished(model="m", version=NEW, group="a"), devices, marks)
    stay = Stay(rollout.stay_s, {each["name"]: 1000 for each in devices})
    stay.look(arrival)
    return step(rollout, [Look(arrival, stay)], other, 500_000)


DARK: Any = {"told_generation": 1, "seen_ms": 1}


def test_the_next_wave_begins_when_all_are_there() -> None:
    found = after([device("x"), device("y")])
    assert found.wish == ("b", "c")
    assert (found.rollout.waves[0].done_ms, found.rollout.waves[1].began_ms) == (500_000, 500_000)
    assert (found.rollout.state, found.rollout.waves[0].there) == (State.RUNNING, 2)


@pytest.mark.parametrize(
    ("devices", "plan", "begins"),
    [
        ([device("x"), device("y", seen_ms=200_000)], {}, False),
        ([device("x"), device("y", **DARK)], {}, False),
        ([device("x"), device("y", **DARK)], {"share": 50}, True),
        ([device("x"), device("y", **DARK)], {"share": 51}, False),
        ([device("x"), device("y", OLD, "held")], {}, True),
        ([device("x"), device("y", state="revoked")], {}, True),
        ([device("x"), device("y", wishes={"m": {"version": 1}})], {}, True),
        ([device("x"), device("y", OLD, "failed")], {"allow": 1}, True),
        ([device("y", OLD, "failed")], {"allow": 1}, False),
        ([device("y", OLD, "held")], {}, False),
        ([], {}, False),
    ],
)
def test_who_counts_and_who_is_there(devices: list[Device], plan: dict[str, Any], begins: bool) -> None:
    found = after(devices, **plan)
    assert (found.rollout.state, bool(found.wish)) == (State.RUNNING, begins)


@pytest.mark.parametrize("phase", ["failed", "refused"])
def test_more_that_refuse_than_may_halt_it_although_enough_are_there(phase: str) -> None:
    devices = [device("x"), device("y", OLD, phase), device("z", OLD, phase)]
    found = after(devices, share=1, allow=1)
    assert (found.rollout.state, found.wish) == (State.HALTED, ())
    assert found.rollout.reason == "2 devices refused it or went back, and 1 may"
    assert [(each.device, each.phase) for each in found.rollout.failed] == [("y", phase), ("z", phase)]
    assert len(found.rollout.failed[0].reason) == REASON_CHARACTERS + len(" ...")
    assert after(devices, share=1, allow=1, back=True).rollout.state is State.BACK
    many = after([device(f"d{number}", OLD, phase) for number in range(50)]).rollout
    assert (many.refused, len(many.failed)) == (50, FAILURES_MAX)


def test_a_wish_of_a_person_halts_it_and_takes_nothing_back() -> None:
    found = after([device("x")], "ann wished m=1 for the group 'a'", back=True)
    assert (found.rollout.state, found.wish, found.rollout.reason) == (
        State.HALTED, (), "ann wished m=1 for the group 'a'",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("now", "says"),
    [
        ({"a": Wishes(2), "b": Wishes(1)}, ""),
        ({"a": Wishes(2), "b": Wishes(2)}, ""),
        ({"a": Wishes(1, "bob"), "b": Wishes(1)}, "bob wished m=1 for the group 'a'"),
        ({"b": Wishes(1)}, "the wish for the group 'a' was taken back"),
        ({"a": Wishes(2), "b": Wishes(3, "bob")}, "bob wished m=3 for the group 'b'"),
        ({"a": Wishes(2)}, "the wish for the group 'b' was taken back"),
        ({"a": Wishes(2), "b": Wishes(1), "c": Wishes(0, "bob")}, "bob wished m=0 for the group 'c'"),
    ],
)
def test_another_wish_is_one_that_is_neither_the_rollouts_nor_what_was_before(
    now: dict[str, Wishes], says: str
) -> None:
    rollout = after([]).rollout
    assert other_wish(rollout, now, {"a": Wishes(1), "b": Wishes(1)}) == says


def test_all_that_is_wrong_with_a_plan_is_said() -> None:
    assert list(plan_problems([["a"], ["b", "c"]], 300, 100)) == []
    assert list(plan_problems([], 300, 100)) == [
        "it has no wave: name the groups of each, the first wave first"
    ]
    assert list(plan_problems([["a", "b"], [], ["b"]], 0, 101)) == [
        "a wave has no group",
        "groups that come twice: b",
        "the share is from 1 to 100 percent, and not 101",
        "devices are to stay for 1 to 86,400 seconds, and not 0",
    ]
    many = [[f"g{number}"] for number in range(WAVES_MAX + 1)]
    wide = [[f"g{number}" for number in range(GROUPS_MAX + 1)]]
    for waves in (many, wide):
        (problem,) = plan_problems(waves, 300, 100)
        assert problem == "it has more than 100 waves, or more than 1,000 groups"
