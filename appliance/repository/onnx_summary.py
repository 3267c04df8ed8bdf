"""What was read of an ONNX file: its inputs and outputs, operators, tensors and functions; values only.

``flaws`` are what can only be wrong: seen while reading, told by the firewall together with what breaks its rules.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final

ELEMENT_BITS: Final[Mapping[int, int]] = MappingProxyType(
    {
        1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16,
        17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2,
    }
)  # fmt: skip
"""Bits of an element by ONNX's number of its type; strings and what is not known have none."""
STRING_ELEMENT: Final = 8
ELEMENTS_MAX: Final = 1 << 62


class PortKind(Enum):
    """What stands at an input or output; TypeProto's field number of it."""

    NOTHING = 0
    TENSOR = 1
    SEQUENCE = 4
    MAP = 5
    OPAQUE = 7
    SPARSE_TENSOR = 8
    OPTIONAL = 9


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphPort:
    """A graph input or output. ``element_type`` is ONNX's number (0: not said). ``dims`` is None when the
    graph does not say the rank; a dimension is a number, a symbol, or None when nothing is known of it."""

    name: str
    kind: PortKind
    element_type: int
    dims: tuple[int | str | None, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExternalData:
    """Where a tensor says its bytes are: a path relative to the model file, and a piece of it. ``length``
    None: as many bytes as the tensor's shape needs. ``needed`` is what its type and shape need, None when that cannot
    be told. ``where`` says to a person where in the graph the tensor stands."""

    tensor: str
    location: str
    offset: int
    length: int | None
    needed: int | None = None
    where: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphTensor:
    """A tensor that stands anywhere in the file. ``inline_bytes`` lie in the file itself; ``outside`` says that its
    data lies elsewhere."""

    name: str
    element_type: int
    dims: tuple[int, ...]
    inline_bytes: int
    outside: bool

    @property
    def data_bytes(self) -> int | None:
        """Bytes that the type and the shape need; None when that cannot be told."""
        bits = ELEMENT_BITS.get(self.element_type)
        if bits is None:
            return None
        count = 1
        for size in self.dims:
            if size < 0:
                return None
            count = min(count * size, ELEMENTS_MAX)
        return (count * bits + 7) // 8


OperatorKey = tuple[str, str]
"""Domain and type of an operator; the domain "" is the standard one, however it was written."""
FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a function that the model brings along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFunction:
    """A function that the model brings along: how many nodes it has, subgraphs included, and what they call."""

    key: FunctionKey
    nodes: int
    calls: Mapping[FunctionKey, int]
    opsets: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """Something that is wrong in the graph, and where."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.text} ({self.where})" if self.where else self.text


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSummary:
    """An ONNX file without its weights. ``opsets`` are (domain, version) as written. ``operators`` say how often each
    is used anywhere, functions and training graphs included, and ``places`` where first. An input named in
    ``initializers`` has a default. ``tensors`` are all tensors, in file order. ``calls`` are what the nodes outside
    functions call, as functions of the model might be named."""

    ir_version: int
    opsets: tuple[tuple[str, int], ...]
    inputs: tuple[GraphPort, ...]
    outputs: tuple[GraphPort, ...]
    initializers: frozenset[str]
    operators: Mapping[OperatorKey, int]
    external: tuple[ExternalData, ...]
    places: Mapping[OperatorKey, str] = field(default_factory=dict)
    tensors: tuple[GraphTensor, ...] = ()
    nodes: int = 0
    depth: int = 0
    functions: tuple[GraphFunction, ...] = ()
    function_count: int = 0
    calls: Mapping[FunctionKey, int] = field(default_factory=dict)
    file_bytes: int = 0
    flaws: tuple[Flaw, ...] = ()
