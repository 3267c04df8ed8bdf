"""Repetitions in sequences: found where they are, begun where it is best, and bounded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.package import repeats
from appliance.package.repeats import FOLDED_MIN, Repeat, find_repeats


def found(text: str, *, crossing: Sequence[int] | None = None) -> list[tuple[int, int, int]]:
    kinds = [ord(letter) for letter in text]
    costs = [0] * (len(text) + 1) if crossing is None else crossing
    return [(each.start, each.period, each.times) for each in find_repeats(kinds, same(kinds), costs)]


def same(kinds: Sequence[int]) -> repeats.Same:
    return lambda one, other, period, first: kinds[one : one + period] == kinds[other : other + period]


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("", []),
        ("abcd", []),
        ("abab", [(0, 2, 2)]),
        ("aaa", []),
        ("aaaa", [(0, 1, 4)]),
        ("x" + "abc" * 12 + "y", [(1, 3, 12)]),
        ("x" + "aab" * 5 + "y" + "cd" * 3, [(1, 3, 5), (17, 2, 3)]),
        ("x" + "aaaabcdefgh" * 3, [(1, 11, 3)]),
    ],
)
def test_what_covers_most_is_folded(text: str, wanted: list[tuple[int, int, int]]) -> None:
    assert found(text) == wanted


def test_a_repetition_begins_where_it_costs_least_and_else_as_late_as_it_can() -> None:
    text = "c" + "abc" * 3
    assert found(text) == [(1, 3, 3)]
    assert found(text, crossing=[0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0]) == [(0, 3, 3)]


def test_blocks_that_somebody_else_tells_apart_are_not_folded() -> None:
    kinds = [1, 2] * 6
    told: list[int] = []

    def only_the_first_three(one: int, other: int, period: int, first: bool) -> bool:
        told.append(one)
        assert first == (one == told[0] or one >= 6)
        return other < 6

    costs = [0] * 13
    assert find_repeats(kinds, only_the_first_three, costs)[0] == Repeat(0, 2, 3)


@given(st.lists(st.integers(0, 3), max_size=80))
def test_every_repetition_is_one(kinds: list[int]) -> None:
    end = 0
    for repeat in find_repeats(kinds, same(kinds), [0] * (len(kinds) + 1)):
        assert repeat.start >= end
        end = repeat.end
        assert repeat.end <= len(kinds)
        assert repeat.times >= 2
        assert repeat.times * repeat.period >= FOLDED_MIN
        block = kinds[repeat.start : repeat.start + repeat.period]
        assert kinds[repeat.start : repeat.end] == block * repeat.times


@pytest.mark.parametrize("bound", ["TRIES_MAX", "COMPARED_MAX"])
def test_work_is_bounded(monkeypatch: pytest.MonkeyPatch, bound: str) -> None:
    """Beyond the bound nothing is folded."""
    assert found("xy" * 20 + "pq" * 20) == [(0, 2, 20), (40, 2, 20)]
    monkeypatch.setattr(repeats, bound, 0)
    assert found("xy" * 20 + "pq" * 20) == []
