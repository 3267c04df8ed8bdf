"""The worker's side of a lane with rings: messages on the socket, and beside them what the front end submits.

Mail goes first. Between two messages one batch of the ring runs, so that an engine that always has mail does not starve
what it leased; plans are learned as soon as they are read, so that no submission overtakes its plan. Idle, the process
sleeps on the memory that it shares with the daemon, not on the socket: what is written there is told in the memory.

Only the process that forks workers with rings imports this: the native package is optional.
"""

from __future__ import annotations

import socket
from collections import deque
from typing import Final, cast

from edge_appliance_native import WorkerRing

from appliance.runtimes.runtime import Region
from appliance.workers.child.leased import MAIL, SUBMISSIONS, LeasedRuns
from appliance.workers.frames import FrameReader
from appliance.workers.lane import RECEIVE_BYTES, LaneClosed, SocketWorkerLane
from appliance.workers.messages import TO_WORKER, Forget, FromWorker, Learn, ToWorker

IDLE_MS: Final = 2000
"""How long an idle worker sleeps before it looks whether the daemon is still there."""


class RingWorkerLane:
    """WorkerLane over a socket and the rings of ``leased``, which it has served while no message is there."""

    def __init__(self, end: socket.socket, ring: WorkerRing, leased: LeasedRuns) -> None:
        self._socket = end
        self._answers = SocketWorkerLane(end)
        self._reader = FrameReader(TO_WORKER)
        self._messages: deque[ToWorker] = deque()
        self._ring = ring
        self._leased = leased
        self._closed = False

    def take(self) -> ToWorker:
        """The next message that is not about plans. Raises LaneClosed when the daemon is gone."""
        ring, leased = self._ring, self._leased
        ready = ring.wait(0)
        if ready & MAIL:
            self._read()
        if ready & SUBMISSIONS:
            leased.serve_one()
        while not self._messages:
            if self._closed:
                raise LaneClosed("the daemon is gone")
            leased.serve(IDLE_MS)
            self._read()
        return self._messages.popleft()

    def complete(self, message: FromWorker) -> None:
        """Answer a message. Raises LaneClosed when the daemon is gone."""
        self._answers.complete(message)

    def _read(self) -> None:
        """Read until nothing is left: mail is told once."""
        while not self._closed:
            try:
                data = self._socket.recv(RECEIVE_BYTES, socket.MSG_DONTWAIT)
            except BlockingIOError:
                return
            except ConnectionError:
                data = b""
            if not data:
                self._closed = True
            for message in cast(list[ToWorker], self._reader.feed(data)):
                if type(message) is Learn:
                    self._leased.learn(message)
                elif type(message) is Forget:
                    self._leased.forget(message.plans)
                else:
                    self._messages.append(message)


def open_ring_lane(
    end: socket.socket, memory: int, doorbell: int, arena: Region
) -> tuple[RingWorkerLane, LeasedRuns]:
    """The lane of a worker whose rings lie behind descriptor ``memory``. Raises OSError when they do not."""
    ring = WorkerRing(memory, doorbell, arena.view)
    leased = LeasedRuns(ring, arena)
    return RingWorkerLane(end, ring, leased), leased
