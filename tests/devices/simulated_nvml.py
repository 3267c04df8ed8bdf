"""A simulated NVML under the real ``pynvml``: it fills the same structures that the driver's library fills."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml


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


class SimulatedNvml:
    """Stands where ``pynvml`` keeps the library: functions by name, with the C calling convention."""

    def __init__(self, board: Board) -> None:
        self.board = board

    def __getattr__(self, name: str) -> Callable[..., int]:
        """A function that the real library has; AttributeError, as ctypes says it, for what this driver lacks."""
        error = self.board.errors.get(name)
        if error == pynvml.NVML_ERROR_FUNCTION_NOT_FOUND:
            raise AttributeError(name)
        if error is not None:
            return lambda *_: error
        value = _NUMBERS.get(name)
        if value is not None:
            return lambda *arguments: _set(arguments[-1], value(self.board))
        return getattr(self, f"_{name}")  # type: ignore[no-any-return]

    def _nvmlInitWithFlags(self, _: int) -> int:  # noqa: N802
        return 0

    def _nvmlShutdown(self) -> int:  # noqa: N802
        return 0

    def _nvmlSystemGetDriverVersion(self, text: Any, _: Any) -> int:  # noqa: N802
        text.value = b"simulated"
        return 0

    def _nvmlDeviceGetHandleByIndex_v2(self, _: Any, __: Any) -> int:  # noqa: N802
        return 0

    def _nvmlDeviceGetUUID(self, _: Any, text: Any, __: Any) -> int:  # noqa: N802
        text.value = b"GPU-simulated"
        return 0

    def _nvmlDeviceGetName(self, _: Any, text: Any, __: Any) -> int:  # noqa: N802
        text.value = b"simulated"
        return 0

    def _nvmlDeviceGetCudaComputeCapability(self, _: Any, major: Any, minor: Any) -> int:  # noqa: N802
        return _set(major, 9) + _set(minor, 0)

    def _nvmlDeviceGetMigMode(self, _: Any, now: Any, pending: Any) -> int:  # noqa: N802
        return _set(now, 0) + _set(pending, 0)

    def _nvmlDeviceGetMemoryInfo_v2(self, _: Any, memory: Any) -> int:  # noqa: N802
        memory._obj.total, memory._obj.used, memory._obj.free = 80 << 30, 1 << 30, 79 << 30
        return 0

    def _nvmlDeviceGetTemperatureV(self, _: Any, told: Any) -> int:  # noqa: N802
        told._obj.temperature = 38
        return 0

    def _nvmlDeviceGetUtilizationRates(self, _: Any, told: Any) -> int:  # noqa: N802
        told._obj.gpu, told._obj.memory = 50, 10
        return 0

    def _nvmlDeviceGetRemappedRows(self, _: Any, *told: Any) -> int:  # noqa: N802
        return sum(_set(each, value) for each, value in zip(told, self.board.rows, strict=True))

    def _nvmlDeviceGetComputeRunningProcesses_v3(self, _: Any, count: Any, room: Any) -> int:  # noqa: N802
        have = self.board.processes
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

    def _nvmlDeviceRegisterEvents(self, *_: Any) -> int:  # noqa: N802
        return 0

    def _nvmlEventSetWait_v2(self, _: Any, data: Any, __: Any) -> int:  # noqa: N802
        if not self.board.xids:
            return int(pynvml.NVML_ERROR_TIMEOUT)
        data._obj.eventData = self.board.xids.pop(0)
        return 0


_NUMBERS: dict[str, Callable[[Board], int]] = {
    "nvmlDeviceGetCount_v2": lambda _: 1,
    "nvmlDeviceGetNumaNodeId": lambda _: 0,
    "nvmlDeviceGetPowerUsage": lambda board: board.power_mw,
    "nvmlDeviceGetEnforcedPowerLimit": lambda _: 700_000,
    "nvmlDeviceGetTotalEnergyConsumption": lambda board: board.energy_mj,
    "nvmlDeviceGetClockInfo": lambda _: 345,
    "nvmlDeviceGetCurrentClocksEventReasons": lambda board: board.reasons,
    "nvmlDeviceGetTotalEccErrors": lambda _: 0,
    "nvmlDeviceGetPcieReplayCounter": lambda _: 1,
    "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 5,
    "nvmlDeviceGetCurrPcieLinkWidth": lambda _: 16,
}


def _set(reference: Any, value: int) -> int:
    reference._obj.value = value
    return 0
