"""An agent that runs takes in what a command left for it: the state, the streams, what arrived of its telemetry."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest
from msgspec import structs

from appliance.cli.main import main
from appliance.config.fleet import FleetConfig
from appliance.config.repository import RepositoryConfig
from appliance.config.store import StoreConfig
from appliance.sync import by_hand
from appliance.sync.agent import Agent
from appliance.sync.box import Box as AgentBox
from appliance.sync.box import Clock, Settings
from appliance.sync.contact import Conversation, take_answer
from appliance.sync.freshness import Instant, freshness
from appliance.sync.identity import read_identity
from appliance.sync.link import Link
from appliance.sync.spending import Spending
from appliance.sync.streams import Streams
from appliance.sync.telling import Telling
from tests.trust.repository import DEVICE, polled
from tests.trust.test_bundle_commands import Box, box, bundle
from tests.trust.test_sneakernet import METADATA, WAY

__all__ = ["box", "bundle"]


def unreachable() -> Link:
    raise AssertionError("nobody is asked over a link here")


def agent_of(box: Box, ms: int = 7) -> AgentBox:
    """The agent's own side of the box, so long after it booted; it holds the lock."""
    settings = Settings(
        state=box.state, fleet=FleetConfig(), store=StoreConfig(), repository=RepositoryConfig()
    )
    clock = Clock(
        wall_ms=lambda: 1_800_000_000_000, instant=lambda: Instant(boot="a", ms=ms), monotonic_s=lambda: 1.0
    )
    return AgentBox(settings, clock)


def test_a_bundle_reaches_the_agent_that_runs(
    box: Box, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines: list[str] = []
    with agent_of(box) as inner:
        assert not by_hand.is_waiting(inner)
        assert main(["bundle", "import", str(bundle), "--state-dir", str(box.state)]) == 0
        spending = Spending(inner)
        talk = Conversation(
            inner, unreachable, Telling(box.state, 1 << 20), spending, lambda *words, **more: None
        )
        streams = Streams(inner, spending.spend_on_models, spending.waits)
        agent = Agent(inner, streams, talk, lambda line, **more: lines.append(line))
        asyncio.run(agent.reconcile())
        assert inner.desired is not None
        assert inner.desired.generation == 4
        assert not by_hand.is_waiting(inner), "once is enough"
        contact = inner.progress.contact
        assert (contact.heard_ms, contact.rose_ms) == (0, 0), "it counts as a contact"
        assert inner.progress.clock_ahead_ms == 0, "and says nothing of the time"
    assert "bundle taken in" in lines
    assert (box.state / "fleet" / "spool" / f"{WAY.stream}.stream").stat().st_size == WAY.size
    assert box.trusted.desired is not None


def test_an_agent_that_is_started_later_goes_on_with_what_was_carried(
    box: Box, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["bundle", "import", str(bundle), "--state-dir", str(box.state)]) == 0
    with agent_of(box) as inner:
        assert by_hand.is_waiting(inner)
        assert by_hand.take(inner) == 0
        assert not by_hand.is_waiting(inner)
    assert (box.state / "fleet" / "spool" / f"{WAY.stream}.stream").stat().st_size == WAY.size


@pytest.mark.parametrize("times", [1, 2], ids=["new", "known already"])
def test_an_import_without_an_agent_is_a_contact_all_the_same(
    box: Box, bundle: Path, times: int, capsys: pytest.CaptureFixture[str]
) -> None:
    state = ("--state-dir", str(box.state))
    assert main(["sync", "status", *state, "--json"]) == 0
    before = json.loads(capsys.readouterr().out)
    assert (before["freshness"], before["heard_ms_ago"]) == ("stale", None)
    for _ in range(times):
        assert main(["bundle", "import", str(bundle), *state]) == 0
    capsys.readouterr()
    assert main(["sync", "status", *state, "--json"]) == 0
    after = json.loads(capsys.readouterr().out)
    assert after["freshness"] == "fresh"
    assert after["heard_ms_ago"] is not None


def test_the_contact_of_an_import_is_kept_when_the_agent_is_started_anew(box: Box, bundle: Path) -> None:
    """Also where nothing in the bundle was new, so that nothing else is written."""
    for ms in (7, 60_000):
        with agent_of(box, ms) as inner:
            assert main(["bundle", "import", str(bundle), "--state-dir", str(box.state)]) == 0
            assert by_hand.take(inner) == 1
    with agent_of(box, 70_000) as inner:
        assert freshness(inner.progress.contact, inner.clock.instant()).heard_ms == 10_000


def test_the_group_that_the_controller_tells_is_kept_and_a_bundle_tells_none(box: Box, bundle: Path) -> None:
    for group in ("sites", "pilot", ""):
        with agent_of(box) as inner:
            take_answer(inner, structs.replace(polled(METADATA), now_ms=1, group=group))
            assert inner.identity.group == group
            assert main(["bundle", "import", str(bundle), "--state-dir", str(box.state)]) == 0
            assert by_hand.take(inner) == 1
        kept = read_identity(box.state)
        assert kept is not None
        assert (kept.device, kept.url, kept.group) == (DEVICE, "https://c:1", group)


def test_half_of_what_was_carried_keeps_no_agent_busy(box: Box, bundle: Path) -> None:
    """A command that was killed left a stream without its index."""
    assert main(["bundle", "import", str(bundle), "--state-dir", str(box.state)]) == 0
    (box.state / "fleet" / "carried" / "indexes" / WAY.index).unlink()
    with agent_of(box) as inner:
        assert not by_hand.is_waiting(inner)
