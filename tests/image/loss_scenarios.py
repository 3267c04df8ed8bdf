"""Scenarios of what is lost on its way: writes that a disk had not kept when the power went, and a link that comes and
goes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from aiohttp import web

from demo.link import FlappingLink, flap
from tests.image.vm import BOOT_S, PAUSE_S, Failed, Machine, Power, new_disk, switched_on
from tests.image.world import BASE, NEXT, STORE, Facts, World
from tests.image.write_log import left_by_a_power_cut

GUEST_SEES: Final = "10.0.2.2"
"""This machine, as a guest's network has it."""
RATE: Final = 8e6
UP_S: Final = 6.0
DOWN_S: Final = 2.0
SEEDS: Final = (1, 2)
ENOUGH: Final = 5
LATER_BYTES: Final = 4 << 20
"""As much is written after the last change that was seen to be acknowledged, before the power goes."""
CHANGES: Final = (
    f"n=0; while :; do appliance model unpin digits/2 {STORE}; appliance model pin digits/2 {STORE}; "
    "head -c 2000000 /dev/urandom >/var/lib/bulk.$((n % 20)); "
    "n=$((n + 1)); echo $n >/var/lib/acknowledged.new; sync /var/lib/acknowledged.new; "
    "mv /var/lib/acknowledged.new /var/lib/acknowledged; sync /var/lib; echo $n; done"
)
"""Commands on models, one that is told of when it is on the disk, and bytes that nobody has flushed."""


def lost_writes(world: World) -> Facts:
    """The power goes while models are changed, and of what was not flushed a half never reached the disk: the machine
    starts, answers, its store is whole, and what it acknowledged is there."""
    disk = world.fresh("lost-writes")
    folder = disk.parent
    with switched_on(world.place, Power(disk=disk), "serial-1") as machine:
        machine.wait_answer()
        machine.wait_login()
        machine.run(f"appliance model pin digits/2 {STORE}")
        machine.power_off()
    before, log = folder / "before.raw", folder / "writes"
    world.place.run(
        "qemu-img", "convert", "-O", "raw", world.place.inside(disk), f"{world.place.inside(folder)}/before.raw",
        log=folder / "qemu.log",
    )  # fmt: skip
    log.write_bytes(b"")
    with switched_on(world.place, Power(disk=disk, log=log), "serial-2") as machine:
        machine.wait_answer()
        machine.wait_login()
        machine.run(f"systemd-run --quiet --unit changes sh -c '{CHANGES}'")
        _until(machine, lambda: _acknowledged(machine) >= ENOUGH, "nothing is changed")
        acknowledged = _acknowledged(machine)
        noted = log.stat().st_size
        _until(machine, lambda: log.stat().st_size > noted + LATER_BYTES, "nothing more is written")
        machine.cut_power()
    facts: Facts = {"changes acknowledged": acknowledged}
    for seed in SEEDS:
        raw = folder / f"lost-{seed}.raw"
        subprocess.run(["cp", "--sparse=always", str(before), str(raw)], check=True)
        done, lost = left_by_a_power_cut(raw, log, seed, after=noted)
        if not lost:
            raise Failed("nothing was lost")
        facts[f"writes kept and lost, {seed}"] = f"{done}, {lost}"
        (folder / f"{seed}").mkdir(exist_ok=True)
        left = new_disk(world.place, raw, folder / f"{seed}")
        with switched_on(world.place, Power(disk=left), "serial") as machine:
            facts[f"answers after, {seed}, s"] = round(machine.wait_answer(), 1)
            machine.wait_login()
            machine.run(f"appliance store check {STORE}")
            known = int(machine.run("cat /var/lib/acknowledged").strip())
            if known < acknowledged:
                raise Failed(f"{acknowledged} changes were acknowledged, and it knows of {known}")
            if "wanted" not in machine.run(f"appliance model list {STORE} --json"):
                raise Failed("it wants no model any more")
            machine.power_off()
        raw.unlink()
    before.unlink()
    log.unlink()
    return facts


def flapping_update(world: World) -> Facts:
    """N-1 takes N over a link that is cut every few seconds, and loses its power on the way: what came is kept, and N
    starts and is blessed."""
    disk, release = world.fresh("flapping-update"), world.release(NEXT)
    size = sum(path.stat().st_size for path in release.rglob("*") if path.is_file())
    with served(release) as link:
        take = f"until appliance image update http://{GUEST_SEES}:{link.port}; do sleep 1; done"
        with switched_on(world.place, Power(disk=disk), "serial-1") as machine:
            machine.wait_answer()
            machine.wait_login()
            machine.run(f"systemd-run --quiet sh -c '{take}'")
            _until(machine, lambda: link.down_bytes > size / 2, "the half of it does not come")
            machine.cut_power()
        with switched_on(world.place, Power(disk=disk), "serial-2") as machine:
            machine.wait_answer()
            machine.wait_login()
            told = machine.run(take, 1800).splitlines()
            said = next(line for line in told if "is installed" in line)
            broke_off = sum("did not come" in line for line in told)
            machine.power_off()
    with switched_on(world.place, Power(disk=disk), "serial-3") as machine:
        machine.wait_answer()
        machine.wait_login()
        machine.run("systemctl is-system-running --wait", check=False)
        status = json.loads(machine.run("appliance image status --json"))
        states = {each["version"]: each["state"] for each in status["versions"]}
        if status["version"] != NEXT or states != {NEXT: "good", BASE: "good"}:
            raise Failed(f"it runs {status['version']}: {states}")
        machine.power_off()
    return {
        "release, bytes": size,
        "over the link / release": round(link.down_bytes / size, 3),
        "broke off after the power cut": broke_off,
        "said": said,
    }


def _acknowledged(machine: Machine) -> int:
    """How many changes the machine has told to be on its disk."""
    told = machine.run("journalctl -u changes -o cat --no-pager | grep -x '[0-9]*' | tail -1", check=False)
    return int(told.strip() or 0)


def _until(machine: Machine, holds: Callable[[], bool], otherwise: str) -> None:
    """Wait for what can only be looked at. Raises Failed."""
    begun = time.monotonic()
    while not holds():
        machine.check_alive()
        if time.monotonic() - begun > BOOT_S:
            raise Failed(otherwise)
        time.sleep(PAUSE_S)


@contextmanager
def served(folder: Path) -> Iterator[FlappingLink]:
    """The folder over HTTP, behind a link that flaps from the first byte on."""
    ready, loop = threading.Event(), asyncio.new_event_loop()
    made: list[FlappingLink] = []

    async def play() -> None:
        application = web.Application()
        application.router.add_static("/", folder)
        runner = web.AppRunner(application)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        link = FlappingLink(runner.addresses[0], RATE)
        await link.start()
        made.append(link)
        ready.set()
        try:
            await flap(link, UP_S, DOWN_S, lambda up: None)
        finally:
            await link.close()
            await runner.cleanup()

    task = loop.create_task(play())

    def run() -> None:
        with suppress(asyncio.CancelledError):
            loop.run_until_complete(task)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    if not ready.wait(30):
        raise Failed("the release is not served")
    try:
        yield made[0]
    finally:
        loop.call_soon_threadsafe(task.cancel)
        thread.join(30)
        loop.close()
