"""Where ONNX Runtime runs the nodes of a session, counted from what it records of that, and reads its inputs. Pure.

A session that has a provider may still give it nothing to do, and run on the processor all the same. Nodes are those of
the graph when they are given away, before what is fused later.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, NamedTuple, Protocol

RECORD: Final = "session.record_ep_graph_assignment_info"
"""The option of a session that has it remember: some 0.2 KiB for each node; sessions of 146 and of 581 nodes took no
longer to make on the processor."""
TOLD_MAX: Final = 8
"""Operators that are named."""
PROCESSOR_MEMORY: Final = frozenset({"Cpu", "CudaPinned"})
"""What ONNX Runtime calls memory of the process."""


class AssignedNode(Protocol):
    """A node; its ``domain`` is "" for ONNX's own operators."""

    @property
    def domain(self) -> str: ...
    @property
    def op_type(self) -> str: ...


class Assigned(Protocol):
    """Nodes that a provider got, as ONNX Runtime tells them."""

    @property
    def ep_name(self) -> str: ...
    def get_nodes(self) -> Iterable[AssignedNode]: ...


class Placement(NamedTuple):
    """Of ``nodes``, ``elsewhere`` are not with the provider; their ``operators`` each once, as they come."""

    nodes: int
    elsewhere: int
    operators: tuple[str, ...]

    @property
    def nowhere(self) -> bool:
        """Whether there are nodes, and the provider has none of them."""
        return 0 < self.nodes == self.elsewhere

    @property
    def note(self) -> str:
        """What people are to know of it; "" where all are with the provider."""
        if not self.elsewhere:
            return ""
        return f"{self.elsewhere} of {self.nodes} nodes run on the processor: {self.told}"

    @property
    def told(self) -> str:
        """The operators, and how many more there are."""
        more = len(self.operators) - TOLD_MAX
        return ", ".join(self.operators[:TOLD_MAX]) + (f" and {more} more" if more > 0 else "")


def placement(assigned: Iterable[Assigned], provider: str) -> Placement:
    """Count the nodes that ``provider`` got, and the others."""
    nodes = elsewhere = 0
    operators: dict[str, None] = {}
    for part in assigned:
        for node in part.get_nodes():
            nodes += 1
            if part.ep_name != provider:
                elsewhere += 1
                operators[f"{node.domain}.{node.op_type}" if node.domain else node.op_type] = None
    return Placement(nodes, elsewhere, tuple(operators))


def read_here(session: Any, names: Sequence[str]) -> tuple[str, ...]:
    """Which inputs a session of a device reads in memory of the process, as the one of a Reshape that says what shape,
    and those of which it does not tell where, as optional ones. None where it tells of none, as before release 1.23."""
    told = getattr(session, "input_meminfos", None)
    if told is None:
        return ()
    pairs = zip(session.inputs_meta, told, strict=True)
    elsewhere = {port.name for port, memory in pairs if memory.name not in PROCESSOR_MEMORY}
    return tuple(name for name in names if name not in elsewhere)


def written_here(session: Any) -> tuple[str, ...]:
    """Which outputs a session of a device leaves in memory of the process, as a Shape that is an output does: ONNX
    Runtime brings them to the device within each run. None where it does not tell, as before release 1.23."""
    told = getattr(session, "output_meminfos", None)
    if told is None:
        return ()
    pairs = zip(session.outputs_meta, told, strict=True)
    return tuple(port.name for port, memory in pairs if memory.name in PROCESSOR_MEMORY)
