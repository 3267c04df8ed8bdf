"""What the box is made of, in words: what a person asks first of a box that he does not see."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

from appliance import __version__
from appliance.domain.device import Device
from appliance.domain.quantity import bytes_text
from appliance.process.memory import memory_bytes
from appliance.process.processors import PROC, this_processor
from appliance.runtimes.distributions import installed

TOLD_OF: Final = ("numpy", "grpcio", "edge-appliance-native", "tensorrt")


def inventory(proc: Path = PROC) -> Mapping[str, str]:
    """The facts by name; those that the system does not tell are left out."""
    facts = {
        "appliance": __version__,
        "python": platform.python_version(),
        "machine": platform.machine(),
        "kernel": platform.release(),
        "processors": str(os.cpu_count() or 0),
        "memory_bytes": str(memory_bytes()),
        "processor": this_processor(proc),
        "boot": _text(proc / "sys/kernel/random/boot_id"),
        **_system(),
        **dict(_distributions()),
    }
    return {name: fact for name, fact in facts.items() if fact and fact != "0"}


def devices_made_of(devices: Sequence[Device]) -> Mapping[str, str]:
    """The same of ``devices``, by how models name them, and their driver. Boards of one kind are told in the same
    words."""
    boards = {str(each.called): _board(each) for each in devices}
    return {"driver": devices[0].driver, **boards} if devices and devices[0].driver else boards


def _board(device: Device) -> str:
    memory = None if device.memory_bytes is None else bytes_text(device.memory_bytes)
    capability = device.capability and "compute capability {}.{}".format(*device.capability)
    return ", ".join(filter(None, (device.name, memory, capability)))


def _system() -> Mapping[str, str]:
    """The distribution, and the release of the image that the machine runs, where it runs one."""
    try:
        said = platform.freedesktop_os_release()
    except OSError:
        return {}
    return {"system": said.get("PRETTY_NAME", ""), "image": said.get("IMAGE_VERSION", "")}


def _distributions() -> Iterator[tuple[str, str]]:
    for name, release in installed("onnx").items():
        yield f"package {name}", release
    for name in TOLD_OF:
        try:
            yield f"package {name}", version(name)
        except PackageNotFoundError:
            continue


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
