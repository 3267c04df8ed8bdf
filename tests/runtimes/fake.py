"""A runtime for tests, without any vendor: it copies inputs to outputs and, when told, behaves badly.

Found by the entry point of the distribution in ``tests/plugins``. The version's parameter ``mode`` selects how it
behaves:

- ``identity`` (the default): output i is input i (modulo the number of inputs), bytes and shape
- ``delay``: the same after ``delay_ms``
- ``crash``: the process dies by SIGSEGV at run number ``crash_after`` (default 1), or, when ``magic`` is given, at the
  first run with a row whose first byte is ``magic``
- ``crash_at_load``: the process dies by SIGSEGV
- ``linger``: undoes that it dies with its parent, closes its lane, at once or when it is through its ``gate`` if it
  ``waits``, and never comes back
- ``hang``: never comes back, provoked as ``crash`` is; ``hang_at_load``
- ``fail``: raises RunFailed, provoked as ``crash`` is
- ``fail_at_load``: raises LoadFailed
- ``forbidden``: with every run makes ``times`` sockets and raises RunFailed with what came of it;
  ``forbidden_at_load``: one, and raises LoadFailed
- ``tell_device``: raises LoadFailed with the device that it is given and what C says that CUDA may see
- ``tell_room``: raises LoadFailed with how much of its device a session may take
- ``use_at_load``: opens the device at ``path`` and raises LoadFailed with what came of it
- ``fork``: leaves a process behind with every run, which holds all that the worker has and never ends
- ``eat_memory``: allocates ``bytes`` more with every run and keeps them
- ``look``: raises RunFailed with where it can reach the bytes whose complement is ``secret`` (hexadecimal)
- ``wrong``: eats ``bytes``, if any, and writes the bytes ``say`` (hexadecimal) into the worker's lane, then goes on as
  identity
- ``shout``: has writes to standard error wait, writes ``words`` there, then goes on as identity
- ``evictable_bytes`` as a parameter beside any mode: the session says that its weights can be evicted, and that these
  are the bytes; ``page_in_fails`` gives the reason for which paging in fails, ``page_in_gate`` is for that what
  ``gate`` is for runs
- ``hold_bytes`` as a parameter beside any mode: the session takes so much memory when it is loaded
- ``gate`` as a parameter beside any mode: while there is a named pipe at this path, each run first waits until another
  process has opened it for writing and closed it again
- ``crash_while`` as a parameter beside ``crash``: it is measured, and dies by SIGSEGV at any run while there is a file
  at this path
- ``device``: a simulated device runs it by itself (``simulated_device.py``)
- ``ring_fault``: injects ``fault`` into the memory shared with the native front end, provoked as ``crash`` is
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from itertools import groupby
from typing import Final

from appliance.domain.errors import LoadFailed, RunFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, TensorSpec, aligned
from appliance.runtimes.runtime import Feed, Place, Port, Produced, Region, RuntimeSettings, Session
from tests.runtimes.ring_faults import inject_ring_fault
from tests.runtimes.shared_memory import places_of
from tests.runtimes.simulated_device import DeviceSession

LANE_DESCRIPTOR: Final = 3
"""Where a worker's lane is: the only descriptor it has but the standard ones."""

GARBAGE: Final = "ffffffff00"
DEFAULT_DELAY_MS: Final = 10.0
DEFAULT_APPETITE_BYTES: Final = 64 << 20
PAGE_BYTES: Final = 4096


class FakeRuntime:
    """The ``fake`` runtime."""

    name = "fake"
    reads: tuple[str, ...] = (tempfile.gettempdir(),)
    """Where tests have their gates."""
    devices: tuple[str, ...] = ("/dev/full",)

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        """A session that behaves as the version's parameters say; nothing is read from disk."""
        mode = version.parameters.get("mode", "identity")
        if mode == "crash_at_load":
            _crash()
        if mode == "hang_at_load":
            _hang()
        if mode == "forbidden_at_load":
            raise LoadFailed(f"{version.key}: {_sockets(1)}")
        if mode == "tell_device":
            getenv = ctypes.CDLL(None).getenv
            getenv.restype = ctypes.c_char_p
            raise LoadFailed(f"{settings.device} {getenv(b'CUDA_VISIBLE_DEVICES')}")
        if mode == "tell_room":
            raise LoadFailed(f"{version.key}: {settings.room_bytes} bytes")
        if mode == "use_at_load":
            raise LoadFailed(f"{version.key}: {_opened(version.parameters['path'])}")
        if mode == "fail_at_load":
            raise LoadFailed(f"{version.key}: told to refuse")
        if mode == "device":
            return DeviceSession(version)
        return FakeSession(version, mode)


class FakeSession:
    """Copies inputs to outputs."""

    def __init__(self, version: ModelVersion, mode: str) -> None:
        self._parameters = version.parameters
        self._mode = mode
        self._runs = 0
        self._eaten: list[bytearray] = []
        self._held = _touched(int(version.parameters.get("hold_bytes", 0)))
        self.weights: FakeWeights | None = (
            FakeWeights(version) if "evictable_bytes" in version.parameters else None
        )
        self.measurable = mode in ("identity", "delay") or "crash_while" in version.parameters
        batch = (FREE,) if version.max_batch_size > 0 else ()
        self.inputs = tuple(_port(spec, batch) for spec in version.inputs)
        self.outputs = tuple(_port(spec, batch) for spec in version.outputs)

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        """Views of the inputs, after misbehaving as told."""
        self._runs += 1
        self._misbehave(source, feeds)
        given = [feed for feed in feeds if feed is not None]
        picked = [given[index % len(given)] for index in wanted]
        parts = tuple(source.view[feed.offset : feed.offset + feed.nbytes] for feed in picked)
        return Produced(tuple(feed.shape for feed in picked), tuple(feed.nbytes for feed in picked), parts)

    def prepared(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Callable[[], None] | None:
        """The same, misbehaviour included, with the outputs in place; None when they do not fit."""
        given = [feed for feed in feeds if feed is not None]
        picked = [given[index % len(given)] for index in wanted]
        if sum(aligned(feed.nbytes) for feed in picked) > place.capacity:
            return None
        return partial(self._run_in_place, source, feeds, wanted, place)

    def _run_in_place(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> None:
        parts = self.run(source, feeds, wanted, place).parts
        position = place.offset
        for part in parts or ():
            place.region.view[position : position + len(part)] = part
            position += aligned(len(part))

    def memory(self) -> int:
        """What eat_memory has eaten."""
        return sum(map(len, self._eaten))

    def close(self) -> None:
        """Give the eaten memory back."""
        self._eaten.clear()
        self._held.clear()
        if self.weights is not None:
            self.weights.closed = True

    def _misbehave(self, source: Region, feeds: tuple[Feed | None, ...]) -> None:
        lingers, waits = self._mode == "linger", "waits" in self._parameters
        if lingers:
            ctypes.CDLL(None).prctl(1, 0, 0, 0, 0)
        if lingers and not waits:
            os.close(LANE_DESCRIPTOR)
        if "gate" in self._parameters:
            _wait_at(self._parameters["gate"])
        if lingers and waits:
            os.close(LANE_DESCRIPTOR)
        if self._mode == "delay":
            time.sleep(float(self._parameters.get("delay_ms", DEFAULT_DELAY_MS)) / 1e3)
        elif self._mode == "crash" and self._is_provoked(source, feeds):
            _crash()
        elif self._mode == "linger" or (self._mode == "hang" and self._is_provoked(source, feeds)):
            _hang()
        elif self._mode == "fail" and self._is_provoked(source, feeds):
            raise RunFailed("told to fail")
        elif self._mode == "ring_fault" and self._is_provoked(source, feeds):
            inject_ring_fault(self._parameters.get("fault", "stranger"))
        elif self._mode == "fork":
            if os.fork() == 0:
                _hang()
        elif self._mode == "eat_memory":
            self._eat()
        elif self._mode == "shout":
            os.set_blocking(2, True)
            os.write(2, self._parameters["words"].encode() + b"\n")
        elif self._mode == "forbidden":
            raise RunFailed(_sockets(int(self._parameters["times"])))
        elif self._mode == "look":
            raise RunFailed(str(places_of(self._parameters["secret"])))
        elif self._mode == "wrong":
            self._eaten.append(_touched(int(self._parameters.get("bytes", 0))))
            os.write(LANE_DESCRIPTOR, bytes.fromhex(self._parameters.get("say", GARBAGE)))

    def _is_provoked(self, source: Region, feeds: tuple[Feed | None, ...]) -> bool:
        magic = self._parameters.get("magic")
        if os.path.exists(self._parameters.get("crash_while", "")):
            return True
        if magic is None:
            return self._runs >= int(self._parameters.get("crash_after", 1))
        return any(feed is not None and self._starts_with(source, feed, int(magic)) for feed in feeds)

    def _starts_with(self, source: Region, feed: Feed, magic: int) -> bool:
        """Whether any row of the batch begins with ``magic``."""
        rows = feed.shape[0] if feed.shape else 1
        step = feed.nbytes // rows if rows else 0
        return step > 0 and any(source.view[feed.offset + row * step] == magic for row in range(rows))

    def _eat(self) -> None:
        self._eaten.append(_touched(int(self._parameters.get("bytes", DEFAULT_APPETITE_BYTES))))


class FakeWeights:
    """Weights that are not there, and so neither leave nor come back."""

    def __init__(self, version: ModelVersion) -> None:
        self.nbytes = int(version.parameters["evictable_bytes"])
        self._reason = version.parameters.get("page_in_fails", "")
        self._gate = version.parameters.get("page_in_gate", "")
        self.closed = False

    def evict_weights(self) -> None:
        """Nothing to do."""

    def page_in(self, *, verify: bool) -> None:
        """Wait and fail when told to."""
        if self._gate:
            _wait_at(self._gate)
        if self.closed:
            raise LoadFailed("the session was closed meanwhile")
        if self._reason:
            raise LoadFailed(self._reason)


def _port(spec: TensorSpec, batch: tuple[int, ...]) -> Port:
    return Port(name=spec.name, datatype=spec.datatype, shape=batch + spec.shape, optional=spec.optional)


def _touched(size: int) -> bytearray:
    """Memory that is really there."""
    memory = bytearray(size)
    memory[::PAGE_BYTES] = b"\x01" * len(memory[::PAGE_BYTES])
    return memory


def _sockets(times: int) -> str:
    """The errors of so many tries in their order, each with how many there were in a row."""
    errors = []
    for _ in range(times):
        try:
            socket.socket()
        except OSError as problem:
            errors.append(errno.errorcode[problem.errno or 0])
    return str([(name, len(list(each))) for name, each in groupby(errors)])


def _opened(path: str) -> str:
    try:
        os.close(os.open(path, os.O_RDWR))
    except OSError as problem:
        return str(problem.strerror)
    return "opened"


def _crash() -> None:
    signal.pthread_kill(
        threading.get_ident(), signal.SIGSEGV
    )  # not the process: another thread might take it later


def _wait_at(gate: str) -> None:
    with suppress(FileNotFoundError), open(gate, "rb") as pipe:
        pipe.read()


def _hang() -> None:
    while True:
        time.sleep(3600)
