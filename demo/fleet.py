"""A controller and boxes as processes of this machine, each box behind a link of its own."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import signal
import socket
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from demo.link import FlappingLink, Link
from demo.load import Load
from demo.versions import APPLIANCE

START_S: Final = 60.0
STOP_S: Final = 30.0
WATCH_S: Final = 10
"""How long boxes watch a new version before it counts as proven, shorter than usual so that it can be looked at."""
POLL_S: Final = 5


class DemoFailed(Exception):
    """Something that the demonstration is about did not happen."""


@dataclass(slots=True, kw_only=True)
class Box:
    """A site: a daemon, an agent, the link between it and the controller, requests."""

    name: str
    folder: Path
    link: Link
    grpc: str
    http: str
    processes: dict[str, asyncio.subprocess.Process] = field(default_factory=dict)
    load: Load | None = None

    def configuration(self, key: Path) -> Path:
        """Write the box's configuration file."""
        path = self.folder / "appliance.toml"
        path.write_text(
            f'state_dir = "{self.folder / "state"}"\n'
            f'[grpc]\naddresses = ["{self.grpc}"]\n'
            f'[http]\naddresses = ["{self.http}"]\n'
            f'[packages]\ntrusted_keys = ["{key}"]\n'
            f"[swap]\nwatch_s = {WATCH_S}\n"
            f"[fleet]\npoll_s = {POLL_S}\n"
        )
        return path


class Controller:
    """The controller and its operator. It listens at ``host``; its commands run ``within`` these words."""

    def __init__(
        self, folder: Path, key: Path, host: str = "127.0.0.1", within: tuple[str, ...] = ()
    ) -> None:
        self.folder = folder
        self.host = host
        self.port = free_port()
        self._within = within
        self._key = key
        self.home = folder / "controller"
        self.process: asyncio.subprocess.Process | None = None
        self._environment = {**os.environ, "APPLIANCE_CONTROLLER": str(folder / "profile.json")}

    @property
    def url(self) -> str:
        """Where it is."""
        return f"https://{self.host}:{self.port}"

    async def start(self) -> None:
        """Make it, serve it, log in."""
        said = await run(
            "controller", "init", str(self.home), "--url", self.url, "--address", f"{self.host}:{self.port}",
            "--package-key", str(self._key),
        )  # fmt: skip
        token = re.search(r"shown once: (\S+)", said)
        if token is None:
            raise DemoFailed("the controller told no token")
        await self.serve()
        await self.ask("login", self.url, "--authority", str(self.home / "authority.crt"), given=token[1])

    async def serve(self) -> None:
        """Have it served; what served it before has ended."""
        home = str(self.home)
        self.process, _ = await started(
            self.folder / "controller.log", "listens at", "controller", "serve", home, within=self._within
        )

    async def ask(self, *words: str, given: str = "") -> str:
        """What a command of the operator prints."""
        return await run("fleet", *words, given=given, environment=self._environment, within=self._within)

    async def devices(self) -> list[Any]:
        """The devices as the controller sees them."""
        found: list[Any] = json.loads(await self.ask("devices", "--json"))
        return found

    async def stop(self) -> None:
        """End it."""
        if self.process is not None:
            await ended(self.process)


async def new_box(name: str, folder: Path, controller: Controller, rate: float) -> Box:
    """A box that is not started yet, in the empty ``folder``, with a link of ``rate`` bytes per second to the
    controller."""
    link = FlappingLink(("127.0.0.1", controller.port), rate)
    await link.start()
    return Box(
        name=name, folder=folder, link=link, grpc=f"127.0.0.1:{free_port()}", http=f"127.0.0.1:{free_port()}"
    )


async def enrol(box: Box, controller: Controller, key: Path) -> None:
    """Have the box enrolled over its link, and its agent and daemon started."""
    config = box.configuration(key)
    token = over(await controller.ask("token", "--group", "sites"), box.link.url)
    state = str(box.folder / "state")
    await run("sync", "enrol", token, "--name", box.name, "--state-dir", state, within=box.link.within)
    box.processes["agent"] = await agent_of(box, config)
    box.processes["serve"], _ = await started(
        box.folder / "serve.log", "Serving gRPC", "serve", "--config", str(config), within=box.link.within
    )


async def agent_of(box: Box, config: Path) -> asyncio.subprocess.Process:
    """The box's agent, started."""
    words = ("sync", "--config", str(config))
    process, _ = await started(box.folder / "agent.log", "agent works", *words, within=box.link.within)
    return process


async def close(box: Box) -> None:
    """End the box."""
    await asyncio.gather(*(ended(each) for each in box.processes.values()))
    await box.link.close()


def over(token: str, url: str) -> str:
    """The token with the controller's URL as it is reached over a link."""
    data = token.strip().removeprefix("ea1.")
    _, *rest = msgspec.msgpack.decode(base64.urlsafe_b64decode(data + "=" * (-len(data) % 4)))
    changed = msgspec.msgpack.encode([url, *rest])
    return "ea1." + base64.urlsafe_b64encode(changed).decode().rstrip("=")


async def run(
    *words: str, given: str = "", environment: dict[str, str] | None = None, within: tuple[str, ...] = ()
) -> str:
    """What an ``appliance`` command prints; it has to succeed. It runs ``within`` these words."""
    process = await asyncio.create_subprocess_exec(
        *within, APPLIANCE, *words, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE, env=environment,
    )  # fmt: skip
    out, error = await process.communicate(given.encode())
    if process.returncode:
        raise DemoFailed(f"appliance {' '.join(words[:3])}: {error.decode().strip()}")
    return out.decode()


async def started(
    log: Path, says: str, *words: str, within: tuple[str, ...] = ()
) -> tuple[asyncio.subprocess.Process, str]:
    """A process that runs ``within`` these words, and what it had printed when it had said ``says``."""
    with log.open("wb") as file:
        process = await asyncio.create_subprocess_exec(
            *within,
            APPLIANCE,
            *words,
            stdout=file,
            stderr=file,
            stdin=asyncio.subprocess.DEVNULL,
            start_new_session=True,
        )
    end = asyncio.get_running_loop().time() + START_S
    while says not in (text := log.read_text(errors="replace")):  # noqa: ASYNC240  it is a few lines
        if process.returncode is not None or asyncio.get_running_loop().time() > end:
            raise DemoFailed(f"appliance {' '.join(words[:2])} did not start:\n{text[-2000:]}")
        await asyncio.sleep(0.1)
    return process, text


async def ended(process: asyncio.subprocess.Process) -> None:
    """End a process, by force if need be."""
    if process.returncode is None:
        process.send_signal(signal.SIGTERM)
        try:
            await asyncio.wait_for(process.wait(), STOP_S)
        except TimeoutError:
            process.kill()
            await process.wait()


def free_port() -> int:
    """A port of this machine that nobody listens at."""
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port
