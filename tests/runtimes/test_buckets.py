"""Sizes that batches are filled up to."""

from __future__ import annotations

from appliance.runtimes.buckets import bucket, cut, filled_up, rows_of
from appliance.runtimes.runtime import Feed, Produced


def test_sizes_are_few_and_none_is_larger_by_a_half() -> None:
    sizes = [bucket(rows, 64) for rows in range(1, 65)]
    assert sorted(set(sizes)) == [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    assert all(rows <= size < rows * 1.5 for rows, size in enumerate(sizes, start=1))


def test_none_is_more_than_a_batch_may_have() -> None:
    assert [bucket(rows, 5) for rows in range(1, 6)] == [1, 2, 3, 4, 5]
    assert bucket(9, 8) == 9, "what is asked for is not made smaller"


def test_rows_are_those_that_all_inputs_agree_on() -> None:
    assert rows_of([Feed((3, 2), 0, 24), None, Feed((3,), 64, 12)]) == 3
    assert rows_of([Feed((3, 2), 0, 24), Feed((2,), 64, 8)]) == 0
    assert rows_of([Feed((), 0, 4)]) == 0
    assert rows_of([]) == 0


def test_inputs_are_filled_up_and_outputs_cut() -> None:
    assert filled_up([Feed((3, 2), 64, 24), None], 3, 4) == (Feed((4, 2), 64, 32), None)
    assert cut(Produced(((4, 5),), (80,), None), 4, 3) == Produced(((3, 5),), (60,), None)
