"""The firewall: what a graph may hold before any runtime is given it.

Rules kept here, all findings at once and each with its place in the graph: operators only of the domains that are
allowed or of functions that the model brings along; caps on nodes, operators, tensors, functions and bytes, counted
with every function expanded, because a runtime expands them; functions do not call themselves; data outside the file
lies in files that are named, inside of them, and nowhere else. Pure: who knows the files says how large they are.
``onnx_graph`` walks the file; nothing here looks at bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from appliance.errors import ArtefactError
from appliance.repository.firewall_settings import FirewallConfig
from appliance.repository.onnx_graph import FLAWS_MAX, STANDARD_DOMAIN
from appliance.repository.onnx_summary import (
    ExternalData,
    Flaw,
    FunctionKey,
    GraphFunction,
    GraphSummary,
    OperatorKey,
)

REFUSED_OPERATORS: Final[Mapping[OperatorKey, str]] = MappingProxyType(
    {
        (
            "com.microsoft",
            "EPContext",
        ): "loads a compiled engine, which is code, from where an attribute says",
        ("com.microsoft", "PythonOp"): "runs Python code",
        ("com.microsoft", "PythonOpGrad"): "runs Python code",
        ("com.microsoft", "PyOp"): "runs Python code",
        ("com.microsoft", "ATen"): "calls another library",
        ("com.microsoft", "ExternalGradient"): "calls another library",
        ("com.microsoft", "Snpe"): "holds a compiled engine, which is code",
        ("com.microsoft", "OpenVINO"): "holds a compiled engine, which is code",
        ("com.microsoft", "TensorRT"): "holds a compiled engine, which is code",
    }
)
"""Operators of allowed domains that are doors to other code, and why."""
SECTION: Final = "repository.firewall"


def graph_flaws(graph: GraphSummary, config: FirewallConfig) -> tuple[Flaw, ...]:
    """What about the graph itself is not allowed, the first FLAWS_MAX and whether there are more; none when a runtime
    may see it."""
    flaws = chain(
        graph.flaws,
        _count_flaws(graph, config),
        _operator_flaws(graph, config),
        _opset_flaws(graph, config),
        _function_flaws(graph, config),
    )
    first = tuple(islice(flaws, FLAWS_MAX))
    if next(flaws, None) is None:
        return first
    return (*first, Flaw(where="", text=f"has more flaws than these; the first {FLAWS_MAX} are told"))


def reference_flaws(graph: GraphSummary, size_of: Callable[[str], int]) -> tuple[Flaw, ...]:
    """What is wrong with the references to data outside the file. ``size_of`` gives the bytes of the file at a path
    relative to the graph's own folder, or raises ArtefactError saying why it may not be read. Of each file the first
    thing that is wrong is told."""
    sizes: dict[str, int] = {}
    wrong: dict[str, Flaw] = {}
    for reference in graph.external:
        location = reference.location
        if location in wrong:
            continue
        try:
            if location not in sizes:
                _check_location(location)
                sizes[location] = size_of(location)
            _check_piece(reference, sizes[location])
        except ArtefactError as error:
            shown = location.encode(errors="surrogateescape").decode(errors="replace")[:300]
            text = f"tensor '{reference.tensor}' has its data in '{shown}', which {error}"
            wrong[location] = Flaw(where=reference.where, text=text)
    return tuple(wrong.values())


# --- operators


def _operator_flaws(graph: GraphSummary, config: FirewallConfig) -> Iterator[Flaw]:
    allowed = {"" if domain == STANDARD_DOMAIN else domain for domain in config.domains}
    own = {function.key[:2] for function in graph.functions}
    for operator, uses in graph.operators.items():
        domain, name = operator
        where = graph.places.get(operator, "")
        times = f" ({uses} times)" if uses > 1 else ""
        if operator in REFUSED_OPERATORS:
            yield Flaw(
                where=where,
                text=f"operator '{domain}:{name}'{times} {REFUSED_OPERATORS[operator]}; it is never served",
            )
        elif domain not in allowed and operator not in own:
            yield Flaw(
                where=where,
                text=f"operator '{name[:100]}'{times} is of the domain '{domain[:100]}', which is not allowed "
                f"({SECTION}.domains), and the model has no such function",
            )
    if len(graph.operators) > config.max_operators:
        yield _over("different operators", len(graph.operators), config.max_operators, "max_operators")


def _opset_flaws(graph: GraphSummary, config: FirewallConfig) -> Iterator[Flaw]:
    yield from _opsets_flaws("", graph.opsets, config)
    for function in graph.functions:
        yield from _opsets_flaws(f"function '{shown_function(function.key)}'", function.opsets, config)


def _opsets_flaws(where: str, opsets: tuple[tuple[str, int], ...], config: FirewallConfig) -> Iterator[Flaw]:
    seen: dict[str, int] = {}
    for domain, version in opsets:
        name = "" if domain == STANDARD_DOMAIN else domain
        shown = name[:100] or STANDARD_DOMAIN
        if not 1 <= version <= config.max_opset:
            text = f"asks for operator set {version} of '{shown}'; 1 to {config.max_opset} are read"
            yield Flaw(where=where, text=f"{text} ({SECTION}.max_opset)")
        if seen.setdefault(name, version) != version:
            yield Flaw(
                where=where, text=f"asks for two operator sets of '{shown}': {seen[name]} and {version}"
            )


# --- caps


def _count_flaws(graph: GraphSummary, config: FirewallConfig) -> Iterator[Flaw]:
    inline = sum(tensor.inline_bytes for tensor in graph.tensors)
    outside = sum(tensor.data_bytes or 0 for tensor in graph.tensors if tensor.outside)
    counts = (
        ("functions", graph.function_count, config.max_functions, "max_functions"),
        ("bytes of tensors", inline + outside, config.max_weight_bytes, "max_weight_bytes"),
    )
    for what, found, limit, setting in counts:
        if found > limit:
            yield _over(what, found, limit, setting)


def _over(what: str, found: int, limit: int, setting: str) -> Flaw:
    return Flaw(where="", text=f"has {found} {what}; at most {limit} are allowed ({SECTION}.{setting})")


# --- functions


def _function_flaws(graph: GraphSummary, config: FirewallConfig) -> Iterator[Flaw]:
    """Functions that call themselves, and how many nodes there are when all calls are expanded."""
    functions: dict[FunctionKey, GraphFunction] = {}
    for function in graph.functions:
        if function.key in functions:
            yield Flaw(where=f"function '{shown_function(function.key)}'", text="is there twice")
        functions[function.key] = function
    order, circles = _innermost_first(functions)
    for key in circles:
        yield Flaw(where=f"function '{shown_function(key)}'", text="calls itself, directly or through others")
    expanded: dict[FunctionKey, int] = {}
    for key in order:
        expanded[key] = _expanded(functions[key].nodes, functions[key].calls, expanded, config.max_nodes)
    inside = sum(function.nodes for function in graph.functions)
    total = _expanded(graph.nodes - inside, graph.calls, expanded, config.max_nodes)
    if total > config.max_nodes:
        text = f"has more than {config.max_nodes} nodes with its functions expanded ({SECTION}.max_nodes)"
        yield Flaw(where="", text=text)


def _expanded(
    nodes: int, calls: Mapping[FunctionKey, int], inner: Mapping[FunctionKey, int], limit: int
) -> int:
    """Nodes with all calls expanded, counted no further than just above ``limit``."""
    total = nodes
    for key, times in calls.items():
        total += times * inner.get(key, 0)
        if total > limit:
            return limit + 1
    return total


def _innermost_first(
    functions: Mapping[FunctionKey, GraphFunction],
) -> tuple[list[FunctionKey], list[FunctionKey]]:
    """The functions with those that they call before them, and those at which a circle closes."""
    order: list[FunctionKey] = []
    circles: dict[FunctionKey, None] = {}
    open_ = 1
    state: dict[FunctionKey, int] = {}
    for first in functions:
        stack = [(first, iter(functions[first].calls))] if first not in state else []
        state.setdefault(first, open_)
        while stack:
            key, calls = stack[-1]
            for called in calls:
                if called in functions and state.get(called) == open_:
                    circles[called] = None
                elif called in functions and called not in state:
                    state[called] = open_
                    stack.append((called, iter(functions[called].calls)))
                    break
            else:
                stack.pop()
                state[key] = open_ + 1
                order.append(key)
    return order, list(circles)


def shown_function(key: FunctionKey) -> str:
    """A function's name for people."""
    return ":".join(part[:100] for part in key if part)


# --- files


def _check_location(location: str) -> None:
    """Raises ArtefactError for a path that could lead out of the model's folder, whatever lies there."""
    path = PurePosixPath(location)
    if path.is_absolute() or ".." in path.parts or "\0" in location:
        raise ArtefactError("is not a path inside the model's directory")


def _check_piece(reference: ExternalData, size: int) -> None:
    """Raises ArtefactError when the piece is not inside the file, or not what the tensor needs."""
    length = reference.length
    if length is not None and reference.needed is not None and length != reference.needed:
        raise ArtefactError(f"gives {length} bytes for it; its type and shape need {reference.needed}")
    end = reference.offset + (length if length is not None else reference.needed or 0)
    if end > size:
        raise ArtefactError(f"has {size} bytes and not the {end} that the tensor needs")
