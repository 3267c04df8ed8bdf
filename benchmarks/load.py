"""The load generator: one process that offers unary gRPC calls at a rate or at a concurrency.

Open loop (`--rate`): Poisson arrivals drawn from a seed before the run starts; a call goes out when it is due,
whatever has become of the earlier ones. Closed loop (`--concurrency`): that many callers, each sending its next
call when the last one ended. The request is serialised once and answers are not decoded; `benchmarks.http2` is the
client, because a general one would take the server's CPU. Prints one line of JSON; its fields are those of
`latency.summarise` plus the generator's own CPU time. It knows nothing of tensors: `benchmarks.payload` writes the
request bytes.
"""

import argparse
import asyncio
import ctypes
import gc
import json
import os
import random
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path

import uvloop

from benchmarks.http2 import Connection, header_block
from benchmarks.latency import Call, Window, summarise

INFER = "/inference.GRPCInferenceService/ModelInfer"
CONNECT_TIMEOUT_S = 10.0
DRAIN_TIMEOUT_S = 30.0
EXPIRY_STEP_S = 0.001
CALLS_PER_CHANNEL = 8
CHANNELS_MAX = 4
CLOCK_MONOTONIC = 1
TFD_NONBLOCK_CLOEXEC = 0o2004000
TFD_TIMER_ABSTIME = 1

STATUS_DEADLINE_EXCEEDED = 4
TIMEOUT_STEP_US = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to offer, to whom, for how long. Exactly one of `rate` and `concurrency` is positive."""

    target: str
    method: str
    payload: bytes
    rate: float
    concurrency: int
    seconds: float
    warm_up_s: float
    deadline_ms: float
    bound_ms: float
    channels: int
    seed: int


class TimerDescriptor:
    """A kernel timer that can be polled; event loops themselves round their timers to whole milliseconds."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.descriptor: int = self._libc.timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK_CLOEXEC)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create failed: the open loop needs Linux timers")

    def arm(self, due_ns: int) -> None:
        """Become readable at `due_ns` on the monotonic clock."""
        spec = (ctypes.c_long * 4)(0, 0, *divmod(max(due_ns, 1), 1_000_000_000))
        if self._libc.timerfd_settime(self.descriptor, TFD_TIMER_ABSTIME, spec, None) < 0:
            raise OSError(ctypes.get_errno(), "timerfd_settime failed")

    def clear(self) -> None:
        """Take the expiry, so that the descriptor is no longer readable."""
        os.read(self.descriptor, 8)

    def close(self) -> None:
        """Give the descriptor back."""
        os.close(self.descriptor)


class Caller:
    """Sends calls and keeps what became of them. Owner of `calls`, which only the event loop touches."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._deadline_ns = int(plan.deadline_ms * 1e6)
        self._blocks: dict[int, bytes] = {}
        self._connections: list[Connection] = []
        self._open: dict[int, tuple[int, int]] = {}
        self._number = 0
        self._expiring: deque[tuple[int, int, Connection]] = deque()
        self._ended: asyncio.Future[None] | None = None
        self._again_until_ns = 0
        self.calls: list[Call] = []
        self.messages: dict[int, str] = {}

    async def connect(self) -> None:
        """Open the connections and learn the peer's settings."""
        loop = asyncio.get_running_loop()
        host, _, port = self._plan.target.rpartition(":")
        for _ in range(self._plan.channels):
            _, connection = await loop.create_connection(
                lambda: Connection(self._plan.payload, self._finished), host, int(port)
            )
            await connection.ready
            self._connections.append(connection)

    def send(self, due: int) -> None:
        """Start one call, counted from `due`; the deadline runs from there too."""
        sent = time.monotonic_ns()
        self._number = call = self._number + 1
        connection = self._connections[call % len(self._connections)]
        self._open[call] = (due, sent)
        if self._deadline_ns:
            self._expiring.append((due + self._deadline_ns, call, connection))
        connection.send(call, self._block(due, sent))

    def _block(self, due: int, sent: int) -> bytes:
        left_us = 0
        if self._deadline_ns:
            steps = (due + self._deadline_ns - sent) // (1000 * TIMEOUT_STEP_US)
            left_us = max(steps, 1) * TIMEOUT_STEP_US
        block = self._blocks.get(left_us)
        if block is None:
            block = self._blocks[left_us] = header_block(self._plan.method, self._plan.target, left_us)
        return block

    def expire(self) -> float:
        """Give up on calls whose deadline has passed, as every gRPC client does; returns seconds to the next look."""
        now = time.monotonic_ns()
        while self._expiring and self._expiring[0][0] <= now:
            _, call, connection = self._expiring.popleft()
            if connection.cancel(call):
                self._finished(call, STATUS_DEADLINE_EXCEEDED, "deadline passed at the client")
        while (
            self._expiring and self._expiring[0][1] not in self._open
        ):  # ended in time: no reason to wake for it
            self._expiring.popleft()
        left_ns = self._expiring[0][0] - now if self._expiring else self._deadline_ns
        return max(left_ns / 1e9, EXPIRY_STEP_S)

    def _finished(self, call: int, status: int, message: str) -> None:
        due, sent = self._open.pop(call)
        now = time.monotonic_ns()
        self.calls.append(Call(due, sent, now, status))
        if status:
            self.messages.setdefault(status, message[:200])
        if now < self._again_until_ns:
            self.send(now)
        elif not self._open and self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def start_callers(self, concurrency: int, until_ns: int) -> None:
        """Closed loop: each answer starts the next call until the time is over."""
        self._again_until_ns = until_ns
        for _ in range(concurrency):
            self.send(time.monotonic_ns())

    async def drained(self, timeout_s: float) -> None:
        """Until no call is open, or the time is over."""
        if self._open:
            self._ended = asyncio.get_running_loop().create_future()
            await asyncio.wait([self._ended], timeout=timeout_s)

    def close(self) -> int:
        """Close the connections; returns how many calls were never answered."""
        unanswered = len(self._open)
        for connection in self._connections:
            connection.close()
        return unanswered


def arrivals(rate: float, seconds: float, seed: int) -> list[int]:
    """Poisson arrival times in ns from the start, in order."""
    random_source = random.Random(seed)
    times: list[int] = []
    now = random_source.expovariate(rate)
    while now < seconds:
        times.append(int(now * 1e9))
        now += random_source.expovariate(rate)
    return times


class Pacer:
    """Fires calls when they are due, from the event loop, woken by a kernel timer."""

    def __init__(self, caller: Caller, dues: list[int]) -> None:
        self._caller = caller
        self._dues = deque(dues)
        self._timer = TimerDescriptor()
        self._all_sent = asyncio.Event()

    async def run(self) -> None:
        """Until everything is sent."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._timer.descriptor, self._fire)
        self._timer.arm(self._dues[0])
        await self._all_sent.wait()
        loop.remove_reader(self._timer.descriptor)
        self._timer.close()

    def _fire(self) -> None:
        self._timer.clear()
        dues = self._dues
        while dues and dues[0] <= time.monotonic_ns():
            self._caller.send(dues.popleft())
        if dues:
            self._timer.arm(dues[0])
        else:
            self._all_sent.set()


async def _expire_regularly(caller: Caller) -> None:
    while True:  # noqa: ASYNC110 - what it waits for is a point in time
        await asyncio.sleep(caller.expire())


async def _offer(plan: Plan, caller: Caller, start_ns: int) -> None:
    total_s = plan.warm_up_s + plan.seconds
    expiry = asyncio.ensure_future(_expire_regularly(caller)) if plan.deadline_ms else None
    if plan.rate:
        await Pacer(caller, [start_ns + offset for offset in arrivals(plan.rate, total_s, plan.seed)]).run()
    else:
        caller.start_callers(plan.concurrency, start_ns + int(total_s * 1e9))
    await caller.drained(DRAIN_TIMEOUT_S + (0.0 if plan.rate else total_s))
    if expiry is not None:
        expiry.cancel()


async def drive(plan: Plan) -> dict[str, object]:
    """Run the plan and return its figures."""
    caller = Caller(plan)
    await asyncio.wait_for(caller.connect(), CONNECT_TIMEOUT_S)
    gc.collect()
    gc.freeze()  # the generator's own pauses must not look like the server's
    cpu_before, start = time.process_time(), time.monotonic_ns()
    begin = start + int(plan.warm_up_s * 1e9)
    await _offer(plan, caller, start)
    cpu_s = time.process_time() - cpu_before
    elapsed_s = (time.monotonic_ns() - start) / 1e9
    unanswered = caller.close()
    end = begin + int(plan.seconds * 1e9)
    window = Window(begin_ns=begin, end_ns=end, bound_ns=int(plan.bound_ms * 1e6))
    own = {"calls": len(caller.calls), "cpu_s": round(cpu_s, 4), "elapsed_s": round(elapsed_s, 4)}
    return {**summarise(caller.calls, window), **own, "unanswered": unanswered, "messages": caller.messages}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.load", description=__doc__)
    parser.add_argument("--target", required=True, help="HOST:PORT of the gRPC server")
    parser.add_argument("--payload", required=True, type=Path, help="file with one serialised request")
    parser.add_argument("--method", default=INFER)
    shape = parser.add_mutually_exclusive_group(required=True)
    shape.add_argument("--rate", type=float, default=0.0, help="open loop: calls per second")
    shape.add_argument("--concurrency", type=int, default=0, help="closed loop: callers")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--warm-up-s", type=float, default=1.0)
    parser.add_argument("--deadline-ms", type=float, default=0.0, help="gRPC deadline per call; 0 for none")
    parser.add_argument(
        "--bound-ms", type=float, default=50.0, help="an answer later than this is no goodput"
    )
    parser.add_argument("--channels", type=int, default=0, help="connections; 0 chooses")
    parser.add_argument("--seed", type=int, default=1)
    return parser


def plan_of(arguments: argparse.Namespace) -> Plan:
    """The plan the command line asks for."""
    fields = vars(arguments)
    wanted = arguments.concurrency or CALLS_PER_CHANNEL * CHANNELS_MAX
    channels = arguments.channels or min(CHANNELS_MAX, -(-wanted // CALLS_PER_CHANNEL))
    return Plan(**{**fields, "payload": arguments.payload.read_bytes(), "channels": channels})


def main() -> None:
    """Command line entry."""
    print(json.dumps(uvloop.run(drive(plan_of(_parser().parse_args())))), flush=True)


if __name__ == "__main__":
    main()
