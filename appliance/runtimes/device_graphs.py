"""What sessions on a CUDA device agree on about graphs: how many one has, when a run is worth one, and when a graph may
be used - once a replay gave the answer that the run before it gave. None is captured while another thread waits for the
whole device, as ONNX Runtime does where it makes a session, and cuBLAS and cuDNN where one is closed: CUDA forbids that
while any stream of the device is captured, whatever a thread's mode is, and spoils the capture.

ONNX Runtime waits so for the words of an error of CUDA as well, in the midst of a run that fails. Runs that serve are
not kept waiting for that: a capture that failed is tried once more, unless CUDA forbade what the run itself does. None
is begun just after a run that failed so: where one has no memory, the next has none either."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from time import monotonic_ns
from typing import Final
from weakref import WeakKeyDictionary

import numpy as np

from appliance.runtimes.onnx_elements import ElementType

GRAPHS_MAX: Final = 32
CAPTURE_AFTER: Final = 2
"""Runs of one combination before it is captured: what comes once or twice is not worth it."""
CAPTURES_TRIED: Final = 2
"""How often captures of a session may fail until it goes without: the first time it may be another one's fault."""
NOT_PERMITTED: Final = "operation not permitted when stream is capturing"
"""CUDA's word to who waits, or takes memory, within its own capture, as an operator that has to know values on the
processor. One whose capture others spoilt is told of a previous error."""
TOLERANCE: Final = 1e-2
"""Of the largest value: what the order in which a device adds may change. A wrong graph is off by all of it."""
SPOILT: Final = 0xA5
"""What outputs hold before a replay that is looked at."""
QUIET_NS: Final = 1_000_000_000
"""For how long after a run that failed for want of memory nothing is captured on its device."""
REASON_CHARACTERS: Final = 300


class NotNow(Exception):
    """Another thread waits for the whole device, or may at any moment: what was to be captured is another time."""


class _Apart:
    """How many captures there are in this process, and how many that wait for a whole device: never some of both. And
    until when none is begun on a device."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._captures = self._waits = 0
        self._quiet_ns: WeakKeyDictionary[object, int] = WeakKeyDictionary()

    def ran_short(self, device: object) -> None:
        self._quiet_ns[device] = monotonic_ns() + QUIET_NS

    @contextmanager
    def capture(self, device: object) -> Iterator[None]:
        with self._changed:
            if self._waits or monotonic_ns() < self._quiet_ns.get(device, 0):
                raise NotNow
            self._captures += 1
        try:
            yield
        finally:
            with self._changed:
                self._captures -= 1
                self._changed.notify_all()

    @contextmanager
    def wait(self) -> Iterator[None]:
        with self._changed:
            self._waits += 1  # nothing more is captured from here on: it waits for what is under way alone
        try:
            with self._changed:
                self._changed.wait_for(lambda: not self._captures)
            yield
        except BaseException as problem:
            let_go(problem)
            raise
        finally:
            with self._changed:
                self._waits -= 1


_apart: Final = _Apart()


def capturing(device: object) -> AbstractContextManager[None]:
    """For what captures a graph on a device. Raises NotNow."""
    return _apart.capture(device)


def ran_short(device: object) -> None:
    """A run, or a capture, failed for want of a device's memory."""
    _apart.ran_short(device)


def whole_device() -> AbstractContextManager[None]:
    """For what waits for a whole device, once nothing is captured any more: a moment. Not within a capture. What was
    half made where it fails goes here as well."""
    return _apart.wait()


def let_go(problem: BaseException) -> None:
    """Let go of what the functions that a problem came through still hold: a session that was refused would else stay
    for as long as its refusal is told, and go wherever that ends."""
    left: list[BaseException | None] = [problem]
    seen = set[int]()
    while left:
        told = left.pop()
        if told is not None and id(told) not in seen:  # some lead back to themselves
            seen.add(id(told))
            traceback.clear_frames(told.__traceback__)
            left += (told.__cause__, told.__context__)


def once_more(failed: int, problem: Exception) -> bool:
    """Whether a capture is tried again where so many of its session failed, the last one of ``problem``."""
    return failed < CAPTURES_TRIED and NOT_PERMITTED not in str(problem)


def tell_without_graphs(key: str, reason: str) -> None:
    """Say in the log why a version has no graphs."""
    _tell(f"{key} runs without CUDA graphs", reason)


def tell_anew(key: str, reason: str) -> None:
    """Say in the log why a request of a version waits for a load."""
    _tell(f"{key} is loaded anew after the capture of a CUDA graph failed", reason)


def _tell(what: str, reason: str) -> None:
    first = " ".join(reason.split())[:REASON_CHARACTERS]
    print(f"{what}: {first}", file=sys.stderr, flush=True)


def alike(one: Sequence[bytes], other: Sequence[memoryview], elements: Sequence[ElementType]) -> bool:
    """Whether two answers are the same but for the order in which a device adds up."""
    pairs = zip(one, other, elements, strict=True)
    return all(mine == yours or _near(mine, yours, element) for mine, yours, element in pairs)


def _near(one: bytes, other: memoryview, element: ElementType) -> bool:
    if np.dtype(element.numpy or "u1").kind != "f":
        return False
    mine, yours = (np.frombuffer(raw, element.numpy).astype(np.float64) for raw in (one, other))
    finite = mine[np.isfinite(mine)]
    most = float(np.abs(finite).max()) if finite.size else 0.0
    return bool(np.allclose(mine, yours, rtol=0.0, atol=TOLERANCE * most, equal_nan=True))
