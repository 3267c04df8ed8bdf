"""Play the story: ``python -m demo`` in two minutes; ``--json`` ends with one line for machines."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final

from rich.console import Console
from rich.table import Table

from demo.fleet import Box, Controller, DemoFailed, close, enrol, new_box, run
from demo.link import flap
from demo.load import Load
from demo.versions import NAME, make_packages

SITES: Final = ("north", "south", "harbour")
RATE: Final = 100_000.0
UP_S: Final = 12.0
DOWN_S: Final = 2.0
REQUESTS_PER_S: Final = 40.0
PATIENCE_S: Final = 90.0
SHOW_S: Final = 4.0
PIPE_CELLS: Final = 200


class Story:
    """What happens, told as it happens, to a terminal or a pipe."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self.boxes: list[Box] = []

    def tell(self, text: str, style: str = "") -> None:
        """A line with its time."""
        self._console.print(
            f"[dim]{time.monotonic() - self._began:6.1f} s[/dim]  {text}", style=style, highlight=False
        )

    def show(self) -> None:
        """How the boxes stand."""
        table = Table(
            "site",
            "link",
            "over the link",
            "answers by version",
            "answered",
            "failed",
            box=None,
            padding=(0, 2),
        )
        for box in self.boxes:
            load = box.load
            versions = (
                ", ".join(f"{each}: {count}" for each, count in sorted(load.versions.items())) if load else ""
            )
            table.add_row(
                box.name,
                "[green]up[/green]" if box.link.up else "[red]gone[/red]",
                f"{box.link.down_bytes / 1e6:.2f} MB",
                versions or "-",
                str(load.outcomes["OK"]) if load else "0",
                str(load.failed) if load else "0",
            )
        self._console.print(table)

    async def until(self, what: str, holds: Callable[[], Awaitable[bool]]) -> None:
        """Wait for it, showing how the boxes stand. Raises DemoFailed when it does not come."""
        end, shown = time.monotonic() + PATIENCE_S, time.monotonic()
        while not await holds():
            if time.monotonic() > end:
                raise DemoFailed(f"it did not come to this within {PATIENCE_S:g} s: {what}")
            if time.monotonic() - shown > SHOW_S:
                self.show()
                shown = time.monotonic()
            await asyncio.sleep(0.5)


async def play(folder: Path, story: Story) -> dict[str, Any]:
    """The whole of it; gives figures."""
    key = folder / "packages.pem"
    await run("model", "keygen", str(key))
    public = key.with_name("packages.pem.pub")
    story.tell("making three versions of a model: a first one, a fine-tuned one, and one with a flaw")
    packages = await asyncio.to_thread(make_packages, folder, key)
    controller = Controller(folder, public)
    await controller.start()
    story.tell(
        f"the controller is up; version 1 is released ({packages[1].stat().st_size / 1e6:.1f} MB)", "bold"
    )
    await controller.ask("release", str(packages[1]))
    tasks: list[asyncio.Task[None]] = []
    try:
        for site in SITES:
            (folder / site).mkdir()
            box = await new_box(site, folder / site, controller, RATE)
            await enrol(box, controller, public)
            story.boxes.append(box)
            story.tell(
                f"'{site}' is enrolled, over a link of {RATE / 1000:g} kB/s that is gone every {UP_S:g} s"
            )
        tasks += [asyncio.create_task(flap(box.link, UP_S, DOWN_S, lambda up: None)) for box in story.boxes]
        await controller.ask("want", f"{NAME}=1", "--group", "sites")
        await story.until("version 1 is live everywhere", serving(controller, 1))
        story.tell("version 1 answers everywhere; clients come", "bold green")
        for number, box in enumerate(story.boxes):
            box.load = Load(box.grpc, REQUESTS_PER_S, number)
            tasks.append(asyncio.create_task(box.load.run()))
        first = [box.link.down_bytes for box in story.boxes]
        await controller.ask("release", str(packages[2]))
        await controller.ask("want", f"{NAME}=2", "--group", "sites")
        story.tell("version 2 is released and wanted: it comes as the difference to version 1", "bold")
        await story.until("version 2 is live everywhere", serving(controller, 2))
        second = [box.link.down_bytes - before for box, before in zip(story.boxes, first, strict=True)]
        story.tell(f"version 2 answers everywhere, for {max(second) / 1e6:.2f} MB at most", "bold green")
        await story.until("the boxes have proven version 2", answered(story.boxes, "2", 600))
        await controller.ask("release", str(packages[3]))
        await controller.ask("want", f"{NAME}=3", "--group", "sites")
        story.tell("version 3 is released and wanted; it fails for one request of ten", "bold")
        await story.until("the boxes lead version 3 back", led_back(controller))
        story.tell("all boxes have led it back by themselves, and say so:", "bold green")
        for each in await controller.devices():
            model = each["models"][0]
            story.tell(f"'{each['name']}' serves {NAME}/{model['serving']}: {model['reason']}")
        return figures(story.boxes, second)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        story.show()
        await asyncio.gather(*map(close, story.boxes))
        await controller.stop()


def serving(controller: Controller, version: int) -> Callable[[], Awaitable[bool]]:
    """Whether each box says that it serves that version."""

    async def holds() -> bool:
        found = await controller.devices()
        return len(found) == len(SITES) and all(
            any(model["serving"] == version for model in each["models"]) for each in found
        )

    return holds


def answered(boxes: Sequence[Box], version: str, count: int) -> Callable[[], Awaitable[bool]]:
    """Whether each box answered so many requests with that version."""

    async def holds() -> bool:
        return all(box.load is not None and box.load.versions[version] >= count for box in boxes)

    return holds


def led_back(controller: Controller) -> Callable[[], Awaitable[bool]]:
    """Whether each box says that version 3 failed and serves another one."""

    async def holds() -> bool:
        found = await controller.devices()
        return all(
            any(model["phase"] == "failed" and model["serving"] in (1, 2) for model in each["models"])
            for each in found
        )

    return holds


def figures(boxes: Sequence[Box], update_bytes: Sequence[int]) -> dict[str, Any]:
    """What came of it, for machines."""
    return {
        "sites": len(boxes),
        "answered": sum(box.load.outcomes["OK"] for box in boxes if box.load),
        "failed": sum(box.load.failed for box in boxes if box.load),
        "update_bytes": list(update_bytes),
        "by_version": {box.name: dict(box.load.versions) for box in boxes if box.load},
    }


def main() -> int:
    """Play it; 0 when it went as it should and no request failed."""
    parser = argparse.ArgumentParser(prog="python -m demo", description=__doc__)
    parser.add_argument("--json", action="store_true", help="end with one line of JSON")
    parser.add_argument("--keep", type=Path, help="directory for everything, kept afterwards")
    arguments = parser.parse_args()
    console = Console(stderr=arguments.json)
    story = Story(console if console.is_terminal else Console(stderr=arguments.json, width=PIPE_CELLS))
    with tempfile.TemporaryDirectory(prefix="appliance-demo-") as temporary:
        folder = arguments.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        try:
            found = asyncio.run(play(folder, story))
        except DemoFailed as error:
            story.tell(str(error), "bold red")
            return 1
        except KeyboardInterrupt:
            return 130
    text = f"{found['answered']} requests were answered, {found['failed']} failed"
    story.tell(text, "bold green" if not found["failed"] else "bold red")
    if arguments.json:
        print(json.dumps(found))
    return 1 if found["failed"] else 0


if __name__ == "__main__":
    sys.exit(main())
