"""What every runtime must do, whatever runs the model. Subclass with a ``rig`` fixture that gives an identity model.

The identity model has inputs ``a`` and ``b`` and outputs ``p`` = a and ``q`` = b, all FP32 of rank 2 with free
dimensions.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np

from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, aligned
from appliance.runtimes.runtime import Feed, Place, Produced, Region, Runtime, RuntimeSettings, Session
from appliance.workers.child.tensors import region_of
from tests.runtimes.onnx_reference import Array, make_array


class Rig(NamedTuple):
    """A runtime, and an identity model that it can load."""

    runtime: Runtime
    version: ModelVersion


class Memory:
    """A source region with arrays in it and a place for outputs."""

    def __init__(self, *arrays: Array | None, capacity: int = 4096) -> None:
        self.source: Region = region_of(mmap.mmap(-1, 64 << 10))
        target: Region = region_of(mmap.mmap(-1, 64 << 10))
        self.place = Place(target, 128, capacity)
        feeds: list[Feed | None] = []
        position = 64
        for array in arrays:
            if array is None:
                feeds.append(None)
                continue
            self.source.view[position : position + array.nbytes] = array.tobytes()
            feeds.append(Feed(array.shape, position, array.nbytes))
            position += aligned(array.nbytes)
        self.feeds = tuple(feeds)

    def run(self, session: Session, wanted: tuple[int, ...]) -> Produced:
        return session.run(self.source, self.feeds, wanted, self.place)

    def prepared(self, session: Session, wanted: tuple[int, ...]) -> Callable[[], None] | None:
        return session.prepared(self.source, self.feeds, wanted, self.place)

    def put(self, *arrays: Array) -> None:
        """Other values in place of the first ones."""
        for feed, array in zip(self.feeds, arrays, strict=True):
            assert feed is not None
            self.source.view[feed.offset : feed.offset + feed.nbytes] = array.tobytes()

    def outputs(self, produced: Produced) -> list[bytes]:
        """The bytes that were produced, wherever they are."""
        if produced.parts is not None:
            return [bytes(part) for part in produced.parts]
        return self.in_place(produced.sizes)

    def in_place(self, sizes: Sequence[int]) -> list[bytes]:
        """The bytes of tensors that lie one after the other in the place."""
        found, position = [], self.place.offset
        for size in sizes:
            found.append(bytes(self.place.region.view[position : position + size]))
            position += aligned(size)
        return found


class RuntimeConformance:
    """The suite."""

    def test_ports_are_what_the_model_has(self, rig: Rig) -> None:
        session = rig.runtime.load(rig.version, RuntimeSettings())
        assert {port.name for port in session.inputs} == {"a", "b"}
        assert {port.name for port in session.outputs} == {"p", "q"}
        for port in (*session.inputs, *session.outputs):
            assert (port.datatype, port.shape, port.optional) == (Datatype.FP32, (-1, -1), False)

    def test_runs_give_the_right_bytes_again_and_again(self, rig: Rig) -> None:
        session = rig.runtime.load(rig.version, RuntimeSettings())
        for seed in range(4):
            a, b = make_array(Datatype.FP32, (2, 3), seed), make_array(Datatype.FP32, (4, 1), seed + 10)
            memory = Memory(a, b)
            for _ in range(3):
                produced = memory.run(session, (0, 1))
                assert (produced.shapes, produced.sizes) == (((2, 3), (4, 1)), (24, 16))
                assert memory.outputs(produced) == [a.tobytes(), b.tobytes()]

    def test_only_wanted_outputs_are_produced(self, rig: Rig) -> None:
        session = rig.runtime.load(rig.version, RuntimeSettings())
        a, b = make_array(Datatype.FP32, (2, 3)), make_array(Datatype.FP32, (1, 5))
        memory = Memory(a, b)
        for _ in range(3):
            assert memory.outputs(memory.run(session, (1,))) == [b.tobytes()]

    def test_empty_tensors(self, rig: Rig) -> None:
        session = rig.runtime.load(rig.version, RuntimeSettings())
        memory = Memory(make_array(Datatype.FP32, (0, 3)), make_array(Datatype.FP32, (2, 0)))
        for _ in range(3):
            produced = memory.run(session, (0, 1))
            assert (produced.shapes, produced.sizes) == (((0, 3), (2, 0)), (0, 0))

    def test_nothing_is_written_beyond_the_place(self, rig: Rig) -> None:
        session = rig.runtime.load(rig.version, RuntimeSettings())
        memory = Memory(make_array(Datatype.FP32, (2, 3)), make_array(Datatype.FP32, (4, 1)), capacity=64)
        memory.place.region.view[:] = b"\xee" * len(memory.place.region.view)
        for _ in range(3):
            produced = memory.run(session, (0, 1))
            assert produced.parts is not None, "128 bytes were said to be in a place of 64"
        after = bytes(memory.place.region.view)
        start, end = memory.place.offset, memory.place.offset + memory.place.capacity
        assert set(after[:start] + after[end:]) == {0xEE}

    def test_inputs_are_not_changed(self, rig: Rig) -> None:
        session = rig.runtime.load(rig.version, RuntimeSettings())
        memory = Memory(make_array(Datatype.FP32, (2, 3)), make_array(Datatype.FP32, (4, 1)))
        before = bytes(memory.source.view)
        for _ in range(3):
            memory.run(session, (0, 1))
        assert bytes(memory.source.view) == before

    def test_many_shapes_in_turn(self, rig: Rig) -> None:
        """More than are remembered, each as if it were the first."""
        session = rig.runtime.load(rig.version, RuntimeSettings())
        for size in [*range(1, 300), *range(1, 300, 50)]:
            a, b = np.full((1, size), size, np.float32), np.full((size, 1), -size, np.float32)
            memory = Memory(a, b)
            for _ in range(2):
                assert memory.outputs(memory.run(session, (0, 1))) == [a.tobytes(), b.tobytes()]

    def test_a_prepared_run_does_the_same_again_on_what_lies_there_then(self, rig: Rig) -> None:
        session = rig.runtime.load(rig.version, RuntimeSettings())
        memory = Memory(make_array(Datatype.FP32, (2, 3)), make_array(Datatype.FP32, (4, 1)), capacity=128)
        for wanted in ((0, 1), (1,)):
            for _ in range(2):
                memory.run(session, wanted)
            prepared = memory.prepared(session, wanted)
            assert prepared is not None
            for seed in range(3):
                arrays = make_array(Datatype.FP32, (2, 3), seed), make_array(Datatype.FP32, (4, 1), seed + 10)
                memory.put(*arrays)
                memory.place.region.view[:] = b"\xee" * len(memory.place.region.view)
                prepared()
                assert memory.in_place([arrays[index].nbytes for index in wanted]) == [
                    arrays[index].tobytes() for index in wanted
                ]
                after = bytes(memory.place.region.view)
                start, end = memory.place.offset, memory.place.offset + memory.place.capacity
                assert set(after[:start] + after[end:]) == {0xEE}

    def test_nothing_is_prepared_for_a_place_that_is_too_small(self, rig: Rig) -> None:
        session = rig.runtime.load(rig.version, RuntimeSettings())
        memory = Memory(make_array(Datatype.FP32, (2, 3)), make_array(Datatype.FP32, (4, 1)), capacity=64)
        for _ in range(2):
            memory.run(session, (0, 1))
        assert memory.prepared(session, (0, 1)) is None

    def test_memory_and_close(self, rig: Rig) -> None:
        session = rig.runtime.load(rig.version, RuntimeSettings())
        assert session.memory() >= 0
        session.close()

    def test_two_sessions_do_not_disturb_each_other(self, rig: Rig) -> None:
        one, other = (rig.runtime.load(rig.version, RuntimeSettings()) for _ in range(2))
        a, b = make_array(Datatype.FP32, (2, 2)), make_array(Datatype.FP32, (3, 3))
        memory = Memory(a, b)
        one.close()
        assert memory.outputs(memory.run(other, (0, 1))) == [a.tobytes(), b.tobytes()]
