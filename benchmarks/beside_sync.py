"""``python -m benchmarks.beside_sync FOLDER``: what a sync at full speed costs the requests of the same box.

A box serves a small model at a steady rate, left alone and while its agent takes three new models of 89 MB each from
a controller on the same machine, as fast as both can. At a real site the controller and its operator are elsewhere, so
here they run in the idle class, where they take only what processors are left. The peer is a copy of the same packages
to the same disk in the idle class, again and again: what any transfer costs on this kernel. Prints a line of JSON for
each round and one with the medians.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import shutil
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.sync.carried import spool_of
from benchmarks.clients import LoadReport, Offer, run_load
from demo.fleet import Box, Controller, agent_of, ended, free_port, run, started
from demo.link import FlappingLink
from demo.versions import CLASSES, INPUTS, NAME, classifier, make_packages, pack, weights

ROUNDS = 5
WINDOW_S = 10.0
RATE = 200.0
BIG = 3
QUIET_S, QUIET_SHARE = 3.0, 0.05
ELSEWHERE = ("chrt", "--idle", "0")
WIDTHS = (INPUTS, 4096, 5312, CLASSES)


def request() -> bytes:
    """One row for the small model."""
    data = np.full((1, INPUTS), 0.25, np.float32).tobytes()
    found = pb.ModelInferRequest(model_name=NAME, raw_input_contents=[data])
    found.inputs.add(name="x", datatype="FP32", shape=[1, INPUTS])
    return found.SerializeToString()


def offered(box: Box, native: bool) -> LoadReport:
    """The load of one window; all of it is answered."""
    report = run_load(box.grpc, request(), Offer(seconds=WINDOW_S, rate=RATE, remote=True), native=native)
    assert not report.failed, report.messages
    assert not report.unanswered
    return report


async def one_round(
    folder: Path, controller: Controller, packages: list[Path], key: Path, number: int, native: bool
) -> dict[str, Any]:
    """A new box: alone, then beside a sync, then alone again."""
    link = FlappingLink(("127.0.0.1", controller.port), 1e9)  # not used: a proxy would take a processor
    name = f"box-{number}"
    box = Box(
        name=name, folder=folder, link=link, grpc=f"127.0.0.1:{free_port()}", http=f"127.0.0.1:{free_port()}"
    )
    config = box.configuration(key)
    token = await controller.ask("token", "--group", f"group-{number}")
    await run("sync", "enrol", token.strip(), "--name", name, "--state-dir", str(folder / "state"))
    agent = await agent_of(box, config)
    serve, _ = await started(folder / "serve.log", "Serving gRPC", "serve", "--config", str(config))
    try:
        await controller.ask("want", f"{NAME}=1", "--device", name)
        await arrived(controller, name, 1)
        await asyncio.to_thread(quiet)
        before = await asyncio.to_thread(offered, box, native)
        for each in range(BIG):
            await controller.ask("want", f"big-{each}=1", "--device", name)
        arriving = asyncio.create_task(arrived(controller, name, 1 + BIG))
        await asyncio.to_thread(begun, folder / "state")
        began = time.monotonic()
        beside = await asyncio.to_thread(offered, box, native)
        await arriving
        took = time.monotonic() - began
        await asyncio.to_thread(quiet)  # forms of the new models are built and written, long after they serve
        after = await asyncio.to_thread(offered, box, native)
        with copying(packages, folder / "copied"):
            copy = await asyncio.to_thread(offered, box, native)
    finally:
        await ended(agent)
        await ended(serve)
        shutil.rmtree(folder / "state")
    alone = (before.ok["p99"] + after.ok["p99"]) / 2
    return {
        "p99_alone_us": [round(before.ok["p99"]), round(after.ok["p99"])],
        "p99_beside_us": round(beside.ok["p99"]),
        "p99_beside_copy_us": round(copy.ok["p99"]),
        "p50_us": [round(before.ok["p50"]), round(beside.ok["p50"]), round(after.ok["p50"])],
        "ratio": round(beside.ok["p99"] / alone, 3),
        "copy_ratio": round(copy.ok["p99"] / alone, 3),
        "all_here_after_s": round(took, 1),
    }


def begun(state: Path) -> None:
    """Wait until bytes of a stream come in."""
    place = spool_of(state)
    while not (place.is_dir() and any(each.stat().st_size for each in place.iterdir())):
        time.sleep(0.02)


@contextmanager
def copying(packages: list[Path], target: Path) -> Iterator[None]:
    """Copy the packages to the disk, one behind the other, for as long as this lasts."""
    names = " ".join(shlex.quote(str(each)) for each in packages)
    line = (
        f"while cat {names} | dd of={shlex.quote(str(target))} bs=1M conv=fdatasync status=none; do :; done"
    )
    process = subprocess.Popen([*ELSEWHERE, "sh", "-c", line], start_new_session=True)
    try:
        yield
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def quiet() -> None:
    """Wait until the processors had next to nothing to do for some seconds."""
    since, (busy, total) = time.monotonic(), _processor_time()
    while time.monotonic() - since < QUIET_S:
        time.sleep(1)
        before, (busy, total) = (busy, total), _processor_time()
        if busy - before[0] > QUIET_SHARE * (total - before[1]):
            since = time.monotonic()


def _processor_time() -> tuple[int, int]:
    """Busy, and all there was, of all processors; in ticks."""
    numbers = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:]]
    return sum(numbers) - numbers[3] - numbers[4], sum(numbers)


async def arrived(controller: Controller, name: str, count: int) -> None:
    """Wait until the box serves so many models."""
    while True:
        (models,) = (each["models"] for each in await controller.devices() if each["name"] == name)
        if sum(model["serving"] == 1 for model in models) >= count:
            return
        await asyncio.sleep(1)


async def measure(folder: Path, native: bool) -> None:
    """Print the results."""
    key = folder / "packages.pem"
    await run("model", "keygen", str(key))
    public = key.with_name("packages.pem.pub")
    packages = [(await asyncio.to_thread(make_packages, folder, key))[1]]
    for each in range(BIG):
        graph = classifier(weights(each, WIDTHS))
        packages.append(await asyncio.to_thread(pack, folder, key, f"big-{each}", 1, graph))
    controller = Controller(folder, public, within=ELSEWHERE)
    await controller.start()
    found = []
    try:
        for package in packages:
            await controller.ask("release", str(package))
        for number in range(ROUNDS):
            (place := folder / f"box-{number}").mkdir()
            found.append(await one_round(place, controller, packages, public, number, native))
            print(json.dumps(found[-1]), flush=True)
    finally:
        await controller.stop()
    medians = {name: statistics.median(each[name] for each in found) for name in ("ratio", "copy_ratio")}
    print(json.dumps({"medians": medians}), flush=True)


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    asyncio.run(measure(Path(sys.argv[1]), "--native" in sys.argv))
