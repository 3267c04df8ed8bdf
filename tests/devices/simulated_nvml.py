"""A simulated NVML under the real ``pynvml``: it fills the same structures that the driver's library fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

ANY = "*"
"""In the place of a function's name: whatever is asked."""
_BY_INDEX = ("nvmlDeviceGetHandleByIndex_v2",)
_OF_INSTANCES = (
    "nvmlDeviceGetUUID",
    "nvmlDeviceGetName",
    "nvmlDeviceGetMemoryInfo_v2",
    "nvmlDeviceGetComputeRunningProcesses_v3",
)
"""What NVML tells of an instance; all else is its GPU's."""


@dataclass
class Board:
    """What the simulated driver tells; ``errors`` by the function's name are returned in place of an answer."""

    energy_mj: int = 2_524_930
    power_mw: int = 80_628
    reasons: int = 0x4
    rows: tuple[int, int, int, int] = (1, 0, 0, 0)
    processes: tuple[tuple[int, int], ...] = ((4711, 512 << 20),)
    xids: list[int] = field(default_factory=list)
    errors: dict[str, int] = field(default_factory=dict)
    ecc: int = 0
    near: tuple[int, ...] = (0, 1)
    memory_bytes: int = 80 << 30
    used_bytes: int = 1 << 30
    uuid: str = "GPU-simulated"
    name: str = "simulated"
    capability: tuple[int, int] = (9, 0)
    mig: bool = False
    instances: dict[int, Board] = field(default_factory=dict)
    """Those of MIG by their place, of which some may be empty; of each, its memory, processes, name and UUID count."""


INSTANCES_MAX = 7
"""Places for instances, as an A100 has."""


class SimulatedNvml:
    """Stands where ``pynvml`` keeps the library: functions by name, with the C calling convention. ``boards`` are the
    devices in order; what is asked of none of them is the first one's."""

    def __init__(self, *boards: Board) -> None:
        self.board = boards[0]
        self.boards = boards
        self._handles: list[tuple[Any, Board]] = []
        """Of devices and of sets of events, which are told apart by what they are."""
        self._told: dict[int, int] = {}
        """How many errors of its device each set of events has told; all of them are in ``_handles``, and stay."""

    def _of(self, handle: Any) -> Board:
        return next((board for known, board in self._handles if known is handle), self.board)

    def __getattr__(self, name: str) -> Callable[..., int]:
        """A function that the real library has; AttributeError, as ctypes says it, for what this driver lacks."""
        if self.board.errors.get(name) == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise AttributeError(name)
        value = _NUMBERS.get(name)

        def call(*arguments: Any) -> int:
            board = self._of(arguments[0]) if arguments else self.board
            if name in _BY_INDEX:
                board = self.boards[arguments[0].value]
            elif name not in _OF_INSTANCES and not any(board is gpu for gpu in self.boards):
                return int(pynvml.NVML_ERROR_NOT_SUPPORTED)
            error = board.errors.get(name, board.errors.get(ANY))
            if error is not None:
                return error
            if value is not None:
                return _set(arguments[-1], value(board))
            if name == "nvmlDeviceGetCount_v2":
                return _set(arguments[-1], len(self.boards))
            return getattr(self, f"_{name}")(*arguments)  # type: ignore[no-any-return]

        return call

    def _nvmlInitWithFlags(self, _: int) -> int:  # noqa: N802
        return 0

    def _nvmlShutdown(self) -> int:  # noqa: N802
        return 0

    def _nvmlSystemGetDriverVersion(self, text: Any, _: Any) -> int:  # noqa: N802
        text.value = b"simulated"
        return 0

    def _nvmlDeviceGetHandleByIndex_v2(self, index: Any, handle: Any) -> int:  # noqa: N802
        self._handles.append((handle._obj, self.boards[index.value]))
        return 0

    def _nvmlDeviceGetUUID(self, handle: Any, text: Any, __: Any) -> int:  # noqa: N802
        text.value = self._of(handle).uuid.encode()
        return 0

    def _nvmlDeviceGetName(self, handle: Any, text: Any, __: Any) -> int:  # noqa: N802
        text.value = self._of(handle).name.encode()
        return 0

    def _nvmlDeviceGetCudaComputeCapability(self, handle: Any, major: Any, minor: Any) -> int:  # noqa: N802
        told = self._of(handle).capability
        return _set(major, told[0]) + _set(minor, told[1])

    def _nvmlDeviceGetMigMode(self, handle: Any, now: Any, pending: Any) -> int:  # noqa: N802
        return _set(now, int(self._of(handle).mig)) + _set(pending, int(self._of(handle).mig))

    def _nvmlDeviceGetMaxMigDeviceCount(self, _: Any, count: Any) -> int:  # noqa: N802
        return _set(count, INSTANCES_MAX)

    def _nvmlDeviceGetMigDeviceHandleByIndex(self, gpu: Any, index: Any, handle: Any) -> int:  # noqa: N802
        instance = self._of(gpu).instances.get(index.value)
        if instance is None:
            return int(pynvml.NVML_ERROR_NOT_FOUND)
        self._handles.append((handle._obj, instance))
        return 0

    def _nvmlDeviceGetCpuAffinity(self, handle: Any, count: Any, words: Any) -> int:  # noqa: N802
        for cpu in self._of(handle).near:
            words._obj[cpu // 64] |= 1 << cpu % 64
        return 0

    def _nvmlDeviceGetMemoryInfo_v2(self, handle: Any, memory: Any) -> int:  # noqa: N802
        board, told = self._of(handle), memory._obj
        told.total, told.used = board.memory_bytes, board.used_bytes
        told.free = board.memory_bytes - board.used_bytes
        return 0

    def _nvmlDeviceGetTemperatureV(self, _: Any, told: Any) -> int:  # noqa: N802
        told._obj.temperature = 38
        return 0

    def _nvmlDeviceGetTemperature(self, _: Any, __: Any, told: Any) -> int:  # noqa: N802
        return _set(told, 38)

    def _nvmlDeviceGetUtilizationRates(self, _: Any, told: Any) -> int:  # noqa: N802
        told._obj.gpu, told._obj.memory = 50, 10
        return 0

    def _nvmlDeviceGetRemappedRows(self, handle: Any, *told: Any) -> int:  # noqa: N802
        return sum(_set(each, value) for each, value in zip(told, self._of(handle).rows, strict=True))

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, handle: Any, count: Any, room: Any) -> int:  # noqa: N802
        have = self._of(handle).processes
        if room is None or count._obj.value < len(have):
            count._obj.value = len(have)
            return pynvml.NVML_ERROR_INSUFFICIENT_SIZE if have else 0
        for index, (pid, used) in enumerate(have):
            room[index].pid, room[index].usedGpuMemory = pid, used
        return _set(count, len(have))

    def _nvmlEventSetCreate(self, _: Any) -> int:  # noqa: N802
        return 0

    def _nvmlEventSetFree(self, _: Any) -> int:  # noqa: N802
        return 0

    def _nvmlDeviceRegisterEvents(self, handle: Any, _: Any, events: Any) -> int:  # noqa: N802
        self._handles.append((events, self._of(handle)))
        return 0

    def _nvmlEventSetWait_v2(self, events: Any, data: Any, __: Any) -> int:  # noqa: N802
        xids, told = self._of(events).xids, self._told.get(id(events), 0)
        if told >= len(xids):
            return int(pynvml.NVML_ERROR_TIMEOUT)
        data._obj.eventData, self._told[id(events)] = xids[told], told + 1
        return 0


_NUMBERS: dict[str, Callable[[Board], int]] = {
    "nvmlDeviceGetPowerUsage": lambda board: board.power_mw,
    "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
    "nvmlDeviceGetTotalEnergyConsumption": lambda board: board.energy_mj,
    "nvmlDeviceGetClockInfo": lambda _: 345,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda board: board.reasons,
    "nvmlDeviceGetCurrentClocksThrottleReasons": lambda board: board.reasons,
    "nvmlDeviceGetTotalEccErrors": lambda board: board.ecc,
    "nvmlDeviceGetPcieReplayCounter": lambda _: 1,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 5,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda _: 16,
}


def _set(reference: Any, value: int) -> int:
    reference._obj.value = value
    return 0
