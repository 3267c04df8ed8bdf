"""What a site gives a box: a network, a configuration and a token, by a stick; a configuration, by a credential."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from image.build import CONFIGURATION
from tests.image.vm import Failed, Machine, Power, switched_on
from tests.image.world import Facts, World

APPLIANCE: Final = str(Path(sys.executable).parent / "appliance")
STICK_MIB: Final = 64
NETWORK: Final = "[Match]\nType=ether\n\n[Network]\nDHCP=yes\nDescription=as the stick brought it\n"
GOOD: Final = f'{CONFIGURATION}\n[log]\nlevel = "debug"\n'
WRONG: Final = '[grpc]\naddresses = "not a list"\n'


def stick_enrolment(world: World) -> Facts:
    """A stick is put in while the box reaches nobody: it takes the network and the token, refuses the configuration
    that is wrong and says so on the console, and serves on. At the next start, when there is a network, it enrols by
    itself and tells the fleet what it refused."""
    disk = world.fresh("stick-enrolment")
    with controller(world.folder("stick-enrolment") / "controller") as fleet:
        contents = {"enrol": fleet.token(), "appliance.toml": WRONG, "network/10-site.network": NETWORK}
        stick = make_stick(world, disk.parent / "stick.raw", contents)
        usb = ("-device", "qemu-xhci,id=xhci")
        with switched_on(world.place, Power(disk=disk, restrict=True, options=usb), "serial-1") as machine:
            machine.wait_answer()
            put_in(machine, world.place.inside(stick))
            for text in ("brings the network 10-site", "configuration is refused", "brings a token"):
                machine.wait_said(text)
            machine.wait_said("10\\.0\\.2\\.2.*(not reached|did not answer|not known)")
            machine.wait_answer()
            machine.wait_login()
            found = machine.run(
                "networkctl status --all --no-pager | grep -i 'network file'; ls /var/lib/appliance-image"
            )
            if "10-site.network" not in found:
                raise Failed(f"the network is not that of the stick: {found}")
            machine.power_off()
        if fleet.devices():
            raise Failed("the box was enrolled without a network")
        with switched_on(world.place, Power(disk=disk), "serial-2") as machine:
            answered = machine.wait_answer()
            begun = time.monotonic()
            while "is refused, the one before stays" not in json.dumps(devices := fleet.devices()):
                machine.check_alive()
                if time.monotonic() - begun > 600:
                    raise Failed(f"it did not enrol and tell: {devices}; it ends: {machine.said()[-500:]!r}")
                time.sleep(1)
            machine.wait_login()
            left = machine.run("ls /var/lib/appliance-image/enrol 2>&1; true")
            if "No such file" not in left:
                raise Failed("the token was kept")
            machine.power_off()
    return {"next start answers after, s": round(answered, 1), "devices of the controller": len(devices)}


def given_settings(world: World) -> Facts:
    """A configuration as a credential is in force; one that is wrong at the next start is told on the console and kept
    for the fleet, the one before stays, and the box serves."""
    power = Power(disk=world.fresh("given-settings"))
    for number, text in enumerate((GOOD, WRONG), 1):
        given = replace(power, credentials={"appliance.toml": text.encode()})
        with switched_on(world.place, given, f"serial-{number}") as machine:
            machine.wait_answer()
            machine.wait_login()
            if machine.run("cat /etc/appliance/appliance.toml") != GOOD:
                raise Failed("the configuration that is in force is another")
            if text is WRONG:
                machine.wait_said("the configuration is refused, the one before stays")
                told = machine.run("cat /var/lib/appliance/refused-settings").strip()
            machine.power_off()
    return {"kept for the fleet": told}


@dataclass(frozen=True, kw_only=True)
class Fleet:
    """A controller on this machine, and an operator's desk."""

    environment: Mapping[str, str]

    def token(self) -> str:
        """A token for one box."""
        found = json.loads(self.run("fleet", "token", "--json"))
        return str(found["token"])

    def devices(self) -> list[Any]:
        """The devices that it knows."""
        found = json.loads(self.run("fleet", "devices", "--json"))
        listed = found["devices"] if isinstance(found, dict) else found
        assert isinstance(listed, list)
        return listed

    def run(self, *words: str, said: str = "") -> str:
        """What a command prints."""
        done = subprocess.run(
            [APPLIANCE, *words], input=said, capture_output=True, text=True, env=dict(self.environment),
            check=False, timeout=60,
        )  # fmt: skip
        if done.returncode != 0:
            raise Failed(f"{words}: {done.stderr}")
        return done.stdout


@contextmanager
def controller(folder: Path) -> Iterator[Fleet]:
    """A controller that machines reach at 10.0.2.2, as long as the block lasts."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    with socket.create_server(("127.0.0.1", 0)) as held:
        port = held.getsockname()[1]
    fleet = Fleet(environment={**os.environ, "XDG_CONFIG_HOME": str(folder / "desk")})
    home = folder / "fleet"
    made = fleet.run(
        "controller", "init", str(home), "--url", f"https://10.0.2.2:{port}", "--address", f"127.0.0.1:{port}",
        "--host", "127.0.0.1",
    )  # fmt: skip
    admin = re.search(r"token, shown once: (\S+)", made)
    assert admin is not None
    with open(folder / "serve.log", "wb") as log:
        process = subprocess.Popen([APPLIANCE, "controller", "serve", str(home)], stdout=log, stderr=log)
    try:
        for _ in range(60):
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                time.sleep(0.5)
        login = ("fleet", "login", f"https://127.0.0.1:{port}", "--authority", str(home / "authority.crt"))
        fleet.run(*login, said=admin[1] + "\n")
        yield fleet
    finally:
        process.terminate()
        process.wait(30)


def make_stick(world: World, path: Path, contents: Mapping[str, str]) -> Path:
    """A stick with these files."""
    place, folder = world.place, path.with_suffix(".files")
    shutil.rmtree(folder, ignore_errors=True)
    for name, text in contents.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    path.write_bytes(b"")
    os.truncate(path, STICK_MIB << 20)
    log = path.with_suffix(".log")
    place.run("mkfs.vfat", "-n", "APPLIANCE", place.inside(path), log=log)
    files = [place.inside(each) for each in folder.iterdir()]
    place.run("mcopy", "-s", "-i", place.inside(path), *files, "::", log=log)
    return path


def put_in(machine: Machine, path: str) -> None:
    """Put the stick into the running machine."""
    image = {"driver": "file", "filename": path}
    for command, arguments in (
        ("blockdev-add", {"driver": "raw", "node-name": "stick", "read-only": True, "file": image}),
        ("device_add", {"driver": "usb-storage", "drive": "stick", "id": "stick", "bus": "xhci.0"}),
    ):
        said = machine.monitor(command, **arguments)
        if "error" in said:
            raise Failed(f"{command}: {said['error']}")
