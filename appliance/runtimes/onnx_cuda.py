"""A session of ONNX Runtime on a CUDA device.

For each combination of shapes it keeps memory on the device, in which inputs and outputs lie as they do in requests: so
a run is one copy in, the run, one copy out, begun one after the other on a stream of the session's own, and one wait.
The copies are from and to pinned memory, a batch's own or a piece of the session's. Where it is a batch's own, the next
run can be begun before that wait: what they share on the device is used in the order of the stream.

A batch is filled up to one of a few sizes, as each size that is new costs a session of many convolutions a tenth of a
second, and without graphs each change between two of them as much.

A combination that comes again is captured as a CUDA graph, from then on replayed without its kernels being launched one
by one. A graph is used once it gave the answer that the run before it gave. Where CUDA or the model will have none
that is said once, and the session runs without; what others may have spoilt is tried once more before.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Final, NamedTuple

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from appliance.devices.cuda import Cuda, CudaFailed
from appliance.domain.errors import DeviceFull, RunFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import element_count
from appliance.runtimes.buckets import bucket, filled_up, rows_of
from appliance.runtimes.device_copies import DeviceCopies, layout, outputs_of
from appliance.runtimes.device_graphs import (
    CAPTURE_AFTER,
    GRAPHS_MAX,
    SPOILT,
    NotNow,
    alike,
    capturing,
    once_more,
    ran_short,
    tell_anew,
    tell_without_graphs,
    whole_device,
)
from appliance.runtimes.device_limit import DeviceLimit
from appliance.runtimes.lost_device import end_if_lost
from appliance.runtimes.lost_session import LostSession
from appliance.runtimes.onnx_elements import BY_DATATYPE
from appliance.runtimes.onnx_placement import read_here, written_here
from appliance.runtimes.onnx_sessions import device_error, run_error, shapes_key
from appliance.runtimes.onnx_stage import Batch, Graphs, Stage
from appliance.runtimes.overlapped import BegunRun
from appliance.runtimes.runtime import Feed, Place, Port, Produced, Region

STAGES_MAX: Final = 64
"""Combinations of shapes for which memory is kept; of more, the one that was learned first goes."""
NO_GRAPH: Final = -1
GRAPH_ID: Final = "gpu_graph_id"
WAITS_NOT: Final = "disable_synchronize_execution_providers"
HOLDS_SINCE: Final = (1, 31, 1)
"""The first release of ONNX Runtime that is known to hold memory of this process for as long as graphs copy from it,
which others get before with the next run that waits; and to leave a replay that is not to be waited for. 1.26 waits for
each, so that a batch begun behind another one would keep its answers back until both have run."""
NO_LIMIT: Final = DeviceLimit()


class _Elsewhere(Exception):
    """A prepared run that cannot be done as it was prepared."""


class Made(NamedTuple):
    """A session of ONNX Runtime and whether it can capture graphs."""

    session: Any
    graphs: bool


def _none_of(names: Sequence[str]) -> Sequence[str]:
    return names[:0]


class _About(NamedTuple):
    """What is told of a session: whose it is, and what it is held to."""

    key: str
    limit: DeviceLimit


class _WithoutGraph(NamedTuple):
    """Options of runs without a graph, that wait and that do not; ``holds``: see HOLDS_SINCE."""

    waiting: Any
    leaving: Any
    holds: bool


class CudaSession:
    """``make`` gives a session whose work goes to a stream, with graphs or without. All tensors have elements of fixed
    size."""

    measurable = True
    weights = None
    note = ""

    def __init__(
        self,
        version: ModelVersion,
        cuda: Cuda,
        make: Callable[[int, bool], Made],
        *,
        graphs: bool,
        unread: Callable[[Sequence[str]], Sequence[str]] = _none_of,
        kind: int | None = None,
        limit: DeviceLimit = NO_LIMIT,
    ) -> None:
        """``unread`` tells which of some inputs no node reads, and raises nothing; it is asked once, only where that
        decides about graphs. ``kind`` is what ONNX Runtime calls the device, where it is not CUDA; ``limit`` is what
        ``make`` holds it to. Raises LoadFailed and CudaFailed."""
        self._about = _About(version.key, limit)
        self._cuda = cuda
        self._make = make
        self._copies = DeviceCopies(cuda)
        try:
            with whole_device():
                made = make(self._copies.stream, graphs)
        except BaseException:
            self._copies.close()
            raise
        self._session = made.session
        self._graphs = Graphs(on=made.graphs, can=made.graphs)
        if graphs and not made.graphs:
            self._tell("parts of it run on the processor")
        late = set(read_here(self._session, [spec.name for spec in version.inputs]))
        here = [spec.name for spec in version.inputs if spec.name in late and not spec.optional]
        if here and made.graphs:
            late.difference_update(unread(here))
            here = [name for name in here if name in late]
        made_here = written_here(self._session)
        self._inputs = tuple(
            (spec.name, BY_DATATYPE[spec.datatype].number, spec.name in late) for spec in version.inputs
        )
        self._outputs = tuple(
            (spec.name, BY_DATATYPE[spec.datatype], spec.name in made_here) for spec in version.outputs
        )
        if self._graphs.on and here:
            self._tell(f"not read on the device are its inputs {', '.join(here)}")
        if self._graphs.on and made_here:
            self._tell(f"not made on the device are its outputs {', '.join(made_here)}")
        device = native.OrtDevice.cuda() if kind is None else kind
        self._device = native.OrtDevice(device, native.OrtDevice.default_memory(), cuda.index)
        self._stages: dict[object, Stage] = {}
        self._fixed = True
        """Shapes of outputs follow from those of inputs."""
        self._batch_max = 0 if version.batching is None else version.max_batch_size
        """What batches are filled up to at most; 0: they are not, as where requests are never merged: only a model
        whose requests may be says that its rows are each for itself."""
        self._without_graph = _WithoutGraph(
            _options(NO_GRAPH, waits=True),
            _options(NO_GRAPH, waits=False),
            holds_what_graphs_read(onnxruntime.__version__),
        )
        self.inputs: tuple[Port, ...] = ()
        self.outputs: tuple[Port, ...] = ()

    @property
    def metas(self) -> Any:
        """What tells of inputs and outputs."""
        return self._session

    def pin(self, nbytes: int) -> Region:
        """Memory that the device copies from and to by itself. Raises RunFailed."""
        return self._copies.pin(nbytes)

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The sizes that batches are filled up to."""
        return tuple(sorted({bucket(rows, self._batch_max) for rows in range(1, self._batch_max + 1)}))

    def memory(self) -> int:
        """Bytes of the device that were taken since the session was to be made."""
        return self._copies.taken()

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """In memory that is kept for these shapes, else learning them."""
        batch = self._batch(source, feeds)
        key = shapes_key(batch.filled, wanted)
        stage = self._stages.get(key)
        try:
            self._cuda.enter()
            if stage is None:
                return self._learned(key if self._fixed else None, batch, wanted)
            failed = False
            try:
                produced = self._replay(stage, batch, place)
            except Exception:  # noqa: BLE001 - the run elsewhere tells what it was
                produced, failed = None, True
            return produced or self._run_elsewhere(key, stage, batch, wanted, failed=failed)
        except Exception as problem:
            if isinstance(problem, RunFailed):
                self._end_if_dead(problem)
                raise
            raise device_error(self._cuda, *self._about, problem) from problem

    def _run_elsewhere(
        self, key: object, stage: Stage, batch: Batch, wanted: tuple[int, ...], *, failed: bool
    ) -> Produced:
        """The run of a stage elsewhere, after one in its memory was none, or ``failed``. Where this one does not,
        shapes depend on values, or an input is an output; or the device was full for a moment, and they are learned
        anew."""
        expected = batch.produced(stage.produced).shapes
        produced = self._learned(None, batch, wanted)
        if failed and produced.shapes == expected:
            self._stages.pop(key, None)
            self._drop(stage)
        else:
            self._fixed = False
            self._forget()
        return produced

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """The run of a known combination, its outputs in place; overlapped where the device does all of it by itself
        and nothing waits for it, once no graph of it is still to be captured: until then there is none."""
        batch = self._batch(source, feeds)
        stage = self._stages.get(shapes_key(batch.filled, wanted))
        if stage is None or layout(batch.produced(stage.produced).sizes)[1] > place.capacity:
            return None
        again = partial(self._again, stage, batch, place)
        pinned = source.pinned is not None and place.region.pinned is not None
        if not pinned or not self._graphs.can:
            return again
        if not stage.runs or self._may_capture(stage):
            return None
        if not stage.replayed or not self._without_graph.holds:
            return again
        begin = partial(self._begin_alone, stage, batch, place)
        return BegunRun(self._copies, again, begin, self._end_if_dead)

    def _batch(self, source: Region, feeds: tuple[Feed | None, ...]) -> Batch:
        rows = rows_of(feeds) if self._batch_max and self._fixed else 0
        size = bucket(rows, self._batch_max)
        if not rows or size == rows:
            return Batch(source, feeds, feeds, rows, rows)
        return Batch(source, feeds, filled_up(feeds, rows, size), rows, size)

    def close(self) -> None:
        """Give the device's memory back, in whatever thread: what ONNX Runtime gives back, too, is of this device."""
        with suppress(CudaFailed):
            self._cuda.enter()
        self._forget()
        with whole_device():
            self._session = None
        self._copies.close()

    # --- a run

    def _begin_alone(self, stage: Stage, batch: Batch, place: Place) -> None:
        if stage.binding is None:
            raise _Elsewhere
        self._begin(stage, batch)
        self._copies.begin_fetch(stage.addresses, batch.produced(stage.produced).sizes, place)

    def _again(self, stage: Stage, batch: Batch, place: Place) -> None:
        if stage.binding is None:
            raise _Elsewhere
        try:
            produced = self._replay(stage, batch, place)
        except Exception as problem:
            self._end_if_dead(problem)
            raise
        if produced is None:
            raise _Elsewhere

    def _replay(self, stage: Stage, batch: Batch, place: Place) -> Produced | None:
        """Run in the memory of a stage; None where the runtime left an output elsewhere. Raises whatever it likes."""
        self._begin(stage, batch)
        if not stage.runs and not stage.obeys():
            return None
        shape = batch.produced(stage.produced)
        produced = self._copies.fetch(stage.addresses, shape, place)
        if not stage.replayed:
            stage.runs += 1
            if stage.runs >= CAPTURE_AFTER and self._may_capture(stage):
                self._capture(stage, shape, outputs_of(produced, place))
        return produced

    def _begin(self, stage: Stage, batch: Batch) -> None:
        """Begin to copy the inputs, and to run."""
        self._bring(stage, batch)
        options = stage.options if stage.replayed else self._eager
        self._session.run_with_iobinding(stage.binding, options)

    @property
    def _eager(self) -> Any:
        """Options of a run that is no graph's. It is waited for: only then does ONNX Runtime take back what its
        operators left in memory of this process for the device to copy, as a Concat of inputs that differ in size does,
        with each run. Not so where graphs would read what others have there by then."""
        known = self._without_graph
        return known.waiting if known.holds or not self._graphs.made else known.leaving

    def _may_capture(self, stage: Stage) -> bool:
        """Whether a graph of a stage is still to be captured by this thread."""
        room = stage.graph or self._graphs.made < GRAPHS_MAX
        return bool(self._graphs.on and room and not stage.here and not stage.replayed)

    def _bring(self, stage: Stage, batch: Batch) -> None:
        """Begin to copy the inputs, and zeros behind them to the rows that fill the batch up: what looks at all rows
        of a batch, as a quantisation that finds its own scale, finds the same whatever came before. In this order, as
        what lies between may be copied as well; at last what ONNX Runtime reads here, and copies when it is bound."""
        self._copies.bring(batch.source, batch.feeds, stage.inputs, stage.offsets)
        if batch.rows < batch.size:
            given = (feed for feed in batch.feeds if feed is not None)
            for feed, offset in zip(given, stage.offsets, strict=True):
                row = feed.nbytes // batch.rows
                self._copies.fill(stage.inputs + offset + feed.nbytes, (batch.size - batch.rows) * row, 0)
        if stage.late:
            self._cuda.finish(self._copies.stream)
        for bound in stage.late:
            self._bind(stage, bound)

    def _bind(self, stage: Stage, bound: tuple[str, int, tuple[int, ...], int]) -> None:
        name, element, shape, address = bound
        stage.binding.bind_input(name, self._device, element, shape, address)

    # --- learning shapes

    def _learned(self, key: object | None, batch: Batch, wanted: tuple[int, ...]) -> Produced:
        """As ``_learn``; once more where the device has no memory and some is kept for shapes that have no graph."""
        try:
            return self._learn(key, batch, wanted)
        except Exception as problem:
            plain = [each for each, stage in self._stages.items() if not stage.graph]
            if not plain or not isinstance(run_error(problem, self._about.limit), DeviceFull):
                raise
        for each in plain:
            self._drop(self._stages.pop(each))
        return self._learn(key, batch, wanted)

    def _learn(self, key: object | None, batch: Batch, wanted: tuple[int, ...]) -> Produced:
        """Run with outputs in memory of the runtime's own; keep memory for what was found by ``key``, unless None."""
        if self._graphs.lost is not None:
            self._make_anew(self._graphs.lost)
        offsets, in_bytes = layout([feed.nbytes for feed in batch.filled if feed is not None])
        elements = tuple(self._outputs[index][1] for index in wanted)
        stage = Stage(offsets, self._cuda.allocate(in_bytes), elements, None)
        try:
            values, whole = self._run_unbound(stage, batch, wanted)
            if batch.rows == batch.size or all(shape[:1] == (batch.size,) for shape in whole.shapes):
                addresses = [
                    value.data_ptr() if size else 0 for value, size in zip(values, whole.sizes, strict=True)
                ]
                produced = self._copies.fetch(addresses, batch.produced(whole), None)
                if key is not None:
                    with suppress(CudaFailed):  # the answer is there; who comes next learns anew
                        self._keep(key, stage, wanted, whole)
                return produced
        finally:
            if stage not in self._stages.values():
                self._drop(stage)
        self._batch_max = 0  # some output has no row for each row
        plain = Batch(batch.source, batch.feeds, batch.feeds)
        return self._learn(None if key is None else shapes_key(plain.filled, wanted), plain, wanted)

    def _run_unbound(self, stage: Stage, batch: Batch, wanted: tuple[int, ...]) -> tuple[Any, Produced]:
        """Gives what the runtime made, which holds the outputs, and what they are."""
        binding = stage.binding = native.SessionIOBinding(self._session)
        given = iter(stage.offsets)
        for (name, element, late), feed in zip(self._inputs, batch.filled, strict=True):
            if feed is not None:
                bound = name, element, feed.shape, stage.inputs + next(given)
                if late:
                    stage.late.append(bound)
                    stage.here = True
                else:
                    self._bind(stage, bound)
        for index in wanted:
            name, _, made_here = self._outputs[index]
            stage.here |= made_here
            binding.bind_output(name, self._device)
        self._bring(stage, batch)
        self._session.run_with_iobinding(binding, self._eager)
        values = binding.get_outputs()
        shapes = tuple(tuple(value.shape()) for value in values)
        sizes = tuple(
            element_count(shape) * element.datatype.size
            for shape, element in zip(shapes, stage.elements, strict=True)
        )
        return values, Produced(shapes, sizes, None)

    def _keep(self, key: object, stage: Stage, wanted: tuple[int, ...], produced: Produced) -> None:
        """Have the next run of these shapes find its memory."""
        self._make_room()
        stage.produced = produced
        offsets, stage.out_bytes = layout(produced.sizes)
        stage.outputs = self._cuda.allocate(stage.out_bytes)
        stage.addresses = tuple(stage.outputs + offset for offset in offsets)
        for index, shape, address in zip(wanted, produced.shapes, stage.addresses, strict=True):
            name, element, _ = self._outputs[index]
            stage.binding.bind_output(name, self._device, element.number, shape, address)
        self._stages[key] = stage

    def _make_room(self) -> None:
        if len(self._stages) >= STAGES_MAX:
            key = next((key for key, stage in self._stages.items() if not stage.graph), None)
            if key is None:
                key = next(iter(self._stages))
            self._drop(self._stages.pop(key))

    def _forget(self) -> None:
        for stage in self._stages.values():
            self._drop(stage)
        self._stages.clear()

    def _drop(self, stage: Stage) -> None:
        stage.binding = None
        for address in (stage.inputs, stage.outputs):
            if address:
                self._cuda.free(address)
        stage.inputs = stage.outputs = 0

    # --- graphs

    def _capture(self, stage: Stage, shape: Produced, given: list[bytes]) -> None:
        """Capture the run of a combination, whose inputs lie on the device, and hold what a replay gives against the
        answer that was just ``given``."""
        try:
            with capturing(self._cuda):
                self._copies.leave()
                if not stage.graph:
                    self._graphs.made += 1
                    stage.graph = self._graphs.made
                    stage.options = _options(stage.graph, waits=False)
                self._session.run_with_iobinding(stage.binding, stage.options)
                self._copies.fill(stage.outputs, stage.out_bytes, SPOILT)
                self._session.run_with_iobinding(stage.binding, stage.options)
                replayed = self._copies.fetch(stage.addresses, shape, None)
        except NotNow:
            return  # the next run like this one tries again
        except Exception as problem:  # noqa: BLE001 - whatever it is, it goes without
            self._without_graphs(problem)
            return
        if alike(given, replayed.parts or (), stage.elements):
            stage.thread = threading.get_ident()
        else:
            self._graphs.on = False
            self._tell("a graph gave another answer than the run before it")

    def _without_graphs(self, problem: Exception) -> None:
        """A capture that failed leaves session and stream in a state that nothing gets them out of: make others, which
        try again where nothing is known against it but this once. First of all the capture is ended, or CUDA takes
        nothing back of what they have."""
        self._cuda.end_capture(self._copies.stream)
        self._end_if_dead(problem)
        if isinstance(run_error(problem, self._about.limit), DeviceFull):
            ran_short(self._cuda)
        self._graphs.failed += 1
        self._graphs.on = once_more(self._graphs.failed, problem)
        if self._graphs.on:
            tell_anew(self._about.key, str(problem))
        else:
            self._tell(str(problem))
        self._forget()
        self._graphs.lost, self._graphs.made = LostSession(*self._about), 0
        with whole_device():
            self._session = None
        with suppress(RunFailed):  # as where the device is full for a moment; the next run says what it was
            self._make_anew(self._graphs.lost)

    def _make_anew(self, lost: LostSession) -> None:
        with lost.attempt(), whole_device():
            self._copies.renew()
            made = self._make(self._copies.stream, self._graphs.on)
        self._session = made.session
        self._graphs.on = self._graphs.can = made.graphs
        self._graphs.lost = None

    def _tell(self, reason: str) -> None:
        tell_without_graphs(self._about.key, reason)

    def _end_if_dead(self, problem: Exception) -> None:
        """A context that is lost cannot be had again by this process; another one is started in its place."""
        end_if_lost(self._cuda, self._about.key, problem)


def holds_what_graphs_read(release: str) -> bool:
    """Whether a release of ONNX Runtime is from HOLDS_SINCE on."""
    return tuple(int(part) for part in re.findall(r"\d+", release)[:3]) >= HOLDS_SINCE


def _options(graph: int, *, waits: bool) -> Any:
    """Of a run that is waited for; else the copy after it is."""
    options = onnxruntime.RunOptions()
    options.add_run_config_entry(WAITS_NOT, "0" if waits else "1")
    options.add_run_config_entry(GRAPH_ID, str(graph))
    return options
