"""The data flow of a graph as lines for people: inputs at the top, outputs at the bottom, a line for each stage, lanes
for the values between them, and beside each stage the bytes of the weights that it is the first to take.

Graphs inside nodes and functions are drawn below, set in. Names that hold control characters are escaped. Unless all is
asked for, the middle of what is long is passed over, and at most LINES_MAX lines come.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import islice
from typing import Final, NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from appliance.cli.failure import printable
from appliance.cli.lanes import END, MARK, Lanes, Line, Row
from appliance.cli.store_session import bytes_text
from appliance.cli.text_table import wrapped
from appliance.package.stages import Network, Stage
from appliance.repository.data_flow import DataFlow, FlowGraph
from appliance.repository.graph_ports import element_name
from appliance.repository.onnx_summary import FunctionKey, GraphPort, GraphTensor, OperatorKey, PortKind

LINES_MAX: Final = 1000
HEAD, TAIL = 80, 40
"""Of a long graph so many stages are shown at its beginning and at its end; inside of others half of that."""
BLOCK_HEAD, BLOCK_TAIL = 28, 8
"""Of a block so many operators are named."""
ENDS_MAX: Final = 24
"""Inputs, and outputs, that have lines of their own."""
FUNCTIONS_MAX: Final = 20
LANES_MAX: Final = 16
WEIGHTS_SHOWN: Final = 3
NAMES_SHOWN: Final = 3
SIZE_CELLS: Final = 14
SIZE_SHOWN: Final = 1024
"""Fewer bytes are shown only where they are a share worth a word."""
INSIDE_CELLS: Final = 40
"""A drawing inside another one gets at least so many, or is left out."""


class Detail(StrEnum):
    """How much of a graph is drawn."""

    NONE = "none"
    FOLDED = "folded"
    BLOCKS = "blocks"
    FULL = "full"


class _Drawn(NamedTuple):
    """A line of the drawing, and what is set in below it."""

    line: Line
    text: Text
    weight_bytes: int = 0
    stage: Stage | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowDrawing:
    """To be printed by rich."""

    flow: DataFlow
    detail: Detail

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        """See rich's console protocol."""
        yield from self.texts(options.max_width)

    def texts(self, width: int) -> Iterator[Text]:
        """Each is one line of a screen of ``width`` cells."""
        lines = self._all(width)
        if self.detail is Detail.FULL:
            yield from lines
            return
        yield from islice(lines, LINES_MAX)
        if next(lines, None) is not None:
            yield Text(f"... cut off after {LINES_MAX} lines; '--graph full' draws all", "dim")

    def _all(self, width: int) -> Iterator[Text]:
        network = Network(self.flow.main, constants=self.detail is Detail.FULL)
        yield from self._graph(network, width, 0)
        functions = self.flow.functions
        shown = functions if self.detail is Detail.FULL else functions[:FUNCTIONS_MAX]
        for function in shown:
            inner = Network(function.graph, constants=self.detail is Detail.FULL)
            yield Text()
            yield Text(f"function {function_text(function.key)} ({_nodes_text(function.graph)})", "italic")
            yield from self._graph(inner, width, 1)
        if len(functions) > len(shown):
            yield Text(f"... {len(functions) - len(shown)} more functions", "dim")

    def _graph(self, network: Network, width: int, depth: int) -> Iterator[Text]:
        """A whole graph."""
        stages = network.stages(fold=self.detail is not Detail.FULL)
        graph = network.graph
        total = sum(stage.weight_bytes for stage in stages)
        ends = (_ends(graph.inputs), _ends(graph.outputs))
        yield from self._drawing(network, stages, ends, total, width, depth)

    def _drawing(
        self, network: Network, stages: Sequence[Stage], ends: _Ends, total: int, width: int, depth: int
    ) -> Iterator[Text]:
        """Stages between inputs and outputs. ``total`` bytes of weights are what shares are shown of."""
        drawn = list(self._lines(network, stages, ends, depth))
        last_uses = {name: number for number, each in enumerate(drawn) for name in each.line.takes}
        most = max(min(width // 8, LANES_MAX), 1)
        gutter = 1 + max(
            (len(row.text) for row in Lanes(last_uses, most).rows(each.line for each in drawn)), default=0
        )
        sized = SIZE_CELLS * (total > 0)
        rows = Lanes(last_uses, most).rows(each.line for each in drawn)
        for each, row in zip(drawn, rows, strict=True):
            yield from _set(
                row, gutter, _size(each.weight_bytes, total)[:sized], _with_unseen(each, row), width
            )
            if each.stage is not None:
                yield from self._inside(network, each.stage, row.below.ljust(gutter), total, width, depth)

    def _lines(self, network: Network, stages: Sequence[Stage], ends: _Ends, depth: int) -> Iterator[_Drawn]:
        full = self.detail is Detail.FULL
        inputs, outputs = ends
        most = len(inputs) + len(outputs) if full else ENDS_MAX
        for name, text in inputs[:most]:
            yield _Drawn(Line((), (name,), END), text)
        if rest := inputs[most:]:
            text = Text(f"... {len(rest)} more", "dim")
            yield _Drawn(Line((), tuple(name for name, _ in rest), END), text)
        if not full:
            share = 2 if depth else 1
            stages = network.shortened(stages, HEAD // share, TAIL // share)
        for stage in stages:
            yield _Drawn(
                Line(network.local(stage.takes), stage.gives, "⋮" if stage.passed else MARK),
                self._stage(network, stage),
                stage.weight_bytes,
                stage,
            )
        for name, text in outputs[:most]:
            wrong = Text("  nothing makes it", "red") if network.unmade(name) else Text()
            yield _Drawn(Line((name,), (), END), text + wrong)
        if rest := outputs[most:]:
            text = Text(f"... {len(rest)} more", "dim")
            yield _Drawn(Line(tuple(name for name, _ in rest), (), END), text)

    def _stage(self, network: Network, stage: Stage) -> Text:
        if stage.passed:
            common = [
                f"{count} {operator_text(key)}" for key, count in network.operators(stage).most_common(4)
            ]
            text = Text(f"... {len(stage.nodes)} nodes: {', '.join(common)}, ...", "dim")
        elif stage.count > 1:
            text = Text.assemble((f"{stage.count} x ", "bold"), f"[{_block_text(network, stage)}]")
            if len(stage.nodes) > 1:
                text += Text(f" ({len(stage.nodes)} nodes each)", "dim")
        else:
            text = self._node(network, stage)
        if around := [name for name in stage.takes if network.source(name) == "around"]:
            text += Text(f"  from around it: {_listed(around)}", "dim")
        for problem in list(dict.fromkeys(stage.problems))[:NAMES_SHOWN]:
            text += Text(f"  {printable(problem)}", "red")
        return text

    def _node(self, network: Network, stage: Stage) -> Text:
        node = network.graph.nodes[stage.nodes[0]]
        text = Text(operator_text(node.operator), "bold")
        names = [*stage.weights, *stage.again]
        shown = [tensor_text(network.tensors[name]) for name in names[:WEIGHTS_SHOWN]]
        if len(names) > WEIGHTS_SHOWN:
            shown.append(f"{len(names) - WEIGHTS_SHOWN} more")
        if node.is_constant:
            shown = [tensor_text(tensor) for tensor in node.tensors]
        if shown:
            text += Text(f"  {', '.join(shown)}")
        ports = [port for port in map(network.graph.port, node.gives) if port is not None]
        types = [found for found in map(type_text, ports) if found]
        if types:
            text += Text(f"  -> {', '.join(types[:NAMES_SHOWN])}", "cyan")
        if self.detail is Detail.FULL and node.name:
            text += Text(f"  {printable(node.name)}", "dim")
        return text

    def _inside(
        self, network: Network, stage: Stage, bars: str, total: int, width: int, depth: int
    ) -> Iterator[Text]:
        """What is drawn below a stage: one of its blocks, or the graphs inside its node."""
        left = width - len(bars) - 2
        inner: list[tuple[str, Iterator[Text]]] = []
        if stage.count > 1 and self.detail is Detail.BLOCKS:
            takes, gives = network.block(stage)
            ends = (_values(network.graph, takes), _values(network.graph, gives))
            drawing = self._drawing(network, stage.inner, ends, total, left, depth + 1)
            inner.append((f"the first of {stage.count}, {len(stage.nodes)} nodes", drawing))
        elif stage.count == 1 and not stage.passed:
            for name, graph in network.graph.nodes[stage.nodes[0]].graphs:
                within = Network(graph, network.inside, constants=self.detail is Detail.FULL)
                inner.append((f"{name}, {_nodes_text(graph)}", self._graph(within, left, depth + 1)))
        for title, lines in inner:
            head = Text(printable(title), "italic")
            if left < INSIDE_CELLS:
                head += Text("; the screen is too narrow to draw it", "dim")
            for line in wrapped(head, max(left, 1)):
                yield Text(f"{bars}┆ ") + line
            for line in lines if left >= INSIDE_CELLS else ():
                yield Text(f"{bars}┆ ") + line


_End = tuple[str, Text]
_Ends = tuple[Sequence[_End], Sequence[_End]]
"""Names of inputs and of outputs, and what is said of each."""


def _ends(ports: Sequence[GraphPort]) -> list[_End]:
    return [(port.name, _end_text(port.name, port)) for port in ports]


def _values(graph: FlowGraph, names: Sequence[str]) -> list[_End]:
    return [(name, _end_text(name, graph.port(name))) for name in names]


def _end_text(name: str, port: GraphPort | None) -> Text:
    known = "" if port is None else type_text(port)
    return Text.assemble((printable(name), "bold"), (f"  {known}" if known else "", "cyan"))


def _set(row: Row, gutter: int, size: str, text: Text, width: int) -> Iterator[Text]:
    """A line, on as many lines of the screen as it takes."""
    used = gutter + len(size)
    lines = [text] if used + text.cell_len <= width else wrapped(text, max(width - used, 1))
    yield Text.assemble(row.text.ljust(gutter), (size, "green"), lines[0])
    for more in lines[1:]:
        yield Text(row.below.ljust(used)) + more


def _with_unseen(drawn: _Drawn, row: Row) -> Text:
    if not row.unseen or drawn.line.mark == END:
        return drawn.text
    return drawn.text + Text(f"  without a lane: {_listed(row.unseen)}", "dim")


def _listed(names: Sequence[str]) -> str:
    """The first of them."""
    return ", ".join([*map(printable, names[:NAMES_SHOWN]), *["..."] * (len(names) > NAMES_SHOWN)])


def _size(count: int, total: int) -> str:
    """The bytes of a stage and their share, as wide as the column."""
    share = round(100 * count / total) if count else 0
    if not share and count < SIZE_SHOWN:
        return " " * SIZE_CELLS
    return f"{bytes_text(count):>8} {f'{share}%' if share else '':>3}  "


def _block_text(network: Network, stage: Stage) -> str:
    """The stages of a block, by their operators; of many the first and the last."""
    words = [
        f"{inner.count} x [{_block_text(network, inner)}]"
        if inner.count > 1
        else operator_text(network.graph.nodes[inner.nodes[0]].operator)
        for inner in stage.inner
    ]
    if len(words) > BLOCK_HEAD + BLOCK_TAIL + 1:
        words[BLOCK_HEAD:-BLOCK_TAIL] = ["..."]
    return " ".join(words)


def _nodes_text(graph: FlowGraph) -> str:
    return f"{len(graph.nodes)} node{'s' * (len(graph.nodes) != 1)}"


def operator_text(key: OperatorKey) -> str:
    """An operator, with its domain where that is not ONNX's own."""
    return printable(":".join(filter(None, key)))


def function_text(key: FunctionKey) -> str:
    """A function's name."""
    return printable(":".join(filter(None, key)))


def type_text(port: GraphPort) -> str:
    """What the file says of a value's type; "" when it says nothing."""
    if port.kind is PortKind.NOTHING:
        return ""
    if port.kind is not PortKind.TENSOR:
        return port.kind.name.lower().replace("_", " ")
    if port.dims is None:
        return element_name(port.element_type)
    sizes = ["?" if size is None else printable(str(size)) for size in port.dims]
    return f"{element_name(port.element_type)} [{', '.join(sizes)}]"


def tensor_text(tensor: GraphTensor) -> str:
    """A weight's type and shape."""
    if not tensor.element_type:
        return "constant"
    return f"{element_name(tensor.element_type)} {list(tensor.dims)}"
