"""Tables to dataclasses: what is bound, and that every problem is named at once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Literal

import pytest

from appliance.domain.binding import PROBLEMS_MAX, bind, bind_what_can_be
from appliance.domain.errors import ConfigInvalid


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


@dataclass(frozen=True, slots=True, kw_only=True)
class Inner:
    size: int = field(default=1, metadata={"min": 1, "max": 8, "unit": "bytes"})
    share: float = field(default=0.5, metadata={"min": 0, "max": 1})

    def __post_init__(self) -> None:
        if self.size == 7:
            raise ValueError("seven is taken")


@dataclass(frozen=True, slots=True, kw_only=True)
class Outer:
    name: str = "x"
    on: bool = False
    colour: Colour = Colour.RED
    device: str = field(default="cpu", metadata={"choices": ("cpu", "cuda")})
    mode: Literal["a", "b"] = "a"
    limit: int | None = None
    numbers: tuple[int, ...] = field(default=(), metadata={"min": 0})
    pairs: tuple[tuple[int, int], ...] = ()
    inner: Inner = Inner()
    by_name: Mapping[str, Inner] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Demanding:
    path: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    even: int = field(
        default=1, metadata={"check": lambda value: [f"{value} is odd"] * (value % 2), "min": 0}
    )
    grid: tuple[tuple[int, ...], ...] = field(default=(), metadata={"shape": "rows of numbers"})
    inner: Inner = Inner()


def problems(section: type, table: Mapping[str, object]) -> dict[str, str]:
    with pytest.raises(ConfigInvalid) as caught:
        bind(section, table, "file.toml")
    assert all(problem.file == "file.toml" for problem in caught.value.problems)
    return {problem.key: problem.text for problem in caught.value.problems}


def test_an_empty_table_is_all_defaults() -> None:
    assert bind(Outer, {}, "f") == Outer()


def test_every_kind_of_value() -> None:
    table = {
        "name": "y",
        "on": True,
        "colour": "blue",
        "device": "cuda",
        "mode": "b",
        "limit": 3,
        "numbers": [1, 2],
        "pairs": [[1, 2], [3, 4]],
        "inner": {"size": 2, "share": 1},
        "by_name": {"left": {"size": 3}},
    }
    assert bind(Outer, table, "f") == Outer(
        name="y",
        on=True,
        colour=Colour.BLUE,
        device="cuda",
        mode="b",
        limit=3,
        numbers=(1, 2),
        pairs=((1, 2), (3, 4)),
        inner=Inner(size=2, share=1.0),
        by_name={"left": Inner(size=3)},
    )


def test_all_problems_at_once_each_with_its_path() -> None:
    found = problems(
        Outer,
        {
            "nmae": "y",
            "on": 1,
            "limit": True,
            "colour": "green",
            "device": "tpu",
            "numbers": [1, "2", -3],
            "pairs": [[1]],
            "inner": {"size": 9, "share": "half", "sice": 1},
            "by_name": {"left": {"size": 0}},
        },
    )
    assert set(found) == {
        "nmae", "on", "limit", "colour", "device", "numbers[1]", "pairs[0]", "inner.size", "inner.share", "inner.sice",
        "by_name.left.size",
    }  # fmt: skip
    assert "did you mean 'name'" in found["nmae"]
    assert "did you mean 'size'" in found["inner.sice"]
    assert "true or false" in found["on"]
    assert "'red', 'blue'" in found["colour"]
    assert found["inner.size"] == "must be at most 8 bytes, got 9"
    assert found["by_name.left.size"] == "must be at least 1 bytes, got 0"


@pytest.mark.parametrize("value", [1.5, "1", [1], {"a": 1}, None])
def test_only_an_integer_is_an_integer(value: object) -> None:
    assert problems(Inner, {"size": value})["size"].startswith("must be an integer")


@pytest.mark.parametrize("value", [float("nan"), float("inf"), float("-inf")])
def test_numbers_are_finite(value: float) -> None:
    assert "must be a finite number" in problems(Inner, {"share": value})["share"]


def test_each_value_of_a_list_is_checked() -> None:
    assert "at least 0" in problems(Outer, {"numbers": [3, -1]})["numbers"]


def test_what_a_section_refuses_is_its_problem() -> None:
    assert problems(Outer, {"inner": {"size": 7}}) == {"inner": "seven is taken"}


def test_a_section_must_be_a_table() -> None:
    assert "must be a table" in problems(Outer, {"inner": 3})["inner"]


def test_a_key_without_default_is_missed() -> None:
    assert problems(Demanding, {}) == {"path": "is missing; give a text"}


def test_a_fields_own_check_is_asked_with_everything_else() -> None:
    found = problems(Checked, {"even": 3, "inner": {"size": 9}, "x": 1})
    assert set(found) == {"even", "inner.size", "x"}
    assert found["even"] == "3 is odd"


def test_a_default_is_checked_too() -> None:
    assert problems(Checked, {}) == {"even": "1 is odd"}
    assert bind(Checked, {"even": 2}, "f") == Checked(even=2)


def test_a_value_out_of_range_is_not_checked_further() -> None:
    assert problems(Checked, {"even": -1}) == {"even": "must be at least 0, got -1"}


def test_unchecked_a_value_is_only_bound() -> None:
    assert bind(Checked, {"even": 3}, "f", checked=False) == Checked(even=3)


def test_a_shape_in_words_stands_for_what_is_wrong_with_each_element() -> None:
    found = problems(Checked, {"even": 2, "grid": [1, [2], "3"]})
    assert found == {"grid": "must be rows of numbers, got [1, [2], '3']"}


def test_a_table_of_nothing_but_mistakes_is_told_in_part() -> None:
    found = problems(Outer, {"by_name": {f"n{number}": 1 for number in range(5_000)}})
    assert len(found) == PROBLEMS_MAX + 1
    assert found[""] == "and more; only the first are told"
    assert len(problems(Outer, {f"unknown{number}": 1 for number in range(5_000)})) == PROBLEMS_MAX + 1


def test_long_values_and_long_keys_are_cut() -> None:
    assert problems(Outer, {"on": "x" * 5_000}) == {"on": f"must be true or false, got '{'x' * 199}..."}
    ((key, text),) = problems(Outer, {"by_name": {"k" * 5_000: 1}}).items()
    assert (len(key), text) == (300, "must be a table, got 1")


def test_numbers_beyond_what_python_writes_are_told() -> None:
    assert problems(Inner, {"size": 1 << 20_000}) == {
        "size": "must be at most 8 bytes, got a number of too many digits"
    }
    assert problems(Inner, {"share": 1 << 20_000}) == {
        "share": "must be a number, got a number of too many digits"
    }


def test_what_can_be_bound_is_and_what_cannot_is_named() -> None:
    found = bind_what_can_be(
        Outer, {"name": 3, "on": True, "inner": {"size": 9}, "by_name": {"a": {"size": "x"}}, "nmae": 1}, "f"
    )
    assert found.value == Outer(on=True)
    assert found.unread == {"name", "inner", "by_name"}
    assert {each.key for each in found.problems} == {"name", "inner.size", "by_name.a.size", "nmae"}


def test_an_unfit_value_stays_and_what_a_section_refuses_is_told_beside_it() -> None:
    found = bind_what_can_be(Checked, {"even": 5, "inner": {"size": 7, "x": 1}}, "f")
    assert (found.value, found.unread) == (Checked(even=5), frozenset({"inner"}))
    assert [each.key for each in found.problems] == ["even", "inner.x", "inner"]


def test_what_has_no_default_cannot_be_left_out() -> None:
    for table in ({}, {"path": 3}):
        found = bind_what_can_be(Demanding, table, "f")
        assert (found.value, len(found.problems)) == (None, 1)
