"""Whose doing the end of a worker was: of a request, its client, or the version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.domain.errors import Cancelled, QuotaExceeded, RunFailed, WorkerDied
from appliance.domain.exit_cause import ExitCause
from appliance.domain.inference import NO_DEADLINE, Answer, RequestHead, TensorHead
from appliance.domain.interface import ALLOWED_PARAMETER
from appliance.domain.model import Batching, ModelVersion, VersionState
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.domain.validation import plan_request
from appliance.engine.engine import EPOCH_BITS
from appliance.engine.fastpath.leases import Leased
from appliance.engine.port import Submission
from appliance.workers import port
from tests.domain.sample import make_version
from tests.engine.test_endings import Losing


def model(version: int = 1, width: int = 8, rows: int = 8) -> ModelVersion:
    """Bytes in, as many out, several requests at a time."""
    spec = TensorSpec(name="x", datatype=Datatype.UINT8, shape=(width,))
    out = TensorSpec(name="y", datatype=Datatype.UINT8, shape=(width,))
    return make_version(
        "m",
        version,
        inputs=(spec,),
        outputs=(out,),
        max_batch_size=rows,
        batching=Batching(),
        parameters={ALLOWED_PARAMETER: "true"},
    )


class Rig(Losing):
    """Requests of several clients, and what became of them."""

    def __init__(self, *versions: ModelVersion) -> None:
        super().__init__(versions[0])
        self.ended: dict[str, Any] = {}
        if len(versions) > 1:
            entries = [CatalogVersion(model=each, fingerprint="") for each in versions]
            self.engine.apply(Catalog(versions=tuple(entries)))
            self.turns()

    def ask(self, name: str, client: str = "a", version: str = "", within_ns: int = 0) -> int:
        """Send a request; it is dispatched with the next turn."""
        served = self.engine.resolve("m", version)
        width = served.inputs[0].shape[0]
        head = RequestHead(
            model_name="m", model_version=version, inputs=(TensorHead("x", "UINT8", (1, width)),)
        )
        end: Callable[[Any], None] = lambda outcome: self.ended.__setitem__(name, outcome)  # noqa: E731
        now_ns = self.engine.now_ns()
        deadline_ns = now_ns + within_ns if within_ns else NO_DEADLINE
        submission = Submission(plan_request(served, head), name, now_ns, deadline_ns, end, account=client)
        return self.engine.submit(submission, [bytes(width)])

    def die(self, cause: ExitCause = ExitCause.DIED) -> None:
        """The worker of the oldest run ends with all that it has."""
        worker = self.lanes[0][0]
        mine = [run.batch for each, run in self.lanes if each == worker]
        self.lanes = [(each, run) for each, run in self.lanes if each != worker]
        self.exit(worker, *mine, cause=cause)
        self.turns()

    def fail(self) -> None:
        """The oldest run fails, and its worker lives on."""
        worker, run = self.lanes.pop(0)
        results = tuple(
            port.RunResult(item.ticket, port.ItemStatus.FAILED, (), (), 0, "it does not go")
            for item in run.items
        )
        self.engine.pool_event(port.RunFinished(worker, run.batch, results, 1, 1, 1))
        self.turns()

    def answer(self) -> None:
        """The oldest run goes well."""
        worker, run = self.lanes.pop(0)
        results = tuple(
            port.RunResult(item.ticket, port.ItemStatus.OK, ((1, 8),), (8,), 0, "") for item in run.items
        )
        self.engine.pool_event(port.RunFinished(worker, run.batch, results, 1, 1, 1))
        self.turns()

    def ends(self, name: str, client: str = "a", cause: ExitCause = ExitCause.DIED) -> None:
        """A request ends its worker, which had nothing else."""
        self.ask(name, client)
        self.turns()
        self.die(cause)

    @property
    def states(self) -> list[VersionState]:
        """Of all versions."""
        return [entry.state for entry in self.engine.index(ready_only=False)]

    @property
    def fallen(self) -> int:
        """Requests that another version answered."""
        return sum(each.fallen_back for each in self.engine.status().versions)

    @property
    def reason(self) -> str:
        """What is said of the newest version."""
        return self.engine.index(ready_only=False)[-1].reason

    @property
    def served_by(self) -> int:
        """What requests go to that name no version."""
        return self.engine.resolve("m", "").version

    def release(self) -> None:
        """Give all answers back."""
        for outcome in self.ended.values():
            if isinstance(outcome, Answer):
                outcome.release()


@pytest.mark.parametrize("cause", [ExitCause.DIED, ExitCause.HUNG, ExitCause.NONSENSE])
def test_a_request_that_was_alone_is_tried_once_and_its_client_held_at_the_second(
    cause: ExitCause,
) -> None:
    rig = Rig(model())
    for name in ("one", "two"):
        rig.ends(name, "a", cause)
        assert isinstance(rig.ended[name], WorkerDied)
        assert f"which ran alone: {cause.value}, scripted" in str(rig.ended[name])
    with pytest.raises(QuotaExceeded) as refused:
        rig.ask("three", "a")
    assert 0 < refused.value.retry_after_ns <= 1_000_000_000
    rig.ask("lawful", "b")
    rig.turns()
    rig.answer()
    assert isinstance(rig.ended["lawful"], Answer)
    assert rig.states == [VersionState.READY]
    rig.release()


def test_it_is_seen_how_many_clients_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rig, "clock", lambda rig: 1_000_000_000)
    rig = Rig(model())
    for client in "ab":
        for _ in range(2):
            rig.ends(client, client)
    rig.ends("c", "c")
    (version,) = rig.engine.status().versions
    assert version.held_clients == 2


def test_what_somebody_else_killed_is_tried_once_more() -> None:
    rig = Rig(model())
    rig.ends("one", "a", ExitCause.KILLED)
    assert not rig.ended
    rig.die(ExitCause.KILLED)
    assert isinstance(rig.ended["one"], WorkerDied)
    assert "died with the request" in str(rig.ended["one"])
    rig.ends("two", "a")
    with pytest.raises(QuotaExceeded):
        rig.ask("three", "a")


class Rehearsed(Rig):
    """Its versions are run with zeros when they are loaded."""

    seeds = ((1, 1_000),)


@pytest.mark.parametrize("rig_type", [Rig, Rehearsed])
def test_addresses_take_nothing_away_that_nothing_could_replace(rig_type: type[Rig]) -> None:
    rig = rig_type(model())
    for client in "abcd":
        rig.ends(client, client)
    assert rig.states == [VersionState.READY]
    rig.ask("lawful", "lawful")
    rig.turns()
    rig.answer()
    assert isinstance(rig.ended["lawful"], Answer)
    rig.release()


def test_different_clients_do_not_take_away_what_has_proven_itself() -> None:
    rig = Rig(model())
    rig.ask("first", "lawful")
    rig.turns()
    rig.answer()
    for client in "abcd":
        rig.ends(client, client)
        rig.ends(f"{client} again", client)
        with pytest.raises(QuotaExceeded):
            rig.ask("held", client)
    assert rig.states == [VersionState.READY]
    rig.ask("lawful", "lawful")
    rig.turns()
    rig.answer()
    assert isinstance(rig.ended["lawful"], Answer)
    rig.release()


def test_when_it_is_known_whose_it_was_the_others_are_suspect_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rig = Rig(model())
    leases = rig.engine.leases
    held: dict[str, int] = {}
    monkeypatch.setattr(leases, "hold", lambda client, model, until_ns: held.__setitem__(client, until_ns))
    rig.ask("first")
    rig.turns()
    worker = rig.lanes[0][0]
    rig.answer()
    leased = Leased(rig.engine.epoch(model()) >> EPOCH_BITS, 2, ("hostile", "lawful"))
    with monkeypatch.context() as context:
        context.setattr(leases, "worker_exited", lambda worker, *, last: leased)
        rig.exit(worker)
        rig.turns()
    assert all(until_ns > rig.engine.now_ns() for until_ns in held.values())
    rig.ends("poison", "hostile")
    assert held["lawful"] == 0, "the front end serves it again"
    assert held["hostile"] > rig.engine.now_ns()
    rig.release()


def test_a_client_whose_request_was_refused_meanwhile_is_suspect_as_well() -> None:
    rig = Rig(model())
    rig.ask("first")
    rig.turns()
    rig.ask("poison", "hostile")
    gone = rig.ask("lawful", "lawful")
    rig.answer()
    for name in ("two", "three"):
        rig.ask(name, "hostile", within_ns=10_000_000_000)
    rig.die()
    rig.engine.cancel(gone)
    while "poison" not in rig.ended:
        rig.die()
    assert isinstance(rig.ended["poison"], QuotaExceeded), "refused when others had ended workers"
    assert rig.states == [VersionState.READY]
    rig.ends("a slip", "lawful")
    rig.ask("lawful again", "lawful")
    rig.turns()
    rig.answer()
    assert isinstance(rig.ended["lawful again"], Answer)
    rig.release()


def test_of_several_each_is_tried_alone_and_only_what_ran_counts_as_tried() -> None:
    rig = Rig(model())
    rig.ask("first")
    rig.turns()
    for name in ("poison", "lawful"):
        rig.ask(name, name)
    rig.answer()
    assert [len(run.items) for _, run in rig.lanes] == [2]
    rig.die()
    assert [len(run.items) for _, run in rig.lanes] == [1]
    rig.die()
    assert isinstance(rig.ended["poison"], WorkerDied)
    rig.answer()
    assert isinstance(rig.ended["lawful"], Answer)
    rig.release()


def test_where_the_others_are_answered_it_was_the_one_that_nobody_waits_for() -> None:
    rig = Rig(model())
    rig.ask("first")
    rig.turns()
    gone = rig.ask("poison", "hostile")
    rig.ask("lawful", "lawful")
    rig.answer()
    rig.engine.cancel(gone)
    rig.die()
    rig.answer()
    assert isinstance(rig.ended["poison"], Cancelled)
    assert isinstance(rig.ended["lawful"], Answer)
    rig.ends("second", "hostile")
    with pytest.raises(QuotaExceeded):
        rig.ask("third", "hostile")
    rig.ask("lawful again", "lawful")
    rig.release()


def test_what_is_queued_of_a_client_that_is_held_is_refused_with_it() -> None:
    rig = Rig(model())
    rig.ends("one")
    handles = [rig.ask("two"), rig.ask("three"), rig.ask("four", "b")]
    rig.turns()
    assert [len(run.items) for _, run in rig.lanes] == [1], "a suspect's request runs alone"
    rig.die()
    assert isinstance(rig.ended["two"], WorkerDied)
    assert isinstance(rig.ended["three"], QuotaExceeded)
    assert "four" not in rig.ended
    assert len(handles) == 3
    rig.answer()
    assert isinstance(rig.ended["four"], Answer)
    rig.release()


def test_what_another_version_answers_is_the_versions_own_doing() -> None:
    rig = Rig(model(1), model(2))
    assert rig.served_by == 2
    rig.ends("one")
    assert rig.versions == [1], "the other is asked"
    assert rig.served_by == 2
    rig.answer()
    assert isinstance(rig.ended["one"], Answer)
    rig.turns()
    assert rig.served_by == 1
    rig.release()


def test_what_a_worker_died_of_is_said_before_those_that_another_version_answered_count() -> None:
    """Some of them are answered before others: a share of failures is not the reason to go back."""
    rig = Rig(model(1, rows=1), model(2))
    for name in ("one", "two", "three"):
        rig.ask(name)
    rig.turns()
    (ran,) = rig.lanes
    assert len(ran[1].items) == 3, "at once"
    rig.die(ExitCause.HUNG)
    rig.answer()
    rig.answer()
    assert len(rig.ended) == 2
    assert rig.fallen == 0
    assert rig.served_by == 2
    rig.answer()
    rig.turns()
    assert rig.served_by == 1
    assert "hung" in rig.reason
    rig.release()


def test_one_that_waits_for_ever_hides_nothing_once_the_next_worker_dies() -> None:
    """Else who has a request of each batch wait would keep a version that ends each of its workers."""
    rig = Rig(model(1, rows=1), model(2))
    for name in ("one", "two", "three"):
        rig.ask(name)
    waits = rig.ask("waits")
    rig.turns()
    rig.die()
    rig.answer()
    rig.answer()
    assert (rig.fallen, rig.served_by) == (0, 2)
    for name in ("four", "five"):
        rig.ask(name)
    rig.turns()
    rig.lanes.insert(0, rig.lanes.pop())
    assert [len(run.items) for _, run in rig.lanes] == [2, 1], (
        "those of the version that is to be tried, and one"
    )
    rig.die()
    assert (rig.fallen, rig.served_by) == (2, 2)
    rig.answer()
    assert (rig.fallen, rig.served_by, list(rig.ended)) == (3, 2, ["one", "two", "three"])
    rig.engine.cancel(waits)
    rig.turns()
    while rig.lanes:
        rig.answer()
    assert isinstance(rig.ended["waits"], Cancelled)
    assert rig.served_by == 1, "by the second death, of which nothing is open"
    rig.release()


@pytest.mark.parametrize("dies_first", [True, False])
def test_what_another_version_answered_counts_where_its_neighbour_was_to_blame(dies_first: bool) -> None:
    rig = Rig(model(1, rows=1), model(2))
    for name, client in (("one", "a"), ("two", "b")):
        rig.ask(name, client)
    rig.turns()
    rig.die()
    for end in (Rig.die, Rig.answer) if dies_first else (Rig.answer, Rig.die):
        end(rig)
    assert {type(outcome) for outcome in rig.ended.values()} == {WorkerDied, Answer}
    assert (rig.fallen, rig.served_by) == (1, 2)
    rig.release()


def test_what_another_version_dies_of_as_well_is_the_requests_own_doing() -> None:
    rig = Rig(model(1), model(2))
    for name in ("one", "two"):
        rig.ends(name)
        rig.die()
        assert isinstance(rig.ended[name], WorkerDied)
        assert rig.served_by == 2
    for version in ("1", "2", ""):
        with pytest.raises(QuotaExceeded):
            rig.ask("three", "a", version)
    assert rig.states == [VersionState.READY, VersionState.READY]


@pytest.mark.parametrize("end", [Rig.die, Rig.fail])
def test_what_is_watched_and_what_is_kept_for_it_do_not_hand_a_request_to_and_fro(
    end: Callable[[Rig], None],
) -> None:
    rig = Rig(model(1))
    rig.engine.apply(Catalog(versions=(CatalogVersion(model=model(2), fingerprint=""),)))
    rig.turns()
    assert rig.served_by == 2
    rig.ask("one")
    rig.turns()
    end(rig)
    assert rig.versions == [1], "the one before is asked"
    end(rig)
    assert not rig.lanes, "and it alone"
    assert isinstance(rig.ended["one"], WorkerDied | RunFailed)
    assert rig.served_by == 2


@pytest.mark.parametrize(("rig_type", "serves"), [(Rig, 1), (Rehearsed, 2)])
def test_one_that_can_be_compared_with_nothing_goes_when_it_has_run_nothing(
    rig_type: type[Rig], serves: int
) -> None:
    rig = rig_type(model(1), model(2, width=16))
    rig.ends("one")
    assert rig.served_by == 2
    rig.ends("two", "b")
    assert rig.served_by == serves
