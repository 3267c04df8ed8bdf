"""One combination of shapes of a session of ONNX Runtime on a CUDA device, a request as it lies there, and what is
known of the session's graphs."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from appliance.runtimes.buckets import cut
from appliance.runtimes.lost_session import LostSession
from appliance.runtimes.onnx_elements import ElementType
from appliance.runtimes.runtime import Feed, Produced, Region

NOTHING: Final = Produced((), (), None)


class Batch(NamedTuple):
    """A request's inputs, and ``filled`` as they are in a batch of ``size`` rows, where they have ``rows``; 0 of each:
    they are taken as they are."""

    source: Region
    feeds: tuple[Feed | None, ...]
    filled: tuple[Feed | None, ...]
    rows: int = 0
    size: int = 0

    def produced(self, of_size: Produced) -> Produced:
        """What of the outputs of a whole batch belongs to these rows."""
        return cut(of_size, self.size, self.rows) if self.rows < self.size else of_size


@dataclass(slots=True, eq=False)
class Stage:
    """One combination of shapes. Inputs lie at ``offsets`` of the device's memory at ``inputs``, outputs at
    ``addresses``, ``out_bytes`` in all from ``outputs`` on. ``graph`` is the number of its graph, captured by
    ``thread``, which alone can replay it; 0: there is none. ``here``: something of it is read or made by the processor,
    of which a graph would keep what was there when it was captured, or memory that is others' by then."""

    offsets: tuple[int, ...]
    inputs: int
    elements: tuple[ElementType, ...]
    options: Any
    produced: Produced = NOTHING
    addresses: tuple[int, ...] = ()
    outputs: int = 0
    out_bytes: int = 0
    binding: Any = None
    runs: int = 0
    graph: int = 0
    thread: int = 0
    here: bool = False
    late: list[tuple[str, int, tuple[int, ...], int]] = field(default_factory=list)
    """Inputs that are bound anew for each run, once they are there: name, element, shape, address."""

    @property
    def replayed(self) -> int:
        """The number of its graph, if this thread captured it; else 0."""
        return self.graph if self.thread == threading.get_ident() else 0

    def obeys(self) -> bool:
        """Whether the runtime wrote where it was told; an output that is an input of the graph stays where that is."""
        found = zip(self.binding.get_outputs(), self.addresses, self.produced.sizes, strict=True)
        return all(not size or value.data_ptr() == address for value, address, size in found)


@dataclass(slots=True)
class Graphs:
    """Of a session: whether more are captured, and how many were; ``can``: no part of it runs on the processor, which
    would copy to and from memory that the run before may still use. ``failed`` captures have come to nothing; ``lost``:
    the last one has, and the session is still to be made anew."""

    on: bool
    can: bool
    made: int = 0
    failed: int = 0
    lost: LostSession | None = None
