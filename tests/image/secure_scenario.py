"""Secure Boot: the firmware takes the image's keys by itself, starts what they signed, and nothing else."""

from __future__ import annotations

from tests.image.vm import Failed, Power, switched_on
from tests.image.world import BASE, Facts, World

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
