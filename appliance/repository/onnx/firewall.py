"""The firewall: what a graph may hold before any runtime is given it.

Rules kept here, all findings at once and each with its place in the graph: operators only of the domains that are
allowed or of functions that the model brings along; caps on nodes, operators, tensors, functions and bytes; nodes,
tensors and bytes are counted with every function expanded and sparse tensors dense, because a runtime does both while
it loads; functions do not call themselves; data outside the file lies in files that are named, inside of them, and
nowhere else. Pure: how large the files are is an argument.
``graph`` walks the file; nothing here looks at bytes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Final

from appliance.config.repository import FirewallConfig, RepositoryConfig
from appliance.domain.binding import extended
from appliance.domain.errors import ArtefactError
from appliance.domain.model import GraphSize
from appliance.repository.onnx.summary import (
    ELEMENTS_MAX,
    FLAWS_MAX,
    STANDARD_DOMAIN,
    ExternalData,
    Flaw,
    FunctionKey,
    GraphFunction,
    GraphSummary,
    OperatorKey,
    standard,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphLimits(FirewallConfig):
    """The ``[repository.firewall]`` section with constants of its own, each far above real models and far below what
    hurts the daemon that reads them."""

    max_opset: int = 100
    """Highest version of an operator set: ONNX is at a quarter of it after ten years."""
    max_graph_bytes: int = (1 << 31) - 1
    """Largest ONNX file: what protobuf can hold."""
    max_operators: int = 2_000
    """Most different operators: ONNX and ONNX Runtime together define some 400."""
    max_depth: int = 32
    """Deepest nesting of graphs in attributes: each level takes a frame of the reader's stack."""
    max_functions: int = 10_000
    """Most functions of the model's own, and most training graphs: exporters write one for each kind of layer."""
    max_ports: int = 4_096
    """Most inputs, and most outputs: four times what a request may name."""
    max_name_bytes: int = 4_096
    """Longest name in a graph: exporters join a path of module names, some hundred bytes."""


def graph_limits(settings: RepositoryConfig) -> GraphLimits:
    """What holds with these settings."""
    return extended(GraphLimits, settings.firewall)


def graph_flaws(graph: GraphSummary, config: GraphLimits) -> tuple[Flaw, ...]:
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


def _operator_flaws(graph: GraphSummary, config: GraphLimits) -> Iterator[Flaw]:
    allowed = set(map(standard, config.domains))
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
        yield _over("different operators", len(graph.operators), config.max_operators)


def _opset_flaws(graph: GraphSummary, config: GraphLimits) -> Iterator[Flaw]:
    yield from _opsets_flaws("", graph.opsets, config)
    for function in graph.functions:
        yield from _opsets_flaws(f"function '{_shown_function(function.key)}'", function.opsets, config)


def _opsets_flaws(where: str, opsets: Iterable[tuple[str, int]], config: GraphLimits) -> Iterator[Flaw]:
    seen: dict[str, int] = {}
    for domain, version in opsets:
        name = standard(domain)
        shown = name[:100] or STANDARD_DOMAIN
        if not 1 <= version <= config.max_opset:
            text = f"asks for operator set {version} of '{shown}'; 1 to {config.max_opset} are read"
            yield Flaw(where=where, text=text)
        if seen.setdefault(name, version) != version:
            yield Flaw(
                where=where, text=f"asks for two operator sets of '{shown}': {seen[name]} and {version}"
            )


# --- caps


def _count_flaws(graph: GraphSummary, config: GraphLimits) -> Iterator[Flaw]:
    held = sum(tensor.held_bytes for tensor in graph.tensors)
    if graph.function_count > config.max_functions:
        yield _over("functions", graph.function_count, config.max_functions)
    if held > config.max_weight_bytes:
        yield _over("bytes of tensors", held, config.max_weight_bytes, f" ({SECTION}.max_weight_bytes)")


def _over(what: str, found: int, limit: int, setting: str = "") -> Flaw:
    return Flaw(where="", text=f"has {found} {what}; at most {limit} are allowed{setting}")


# --- functions


def _function_flaws(graph: GraphSummary, config: GraphLimits) -> Iterator[Flaw]:
    """Functions that call themselves, and what there is when all calls are expanded."""
    functions: dict[FunctionKey, GraphFunction] = {}
    for function in graph.functions:
        if function.key in functions:
            yield Flaw(where=f"function '{_shown_function(function.key)}'", text="is there twice")
        functions[function.key] = function
    order, circles = _innermost_first(functions)
    for key in circles:
        yield Flaw(
            where=f"function '{_shown_function(key)}'", text="calls itself, directly or through others"
        )
    inner = [functions[key] for key in order]
    yield from _copy_flaws(graph, inner, config)
    yield from _memory_flaws(graph, inner, config)


def _copy_flaws(graph: GraphSummary, inner: list[GraphFunction], config: GraphLimits) -> Iterator[Flaw]:
    """Too many nodes or tensors with all calls expanded."""
    nodes = _expanded(graph, inner, graph.nodes, lambda function: function.nodes, config.max_nodes)
    tensors = _expanded(
        graph, inner, len(graph.tensors), lambda function: len(function.tensors), config.max_tensors
    )
    counts = (
        ("nodes", nodes, config.max_nodes, "max_nodes"),
        ("tensors", tensors, config.max_tensors, "max_tensors"),
    )
    for what, found, limit, setting in counts:
        if found > limit:
            text = f"has more than {limit} {what} with its functions expanded ({SECTION}.{setting})"
            yield Flaw(where="", text=text)


def _memory_flaws(graph: GraphSummary, inner: list[GraphFunction], config: GraphLimits) -> Iterator[Flaw]:
    """Too many bytes with all calls expanded and sparse tensors dense: in all, or beyond what there is in files. What
    stands in functions that are never called is no part of either."""
    idle = set(_not_called(graph, inner))
    held = sum(tensor.held_bytes for tensor in graph.tensors) - sum(
        tensor.held_bytes for function in inner if function.key in idle for tensor in function.tensors
    )
    most, beyond = config.max_weight_bytes, held + config.max_expanded_bytes
    whole = sum(tensor.memory_bytes for tensor in graph.tensors)
    found = _expanded(graph, inner, whole, _memory_bytes, max(most, beyond))
    how = "with its functions expanded and its sparse tensors dense"
    if found > most >= held:
        yield Flaw(where="", text=f"has more than {most} bytes of tensors {how} ({SECTION}.max_weight_bytes)")
    if found > beyond:
        text = f"needs over {config.max_expanded_bytes} bytes more than its files hold, {how}"
        yield Flaw(where="", text=f"{text} ({SECTION}.max_expanded_bytes)")


def _memory_bytes(function: GraphFunction) -> int:
    return sum(tensor.memory_bytes for tensor in function.tensors)


def graph_size(graph: GraphSummary) -> GraphSize:
    """What a graph without flaws comes to in a runtime."""
    functions = {function.key: function for function in graph.functions}
    order, _ = _innermost_first(functions)
    inner = [functions[key] for key in order]
    whole = sum(tensor.memory_bytes for tensor in graph.tensors)
    return GraphSize(
        tensor_bytes=_expanded(graph, inner, whole, _memory_bytes, ELEMENTS_MAX),
        nodes=_expanded(graph, inner, graph.nodes, lambda function: function.nodes, ELEMENTS_MAX),
    )


def _not_called(graph: GraphSummary, inner: list[GraphFunction]) -> Iterator[FunctionKey]:
    """Functions that expansion never comes to; ``inner`` has those that are called first."""
    called = set(graph.calls)
    for function in reversed(inner):
        if function.key in called:
            called.update(function.calls)
        else:
            yield function.key


def _expanded(
    graph: GraphSummary,
    inner: list[GraphFunction],
    whole: int,
    measure: Callable[[GraphFunction], int],
    limit: int,
) -> int:
    """What ``measure`` gives of functions, with all calls expanded, counted no further than just above ``limit``.
    ``whole`` is all of it in the file; ``inner`` has the functions that are called first."""
    found: dict[FunctionKey, int] = {}
    for function in inner:
        found[function.key] = _with_calls(measure(function), function.calls, found, limit)
    outside = whole - sum(map(measure, graph.functions))
    return _with_calls(outside, graph.calls, found, limit)


def _with_calls(
    own: int, calls: Mapping[FunctionKey, int], inner: Mapping[FunctionKey, int], limit: int
) -> int:
    """What there is with the calls expanded, counted no further than just above ``limit``."""
    total = own
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


def _shown_function(key: FunctionKey) -> str:
    """A function's name for people."""
    return ":".join(part[:100] for part in key if part)


# --- files


def _check_location(location: str) -> None:
    """Raise ArtefactError for a path that could lead out of the model's folder, whatever lies there."""
    path = PurePosixPath(location)
    if path.is_absolute() or ".." in path.parts or "\0" in location:
        raise ArtefactError("is not a path inside the model's directory")


def _check_piece(reference: ExternalData, size: int) -> None:
    """Raise ArtefactError when the piece is not inside the file, or not what the tensor needs."""
    length = reference.length
    if length is not None and reference.needed is not None and length != reference.needed:
        raise ArtefactError(f"gives {length} bytes for it; its type and shape need {reference.needed}")
    end = reference.offset + (length if length is not None else reference.needed or 0)
    if end > size:
        raise ArtefactError(f"has {size} bytes and not the {end} that the tensor needs")
