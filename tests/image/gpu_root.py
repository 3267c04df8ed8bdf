"""What is in the root of the variant with a GPU's driver, as it was built: unpacked, looked at, and run in part."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from image.place import Built, Place
from tests.image.vm import Failed
from tests.image.world import Facts

MODULES: Final = {"nvidia.ko", "nvidia-uvm.ko"}
MARK: Final = b"~Module signature appended~\n"
HEAD_BYTES: Final = 12
"""Of what the kernel calls a module_signature, whose last four bytes say how long the signature before it is."""
MAKERS: Final = re.compile(r"(.*-)?(gcc|g\+\+|cc|c\+\+|cpp|ld|as|clang|make|dkms)(-[0-9.]+)?")
"""Programs by which programs are made."""
MAKING: Final = re.compile(
    r"(?!gcc-[0-9]+-base$)(gcc|g\+\+|cpp|binutils|make|dkms|linux-headers|linux-kbuild|libc6-dev)\b.*"
)
OF_PROGRAMS: Final = {"iproute2"}
"""Headers that come with a program of the image."""
"""Their packages."""
ENTER: Final = (
    'mount --bind "$0" "$0"; mount -o remount,bind,ro "$0"; mount --rbind /dev "$0/dev"; '
    'mount -t proc proc "$0/proc"; mount -t tmpfs tmpfs "$0/tmp"; exec chroot "$0" "$@"'
)
"""Read-only, as a machine has it; the mounts end with the command."""
PYTHON: Final = "/usr/lib/edge-appliance/bin/python"
PROVIDERS: Final = (
    "import onnxruntime; print(onnxruntime.__version__, *onnxruntime.get_available_providers())"
)
SESSION: Final = (
    "import onnxruntime as o; o.preload_dlls(); "
    "o.InferenceSession('/usr/share/edge-appliance/models/digits/2/model.onnx', None, ['CUDAExecutionProvider'])"
)
NO_DEVICE: Final = "no CUDA-capable device is detected"
"""What the driver's library says where it found its libraries and no device; without it CUDA has another reason."""


@dataclass(frozen=True, kw_only=True)
class Root:
    """A root that was unpacked into ``folder``."""

    place: Place
    built: Built
    folder: Path

    def run(self, *command: str) -> subprocess.CompletedProcess[str]:
        """Run a command with this as its root."""
        entered = self.place.command("sh", "-ec", ENTER, self.place.inside(self.folder), *command)
        return subprocess.run(
            entered, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            text=True, check=False, timeout=600,
        )  # fmt: skip

    def said(self, *command: str) -> str:
        """What a command prints that has to succeed."""
        done = self.run(*command)
        demand(done.returncode == 0, f"{command[0]} ended with {done.returncode}: {done.stdout[-600:]}")
        return done.stdout.strip()

    def modinfo(self, module: Path, field: str) -> str:
        """A field of a module."""
        return self.place.output("modinfo", "-F", field, self.place.inside(module)).strip()


def unpack(place: Place, built: Built, folder: Path) -> Root:
    """The root of that build, in ``folder``, which is made anew."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    target = f"--extract={place.inside(folder)}"
    place.run("fsck.erofs", target, "--overwrite", place.inside(built.root), log=folder.with_suffix(".log"))
    return Root(place=place, built=built, folder=folder)


def inspect(root: Root, certificate: Path) -> Facts:
    """Everything that can be seen without starting it; fails where it is not as it has to be."""
    return {
        **_modules(root, certificate),
        **_nothing_that_makes(root),
        **_driver(root),
        **_runtime(root),
    }


def signed_by(place: Place, certificate: Path, data: bytes, signature: bytes) -> bool:
    """Whether the key of the certificate signed these bytes."""
    with tempfile.TemporaryDirectory(dir=place.folder) as name:
        folder = Path(name)
        shutil.copy(certificate, folder / "certificate")
        (folder / "data").write_bytes(data)
        (folder / "signature").write_bytes(signature)
        inside = place.inside(folder)
        command = ["openssl", "cms", "-verify", "-binary", "-inform", "DER", "-in", f"{inside}/signature"]
        command += ["-content", f"{inside}/data", "-certfile", f"{inside}/certificate"]
        command += ["-CAfile", f"{inside}/certificate", "-purpose", "any", "-out", "/dev/null"]
        return subprocess.run(place.command(*command), capture_output=True, check=False).returncode == 0


def split(module: bytes) -> tuple[bytes, bytes]:
    """A module, and the signature behind it (b"": there is none)."""
    if not module.endswith(MARK):
        return module, b""
    head = module[: -len(MARK)]
    size = int.from_bytes(head[-4:], "big")
    return head[: -HEAD_BYTES - size], head[-HEAD_BYTES - size : -HEAD_BYTES]


def demand(holds: bool, text: str) -> None:
    """Fail with this text unless it holds."""
    if not holds:
        raise Failed(text)


def _modules(root: Root, certificate: Path) -> Facts:
    """The driver's modules are of the one kernel that is there, signed by the image's key, and nothing else is."""
    kernels = [path.name for path in (root.folder / "usr/lib/modules").iterdir()]
    demand(len(kernels) == 1, f"there are kernels {kernels}")
    made = root.folder / "usr/lib/modules" / kernels[0]
    found = {path.name: path for path in (made / "updates").iterdir()}
    demand(found.keys() == MODULES, f"modules: {sorted(found)}")
    for name, path in found.items():
        magic = root.modinfo(path, "vermagic").split()[0]
        demand(magic == kernels[0], f"{name} is of kernel {magic}, not {kernels[0]}")
        data, signature = split(path.read_bytes())
        demand(signed_by(root.place, certificate, data, signature), f"{name} is not signed by {certificate}")
        demand(not signed_by(root.place, certificate, data + b"!", signature), f"{name}: any bytes pass")
        for needed in filter(None, root.modinfo(path, "depends").split(",")):
            there = [*made.rglob(f"{needed.replace('_', '[-_]')}.ko*")]
            demand(bool(there), f"{name} needs {needed}, which is not there")
    drivers = sorted(path.name.split(".")[0] for path in (made / "kernel/drivers/gpu").rglob("*.ko*"))
    demand("drm" in drivers and "nouveau" not in drivers, f"of drivers/gpu there are {drivers}")
    known = (made / "modules.alias").read_text(errors="replace")
    demand("alias pci:v000010DEd*sv*sd*bc03sc02i00* nvidia" in known, "no device has its module loaded")
    return {
        "kernel": kernels[0],
        "modules": ", ".join(f"{name} {path.stat().st_size:,}" for name, path in sorted(found.items())),
        "of the kernel's drivers/gpu": ", ".join(drivers),
        "modules need": ", ".join(sorted({root.modinfo(path, "depends") for path in found.values()} - {""}))
        or "nothing",
        "signed by": root.modinfo(found["nvidia.ko"], "signer") or certificate.name,
        "driver": root.modinfo(found["nvidia.ko"], "version"),
    }


def _nothing_that_makes(root: Root) -> Facts:
    """No compiler, no headers, no sources."""
    folders = ("usr/bin", "usr/sbin", "usr/libexec", "usr/local/bin")
    programs = [
        path.relative_to(root.folder).as_posix()
        for folder in folders
        for path in (root.folder / folder).glob("*")
        if MAKERS.fullmatch(path.name)
    ]
    packages = [
        each for each in re.findall(r'"name": "([^"]+)"', root.built.manifest.read_text())
        if MAKING.fullmatch(each)
    ]  # fmt: skip
    sources = [path.name for path in (root.folder / "usr/src").glob("*")]
    headers = [path.name for path in (root.folder / "usr/include").glob("*") if path.name not in OF_PROGRAMS]
    left = programs + packages + sources + headers
    demand(not left, f"left of the build: {left}")
    return {"compilers, headers, dkms": "none"}


def _driver(root: Root) -> Facts:
    """Libraries and programs of the driver are there, of the release that the modules are of."""
    facts: Facts = {}
    for library in ("libcuda.so.1", "libnvidia-ml.so.1"):
        at = root.said("readlink", "-e", f"/usr/lib/x86_64-linux-gnu/{library}")
        facts[library] = at.rsplit("/", 1)[-1]
    firmware = sorted((root.folder / "usr/lib/firmware/nvidia").glob("*/gsp_*.bin"))
    demand(bool(firmware), "the firmware of devices is not there")
    facts["firmware"] = ", ".join(f"{path.parent.name}/{path.name}" for path in firmware)
    told = root.run("nvidia-smi")
    demand(told.returncode != 0 and "NVIDIA" in told.stdout, f"nvidia-smi: {told.stdout[-300:]}")
    facts["nvidia-smi"] = " ".join(told.stdout.split())
    return facts


def _runtime(root: Root) -> Facts:
    """The runtime is of one distribution, has CUDA in it, and finds all of CUDA's libraries and the driver's."""
    listed = root.said("appliance", "runtime", "list")
    providers = root.said(PYTHON, "-c", PROVIDERS)
    demand("CUDAExecutionProvider" in providers, f"providers: {providers}")
    papers = [path.name for path in root.folder.rglob("onnxruntime*.dist-info")]
    demand(len(papers) == 1 and papers[0].startswith("onnxruntime_gpu-"), f"distributions: {papers}")
    refused = root.run(PYTHON, "-c", SESSION).stdout
    demand(NO_DEVICE in refused, f"a session for a GPU says: {refused[-600:]}")
    return {"providers": providers, "a session for a GPU": NO_DEVICE, "appliance runtime list": listed}
