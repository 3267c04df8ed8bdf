"""Sites in network namespaces of their own: a hub with the controller, and to each site a wire that is shaped by the
kernel and can be taken down. Needs root and the tools ``ip`` and ``tc``."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from demo.fleet import Controller

SUBNET = "10.213.0"
BURST_BYTES = 16_384
LATENCY_MS = 400


class Wire:
    """Implements demo.link.Link: a pair of interfaces from the hub to the site's namespace, ``rate`` bytes per second
    in each direction."""

    def __init__(self, hub: str, number: int, rate: float, url: str) -> None:
        self.up = True
        self.url = url
        self.namespace = f"{hub}-{number}"
        self.within: tuple[str, ...] = ("ip", "netns", "exec", self.namespace)
        self._hub = hub
        self._port = f"site{number}"
        _do("ip", "netns", "add", self.namespace)
        _do(
            "ip",
            "link",
            "add",
            self._port,
            "netns",
            hub,
            "type",
            "veth",
            "peer",
            "name",
            "uplink",
            "netns",
            self.namespace,
        )
        _do("ip", "-n", hub, "link", "set", self._port, "master", "hub", "up")
        _do("ip", "-n", self.namespace, "address", "add", f"{SUBNET}.{number + 1}/24", "dev", "uplink")
        for device in ("lo", "uplink"):
            _do("ip", "-n", self.namespace, "link", "set", device, "up")
        for namespace, device in ((hub, self._port), (self.namespace, "uplink")):
            _do(
                "tc", "-n", namespace, "qdisc", "add", "dev", device, "root", "tbf", "rate", f"{int(rate * 8)}bit",
                "burst", str(BURST_BYTES), "latency", f"{LATENCY_MS}ms",
            )  # fmt: skip

    @property
    def down_bytes(self) -> int:
        """See Link; headers are counted."""
        (found,) = json.loads(_do("ip", "-n", self.namespace, "-s", "-j", "link", "show", "uplink"))
        return int(found["stats64"]["rx"]["bytes"])

    def cut(self) -> None:
        """What is on its way is lost, and nobody is told."""
        self.up = False
        _do("ip", "-n", self._hub, "link", "set", self._port, "down")

    def mend(self) -> None:
        """Packets go again."""
        self.up = True
        _do("ip", "-n", self._hub, "link", "set", self._port, "up")

    async def close(self) -> None:
        """See Link; the hub takes the namespace away."""


class Hub:
    """The namespace of the controller."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.host = f"{SUBNET}.1"
        self.within = ("ip", "netns", "exec", name)
        self.wires = 0

    def wire(self, controller: Controller, rate: float) -> Wire:
        """To one more site, whose namespace goes with the hub's."""
        self.wires += 1
        return Wire(self.name, self.wires, rate, controller.url)


@contextmanager
def hub() -> Iterator[Hub | None]:
    """A hub without sites; None where namespaces are not to be had."""
    name = f"fleet-{os.getpid()}-{secrets.token_hex(2)}"
    try:
        _do("ip", "netns", "add", name)
    except (OSError, subprocess.CalledProcessError):
        yield None
        return
    found = Hub(name)
    try:
        _do("ip", "-n", name, "link", "add", "hub", "type", "bridge")
        _do("ip", "-n", name, "address", "add", f"{SUBNET}.1/24", "dev", "hub")
        for device in ("lo", "hub"):
            _do("ip", "-n", name, "link", "set", device, "up")
        yield found
    finally:
        for each in (*(f"{name}-{number + 1}" for number in range(found.wires)), name):
            subprocess.run(["ip", "netns", "delete", each], check=False, timeout=30)


def _do(*words: str) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True, timeout=30).stdout
