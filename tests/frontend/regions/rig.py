"""Regions in a folder of a test's own, tensors in them, and what holds the lock of a file."""

from __future__ import annotations

import asyncio
import ctypes
import mmap
import os
import struct
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from fcntl import ioctl
from pathlib import Path
from typing import Any

import pytest

from appliance.domain.inference import Answer, OutputTensor, Parameter
from appliance.domain.protocol import RegionPart
from appliance.domain.tensor import Datatype
from appliance.frontend.regions.region import Registered
from appliance.frontend.regions.registry import Regions
from appliance.frontend.regions.window import Windows, put_outputs
from tests.architecture.sources import ROOT
from tests.domain.sample import make_version

ME = os.getuid()
OTHER = ME + 1
SIZE = 64
HUGE = (1 << 64) - 1

_USERFAULTFD = {"x86_64": 323, "aarch64": 282}
_API = 0xC018AA3F
_REGISTER = 0xC020AA00


def mine(name: str = "r", key: str = "/mine", offset: int = 0, nbytes: int = SIZE) -> Registered:
    return Registered(name, key, offset, nbytes)


def part(nbytes: int, offset: int = 0, region: str = "r") -> Mapping[str, Parameter]:
    return {
        "shared_memory_region": region,
        "shared_memory_byte_size": nbytes,
        "shared_memory_offset": offset,
    }


def copied(regions: Regions, nbytes: int, offset: int = 0) -> bytes:
    window = regions.window(ME, "input", "x", part(nbytes, offset))
    place = memoryview(bytearray(len(window)))
    assert window.read_into(place) is None
    return bytes(place)


def output(data: bytes | memoryview, name: str = "y") -> OutputTensor:
    return OutputTensor(name, Datatype.UINT8, (len(data),), data)


class Answering:
    """An answer of ``outputs`` that counts how often it is released."""

    def __init__(self, outputs: Sequence[OutputTensor]) -> None:
        self.released = 0
        self.gone = asyncio.Event()
        self.answer = Answer(model=make_version("m"), outputs=tuple(outputs), release=self._release)

    def _release(self) -> None:
        self.released += 1
        self.gone.set()

    async def put(self, windows: Windows) -> tuple[tuple[OutputTensor, ...], Mapping[str, RegionPart]]:
        answer, written = await put_outputs(self.answer, windows)
        assert not self.released
        answer.release()
        return answer.outputs, written


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Have another process write to the file from memory that never comes: meanwhile it has the file's lock, and no
    other write gets any further."""
    command = [sys.executable, "-c", "from tests.frontend.regions import rig; rig.hold()", str(path)]
    holder = subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert holder.stdout is not None
        if holder.stdout.readline() != "ready\n":
            pytest.skip("no userfaultfd(2) for this user")
        _wait_until_asleep_in_write(holder.pid)
        yield
    finally:
        holder.kill()
        holder.communicate()


def _wait_until_asleep_in_write(pid: int) -> None:
    """Until the process waits in the kernel, where it has nothing to wait for but the memory."""
    said = Path(f"/proc/{pid}/syscall")
    while not said.read_text("ascii").startswith(("1 ", "64 ")):  # write(2) of x86-64, of aarch64
        assert Path(f"/proc/{pid}").exists()


def hold() -> None:
    """In the other process: write for ever to the file that is named."""
    libc = ctypes.CDLL(None, use_errno=True)
    faults = libc.syscall(_USERFAULTFD.get(os.uname().machine, -1), 0)
    if faults < 0:
        return
    ioctl(faults, _API, bytearray(struct.pack("QQQ", 0xAA, 0, 0)))
    memory = mmap.mmap(-1, mmap.PAGESIZE)
    address = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    ioctl(faults, _REGISTER, bytearray(struct.pack("QQQQ", address, mmap.PAGESIZE, 1, 0)))
    descriptor = os.open(sys.argv[1], os.O_RDWR)
    print("ready", flush=True)
    source: Any = ctypes.c_void_p(address)
    libc.write(descriptor, source, ctypes.c_size_t(mmap.PAGESIZE))
