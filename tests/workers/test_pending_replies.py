"""What a worker owes, in which order, and that paying it makes the right events. The lies are in test_faults."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.domain.assessment import Assessment, Deviation
from appliance.domain.load_wish import LoadWish
from appliance.workers.codec import MessageInvalid
from appliance.workers.daemon.pending_replies import (
    JUDGED_MAX,
    PROGRESS_MAX,
    PendingReplies,
)
from appliance.workers.jail.access import FORM_BYTES_MIN
from appliance.workers.messages import Build, EvictWeights, FromWorker, Load, PageIn
from appliance.workers.port import (
    REASON_CHARACTERS_MAX,
    SEEDS_MAX,
    Fetch,
    Fetched,
    FormBuilt,
    FormJudged,
    FormVerdict,
    ItemStatus,
    LoadStage,
    ModelLoaded,
    ModelProgress,
    ModelRefused,
    Run,
    RunFinished,
    RunItem,
    RunResult,
    WeightsEvicted,
    WeightsPagedIn,
)
from tests.workers.bench import fake

WORKER, MODEL = 7, 3
ITEM = RunItem(50, 1, ((1, 4),), (16,), 0, (0,), 64, 64)
RIGHT = RunResult(50, ItemStatus.OK, ((1, 4),), (16,), 0, "")
LARGE = RunResult(50, ItemStatus.TOO_LARGE, ((1, 32),), (128,), 128, "")


@pytest.fixture
def owes() -> PendingReplies:
    """Of a worker that has loaded one model."""
    made = PendingReplies(WORKER)
    made.owe_load(Load(MODEL, fake()), 100, 200)
    made.settle(ModelLoaded(WORKER, MODEL, ((1, 10),), 5, 6))
    return made


def test_a_load_and_its_answer() -> None:
    owes = PendingReplies(WORKER)
    owes.owe_load(Load(MODEL, fake()), 100, 200)
    assert (len(owes), owes.in_line, owes.background, owes.loading()) == (1, 1, 0, MODEL)
    assert (owes.overdue(100, 900), owes.overdue(101, 0)) == ("", "a load took longer than 0 ms")
    owes.settle(ModelLoaded(WORKER, MODEL, ((1, 10),), 5, 6))
    assert (len(owes), owes.loading()) == (0, -1)


def test_a_load_that_is_refused() -> None:
    owes = PendingReplies(WORKER)
    owes.owe_load(Load(MODEL, fake()), 100, 200)
    owes.settle(ModelRefused(WORKER, MODEL, "no"))
    with pytest.raises(KeyError):
        owes.owe_run(Run(1, MODEL, (ITEM,)))


def test_batches_are_owed_in_order(owes: PendingReplies) -> None:
    for batch in (1, 2):
        owes.owe_run(Run(batch, MODEL, (ITEM,)))
    owes.owe_load(Load(9, fake()), 100, 200)
    assert (owes.batches(), owes.loading()) == ((1, 2), -1)
    assert (owes.overdue(200, 0), owes.overdue(201, 0)) == ("", "a batch took longer than 0 ms")
    with pytest.raises(MessageInvalid, match="finished batch 2, which is not what it owes next"):
        owes.settle(RunFinished(WORKER, 2, (RIGHT,), 1, 2, 3))
    owes.settle(RunFinished(WORKER, 1, (RIGHT,), 1, 2, 3))
    assert owes.batches() == (2,)


def test_a_word_in_the_name_of_another_worker_is_nonsense(owes: PendingReplies) -> None:
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    with pytest.raises(MessageInvalid, match="said that it is worker 8, and is 7"):
        owes.settle(RunFinished(WORKER + 1, 1, (RIGHT,), 1, 2, 3))


def test_large_outputs_are_held_until_they_are_fetched(owes: PendingReplies) -> None:
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    owes.settle(RunFinished(WORKER, 1, (LARGE,), 1, 2, 3))
    stored = LARGE._replace(status=ItemStatus.OK, needed=0)
    owes.owe_fetch(Fetch(50, 4096, 128), 300)
    assert (owes.overdue(301, 0), owes.batches()) == ("a fetch took longer than 0 ms", ())
    owes.settle(Fetched(WORKER, stored))
    owes.owe_fetch(Fetch(50, 4096, 128), 300)
    with pytest.raises(MessageInvalid, match="which it did not hold"):
        owes.settle(Fetched(WORKER, stored))


def test_a_fetch_into_too_little_room_is_held_on(owes: PendingReplies) -> None:
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    owes.settle(RunFinished(WORKER, 1, (LARGE,), 1, 2, 3))
    owes.owe_fetch(Fetch(50, 4096, 100), 300)
    owes.settle(Fetched(WORKER, LARGE))
    owes.forget_held(50)
    owes.owe_fetch(Fetch(50, 4096, 128), 300)
    failed = RunResult(50, ItemStatus.FAILED, (), (), 0, "gone")
    owes.settle(Fetched(WORKER, failed))


def test_a_forgotten_model_still_pays_for_what_it_runs(owes: PendingReplies) -> None:
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    owes.forget_model(MODEL)
    owes.settle(RunFinished(WORKER, 1, (RIGHT,), 1, 2, 3))


def test_a_shape_that_was_right_once_is_not_right_for_other_rows(owes: PendingReplies) -> None:
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    owes.settle(RunFinished(WORKER, 1, (RIGHT,), 1, 2, 3))
    owes.owe_run(Run(2, MODEL, (ITEM._replace(rows=2),)))
    with pytest.raises(MessageInvalid, match="rank 2 that is not for 2 rows"):
        owes.settle(RunFinished(WORKER, 2, (RIGHT,), 1, 2, 3))


def test_a_shape_that_was_right_once_must_still_fit(owes: PendingReplies) -> None:
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    owes.settle(RunFinished(WORKER, 1, (RIGHT,), 1, 2, 3))
    owes.owe_run(Run(2, MODEL, (ITEM._replace(out_capacity=63),)))
    with pytest.raises(MessageInvalid, match="outputs of 64 bytes where 63 fit"):
        owes.settle(RunFinished(WORKER, 2, (RIGHT,), 1, 2, 3))


@pytest.mark.parametrize(
    "message",
    [
        ModelLoaded(WORKER, 1, (), 1, 1),
        ModelRefused(WORKER, 1, "x"),
        RunFinished(WORKER, 1, (), 1, 1, 1),
        Fetched(WORKER, RIGHT),
    ],
)
def test_nothing_is_owed(
    owes: PendingReplies, message: ModelLoaded | ModelRefused | RunFinished | Fetched
) -> None:
    with pytest.raises(MessageInvalid, match="unasked"):
        owes.settle(message)


@pytest.mark.parametrize(
    "message",
    [
        ModelLoaded(WORKER, 9, ((0, 5),), 1, 1),
        ModelLoaded(WORKER, 9, (), -1, 1),
        ModelLoaded(WORKER, 9, (), 1, -1),
        ModelLoaded(WORKER, 8, (), 1, 1),
        ModelLoaded(WORKER, 9, (), 1, 1, None, FORM_BYTES_MIN + 1),
        ModelLoaded(WORKER, 9, (), 1, 1, note="n" * (REASON_CHARACTERS_MAX + 1)),
        *(
            said
            for huge in (1 << 50, 1 << 63, (1 << 64) - 1)
            for said in (
                ModelLoaded(WORKER, 9, ((1, huge),), 1, 1),
                ModelLoaded(WORKER, 9, ((huge, 5),), 1, 1),
                ModelLoaded(WORKER, 9, (), huge, 1),
                ModelLoaded(WORKER, 9, (), 1, huge),
                ModelLoaded(WORKER, 9, (), 1, 1, None, huge),
            )
        ),
    ],
)
def test_measurements_that_cannot_be(owes: PendingReplies, message: ModelLoaded) -> None:
    owes.owe_load(Load(9, fake()), 1, 1)
    with pytest.raises(MessageInvalid):
        owes.settle(message)


def test_an_early_load_is_owed_a_fill_as_well(owes: PendingReplies) -> None:
    owes.owe_load(Load(9, fake(), LoadWish(quick=True)), 100, 200)
    owes.expect_background(EvictWeights(MODEL), 300)
    assert (owes.in_line, owes.background) == (1, 2)
    owes.settle(ModelLoaded(WORKER, 9, (), 5, 6))
    with pytest.raises(MessageInvalid, match="not what it owes next"):
        owes.settle(WeightsEvicted(WORKER, MODEL, 1))
    owes.settle(WeightsPagedIn(WORKER, 9, 7, 8, None))
    owes.settle(WeightsEvicted(WORKER, MODEL, 1))
    assert len(owes) == 0


def test_a_batch_may_wait_for_the_weights_of_an_early_load(owes: PendingReplies) -> None:
    owes.owe_load(Load(9, fake(), LoadWish(quick=True)), 100, 20)
    owes.settle(ModelLoaded(WORKER, 9, (), 5, 6))
    owes.owe_run(Run(1, 9, (ITEM,)))
    assert owes.overdue(220, 0) == ""
    assert owes.overdue(221, 0).startswith("a batch took longer")
    owes.settle(WeightsPagedIn(WORKER, 9, 7, 8, None))
    owes.settle(RunFinished(WORKER, 1, (RIGHT,), 1, 2, 3))
    owes.owe_run(Run(2, 9, (ITEM,)))
    assert owes.overdue(21, 0).startswith("a batch took longer")


@pytest.mark.parametrize("early", [ModelLoaded(WORKER, 9, (), 5, 6), ModelRefused(WORKER, 9, "no")])
def test_weights_are_not_filled_before_their_early_load_is_answered(
    owes: PendingReplies, early: ModelLoaded | ModelRefused
) -> None:
    owes.owe_load(Load(9, fake(), LoadWish(quick=True)), 100, 200)
    with pytest.raises(MessageInvalid, match="model 9 is paged in before it said that it is loaded"):
        owes.settle(WeightsPagedIn(WORKER, 9, 7, 8, None))
    owes.settle(early)


def test_a_fill_that_was_asked_for_is_not_that_of_a_later_early_load(owes: PendingReplies) -> None:
    owes.expect_background(PageIn(MODEL), 300)
    owes.owe_load(Load(MODEL, fake(), LoadWish(quick=True)), 100, 200)
    owes.settle(WeightsPagedIn(WORKER, MODEL, 7, 8, None))
    owes.settle(ModelRefused(WORKER, MODEL, "it is loaded already"))
    assert len(owes) == 0


def test_the_fill_of_an_early_load_begins_when_that_has_ended(owes: PendingReplies) -> None:
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    owes.owe_load(Load(9, fake(), LoadWish(quick=True)), 100, 200)
    assert (owes.overdue(0, 1 << 60), owes.loading(), owes.awaited.background) == ("", -1, None)
    owes.settle(RunFinished(WORKER, 1, (RIGHT,), 1, 2, 3))
    assert (owes.overdue(0, 1 << 60), owes.loading(), owes.awaited.background) == ("", 9, None)
    owes.settle(ModelLoaded(WORKER, 9, (), 5, 6))
    assert owes.awaited.background is not None
    assert (owes.overdue(0, 200), owes.overdue(0, 201)) == ("", "a page-in took longer than 0 ms")


def test_an_early_load_that_is_refused_owes_nothing_more(owes: PendingReplies) -> None:
    owes.expect_background(EvictWeights(MODEL), 300)
    owes.owe_load(Load(9, fake(), LoadWish(quick=True)), 100, 200)
    owes.settle(ModelRefused(WORKER, 9, "no"))
    assert (owes.in_line, owes.background) == (0, 1)
    owes.settle(WeightsEvicted(WORKER, MODEL, 1))


def test_an_old_load_that_is_refused_leaves_the_model_to_the_one_that_was_asked_for_after_it(
    owes: PendingReplies,
) -> None:
    owes.owe_load(Load(MODEL, fake(), LoadWish(background=True)), 100, 200)
    owes.forget_model(MODEL)
    owes.owe_load(Load(MODEL, fake()), 100, 300)
    owes.settle(ModelRefused(WORKER, MODEL, "no memory"))
    owes.settle(ModelLoaded(WORKER, MODEL, ((1, 10),), 5, 6))
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    assert owes.overdue(300, 0) == ""
    assert owes.overdue(301, 0)


def test_a_load_that_was_to_exchange_a_session_and_is_refused_leaves_the_model(owes: PendingReplies) -> None:
    owes.owe_load(Load(MODEL, fake(), LoadWish(quick=True)), 100, 200)
    owes.settle(ModelLoaded(WORKER, MODEL, (), 5, 6))
    owes.settle(WeightsPagedIn(WORKER, MODEL, 7, 8, None))
    owes.owe_load(Load(MODEL, fake(), LoadWish(background=True)), 100, 200)
    owes.settle(ModelRefused(WORKER, MODEL, "no"))
    owes.owe_run(Run(1, MODEL, (ITEM,)))


def test_what_is_owed_aside_is_no_part_of_the_line(owes: PendingReplies) -> None:
    owes.owe_load(Load(9, fake(), LoadWish(background=True)), 100, 200)
    owes.expect_background(PageIn(MODEL), 300)
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    assert (len(owes), owes.in_line, owes.background, owes.batches(), owes.loading()) == (3, 1, 2, (1,), 9)
    owes.settle(RunFinished(WORKER, 1, (RIGHT,), 1, 2, 3))
    owes.settle(ModelLoaded(WORKER, 9, (), 5, 6))
    assert owes.loading() == MODEL
    assert (owes.overdue(999, 300), owes.overdue(0, 301)) == ("", "a page-in took longer than 0 ms")
    owes.settle(WeightsPagedIn(WORKER, MODEL, 7, 8, "rot"))
    assert (len(owes), owes.loading()) == (0, -1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (EvictWeights(MODEL), WeightsEvicted(WORKER, MODEL + 1, 5)),
        (EvictWeights(MODEL), WeightsEvicted(WORKER, MODEL, -1)),
        (EvictWeights(MODEL), WeightsPagedIn(WORKER, MODEL, 1, 1, None)),
        (PageIn(MODEL), WeightsEvicted(WORKER, MODEL, 1)),
        (PageIn(MODEL), WeightsPagedIn(WORKER, MODEL, -1, 1, None)),
        (Build(MODEL, fake()), FormBuilt(WORKER, MODEL, "../etc", 1, 1, None)),
        (Build(MODEL, fake()), FormBuilt(WORKER, MODEL, "", 1, 1, None)),
        (Build(MODEL, fake()), ModelLoaded(WORKER, MODEL, (), 1, 1)),
    ],
)
def test_answers_aside_that_cannot_be(
    owes: PendingReplies,
    asked: EvictWeights | PageIn | Build,
    said: WeightsEvicted | WeightsPagedIn | FormBuilt | ModelLoaded,
) -> None:
    owes.expect_background(asked, 300)
    with pytest.raises(MessageInvalid):
        owes.settle(said)


DIGEST = "d" * 64
FORM = f"{DIGEST}-0123456789abcdef"
GOOD = Assessment(1, (Deviation("y", 0.0, 0.0),), 1, 5, 3, 4, 0)


@pytest.mark.parametrize("place", [2, 3, 4])
@pytest.mark.parametrize("said", [-1, 1 << 50, 1 << 63, (1 << 64) - 1])
def test_a_run_takes_no_longer_than_it_may(owes: PendingReplies, place: int, said: int) -> None:
    """The daemon ends what takes longer, so a worker that says so is lying: its numbers reach prices and plans."""
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    times = [1] * 3
    times[place - 2] = said
    with pytest.raises(MessageInvalid, match="times that cannot have passed"):
        owes.settle(RunFinished(WORKER, 1, (RIGHT,), *times))


@pytest.mark.parametrize(
    ("assess", "found"),
    [
        (False, GOOD),
        (True, GOOD._replace(cases=-1)),
        (True, GOOD._replace(runs=1 << 63)),
        (True, GOOD._replace(p50_ns=5)),
        (True, GOOD._replace(promised_ns=-1)),
        (True, GOOD._replace(promised_ns=4)),
        (True, GOOD._replace(worst=(Deviation("z", 0.0, 0.0),))),
        (True, GOOD._replace(worst=(Deviation("y", float("nan"), 0.0),))),
        (True, GOOD._replace(worst=GOOD.worst * 2)),
    ],
)
def test_assessments_that_cannot_be(owes: PendingReplies, assess: bool, found: Assessment) -> None:
    owes.owe_load(Load(9, fake(), LoadWish(assess=assess)), 1, 1)
    with pytest.raises(MessageInvalid, match="assessment"):
        owes.settle(ModelLoaded(WORKER, 9, (), 1, 1, found))


def test_an_assessment_that_can_be(owes: PendingReplies) -> None:
    owes.owe_load(Load(9, fake(), LoadWish(assess=True)), 1, 1)
    owes.settle(ModelLoaded(WORKER, 9, (), 1, 1, GOOD, 5))


@pytest.mark.parametrize("ticket", [50, 51])
def test_outputs_are_fetched_only_when_it_is_their_turn(owes: PendingReplies, ticket: int) -> None:
    stored = Fetched(WORKER, RunResult(ticket, ItemStatus.FAILED, (), (), 0, "gone"))
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    owes.owe_fetch(Fetch(50, 4096, 128), 300)
    with pytest.raises(MessageInvalid, match="not what it owes next"):
        owes.settle(stored)
    owes.settle(RunFinished(WORKER, 1, (RIGHT,), 1, 2, 3))
    if ticket != 50:
        with pytest.raises(MessageInvalid, match="not what it owes next"):
            owes.settle(stored)
    else:
        owes.settle(stored)


def test_a_batch_waits_for_the_weights_of_its_own_model_alone(owes: PendingReplies) -> None:
    owes.expect_background(EvictWeights(MODEL), 1000)
    owes.expect_background(PageIn(9), 1000)
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    assert owes.overdue(201, 0) == "a batch took longer than 0 ms"
    owes.settle(WeightsEvicted(WORKER, MODEL, 1))
    assert owes.loads == 0


AT_LENGTH = "x" * (REASON_CHARACTERS_MAX + 1)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (Load(9, fake()), ModelRefused(WORKER, 9, AT_LENGTH)),
        (Load(9, fake()), ModelLoaded(WORKER, 9, ((1, 1),) * (SEEDS_MAX + 1), 1, 1)),
        (PageIn(MODEL), WeightsPagedIn(WORKER, MODEL, 1, 1, AT_LENGTH)),
        (Build(MODEL, fake()), FormBuilt(WORKER, MODEL, "", 1, 1, AT_LENGTH)),
        (Build(MODEL, fake()), FormBuilt(WORKER, MODEL, AT_LENGTH, 1, 1, "no")),
        (Fetch(50, 4096, 128), Fetched(WORKER, RunResult(50, ItemStatus.FAILED, (), (), 0, AT_LENGTH))),
        (
            Run(1, MODEL, (ITEM,)),
            RunFinished(WORKER, 1, (RunResult(50, ItemStatus.FAILED, (), (), 0, AT_LENGTH),), 1, 2, 3),
        ),
    ],
)
def test_nobody_is_listened_to_at_any_length(
    owes: PendingReplies, asked: Load | PageIn | Build | Fetch | Run, said: FromWorker
) -> None:
    if isinstance(asked, Load):
        owes.owe_load(asked, 100, 200)
    elif isinstance(asked, Run):
        owes.owe_run(asked)
    elif isinstance(asked, Fetch):
        owes.owe_fetch(asked, 300)
    else:
        owes.expect_background(asked, 300)
    with pytest.raises(MessageInvalid):
        owes.settle(said)


@pytest.mark.parametrize("background", [False, True])
def test_a_word_on_the_way_pays_nothing(background: bool) -> None:
    owes = PendingReplies(WORKER)
    owes.owe_load(Load(9, fake(), LoadWish(background=background, tell=True)), 100, 200)
    said = ModelProgress(WORKER, 9, LoadStage.READING, 3, 4)
    owes.settle(said)
    assert (len(owes), owes.loading()) == (1, 9)
    owes.settle(ModelLoaded(WORKER, 9, (), 5, 6))
    with pytest.raises(MessageInvalid, match="unasked"):
        owes.settle(said)


def test_words_on_the_way_are_bounded(owes: PendingReplies) -> None:
    said = ModelProgress(WORKER, 9, LoadStage.READING, 4, 4)
    owes.owe_load(Load(9, fake(), LoadWish(tell=True)), 100, 200)
    for _ in range(PROGRESS_MAX):
        owes.settle(said)
    with pytest.raises(MessageInvalid, match="more than 1000 times"):
        owes.settle(said)


@pytest.mark.parametrize(
    ("tell", "said"),
    [
        (False, ModelProgress(WORKER, 9, LoadStage.SESSION, 0, 0)),
        (True, ModelProgress(WORKER, 8, LoadStage.SESSION, 0, 0)),
        (True, ModelProgress(WORKER, MODEL, LoadStage.SESSION, 0, 0)),
        (True, ModelProgress(WORKER, 9, LoadStage.READING, 5, 4)),
        (True, ModelProgress(WORKER, 9, LoadStage.READING, -1, 4)),
    ],
)
def test_words_on_the_way_that_cannot_be(owes: PendingReplies, tell: bool, said: ModelProgress) -> None:
    owes.owe_load(Load(9, fake(), LoadWish(tell=tell)), 1, 1)
    with pytest.raises(MessageInvalid):
        owes.settle(said)


def judged(model: int = MODEL, name: str = FORM, reason: str = "") -> FormJudged:
    return FormJudged(WORKER, model, name, FormVerdict.DROPPED, reason)


def test_a_form_is_judged_while_its_version_is_loaded_a_few_times() -> None:
    owes = PendingReplies(WORKER)
    load = Load(MODEL, replace(fake(), digest=DIGEST))
    for _ in range(2):
        owes.owe_load(load, 100, 200)
        for _ in range(JUDGED_MAX):
            assert owes.settle(judged()) is load
        with pytest.raises(MessageInvalid, match="more than"):
            owes.settle(judged())
        owes.settle(ModelRefused(WORKER, MODEL, "no"))


@pytest.mark.parametrize(
    "message",
    [
        judged(model=MODEL + 1),
        judged(name=f"{'e' * 64}-0123456789abcdef"),
        judged(name=f"../{FORM}"),
        judged(name=f".building-{FORM}"),
        judged(name=""),
        judged(reason="x" * (REASON_CHARACTERS_MAX + 1)),
    ],
)
def test_forms_of_others_are_not_judged(message: FormJudged) -> None:
    owes = PendingReplies(WORKER)
    owes.owe_load(Load(MODEL, replace(fake(), digest=DIGEST)), 100, 200)
    with pytest.raises(MessageInvalid):
        owes.settle(message)


def test_a_form_is_built_under_a_name_of_its_version_alone() -> None:
    owes = PendingReplies(WORKER)
    owes.expect_background(Build(MODEL, replace(fake(), digest=DIGEST)), 100)
    with pytest.raises(MessageInvalid, match="a name that is none"):
        owes.settle(FormBuilt(WORKER, MODEL, f"{'e' * 64}-0123456789abcdef", 1, 1, None))
    built = FormBuilt(WORKER, MODEL, FORM, 1, 1, None)
    assert owes.form[1] is None
    owes.settle(built)
    assert owes.form == (replace(fake(), digest=DIGEST), built)


def test_nothing_is_judged_of_a_version_without_a_digest_or_when_nothing_is_loaded(
    owes: PendingReplies,
) -> None:
    with pytest.raises(MessageInvalid, match="unasked"):
        owes.settle(judged())
    owes.owe_load(Load(9, fake()), 100, 200)
    for name in (FORM, "plain", ""):
        with pytest.raises(MessageInvalid, match="a name that is none"):
            owes.settle(judged(9, name))
