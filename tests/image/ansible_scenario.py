"""A plain Debian 13 becomes, by Ansible over SSH, what the image is: both are asked the same, and answer the same."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Final

from image.place import ROOT
from tests.ansible.collection import INSTALLED, NOT_INSTALLED, Ansible
from tests.ansible.provisioning import HOST, Provisioning, over_ssh
from tests.image.vm import DISK_GIB, PATIENCE, Failed, Machine, Power, login_key, new_disk, switched_on
from tests.image.world import BASE, Facts, World, slowness
from tests.installation.machine import tree, unpack

NAME: Final = "ansible-guest"
PLAIN: Final = (
    "openssh-server", "python3-apt", "linux-image-cloud-amd64", "initramfs-tools", "udev", "iproute2",
)  # fmt: skip
"""Beside a minimal Debian: what starts by itself on a disk, and what Ansible needs there."""
NETWORK: Final = "[Match]\nType=ether\n\n[Network]\nDHCP=yes\n"
CONVERGE_S: Final = 90.0
PATIENCE_S: Final = 3600
"""Emulated, all takes many times longer; what waits is told to."""
MODELS: Final = "/srv/digits.model"
PLACE: Final = "/usr/lib/edge-appliance"
ASKED: Final = {
    "enabled": "systemctl is-enabled appliance.service appliance-sync.service",
    "active": "systemctl is-active appliance.service",
    "unit": "systemctl show appliance.service -P FragmentPath -P User -P Delegate -P WatchdogUSec",
    "failed": "systemctl --failed --no-legend --plain",
    "version": "appliance version",
    "program": f"find {PLACE} /usr/lib/systemd/system/appliance.service /usr/lib/systemd/system/appliance-sync.service "
    "-type f ! -name '*.pyc' -print0 | sort -z | xargs -0 sha256sum | sha256sum",
    "listens": "ss --listening --tcp --numeric --no-header | awk '{print $4}' | grep -E ':(8000|8001)$' | sort",
}
"""What is asked of both. Compiled Python is left out: the image's was compiled another way."""


def ansible_guest(world: World) -> Facts:
    """A plain Debian 13, made by mmdebstrap and started from its own disk, is provisioned over SSH as a controller and
    a box of its fleet: the second time nothing changes, nor would it by `--check --diff`; it answers a gRPC request
    from outside, and program, units and what is served are those of the image. Kernel and initrd are given to the
    firmware by QEMU, so its boot loader is not tried."""
    if not INSTALLED:
        raise Failed(NOT_INSTALLED)
    wanted = _image_state(world)
    disk, options = _plain_disk(world)
    with (
        tempfile.TemporaryDirectory(prefix="ansible-guest-") as place,
        switched_on(world.place, Power(disk=disk, options=options)) as machine,
    ):
        machine.wait_login()
        facts: Facts = {"login after, s": round(machine.seconds, 1)}
        site = _site(world, machine, Path(place))
        said, changed, scaled = _play(site, machine, facts, "converge")
        _demand(changed > 5, said)
        _model(site, world, facts)
        machine.wait_answer()
        facts["answer from outside"] = "digit {}, version {}".format(*machine.answer())
        said, changed, _ = _play(site, machine, facts, "again", "--diff")
        _demand(changed == 0, f"the second time, something changed: {said[-3000:]}")
        said, changed, _ = _play(site, machine, facts, "check", "--check", "--diff")
        _demand(changed == 0, f"by a check, something would change: {said[-3000:]}")
        found = _state(machine)
        different = sorted(key for key in wanted if found[key] != wanted[key])
        compared = {key: {"image": wanted[key], "guest": found[key]} for key in different}
        _demand(not different, f"not as the image, if it was made of the same package: {compared}"[:1500])
        facts["as on the image"] = ", ".join(sorted(wanted))
        facts["image and guest"] = json.dumps(found, indent=1)
        (device,) = json.loads(machine.run("HOME=/root appliance fleet devices --json"))
        _demand((device["name"], device["group"]) == (HOST, "sites"), f"it is not of the fleet: {device}")
        machine.power_off()
    _demand(scaled <= CONVERGE_S, f"it took {scaled:.0f} s to converge, scaled")
    _image_known(world).unlink(missing_ok=True)
    return facts


def _play(
    site: Provisioning, machine: Machine, facts: Facts, name: str, *words: str
) -> tuple[str, int, float]:
    """What it said, how much it changed, and its time as if the guest computed as fast as this machine.

    Only what the guest's processors worked is scaled; Ansible's own time here, and all waiting, count as they are.
    How much slower it is depends on what else this machine does, so that is asked before and after.
    """
    slower, before = slowness(machine), _worked_s(machine)
    said, changed, took = site.play(*words)
    worked = min(_worked_s(machine) - before, took)
    slower = (slower + slowness(machine)) / 2
    scaled = took - worked + worked / slower
    facts[f"{name}, s"] = (
        f"{took:.0f}, of which the guest computed {worked:.0f}, {slower:.0f} times slower than this machine; "
        f"scaled {scaled:.0f}; {changed} changed"
    )
    print(f"   {name}: {facts[f'{name}, s']}", flush=True)
    return said, changed, scaled


def _worked_s(machine: Machine) -> float:
    """Seconds that the guest's processors worked."""
    user, nice, system, _, _, *more = map(int, machine.run("head -n 1 /proc/stat").split()[1:8])
    return (user + nice + system + sum(more)) / 100


def _site(world: World, machine: Machine, folder: Path) -> Provisioning:
    """Who provisions the guest, with the image's own key and addresses."""
    (lay := folder / "collections").mkdir()
    packages = sorted((ROOT / "dist").glob("edge-appliance_*_amd64.deb"))
    _demand(bool(packages), "there is no Debian package in dist/; 'make deb' makes it")
    return Provisioning(
        ansible=Ansible.below(lay, ANSIBLE_TIMEOUT="300"),
        limit_s=PATIENCE_S,
        package=packages[-1],
        folder=folder,
        key=world.place.folder / "keys" / "release.pub",
        way={
            "ansible_host": "127.0.0.1",
            "ansible_port": machine.ssh,
            **over_ssh(folder, world.place.folder / "tests" / "login"),
        },
        fixed={
            "appliance_grpc_addresses": ["0.0.0.0:8001"],
            "appliance_http_addresses": ["0.0.0.0:8000"],
            "appliance_answer_timeout_s": PATIENCE_S,
            "controller_answer_timeout_s": PATIENCE_S,
        },
    )


def _model(site: Provisioning, world: World, facts: Facts) -> None:
    """Have the model served that the image brings."""
    source = str(world.place.folder / "identity/usr/share/edge-appliance/image/digits.model")
    tasks = [
        {"ansible.builtin.copy": {"src": source, "dest": MODELS, "mode": "0644"}},
        {"edge.appliance.model": {"package": MODELS, "timeout": PATIENCE_S}},
    ]
    book = site.folder / "models.json"
    book.write_text(json.dumps([{"hosts": "boxes", "gather_facts": False, "tasks": tasks}]))
    said, changed, took = site.play(book=str(book))
    _demand(changed == len(tasks), said)
    facts["model installed, s"] = round(took)


def _plain_disk(world: World) -> tuple[Path, tuple[str, ...]]:
    """A disk with a plain Debian 13, and QEMU's options that start it."""
    place, folder = world.place, world.folder(NAME)
    root, raw = folder / "root", folder / "plain.raw"
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    unpack(tree(PLAIN), root)
    (root / "etc/hostname").write_text("plain\n")
    (root / "etc/machine-id").write_text("")  # of the machine, and nobody is asked at the first start
    (root / "etc/systemd/network/20-wired.network").write_text(NETWORK)
    (root / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    (root / "root/.ssh/authorized_keys").write_bytes(login_key(place))
    subprocess.run(
        ["chroot", str(root), "systemctl", "enable", "systemd-networkd"], check=True, capture_output=True
    )
    for name in ("vmlinuz", "initrd.img"):
        (found,) = (root / "boot").glob(f"{name}-*")
        shutil.copy(found, folder / name)
    raw.unlink(missing_ok=True)
    place.run(
        "mke2fs", "-q", "-t", "ext4", "-E", "root_owner=0:0,lazy_itable_init=0", "-d", place.inside(root),
        f"{place.inside(folder)}/{raw.name}", f"{DISK_GIB}G", log=folder / "disk.log",
    )  # fmt: skip
    shutil.rmtree(root)
    line = f"root=/dev/vda rw console=ttyS0 {PATIENCE}"
    kernel = ("-kernel", place.inside(folder / "vmlinuz"), "-initrd", place.inside(folder / "initrd.img"))
    return new_disk(place, raw, folder), (*kernel, "-append", line)


def _image_known(world: World) -> Path:
    return world.folder(NAME) / "image.json"


def _image_state(world: World) -> dict[str, str]:
    """What the image says, once it answers: asked anew, but for a run that was cut off after it."""
    known, disk = _image_known(world), world.disk(BASE)
    if known.exists() and known.stat().st_mtime > disk.stat().st_mtime:
        return dict(json.loads(known.read_text()))
    own = new_disk(world.place, disk, world.folder(NAME) / "image")
    with switched_on(world.place, Power(disk=own)) as machine:
        machine.wait_answer()
        machine.wait_login()
        state = _state(machine)
        machine.power_off()
    known.write_text(json.dumps(state))
    return state


def _state(machine: Machine) -> dict[str, str]:
    """What a machine says that serves, once it has started."""
    begun = time.monotonic()
    while machine.run("systemctl is-system-running --wait", check=False).strip() == "starting":
        _demand(time.monotonic() - begun < PATIENCE_S, "it does not come to an end of its start")
    found = {key: machine.run(command, check=key != "failed").strip() for key, command in ASKED.items()}
    models = json.loads(machine.run("appliance status --json"))["models"]
    served = sorted((each["name"], each["version"], each["state"]) for each in models)
    return found | {"models": json.dumps(served)}


def _demand(holds: bool, text: str) -> None:
    if not holds:
        raise Failed(text)
