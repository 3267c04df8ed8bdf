"""What an engine is tied to: TensorRT's release, the driver, the devices.

The driver is asked in a process of its own: the process that asks is the one that forks all workers, and is to leave
every device alone. Run as ``python -m appliance.runtimes.tensorrt.tie``, it prints what it found.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from appliance.devices.nvml import Nvml

PROBE_S: Final = 30.0
"""How long a driver may take to answer; the first one may wake the devices."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Driver:
    """What the driver says: its release, and devices by unique name and model, in its order. Without ``devices``
    nothing of it may be used; ``problem`` says why."""

    release: str = ""
    devices: tuple[str, ...] = ()
    problem: str = ""


def find_driver() -> Driver:
    """Ask the driver in another process, which may crash or hang there."""
    command = [sys.executable, "-P", "-m", __name__]
    try:
        done = subprocess.run(command, capture_output=True, timeout=PROBE_S, check=False, text=True)
        return read_driver(done.stdout, done.returncode)
    except (OSError, subprocess.TimeoutExpired) as problem:
        return Driver(problem=f"the NVIDIA driver does not answer: {problem}")


def read_driver(said: str, status: int) -> Driver:
    """What the other process said, with the exit status that it had."""
    try:
        document = json.loads(said)
        return Driver(
            release=str(document["release"]),
            devices=tuple(map(str, document["devices"])),
            problem=str(document["problem"]),
        )
    except (ValueError, KeyError, TypeError):
        return Driver(problem=f"asking the NVIDIA driver ended with status {status}")


def tie_of(library: str, driver: Driver) -> str:
    """One line that is equal as long as an engine is good: of TensorRT's release, the driver, and the devices, which
    workers count as the driver does."""
    return ", ".join((library, f"driver {driver.release}", *driver.devices))


def main() -> None:
    """Print what the driver says, as JSON."""
    try:
        devices = Nvml().devices
        found = Driver(
            release=devices[0].driver if devices else "",
            devices=tuple(f"{each.name} {each.uuid}" for each in devices),
            problem="" if devices else "the NVIDIA driver has no device",
        )
    except OSError as problem:
        found = Driver(problem=str(problem))
    said = {"release": found.release, "devices": found.devices, "problem": found.problem}
    sys.stdout.write(json.dumps(said))


if __name__ == "__main__":
    main()
