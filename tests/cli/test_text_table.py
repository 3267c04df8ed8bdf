"""Tables for people keep every name and number whole, however narrow the screen: by examples, and by property."""

from __future__ import annotations

import cProfile
import io
import json
import pstats
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.text import Text

from appliance.cli.activity import between
from appliance.cli.activity_view import COLUMNS, COST, JOULES, RATES, view
from appliance.cli.fleet.session import table
from appliance.cli.main import main
from appliance.cli.notes import fitted, wrapped
from appliance.cli.snapshot import Snapshot, parse
from appliance.cli.text_table import Column, TextTable
from appliance.runtimes.runtime import offers
from appliance.tools.commands import runtime
from appliance.tools.conformance.outcome import Outcome
from tests.cli.test_help_text import Screen
from tests.frontend.http.engine_figures import made_up_snapshot, status_document

LONG = "sentence-embeddings-multilingual-minilm-l12-v2"
NAMES = (LONG, "digits", "warehouse-defect-detector.camera-07", "a" * 64, "cold", "leaving")
STATES = ("READY", "READY", "LOADING", "UNAVAILABLE", "READY", "UNLOADING")


def shown(what: RenderableType, width: int) -> list[str]:
    """Lines as a screen of this width shows them."""
    console = Console(width=width, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text().splitlines()


def status(**fields: Any) -> RenderableType:
    document: dict[str, Any] = status_document(made_up_snapshot())
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
    return view(between(None, snapshot), workers=True, **fields)


@pytest.mark.parametrize("width", [80, 120, 200])
def test_status_keeps_names_and_states_whole(width: int) -> None:
    lines = shown(status(), width)
    text = "\n".join(lines)
    assert max(map(cell_len, lines)) <= width
    for name in NAMES[:4]:
        assert f"{name}/20250711" in text
    assert all(state in text for state in (*STATES, "READY cold"))
    assert "…" not in text
    assert f"{LONG}/20250711" in text[text.index("requests/s") :], "the worker's models are whole, too"
    head = next(line for line in lines if line.startswith("model")).split()
    always = [column.title for column in COLUMNS if not column.leaves]
    assert [title for title in head if title in always] == always
    assert (head == [column.title for column in COLUMNS if column not in (RATES, JOULES, COST)]) == (
        width > 80
    )


@pytest.mark.parametrize("width", [60, 80, 200])
@pytest.mark.parametrize("count", [1, 5, 6, 10, 15, 50])
def test_a_screen_with_few_lines_is_not_overrun_and_says_how_many_are_left_out(
    count: int, width: int
) -> None:
    lines = shown(status(lines=count), width)
    assert len(lines) <= count
    whole = shown(status(), width)
    if len(whole) <= count:
        assert lines == whole
    elif count >= 5:
        assert any(line.startswith("... ") and line.endswith(" more") for line in lines)


def broken(count: int, **fields: Any) -> Snapshot:
    """As many models that do not serve, each with more to say than fits a line, and one more that has been noted."""
    document: dict[str, Any] = status_document(made_up_snapshot())
    one = {**document["models"][2], "reason": ""}
    noted = {**one, "name": "model-noted", "notes": ["has no effect here"]}
    failed = [
        {**one, "name": f"model-{number}", "reason": f"{number} is broken " * 60} for number in range(count)
    ]
    document["models"] = [noted, *failed]
    document.update(fields)
    return parse(json.dumps(document).encode(), "there")


@pytest.mark.parametrize("lines", [10, 18, 26, 40])
def test_versions_have_the_screen_before_what_is_said_of_them(lines: int) -> None:
    seen = shown(view(between(None, broken(40)), lines), 100)
    assert len(seen) <= lines
    rows = [line for line in seen if "UNAVAILABLE" in line]
    first = next(number for number, line in enumerate(seen) if line.startswith("model "))
    below = seen[first + 1 :]
    assert len(rows) + 1 >= len(below) * 3 / 4 - 1
    assert f"... {41 - len(rows)} more" in below
    said = [line for line in seen if "/1: " in line]
    assert all(f"model-{number}/1: " in line for number, line in enumerate(said)), (
        "the most urgent come first"
    )
    assert seen[-1] == f"... {41 - len(said)} more notes in 'appliance status'"
    assert sum(line.endswith(" ...") for line in seen) == len(said), "what is cut off is told"


def test_notes_have_all_that_versions_leave() -> None:
    whole = shown(view(between(None, broken(3))), 100)
    assert shown(view(between(None, broken(3)), len(whole)), 100) == whole
    seen = shown(view(between(None, broken(3)), len(whole) - 1), 100)
    assert sum("UNAVAILABLE" in line for line in seen) == 4
    assert sum(line.endswith(" ...") for line in seen) == 3
    assert seen[-1].startswith("model-noted/1: Noted: has no effect here")


def test_what_is_said_of_several_versions_is_said_once() -> None:
    document: dict[str, Any] = status_document(made_up_snapshot())
    one = {**document["models"][2], "reason": "", "notes": ["has no effect here"]}
    document["models"] = [{**one, "name": name} for name in "abc"]
    seen = shown(view(between(None, parse(json.dumps(document).encode(), "there"))), 100)
    assert seen[-1] == "a/1, b/1, c/1: Noted: has no effect here"
    assert sum("Noted" in line for line in seen) == 1


@pytest.mark.parametrize("workers", [0, 30])
@pytest.mark.parametrize("lines", [5, 10, 26, 60])
def test_what_a_box_says_of_itself_leaves_the_screen_to_its_models(lines: int, workers: int) -> None:
    store = {"trouble": "the disk does not answer any more " * 5}
    snapshot = broken(40, store=store, notices=[f"notice {number} " * 30 for number in range(9)])
    worker = replace(snapshot.workers[0], models=())
    snapshot = replace(snapshot, workers=tuple(replace(worker, worker=number) for number in range(workers)))
    seen = shown(view(between(None, snapshot), lines, workers=True), 100)
    assert len(seen) <= lines
    assert any(line.startswith("The store cannot be read") for line in seen)
    assert any(line.endswith("more notes in 'appliance status'") for line in seen)
    if lines >= 26:
        assert sum("UNAVAILABLE" in line for line in seen) >= lines // (8 if workers else 3)


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (0, []),
        (1, ["... 3 more notes in there"]),
        (2, ["1 so so so so so so so so so ...", "... 2 more notes in there"]),
        (
            3,
            [
                "1 so so so so so so so so so so",
                "so so so so so so so so so so ...",
                "... 2 more notes in there",
            ],
        ),
        (
            4,
            [
                "1 so so so so so so so so so so",
                "so so so so so so so so so so ...",
                "2 brief",
                "... 1 more note in there",
            ],
        ),
        (
            5,
            [
                "1 so so so so so so so so so so",
                "so so so so so so so so so so ...",
                "2 brief",
                "3 so so so so so so so so so so",
                "so",
            ],
        ),
    ],
)
def test_notes_are_the_first_ones_and_how_many_more_there_are(lines: int, expected: list[str]) -> None:
    notes = [Text("1" + " so" * 40), Text("2 brief"), Text("3" + " so" * 11)]
    assert [line.plain.rstrip() for line in fitted(notes, 33, lines, "there")] == expected


def test_a_row_of_a_short_name_stays_one_line_and_a_tail_goes_below() -> None:
    rows = [[Text("m/1"), Text("12"), Text("why " * 20)], [Text("m" * 40), Text("3"), Text()]]
    columns = (Column(title="name", left=True), Column(title="count"))
    wide, narrow = (shown(TextTable(columns=columns, rows=rows, tail="why"), width) for width in (140, 40))
    assert wide[0].split() == ["name", "count", "why"]
    assert wide[1] == "m/1" + " " * 38 + "   12 " + ("why " * 20).strip()
    assert narrow[0].split() == ["name", "count"]
    assert narrow[1] == "  why", "the title of what stands below stands below"
    assert narrow[2].split() == ["m/1", "12"]
    assert narrow[3].startswith("  why why")
    assert (narrow[-2], narrow[-1].strip()) == ("m" * 40, "3")


def test_a_word_of_a_tail_is_not_broken_where_it_fits_below_its_row() -> None:
    rows = [[Text("a"), Text("1"), Text("short ones")], [Text("b"), Text("2"), Text("x" * 36)]]
    columns = (Column(title="name", left=True), Column(title="n"))
    table = TextTable(columns=columns, rows=rows, tail="of")
    assert shown(table, 42) == ["name n of", "a    1 short ones", "b    2", "  " + "x" * 36]
    assert shown(replace(table, rows=rows[:1]), 42) == ["name n of", "a    1 short ones"]
    without = replace(table, rows=[row[:2] for row in rows])
    assert shown(without, 6) == ["name n", "a    1", "b    2"], "nothing below, and so no title of it"


def test_names_stay_on_their_rows_where_another_column_is_wider_than_the_screen() -> None:
    columns = (Column(title="of", left=True), Column(title="said", left=True))
    rows = [[Text("a"), Text("so " * 15)], [Text("two-sessions"), Text("brief")]]
    lines = shown(TextTable(columns=columns, rows=rows), 40)
    assert lines[0] == "of           said"
    assert lines[1].startswith("a            so so")
    assert lines[-1].rstrip() == "two-sessions brief"


@pytest.mark.parametrize("width", [60, 80, 120])
def test_names_of_runtimes_and_of_demands_stay_on_their_rows(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.setattr(
        runtime, "offers", lambda: [each for each in offers() if each.name in ("onnx", "tensorrt")]
    )
    monkeypatch.setattr(runtime, "lacking", lambda _: "no CUDA")
    assert main(["runtime", "list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= width
    beside = lines[0].split() == ["runtime", "usable", "package", "made", "by"]
    assert beside or lines[:2] == ["runtime  usable           package", "  made by"]
    assert beside == (width > 60)
    assert {line.split()[0] for line in lines if " built in" in line} == {"onnx", "tensorrt"}
    assert any("appliance.runtimes.tensorrt.runtime:TensorrtRuntime" in line for line in lines)
    cases = [
        Outcome(name, f"It {'keeps what it is given ' * 4}", True, "") for name in ("made", "two-sessions")
    ]
    monkeypatch.setattr(runtime, "check_runtime", lambda *_: cases)
    assert main(["runtime", "check", "onnx"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(cell_len, lines)) <= width
    assert lines[0] == "case         holds what is demanded"
    begins = [line for line in lines if " yes " in line]
    assert [line.split()[:3] for line in begins] == [["made", "yes", "It"], ["two-sessions", "yes", "It"]]


def test_releases_keep_the_title_of_who_released_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    titles = ("version", "(manifest)", "files", "from scratch", "at best", "signed by", "released")
    sizes = ("4.3 MiB", "3.1 MiB", "19.5 KiB", "key abcdef0123456789")
    monkeypatch.setenv("COLUMNS", "80")
    table(titles, [("sentence-embeddings/3", "ab" * 6, *sizes, "jane, 2025-11-28 03:20:00Z")])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["version", "files", "from", "scratch", "at", "best", "signed", "by"]
    assert lines[1] == "  released"
    assert lines[3] == "  jane, 2025-11-28 03:20:00Z"


CELLS = st.text(st.sampled_from("ab/-日 9"), max_size=70)


@given(
    rows=st.lists(st.tuples(CELLS, st.text("xyz", max_size=9), st.text("12", max_size=9), CELLS), max_size=6),
    width=st.integers(24, 150),
)
def test_nothing_is_lost_but_columns_that_may_leave(rows: Sequence[tuple[str, ...]], width: int) -> None:
    columns = (Column(title="name", left=True), Column(title="k", left=True), Column(title="n", leaves=1))
    table = TextTable(columns=columns, rows=[[Text(cell) for cell in row] for row in rows], tail="t")
    lines = shown(table, width)
    assert all(cell_len(line) <= width for line in lines)
    head = lines.pop(0).split()
    assert head in [["name", "k", *n, *t] for n in ([], ["n"]) for t in ([], ["t"])]
    if "t" not in head and any(row[3] for row in rows):
        assert lines.pop(0) == "  t"
    for row in rows:
        said = without_spaces("".join(cell for index, cell in enumerate(row) if index != 2 or "n" in head))
        found = without_spaces(lines.pop(0)) if said else ""  # blank lines went with the row before
        while found != said:
            assert said.startswith(found), (
                "a row's cells stand in their order, and before those of the next row"
            )
            found += without_spaces(lines.pop(0))
        while lines and not lines[0].strip():
            lines.pop(0)
    assert not any(map(without_spaces, lines))


@given(
    rows=st.lists(st.tuples(CELLS, st.text("xyz", max_size=9), CELLS, CELLS), max_size=9),
    width=st.integers(24, 150),
    most=st.integers(0, 30),
)
def test_lines_are_counted_as_a_screen_shows_them(
    rows: Sequence[tuple[str, ...]], width: int, most: int
) -> None:
    columns = (Column(title="name", left=True), Column(title="k", left=True))
    table = TextTable(
        columns=columns,
        rows=[[Text(name), Text(key), Text(tail)] for name, key, tail, _ in rows],
        notes=[Text(note) for _, _, _, note in rows],
        tail="t",
    )
    seen = shown(replace(table, lines=most), width)
    assert len(seen) <= most
    if most > 3 and len(seen) < len(shown(table, width)):
        assert any(line.startswith("... ") or line.endswith(" ...") for line in seen)
    assert shown(replace(table, lines=999), width) == shown(table, width)


@given(words=st.lists(st.text("ab/-9", min_size=1, max_size=9), max_size=20), width=st.integers(1, 40))
def test_a_text_of_one_style_is_set_as_rich_sets_it(words: Sequence[str], width: int) -> None:
    text = " ".join(words)
    styled = Text(text)
    styled.stylize("bold", 0, 1)
    plain = [line.plain for line in wrapped(Text(text), width)]
    assert max(map(len, plain)) <= width
    assert without_spaces("".join(plain)) == without_spaces(text)
    if all(len(word) <= width for word in words):  # else rich begins lines with blanks
        assert plain == [line.plain.rstrip() for line in wrapped(styled, width)]


@pytest.mark.parametrize("columns", ["80", "200"])
def test_a_row_of_a_large_table_costs_little(
    columns: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A fleet has thousands of devices. Counted are calls of functions, of which there were two thousand a row."""
    monkeypatch.setenv("COLUMNS", columns)
    models = ", ".join(f"model-{number}/2" for number in range(10))

    def calls(rows: int) -> int:
        profile = cProfile.Profile()
        cells = [
            (f"box-{number}", "site", "active", "30 s", "3 of 3", "yes", models) for number in range(rows)
        ]
        profile.runcall(
            table, ("device", "group", "state", "seen", "document", "there", "models"), list(cells)
        )
        assert capsys.readouterr().out.count("model-9/2") == rows
        return int(pstats.Stats(profile).total_calls)  # type: ignore[attr-defined]

    assert (calls(300) - calls(100)) / 200 < 600


def test_rows_that_no_screen_has_room_for_are_counted_and_not_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for thousands of devices sees a picture four times a second."""
    rows = [[Text(f"box-{number}"), Text("coming", "yellow")] for number in range(3000)]
    set_, lines = [], TextTable._lines

    def counted(self: TextTable, *given: Any) -> Any:
        set_.append(given)
        return lines(self, *given)

    monkeypatch.setattr(TextTable, "_lines", counted)
    seen = shown(
        TextTable(columns=(Column(title="device", left=True),), rows=rows, tail="stands", lines=20), 80
    )
    assert (len(seen), seen[-1]) == (20, "... 2982 more")
    assert len(set_) == 20


def test_what_is_said_below_a_table_is_set_for_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = Screen()
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout", screen)
    table(("device", "models"), [("box-1", "m/1")], ["box-1: m failed: its worker died twice of signal 11"])
    assert screen.getvalue().splitlines()[-2:] == ["box-1: m failed: its worker died twice", "  of signal 11"]


def without_spaces(text: str) -> str:
    return "".join(text.split())
