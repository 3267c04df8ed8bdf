"""The Debian package under a systemd of its own: ``make units-test``, as root, with mmdebstrap and a Debian mirror.

A minimal Debian 13, made once and kept in the user's cache, gets the package from ``dist/`` and runs its systemd as the
first process of namespaces of its own, in a cgroup of its own. Nothing of the machine is touched. It prints a line for
each thing that holds; the first that does not is the end.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from packages.processor import newest

Subject = TypeVar("Subject")

ROOT: Final = Path(__file__).resolve().parents[2]
CACHE: Final = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "edge-appliance"
NEEDED: Final = ("systemd", "systemd-sysv", "dbus", "python3", "libgcc-s1", "libstdc++6")
UNIFIED: Final = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
PYTHON: Final = "/usr/lib/edge-appliance/bin/python"
STORE: Final = "/etc/credstore"
WATCHDOG_S: Final = 30
BOOT: Final = """
root=$0
mount --make-rprivate /
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount -t sysfs sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
mount -t tmpfs tmpfs "$root/run" -o mode=755
mount -t tmpfs tmpfs "$root/dev" -o mode=755
for each in null zero full random urandom tty; do
  touch "$root/dev/$each"
  mount --bind "/dev/$each" "$root/dev/$each"
done
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t devpts devpts "$root/dev/pts" -o newinstance,ptmxmode=0666
ln -s pts/ptmx "$root/dev/ptmx"
ln -s /proc/self/fd "$root/dev/fd"
cd "$root"
pivot_root . mnt
umount -l /mnt
mount --make-rshared /
exec env -i container=appliance-test PATH=/usr/sbin:/usr/bin /lib/systemd/systemd --show-status=0 \\
  systemd.unit=multi-user.target
"""
LOAD: Final = (Path(__file__).parent / "load.py").read_text()


class Machine:
    """A running one; ``do`` runs a command in it and gives what it prints, within ``limit_s``."""

    limit_s = 300.0

    def __init__(self, root: Path, group: Path) -> None:
        self._group = group
        command = [
            "unshare",
            "--pid",
            "--fork",
            "--kill-child",
            "--mount",
            "--uts",
            "--ipc",
            "--net",
            "--cgroup",
        ]
        enter = f'echo $$ > {group}/cgroup.procs; exec "$@"'
        self._outer = subprocess.Popen(
            ["bash", "-c", enter, "bash", *command, "bash", "-euc", BOOT, str(root)], stdin=subprocess.DEVNULL
        )
        until("systemd has started", lambda: self._first() and self._state() in ("running", "degraded"))

    @property
    def enter(self) -> list[str]:
        """The words before a command that have it run inside."""
        return ["nsenter", "-t", str(self._first()), "-a", "env", "-i", "PATH=/usr/sbin:/usr/bin"]

    def do(self, *command: str, check: bool = True) -> str:
        done = subprocess.run(
            [*self.enter, *command], capture_output=True, text=True, timeout=self.limit_s, check=False
        )
        if check and done.returncode != 0:
            raise AssertionError(f"{command}: {done.stdout}{done.stderr}\n{self._journal()}")
        return done.stdout.strip()

    def begin(self, *command: str) -> subprocess.Popen[str]:
        return subprocess.Popen([*self.enter, *command], stdout=subprocess.PIPE, text=True)

    def shown(self, key: str, unit: str = "appliance.service") -> str:
        return self.do("systemctl", "show", unit, "--property", key, "--value")

    def close(self) -> None:
        self._outer.kill()
        self._outer.wait()
        until("all has ended", lambda: not self._processes())
        for path in sorted(self._group.rglob("*"), reverse=True):
            if path.is_dir():
                path.rmdir()

    def _first(self) -> int:
        init = self._group / "init.scope" / "cgroup.procs"
        numbers = init.read_text().split() if init.exists() else []
        return int(numbers[0]) if numbers else 0

    def _processes(self) -> list[str]:
        return [line for path in self._group.rglob("cgroup.procs") for line in path.read_text().split()]

    def _state(self) -> str:
        return self.do("systemctl", "is-system-running", check=False)

    def _journal(self) -> str:
        return self.do("journalctl", "--no-pager", "-n", "40", "-o", "cat", "-u", "appliance", check=False)


def until(what: str, holds: Callable[[], object], within_s: float = 600.0) -> None:
    """Wait until it holds."""
    end = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < end, f"not within {within_s} s: {what}"
        time.sleep(0.2)


@contextlib.contextmanager
def machine(
    package: Path,
    *further: str,
    name: str = "units-test-",
    files: Mapping[str, Path] = MappingProxyType({}),
) -> Iterator[Machine]:
    """One with the package in /srv and these ``further`` Debian packages installed, gone at the end. ``files`` are by
    their names in /srv what else lies there."""
    unified = next(path for path in reversed(UNIFIED) if (path / "cgroup.procs").exists())
    with tempfile.TemporaryDirectory(prefix=name) as place:
        root, group = Path(place) / "root", unified / Path(place).name
        root.mkdir()
        unpack(tree(further), root)
        for each, source in {"package.deb": package, **files}.items():
            shutil.copy(source, root / "srv" / each)
        (root / "srv/load.py").write_text(LOAD)
        pack(root / "srv")
        group.mkdir()
        running = Machine(root, group)
        try:
            yield running
        finally:
            running.close()
            group.rmdir()


def unpack(packed: Path, root: Path) -> None:
    """Lay a tree out below ``root``, which is there, without its devices."""
    subprocess.run(["tar", "-C", str(root), "-xpf", str(packed), "--exclude=./dev/*"], check=True)


def tree(further: tuple[str, ...]) -> Path:
    """A minimal Debian 13 with these packages, as a file that is made once."""
    path = CACHE / f"{'-'.join(('debian13', *further))}.tar"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(f".{os.getpid()}.part")
        words = ("--quiet", "--variant=minbase", f"--include={','.join((*NEEDED, *further))}", "--format=tar")
        subprocess.run(["mmdebstrap", *words, "trixie", str(part)], check=True)
        part.rename(path)
    return path


def pack(folder: Path, *versions: str) -> None:
    """The digits as signed packages, and the key of their maker: digits.model is version 2, digits-N.model each further
    of the ``versions``."""
    command = str(Path(sys.executable).parent / "appliance")
    key = str(folder / "maker.key")
    subprocess.run([command, "model", "keygen", key], check=True, capture_output=True)
    with tempfile.TemporaryDirectory(prefix="digits-") as place:
        source = Path(place) / "digits"
        shutil.copytree(ROOT / "models/digits", source)
        for version in ("2", *versions):
            if version != "2":
                shutil.copytree(source / "2", source / version)
            made = folder / ("digits.model" if version == "2" else f"digits-{version}.model")
            words = (str(source), "--version", version, "--key", key, "--no-proof", "-o", str(made))
            subprocess.run([command, "model", "pack", *words], check=True, capture_output=True)


def is_installed_and_answers(box: Machine) -> None:
    box.do("dpkg", "-i", "/srv/package.deb")
    assert box.do("systemctl", "is-enabled", "appliance") == "enabled"
    assert box.do("systemctl", "is-active", "appliance", check=False) == "inactive", (
        "nothing starts by itself"
    )
    box.do("systemctl", "start", "appliance")
    picture = "/usr/share/edge-appliance/models/digits/golden/3-0539.png"
    assert "three" in box.do("appliance", "infer", "digits", "--input", f"image=@{picture}", "--json")


def keeps_its_workers_in_their_jail(box: Machine) -> None:
    workers = json.loads(box.do("appliance", "status", "--workers", "--json"))["workers"]
    assert len(workers) == 2
    assert all(set(each["confinement"]) == {"files", "network", "signals", "calls"} for each in workers), (
        workers
    )
    path = box.shown("ControlGroup")
    made = box.do("find", f"/sys/fs/cgroup{path}", "-name", "worker-*", "-type", "d").splitlines()
    assert len(made) == len(workers), "a cgroup for each"
    assert "cannot be kept from" not in box.do("journalctl", "-u", "appliance", "-o", "cat")


def reloads(box: Machine) -> None:
    before = box.shown("MainPID")
    box.do("systemctl", "reload", "appliance")
    until(
        "it reads anew",
        lambda: "reading the models again" in box.do("journalctl", "-u", "appliance", "-o", "cat"),
    )
    assert box.shown("MainPID") == before


def drops_no_request_when_it_starts_anew(box: Machine) -> None:
    load = box.begin(PYTHON, "/srv/load.py", "6")
    assert load.stdout is not None
    assert load.stdout.readline() == "answered\n"
    for _ in range(2):
        before = box.shown("MainPID")
        box.do("systemctl", "restart", "appliance")
        assert box.shown("MainPID") != before
    box.do("dpkg", "-i", "/srv/package.deb")  # as an upgrade
    box.do("touch", "/run/enough")
    said, _ = load.communicate(timeout=120)
    counts = json.loads(said)
    print("  ", said.strip())
    assert set(counts) == {"answered", "longest_s"}, counts


def is_ended_by_the_watchdog_when_it_stands(box: Machine) -> None:
    before = box.shown("MainPID")
    box.do("systemctl", "kill", "--signal=STOP", "--kill-whom=main", "appliance")
    until("there is another one", lambda: box.shown("MainPID") not in (before, "0"), 4 * WATCHDOG_S)
    assert box.shown("NRestarts") == "1"
    until("it serves", lambda: box.do("systemctl", "is-active", "appliance", check=False) == "active")
    box.do("appliance", "infer", "digits", "--zeros")


def make_certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of localhost that it signed itself, and its key."""
    certificate, key = folder / "tls.crt", folder / "tls.key"
    subject = ("-subj", "/CN=localhost", "-addext", "subjectAltName=DNS:localhost")
    kind = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-x509", "-nodes", "-days", "2")
    files = ("-out", str(certificate), "-keyout", str(key))
    subprocess.run(["openssl", "req", *kind, *subject, *files], check=True, capture_output=True)
    return certificate, key


def asks_over_tls(box: Machine) -> None:
    """Demand an answer."""
    where = ("--url", "https://localhost:8001", "--ca", f"{STORE}/appliance.tls.crt")
    box.do("appliance", "infer", "digits", "--zeros", *where)


def speaks_tls_by_its_credentials(box: Machine) -> None:
    """The certificate as it is, its key encrypted; checked before the start that is the first to have them."""
    with tempfile.TemporaryDirectory() as place:
        certificate, key = (path.read_text() for path in make_certificate(Path(place)))
    configuration = "/etc/appliance/appliance.toml"
    before = box.do("cat", configuration)
    box.do("mkdir", "-p", STORE, f"{STORE}.encrypted")
    box.do("sh", "-c", f"printf %s '{certificate}' > {STORE}/appliance.tls.crt")
    encrypt = "systemd-creds encrypt --with-key=host --name=appliance.tls.key -"
    box.do("sh", "-c", f"printf %s '{key}' | {encrypt} {STORE}.encrypted/appliance.tls.key")
    given = "/run/credentials/appliance.service/appliance.tls"
    port = f'[grpc]\\ntls_certificate = "{given}.crt"\\ntls_key = "{given}.key"'
    box.do("sed", "-i", f"s|^.grpc.$|{port}|", configuration)
    box.do("appliance", "config", "check", configuration)
    box.do("systemctl", "restart", "appliance")
    asks_over_tls(box)
    box.do("sh", "-c", f"cat > {configuration} <<'END'\n{before}\nEND")
    box.do("systemctl", "restart", "appliance")


def is_one_of_a_fleet(box: Machine) -> None:
    """Controller, agent and daemon, each in its unit: a version is released, comes, and answers."""
    home, url, profile = (
        "/var/lib/appliance-controller",
        "https://127.0.0.1:8443",
        "APPLIANCE_CONTROLLER=/run/p",
    )
    as_controller, as_box = (
        ("setpriv", f"--reuid={each}", f"--regid={each}", "--init-groups", "appliance")
        for each in ("appliance-controller", "appliance")
    )
    made = ("controller", "init", home, "--url", url, "--package-key", "/srv/maker.key.pub")
    admin = box.do(*as_controller, *made).rpartition("shown once: ")[2].split()[0]
    box.do("systemctl", "start", "appliance-controller")
    until("the controller listens", lambda: "listens at" in journal_of(box, "appliance-controller"))
    login = f"echo {admin} | {profile} appliance fleet login {url} --authority {home}/authority.crt"
    box.do("sh", "-c", login)
    fleet = ("env", profile, "appliance", "fleet")
    token = box.do(*fleet, "token", "--group", "sites")
    box.do(
        "sh",
        "-c",
        "sed -i 's|^models = .*|state_dir = \"/var/lib/appliance\"|' /etc/appliance/appliance.toml",
    )
    box.do("systemctl", "restart", "appliance")
    box.do(*as_box, "sync", "enrol", token, "--name", "north", "--state-dir", "/var/lib/appliance")
    box.do(*fleet, "release", "/srv/digits.model")
    box.do(*fleet, "want", "digits=2", "--group", "sites")
    box.do("systemctl", "start", "appliance-sync")
    until("it serves what is wanted", lambda: serving(json.loads(box.do(*fleet, "devices", "--json"))) == [2])
    box.do("appliance", "infer", "digits", "--zeros")
    assert box.shown("NRestarts", "appliance-sync.service") == "0", journal_of(box, "appliance-sync")
    assert box.shown("NRestarts", "appliance-controller.service") == "0"
    box.do("systemctl", "stop", "appliance-sync", "appliance-controller")


def journal_of(box: Machine, unit: str) -> str:
    return box.do("journalctl", "--no-pager", "-o", "cat", "-u", unit)


def serving(devices: list[dict[str, list[dict[str, int]]]]) -> list[int]:
    return [model["serving"] for device in devices for model in device["models"]]


def lets_its_ports_go_when_it_is_stopped(box: Machine) -> None:
    box.do("systemctl", "stop", "appliance")
    assert box.do("systemctl", "is-active", "appliance", check=False) == "inactive"
    assert box.do("appliance", "infer", "digits", "--zeros", check=False) == ""
    assert box.shown("NFileDescriptorStore") == "0"


CHECKS: Final = (
    is_installed_and_answers,
    keeps_its_workers_in_their_jail,
    reloads,
    drops_no_request_when_it_starts_anew,
    is_ended_by_the_watchdog_when_it_stands,
    speaks_tls_by_its_credentials,
    is_one_of_a_fleet,
    lets_its_ports_go_when_it_is_stopped,
)


def play(checks: Iterable[Callable[[Subject], None]], subject: Subject) -> None:
    """Have all checks hold of ``subject``, and say how long each took."""
    for check in checks:
        begun = time.monotonic()
        check(subject)
        print(f"ok {check.__name__} ({time.monotonic() - begun:.1f} s)", flush=True)


def main() -> int:
    """Run them all; 0 when all hold."""
    package = newest(ROOT / "dist")
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None or package is None:
        print(
            "this takes root, mmdebstrap, and this machine's dist/*.deb, which 'make packages' makes",
            file=sys.stderr,
        )
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    with machine(package) as box:
        print(box.do("systemctl", "--version").splitlines()[0])
        play(CHECKS, box)
    return 0


if __name__ == "__main__":
    sys.exit(main())
