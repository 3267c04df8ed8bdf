"""What the command line shows of a status document or a trace: whoever wrote it moves no cursor and forges no line."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from hypothesis import strategies as st
from rich.console import Console

from appliance.cli.activity import between
from appliance.cli.activity_view import as_json as shown_json
from appliance.cli.activity_view import view
from appliance.cli.failure import CommandFailed
from appliance.cli.snapshot import parse
from appliance.cli.trace import traced_request
from appliance.cli.trace import view as view_of_trace
from tests.cli.test_trace import line
from tests.frontend.http.engine_figures import made_up_snapshot, status_document
from tests.fuzz.boundary import Boundary, Judge, RuleBroken, check_shown
from tests.fuzz.mutations import HOSTILE, TEXTS, as_json, changed, changed_at, changed_bytes, places

URL = "127.0.0.1:1"
MARK = "\x1b]0;t\x07\nforged \N{RIGHT-TO-LEFT OVERRIDE}[bold]\x9b2J"
STATUS: Any = status_document(made_up_snapshot())
TRACE: Any = json.loads(line("a"))
TREES = {"status": STATUS, "trace": TRACE}


def _marked(tree: Any) -> Any:
    """Every text in it is hostile."""
    for place in places(tree):
        found = tree
        for key in place:
            found = found[key]
        if isinstance(found, str) and not found.isdecimal():
            tree = changed_at(tree, place, lambda _: (MARK,))
    return tree


@st.composite
def documents(draw: st.DrawFn) -> bytes:
    """The kind of a document, and one with odd values."""
    kind = draw(st.sampled_from(sorted(TREES)))
    tree = draw(st.sampled_from((TREES[kind], _marked(TREES[kind]))))
    if draw(st.integers(0, 3)) == 0:
        return kind.encode() + b"\n" + draw(changed_bytes([json.dumps(tree).encode()]))
    hostile = draw(st.sampled_from((HOSTILE, st.sampled_from(TEXTS))))
    return kind.encode() + b"\n" + as_json(draw(changed([tree], hostile)))


def judge(case: bytes) -> None:
    """Show it, and look at what is shown."""
    kind, _, document = case.partition(b"\n")
    console = Console(file=io.StringIO(), width=120, color_system=None)
    try:
        if kind == b"trace":
            traced = traced_request(document.decode(errors="replace"))
            if traced is not None:
                console.print(view_of_trace(traced))
        else:
            found = between(None, parse(document, URL))
            console.print(view(found, workers=True, rates=True))
            json.dumps(shown_json(found))
    except CommandFailed as error:
        _check(str(error))
    assert isinstance(console.file, io.StringIO)
    _check(console.file.getvalue())


def _check(text: str) -> None:
    check_shown(text)
    if any(each.startswith("forged") for each in text.split("\n")):
        raise RuleBroken(f"shows a line that is none of its own: {text[:1000]}")


@contextmanager
def opened() -> Iterator[Judge]:
    yield judge


BOUNDARY = Boundary(kept="status_documents", cases=documents(), opened=opened, examples=300)
