"""Compose a disk of what was built: the boot partition, a slot with a version, an empty slot; /var comes at the box.

Slots are larger than what is in them now, so that the next version fits. Nothing is mounted and no device is needed.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from appliance.image.update import SLOT_BYTES
from image.place import Built, Place

SEED: Final = "b0cf2a26-0b8e-4f0e-9d0b-8a55a1d9c6a1"
PARTS: Final = ("root-verity", "root")
"""The partitions of a slot, in their order."""
MIB: Final = 1 << 20
BOOT_MIB: Final = 256


def compose(
    place: Place, built: Built, target: Path, tried: Built | None = None, *, proven: bool = False
) -> None:
    """Write the disk to ``target``; for tests with a second version, ``tried``, which was installed beside one that
    proved itself, and is tried next, or was and is ``proven``, too."""
    definitions = place.folder / "disk.definitions"
    shutil.rmtree(definitions, ignore_errors=True)
    definitions.mkdir()
    contents = (
        built.boot
        if tried is None
        else _both(place, built, tried, target.with_suffix(".boot"), "" if proven else "+3")
    )
    boot = f"Type=esp\nLabel=esp\nCopyBlocks={place.inside(contents)}\nSizeMaxBytes={BOOT_MIB}M\n"
    sizes = {_kind(built, part): SLOT_BYTES[built.variant][part] for part in PARTS}
    parts = [boot, *_slots(place, built, sizes)]
    parts += [_empty(*each) for each in sizes.items()] if tried is None else _slots(place, tried, sizes)
    for number, text in enumerate(parts):
        (definitions / f"{number}0.conf").write_text(f"[Partition]\n{text}")
    target.unlink(missing_ok=True)
    size = BOOT_MIB * MIB + 2 * sum(sizes.values()) + 4 * MIB
    place.run(
        "env", "SOURCE_DATE_EPOCH=1764201600",
        "systemd-repart", "--offline=yes", "--empty=create", f"--size={size}", "--dry-run=no", "--no-pager",
        f"--definitions={place.inside(definitions)}", f"--seed={SEED}", place.inside(target.parent) + f"/{target.name}",
        log=place.folder / "disk.log",
    )  # fmt: skip
    shutil.rmtree(definitions)


def _both(place: Place, good: Built, tried: Built, target: Path, tries: str) -> Path:
    """A boot partition with a version that is good and one that has these ``tries`` before it."""
    shutil.copy(good.boot, target)
    log, disk = place.folder / "disk.log", place.inside(target)
    counted = f"::/EFI/Linux/{good.name}+3.efi"
    place.run("mren", "-i", disk, counted, f"::/EFI/Linux/{good.name}.efi", log=log)
    place.run(
        "mcopy", "-i", disk, place.inside(tried.kernel), f"::/EFI/Linux/{tried.name}{tries}.efi", log=log
    )
    return target


def _slots(place: Place, built: Built, sizes: dict[str, int]) -> list[str]:
    """The partitions of a version, its sums first."""
    contents = {
        _kind(built, "root-verity"): (built.sums, "verity"),
        _kind(built, "root"): (built.root, "root"),
    }
    return [
        f"Type={kind}\nUUID={path.name.split('.')[-2]}\nLabel={built.name}_{label}\n"
        f"CopyBlocks={place.inside(path)}\nSizeMinBytes={sizes[kind]}\nSizeMaxBytes={sizes[kind]}\nReadOnly=yes\n"
        for kind, (path, label) in contents.items()
    ]


def _kind(built: Built, part: str) -> str:
    """The type of a partition, which names the architecture that reads it."""
    return part.replace("root", f"root-{built.architecture}")


def _empty(kind: str, size: int) -> str:
    return f"Type={kind}\nLabel=_empty\nSizeMinBytes={size}\nSizeMaxBytes={size}\n"
