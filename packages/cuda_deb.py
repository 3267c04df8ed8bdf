"""The add-on for a GPU as a Debian package: ONNX Runtime for CUDA in a folder that Python looks into first.

It is larger than all else and changes with its runtime alone, so it has a version, a changelog and a time of its own,
and the same bytes until one of them is another. What it lays beside the product's packages is one file, by which Python
finds its folder first; without that file the product's own runtime is found again. ``python -m packages.cuda_deb OUT``.
"""

from __future__ import annotations

import hashlib
import re
import sys
import tempfile
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Final

from packages import cuda_runtime, tree
from packages.archive import Archive, Compression, add_papers, sha256_of
from packages.cuda_runtime import HOME, LOCK
from packages.tree import RELEASE, ROOT

NAME: Final = "edge-appliance-cuda"
OURS: Final = ROOT / "packages/debian-cuda"
CHANGELOG: Final = OURS / "changelog"
SCRIPTS: Final = ("postinst", "prerm", "postrm")
SITE: Final = HOME / f"lib/python{RELEASE}/site-packages"
ORDER_FILE: Final = tree.SITE / f"{NAME}.pth"
ORDER: Final = (
    "import sys; own = '/lib/python%d.%d/site-packages' % sys.version_info[:2]; "
    "(new := sys.prefix + '-cuda' + own) in sys.path or sys.path.insert(sys.path.index(sys.prefix + own), new)\n"
)
"""Python runs the line when it starts, twice in an environment: once the product's packages are on its path, before it
looks for any."""
_COMPRESSION: Final = Compression(level=9, threads=2)
"""Level 12 takes more than twice as long, and saves half a percent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """The newest entry of the changelog: which version, made of what, when (in seconds since 1970)."""

    version: str
    made_of: str
    when: int


def build(out: Path) -> Path:
    """Make the package in the folder ``out``, with its bill and licences beside it; gives its path. Takes gigabytes
    there meanwhile. Raises CalledProcessError where the runtime cannot be had, LookupError where the changelog tells
    of another."""
    from packages import bill  # by what only the environment that packs has

    entry = newest()
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=NAME, dir=out) as place:
        root = Path(place) / "root"
        (root / SITE).mkdir(parents=True)
        cuda_runtime.lay_out(root / SITE)
        made = pack(root, entry, out)
        product = bill.Product(name=NAME, version=entry.version, lock=LOCK, when=entry.when)
        bill.write(made, root / SITE, sha256_of(made), product=product)
    return made


def pack(root: Path, entry: Entry, out: Path) -> Path:
    """Make the package of what lies below ``root``, where the runtime is in its folder already; gives its path."""
    (root / ORDER_FILE).parent.mkdir(parents=True)
    (root / ORDER_FILE).write_text(ORDER)
    cuda_runtime.lay_out_devices(root)
    add_papers(root, NAME, OURS, CHANGELOG.read_text(), called="changelog.Debian")
    tree.settle(root, entry.when, executables=HOME)
    archive = Archive(
        name=NAME, version=entry.version, control=(OURS / "control").read_text(), when=entry.when,
        scripts={name: (OURS / name).read_text().replace("@HOME@", f"/{HOME}") for name in SCRIPTS},
        compression=_COMPRESSION,
    )  # fmt: skip
    return archive.write(root, out)


def newest() -> Entry:
    """The changelog's first entry. Raises LookupError where it is not of what the package would be made of now."""
    said = CHANGELOG.read_text().partition("\n -- ")
    version = re.match(rf"{NAME} \(([^)]+)\) ", said[0])
    told = re.search(r"^  \* Made of ([0-9a-f]{16})\.$", said[0], re.MULTILINE)
    signed = re.match(r"[^<\n]+<[^>\n]+>  (.+)\n", said[2])
    if version is None or told is None or signed is None:
        raise LookupError(f"{CHANGELOG} does not begin with a version, 'Made of DIGEST' and a signature")
    runtime, cuda = cuda_runtime.releases()
    release = f"{runtime}+cuda{cuda}"
    if told[1] != made_of() or not version[1].startswith(f"{release}-"):
        raise LookupError(
            f"{CHANGELOG} tells of {version[1]}, made of {told[1]}, not of what is packed now: put an entry before it "
            f"with a version that is higher, beginning with {release}-, and 'Made of {made_of()}.'"
        )
    return Entry(version=version[1], made_of=told[1], when=int(parsedate_to_datetime(signed[1]).timestamp()))


def made_of() -> str:
    """The digest of all that says what is in the package, but for its changelog."""
    digest = hashlib.sha256(f"{cuda_runtime.made_of()} {ORDER}".encode())
    for path in sorted(OURS.iterdir()):
        if path != CHANGELOG:
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


if __name__ == "__main__":
    print(f"make: {build(Path(sys.argv[1]))}")
