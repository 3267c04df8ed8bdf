"""Waiting for a wish, as an engineer at the desk does: a real controller, real boxes, the command as a process."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from onnx import TensorProto

from appliance.cli.failure import Exit
from demo.fleet import Box, Controller, close, ended, enrol, new_box, over, run
from demo.versions import APPLIANCE
from tests.faults.golden_sets import write_expected
from tests.repository.onnx_files import plain_model, write_version

RATE = 4_000_000.0
NEAR = ("north", "south")
RIGHT, WRONG = (1, 2, 3, 4), (4, 3, 2, 1)


async def packed(folder: Path, key: Path, version: int, answer: Sequence[int]) -> str:
    """A package of ``m``, y = x, whose golden set wants ``answer`` to 1, 2, 3, 4."""
    source = write_version(folder / f"source-{version}", "m", plain_model(element=TensorProto.UINT8), version)
    write_expected(source, answer)
    package = str(folder / f"m-{version}.model")
    words = ("--version", str(version), "--key", str(key), "--no-proof", "-o", package)
    await run("model", "pack", str(source), *words)
    return package


@asynccontextmanager
async def fleet(folder: Path) -> AsyncIterator[tuple[Controller, dict[str, Box]]]:
    """Two boxes that serve, and three versions of which the third one gives other answers than it should."""
    key = folder / "key.pem"
    await run("model", "keygen", str(key))
    controller, boxes = Controller(folder, folder / "key.pem.pub"), dict[str, Box]()
    try:
        await controller.start()
        for version, answer in ((1, RIGHT), (2, RIGHT), (3, WRONG)):
            await controller.ask("release", await packed(folder, key, version, answer))
        for name in NEAR:
            (folder / name).mkdir()
            boxes[name] = await new_box(name, folder / name, controller, RATE)
            await enrol(boxes[name], controller, folder / "key.pem.pub")
        yield controller, boxes
    finally:
        await asyncio.gather(*map(close, boxes.values()))
        await controller.stop()


async def waiting(controller: Controller, *words: str) -> asyncio.subprocess.Process:
    """``appliance fleet want ... --wait``, begun."""
    return await asyncio.create_subprocess_exec(
        APPLIANCE, "fleet", "want", *words, "--wait", stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "APPLIANCE_CONTROLLER": str(controller.folder / "profile.json")},
    )  # fmt: skip


async def waited(controller: Controller, *words: str) -> tuple[int | None, str, str]:
    """How it ended, what it printed and what it complained of."""
    process = await waiting(controller, *words)
    out, error = await process.communicate()
    return process.returncode, out.decode(), error.decode()


async def standing(controller: Controller) -> dict[str, Any]:
    return {each["name"]: each for each in await controller.devices()}


@pytest.mark.timeout(400)
async def test_who_waits_for_a_wish_is_told_how_it_ended(tmp_path: Path) -> None:
    async with fleet(tmp_path) as (controller, boxes):
        status, out, error = await waited(controller, "m=1", "--group", "sites", "--timeout", "120", "--json")
        assert (status, error) == (Exit.OK, "")
        told = json.loads(out)
        assert (told["outcome"], told["counts"]["serves"]) == ("served", 2)
        assert [each["serving"] for each in told["standings"]] == [1, 1]
        found = await standing(controller)
        assert all(found[name]["models"][0]["serving"] == 1 for name in NEAR)

        status, out, error = await waited(controller, "m=3", "--group", "sites", "--timeout", "120")
        assert status == Exit.STOPPED
        assert "not all devices will get there: m/3 serves on 0 of 2 devices, " in error
        assert "failed: golden" in error
        assert "; it serves version 1" in error
        assert any(f"\n{name}: failed: " in error for name in NEAR)

        await both_failed(controller)
        status, out, error = await waited(controller, "m=1", "--group", "sites", "--timeout", "120")
        assert (status, error) == (Exit.OK, ""), "back to a version that both said they serve all the time"
        assert out.splitlines()[0].startswith("m/1 serves on 0 of 2 devices"), (
            "what was said before counts not"
        )
        assert out.splitlines()[-1].startswith("m/1 serves on 2 of 2 devices after ")
        found = await standing(controller)
        assert all(found[name]["told_generation"] == found[name]["generation"] for name in NEAR)

        await ended(boxes["south"].processes.pop("agent"))
        status, out, error = await waited(controller, "m=2", "--group", "sites", "--timeout", "120")
        assert (status, "north: refused: it is older than version 3" in error) == (Exit.STOPPED, True)
        words = ("m=2", "--group", "sites", "--downgrade")
        process = await waiting(controller, *words)
        assert process.stdout is not None
        async with asyncio.timeout(120):
            while await process.stdout.readline() != b"north: serves it\n":
                assert not process.stdout.at_eof()
        line = await process.stdout.readline()
        assert line == b"m/2 serves on 1 of 2 devices, 1 not heard from since\n", "it waits for the other one"
        process.send_signal(signal.SIGINT)
        assert await process.wait() == Exit.INTERRUPTED
        status, out, error = await waited(controller, *words, "--timeout", "1")
        assert status == Exit.OVERDUE
        assert "not all devices are there after 1 s: m/2 serves on " in error
        assert "south: not heard from since the wish; last " in error
        assert "; it said that it serves version 1" in error

        await never_heard(controller, tmp_path)
        await interrupted(controller)


async def both_failed(controller: Controller) -> None:
    """Until both have said so: the command ends with the first one that does."""
    async with asyncio.timeout(60):
        while {each["models"][0]["phase"] for each in await controller.devices()} != {"failed"}:  # noqa: ASYNC110
            await asyncio.sleep(0.3)


async def never_heard(controller: Controller, folder: Path) -> None:
    """A box that was enrolled, and whose agent never ran."""
    (folder / "far").mkdir()
    far = await new_box("far", folder / "far", controller, RATE)
    try:
        token = over(await controller.ask("token", "--group", "harbour"), far.link.url)
        await run("sync", "enrol", token, "--name", "far", "--state-dir", str(far.folder / "state"))
    finally:
        await close(far)
    status, out, error = await waited(controller, "m=1", "--group", "harbour", "--timeout", "3", "--json")
    assert (status, json.loads(out)["counts"]["unheard"]) == (Exit.OVERDUE, 1)
    assert "far: not heard from since the wish; never heard from at all" in error


async def interrupted(controller: Controller) -> None:
    """Ctrl-C leaves the wish as it is. A controller that was away for a while has ended nothing before."""
    process = await waiting(controller, "m=1", "--device", "south")
    assert process.stdout is not None
    assert b"serves on 0 of 1 device, 1 not heard from since" in await process.stdout.readline()
    assert controller.process is not None
    controller.process.kill()
    assert b" does not answer: " in await process.stdout.readline()
    await controller.serve()
    assert b"serves on 0 of 1 device, 1 not heard from since" in await process.stdout.readline()
    process.send_signal(signal.SIGINT)
    _, error = await process.communicate()
    assert process.returncode == Exit.INTERRUPTED
    assert b"the waiting was interrupted: m/1 serves on 0 of 1 device, " in error
    assert b"; the wish stays" in error
    assert b"Traceback" not in error
    assert (await standing(controller))["south"]["wishes"]["m"]["version"] == 1
