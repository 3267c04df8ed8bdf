"""ONNX Runtime for CUDA with CUDA's libraries, and what gets the unit to the devices.

The add-on's package and the image have the same, from one lock file. CUDA's major release is one that the driver of
Debian 13 has; the driver itself is no part of it.
"""

from __future__ import annotations

import hashlib
import re
import shutil
from pathlib import Path
from typing import Final

from packages.tree import ROOT, UNITS, UNUSED, install, leave_out

LOCK: Final = ROOT / "packages/requirements-cuda.lock"
DEVICES: Final = ROOT / "systemd/gpu"
HOME: Final = Path("usr/lib/edge-appliance-cuda")
RUNTIME_UNUSED: Final = (
    *UNUSED,
    "example.py",
    "nvidia/*/include",
    "nvidia/*/bin",
    "nvidia/*/lib/*.a",
    "nvidia/*/lib/*.alt.so*",
    "nvidia/cublas/lib/libnvblas.so*",
    "nvidia/cufft/lib/libcufftw.so*",
)
"""What ONNX Runtime does not load: headers, and libraries for other programs."""
_UNIT: Final = "appliance-gpu.service"


def lay_out(site: Path) -> None:
    """Install the Python packages into the folder ``site``, which is there: two gigabytes are fetched. Raises
    CalledProcessError."""
    install(site, ["--require-hashes", "-r", str(LOCK)])
    leave_out(site, RUNTIME_UNUSED)


def lay_out_devices(root: Path) -> None:
    """Have the product's unit below ``root`` get to the devices, and have their files made before it starts."""
    drop_ins, wants = (root / UNITS / f"appliance.service.{kind}" for kind in ("d", "wants"))
    for folder in (drop_ins, wants, root / HOME):
        folder.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(DEVICES / "appliance-gpu.conf", drop_ins / "10-gpu.conf")
    shutil.copyfile(DEVICES / _UNIT, root / UNITS / _UNIT)
    (wants / _UNIT).symlink_to(f"../{_UNIT}")
    shutil.copyfile(DEVICES / "devices", root / HOME / "devices")
    (root / HOME / "devices").chmod(0o755)


def made_of() -> str:
    """The digest of all that says what is laid out."""
    digest = hashlib.sha256(repr(RUNTIME_UNUSED).encode())
    for path in (LOCK, *sorted(DEVICES.iterdir())):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def releases() -> tuple[str, str]:
    """Those of ONNX Runtime and of CUDA, such as 1.26.0 and 12.9, as the lock file has them. Raises LookupError."""
    said = LOCK.read_text()
    runtime = re.search(r"^onnxruntime-gpu==([0-9.]+)", said, re.MULTILINE)
    cuda = re.search(r"^nvidia-cuda-runtime(?:-cu[0-9]+)?==([0-9]+\.[0-9]+)", said, re.MULTILINE)
    if runtime is None or cuda is None:
        raise LookupError(f"{LOCK} names no onnxruntime-gpu or no nvidia-cuda-runtime; 'make lock' makes it")
    return runtime[1], cuda[1]
