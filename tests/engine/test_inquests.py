"""Whose doing the end of a worker was: of a request, its client, or the version."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from appliance.core.rollout.catalog import Catalog, CatalogVersion
from appliance.domain.errors import Cancelled, QuotaExceeded, RunFailed, WorkerDied
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


class Court(Losing):
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

    def die(self, cause: port.ExitCause = port.ExitCause.DIED) -> None:
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

    def ends(self, name: str, client: str = "a", cause: port.ExitCause = port.ExitCause.DIED) -> None:
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


@pytest.mark.parametrize("cause", [port.ExitCause.DIED, port.ExitCause.HUNG, port.ExitCause.NONSENSE])
def test_a_request_that_was_alone_is_tried_once_and_its_client_held_at_the_second(
    cause: port.ExitCause,
) -> None:
    court = Court(model())
    for name in ("one", "two"):
        court.ends(name, "a", cause)
        assert isinstance(court.ended[name], WorkerDied)
        assert f"which ran alone: {cause.value}, scripted" in str(court.ended[name])
    with pytest.raises(QuotaExceeded) as refused:
        court.ask("three", "a")
    assert 0 < refused.value.retry_after_ns <= 1_000_000_000
    court.ask("lawful", "b")
    court.turns()
    court.answer()
    assert isinstance(court.ended["lawful"], Answer)
    assert court.states == [VersionState.READY]
    court.release()


def test_it_is_seen_how_many_clients_are_held(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Court, "clock", lambda court: 1_000_000_000)
    court = Court(model())
    for client in "ab":
        for _ in range(2):
            court.ends(client, client)
    court.ends("c", "c")
    (version,) = court.engine.status().versions
    assert version.held_clients == 2


def test_what_somebody_else_killed_is_tried_once_more() -> None:
    court = Court(model())
    court.ends("one", "a", port.ExitCause.KILLED)
    assert not court.ended
    court.die(port.ExitCause.KILLED)
    assert isinstance(court.ended["one"], WorkerDied)
    assert "died with the request" in str(court.ended["one"])
    court.ends("two", "a")
    with pytest.raises(QuotaExceeded):
        court.ask("three", "a")


class Rehearsed(Court):
    """Its versions are run with zeros when they are loaded."""

    seeds = ((1, 1_000),)


@pytest.mark.parametrize("court_type", [Court, Rehearsed])
def test_addresses_take_nothing_away_that_nothing_could_replace(court_type: type[Court]) -> None:
    court = court_type(model())
    for client in "abcd":
        court.ends(client, client)
    assert court.states == [VersionState.READY]
    court.ask("lawful", "lawful")
    court.turns()
    court.answer()
    assert isinstance(court.ended["lawful"], Answer)
    court.release()


def test_different_clients_do_not_take_away_what_has_proven_itself() -> None:
    court = Court(model())
    court.ask("first", "lawful")
    court.turns()
    court.answer()
    for client in "abcd":
        court.ends(client, client)
        court.ends(f"{client} again", client)
        with pytest.raises(QuotaExceeded):
            court.ask("held", client)
    assert court.states == [VersionState.READY]
    court.ask("lawful", "lawful")
    court.turns()
    court.answer()
    assert isinstance(court.ended["lawful"], Answer)
    court.release()


def test_when_it_is_known_whose_it_was_the_others_are_suspect_no_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    court = Court(model())
    leases = court.engine.leases
    held: dict[str, int] = {}
    monkeypatch.setattr(leases, "hold", lambda client, model, until_ns: held.__setitem__(client, until_ns))
    court.ask("first")
    court.turns()
    worker = court.lanes[0][0]
    court.answer()
    leased = Leased(court.engine.epoch(model()) >> EPOCH_BITS, 2, ("hostile", "lawful"))
    with monkeypatch.context() as context:
        context.setattr(leases, "worker_exited", lambda worker, *, last: leased)
        court.exit(worker)
        court.turns()
    assert all(until_ns > court.engine.now_ns() for until_ns in held.values())
    court.ends("poison", "hostile")
    assert held["lawful"] == 0, "the front end serves it again"
    assert held["hostile"] > court.engine.now_ns()
    court.release()


def test_a_client_whose_request_was_refused_meanwhile_is_suspect_as_well() -> None:
    court = Court(model())
    court.ask("first")
    court.turns()
    court.ask("poison", "hostile")
    gone = court.ask("lawful", "lawful")
    court.answer()
    for name in ("two", "three"):
        court.ask(name, "hostile", within_ns=10_000_000_000)
    court.die()
    court.engine.cancel(gone)
    while "poison" not in court.ended:
        court.die()
    assert isinstance(court.ended["poison"], QuotaExceeded), "refused when others had ended workers"
    assert court.states == [VersionState.READY]
    court.ends("a slip", "lawful")
    court.ask("lawful again", "lawful")
    court.turns()
    court.answer()
    assert isinstance(court.ended["lawful again"], Answer)
    court.release()


def test_of_several_each_is_tried_alone_and_only_what_ran_counts_as_tried() -> None:
    court = Court(model())
    court.ask("first")
    court.turns()
    for name in ("poison", "lawful"):
        court.ask(name, name)
    court.answer()
    assert [len(run.items) for _, run in court.lanes] == [2]
    court.die()
    assert [len(run.items) for _, run in court.lanes] == [1]
    court.die()
    assert isinstance(court.ended["poison"], WorkerDied)
    court.answer()
    assert isinstance(court.ended["lawful"], Answer)
    court.release()


def test_where_the_others_are_answered_it_was_the_one_that_nobody_waits_for() -> None:
    court = Court(model())
    court.ask("first")
    court.turns()
    gone = court.ask("poison", "hostile")
    court.ask("lawful", "lawful")
    court.answer()
    court.engine.cancel(gone)
    court.die()
    court.answer()
    assert isinstance(court.ended["poison"], Cancelled)
    assert isinstance(court.ended["lawful"], Answer)
    court.ends("second", "hostile")
    with pytest.raises(QuotaExceeded):
        court.ask("third", "hostile")
    court.ask("lawful again", "lawful")
    court.release()


def test_what_is_queued_of_a_client_that_is_held_is_refused_with_it() -> None:
    court = Court(model())
    court.ends("one")
    handles = [court.ask("two"), court.ask("three"), court.ask("four", "b")]
    court.turns()
    assert [len(run.items) for _, run in court.lanes] == [1], "a suspect's request runs alone"
    court.die()
    assert isinstance(court.ended["two"], WorkerDied)
    assert isinstance(court.ended["three"], QuotaExceeded)
    assert "four" not in court.ended
    assert len(handles) == 3
    court.answer()
    assert isinstance(court.ended["four"], Answer)
    court.release()


def test_what_another_version_answers_is_the_versions_own_doing() -> None:
    court = Court(model(1), model(2))
    assert court.served_by == 2
    court.ends("one")
    assert court.versions == [1], "the other is asked"
    assert court.served_by == 2
    court.answer()
    assert isinstance(court.ended["one"], Answer)
    court.turns()
    assert court.served_by == 1
    court.release()


def test_what_a_worker_died_of_is_said_before_those_that_another_version_answered_count() -> None:
    """Some of them are answered before others: a share of failures is not the reason to go back."""
    court = Court(model(1, rows=1), model(2))
    for name in ("one", "two", "three"):
        court.ask(name)
    court.turns()
    (ran,) = court.lanes
    assert len(ran[1].items) == 3, "at once"
    court.die(port.ExitCause.HUNG)
    court.answer()
    court.answer()
    assert len(court.ended) == 2
    assert court.fallen == 0
    assert court.served_by == 2
    court.answer()
    court.turns()
    assert court.served_by == 1
    assert "hung" in court.reason
    court.release()


def test_one_that_waits_for_ever_hides_nothing_once_the_next_worker_dies() -> None:
    """Else who has a request of each batch wait would keep a version that ends each of its workers."""
    court = Court(model(1, rows=1), model(2))
    for name in ("one", "two", "three"):
        court.ask(name)
    waits = court.ask("waits")
    court.turns()
    court.die()
    court.answer()
    court.answer()
    assert (court.fallen, court.served_by) == (0, 2)
    for name in ("four", "five"):
        court.ask(name)
    court.turns()
    court.lanes.insert(0, court.lanes.pop())
    assert [len(run.items) for _, run in court.lanes] == [2, 1], (
        "those of the version that is to be tried, and one"
    )
    court.die()
    assert (court.fallen, court.served_by) == (2, 2)
    court.answer()
    assert (court.fallen, court.served_by, list(court.ended)) == (3, 2, ["one", "two", "three"])
    court.engine.cancel(waits)
    court.turns()
    while court.lanes:
        court.answer()
    assert isinstance(court.ended["waits"], Cancelled)
    assert court.served_by == 1, "by the second death, of which nothing is open"
    court.release()


@pytest.mark.parametrize("dies_first", [True, False])
def test_what_another_version_answered_counts_where_its_neighbour_was_to_blame(dies_first: bool) -> None:
    court = Court(model(1, rows=1), model(2))
    for name, client in (("one", "a"), ("two", "b")):
        court.ask(name, client)
    court.turns()
    court.die()
    for end in (Court.die, Court.answer) if dies_first else (Court.answer, Court.die):
        end(court)
    assert {type(outcome) for outcome in court.ended.values()} == {WorkerDied, Answer}
    assert (court.fallen, court.served_by) == (1, 2)
    court.release()


def test_what_another_version_dies_of_as_well_is_the_requests_own_doing() -> None:
    court = Court(model(1), model(2))
    for name in ("one", "two"):
        court.ends(name)
        court.die()
        assert isinstance(court.ended[name], WorkerDied)
        assert court.served_by == 2
    for version in ("1", "2", ""):
        with pytest.raises(QuotaExceeded):
            court.ask("three", "a", version)
    assert court.states == [VersionState.READY, VersionState.READY]


@pytest.mark.parametrize("end", [Court.die, Court.fail])
def test_what_is_watched_and_what_is_kept_for_it_do_not_hand_a_request_to_and_fro(
    end: Callable[[Court], None],
) -> None:
    court = Court(model(1))
    court.engine.apply(Catalog(versions=(CatalogVersion(model=model(2), fingerprint=""),)))
    court.turns()
    assert court.served_by == 2
    court.ask("one")
    court.turns()
    end(court)
    assert court.versions == [1], "the one before is asked"
    end(court)
    assert not court.lanes, "and it alone"
    assert isinstance(court.ended["one"], WorkerDied | RunFailed)
    assert court.served_by == 2


@pytest.mark.parametrize(("court_type", "serves"), [(Court, 1), (Rehearsed, 2)])
def test_one_that_can_be_compared_with_nothing_goes_when_it_has_run_nothing(
    court_type: type[Court], serves: int
) -> None:
    court = court_type(model(1), model(2, width=16))
    court.ends("one")
    assert court.served_by == 2
    court.ends("two", "b")
    assert court.served_by == serves
