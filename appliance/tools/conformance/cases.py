"""What every runtime must do, whatever runs the model, as functions that raise NotConforming with a clear text.

Each is given a Rig: a runtime, the identity model as a version that it can load, and one that it cannot. A case gives a
note where the port leaves something to the runtime that this one does not do, else "".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

import numpy as np

from appliance.domain.errors import DeviceMissing, LoadFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, Datatype
from appliance.runtimes.runtime import Port, Produced, Runtime, RuntimeSettings, Session, check_signature
from appliance.tools.conformance.memory import Array, Memory, any_floats

REMEMBERED: Final = 300
"""More shapes than a session keeps anything of."""
BOTH: Final = (0, 1)
TIMES: Final = 3
"""The first run learns shapes, the second one may use what the first learned, the third what the second kept."""


class NotConforming(Exception):
    """A runtime does not do what the port demands."""


class Rig(NamedTuple):
    """A runtime, the identity model as a version that it can load, and a version that it must refuse."""

    runtime: Runtime
    version: ModelVersion
    broken: ModelVersion


class Case(NamedTuple):
    """One demand: its short name, what it demands, and what raises where that is not so."""

    name: str
    demands: str
    run: Callable[[Rig], str]


def demand(holds: bool, text: str) -> None:
    """Raise NotConforming unless it holds."""
    if not holds:
        raise NotConforming(text)


def ports(rig: Rig) -> str:
    """Names, datatypes and shapes are those of the model."""
    session = _load(rig)
    for side, names, found in (("inputs", "ab", session.inputs), ("outputs", "pq", session.outputs)):
        said = sorted(port.name for port in found)
        demand(said == list(names), f"{side} are {said}, the model has {list(names)}")
        for port in found:
            right = Port(name=port.name, datatype=Datatype.FP32, shape=(FREE, FREE))
            demand(port == right, f"{side} has {port}, the model has {right}")
    try:
        check_signature(rig.version, session)
    except LoadFailed as problem:
        raise NotConforming(str(problem)) from problem
    return ""


def values(rig: Rig) -> str:
    """Runs give the right bytes, again and again."""
    session = _load(rig)
    for seed in range(4):
        _repeat(session, (any_floats(2, 3, seed), any_floats(4, 1, seed + 10)), BOTH, f"of seed {seed}")
    return ""


def wanted(rig: Rig) -> str:
    """Outputs that nobody asked for are not in the answer."""
    _repeat(_load(rig), (any_floats(2, 3), any_floats(1, 5)), (1,), "with wanted=(1,)")
    return ""


def empty(rig: Rig) -> str:
    """Tensors without elements go in and come out."""
    _repeat(_load(rig), (any_floats(0, 3), any_floats(2, 0)), BOTH, "on tensors without elements")
    return ""


def bounds(rig: Rig) -> str:
    """Nothing is written beyond the place, nor said to be in a place that is too small."""
    session = _load(rig)
    a, b = any_floats(2, 3), any_floats(4, 1)
    memory = Memory(a, b, capacity=64)
    memory.mark()
    for time in range(TIMES):
        produced = memory.run(session, BOTH)
        demand(
            produced.parts is not None,
            "run: 128 bytes of outputs were said to be in a place of 64; give them as 'parts' where they do not fit",
        )
        _check(memory, produced, [a, b], f"run {time + 1} with a place that is too small")
    _check_bounds(memory, "run")
    return ""


def inputs(rig: Rig) -> str:
    """Inputs are not changed."""
    session = _load(rig)
    memory = Memory(any_floats(2, 3), any_floats(4, 1))
    before = bytes(memory.source.view)
    for _ in range(TIMES):
        memory.run(session, BOTH)
    demand(
        bytes(memory.source.view) == before,
        "run changed bytes of the source region: inputs are to be read alone",
    )
    return ""


def shapes(rig: Rig) -> str:
    """Many shapes in turn, more than are remembered, are each right."""
    session = _load(rig)
    for size in [*range(1, REMEMBERED), *range(1, REMEMBERED, 50)]:
        a, b = np.full((1, size), size, np.float32), np.full((size, 1), -size, np.float32)
        memory = Memory(a, b)
        for time in range(2):
            _check(memory, memory.run(session, BOTH), [a, b], f"run {time + 1} with rows of {size}")
    return ""


def prepared(rig: Rig) -> str:
    """A prepared run does the same again, in place, on what lies there then."""
    session = _load(rig)
    memory = Memory(any_floats(2, 3), any_floats(4, 1), capacity=128)
    for asked in (BOTH, (1,)):
        for _ in range(2):
            memory.run(session, asked)
        again = memory.prepared(session, asked)
        if again is None:
            return "prepares nothing: each request on a leased lane passes through Python"
        for seed in range(TIMES):
            arrays = any_floats(2, 3, seed), any_floats(4, 1, seed + 10)
            memory.put(*arrays)
            memory.mark()
            again()
            right = [arrays[index] for index in asked]
            found = memory.in_place([array.nbytes for array in right])
            _check_bytes(found, right, f"prepared run {seed + 1} with wanted={asked}")
            _check_bounds(memory, "a prepared run")
    return ""


def prepared_small(rig: Rig) -> str:
    """Nothing is prepared for a place that is too small."""
    session = _load(rig)
    memory = Memory(any_floats(2, 3), any_floats(4, 1), capacity=64)
    for _ in range(2):
        memory.run(session, BOTH)
    demand(
        memory.prepared(session, BOTH) is None,
        "prepared: 128 bytes of outputs do not fit into a place of 64; give None there",
    )
    return ""


def threads(rig: Rig) -> str:
    """A session with two threads gives the same."""
    _repeat(
        _load(rig, threads=2), (any_floats(2, 3), any_floats(4, 1)), BOTH, "of a session with two threads"
    )
    return ""


def weights(rig: Rig) -> str:
    """Weights that left memory come back, and runs are right without them."""
    session = _load(rig)
    held = session.weights
    if held is None:
        return "no weights of this model leave memory by themselves: to make room, its session is closed"
    demand(held.nbytes >= 0, f"weights.nbytes is {held.nbytes}")
    a, b = any_floats(2, 3), any_floats(4, 1)
    memory = Memory(a, b)
    held.evict_weights()
    _check(memory, memory.run(session, BOTH), [a, b], "a run after evict_weights")
    held.page_in(verify=False)
    _check(memory, memory.run(session, BOTH), [a, b], "a run after page_in")
    return ""


def close(rig: Rig) -> str:
    """A session says what it holds, and can be closed."""
    session = _load(rig)
    demand(session.memory() >= 0, f"memory() is {session.memory()}; give 0 where it is not known")
    demand(isinstance(session.measurable, bool), f"measurable is {session.measurable!r}, not True or False")
    session.close()
    return ""


def two_sessions(rig: Rig) -> str:
    """The end of one session does not disturb another."""
    one, other = _load(rig), _load(rig)
    a, b = any_floats(2, 2), any_floats(3, 3)
    memory = Memory(a, b)
    _check(memory, memory.run(one, BOTH), [a, b], "a run of the first of two sessions")
    one.close()
    _check(memory, memory.run(other, BOTH), [a, b], "a run after another session was closed")
    return ""


def refusal(rig: Rig) -> str:
    """A model that cannot be loaded is refused with LoadFailed and a reason."""
    try:
        rig.runtime.load(rig.broken, RuntimeSettings())
    except LoadFailed as problem:
        demand(bool(str(problem).strip()), "load raised LoadFailed without a text; say why, and what to do")
        return ""
    except Exception as problem:
        raise NotConforming(
            f"load raised {type(problem).__name__} ({problem}) for a model that is not there; translate it to "
            f"LoadFailed"
        ) from problem
    raise NotConforming("load raised nothing for a model that is not there; raise LoadFailed with the reason")


def device(rig: Rig) -> str:
    """There is a device to try it on."""
    try:
        _load(rig).close()
    except DeviceMissing as problem:
        raise NotConforming(str(problem)) from problem
    except Exception:  # noqa: BLE001 - that is what the cases find out
        return ""
    return ""


DEVICE: Final = Case("device", "", device)
CASES: Final = tuple(
    Case(function.__name__.replace("_", "-"), (function.__doc__ or "").rstrip("."), function)
    for function in (
        ports,
        values,
        wanted,
        empty,
        bounds,
        inputs,
        shapes,
        prepared,
        prepared_small,
        threads,
        weights,
        close,
        two_sessions,
        refusal,
    )
)


def _load(rig: Rig, threads: int = 1) -> Session:
    return rig.runtime.load(rig.version, RuntimeSettings(threads=threads))


def _repeat(session: Session, arrays: Sequence[Array], asked: tuple[int, ...], what: str) -> None:
    """Run on these arrays TIMES times."""
    memory = Memory(*arrays)
    for time in range(TIMES):
        right = [arrays[index] for index in asked]
        _check(memory, memory.run(session, asked), right, f"run {time + 1} {what}")


def _check(memory: Memory, produced: Produced, right: Sequence[Array], when: str) -> None:
    """Shapes, sizes and bytes."""
    said, sizes = tuple(array.shape for array in right), tuple(array.nbytes for array in right)
    demand(produced.shapes == said, f"{when}: shapes are {produced.shapes}, not {said}")
    demand(produced.sizes == sizes, f"{when}: sizes are {produced.sizes}, not {sizes}")
    _check_bytes(memory.outputs(produced), right, when)


def _check_bytes(found: Sequence[bytes], right: Sequence[Array], when: str) -> None:
    demand(len(found) == len(right), f"{when}: gave {len(found)} outputs, not {len(right)}")
    for number, (each, array) in enumerate(zip(found, right, strict=True)):
        raw = array.tobytes()
        demand(len(each) == len(raw), f"{when}: output {number} has {len(each)} bytes, not {len(raw)}")
        first = next(
            (at for at, (one, other) in enumerate(zip(each, raw, strict=True)) if one != other), None
        )
        demand(
            first is None,
            f"{when}: output {number} differs from its input from byte {first} on; an identity keeps every bit, "
            f"those of NaNs too",
        )


def _check_bounds(memory: Memory, what: str) -> None:
    at = memory.spoilt()
    end = memory.place.offset + memory.place.capacity
    demand(
        at is None,
        f"{what} wrote to byte {at} of the outputs' region, outside of {memory.place.offset} to {end}",
    )
