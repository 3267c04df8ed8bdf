"""A head is considered once, until the templates of its version are forgotten; there may be only so many, and nobody
puts out what others use."""

from __future__ import annotations

from typing import Any, cast

import pytest

from appliance.domain.model import ModelVersion
from appliance.frontend.native import heads as heads_module
from appliance.frontend.native.heads import Heads
from tests.domain.sample import make_version

ONE, TWO = make_version("m", 1), make_version("m", 2)
ROOM = 8


class World:
    """What heads are told apart by, and what has their templates and plans. ``forgotten``: how often each version was;
    ``used``: heads that requests come for, and those for which one came once."""

    def __init__(self) -> None:
        self.forgotten = {1: 10, 2: 20}
        self.templates: set[bytes] = set()
        self.plans: list[int] = []
        self.in_use: set[bytes] = set()
        self.used: set[bytes] = set()
        self.heads = Heads(self, cast(Any, self), cast(Any, self))

    def epoch(self, model: ModelVersion) -> int:
        return self.forgotten[model.version]

    def retire_template(self, head: bytes, spare: bool) -> bool:
        if spare and (head in self.in_use or head in self.used):
            self.used.discard(head)
            return False
        self.templates.discard(head)
        return True

    def release(self, plan: int) -> None:
        self.plans.remove(plan)

    def bring(self, head: bytes, client: str, model: ModelVersion = ONE) -> bool:
        """A request that Python answers: a template of it is made, if that is due."""
        due = self.heads.is_due(head, client, model)
        if due:
            plan = int.from_bytes(head)
            self.heads.keep(head, plan)
            self.plans.append(plan)
            self.templates.add(head)
        return due


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(heads_module, "HEADS_MAX", ROOM)
    return World()


def _heads(first: int, count: int = 2 * ROOM) -> list[bytes]:
    return [number.to_bytes(2) for number in range(first, first + count)]


def test_a_head_is_due_once_and_again_when_its_version_was_forgotten(world: World) -> None:
    assert world.bring(b"head", "a")
    assert not world.bring(b"head", "b")
    world.forgotten[1] += 1
    assert world.bring(b"head", "a")
    assert world.bring(b"head", "a", TWO), "it means another version now"
    assert not world.bring(b"head", "a", TWO)
    assert world.plans == [int.from_bytes(b"head")], "those of before were released"


def test_nobody_puts_out_what_others_brought(world: World) -> None:
    lawful, flood = _heads(1, 2), _heads(100)
    assert all(world.bring(head, "lawful") for head in lawful)
    for head in flood * 2:
        world.bring(head, "flood")
    assert set(lawful) <= world.templates
    assert len(world.templates) == ROOM
    assert sorted(world.plans) == sorted(map(int.from_bytes, world.templates)), "none is left behind"
    late = _heads(200, 2)
    assert all(world.bring(head, "late") for head in late), "who has few is let in at once"
    assert {*lawful, *late} <= world.templates
    assert len(world.templates) == ROOM


def test_what_comes_once_puts_nothing_out(world: World) -> None:
    known, other = _heads(1, ROOM), _heads(100, ROOM + 1)
    assert all(world.bring(head, "a") for head in known)
    assert not any(world.bring(head, "a") for head in other)
    assert world.templates == set(known)
    assert not world.bring(other[0], "a"), "it is too long ago"
    assert world.bring(other[0], "a"), "it came twice"
    assert world.templates == {*known[1:], other[0]}


def test_of_one_clients_heads_those_in_use_stay(world: World) -> None:
    known = _heads(1, ROOM)
    for head in known:
        world.bring(head, "a")
    world.in_use = {known[0]}
    world.used = {known[1]}
    for head in _heads(100):
        world.bring(head, "a")
        world.bring(head, "a")
    assert known[0] in world.templates
    assert known[1] not in world.templates, "it was of use for a while"
    assert len(world.templates) == len(world.plans) == ROOM


def test_where_all_are_in_use_one_goes_all_the_same(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heads_module, "SPARED_MAX", 3)
    known = _heads(1, ROOM)
    for head in known:
        world.bring(head, "a")
    world.in_use = set(known)
    assert not world.bring(b"new", "a")
    assert world.bring(b"new", "a")
    assert world.templates == {*known[1:], b"new"}


def test_of_clients_that_brought_as_many_those_whose_heads_are_in_use_keep_them(world: World) -> None:
    known = _heads(1, ROOM)
    for head in known:
        assert world.bring(head, f"client {head!r}")
    world.in_use = {*known[:2], known[5]}
    for head in _heads(100):
        assert world.bring(head, f"client {head!r}")
    assert world.in_use <= world.templates
    assert len(world.templates) == len(world.plans) == ROOM
