"""Tables for people keep every name and number whole, however narrow the screen: by examples, and by property."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from appliance.cli.activity import since_start, workers_between
from appliance.cli.activity_view import COLUMNS, view
from appliance.cli.snapshot import parse
from appliance.cli.text_table import Column, TextTable
from appliance.http.status_document import status_document
from tests.http.engine_figures import made_up_status, made_up_store

LONG = "sentence-embeddings-multilingual-minilm-l12-v2"
NAMES = (LONG, "digits", "warehouse-defect-detector.camera-07", "a" * 64, "cold", "leaving")
STATES = ("READY", "READY", "LOADING", "UNAVAILABLE", "READY", "UNLOADING")


def shown(what: RenderableType, width: int) -> list[str]:
    """Lines as a screen of this width shows them."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text().splitlines()


def status(**fields: Any) -> RenderableType:
    document: dict[str, Any] = json.loads(json.dumps(status_document(made_up_status(), made_up_store())))
    busy, idle, _ = document["models"]
    document["models"] = [
        {
            **(busy if number % 2 == 0 else idle),
            "name": name,
            "version": 20250711,
            "state": state,
            "trial": None,
        }
        for number, (name, state) in enumerate(zip(NAMES, STATES, strict=True))
    ]
    document["models"][4]["residency"] = "cold"
    document["workers"][0]["models"] = [f"{LONG}/20250711", "digits/20250711"]
    snapshot = parse(json.dumps(document).encode(), "there")
    return view(snapshot, since_start(snapshot), workers=workers_between(None, snapshot), **fields)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_status_keeps_names_and_states_whole(width: int) -> None:
    lines = shown(status(), width)
    text = "\n".join(lines)
    assert max(map(cell_len, lines)) <= width
    for name in NAMES[:3]:
        assert f"{name}/20250711" in text
    assert "".join(f"{'a' * 64}/20250711") in text.replace("\n", "")
    assert all(state in text for state in (*STATES, "READY cold"))
    assert "…" not in text
    assert f"{LONG}/20250711" in text[text.index("requests/s") :], "the worker's models are whole, too"
    head = lines[1 if width > 80 else 2].split()
    always = [column.title for column in COLUMNS if not column.leaves]
    assert [title for title in head if title in always] == always
    assert (head == [column.title for column in COLUMNS]) == (width > 80)


def test_a_screen_with_few_lines_says_how_many_are_left_out() -> None:
    lines = shown(status(lines=5), 80)
    assert any(line.startswith("... ") and line.endswith(" more") for line in lines)


def test_a_row_of_a_short_name_stays_one_line_and_a_tail_goes_below() -> None:
    rows = [[Text("m/1"), Text("12"), Text("why " * 20)], [Text("m" * 40), Text("3"), Text()]]
    columns = (Column(title="name", left=True), Column(title="count"))
    wide, narrow = (shown(TextTable(columns=columns, rows=rows, tail="why"), width) for width in (140, 40))
    assert wide[0].split() == ["name", "count", "why"]
    assert wide[1] == "m/1" + " " * 38 + "   12 " + ("why " * 20).strip()
    assert narrow[0].split() == ["name", "count"]
    assert narrow[1].split() == ["m/1", "12"]
    assert narrow[2].startswith("  why why")
    assert (narrow[-2], narrow[-1].strip()) == ("m" * 40, "3")


CELLS = st.text(st.sampled_from("ab/-日 9"), max_size=70)


@given(
    rows=st.lists(st.tuples(CELLS, st.text("xyz", max_size=9), st.text("12", max_size=9), CELLS), max_size=6),
    width=st.integers(24, 150),
)
def test_nothing_is_lost_but_columns_that_may_leave(rows: Sequence[tuple[str, ...]], width: int) -> None:
    columns = (Column(title="name", left=True), Column(title="k", left=True), Column(title="n", leaves=1))
    table = TextTable(columns=columns, rows=[[Text(cell) for cell in row] for row in rows], tail="t")
    lines = shown(table, width)
    letters = sorted("".join(lines).replace(" ", ""))
    assert all(cell_len(line) <= max(width, 36) for line in lines)
    left = "n" not in lines[0].replace("name", "")
    kept = [cell for row in rows for index, cell in enumerate(row) if not (left and index == 2)]
    for each in set("".join(kept)) - {" "}:
        assert letters.count(each) >= "".join(kept).count(each)
