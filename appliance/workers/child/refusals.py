"""What the jails of workers refuse, as the process that forks them is told: the first time for each system call.

A refused call waits in the kernel until this process has answered it, with EPERM and nothing else. A worker that tries
more than an honest one would is listened to no longer: what it calls in vain from then on fails at once, as on a kernel
that has no such call. Nothing here waits for anybody.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Final, NamedTuple

from appliance.workers.jail import seccomp

HEARD_MAX: Final = 256
"""Refused calls of one worker."""
_WORKER_BYTES: Final = 8


class _Heard(NamedTuple):
    """The calls of a worker, in the order in which it tried them."""

    worker: int
    calls: list[int]


class Refusals:
    """``say`` gets the worker's id and the number of a call that it was refused. Owner: the zygote's loop."""

    def __init__(self, watch: select.poll, say: Callable[[int, int], None]) -> None:
        self._watch = watch
        self._say = say
        self._ours, self._theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listeners: dict[int, _Heard] = {}
        watch.register(self._ours, select.POLLIN)

    def hand_over(self, worker: int, listener: int) -> None:
        """In a worker that has entered its jail and closes what it does not keep next: give the listener, which could
        let calls through as well, to its parent."""
        socket.send_fds(self._theirs, [worker.to_bytes(_WORKER_BYTES, "little")], [listener])

    def take(self, ready: Iterable[tuple[int, int]]) -> None:
        """Answer what has come in; ``ready`` is what poll gave."""
        for descriptor, event in ready:
            if descriptor in self._listeners:
                self._answer(descriptor, event)
            elif descriptor == self._ours.fileno():
                self._listen()

    def _listen(self) -> None:
        packet, descriptors, _, _ = socket.recv_fds(self._ours, _WORKER_BYTES, 1)
        for listener in descriptors:  # none, where there is no room for one
            self._listeners[listener] = _Heard(int.from_bytes(packet, "little"), [])
            self._watch.register(listener, select.POLLIN)

    def forget(self, worker: int) -> None:
        """The worker has ended."""
        for listener, heard in list(self._listeners.items()):
            if heard.worker == worker:
                self._close(listener)

    def _answer(self, listener: int, event: int) -> None:
        worker, calls = self._listeners[listener]
        if not event & select.POLLIN or len(calls) >= HEARD_MAX:
            self._close(listener)
            return
        with suppress(OSError):  # its caller has ended
            asked = seccomp.receive(listener)
            if asked.number not in calls:
                self._say(worker, asked.number)
            calls.append(asked.number)
            seccomp.refuse(listener, asked)

    def _close(self, listener: int) -> None:
        del self._listeners[listener]
        self._watch.unregister(listener)
        os.close(listener)
