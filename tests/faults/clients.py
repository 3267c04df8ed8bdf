"""Clients for fault tests: one question, or a steady stream of them from threads, every outcome counted."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType
from typing import Any, Self

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

FAKE_SECTIONS = {"repository": {"runtimes": ["onnx", "fake"]}}


def tensor(first: int = 0) -> Any:
    """The fake models' input: UINT8 [1, 4] whose first byte is ``first``."""
    feed = triton.InferInput("x", [1, 4], "UINT8")
    feed.set_data_from_numpy(np.array([[first, 1, 2, 3]], dtype=np.uint8))
    return feed


def ask(address: str, model: str, *, first: int = 0, version: str = "", timeout_s: float = 30.0) -> Any:
    """One answer of a fake model; raises InferenceServerException."""
    client = triton.InferenceServerClient(address)
    try:
        return client.infer(model, [tensor(first)], model_version=version, client_timeout=timeout_s)
    finally:
        client.close()


def status_of(error: InferenceServerException) -> str:
    """``UNAVAILABLE`` and so on."""
    return str(error.status()).removeprefix("StatusCode.")


class Stream:
    """Threads that ask one model again and again until the block ends; ``outcomes`` counts "OK" and statuses.
    ``pause_s`` is between two requests of a thread, for a stream beside what takes minutes."""

    def __init__(
        self, address: str, model: str, *, threads: int = 4, first: int = 0, pause_s: float = 0.0
    ) -> None:
        self.outcomes: Counter[str] = Counter()
        self.wrong = 0
        self._address = address
        self._model = model
        self._first = first
        self._pause_s = pause_s
        self._stop = threading.Event()
        self._enough = threading.Condition()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(threads)]

    def _run(self) -> None:
        client = triton.InferenceServerClient(self._address)
        feed = tensor(self._first)
        while not self._stop.wait(self._pause_s):
            try:
                answer = client.infer(self._model, [feed], client_timeout=30.0).as_numpy("y")
                self.wrong += int(answer is None or answer.tolist() != [[self._first, 1, 2, 3]])
                outcome = "OK"
            except InferenceServerException as error:
                outcome = status_of(error)
            with self._enough:
                self.outcomes[outcome] += 1
                self._enough.notify_all()
        client.close()

    def wait_for(self, more: int, outcome: str = "OK", timeout_s: float = 30.0) -> None:
        """Wait until ``more`` further requests have ended that way."""
        with self._enough:
            goal = self.outcomes[outcome] + more
            assert self._enough.wait_for(lambda: self.outcomes[outcome] >= goal, timeout_s), self.outcomes

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(40.0)
            assert not thread.is_alive(), "a client hangs"
