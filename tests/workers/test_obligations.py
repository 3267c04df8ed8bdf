"""What a worker owes, in which order, and that paying it makes the right events. The lies are in test_faults."""

from __future__ import annotations

import pytest

from appliance.workers.codec import MessageInvalid
from appliance.workers.messages import Fetch, Finished, Loaded, Refused, Run, Stored
from appliance.workers.obligations import Obligations
from appliance.workers.port import (
    Fetched,
    ItemStatus,
    ModelLoaded,
    ModelRefused,
    RunFinished,
    RunItem,
    RunResult,
)
from tests.workers.bench import fake

WORKER, MODEL = 7, 3
ITEM = RunItem(50, 1, ((1, 4),), (16,), 0, (0,), 64, 64)
RIGHT = RunResult(50, ItemStatus.OK, ((1, 4),), (16,), 0, "")
LARGE = RunResult(50, ItemStatus.TOO_LARGE, ((1, 32),), (128,), 128, "")


@pytest.fixture
def owes() -> Obligations:
    """Of a worker that has loaded one model."""
    made = Obligations(WORKER)
    made.owe_load(MODEL, fake(), 100, 200)
    made.settle(Loaded(MODEL, ((1, 10),), 5, 6))
    return made


def test_a_load_and_its_answer() -> None:
    owes = Obligations(WORKER)
    owes.owe_load(MODEL, fake(), 100, 200)
    assert (len(owes), owes.loading(), owes.timeout_ns, owes.oldest) == (1, MODEL, 100, "a load")
    assert owes.settle(Loaded(MODEL, ((1, 10),), 5, 6)) == ModelLoaded(WORKER, MODEL, ((1, 10),), 5, 6)
    assert (len(owes), owes.loading()) == (0, -1)


def test_a_load_that_is_refused() -> None:
    owes = Obligations(WORKER)
    owes.owe_load(MODEL, fake(), 100, 200)
    assert owes.settle(Refused(MODEL, "no")) == ModelRefused(WORKER, MODEL, "no")
    with pytest.raises(KeyError):
        owes.owe_run(Run(1, MODEL, (ITEM,)))


def test_batches_are_owed_in_order(owes: Obligations) -> None:
    for batch in (1, 2):
        owes.owe_run(Run(batch, MODEL, (ITEM,)))
    owes.owe_load(9, fake(), 100, 200)
    assert (owes.batches(), owes.loading(), owes.timeout_ns, owes.oldest) == ((1, 2), -1, 200, "a batch")
    with pytest.raises(MessageInvalid, match="finished batch 2, which is not what it owes next"):
        owes.settle(Finished(2, (RIGHT,), 1, 2, 3))
    assert owes.settle(Finished(1, (RIGHT,), 1, 2, 3)) == RunFinished(WORKER, 1, (RIGHT,), 1, 2, 3)
    assert owes.batches() == (2,)


def test_large_outputs_are_held_until_they_are_fetched(owes: Obligations) -> None:
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    owes.settle(Finished(1, (LARGE,), 1, 2, 3))
    stored = LARGE._replace(status=ItemStatus.OK, needed=0)
    owes.owe_fetch(Fetch(50, 4096, 128), 300)
    assert (owes.timeout_ns, owes.oldest, owes.batches()) == (300, "a fetch", ())
    assert owes.settle(Stored(stored)) == Fetched(WORKER, stored)
    owes.owe_fetch(Fetch(50, 4096, 128), 300)
    with pytest.raises(MessageInvalid, match="which it did not hold"):
        owes.settle(Stored(stored))


def test_a_fetch_into_too_little_room_is_held_on(owes: Obligations) -> None:
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    owes.settle(Finished(1, (LARGE,), 1, 2, 3))
    owes.owe_fetch(Fetch(50, 4096, 100), 300)
    assert owes.settle(Stored(LARGE)) == Fetched(WORKER, LARGE)
    owes.forget_held(50)
    owes.owe_fetch(Fetch(50, 4096, 128), 300)
    failed = RunResult(50, ItemStatus.FAILED, (), (), 0, "gone")
    assert owes.settle(Stored(failed)) == Fetched(WORKER, failed)


def test_a_forgotten_model_still_pays_for_what_it_runs(owes: Obligations) -> None:
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    owes.forget_model(MODEL)
    assert owes.settle(Finished(1, (RIGHT,), 1, 2, 3)) == RunFinished(WORKER, 1, (RIGHT,), 1, 2, 3)


def test_a_shape_that_was_right_once_is_not_right_for_other_rows(owes: Obligations) -> None:
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    owes.settle(Finished(1, (RIGHT,), 1, 2, 3))
    owes.owe_run(Run(2, MODEL, (ITEM._replace(rows=2),)))
    with pytest.raises(MessageInvalid, match=r"shape \[1, 4\] for 2 rows"):
        owes.settle(Finished(2, (RIGHT,), 1, 2, 3))


def test_a_shape_that_was_right_once_must_still_fit(owes: Obligations) -> None:
    owes.owe_run(Run(1, MODEL, (ITEM,)))
    owes.settle(Finished(1, (RIGHT,), 1, 2, 3))
    owes.owe_run(Run(2, MODEL, (ITEM._replace(out_capacity=63),)))
    with pytest.raises(MessageInvalid, match="outputs of 64 bytes where 63 fit"):
        owes.settle(Finished(2, (RIGHT,), 1, 2, 3))


@pytest.mark.parametrize(
    "message", [Loaded(1, (), 1, 1), Refused(1, "x"), Finished(1, (), 1, 1, 1), Stored(RIGHT)]
)
def test_nothing_is_owed(owes: Obligations, message: Loaded | Refused | Finished | Stored) -> None:
    with pytest.raises(MessageInvalid, match="unasked"):
        owes.settle(message)


@pytest.mark.parametrize(
    "message", [Loaded(9, ((0, 5),), 1, 1), Loaded(9, (), -1, 1), Loaded(9, (), 1, -1), Loaded(8, (), 1, 1)]
)
def test_measurements_that_cannot_be(owes: Obligations, message: Loaded) -> None:
    owes.owe_load(9, fake(), 1, 1)
    with pytest.raises(MessageInvalid):
        owes.settle(message)
