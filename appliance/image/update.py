"""Replace the image by a newer release: all that can be known is checked before anything is written.

The papers come first: who signed them, and whether this machine may run what they speak of. Then the parts come, by the
path that models take: in verified pieces, going on where they stopped, within the rate of the link. What came whole is
handed to systemd-sysupdate, which writes the slot that is not in use, and the kernel last: before that nothing has
changed, and after it the boot loader has three tries until it takes the version before.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Final

from appliance.domain.digest import digests_of_file
from appliance.domain.errors import OperatorError, PackageInvalid, Problem
from appliance.durable import make_own_directory, sync_name
from appliance.fleet.documents import Transfer
from appliance.image.machine import TRIES, Machine, set_tries
from appliance.image.release import (
    PAYLOAD_TYPE,
    RELEASE,
    SIGNATURE,
    Part,
    Release,
    ReleaseInvalid,
    decode,
    is_newer,
)
from appliance.package.keys import PublicKey
from appliance.package.trust import Trust, judge
from appliance.transfer.download import Allowed, NoSource, fetch
from appliance.transfer.source import Source
from appliance.transfer.spool import Spool

SLOT_BYTES: Final[Mapping[str, Mapping[str, int]]] = MappingProxyType(
    {
        "cpu": {"root": 768 << 20, "root-verity": 16 << 20, "kernel": 96 << 20},
        "gpu": {"root": 3072 << 20, "root-verity": 32 << 20, "kernel": 96 << 20},
    }
)
"""What a part may have at most, by the variant of the image: the sizes of its partitions, and a share of the boot
partition. CUDA's libraries are what makes the one for a GPU so large."""
ROOM_BYTES: Final = 64 << 20
"""What is left free beside what comes."""
SYSUPDATE: Final = "/usr/lib/systemd/systemd-sysupdate"
FIRMWARE_KEY: Final = Path("/usr/share/edge-appliance/image-keys/secure-boot.crt")
Told = Callable[[int, int], None]


def read(papers: bytes, envelope: bytes | None, keys: Sequence[PublicKey]) -> tuple[Release, Trust]:
    """The release that the papers speak of, and who signed them. Raises ReleaseInvalid with all that is wrong."""
    try:
        return decode(papers), judge(papers, envelope, keys, PAYLOAD_TYPE)
    except PackageInvalid as error:
        raise ReleaseInvalid(error.problems) from error


def refusals(release: Release, trust: Trust, machine: Machine, free_bytes: int) -> Iterator[Problem]:
    """Everything that keeps this machine from taking the release. Raises OSError."""
    wrong = [verdict for verdict in trust.verdicts if verdict.right is False]
    if wrong:
        yield _problem(SIGNATURE, "", f"the signature of the trusted key {wrong[0].keyid} is wrong")
    elif not trust.keyids:
        said = "is not there" if not trust.verdicts else "is by no key that this image trusts"
        yield _problem(SIGNATURE, "", f"{said}; a release is signed by who made this machine's image")
    if release.machine != machine.architecture:
        yield _problem(
            RELEASE, "machine", f"is {release.machine!r}; this machine is {machine.architecture!r}"
        )
    if release.variant != machine.variant:
        yield _problem(RELEASE, "variant", f"is {release.variant!r}; this machine runs {machine.variant!r}")
    if is_newer(machine.version, release.version):
        text = f"is {release.version}, older than {machine.version}, which runs ('appliance image rollback' goes back)"
        yield _problem(RELEASE, "version", text)
    elif not is_newer(release.version, machine.version):
        yield _problem(RELEASE, "version", f"is {release.version}, which runs already")
    elif _is_another(release, machine):
        yield _problem(RELEASE, "version", f"is {release.version}, and another image of that number is here")
    slots = SLOT_BYTES.get(machine.variant, SLOT_BYTES["cpu"])
    for part in release.parts:
        limit = slots[_kind(part.name)]
        if part.size > limit:
            yield _problem(part.name, "", f"has {part.size} bytes; the slot for it has {limit}")
    if release.total_bytes + ROOM_BYTES > free_bytes:
        text = f"takes {release.total_bytes + ROOM_BYTES} bytes while it comes, and {free_bytes} are free"
        yield _problem(RELEASE, "parts", text)


async def transfer(
    release: Release, source: Source, folder: Path, rate_bytes_per_s: int, told: Told = lambda here, of: None
) -> None:
    """Have all parts in ``folder``, under their names, whole and as the release says. What came before a kill or a lost
    link stays and is gone on with. Raises OperatorError, OSError."""
    spool = Spool(folder / "spool")
    spool.keep_only([part.stream for part in release.parts])
    before = 0
    for part in release.parts:
        way = Transfer(stream=part.stream, size=part.size, index=part.index)
        place = folder / part.name
        if not _lies_at(place, part):
            try:
                seen = partial(_sum, told, before, release.total_bytes)
                await fetch(way, [source], spool, _paced(rate_bytes_per_s), seen)
            except NoSource as error:
                raise OperatorError(f"{part.name} did not come: {error}") from error
            (folder / f"{part.name}.new").unlink(missing_ok=True)
            os.link(spool.path(way), folder / f"{part.name}.new")
            os.rename(folder / f"{part.name}.new", place)
            sync_name(place)
        before += part.size
        told(before, release.total_bytes)


def _lies_at(place: Path, part: Part) -> bool:
    """Whether the part lies there, and not one of another release of the same number, or what has rotted: names say
    nothing, and a kernel with another one's root is a machine that starts neither."""
    try:
        return digests_of_file(place).digest == part.stream
    except FileNotFoundError:
        return False


def make_room(folder: Path, release: Release) -> None:
    """Remove from ``folder`` what belongs to other releases. Raises OSError."""
    make_own_directory(folder)
    names = {part.name for part in release.parts}
    for path in list(folder.iterdir()):
        if path.is_file() and path.name not in names:
            path.unlink()


def check_kernel(release: Release, folder: Path) -> None:
    """See that the firmware of this machine will start the kernel of the release: one that it refuses is no failed
    start, so nothing would lead back. Raises ReleaseInvalid."""
    kernel = folder / release.kernel.name
    command = ["sbverify", "--cert", str(FIRMWARE_KEY), str(kernel)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode != 0:
        text = "is not signed by the key that the firmware has from this image; it would not start"
        raise ReleaseInvalid([_problem(kernel.name, "", text)])


def install(release: Release, machine: Machine, program: str = SYSUPDATE) -> None:
    """Write the release into the slot that is not in use; the next start tries it. Raises OperatorError."""
    entry = machine.entry(release.version)
    if entry is not None:  # it is here already: was tried in vain, or was led back from
        set_tries(machine.folder, entry, TRIES)
        return
    command = [program, "update", release.version]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=3600)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise OperatorError(f"systemd-sysupdate ended with status {done.returncode}: {said}")


def clear(folder: Path) -> None:
    """Remove what an installed update leaves. Raises OSError."""
    for path in [*folder.glob("*.*"), *(folder / "spool").glob("*")]:
        path.unlink()


def free_bytes(folder: Path) -> int:
    """What is free where a release comes to, with what lies there already. Raises OSError."""
    found = os.statvfs(folder)
    here = {path.stat().st_ino: path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()}
    return found.f_bavail * found.f_frsize + sum(here.values())


def _is_another(release: Release, machine: Machine) -> bool:
    """Whether an image of that version is here, and is not this one."""
    entry = machine.entry(release.version)
    return entry is not None and digests_of_file(machine.folder / entry.file).digest != release.kernel.stream


def _paced(rate_bytes_per_s: int) -> Allowed:
    """What lets so many bytes go in a second; 0: any number."""

    async def allowed(size: int) -> None:
        if rate_bytes_per_s:
            await asyncio.sleep(size / rate_bytes_per_s)

    return allowed


def _sum(told: Told, before: int, total: int, here: int, _of: int) -> None:
    told(before + here, total)


def _kind(name: str) -> str:
    if name.endswith(".efi"):
        return "kernel"
    return "root-verity" if "-verity." in name else "root"


def _problem(file: str, key: str, text: str) -> Problem:
    return Problem(file=file, key=key, text=text)
