"""The load generator: one process that offers unary gRPC calls at a rate or at a concurrency.

Open loop (`--rate`): Poisson arrivals drawn from a seed before the run starts; a call goes out when it is due,
whatever has become of the earlier ones. Closed loop (`--concurrency`): that many callers, each sending its next
call when the last one ended. The request is serialised once, answers are not decoded, so the process spends its
time in gRPC itself. Prints one line of JSON; its fields are those of `latency.summarise` plus the generator's own
CPU time. It knows nothing of tensors: `benchmarks.payload` writes the request bytes.
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
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc.aio
import uvloop

from benchmarks.latency import Call, Window, summarise

INFER = "/inference.GRPCInferenceService/ModelInfer"
CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.use_local_subchannel_pool", 1),  # otherwise equal channels share one connection
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
)
CONNECT_TIMEOUT_S = 10.0
DRAIN_TIMEOUT_S = 30.0
CALLS_PER_CHANNEL = 8
CHANNELS_MAX = 4
CLOCK_MONOTONIC = 1
TFD_NONBLOCK_CLOEXEC = 0o2004000
TFD_TIMER_ABSTIME = 1

type_of_stub = Callable[..., Any]


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

    def __init__(self, plan: Plan, stubs: list[type_of_stub]) -> None:
        self._payload = plan.payload
        self._deadline_ns = int(plan.deadline_ms * 1e6)
        self._stubs = stubs
        self._turn = 0
        self.calls: list[Call] = []
        self.messages: dict[int, str] = {}

    async def send(self, due: int) -> None:
        """One call, counted from `due`; the deadline runs from there too."""
        sent = time.monotonic_ns()
        self._turn += 1
        stub = self._stubs[self._turn % len(self._stubs)]
        try:
            await stub(self._payload, timeout=self._timeout(due, sent))
            code = 0
        except grpc.aio.AioRpcError as error:
            code = int(error.code().value[0])
            self.messages.setdefault(code, (error.details() or "")[:200])
        self.calls.append(Call(due, sent, time.monotonic_ns(), code))

    def _timeout(self, due: int, sent: int) -> float | None:
        if not self._deadline_ns:
            return None
        return max((due + self._deadline_ns - sent) / 1e9, 1e-4)


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
        self._tasks: set[asyncio.Task[None]] = set()
        self._timer = TimerDescriptor()
        self._all_sent = asyncio.Event()

    async def run(self) -> None:
        """Send everything, then wait for the answers still out; gives up on them after a bound."""
        loop = asyncio.get_running_loop()
        loop.add_reader(self._timer.descriptor, self._fire)
        self._timer.arm(self._dues[0])
        await self._all_sent.wait()
        loop.remove_reader(self._timer.descriptor)
        self._timer.close()
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=DRAIN_TIMEOUT_S)

    def _fire(self) -> None:
        self._timer.clear()
        dues = self._dues
        while dues and dues[0] <= time.monotonic_ns():
            task = asyncio.ensure_future(self._caller.send(dues.popleft()))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        if dues:
            self._timer.arm(dues[0])
        else:
            self._all_sent.set()


async def _closed_loop(caller: Caller, concurrency: int, end_ns: int) -> None:
    async def one() -> None:
        while (now := time.monotonic_ns()) < end_ns:
            await caller.send(now)

    await asyncio.gather(*(one() for _ in range(concurrency)))


async def drive(plan: Plan) -> dict[str, object]:
    """Run the plan and return its figures."""
    channels = [grpc.aio.insecure_channel(plan.target, options=CHANNEL_OPTIONS) for _ in range(plan.channels)]
    await asyncio.wait_for(asyncio.gather(*(c.channel_ready() for c in channels)), CONNECT_TIMEOUT_S)
    caller = Caller(plan, [channel.unary_unary(plan.method, None, None) for channel in channels])
    total_s = plan.warm_up_s + plan.seconds
    offsets = arrivals(plan.rate, total_s, plan.seed) if plan.rate else []
    gc.collect()
    gc.freeze()  # the generator's own pauses must not look like the server's
    cpu_before, start = time.process_time(), time.monotonic_ns()
    begin, end = start + int(plan.warm_up_s * 1e9), start + int(total_s * 1e9)
    if plan.rate:
        await Pacer(caller, [start + offset for offset in offsets]).run()
    else:
        await _closed_loop(caller, plan.concurrency, end)
    cpu_s = time.process_time() - cpu_before
    elapsed_s = (time.monotonic_ns() - start) / 1e9
    await asyncio.gather(*(channel.close(None) for channel in channels))
    window = Window(begin_ns=begin, end_ns=end, bound_ns=int(plan.bound_ms * 1e6))
    own = {"calls": len(caller.calls), "cpu_s": round(cpu_s, 4), "elapsed_s": round(elapsed_s, 4)}
    unanswered = max(len(offsets) - len(caller.calls), 0)
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
