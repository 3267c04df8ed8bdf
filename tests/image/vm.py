"""An emulated machine that runs the image: disk, firmware, serial line, monitor, ports that lead in, the power.

QEMU emulates the processor, too: KVM is not taken, so that figures compare. Everything listens on loopback or in files.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np
import tritonclient.grpc as triton
from PIL import Image

from image.place import ROOT, Place

PICTURE: Final = ROOT / "models" / "digits" / "golden" / "3-0539.png"
DISK_GIB: Final = 6
PATIENCE: Final = "systemd.default_device_timeout_sec=900"
"""Emulated on a machine that is busy, a device may take long to be found."""
START: Final = {"systemd.unit-dropin.appliance.service": b"[Service]\nTimeoutStartSec=900\n"}
"""So may the start of the daemon, of which a box that computes so slowly would make no end."""
BOOT_S: Final = 1200.0
PAUSE_S: Final = 0.5
"""Between two looks at a machine that is starting: it can only be asked."""


@dataclass(frozen=True, kw_only=True)
class Emulated:
    """What is emulated of an architecture: by which ``program``, with which firmware; the ``secure`` ones are for
    Secure Boot. ``tpm`` is a device that the image's kernel has a driver of, if there is one."""

    program: str
    machine: str
    secure_machine: str
    processor: str
    code: str
    secure_code: str
    variables: str
    secure_options: tuple[str, ...] = ()
    tpm: str | None = None


EMULATED: Final = {
    "x86-64": Emulated(
        program="qemu-system-x86_64",
        machine="q35",
        secure_machine="q35,smm=on",
        processor="max",
        code="/usr/share/OVMF/OVMF_CODE_4M.fd",
        secure_code="/usr/share/OVMF/OVMF_CODE_4M.secboot.fd",
        variables="/usr/share/OVMF/OVMF_VARS_4M.fd",
        secure_options=("-global", "driver=cfi.pflash01,property=secure,value=on"),
        tpm="tpm-crb",
    ),
    # As an Ampere Altra has it. Debian's kernel knows no TPM that this machine can have.
    "arm64": Emulated(
        program="qemu-system-aarch64",
        machine="virt",
        secure_machine="virt",
        processor="neoverse-n1",
        code="/usr/share/AAVMF/AAVMF_CODE.no-secboot.fd",
        secure_code="/usr/share/AAVMF/AAVMF_CODE.secboot.fd",
        variables="/usr/share/AAVMF/AAVMF_VARS.fd",
    ),
}


class Failed(AssertionError):
    """The machine did not do what the scenario demands."""


@dataclass(kw_only=True)
class Machine:
    """A machine that was switched on. ``folder`` is its own."""

    place: Place
    folder: Path
    process: subprocess.Popen[bytes]
    grpc: int
    http: int
    ssh: int
    serial: Path
    begun: float = field(default_factory=time.monotonic)

    @property
    def seconds(self) -> float:
        """Since it was switched on."""
        return time.monotonic() - self.begun

    @property
    def cpu_s(self) -> float:
        """Processor time that the emulator took."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def said(self) -> str:
        """What came over the serial line, without the codes that move a cursor."""
        text = self.serial.read_text(errors="replace") if self.serial.exists() else ""
        return re.sub(r"\x1b\[[0-9;?=]*[A-Za-z]", "", text)

    def answer(self, timeout_s: float = 20.0) -> tuple[int, str]:
        """Which digit the model sees in the picture of a three, and its version. Raises what the client raises."""
        with triton.InferenceServerClient(f"127.0.0.1:{self.grpc}") as client:
            picture = np.asarray(Image.open(PICTURE), np.float32)[None]
            tensor = triton.InferInput("image", picture.shape, "FP32")
            tensor.set_data_from_numpy(picture)
            answer = client.infer("digits", [tensor], client_timeout=timeout_s)
            probabilities = answer.as_numpy("probabilities")
            return int(probabilities.argmax()), str(answer.get_response().model_version)

    def wait_answer(self, limit_s: float = BOOT_S) -> float:
        """Seconds from now until the right answer came."""
        begun = time.monotonic()
        while time.monotonic() - begun < limit_s:
            self.check_alive()
            try:
                digit, _ = self.answer()
            except (triton.InferenceServerException, OSError):
                time.sleep(PAUSE_S)
                continue
            if digit != 3:
                raise Failed(f"the answer is {digit}, not 3")
            return time.monotonic() - begun
        raise Failed(f"no answer within {limit_s:g} s; the serial line ends: {self.said()[-600:]!r}")

    def wait_said(self, pattern: str, limit_s: float = BOOT_S, count: int = 1) -> None:
        """Return when the serial line had it so many times."""
        begun = time.monotonic()
        while len(re.findall(pattern, self.said())) < count:
            self.check_alive()
            if time.monotonic() - begun > limit_s:
                raise Failed(f"the serial line did not have {pattern!r} {count} times within {limit_s:g} s")
            time.sleep(PAUSE_S)

    def check_alive(self) -> None:
        """Fail where the emulator ended."""
        if self.process.poll() is not None:
            raise Failed(f"the emulator ended with status {self.process.returncode}: {self.emulator_said()}")

    def emulator_said(self) -> str:
        """Its own messages."""
        return (self.folder / "qemu.log").read_text(errors="replace")[-500:]

    def run(self, command: str, timeout_s: float = 300.0, *, check: bool = True) -> str:
        """What a command prints that runs in the machine as root, by the break-glass key."""
        done = subprocess.run(
            [*self._ssh(), command], stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=timeout_s, check=False,
        )  # fmt: skip
        if check and done.returncode != 0:
            raise Failed(f"{command!r} ended with {done.returncode}: {(done.stdout + done.stderr)[-800:]}")
        return done.stdout + done.stderr

    def wait_login(self, limit_s: float = BOOT_S) -> None:
        """Return when the break-glass key opens."""
        begun = time.monotonic()
        while time.monotonic() - begun < limit_s:
            self.check_alive()
            with_key = subprocess.run(
                [*self._ssh(), "true"], stdin=subprocess.DEVNULL, capture_output=True, check=False, timeout=90
            )
            if with_key.returncode == 0:
                return
            time.sleep(PAUSE_S)
        raise Failed(f"no login within {limit_s:g} s; the serial line ends: {self.said()[-600:]!r}")

    def send(self, path: Path, target: str, timeout_s: float = 600.0) -> None:
        """Copy a file or a folder into the machine."""
        with subprocess.Popen(
            ["tar", "-C", str(path.parent), "-c", path.name], stdout=subprocess.PIPE
        ) as packed:
            subprocess.run(
                [*self._ssh(), f"mkdir -p {target} && tar -C {target} -x"], stdin=packed.stdout,
                capture_output=True, check=True, timeout=timeout_s,
            )  # fmt: skip

    def monitor(self, command: str, **arguments: Any) -> Any:
        """What QEMU's monitor answers."""
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(30)
            connection.connect(str(self.folder / "qmp"))
            stream = connection.makefile("rw")
            stream.readline()
            for each in ({"execute": "qmp_capabilities"}, {"execute": command, "arguments": arguments}):
                stream.write(json.dumps(each) + "\n")
                stream.flush()
                while "event" in (said := json.loads(stream.readline())):
                    pass
            return said

    def cut_power(self) -> None:
        """End the emulator by SIGKILL."""
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(30)

    def power_off(self, limit_s: float = 180.0) -> None:
        """Shut down in order."""
        self.run("systemctl poweroff", check=False)
        try:
            self.process.wait(limit_s)
        except subprocess.TimeoutExpired as error:
            raise Failed(f"it did not power off within {limit_s:g} s") from error

    def _ssh(self) -> list[str]:
        options = (
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
            "ConnectTimeout=60",
        )
        words = [word for option in options for word in ("-o", option)]
        key = self.place.folder / "tests" / "login"
        return ["ssh", "-i", str(key), "-p", str(self.ssh), *words, "root@127.0.0.1"]


@dataclass(frozen=True, kw_only=True)
class Power:
    """How a machine is switched on: ``disk`` is its own, whose writes are noted in ``log``, if there is one; ``tpm`` is
    the folder of its TPM, which begins empty; ``credentials`` are given to it by its firmware's tables; ``options`` go
    to QEMU as they are."""

    disk: Path
    credentials: dict[str, bytes] = field(default_factory=dict)
    secure: bool = False
    memory_mib: int = 2048
    restrict: bool = False
    log: Path | None = None
    tpm: Path | None = None
    options: Sequence[str] = ()


@contextmanager
def switched_on(place: Place, power: Power, name: str = "serial") -> Iterator[Machine]:
    """The machine, which ends with the block, however that ends."""
    folder = power.disk.parent
    variables = folder / "firmware"
    if not variables.exists():
        shutil.copy(
            place.folder / "tools" / EMULATED[place.architecture].variables.removeprefix("/"), variables
        )
    ports = _free_ports(3)
    serial = folder / f"{name}.log"
    serial.unlink(missing_ok=True)
    command = place.command(*_qemu(place, power, serial, variables, ports))
    with ExitStack() as running:
        if power.tpm is not None:
            running.enter_context(_tpm(place, power.tpm))
        with open(folder / "qemu.log", "ab") as log:
            process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        running.callback(_end, process)
        yield Machine(
            place=place, folder=folder, process=process,
            grpc=ports[0], http=ports[1], ssh=ports[2], serial=serial,
        )  # fmt: skip


@contextmanager
def _tpm(place: Place, folder: Path) -> Iterator[None]:
    """A TPM that keeps its state in ``folder``; it ends with the machine that it is plugged into."""
    folder.mkdir(exist_ok=True)
    gate = folder / "socket"
    gate.unlink(missing_ok=True)
    inside = place.inside(folder)
    command = place.command(
        "swtpm", "socket", "--tpm2", "--tpmstate", f"dir={inside}", "--ctrl", f"type=unixio,path={inside}/socket",
        "--flags", "startup-clear", "--terminate",
    )  # fmt: skip
    with open(folder / "log", "ab") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    try:
        while not gate.exists():
            if process.poll() is not None:
                raise Failed(f"the TPM did not start; why: {folder / 'log'}")
            time.sleep(PAUSE_S)
        yield
    finally:
        _end(process)


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        process.kill()
    process.wait(30)


def new_disk(place: Place, base: Path, folder: Path, gib: int = DISK_GIB) -> Path:
    """A disk of its own that begins as ``base``."""
    folder.mkdir(parents=True, exist_ok=True)
    disk = folder / "disk.qcow2"
    for each in (disk, folder / "firmware"):
        each.unlink(missing_ok=True)
    place.run(
        "qemu-img", "create", "-q", "-f", "qcow2", "-F", "raw", "-b", place.inside(base),
        f"{place.inside(folder)}/{disk.name}", f"{gib}G", log=folder / "qemu.log",
    )  # fmt: skip
    return disk


def login_key(place: Place) -> bytes:
    """The public half of the break-glass key of these tests, which is made once."""
    key = place.folder / "tests" / "login"
    if not key.exists():
        key.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    return key.with_suffix(".pub").read_bytes()


def _qemu(place: Place, power: Power, serial: Path, variables: Path, ports: Sequence[int]) -> list[str]:
    def inside(path: Path) -> str:
        return f"{place.inside(path.parent)}/{path.name}"

    emulated = EMULATED[place.architecture]
    code = emulated.secure_code if power.secure else emulated.code
    forwards = "".join(
        f",hostfwd=tcp:127.0.0.1:{port}-:{inner}" for port, inner in zip(ports, (8001, 8000, 22), strict=True)
    )
    restrict = "on" if power.restrict else "off"
    words = [
        emulated.program, "-name", "appliance", "-nodefaults", "-no-user-config", "-display", "none",
        "-machine", emulated.secure_machine if power.secure else emulated.machine,
        "-accel", "tcg,thread=multi,tb-size=512", "-cpu", emulated.processor, "-smp", "2", "-m", str(power.memory_mib),
        "-uuid", "6f2a1c3e-1111-4222-8333-0123456789ab",
        "-drive", f"if=pflash,format=raw,unit=0,readonly=on,file={code}",
        "-drive", f"if=pflash,format=raw,unit=1,file={inside(variables)}",
        *_drive(inside(power.disk), "" if power.log is None else inside(power.log)),
        "-device", "virtio-blk-pci,drive=disk,bootindex=1",
        "-device", "virtio-rng-pci", "-device", "i6300esb", "-action", "watchdog=reset",
        "-netdev", f"user,id=net,ipv6=off,restrict={restrict}{forwards}",
        "-device", "virtio-net-pci,netdev=net,romfile=",
        "-chardev", f"file,id=serial,path={inside(serial)}", "-serial", "chardev:serial", "-monitor", "none",
        "-qmp", f"unix:{inside(serial.parent / 'qmp')},server=on,wait=off",
    ]  # fmt: skip
    if power.tpm is not None:
        if emulated.tpm is None:
            raise Failed(f"there is no TPM for an emulated {place.architecture}")
        gate = f"socket,id=tpm,path={place.inside(power.tpm)}/socket"
        words += [
            "-chardev",
            gate,
            "-tpmdev",
            "emulator,id=tpm0,chardev=tpm",
            "-device",
            f"{emulated.tpm},tpmdev=tpm0",
        ]
    if power.secure:
        words += emulated.secure_options
    given = {"ssh.authorized_keys.root": login_key(place), **START, **power.credentials}
    for name, value in given.items():
        text = base64.b64encode(value).decode()
        words += ["-smbios", f"type=11,value=io.systemd.credential.binary:{name}={text}"]
    words += ["-smbios", f"type=11,value=io.systemd.stub.kernel-cmdline-extra={PATIENCE}"]
    return [*words, *power.options]


def _drive(disk: str, log: str) -> list[str]:
    if not log:
        return ["-drive", f"if=none,id=disk,format=qcow2,file={disk},cache=writeback,discard=unmap"]
    real = f"driver=qcow2,node-name=real,discard=unmap,file.driver=file,file.filename={disk}"
    noted = "driver=blklogwrites,node-name=disk,file=real,log-super-update-interval=1"
    return ["-blockdev", real, "-blockdev", f"{noted},log.driver=file,log.filename={log}"]


def _free_ports(count: int) -> list[int]:
    held = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return ports
