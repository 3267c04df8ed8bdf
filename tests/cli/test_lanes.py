"""Lanes beside the lines of a drawing."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from appliance.cli.lanes import END, Lanes, Line, Row


def drawn(lines: list[Line], most: int = 8) -> list[Row]:
    last = {name: number for number, line in enumerate(lines) for name in line.takes}
    return list(Lanes(last, most).rows(lines))


LINES = [
    Line((), ("x",), END),
    Line(("x",), ("a",)),
    Line(("x",), ("b",)),
    Line(("a", "b"), ("c",)),
    Line(("c",), ("d", "e", "f")),
    Line(("d", "f", "x"), ("g",)),
    Line(("e", "g"), ("h",)),
    Line(("h",), (), END),
]


def test_a_drawing() -> None:
    assert [row.text for row in drawn(LINES)] == [
        "○",
        "├─●",
        "├─│─●",
        "│ ●─╯",
        "│ ●─┬─╮",
        "●─┴─│─╯",
        "●───╯",
        "○",
    ]
    assert [row.below for row in drawn(LINES)] == [
        "│",
        "│ │",
        "│ │ │",
        "│ │",
        "│ │ │ │",
        "│   │",
        "│",
        "",
    ]


def test_what_has_no_lane_is_told() -> None:
    rows = drawn(LINES, most=2)
    assert [row.unseen for row in rows] == [(), (), ("b",), ("b",), ("e", "f"), ("f",), ("e",), ()]
    assert max(len(row.below) for row in rows) <= 3


@given(st.data())
def test_every_value_has_a_lane_from_who_makes_it_to_who_takes_it_last(data: st.DataObject) -> None:
    lines: list[Line] = []
    made: list[str] = []
    for number in range(data.draw(st.integers(1, 12))):
        takes = tuple(data.draw(st.lists(st.sampled_from(made), max_size=3))) if made else ()
        gives = tuple(f"v{number}.{each}" for each in range(data.draw(st.integers(0, 3))))
        lines.append(Line(takes, gives))
        made += gives
    last = {name: number for number, line in enumerate(lines) for name in line.takes}
    alive: set[str] = set()
    for number, (line, row) in enumerate(zip(lines, drawn(lines, most=40), strict=True)):
        alive |= set(line.gives)
        alive = {name for name in alive if last.get(name, -1) > number}
        assert row.below.count("│") == len(alive)
        assert row.text.count("●") == 1
        assert row.unseen == ()
