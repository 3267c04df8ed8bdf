"""The variant for a machine with a GPU, on one that has none: built, looked through, started."""

from __future__ import annotations

import json
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from image.place import Built, Place
from tests.image.gpu_root import HEAD_BYTES, MARK, demand, inspect, unpack
from tests.image.vm import Machine, Power, new_disk, switched_on
from tests.image.world import BASE, Facts, World, boot_figures

DISK_GIB: Final = 12
WITHOUT: Final = (
    'import glob; d = open(*glob.glob("/usr/lib/modules/*/updates/nvidia.ko"), "rb").read(); '
    'assert d.endswith(b"appended~\\n"); '
    f'n = int.from_bytes(d[-{len(MARK) + 4}:-{len(MARK)}], "big"); '
    f'open("/tmp/nvidia.ko", "wb").write(d[:-{len(MARK) + HEAD_BYTES} - n])'
)
"""Python that copies the driver's module without its signature."""
TAKE: Final = "appliance image update --check /var/lib/stick"


def gpu_image(world: World) -> Facts:
    """The variant with a GPU's driver. In its root, modules are of its kernel and signed by its key, the driver and
    CUDA are whole, and nothing that makes programs is left. Started under Secure Boot on a machine without a GPU it
    answers by the processor; the kernel takes the driver's module for what it is, and without the signature refuses
    it; a release of the other variant is refused."""
    own = replace(
        world,
        place=Place(folder=world.place.folder.with_name(f"{world.place.folder.name}-gpu")),
        variant="gpu",
        keys=world.place.folder / "keys",
    )
    begun = time.monotonic()
    raw = own.disk(BASE)
    built = own.place.built(BASE, "gpu")
    facts = _sizes(built, raw)
    if (took := time.monotonic() - begun) > 5:
        facts["built in, s"] = round(took)
    root = unpack(own.place, built, own.folder("gpu-image") / "root")
    facts |= inspect(root, own.place.folder / "keys" / "secure-boot.crt")
    shutil.rmtree(root.folder)
    disk = new_disk(own.place, raw, own.folder("gpu-image"), DISK_GIB)
    with switched_on(own.place, Power(disk=disk, secure=True)) as machine:
        machine.wait_answer()
        facts["answer after, s"] = round(machine.seconds, 1)
        machine.wait_login()
        figures = boot_figures(machine)
        demand(not figures["failed units"], f"units failed: {figures['failed units']}")
        facts["guest"] = figures["guest"]
        status = json.loads(machine.run("appliance image status --json"))
        demand(status["variant"] == "gpu", f"it runs {status}")
        facts |= _driver(machine)
        facts |= _refused(machine, world)
        machine.power_off()
    return facts


def _sizes(built: Built, raw: Path) -> Facts:
    """How large what was built is."""
    parts = {"root": built.root, "sums": built.sums, "kernel": built.kernel}
    found: Facts = {f"{name}, bytes": f"{path.stat().st_size:,}" for name, path in parts.items()}
    found["disk, packed, bytes"] = f"{raw.with_suffix('.raw.zst').stat().st_size:,}"
    found["release, bytes"] = f"{sum(path.stat().st_size for path in parts.values()):,}"
    return found


def _driver(machine: Machine) -> Facts:
    """The kernel knows the signature of the module: it is loaded and finds no device; without it is not loaded."""
    secure = machine.run("bootctl status 2>/dev/null | grep 'Secure Boot'").strip()
    demand("enabled (user)" in secure, f"Secure Boot is not on: {secure}")
    loaded = machine.run("insmod /usr/lib/modules/$(uname -r)/updates/nvidia.ko", check=False).strip()
    demand("No such device" in loaded, f"loading the driver: {loaded}")
    told = machine.run("journalctl -k -b --no-pager -o cat | grep -i -E 'nvrm|nvidia'", check=False).strip()
    demand("No NVIDIA GPU found" in told, f"the kernel says: {told}")
    machine.run(f"python3 -c '{WITHOUT}'")
    unsigned = machine.run("insmod /tmp/nvidia.ko", check=False).strip()
    demand("insmod" in unsigned and "No such device" not in unsigned, f"without its signature: {unsigned}")
    unit = machine.run("journalctl -u appliance-gpu -b --no-pager -o cat").strip()
    demand("no NVIDIA device" in unit, f"appliance-gpu.service says: {unit}")
    smi = machine.run("nvidia-smi", check=False)
    return {
        "Secure Boot": secure,
        "lockdown": machine.run("cat /sys/kernel/security/lockdown").strip(),
        "loading the driver": loaded.splitlines()[-1],
        "loading it without its signature": unsigned.splitlines()[-1],
        "nvidia-smi, started": " ".join(smi.split()),
        "the daemon's devices": machine.run(
            "systemctl show -P PrivateDevices -P DevicePolicy appliance"
        ).split(),
        "the kernel says": told,
    }


def _refused(machine: Machine, world: World) -> Facts:
    """What is said against the release of the other variant, of the same maker."""
    release = world.release(BASE)
    for name in ("release.json", "signature.json"):
        machine.send(release / name, "/var/lib/stick")
    said = machine.run(TAKE, check=False)
    demand("is 'cpu'; this machine runs 'gpu'" in said, f"a release for a processor: {said}")
    demand("signature.json" not in said, f"it is not taken for one of its maker: {said}")
    return {
        "a release of the other variant": next(line for line in said.splitlines() if "'cpu'" in line).strip()
    }
