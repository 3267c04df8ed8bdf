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
SIZES: Final = {"root-x86-64-verity": SLOT_BYTES["root-verity"], "root-x86-64": SLOT_BYTES["root"]}
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
    parts = [boot, _slot("root-x86-64-verity", place, built.sums, built.name, "verity")]
    parts += [_slot("root-x86-64", place, built.root, built.name, "root")]
    if tried is None:
        parts += [_empty("root-x86-64-verity"), _empty("root-x86-64")]
    else:
        parts += [_slot("root-x86-64-verity", place, tried.sums, tried.name, "verity")]
        parts += [_slot("root-x86-64", place, tried.root, tried.name, "root")]
    for number, text in enumerate(parts):
        (definitions / f"{number}0.conf").write_text(f"[Partition]\n{text}")
    target.unlink(missing_ok=True)
    size = BOOT_MIB * MIB + 2 * sum(SIZES.values()) + 4 * MIB
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


def _slot(kind: str, place: Place, contents: Path, name: str, label: str) -> str:
    uuid = contents.name.split(".")[-2]
    return (
        f"Type={kind}\nUUID={uuid}\nLabel={name}_{label}\nCopyBlocks={place.inside(contents)}\n"
        f"SizeMinBytes={SIZES[kind]}\nSizeMaxBytes={SIZES[kind]}\nReadOnly=yes\n"
    )


def _empty(kind: str) -> str:
    return f"Type={kind}\nLabel=_empty\nSizeMinBytes={SIZES[kind]}\nSizeMaxBytes={SIZES[kind]}\n"
