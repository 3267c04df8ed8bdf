"""NVIDIA's devices, read through NVML; the only file that knows it.

It looks and never sets or resets anything. A metric that the driver, the board or its virtual machine does not have is
None. A device that is lost stays in the list, and says so. A GPU with MIG on is not in the list, its instances are, in
its place; one that has none is, and says so.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from typing import Any, Final, NamedTuple

from appliance.domain.device import Device, DeviceKind, cuda
from appliance.domain.device_reading import MigTrouble, Reading, WholeBoard

try:
    import pynvml
except ImportError:  # the extra `gpu` brings it
    pynvml = None

XIDS_MAX: Final = 16
"""Of one reading; more are told by the next."""
CPU_WORDS: Final = 128
"""As many processors as a kernel can be built for, 64 in each."""
_NOTHING: Final = object()
_REASONS: Final = (
    (0x4, "software power cap"),
    (0x8, "hardware slowdown"),
    (0x20, "software thermal slowdown"),
    (0x40, "hardware thermal slowdown"),
    (0x80, "power brake"),
)


class Nvml:
    """The devices of one initialised NVML."""

    def __init__(self) -> None:
        """Raise ``OSError`` where there is no driver, or nobody to ask it."""
        if pynvml is None:
            raise OSError("nvidia-ml-py is not installed")
        try:
            pynvml.nvmlInit()
            self._driver = str(pynvml.nvmlSystemGetDriverVersion())
            count = int(pynvml.nvmlDeviceGetCount())
        except pynvml.NVMLError as problem:
            text = str(problem)
            raise OSError(text if text.startswith("NVML ") else f"NVML: {text}") from problem
        self._gpus: dict[Device, Any] = {}
        """Of each device the handle of the GPU that it is, or is part of; None: that is lost already."""
        for gpu in range(count):
            self._gpus |= self._found(gpu, len(self._gpus))
        self._events = {
            device: _xid_events(handle) for device, handle in self._gpus.items() if handle is not None
        }

    @property
    def devices(self) -> tuple[Device, ...]:
        """In the driver's order."""
        return tuple(self._gpus)

    def _found(self, gpu: int, index: int) -> dict[Device, Any]:
        """What the driver's ``gpu``-th GPU is to models, counted from ``index``."""
        try:
            handle = pynvml.nvmlDeviceGetHandleByIndex(gpu)
            whole = self._told(index, handle)
            found = _instances(handle).handles if whole.mig else {}
            parts = [_part(whole, index + n, uuid, own) for n, (uuid, own) in enumerate(found.items())]
            return dict.fromkeys(parts or [whole], handle)
        except (pynvml.NVMLError, _Lost, _DriverChanged):
            uuid = str(cuda(index))
            lost = Device(kind=DeviceKind.CUDA, index=index, uuid=uuid, name="NVIDIA", driver=self._driver)
            return {lost: None}

    def _told(self, index: int, handle: Any) -> Device:
        mode = _metric(pynvml.nvmlDeviceGetMigMode, handle)
        memory = _metric(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
        capability = _metric(pynvml.nvmlDeviceGetCudaComputeCapability, handle)
        return Device(
            kind=DeviceKind.CUDA,
            index=index,
            uuid=str(_metric(pynvml.nvmlDeviceGetUUID, handle) or str(cuda(index))),
            name=str(_metric(pynvml.nvmlDeviceGetName, handle) or "NVIDIA"),
            driver=self._driver,
            memory_bytes=None if memory is None else int(memory.total),
            capability=None if capability is None else (int(capability[0]), int(capability[1])),
            near=_near(handle),
            mig=None if mode is None else bool(mode[0]),
        )

    def read(self, device: Device) -> Reading:
        """How the device is now; some hundred microseconds."""
        gpu = self._gpus[device]
        if gpu is None:
            return Reading(lost=True)
        try:
            reading = _read(device, gpu)
        except _Lost:
            reading = Reading(lost=True)
        except _DriverChanged:
            return Reading(driver_changed=True)
        return replace(reading, xids=self._xids(device))

    def close(self) -> None:
        """Let go of the driver."""
        for events in filter(None, self._events.values()):
            with suppress(pynvml.NVMLError):
                pynvml.nvmlEventSetFree(events)
        self._events.clear()
        with suppress(pynvml.NVMLError):
            pynvml.nvmlShutdown()

    def _xids(self, device: Device) -> tuple[int, ...]:
        events, found = self._events.get(device), list[int]()
        if events is not None:
            with suppress(pynvml.NVMLError):  # most often: there is none
                while len(found) < XIDS_MAX:
                    found.append(int(pynvml.nvmlEventSetWait_v2(events, 0).eventData))
        return tuple(found)


class _Lost(Exception):
    """The device cannot be reached."""


class _DriverChanged(Exception):
    """The driver in the kernel is not the one whose library is loaded here, or none any more."""


def _metric(call: Callable[..., Any], *arguments: Any) -> Any:
    """What ``call`` gives; None where that is not told here."""
    try:
        return call(*arguments)
    except pynvml.NVMLError as problem:
        if problem.value in {pynvml.NVML_ERROR_GPU_IS_LOST, pynvml.NVML_ERROR_RESET_REQUIRED}:
            raise _Lost from problem
        if problem.value in {
            pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
            pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
            pynvml.NVML_ERROR_UNINITIALIZED,
        }:
            raise _DriverChanged from problem
        return None


def _first(told: Any, before: Callable[[], Any]) -> Any:
    """What was told; where a driver is too old for the question, what it tells by the name that this had ``before``:
    release 550 knows the old one of temperature alone."""
    return before() if told is None else told


def _near(gpu: Any) -> tuple[int, ...] | None:
    """The processors nearest to a GPU. (Which NUMA node it is says of none where that is: that is of GPUs whose own
    memory is a node.)"""
    words = _metric(pynvml.nvmlDeviceGetCpuAffinity, gpu, CPU_WORDS)
    if words is None:
        return None
    return tuple(64 * place + bit for place, word in enumerate(words) for bit in range(64) if word >> bit & 1)


class _Instances(NamedTuple):
    """Handles of the instances that there are now, by their UUID. ``all_told``: nothing kept the driver from telling of
    another one."""

    handles: dict[str, Any]
    all_told: bool


def _instances(gpu: Any) -> _Instances:
    found, all_told = dict[str, Any](), True
    count = _metric(pynvml.nvmlDeviceGetMaxMigDeviceCount, gpu)
    for index in range(count or 0):
        own = _metric(_instance, gpu, index)
        if own is _NOTHING:
            continue
        uuid = None if own is None else _metric(pynvml.nvmlDeviceGetUUID, own)
        if uuid is None:  # nothing can run on one that cannot be named
            all_told = False
        else:
            found[str(uuid)] = own
    return _Instances(found, all_told and count is not None)


def _instance(gpu: Any, index: int) -> Any:
    """The handle of an instance; _NOTHING where the driver says that there is none."""
    try:
        return pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, index)
    except pynvml.NVMLError_NotFound:
        return _NOTHING


def _part(whole: Device, index: int, uuid: str, own: Any) -> Device:
    """The instance of ``whole`` that the handle ``own`` is of."""
    memory = _metric(pynvml.nvmlDeviceGetMemoryInfo, own, pynvml.nvmlMemory_v2)
    return replace(
        whole,
        index=index,
        uuid=uuid,
        name=str(_metric(pynvml.nvmlDeviceGetName, own) or f"{whole.name} MIG"),
        memory_bytes=None if memory is None else int(memory.total),
        instance_of=whole.uuid,
    )


def _read(device: Device, gpu: Any) -> Reading:
    mode = _metric(pynvml.nvmlDeviceGetMigMode, gpu)
    if mode is not None and bool(mode[0]) is not bool(device.mig):
        return Reading(mig_trouble=MigTrouble.SWITCHED)
    reading = _health(gpu, _load(gpu, Reading()))
    if not device.instance_of:
        return replace(_memory(gpu, reading), mig_trouble=MigTrouble.EMPTY if device.mig else None)
    found = _instances(gpu)
    own = found.handles.get(device.uuid)
    if own is None and found.all_told:
        return Reading(mig_trouble=MigTrouble.REMOVED)
    board = WholeBoard(
        uuid=device.instance_of,
        power_w=reading.power_w,
        power_limit_w=reading.power_limit_w,
        energy_j=reading.energy_j,
    )
    alone = replace(reading, power_w=None, power_limit_w=None, energy_j=None, utilization=None, board=board)
    return alone if own is None else _memory(own, alone)


def _load(handle: Any, reading: Reading) -> Reading:
    power = _metric(pynvml.nvmlDeviceGetPowerUsage, handle)
    limit = _metric(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle)
    energy = _metric(pynvml.nvmlDeviceGetTotalEnergyConsumption, handle)
    busy = _metric(pynvml.nvmlDeviceGetUtilizationRates, handle)
    return replace(
        reading,
        power_w=None if power is None else power / 1_000,
        power_limit_w=None if limit is None else limit / 1_000,
        energy_j=None if energy is None else energy / 1_000,
        temperature_c=_first(
            _metric(pynvml.nvmlDeviceGetTemperatureV, handle, pynvml.NVML_TEMPERATURE_GPU),
            lambda: _metric(pynvml.nvmlDeviceGetTemperature, handle, pynvml.NVML_TEMPERATURE_GPU),
        ),
        sm_clock_mhz=_metric(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=_metric(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        utilization=None if busy is None else busy.gpu / 100,
    )


def _memory(handle: Any, reading: Reading) -> Reading:
    memory = _metric(pynvml.nvmlDeviceGetMemoryInfo, handle, pynvml.nvmlMemory_v2)
    processes = _metric(pynvml.nvmlDeviceGetComputeRunningProcesses_v3, handle)
    return replace(
        reading,
        memory_used_bytes=None if memory is None else int(memory.used),
        memory_free_bytes=None if memory is None else int(memory.free),
        processes=None
        if processes is None
        else {each.pid: each.usedGpuMemory for each in processes if each.usedGpuMemory is not None},
    )


def _health(handle: Any, reading: Reading) -> Reading:
    reasons = _first(
        _metric(pynvml.nvmlDeviceGetCurrentClocksEventReasons, handle),
        lambda: _metric(pynvml.nvmlDeviceGetCurrentClocksThrottleReasons, handle),
    )
    rows = _metric(pynvml.nvmlDeviceGetRemappedRows, handle)
    corrected, uncorrected = (
        pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED,
        pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
    )
    return replace(
        reading,
        throttle=None if reasons is None else tuple(name for bit, name in _REASONS if reasons & bit),
        ecc_corrected=_metric(
            pynvml.nvmlDeviceGetTotalEccErrors, handle, corrected, pynvml.NVML_VOLATILE_ECC
        ),
        ecc_uncorrected=_metric(
            pynvml.nvmlDeviceGetTotalEccErrors, handle, uncorrected, pynvml.NVML_VOLATILE_ECC
        ),
        remapped_rows=None if rows is None else rows[0] + rows[1],
        remap_pending=None if rows is None else bool(rows[2]),
        remap_failed=None if rows is None else bool(rows[3]),
        pcie_replays=_metric(pynvml.nvmlDeviceGetPcieReplayCounter, handle),
        pcie_generation=_metric(pynvml.nvmlDeviceGetCurrPcieLinkGeneration, handle),
        pcie_width=_metric(pynvml.nvmlDeviceGetCurrPcieLinkWidth, handle),
    )


def _xid_events(handle: Any) -> Any:
    """What collects the errors of the device; None where it reports none."""
    try:
        events = pynvml.nvmlEventSetCreate()
    except pynvml.NVMLError:
        return None
    try:
        pynvml.nvmlDeviceRegisterEvents(handle, pynvml.nvmlEventTypeXidCriticalError, events)
    except pynvml.NVMLError:
        pynvml.nvmlEventSetFree(events)
        return None
    return events
