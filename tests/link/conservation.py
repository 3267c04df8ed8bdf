"""Telemetry between a real outbox and a real controller, by seed: ``python -m tests.link.conservation [RUNS [FIRST]]``.

A producer, the agent and the controller are processes that are killed at any moment; the link breaks off within what is
sent and within what is answered; segments are damaged, dropped and carried by bundle, late and twice; each run begins
with an outbox that was lost. Then all comes to rest, and each record that the producer was told is kept is with the
controller, byte for byte, or exactly one account of a loss names its number.
"""

from __future__ import annotations

import asyncio
import shutil
import sqlite3
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Final

from appliance.durable import RealFolder
from appliance.fleet.records import Event, decode
from appliance.outbox.outbox import SEGMENT_BYTES_LEAST, Outbox, Policy
from appliance.outbox.reader import OutboxReader
from appliance.outbox.segment import HEADER_BYTES
from appliance.outbox.shelf import segments
from appliance.sync.outboxes import streams
from demo.fleet import Box, Controller, agent_of, over, run
from demo.link import FlappingLink
from demo.versions import APPLIANCE

RUNS: Final = 200
STREAM: Final = "serve"
RATE: Final = 2e6
DRAIN_TRIES: Final = 20
PAUSE_S: Final = 5.0
"""Between contacts, as agents make it: a controller refuses those who ask without end."""
SMALL: Final = 8 * SEGMENT_BYTES_LEAST
LARGE: Final = 1 << 24
Number = tuple[str, int]

PRODUCER: Final = """
import os, sys
from pathlib import Path
from appliance.durable import RealFolder
from appliance.fleet.records import Event, encode
from appliance.outbox.outbox import Outbox, Policy
outbox = Outbox(RealFolder(Path(sys.argv[1])), int(sys.argv[2]), Policy.DROP_OLDEST)
number, most = int(sys.argv[3]), int(sys.argv[4])
told = os.open(sys.argv[5], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
for number in range(number, number + most, 4):
    pads = [(each, "x" * (each % 1500)) for each in range(number, number + 4)]
    place = outbox.append([encode(Event(at_ms=each, what="made", fields={"pad": pad})) for each, pad in pads])
    os.write(told, f"{outbox.epoch} {place} {number}\\n".encode())
"""


class BreakingLink(FlappingLink):
    """A link whose connections break when so many bytes went in a direction."""

    def __init__(self, target: tuple[str, int], rate: float) -> None:
        super().__init__(target, rate)
        self.left: dict[bool, float] = {}

    async def _wait(self, size: int, *, outwards: bool) -> None:
        if outwards in self.left:
            self.left[outwards] -= size
            if self.left[outwards] < 0:
                del self.left[outwards]
                raise ConnectionAbortedError
        await super()._wait(size, outwards=outwards)


@dataclass(slots=True)
class Seen:
    """What a run came to."""

    kept: int = 0
    held: int = 0
    dropped: int = 0
    damaged: int = 0
    cut: int = 0
    kills: int = 0
    breaks: int = 0
    bundles: int = 0
    wrong: list[str] = field(default_factory=list)


class Site:
    """A controller and an enrolled box without a daemon, in ``folder``; runs are played on it, one after another."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.controller: Controller
        self.box: Box
        self.config: Path

    @property
    def state(self) -> Path:
        """The box's state directory."""
        return self.folder / "box" / "state"

    async def open(self) -> None:
        """Start the controller and enrol the box."""
        key = self.folder / "key.pem"
        await run("model", "keygen", str(key))
        self.controller = Controller(self.folder, key.with_name("key.pem.pub"))
        await self.controller.start()
        (self.folder / "box").mkdir()
        link = BreakingLink(("127.0.0.1", self.controller.port), RATE)
        await link.start()
        self.box = Box(
            name="box", folder=self.folder / "box", link=link, grpc="127.0.0.1:1", http="127.0.0.1:2"
        )
        self.config = self.box.configuration(key.with_name("key.pem.pub"))
        token = over(await self.controller.ask("token", "--group", "sites"), link.url)
        await run("sync", "enrol", token, "--name", "box", "--state-dir", str(self.state))

    async def close(self) -> None:
        """End all of it."""
        await kill(self.box.processes.pop("agent", None))
        await kill(self.box.processes.pop("producer", None))
        await self.box.link.close()
        await self.controller.stop()

    async def play(self, seed: int) -> Seen:
        """A run; all that it needs to go on with the next one is as it was."""
        return await _Run(self, Random(seed)).play()


class _Run:
    def __init__(self, site: Site, random: Random) -> None:
        self.site = site
        self.random = random
        self.seen = Seen()
        self.place = site.state / "outbox" / STREAM
        self.told = site.folder / "told"
        self.limit = random.choice([SMALL, LARGE])
        self.number = 0
        self.carried: list[Path] = []

    async def play(self) -> Seen:
        self.told.unlink(missing_ok=True)
        shutil.rmtree(self.place, ignore_errors=True)
        self.place.mkdir(parents=True)
        for _ in range(self.random.randint(2, 4)):
            await self.produce()
            await self.send()
            await self.random.choice([self.lose_controller, self.damage, self.carry, self.carry])()
        await self.finish("producer")
        await self.rest()
        self.check()
        return self.seen

    async def produce(self) -> None:
        """A producer begins, and the one before is killed, wherever it is."""
        await self.finish("producer")
        most = self.random.choice([40, 400, 4000])
        words = [str(self.place), str(self.limit), str(self.number), str(most), str(self.told)]
        self.number += 1_000_000
        self.site.box.processes["producer"] = await asyncio.create_subprocess_exec(
            sys.executable, "-c", PRODUCER, *words
        )

    async def send(self) -> None:
        """The agent works for a while over a link that breaks, and is killed."""
        link = self.site.box.link
        assert isinstance(link, BreakingLink)
        if self.random.random() < 0.7:
            link.left[self.random.random() < 0.5] = self.random.choice([3e3, 3e4, 2e5]) * self.random.random()
            self.seen.breaks += 1
        self.site.box.processes["agent"] = await agent_of(self.site.box, self.site.config)
        await asyncio.sleep(self.random.random())  # the moment at which it is killed
        await self.finish("agent")

    async def finish(self, name: str) -> None:
        """SIGKILL."""
        process = self.site.box.processes.pop(name, None)
        self.seen.kills += process is not None
        await kill(process)

    async def lose_controller(self) -> None:
        """The controller is killed, and begins again."""
        self.seen.kills += 1
        await kill(self.site.controller.process)
        await self.site.controller.serve()

    async def damage(self) -> None:
        """A byte of a segment that is not written to any more becomes another one."""
        folder = RealFolder(self.place)
        names = [name for _, name in segments(folder)][:-1]
        folder.close()
        if not names:
            return
        path = self.place / self.random.choice(names)
        try:
            data = bytearray(path.read_bytes())
        except FileNotFoundError:
            return  # it was dropped meanwhile
        if len(data) > HEADER_BYTES:
            data[self.random.randrange(HEADER_BYTES, len(data))] ^= 0x55
            changed = path.with_name("changed")
            changed.write_bytes(data)
            if path.exists():
                changed.rename(path)
            changed.unlink(missing_ok=True)

    async def carry(self) -> None:
        """What waits is written to a bundle, which arrives when it is old."""
        target = self.site.folder / f"carried-{len(self.carried)}.bundle"
        target.unlink(missing_ok=True)
        await run("bundle", "export", str(target), "--state-dir", str(self.site.state))
        self.carried.append(target)
        self.seen.bundles += 1

    async def rest(self) -> None:
        """Nothing fails any more: the outbox is opened once more, all is sent, and what was carried arrives."""
        link = self.site.box.link
        assert isinstance(link, BreakingLink)
        link.left.clear()
        folder = RealFolder(self.place)
        Outbox(folder, self.limit, Policy.DROP_OLDEST).close()
        folder.close()
        early = self.carried[: len(self.carried) // 2]
        for each in early:
            await self.arrive(each)
        for _ in range(DRAIN_TRIES):
            said = await run_to_its_end("sync", "once", "--config", str(self.site.config))
            if not self.waits():
                break
            await asyncio.sleep(PAUSE_S)
        else:
            self.seen.wrong.append(f"it never was all sent: {said}")
        for each in self.carried:  # some of them for the second time
            await self.arrive(each)

    async def arrive(self, bundle: Path) -> None:
        """A bundle comes to the controller."""
        await run("bundle", "import", str(bundle), "--controller", str(self.site.controller.home))

    def waits(self) -> bool:
        """Whether something is still to be sent."""
        for stream in streams(self.site.state):
            folder = RealFolder(self.site.state / "outbox" / stream)
            try:
                if OutboxReader(folder).read(1000, 1) is not None:
                    return True
            finally:
                folder.close()
        return False

    def check(self) -> None:
        """Conservation, exactly."""
        kept = dict[Number, int]()
        for line in self.told.read_text().splitlines() if self.told.exists() else []:
            epoch, place, number = line.split()
            for index in range(4):
                kept[epoch, int(place) + index] = int(number) + index
        self.seen.kept = len(kept)
        with sqlite3.connect(self.site.controller.home / "fleet.db") as database:
            for (epoch,) in database.execute(
                "SELECT DISTINCT epoch FROM outboxes WHERE stream = ?", (STREAM,)
            ).fetchall():
                mine = {number: told for (each, number), told in kept.items() if each == epoch}
                if mine:
                    self.check_epoch(database, epoch, mine)
        told_of = {epoch for epoch, _ in kept}
        with sqlite3.connect(self.site.controller.home / "fleet.db") as database:
            known = {each for (each,) in database.execute("SELECT epoch FROM outboxes")}
        if missing := told_of - known:
            self.seen.wrong.append(f"the controller never heard of {sorted(missing)}")

    def check_epoch(self, database: sqlite3.Connection, epoch: str, kept: dict[int, int]) -> None:
        """What was kept below this epoch's numbers; ``kept`` is what was told of each."""
        key = (STREAM, epoch)
        found = database.execute("SELECT number, record FROM telemetry WHERE stream = ? AND epoch = ?", key)
        held = {number: bytes(record) for number, record in found}
        lost = dict[int, str]()
        for first, last, reason in database.execute(
            "SELECT first, last, reason FROM losses WHERE stream = ? AND epoch = ?", key
        ):
            for number in range(first, last + 1):
                if number in lost or number in held:
                    self.seen.wrong.append(f"{number} has two accounts")
                lost[number] = reason
        (after,) = database.execute(
            "SELECT next FROM outboxes WHERE stream = ? AND epoch = ?", key
        ).fetchone()
        if set(held) | set(lost) != set(range(after)):
            self.seen.wrong.append(f"of {after} numbers {len(held)} are held and {len(lost)} lost")
        for number, told in kept.items():
            if number in held:
                if read_number(held[number]) != told:
                    self.seen.wrong.append(f"{number} arrived as something else")
            elif lost.get(number, "cut") == "cut":
                self.seen.wrong.append(f"{number} is lost")
        reasons = list(lost.values())
        self.seen.held += len(held)
        self.seen.dropped += reasons.count("bound")
        self.seen.damaged += reasons.count("damaged")
        self.seen.cut += reasons.count("cut")


def read_number(record: bytes) -> int:
    """What the producer called it."""
    event = decode(record)
    assert isinstance(event, Event)
    assert event.fields == {"pad": "x" * (event.at_ms % 1500)}
    return event.at_ms


async def kill(process: asyncio.subprocess.Process | None) -> None:
    """SIGKILL, wherever it is."""
    if process is not None and process.returncode is None:
        process.kill()
        await process.wait()


async def run_to_its_end(*words: str) -> str:
    """What an ``appliance`` command prints, whatever comes of it."""
    process = await asyncio.create_subprocess_exec(
        APPLIANCE, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT
    )
    said, _ = await process.communicate()
    return said.decode()


async def search(runs: int, first: int) -> int:
    """Play ``runs`` seeds from ``first`` on; tells what they came to; gives how many went wrong."""
    total, failed = Seen(), 0
    with tempfile.TemporaryDirectory(prefix="appliance-conservation-") as folder:
        site = Site(Path(folder))
        await site.open()
        try:
            for seed in range(first, first + runs):
                seen = await site.play(seed)
                failed += bool(seen.wrong)
                for name in ("kept", "held", "dropped", "damaged", "cut", "kills", "breaks", "bundles"):
                    setattr(total, name, getattr(total, name) + getattr(seen, name))
                print(f"\r{seed - first + 1} of {runs} runs, {failed} wrong", end="", file=sys.stderr)
                for each in seen.wrong[:3]:
                    print(f"\nseed {seed}: {each}", file=sys.stderr)
        finally:
            await site.close()
    print(file=sys.stderr)
    print(total)
    return failed


if __name__ == "__main__":
    given = [int(each) for each in sys.argv[1:]]
    sys.exit(1 if asyncio.run(search(given[0] if given else RUNS, given[1] if given[1:] else 0)) else 0)
