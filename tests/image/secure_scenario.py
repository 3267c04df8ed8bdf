"""Secure Boot and a sealed /var: the firmware takes the image's keys by itself and starts what they signed and nothing
else; the TPM opens what the box keeps for that alone."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

from tests.image.vm import Failed, Machine, Power, new_disk, switched_on
from tests.image.world import BASE, NEXT, Facts, World

UNSIGNED = (
    "cp /boot/EFI/Linux/edge-appliance_*.efi /tmp/kernel.efi && sbattach --remove /tmp/kernel.efi && "
    "cp /tmp/kernel.efi /boot/EFI/Linux/edge-appliance_9.9+3.efi && sync -f /boot"
)


def secure_boot(world: World) -> Facts:
    """With a firmware that has no keys yet, the first start enrols those of the image; from then on an unsigned kernel
    is refused, is not started, and after its tries the version before starts. The program by which 'appliance image
    update' checks a kernel refuses such a one, too."""
    disk = world.fresh("secure-boot")
    power = Power(disk=disk, secure=True)
    with switched_on(world.place, power, "serial-1") as machine:
        machine.wait_answer()
        took = machine.seconds
        machine.wait_login()
        status = machine.run("bootctl status 2>/dev/null | grep -E 'Secure Boot|Measured UKI'")
        if "enabled (user)" not in status:
            raise Failed(f"Secure Boot is not on: {status}")
        lockdown = machine.run("cat /sys/kernel/security/lockdown").strip()
        machine.run(UNSIGNED)
        machine.run(
            "sbverify --cert /usr/share/edge-appliance/image-keys/secure-boot.crt /boot/EFI/Linux/*_1*.efi"
        )
        verified = machine.run(
            "sbverify --cert /usr/share/edge-appliance/image-keys/secure-boot.crt /tmp/kernel.efi; echo $?"
        )
        if verified.split()[-1] == "0":
            raise Failed("the kernel without a signature is verified")
        machine.power_off()
    starts, denied = 0, 0
    for number in range(2, 6):
        with switched_on(world.place, power, f"serial-{number}") as machine:
            starts += 1
            try:
                machine.wait_said("Access [Dd]enied", 90)
                denied += machine.said().lower().count("access denied")
                machine.cut_power()
                continue
            except Failed:
                machine.wait_answer()
            machine.wait_login()
            running = machine.run("appliance image status --json")
            if f'"version": "{BASE}"' not in running:
                raise Failed(f"it runs {running}")
            machine.power_off()
            break
    else:
        raise Failed("the version before did not start")
    return {
        "first start answers after, s": round(took, 1),
        "status": " ".join(status.split()),
        "lockdown": lockdown,
        "power cycles until the version before started": starts,
        "refusals seen": denied,
    }


def sealed_var(world: World) -> Facts:
    """The TPM seals /var at the first start and opens it for another version of the same maker. Another TPM does not
    open it, and the console says what to do; with its key it is opened and sealed to that TPM."""
    folder = world.folder("sealed-var")
    disk = new_disk(world.place, world.pair("sealed-var", NEXT, proven=True), folder)
    first, second = folder / "tpm-1", folder / "tpm-2"
    for each in (first, second):
        shutil.rmtree(each, ignore_errors=True)
    power = Power(disk=disk, secure=True, tpm=first)
    facts: Facts = {}
    with switched_on(world.place, power, "serial-1") as machine:
        facts["first start answers after, s"] = round(machine.wait_answer(), 1)
        machine.wait_login()
        _demand_sealed(machine, NEXT)
        seal = machine.run("cryptsetup luksDump /dev/disk/by-partlabel/appliance-var")
        bound = [line.strip() for line in seal.splitlines() if "-pcrs" in line]
        facts["sealed to"] = " ".join(bound)
        key = machine.run("cat /var/lib/appliance-image/var-key").strip()
        machine.run("echo kept >/var/lib/mark; sync; appliance image rollback")
        machine.power_off()
    with switched_on(world.place, power, "serial-2") as machine:
        facts["another version answers after, s"] = round(machine.wait_answer(), 1)
        machine.wait_login()
        _demand_sealed(machine, BASE)
        machine.power_off()
    other = replace(power, tpm=second)
    with switched_on(world.place, other, "serial-3") as machine:
        machine.wait_said("appliance: /var cannot be opened: this is not the TPM")
        machine.wait_said("BdsDxe: starting Boot", count=2)
        machine.cut_power()
    given = replace(other, credentials={"appliance.var-key": key.encode()})
    with switched_on(world.place, given, "serial-4") as machine:
        machine.wait_answer()
        machine.wait_login()
        machine.wait_said("appliance: /var was opened by its key")
        _demand_sealed(machine, BASE)
        machine.power_off()
    with switched_on(world.place, other, "serial-5") as machine:
        facts["sealed anew, answers after, s"] = round(machine.wait_answer(), 1)
        machine.wait_login()
        _demand_sealed(machine, BASE)
        if machine.run("cat /var/lib/mark").strip() != "kept":
            raise Failed("what the box kept is gone")
        machine.power_off()
    return facts


def _demand_sealed(machine: Machine, version: str) -> None:
    status = json.loads(machine.run("appliance image status --json"))
    if not status["sealed"] or status["version"] != version:
        raise Failed(f"it should be {version} with a sealed /var: {status}")
    if machine.run("findmnt -n -o SOURCE /var").strip() != "/dev/mapper/appliance-var":
        raise Failed("what is mounted is not what the TPM opened")
