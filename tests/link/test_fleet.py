"""A fleet as it is used: a real controller, three real boxes under load behind links that flap, processes that are
killed, a bad release, and a box that no link ever reaches and that catches up by bundle. Controller and boxes are in
network namespaces of their own where this may be (root), else behind links that are shaped in the test's process."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from appliance.durable import RealFolder
from appliance.outbox.reader import OutboxReader
from appliance.sync.outboxes import streams
from demo.fleet import Box, Controller, agent_of, close, ended, enrol, free_port, new_box, run
from demo.link import flap
from demo.load import Load
from demo.versions import NAME, make_packages
from tests.link.namespaces import Hub, hub

RATE = 400_000.0
UP_S = 5.0
DOWN_S = 1.0
PATIENCE_S = 100.0
FAR = "harbour"
NEAR = ("north", "south")


async def until(what: str, holds: Callable[[], Awaitable[bool]]) -> None:
    end = asyncio.get_running_loop().time() + PATIENCE_S
    while not await holds():
        assert asyncio.get_running_loop().time() < end, f"never saw {what}"
        await asyncio.sleep(0.3)


def standing(
    controller: Controller, names: tuple[str, ...], right: Callable[[Any], bool]
) -> Callable[[], Awaitable[bool]]:
    """Whether the models of these devices are as they should be, as the controller knows them."""

    async def holds() -> bool:
        found = {each["name"]: each["models"] for each in await controller.devices()}
        return all(any(right(model) for model in found[name]) for name in names)

    return holds


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[tuple[Controller, dict[str, Box], Path, dict[int, Path]]]:
    key = folder / "key.pem"
    await run("model", "keygen", str(key))
    public = folder / "key.pem.pub"
    packages = await asyncio.to_thread(make_packages, folder, key)
    with hub() as place:
        controller, boxes = controller_at(place, folder, public), dict[str, Box]()
        try:
            await controller.start()
            for name in (*NEAR, FAR):
                (folder / name).mkdir()
                boxes[name] = await box_at(place, name, folder / name, controller)
                await enrol(boxes[name], controller, public)
            yield controller, boxes, public, packages
        finally:
            await asyncio.gather(*map(close, boxes.values()))
            await controller.stop()


def controller_at(place: Hub | None, folder: Path, public: Path) -> Controller:
    return Controller(folder, public, place.host, place.within) if place else Controller(folder, public)


async def box_at(place: Hub | None, name: str, folder: Path, controller: Controller) -> Box:
    """A box behind a link of its own. Its clients are at the site: no link is between them and it."""
    if place is None:
        return await new_box(name, folder, controller, RATE)
    http = f"127.0.0.1:{free_port()}"
    return Box(
        name=name, folder=folder, link=place.wire(controller, RATE), grpc=f"unix:{folder / 'grpc'}", http=http
    )


def accounts(home: Path, state: Path, device: str) -> tuple[int, int, int]:
    """For all outboxes of a box: numbers that the controller was told, those that it holds, those that are accounted
    for as lost. Checks that neither side believes more than the other can show."""
    cursors = {}
    for stream in streams(state):
        folder = RealFolder(state / "outbox" / stream)
        cursors[stream] = OutboxReader(folder).cursor
        folder.close()
    told = held = lost = 0
    with sqlite3.connect(home / "fleet.db") as database:
        found = database.execute(
            "SELECT stream, epoch, next FROM outboxes WHERE device = ?", (device,)
        ).fetchall()
        for stream, epoch, after in found:
            key, where = (device, stream, epoch), "WHERE device = ? AND stream = ? AND epoch = ?"
            (count,) = database.execute(f"SELECT count(*) FROM telemetry {where}", key).fetchone()
            gaps = database.execute(f"SELECT first, last FROM losses {where}", key).fetchall()
            told += after
            held += count
            lost += sum(last - first + 1 for first, last in gaps)
            cursor = cursors[stream]
            assert cursor.epoch != epoch or cursor.next <= after, (
                "the box forgot what the controller does not have"
            )
    return told, held, lost


@pytest.mark.timeout(400)
async def test_a_fleet(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (controller, boxes, _, packages):
        far, north = boxes[FAR], boxes["north"]
        far.link.cut()
        await controller.ask("release", str(packages[1]))
        await controller.ask("want", f"{NAME}=1", "--group", "sites")
        await until("version 1 everywhere", standing(controller, NEAR, lambda model: model["serving"] == 1))
        loads = [Load(boxes[name].grpc, 30.0, number) for number, name in enumerate(NEAR)]
        tasks = [asyncio.create_task(load.run()) for load in loads]
        tasks += [asyncio.create_task(flap(boxes[name].link, UP_S, DOWN_S, lambda up: None)) for name in NEAR]

        await controller.ask("release", str(packages[2]))
        await controller.ask("want", f"{NAME}=2", "--group", "sites")
        await killed_while_it_works(north, controller)
        await until("version 2 everywhere", standing(controller, NEAR, lambda model: model["serving"] == 2))

        async def proven() -> bool:
            return all(load.versions["2"] > 450 for load in loads)

        await until("version 2 proven", proven)
        await controller.ask("release", str(packages[3]))
        await controller.ask("want", f"{NAME}=3", "--group", "sites")
        led_back = standing(
            controller, NEAR, lambda model: (model["phase"], model["serving"]) == ("failed", 2)
        )
        await until("version 3 led back", led_back)
        await controller.ask("want", f"{NAME}=2", "--group", "sites", "--order")

        await by_bundle(far, controller, tmp_path)
        await until("all as wanted", standing(controller, NEAR, lambda model: model["serving"] == 2))
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        assert [load.failed for load in loads] == [0, 0]
        assert all(load.versions["3"] for load in loads), "the bad version was never asked"

        for name in NEAR:
            boxes[name].link.mend()
            await until("the outbox drained", drained(boxes[name]))
        await shown(controller, boxes, loads)
    for name in (*NEAR, FAR):
        told, held, lost = accounts(controller.home, tmp_path / name / "state", name)
        assert told == held + lost
        assert (told > 0, lost) == (True, 0)


async def shown(controller: Controller, boxes: dict[str, Box], loads: list[Load]) -> None:
    """Who made the versions sees how they did: each answer of the one that stayed is counted, once."""
    for name in NEAR:
        await ended(boxes[name].processes["serve"])  # what it did is on the disk then
    answers = sum(load.versions["2"] for load in loads)

    async def counted() -> bool:
        found = json.loads(await controller.ask("compare", f"{NAME}=2", "--json"))
        return bool(found["new"]["answered"] == answers)

    await until("each answer counted", counted)
    second = json.loads(await controller.ask("compare", f"{NAME}=2", "--json"))
    sites = {each["device"]: each for each in second["sites"]}
    assert (len(sites), second["unfit"]) == (3, 0)
    assert all(sites[name]["new"]["p99_ms"] > 0 for name in NEAR)
    assert all(each["load"]["memory_bytes"] and each["load"]["load_ms"] for each in sites.values())
    assert sites[FAR]["new"] is None, "nobody asked there"
    third = json.loads(await controller.ask("compare", f"{NAME}=3", "--json"))
    assert (third["against"], third["old"]["answered"], third["unfit"]) == (2, answers, 2)
    assert {each["device"]: each["ending"] for each in third["sites"]} == dict.fromkeys(NEAR, "rolled back")


async def killed_while_it_works(box: Box, controller: Controller) -> None:
    """SIGKILL of the agent, of the controller, and of the agent again, while a version comes."""
    for _ in range(2):
        box.processes["agent"].kill()
        await box.processes["agent"].wait()
        box.processes["agent"] = await agent_of(box, box.folder / "appliance.toml")
        await asyncio.sleep(1.0)  # so that it has begun something
        if controller.process is not None:
            controller.process.kill()
            await controller.process.wait()
            await controller.serve()


async def by_bundle(far: Box, controller: Controller, folder: Path) -> None:
    """The box that has no link gets what is wanted, and gives its telemetry, by a file."""
    to_box, back, state = folder / "to-box.bundle", folder / "back.bundle", str(far.folder / "state")
    await run("bundle", "export", str(to_box), "--controller", str(controller.home), "--device", far.name)
    await run("bundle", "import", str(to_box), "--state-dir", state)

    async def live() -> bool:
        found = json.loads(await run("sync", "status", "--state-dir", state, "--json"))
        return "2" in json.dumps(found) and await serves(far, 2)

    await until("the far box at version 2", live)
    await ended(far.processes["serve"])  # what it did is on the disk then
    await run("bundle", "export", str(back), "--state-dir", state)
    await run("bundle", "import", str(back), "--controller", str(controller.home))
    await until(
        "the far box in the controller's picture", standing(controller, (far.name,), lambda model: True)
    )


async def serves(box: Box, version: int) -> bool:
    said = json.loads(await run("status", "--json", "--url", box.http, within=box.link.within))
    return any(
        (each["name"], each["version"], each["state"]) == (NAME, version, "READY") for each in said["models"]
    )


def drained(box: Box) -> Callable[[], Awaitable[bool]]:
    """Whether all but what came just now was sent."""

    async def holds() -> bool:
        place = box.folder / "state" / "outbox" / "history"
        with_history = RealFolder(place)
        try:
            return OutboxReader(with_history).read(1000, 10) is None
        finally:
            with_history.close()

    return holds
