"""The CUDA graphs of one engine's runs. Each is captured from a context of its own, as TensorRT forbids to change one
from which a graph was captured, and used once a replay gave what the run before it gave. Where one cannot be had, and
not for what others may have spoilt alone, that is said once, and none is used any more."""

from __future__ import annotations

from contextlib import suppress
from functools import partial

from appliance.devices.cuda import Cuda, CudaFailed
from appliance.domain.errors import DeviceFull, DeviceHasNoRoom
from appliance.runtimes.device_copies import DeviceCopies
from appliance.runtimes.device_graphs import (
    CAPTURE_AFTER,
    GRAPHS_MAX,
    SPOILT,
    NotNow,
    alike,
    capturing,
    once_more,
    ran_short,
    tell_without_graphs,
)
from appliance.runtimes.device_limit import is_full
from appliance.runtimes.lost_device import end_if_lost
from appliance.runtimes.onnx_elements import BY_DATATYPE
from appliance.runtimes.tensorrt.contexts import Contexts, Setting, tell


class Graphs:
    """Of the version called ``key``; ``on``: they are wanted."""

    def __init__(self, contexts: Contexts, cuda: Cuda, copies: DeviceCopies, key: str, *, on: bool) -> None:
        self._contexts = contexts
        self._cuda = cuda
        self._copies = copies
        self._key = key
        self._on = on
        self._failed = 0
        self.captured: list[Setting] = []

    def open(self, setting: Setting) -> bool:
        """Whether a run is still to be captured, now or later on."""
        return self._on and not setting.graph and len(self.captured) < GRAPHS_MAX

    def wanted(self, setting: Setting) -> bool:
        """Whether a run is to be captured now."""
        return self.open(setting) and setting.runs >= CAPTURE_AFTER

    def capture(self, setting: Setting) -> None:
        """Capture the run of these shapes, whose inputs lie on the device as does what the run gave that was just done.
        The process ends where that loses the device; nothing is raised."""
        graph, stream = 0, self._copies.stream
        try:
            with capturing(self._cuda):
                self._copies.leave()
                given = self._answers(setting)
                context = self._contexts.another(setting.profile, stream)
                tell(context, setting)
                context.run(stream)  # the first run of a context does what cannot be captured
                self._cuda.finish(stream)
                graph = self._cuda.capture(stream, partial(context.run, stream))
                self._copies.fill(self._contexts.block_out.address, setting.out_bytes, SPOILT)
                self._cuda.launch(graph, stream)
                replayed = self._answers(setting)
        except NotNow:
            return  # the next run like this one tries again
        except Exception as problem:  # noqa: BLE001 - whatever it is, it goes without
            with suppress(Exception):
                self._cuda.finish(stream)
            end_if_lost(self._cuda, self._key, problem)
            if isinstance(problem, DeviceFull | DeviceHasNoRoom) or is_full(str(problem)):
                ran_short(self._cuda)
            self._failed += 1
            if not once_more(self._failed, problem):
                self._go_without(graph, str(problem))
            elif graph:
                self._cuda.end_graph(graph)
            # Who knows what the capture has left in this stream. Where there is no other for a moment, it goes on: as a
            # capture it has been ended.
            with suppress(CudaFailed):
                self._copies.renew()
            return
        elements = [BY_DATATYPE[port.datatype] for port in self._contexts.outputs]
        if alike(given, [memoryview(each) for each in replayed], elements):
            setting.graph, setting.context = graph, context
            self.captured.append(setting)
        else:
            self._go_without(graph, "a graph gave another answer than the run before it")

    def close(self) -> None:
        """Give all back. Nothing of them may run any more."""
        for setting in self.captured:
            self._cuda.end_graph(setting.graph)
            setting.graph, setting.context = 0, None
        self.captured.clear()

    def _answers(self, setting: Setting) -> list[bytes]:
        """All outputs as they lie on the device once the stream is done."""
        addresses = [setting.addresses[port.name] for port in self._contexts.outputs]
        fetched = self._copies.fetch(addresses, setting.produced, None)
        return [bytes(part) for part in fetched.parts or ()]

    def _go_without(self, graph: int, reason: str) -> None:
        if graph:
            self._cuda.end_graph(graph)
        self._on = False
        self.close()
        tell_without_graphs(self._key, reason)
