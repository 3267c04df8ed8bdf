"""What keeps a step from being done, again and again, keeps it no longer than it lasts."""

from __future__ import annotations

import asyncio
import errno
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from msgspec import structs

from appliance.config.fleet import FleetConfig
from appliance.config.repository import RepositoryConfig
from appliance.config.store import StoreConfig, Unsigned
from appliance.domain.errors import StoreUnavailable
from appliance.fleet.documents import WishedModel
from appliance.store.catalog import Catalog
from appliance.store.writer import locked
from appliance.sync import agent as agent_module
from appliance.sync import observed
from appliance.sync.agent import DIED_S, REPEATS_MAX, UNAVAILABLE_S, Agent
from appliance.sync.box import Box, Clock, Settings
from appliance.sync.contact import Conversation
from appliance.sync.freshness import Instant
from appliance.sync.link import Link
from appliance.sync.observed import Observer
from appliance.sync.plan import Reason, Waiting
from appliance.sync.spending import Spending
from appliance.sync.streams import Streams
from appliance.sync.telling import Telling
from tests.cli.conftest import Run
from tests.sync.controller_double import ControllerDouble
from tests.sync.test_agent import Pack, wanted_in


def unreadable(state: Path) -> Catalog:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def unreachable() -> Link:
    raise AssertionError("nobody is asked over a link here")


@dataclass
class Working:
    """An agent in this process, whose time passes as a test says. Its steps are real ones."""

    agent: Agent
    now_s: float = 1000.0

    def waits_for(self) -> Waiting:
        """Have it do what it can; why the one step that is left waits."""
        asyncio.run(self.agent.reconcile())
        (step,) = self.agent.steps
        assert step.waits is not None
        return step.waits


@pytest.fixture
def working(appliance: Run, enrolled: Path, controller: ControllerDouble, pack: Pack) -> Iterator[Working]:
    """One that has all of a version here, and none of it in the store, where somebody is at work meanwhile."""
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())))
    with locked(enrolled):
        assert "works on the store" in appliance("sync", "once")[1]
    settings = Settings(
        state=enrolled,
        fleet=FleetConfig(),
        store=StoreConfig(free_floor_bytes=0),
        repository=RepositoryConfig(),
        unsigned=Unsigned.ALLOW,
    )
    found: list[Working] = []
    clock = Clock(
        wall_ms=lambda: 1_800_000_000_000,
        instant=lambda: Instant(boot="a", ms=7),
        monotonic_s=lambda: found[0].now_s if found else 0.0,
    )
    say: Callable[..., None] = lambda *words, **more: None  # noqa: E731
    with Box(settings, clock) as box:
        spending = Spending(box)
        talk = Conversation(box, unreachable, Telling(enrolled, 1 << 20), spending, say)
        streams = Streams(box, spending.spend_on_models, spending.waits)
        found.append(Working(Agent(box, streams, talk, say)))
        yield found[0]


def test_a_store_that_is_busy_again_and_again_is_gone_on_with_when_it_is_free(
    working: Working, enrolled: Path
) -> None:
    with locked(enrolled):
        for _ in range(REPEATS_MAX + 2):
            waits = working.waits_for()
            assert waits.reason is Reason.HOLD, waits.text
            assert waits.again_s is not None
            working.now_s += waits.again_s
    assert working.waits_for().reason is Reason.SERVE
    assert wanted_in(enrolled) == 1


def test_a_step_whose_process_died_is_begun_anew_soon_and_later_each_time(
    working: Working, enrolled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pauses = []
    with monkeypatch.context() as patched:
        patched.setattr(agent_module, "STEPS", "appliance.nowhere")
        for _ in range(6):
            waits = working.waits_for()
            assert (waits.reason, waits.text) == (
                Reason.DISK,
                "the process that was to do it ended with 1",
            )
            assert waits.again_s is not None
            pauses.append(waits.again_s)
            working.now_s += waits.again_s
    assert pauses == [DIED_S, 2 * DIED_S, 4 * DIED_S, 8 * DIED_S, UNAVAILABLE_S, UNAVAILABLE_S]
    assert working.waits_for().reason is Reason.SERVE
    assert wanted_in(enrolled) == 1


def test_a_step_whose_process_died_for_weeks_is_begun_anew_as_one_that_did_for_minutes(
    working: Working, enrolled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(agent_module, "STEPS", "appliance.nowhere")
        working.now_s += working.waits_for().again_s or 0.0
        step, done, _ = working.agent._last
        working.agent._last = step, done, 30_000
        assert working.waits_for().again_s == UNAVAILABLE_S
    working.now_s += UNAVAILABLE_S
    assert working.waits_for().reason is Reason.SERVE
    assert wanted_in(enrolled) == 1


def test_a_step_without_effect_waits_and_is_done_again_afterwards(
    working: Working, enrolled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(observed, "read_catalog", lambda state: Catalog())
        waits = working.waits_for()
        assert (waits.reason, waits.again_s) == (Reason.REFUSED, UNAVAILABLE_S)
    working.now_s += UNAVAILABLE_S
    (enrolled / "catalog.json").touch()
    assert working.waits_for().reason is Reason.SERVE
    assert wanted_in(enrolled) == 1


@pytest.mark.parametrize("looked", [True, False], ids=["before the next look", "while it cannot look"])
def test_what_was_refused_of_another_wish_is_not_told_of_the_next_one(
    working: Working, monkeypatch: pytest.MonkeyPatch, looked: bool
) -> None:
    monkeypatch.setattr(observed, "read_catalog", lambda state: Catalog())
    assert working.waits_for().reason is Reason.REFUSED
    (said,) = working.agent.report().models
    assert said.phase == "refused"
    box = working.agent.box
    assert box.desired is not None
    later = structs.replace(box.desired, generation=box.desired.generation + 1)
    box.trusted = replace(box.trusted, desired=later)
    if not looked:
        monkeypatch.setattr(observed, "read_catalog", unreadable)
        (box.settings.state / "catalog.json").touch()
        asyncio.run(working.agent.reconcile())
        assert working.agent.disk
    report = working.agent.report()
    assert ([each.phase for each in report.models], report.converged) == (["done"], False)


def test_what_could_not_be_read_once_is_read_with_the_next_look(
    appliance: Run, enrolled: Path, pack: Pack, monkeypatch: pytest.MonkeyPatch
) -> None:
    observer = Observer(enrolled)
    assert observer.look().catalog == Catalog()
    assert appliance("model", "install", str(pack()))[0] == 0

    def failing(place: Path) -> Catalog:
        raise StoreUnavailable(f"'{place}' cannot be read: Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(observed, "read_catalog", failing)
        with pytest.raises(StoreUnavailable):
            observer.look()
    assert observer.look().catalog.model("digits") is not None
