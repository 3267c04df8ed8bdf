"""What was read of an ONNX file: its inputs and outputs, operators, tensors and functions, and the way to each.

``flaws`` are what can only be wrong: seen while reading, told by the firewall together with what breaks its rules.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType
from typing import Final, NamedTuple

ELEMENT_BITS: Final[Mapping[int, int]] = MappingProxyType(
    {
        1: 32, 2: 8, 3: 8, 4: 16, 5: 16, 6: 32, 7: 64, 9: 8, 10: 16, 11: 64, 12: 32, 13: 64, 14: 64, 15: 128, 16: 16,
        17: 8, 18: 8, 19: 8, 20: 8, 21: 4, 22: 4, 23: 4, 24: 8, 25: 2, 26: 2,
    }
)  # fmt: skip
"""Bits of an element by ONNX's number of its type; strings and what is not known have none."""
STRING_ELEMENT: Final = 8
STRING_BITS: Final = 256
"""Bits of a string of a runtime's, its text aside: libstdc++ has 32 bytes."""
ELEMENTS_MAX: Final = 1 << 62
STANDARD_DOMAIN: Final = "ai.onnx"
FLAWS_MAX: Final = 100
SHOWN_NAME_CHARACTERS: Final = 40
SHOWN_STEPS_MAX: Final = 12


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
    data lies elsewhere. ``dense_dims``: it holds the values of a sparse tensor of that shape, which runtimes make
    dense."""

    name: str
    element_type: int
    dims: tuple[int, ...]
    inline_bytes: int
    outside: bool
    dense_dims: tuple[int, ...] | None = None

    @property
    def data_bytes(self) -> int | None:
        """Bytes that the type and the shape need; None when that cannot be told, or no tensor has such a shape."""
        return _shape_bytes(self.dims, ELEMENT_BITS.get(self.element_type))

    @property
    def held_bytes(self) -> int:
        """Bytes that files hold for it: this one, or the one that its data lies in."""
        return self.inline_bytes + ((self.data_bytes or 0) if self.outside else 0)

    @property
    def memory_bytes(self) -> int:
        """Bytes that it takes in a runtime at least, and no fewer than files hold for it. A shape that no tensor has
        counts nothing: it is a flaw of its own."""
        bits = STRING_BITS if self.element_type == STRING_ELEMENT else ELEMENT_BITS.get(self.element_type)
        full = _shape_bytes(self.dims, bits) or 0
        dense = 0 if self.dense_dims is None else _shape_bytes(self.dense_dims, bits) or 0
        return max(self.held_bytes, full, dense)


def _shape_bytes(dims: tuple[int, ...], bits: int | None) -> int | None:
    """Bytes of elements of ``bits`` each in this shape; None when that cannot be told, or no tensor has it."""
    count = math.prod(dims)
    if bits is None or count > ELEMENTS_MAX or any(size < 0 for size in dims):
        return None
    return (count * bits + 7) // 8


OperatorKey = tuple[str, str]
"""Domain and type of an operator; the domain "" is the standard one, however it was written."""
FunctionKey = tuple[str, str, str]
"""Domain, name and overload of a function that the model brings along."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphFunction:
    """A function that the model brings along: how many nodes it has, subgraphs included, what they call, and the
    tensors in all of it."""

    key: FunctionKey
    nodes: int
    calls: Mapping[FunctionKey, int]
    tensors: tuple[GraphTensor, ...] = ()
    opsets: tuple[tuple[str, int], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Flaw:
    """Something that is wrong in the graph, and where."""

    where: str
    text: str

    def __str__(self) -> str:
        return f"{self.text} ({self.where})" if self.where else self.text


@dataclass(slots=True, kw_only=True)
class GraphSummary:
    """An ONNX file without its weights; grows while the file is walked, and is a value after that. ``opsets`` are
    (domain, version) as written. ``operators`` say how often each is used anywhere, functions and training graphs
    included, and ``places`` where first. An input named in ``initializers`` has a default. ``tensors`` are all tensors,
    in file order. ``calls`` are what the nodes outside functions call, as functions of the model might be named."""

    ir_version: int = 0
    opsets: list[tuple[str, int]] = field(default_factory=list)
    opset_count: int = 0
    inputs: list[GraphPort] = field(default_factory=list)
    outputs: list[GraphPort] = field(default_factory=list)
    initializers: set[str] = field(default_factory=set)
    operators: Counter[OperatorKey] = field(default_factory=Counter)
    places: dict[OperatorKey, str] = field(default_factory=dict)
    external: list[ExternalData] = field(default_factory=list)
    tensors: list[GraphTensor] = field(default_factory=list)
    nodes: int = 0
    depth: int = 0
    functions: list[GraphFunction] = field(default_factory=list)
    function_count: int = 0
    calls: Counter[FunctionKey] = field(default_factory=Counter)
    file_bytes: int = 0
    flaws: list[Flaw] = field(default_factory=list)


def standard(domain: str) -> str:
    """The domain with its one spelling: "" for the standard one."""
    return "" if domain == STANDARD_DOMAIN else domain


class Step(NamedTuple):
    """One step of the way to what is being read; put into words only when it is needed."""

    kind: str
    number: int = -1
    name: str = ""
    note: str = ""

    def __str__(self) -> str:
        number = f" {self.number}" if self.number >= 0 else ""
        name = f" '{self.name[:SHOWN_NAME_CHARACTERS]}'" if self.name else ""
        return f"{self.kind}{number}{name}{f' ({self.note[:SHOWN_NAME_CHARACTERS]})' if self.note else ''}"


class Trail:
    """What is wrong in a file, and where: the way to what is being read. Knows nothing of its reader, so that a reader
    goes with its last reference and waits for no collection of cycles."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.flaws: list[Flaw] = []

    def where(self) -> str:
        """The way; of a long one the beginning and the end."""
        half = SHOWN_STEPS_MAX // 2
        if len(self.steps) <= SHOWN_STEPS_MAX:
            return " > ".join(map(str, self.steps))
        return " > ".join([*map(str, self.steps[:half]), "...", *map(str, self.steps[-half:])])

    def report(self, text: str) -> None:
        """Something is wrong with what is being read."""
        if len(self.flaws) < FLAWS_MAX:
            self.flaws.append(Flaw(where=self.where(), text=text))
