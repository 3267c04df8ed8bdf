"""The scenarios, in the order in which they are run. What each demands, it says itself."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any, Final

import tritonclient.grpc as triton

from appliance.image.release import MACHINES, decode
from tests.image.ansible_scenario import ansible_guest
from tests.image.architecture_scenario import other_architecture
from tests.image.gpu_scenario import gpu_image
from tests.image.loss_scenarios import flapping_update, lost_writes
from tests.image.secure_scenario import sealed_var, secure_boot
from tests.image.stick_scenario import given_settings, stick_enrolment
from tests.image.vm import BOOT_S, Failed, Machine, Power, new_disk, switched_on
from tests.image.world import BASE, BROKEN, NEXT, STORE, Facts, Scenario, World, boot_figures

DAY_S: Final = 86_400
UPDATE: Final = "/usr/bin/appliance image update /var/lib/stick"
CHANGES: Final = (
    f"while :; do appliance model install {STORE} --allow-unsigned /var/lib/given/digits.model; "
    f"appliance model unpin digits/2 {STORE}; appliance model pin digits/2 {STORE}; done"
)
HANG: Final = (
    "sync; echo 0 >/proc/sys/kernel/panic; "
    "nohup sh -c 'sleep 1; echo c >/proc/sysrq-trigger' >/dev/null 2>&1 & true"
)
"""A kernel that died and does not start again by itself."""
FILL: Final = (
    "fallocate -l $(($(df --output=avail -B1 /var | tail -1) - 4194304)) /var/fill; "
    "dd if=/dev/zero of=/var/fill2 bs=64k"
)


def first_boot(world: World) -> Facts:
    """A disk that was never started answers a gRPC request from outside rightly; nothing failed, nobody can log in
    but by the key, and the version is blessed."""
    disk = world.fresh("first-boot")
    with switched_on(world.place, Power(disk=disk)) as machine:
        machine.wait_answer()
        facts: Facts = {
            "answer after, s": round(machine.seconds, 1),
            "emulator, CPU-s": round(machine.cpu_s, 1),
        }
        machine.wait_login()
        facts |= boot_figures(machine)
        _demand(not facts.pop("failed units"), "units failed")
        status = _blessed(machine)
        _demand(status["version"] == BASE, f"it runs {status['version']}")
        grown = machine.run("findmnt -n -b -o SIZE,FSTYPE /var; df -h /var | tail -1")
        facts["/var"] = grown.split()[0]
        _demand(int(grown.split()[0]) > 2 << 30, f"/var did not grow: {grown}")
        shells = machine.run(
            "systemctl list-units --plain --no-legend '*getty*.service' --state=active", check=False
        )
        _demand(not shells.strip(), f"there is a console to log in at: {shells}")
        _demand(
            "LK" in machine.run("passwd --status root") or " L " in machine.run("passwd --status root"),
            "root",
        )
        facts["root, MB"] = (
            int(machine.run("stat -c %s /dev/null; findmnt -n -b -o SIZE /").split()[-1]) >> 20
        )
        machine.power_off()
        facts["power off"] = "in order"
    return facts


def power_cut(world: World) -> Facts:
    """SIGKILL of the emulator while it answers requests and installs a model: the next start answers with what was
    acknowledged, and the store is whole."""
    disk = world.fresh("power-cut")
    package = world.place.folder / "identity/usr/share/edge-appliance/image/digits.model"
    with switched_on(world.place, Power(disk=disk), "serial-1") as machine:
        machine.wait_answer()
        machine.wait_login()
        machine.run(f"appliance model pin digits/2 {STORE}")
        machine.send(package, "/var/lib/given")
        answered = _load(machine, 10.0)
        machine.run(f"systemd-run --quiet sh -c '{CHANGES}'")
        answered += _load(machine, 20.0)
        machine.cut_power()
    with switched_on(world.place, Power(disk=disk), "serial-2") as machine:
        again = machine.wait_answer()
        machine.wait_login()
        checked = machine.run(f"appliance store check {STORE}")
        journal = machine.run("journalctl --list-boots --no-pager | wc -l").strip()
        _demand(int(journal) >= 2, "the journal lost the start before")
        machine.power_off()
    return {
        "answers before the cut": answered,
        "serving again after, s": round(again, 1),
        "store": checked.strip().splitlines()[-1][:120],
    }


def update(world: World) -> Facts:
    """N-1 takes N from a stick, starts it, blesses it, and keeps what the box had; the rollback leads back, and N is
    tried again where it is asked for again."""
    disk, facts = _updated(world)
    with switched_on(world.place, Power(disk=disk), "serial-2") as machine:
        facts["N answers after, s"] = round(machine.wait_answer(), 1)
        machine.wait_login()
        status = _blessed(machine)
        _demand(status["version"] == NEXT, f"it runs {status['version']}")
        _demand({each["version"] for each in status["versions"]} == {BASE, NEXT}, f"versions: {status}")
        kept = machine.run(f"appliance model list {STORE} --json")
        _demand("wanted, pinned" in kept, f"the pin is gone: {kept[:300]}")
        refused = machine.run(UPDATE, check=False)
        _demand("which runs already" in refused, refused)
        facts["rollback"] = machine.run("appliance image rollback").strip()
        machine.power_off()
    with switched_on(world.place, Power(disk=disk), "serial-3") as machine:
        machine.wait_answer()
        machine.wait_login()
        status = _image_status(machine)
        _demand(status["version"] == BASE, f"the rollback did not lead to {BASE}: {status}")
        facts["again"] = machine.run(UPDATE).strip()
        _demand(_image_status(machine)["next"] == NEXT, "the version that was left is not tried again")
        machine.power_off()
    (disk.parent / "installed.json").unlink()
    return facts


def broken_update(world: World) -> Facts:
    """N, whose daemon never answers, was installed beside N-1: it uses up its three starts, and the boot loader takes
    N-1 by itself, which knows why."""
    disk = new_disk(world.place, world.pair("broken-update", BROKEN), world.folder("broken-update"))
    with switched_on(world.place, Power(disk=disk)) as machine:
        facts = _fallen_back(machine, BROKEN)
        _demand(facts["starts"] == 4, f"{facts['starts']} starts")
        facts["why"] = _told(machine, BROKEN)
        machine.power_off()
    return facts


def flipped_byte(world: World) -> Facts:
    """One byte of the root of N is not what was signed: it is given to nobody, the machine starts again, and after
    three starts the boot loader takes N-1 by itself."""
    raw = world.pair("flipped-byte", NEXT)
    _flip(world, raw)
    disk = new_disk(world.place, raw, world.folder("flipped-byte"))
    with switched_on(world.place, Power(disk=disk)) as machine:
        facts = _fallen_back(machine, NEXT)
        machine.power_off()
    return facts


def rotten_root(world: World) -> Facts:
    """N proved itself long ago, and its root rots: after five starts that came to nothing N-1 is started, takes N's
    tries, and knows why; the next start takes N-1 at once."""
    raw = world.pair("rotten-root", NEXT, proven=True)
    _flip(world, raw)
    disk = new_disk(world.place, raw, world.folder("rotten-root"))
    with switched_on(world.place, Power(disk=disk), "serial-1") as machine:
        facts = _fallen_back(machine, NEXT)
        _demand(facts["starts"] == 7, f"{facts['starts']} starts")
        facts["why"] = _told(machine, NEXT)
        machine.power_off()
    with switched_on(world.place, Power(disk=disk), "serial-2") as machine:
        machine.wait_answer()
        _demand(_starts(machine) == 1, "N was tried again")
        machine.wait_login()
        machine.power_off()
    return facts


def clock_1970(world: World) -> Facts:
    """A clock that stands at 1970 changes nothing in serving."""
    return _clock(world, "clock-1970", "1970-01-01T00:00:10")


def clock_ahead(world: World) -> Facts:
    """A clock that is 400 days ahead changes nothing in serving."""
    ahead = time.gmtime(time.time() + 400 * DAY_S)
    return _clock(world, "clock-ahead", time.strftime("%Y-%m-%dT%H:%M:%S", ahead))


def full_disk(world: World) -> Facts:
    """A full /var stops neither serving nor the next start, and an update is refused with what is lacking."""
    disk = world.fresh("full-disk")
    with switched_on(world.place, Power(disk=disk), "serial-1") as machine:
        machine.wait_answer()
        machine.wait_login()
        machine.send(world.release(NEXT) / "release.json", "/var/lib/stick")
        machine.send(world.release(NEXT) / "signature.json", "/var/lib/stick")
        machine.run(FILL, check=False)
        free = machine.run("df --output=avail -B1 /var | tail -1").strip()
        answered = _load(machine, 10.0)
        refused = machine.run(UPDATE, check=False)
        _demand("are free" in refused, f"the update was not refused for lack of room: {refused}")
        machine.cut_power()
    with switched_on(world.place, Power(disk=disk), "serial-2") as machine:
        again = machine.wait_answer()
        machine.wait_login()
        machine.run("rm /var/fill /var/fill2")
        machine.run(f"appliance store check {STORE}")
        machine.power_off()
    return {
        "free, bytes": free,
        "answers on the full disk": answered,
        "next start answers after, s": round(again, 1),
    }


def wedged_daemon(world: World) -> Facts:
    """A daemon that hangs (SIGSTOP) is killed by its watchdog and started again, without a person."""
    disk = world.fresh("wedged-daemon")
    with switched_on(world.place, Power(disk=disk)) as machine:
        machine.wait_answer()
        machine.wait_login()
        before = machine.run("systemctl show -P MainPID appliance").strip()
        machine.run(f"kill -STOP {before}")
        begun = time.monotonic()
        while machine.run("systemctl show -P MainPID appliance").strip() in (before, "0"):
            _demand(time.monotonic() - begun < BOOT_S, "nobody ended the daemon that hangs")
            time.sleep(1)
        machine.wait_answer()
        took = time.monotonic() - begun
        why = machine.run("journalctl -u appliance --no-pager -o cat | grep -i -m1 watchdog").strip()
        machine.power_off()
    return {"answers again after, s": round(took, 1), "journal": why}


def hung_kernel(world: World) -> Facts:
    """A kernel that died without starting again is started by the machine's own watchdog."""
    disk = world.fresh("hung-kernel")
    with switched_on(world.place, Power(disk=disk)) as machine:
        machine.wait_answer()
        machine.wait_login()
        device = machine.run("systemctl show -P RuntimeWatchdogUSec; ls /dev/watchdog0").split()
        machine.run(HANG, check=False)
        machine.wait_said("BdsDxe: starting Boot", count=2)
        again = machine.wait_answer()
        machine.wait_login()
        machine.power_off()
    return {"watchdog": " ".join(device), "answers again after, s": round(again, 1)}


def factory_reset(world: World) -> Facts:
    """A reset that keeps the models erases the rest; a full one erases all of it; each start answers."""
    disk = world.fresh("factory-reset")
    with switched_on(world.place, Power(disk=disk), "serial-1") as machine:
        machine.wait_answer()
        machine.wait_login()
        machine.run(f"appliance model pin digits/2 {STORE}")
        machine.run("echo site >/etc/appliance/site; echo old >/var/lib/mark; sync")
        said = machine.run("appliance image factory-reset --keep-models").strip()
        machine.power_off()
    with switched_on(world.place, Power(disk=disk), "serial-2") as machine:
        machine.wait_answer()
        machine.wait_login()
        left = machine.run("ls /etc/appliance/site /var/lib/mark 2>/dev/null", check=False).strip()
        _demand(not left, f"it was kept: {left}")
        kept = machine.run(f"appliance model list {STORE} --json")
        _demand("wanted, pinned" in kept, "the models were not kept")
        machine.run("echo old >/var/lib/mark; sync; appliance image factory-reset")
        machine.power_off()
    with switched_on(world.place, Power(disk=disk), "serial-3") as machine:
        machine.wait_answer()
        machine.wait_login()
        left = machine.run("ls /var/lib/mark 2>/dev/null", check=False).strip()
        _demand(not left, "the full reset kept something")
        kept = machine.run(f"appliance model list {STORE} --json")
        _demand("pinned" not in kept, "the full reset kept the pin")
        machine.run("echo new >/var/lib/mark; sync")
        machine.power_off()
    with switched_on(world.place, Power(disk=disk), "serial-4") as machine:
        machine.wait_answer()
        machine.wait_login()
        _demand("new" in machine.run("cat /var/lib/mark"), "the reset was done a second time")
        machine.power_off()
    return {"said": said, "starts": 4}


def _clock(world: World, name: str, start: str) -> Facts:
    disk = world.fresh(name)
    with switched_on(
        world.place, Power(disk=disk, restrict=True, options=("-rtc", f"base={start}"))
    ) as machine:
        machine.wait_answer()
        took = machine.seconds
        machine.wait_login()
        said = machine.run("date --utc +%F; chronyc tracking 2>/dev/null | grep -i leap; true").split("\n")
        failed = machine.run("systemctl --failed --no-legend --plain", check=False).strip()
        _demand(not failed, f"units failed: {failed}")
        machine.power_off()
    return {"started at": start, "the guest's date": said[0], "answers after, s": round(took, 1)}


def _updated(world: World) -> tuple[Path, Facts]:
    """A disk on which N-1 took N: the one that a run left which was cut off later, or a new one."""
    folder = world.folder("update")
    done = folder / "installed.json"
    if done.exists():
        return folder / "disk.qcow2", dict(json.loads(done.read_text()))
    disk = world.fresh("update")
    with switched_on(world.place, Power(disk=disk), "serial-1") as machine:
        machine.wait_answer()
        machine.wait_login()
        machine.run(f"appliance model pin digits/2 {STORE}")
        facts = _take(machine, world.release(NEXT))
        machine.power_off()
    done.write_text(json.dumps(facts))
    return disk, facts


def _take(machine: Machine, release: Path) -> Facts:
    """Have the machine take a release as from a stick."""
    machine.send(release, "/var/lib")
    machine.run(f"rm -rf /var/lib/stick; mv /var/lib/{release.name} /var/lib/stick; sync")
    begun, before = time.monotonic(), _written_bytes(machine)
    said = machine.run(UPDATE, 1800).strip()
    _demand("is installed" in said, said)
    machine.run("sync")
    took, written = time.monotonic() - begun, _written_bytes(machine) - before
    size = decode((release / "release.json").read_bytes()).total_bytes
    return {
        "update, s": round(took, 1),
        "written to the disk / release": round(written / size, 2),
        "update": said,
    }


def _written_bytes(machine: Machine) -> int:
    """What the machine has written to its disk since it was started."""
    return int(machine.run("cat /sys/block/vda/stat").split()[6]) * 512


def _fallen_back(machine: Machine, failed: str) -> Facts:
    """Once the base answers, which it does in the place of the version that ``failed``."""
    machine.wait_answer(3600)
    took = machine.seconds
    machine.wait_login()
    machine.run("systemctl is-system-running --wait", check=False)
    status = _image_status(machine)
    _demand(status["version"] == BASE, f"it runs {status['version']}")
    states = {each["version"]: each["state"] for each in status["versions"]}
    _demand(states == {BASE: "good", failed: "failed"}, f"states: {states}")
    return {
        "N-1 answers after, s": round(took, 1),
        "starts": _starts(machine),
        "states": json.dumps(states),
    }


def _starts(machine: Machine) -> int:
    return machine.said().count("BdsDxe: starting Boot")


def _told(machine: Machine, version: str) -> str:
    """What the fleet is told of a version that failed."""
    why = machine.run("cat /var/lib/appliance/machine-problem").strip()
    _demand(version in why, why)
    return why


def _flip(world: World, raw: Path) -> None:
    """Change one bit of the second version's root."""
    start = int(world.place.output("partx", "-g", "-r", "-o", "START", "-n", "5", world.place.inside(raw)))
    with open(raw, "r+b") as file:
        file.seek(start * 512 + 4_000)
        byte = file.read(1)
        file.seek(start * 512 + 4_000)
        file.write(bytes([byte[0] ^ 1]))


def _load(machine: Machine, seconds: float) -> int:
    """How many requests were answered rightly, one after the other, in that time."""
    end = time.monotonic() + seconds
    count = 0
    while time.monotonic() < end:
        try:
            digit, _ = machine.answer()
        except triton.InferenceServerException as error:
            raise Failed(f"a request failed: {error}") from error
        _demand(digit == 3, f"the answer is {digit}")
        count += 1
    return count


def _image_status(machine: Machine) -> dict[str, Any]:
    found = json.loads(machine.run("appliance image status --json"))
    assert isinstance(found, dict)
    return found


def _blessed(machine: Machine) -> dict[str, Any]:
    """The status, once what runs is blessed."""
    begun = time.monotonic()
    while True:
        status = _image_status(machine)
        running = next(each for each in status["versions"] if each["version"] == status["version"])
        if running["state"] == "good":
            return status
        _demand(time.monotonic() - begun < BOOT_S, f"it was not blessed: {status}")
        time.sleep(1)


def _demand(holds: bool, text: str) -> None:
    if not holds:
        raise Failed(text)


def _scenario(run: Any, architecture: str = MACHINES[0]) -> Scenario:
    own = "" if architecture == MACHINES[0] else f"{architecture}-"
    name = own + run.__name__.replace("_", "-")
    return Scenario(name=name, about=" ".join(run.__doc__.split()), run=run, architecture=architecture)


SCENARIOS: Final = (
    *map(
        _scenario,
        (
            first_boot, power_cut, lost_writes, update, flapping_update, broken_update, flipped_byte, rotten_root,
            clock_1970, clock_ahead, full_disk, wedged_daemon, hung_kernel, factory_reset, given_settings,
            stick_enrolment, secure_boot, sealed_var, ansible_guest, gpu_image,
        ),
    ),
    *(
        _scenario(run, "arm64")
        for run in (
            first_boot, power_cut, update, flipped_byte, rotten_root, hung_kernel, factory_reset, secure_boot,
            other_architecture,
        )
    ),
)  # fmt: skip
"""Those of arm64 are what hangs on firmware, boot loader, kernel and disk; others would start the same programs."""
