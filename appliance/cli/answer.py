"""The answer of ``appliance infer``: for a person a table, with bars for classes, and plain values for JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from appliance.cli.array import decode, nested
from appliance.cli.failure import printable
from appliance.cli.oip_client import Reply
from appliance.cli.text_table import PIPE_CELLS
from appliance.domain.inference import OutputTensor

SHOWN_VALUES = 8
SHOWN_ROWS = 8
BAR_CELLS = 24


@dataclass(frozen=True, slots=True, kw_only=True)
class TopClass:
    """One class of a classification answer."""

    score: float
    index: int
    label: str

    @classmethod
    def parse(cls, word: str) -> TopClass:
        """Read ``score:index`` or ``score:index:label``."""
        score, index, *label = word.split(":", 2)
        return cls(score=float(score), index=int(index), label=label[0] if label else "")


def top_classes(output: OutputTensor) -> list[list[TopClass]]:
    """Rows of classes, best first; an output without a batch dimension is one row."""
    words = [TopClass.parse(word) for word in decode(bytes(output.data), output.datatype)]
    width = max(output.shape[-1], 1) if output.shape else 1
    return [words[start : start + width] for start in range(0, len(words), width)]


def as_json(reply: Reply, classes: Mapping[str, int]) -> dict[str, Any]:
    """The answer as plain JSON values; numbers that JSON does not have become texts."""
    return {
        "model": reply.model,
        "version": reply.version,
        "milliseconds": round(reply.milliseconds, 3),
        "outputs": [_output_json(output, classes.get(output.name, 0)) for output in reply.outputs],
    }


def _output_json(output: OutputTensor, asked: int) -> dict[str, Any]:
    document: dict[str, Any] = {
        "name": output.name,
        "datatype": output.datatype.wire,
        "shape": list(output.shape),
    }
    if asked:
        document["classes"] = [
            [{"score": _json_value(top.score), "index": top.index, "label": top.label} for top in row]
            for row in top_classes(output)
        ]
    else:
        values = [_json_value(value) for value in decode(bytes(output.data), output.datatype)]
        document["data"] = nested(values, output.shape) if values else []
    return document


def _json_value(value: Any) -> Any:
    return str(value) if isinstance(value, float) and not isfinite(value) else value


def show(console: Console, reply: Reply, classes: Mapping[str, int]) -> None:
    """Print the answer as a table; values stand below their outputs where they have no room beside them."""
    title = Text(printable(f"{reply.model} version {reply.version} answered in {reply.milliseconds:.1f} ms"))
    rows = [(_about(output, asked), _values(output, asked)) for output, asked in _asked(reply, classes)]
    table = Table(title=title, title_justify="left", title_style="")
    for index, heading in enumerate(("output", "datatype", "shape")):
        widest = max((about[index].cell_len for about, _ in rows), default=0)
        table.add_column(heading, no_wrap=True, vertical="top", min_width=widest)
    table.add_column("values")
    for about, values in rows:
        table.add_row(*about, values)
    any_width = console.options.update(width=PIPE_CELLS)
    if Measurement.get(console, any_width, table).minimum <= console.width:
        console.print(table)
        return
    console.print(title)
    for about, values in rows:
        console.print(Text("  ").join(about), Padding(values, (0, 0, 0, 2)), sep="\n")


def _asked(reply: Reply, classes: Mapping[str, int]) -> Iterator[tuple[OutputTensor, int]]:
    return ((output, classes.get(output.name, 0)) for output in reply.outputs)


def _about(output: OutputTensor, asked: int) -> tuple[Text, Text, Text]:
    """Name, datatype and shape; classes are words on the wire, which says nothing to a person."""
    words = (
        ("classes", f"top {output.shape[-1]}") if asked else (output.datatype.wire, str(list(output.shape)))
    )
    return Text(printable(output.name)), Text(words[0]), Text(words[1])


def _values(output: OutputTensor, asked: int) -> RenderableType:
    return _classes_view(top_classes(output)) if asked else Text(_abbreviated(output))


def _classes_view(rows: Sequence[Sequence[TopClass]]) -> RenderableType:
    lines: list[RenderableType] = [_bars(row) for row in rows[:SHOWN_ROWS]]
    if len(rows) > SHOWN_ROWS:
        lines.append(Text(f"... {len(rows) - SHOWN_ROWS} more rows"))
    return Group(*lines)


def _bars(row: Sequence[TopClass]) -> Table:
    """Bars are shares of 1 for probabilities, else of the best score."""
    grid = Table.grid(padding=(0, 1))
    grid.add_column(overflow="fold")
    for _ in ("bar", "score"):
        grid.add_column(no_wrap=True)
    scores = [top.score for top in row]
    full = 1.0 if all(0 <= score <= 1 for score in scores) else max(*scores, 1e-9)
    for top in row:
        cells = round(BAR_CELLS * min(max(top.score / full, 0.0), 1.0))
        bar = Text("\u2588" * cells, style="green") + Text("\u2591" * (BAR_CELLS - cells), style="dim")
        grid.add_row(Text(printable(top.label) or f"class {top.index}"), bar, f"{top.score:.6g}")
    return grid


def _abbreviated(output: OutputTensor) -> str:
    values = decode(bytes(output.data), output.datatype)
    more = [f"... {len(values) - SHOWN_VALUES} more"] if len(values) > SHOWN_VALUES else []
    return ", ".join([*_spelled(values[:SHOWN_VALUES]), *more])


def _spelled(values: Sequence[Any]) -> Iterator[str]:
    for value in values:
        yield f"{value:.6g}" if isinstance(value, float) else repr(value)
