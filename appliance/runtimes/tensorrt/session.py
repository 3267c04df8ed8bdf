"""Run an engine.

All memory of tensors is taken when the session is made. Copies go as ``device_copies`` says, on the stream on which the
engine runs, so that a run is a copy in, the engine, a copy out and one wait. Batches are filled up to one of a few
sizes; runs of shapes that come again are captured as CUDA graphs. A request outside of all profiles is refused with
their limits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from typing import Final, NamedTuple

from appliance.devices.cuda import Cuda, CudaFailed
from appliance.domain.errors import ApplianceError, DeviceFull, DeviceHasNoRoom, LoadFailed, RunFailed
from appliance.domain.model import ModelVersion
from appliance.runtimes.buckets import bucket, cut, rows_of
from appliance.runtimes.device_copies import DeviceCopies, layout
from appliance.runtimes.device_graphs import ran_short
from appliance.runtimes.device_limit import full_text, is_full
from appliance.runtimes.lost_device import end_if_lost
from appliance.runtimes.overlapped import BegunRun
from appliance.runtimes.runtime import Feed, Place, Produced, Region
from appliance.runtimes.tensorrt.contexts import Contexts, Engine, Setting
from appliance.runtimes.tensorrt.graphs import Graphs

PLANS_MAX: Final = 256
"""Requests that are known by their shapes and the outputs that they want."""


class _Plan(NamedTuple):
    """A request: of ``rows`` rows in a batch of ``size``, 0 of each where it is taken as it is. Its inputs go to
    ``offsets`` of their block; of its outputs at ``addresses`` ``produced`` is wanted."""

    setting: Setting
    rows: int
    size: int
    offsets: tuple[int, ...]
    addresses: tuple[int, ...]
    produced: Produced


class EngineSession:
    """A loaded engine, which takes ``engine_bytes`` of the device by itself, and ``room_bytes`` at most beside (0: what
    there is). Closes whatever came before."""

    measurable = True
    weights = None

    def __init__(
        self,
        engine: Engine,
        engine_bytes: int,
        version: ModelVersion,
        cuda: Cuda,
        *,
        graphs: bool = True,
        room_bytes: int = 0,
    ) -> None:
        """Take all memory that runs need. Raises LoadFailed."""
        self._version = version
        self._cuda = cuda
        self._engine_bytes = engine_bytes
        self._contexts = Contexts(engine, version, cuda, room_bytes)
        self.inputs, self.outputs = self._contexts.inputs, self._contexts.outputs
        try:
            self._copies = DeviceCopies(cuda)
        except CudaFailed as problem:
            raise _not_ready(version, problem) from problem
        self._graphs = Graphs(self._contexts, cuda, self._copies, version.key, on=graphs)
        self._plans: dict[object, _Plan] = {}
        self._batch_max = 0 if version.batching is None else version.max_batch_size
        """What batches are filled up to at most; 0: they are not, as in ``onnx_cuda``."""
        try:
            self._contexts.open(self._copies.stream)
            for block in (self._contexts.block_in, self._contexts.block_out):
                # nothing of others is left there
                self._copies.fill(block.address, block.nbytes, 0)
            cuda.finish(self._copies.stream)
        except Exception as problem:
            self.close()
            raise _not_ready(version, problem) from problem

    @property
    def limits(self) -> str:
        """The shapes that it takes, for people."""
        return self._contexts.limits

    def holds(self, feeds: tuple[Feed | None, ...]) -> bool:
        """Whether it takes these shapes."""
        return self._contexts.holds({name: feed.shape for name, feed in self._named(feeds)})

    @property
    def batch_sizes(self) -> tuple[int, ...]:
        """The sizes that batches are filled up to."""
        return tuple(sorted({bucket(rows, self._batch_max) for rows in range(1, self._batch_max + 1)}))

    def pin(self, nbytes: int) -> Region:
        """Memory that the device copies from and to by itself. Raises RunFailed."""
        return self._copies.pin(nbytes)

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """In place where the outputs fit, else in pinned memory until the next run."""
        self._enter()
        key = _key(feeds, wanted)
        plan = self._plans.get(key)
        if plan is None:
            plan = self._plan(feeds, wanted)
            if len(self._plans) >= PLANS_MAX:
                self._plans.clear()
            self._plans[key] = plan
        return self._go(plan, source, feeds, place)

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """The plan that ``run`` has kept: shapes of outputs follow from those of the inputs. Overlapped as in
        ``onnx_cuda``."""
        plan = self._plans.get(_key(feeds, wanted))
        if plan is None or layout(plan.produced.sizes)[1] > place.capacity:
            return None
        again = partial(self._again, plan, source, feeds, place)
        if source.pinned is None or place.region.pinned is None:
            return again
        if self._graphs.open(plan.setting):
            return None
        return BegunRun(
            self._copies, again, partial(self._begin_alone, plan, source, feeds, place), self._failed
        )

    def memory(self) -> int:
        """The engine, what its contexts compute in, and the tensors."""
        return self._engine_bytes + self._contexts.nbytes

    def close(self) -> None:
        """Wait for what may still run, then give back graphs, contexts, memory and engine, in this order, in whatever
        thread: what TensorRT gives back, too, is of this device."""
        with suppress(CudaFailed):
            self._cuda.enter()
        self._settle()
        self._graphs.close()
        self._plans.clear()
        self._contexts.close()
        self._copies.close()

    # --- what a request needs

    def _named(self, feeds: tuple[Feed | None, ...]) -> Iterator[tuple[str, Feed]]:
        for spec, feed in zip(self._version.inputs, feeds, strict=True):
            if feed is not None:
                yield spec.name, feed

    def _plan(self, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], *, fill: bool = True) -> _Plan:
        """What a run does, in a batch that is filled up if it may be. Raises InvalidRequest where no profile holds its
        shapes."""
        asked = {name: feed.shape for name, feed in self._named(feeds)}
        rows = rows_of(feeds) if fill and self._batch_max else 0
        size = bucket(rows, self._batch_max) if rows else 0
        shapes = {name: (size, *shape[1:]) if size > rows else shape for name, shape in asked.items()}
        setting = self._contexts.setting(shapes, asked)
        names = [port.name for port in self.outputs]
        at = [names.index(self._version.outputs[index].name) for index in wanted]
        produced = Produced(
            tuple(setting.produced.shapes[each] for each in at),
            tuple(setting.produced.sizes[each] for each in at),
            None,
        )
        if size > rows and any(shape[:1] != (size,) for shape in produced.shapes):
            return self._plan(feeds, wanted, fill=False)  # some output has no row for each row
        return _Plan(
            setting,
            rows,
            size,
            tuple(setting.addresses[name] - self._contexts.block_in.address for name in asked),
            tuple(setting.addresses[names[each]] for each in at),
            cut(produced, size, rows) if size > rows else produced,
        )

    # --- a run

    def _enter(self) -> None:
        """Have this thread use the device."""
        try:
            self._cuda.enter()
        except CudaFailed as problem:
            raise RunFailed(f"the device failed this run: {problem}") from problem

    def _again(self, plan: _Plan, source: Region, feeds: tuple[Feed | None, ...], place: Place) -> None:
        self._enter()
        self._go(plan, source, feeds, place)

    def _begin_alone(self, plan: _Plan, source: Region, feeds: tuple[Feed | None, ...], place: Place) -> None:
        self._enter()
        self._begin(plan, source, feeds)
        self._copies.begin_fetch(plan.addresses, plan.produced.sizes, place)

    def _failed(self, problem: Exception) -> None:
        """What failed on the way has ended, too."""
        self._settle()
        end_if_lost(self._cuda, self._version.key, problem)

    def _go(self, plan: _Plan, source: Region, feeds: tuple[Feed | None, ...], place: Place) -> Produced:
        """Do it, and wait for its end."""
        try:
            return self._do(plan, source, feeds, place)
        except Exception as problem:
            self._failed(problem)
            error = _run_error(problem)
            if isinstance(error, DeviceFull):
                ran_short(self._cuda)
            if error is problem:
                raise
            raise error from problem

    def _do(self, plan: _Plan, source: Region, feeds: tuple[Feed | None, ...], place: Place) -> Produced:
        self._begin(plan, source, feeds)
        produced = self._copies.fetch(plan.addresses, plan.produced, place)
        if self._graphs.wanted(plan.setting):
            self._graphs.capture(plan.setting)
        return produced

    def _begin(self, plan: _Plan, source: Region, feeds: tuple[Feed | None, ...]) -> None:
        """Begin to copy the inputs, and to run."""
        setting = plan.setting
        self._copies.bring(source, feeds, self._contexts.block_in.address, plan.offsets)
        self._clear(plan, feeds)
        if setting.graph:
            self._cuda.launch(setting.graph, self._copies.stream)
        else:
            self._contexts.run(setting, self._copies.stream)
            setting.runs += 1

    def _clear(self, plan: _Plan, feeds: tuple[Feed | None, ...]) -> None:
        """Have zeros in the rows that fill a batch up, whatever ran in this memory before, or lay between inputs and
        was copied with them."""
        if plan.rows < plan.size:
            given = (feed for feed in feeds if feed is not None)
            for feed, offset in zip(given, plan.offsets, strict=True):
                row = feed.nbytes // plan.rows
                start = self._contexts.block_in.address + offset + feed.nbytes
                self._copies.fill(start, (plan.size - plan.rows) * row, 0)

    def _settle(self) -> None:
        """Nothing writes into memory any more that the next run uses; a device that failed has nothing more to wait
        for."""
        with suppress(Exception):
            self._cuda.finish(self._copies.stream)


def _not_ready(version: ModelVersion, problem: Exception) -> LoadFailed:
    """Why an engine is not loaded that was opened."""
    reason = str(problem)
    if isinstance(problem, DeviceHasNoRoom | DeviceFull):
        return DeviceHasNoRoom(f"{version.key}: {reason}")
    if is_full(reason):
        return DeviceHasNoRoom(f"{version.key}: {full_text(reason)}")
    return LoadFailed(f"{version.key}: its engine cannot be made ready: {reason}")


def _run_error(problem: Exception) -> ApplianceError:
    """Why a run failed."""
    if isinstance(problem, ApplianceError):
        return problem
    reason = str(problem)
    return (
        DeviceFull(full_text(reason))
        if is_full(reason)
        else RunFailed(f"the device failed this run: {reason}")
    )


def _key(feeds: tuple[Feed | None, ...], wanted: tuple[int, ...]) -> object:
    return (tuple(feed and feed.shape for feed in feeds), wanted)
