"""A release for machines of another architecture, at a machine that runs the image."""

from __future__ import annotations

import shutil

from appliance.image.release import MACHINES
from appliance.package.keys import read_public_key
from tests.image.releases import Maker
from tests.image.vm import Failed, Power, switched_on
from tests.image.world import NEXT, Facts, World


def other_architecture(world: World) -> Facts:
    """A release of its maker for machines of another architecture is refused, and nothing else is said against it."""
    disk = world.fresh("other-architecture")
    here = world.place.architecture
    other = next(each for each in MACHINES if each != here)
    keys, folder = world.place.folder / "keys", world.folder("other-architecture") / "made"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    own = Maker(folder=folder, key=keys / "release", public=read_public_key(keys / "release.pub"))
    release, _ = own.release(NEXT, architecture=other)
    with switched_on(world.place, Power(disk=disk)) as machine:
        machine.wait_answer()
        machine.wait_login()
        machine.send(release, "/var/lib")
        said = machine.run(f"appliance image update --check /var/lib/{release.name}", check=False).strip()
        kernel = machine.run("uname -srm").strip()
        machine.power_off()
    against = [line for line in said.splitlines() if ".json" in line or ".raw" in line]
    if len(against) != 1 or f"machine: is {other!r}; this machine is {here!r}" not in against[0]:
        raise Failed(f"it is said against the release: {said}")
    return {"kernel": kernel, "said": against[0].strip()}
