"""The queue against a sorted list, and the sums of charges against plain sums."""

from __future__ import annotations

from itertools import pairwise
from typing import cast

from hypothesis import given, settings
from hypothesis import strategies as st

from appliance.core.scheduling.charges import FINE_SHIFT, Charges
from appliance.core.scheduling.group import BatchKey, QueuedRequest
from appliance.core.scheduling.queue import Key, Queue
from appliance.domain.inference import NO_DEADLINE

NOBODY = QueuedRequest(0, cast(BatchKey, None), 1, 0, 1, 0, 0, 0)


def key(level: int, deadline_ns: int, sequence: int) -> Key[QueuedRequest]:
    """A key; who it stands for does not matter here."""
    return (level, deadline_ns, sequence, NOBODY)


def starts(queue: Queue[QueuedRequest]) -> list[tuple[int, int, int]]:
    """All keys in the queue's order."""
    return [entry[:3] for entry in queue]


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("insert"), st.integers(1, 3), st.integers(0, 40)),
        st.tuples(st.just("remove"), st.integers(0, 1000), st.just(0)),
        st.tuples(st.just("take"), st.integers(0, 5), st.just(0)),
    ),
    max_size=120,
)


@given(OPERATIONS)
def test_queue_is_a_sorted_list(operations: list[tuple[str, int, int]]) -> None:
    queue, model = Queue[QueuedRequest](), list[tuple[int, int, int]]()
    for sequence, (what, first, second) in enumerate(operations):
        if what == "insert":
            queue.insert(key(first, second, sequence))
            model.append((first, second, sequence))
            model.sort()
        elif what == "remove" and model:
            queue.remove(*model.pop(first % len(model)))
        elif what == "take":
            queue.take(min(first, len(model)))
            del model[:first]
        queue.check_integrity()
        assert starts(queue) == model
        for level in (1, 2, 3, 4):
            expected = next((entry for entry in model if entry[0] >= level), None)
            found = queue.seek(level)
            assert (found[:3] if found else None) == expected


CHARGES = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.one_of(st.integers(0, 10**8), st.integers(0, 10**11), st.just(NO_DEADLINE)),
        st.integers(0, 10**7),
    ),
    max_size=30,
)


@settings(max_examples=300)
@given(CHARGES, st.integers(1, 3), st.integers(0, 10**11), st.integers(0, 10**10))
def test_the_sum_of_charges_is_never_too_small_and_near_deadlines_are_nearly_exact(
    charges: list[tuple[int, int, int]], level: int, deadline_ns: int, now_ns: int
) -> None:
    sums = Charges()
    future = [charge for charge in charges if charge[1] >= now_ns]
    for charge in future:
        sums.add(*charge)
        sums.check_integrity()
    deadline_ns = max(deadline_ns, now_ns)
    exact = sum(ns for at, due, ns in future if (at, due) <= (level, deadline_ns))
    bucket_end = ((deadline_ns >> FINE_SHIFT) + 1) << FINE_SHIFT
    rounded = sum(ns for at, due, ns in future if (at, due) < (level, bucket_end))
    answer = sums.until(level, deadline_ns, now_ns)
    assert answer >= exact
    if deadline_ns - now_ns < 10**10:
        assert answer == rounded
    for charge in future:
        sums.add(charge[0], charge[1], -charge[2])
    assert (sums.total_ns, sums.until(9, NO_DEADLINE - 1, now_ns)) == (0, 0)


@given(CHARGES, st.integers(0, 10**10))
def test_buckets_of_charges_hold_every_deadline_not_too_late(
    charges: list[tuple[int, int, int]], now_ns: int
) -> None:
    sums = Charges()
    future = [charge for charge in charges if charge[1] >= now_ns]
    for charge in future:
        sums.add(*charge)
    for level, total in sums.levels():
        finite = sorted((due, ns) for at, due, ns in future if at == level and due < NO_DEADLINE)
        buckets = sums.buckets(level, now_ns)
        assert total == sum(ns for at, _, ns in future if at == level)
        assert sum(ns for _, _, ns in buckets) == sum(ns for _, ns in finite)
        assert all(a[1] <= b[0] for a, b in pairwise(buckets))
        for start, end, ns in buckets:
            assert ns == sum(charge for due, charge in finite if start <= due < end)


def test_a_level_that_has_nothing_left_is_forgotten() -> None:
    """Levels are as many as a configuration says, and clients name each."""
    charges = Charges()
    for level in range(1_000):
        charges.add(level, 1_000_000 if level % 2 else NO_DEADLINE, 7)
    assert len(charges.levels()) == 1_000
    for level in range(1_000):
        charges.add(level, 1_000_000 if level % 2 else NO_DEADLINE, -7)
    assert (charges.levels(), charges._endless, charges.total_ns) == ([], {}, 0)
    charges.check_integrity()
