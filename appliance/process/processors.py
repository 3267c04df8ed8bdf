"""What the machine's processors are called, by what the kernel tells of them.

An x86 tells its own name. An ARM core tells numbers, of who designed it and of which design it is; here are those that
edge boxes and servers have, as Arm's and the vendors' manuals of the cores give them in MIDR_EL1.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final

PROC: Final = Path("/proc")
ARM: Final = "0x41"
ANY: Final = "ARMv"
"""How the names begin that some kernels give ARM cores by their architecture alone, as those of Jetsons do."""
IMPLEMENTERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        ARM: "ARM", "0x42": "Broadcom", "0x43": "Cavium", "0x46": "Fujitsu", "0x48": "HiSilicon", "0x4e": "NVIDIA",
        "0x50": "APM", "0x51": "Qualcomm", "0x53": "Samsung", "0x56": "Marvell", "0x61": "Apple", "0x6d": "Microsoft",
        "0x70": "Phytium", "0xc0": "Ampere",
    }
)  # fmt: skip
CORES: Final[Mapping[tuple[str, str], str]] = MappingProxyType(
    {
        (ARM, "0xd02"): "Cortex-A34",
        (ARM, "0xd03"): "Cortex-A53",
        (ARM, "0xd04"): "Cortex-A35",
        (ARM, "0xd05"): "Cortex-A55",
        (ARM, "0xd06"): "Cortex-A65",
        (ARM, "0xd07"): "Cortex-A57",
        (ARM, "0xd08"): "Cortex-A72",
        (ARM, "0xd09"): "Cortex-A73",
        (ARM, "0xd0a"): "Cortex-A75",
        (ARM, "0xd0b"): "Cortex-A76",
        (ARM, "0xd0c"): "Neoverse-N1",
        (ARM, "0xd0d"): "Cortex-A77",
        (ARM, "0xd0e"): "Cortex-A76AE",
        (ARM, "0xd40"): "Neoverse-V1",
        (ARM, "0xd41"): "Cortex-A78",
        (ARM, "0xd42"): "Cortex-A78AE",
        (ARM, "0xd43"): "Cortex-A65AE",
        (ARM, "0xd44"): "Cortex-X1",
        (ARM, "0xd46"): "Cortex-A510",
        (ARM, "0xd47"): "Cortex-A710",
        (ARM, "0xd48"): "Cortex-X2",
        (ARM, "0xd49"): "Neoverse-N2",
        (ARM, "0xd4a"): "Neoverse-E1",
        (ARM, "0xd4b"): "Cortex-A78C",
        (ARM, "0xd4c"): "Cortex-X1C",
        (ARM, "0xd4d"): "Cortex-A715",
        (ARM, "0xd4e"): "Cortex-X3",
        (ARM, "0xd4f"): "Neoverse-V2",
        (ARM, "0xd80"): "Cortex-A520",
        (ARM, "0xd81"): "Cortex-A720",
        (ARM, "0xd82"): "Cortex-X4",
        (ARM, "0xd83"): "Neoverse-V3AE",
        (ARM, "0xd84"): "Neoverse-V3",
        (ARM, "0xd85"): "Cortex-X925",
        (ARM, "0xd87"): "Cortex-A725",
        (ARM, "0xd8e"): "Neoverse-N3",
        ("0x46", "0x001"): "Fujitsu A64FX",
        ("0x48", "0xd01"): "HiSilicon Kunpeng 920",
        ("0x4e", "0x003"): "NVIDIA Denver 2",
        ("0x4e", "0x004"): "NVIDIA Carmel",
        ("0xc0", "0xac3"): "AmpereOne",
        ("0xc0", "0xac4"): "AmpereOne A",
    }
)


def this_processor(proc: Path = PROC) -> str:
    """What the processors of this machine are called; "" where the system does not tell."""
    try:
        return processor_name((proc / "cpuinfo").read_text(encoding="utf-8", errors="replace"))
    except OSError:
        return ""


def processor_name(told: str) -> str:
    """The same of ``told``, a cpuinfo file: by its own name, else by the board, where that is told, and each kind of
    core; one that is not known by its numbers."""
    lines = (line.partition(":") for line in told.splitlines())
    fields = [(key.strip(), value.strip()) for key, _, value in lines]
    names = (value for key, value in fields if key == "model name" and not value.startswith(ANY))
    board = dict(fields).get("Model", "")
    return next(names, "") or ", ".join(filter(None, (board, *dict.fromkeys(_cores(fields)))))


def _cores(fields: list[tuple[str, str]]) -> Iterator[str]:
    implementer = ""
    for key, value in fields:
        if key == "CPU implementer":
            implementer = value
        elif key == "CPU part":
            by = IMPLEMENTERS.get(implementer, f"implementer {implementer}")
            yield CORES.get((implementer, value), f"{by} part {value}")
