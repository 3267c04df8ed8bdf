"""The Debian package: the product's tree, what dpkg is told of it, and what runs when it is installed.

The same sources give the same bytes. ``python -m packages.deb WHEELS OUT PROCESSOR...``: one for each processor.
"""

from __future__ import annotations

import re
import shutil
import sys
import tempfile
from collections.abc import Container
from email.utils import formatdate
from pathlib import Path
from typing import Final

from packages.archive import MAINTAINER, Archive, Compression, add_papers, compress
from packages.processor import architecture
from packages.tree import HOME, ROOT, epoch, lay_out, version

NAME: Final = "edge-appliance"
OURS: Final = ROOT / "packages/debian"
LEFT_OUT: Final = ("ARM-TESTS.md", "BENCHMARKS.md", "IMAGE-TESTS.md")
"""Records of measurements, which nobody needs at a site."""
EXAMPLES: Final = (ROOT / "systemd/gpu/appliance-gpu.conf",)
LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)#\s]*)(#[^)\s]*)?\)")
SCRIPTS: Final = ("postinst", "prerm", "postrm")


def build(wheels: Path, out: Path, processor: str) -> Path:
    """Make the package for a processor in the folder ``out``; gives its path. Raises LookupError for another processor
    than the wheels are of, or than Debian's names are known for."""
    called = architecture(processor)
    with tempfile.TemporaryDirectory(prefix="edge-appliance-") as place:
        root = Path(place) / "root"
        lay_out(root, wheels, processor)
        _document(root)
        return _archive(called).write(root, out)


def _document(root: Path) -> None:
    """What Debian asks of each package, and the pages that an operator needs where there is no network."""
    head = f"{NAME} ({version()}) unstable; urgency=medium"
    when = formatdate(epoch())
    doc = add_papers(
        root, NAME, OURS, f"{head}\n\n  * What is new: CHANGELOG.md.gz.\n\n -- {MAINTAINER}  {when}\n"
    )
    compress(ROOT / "CHANGELOG.md", doc / "CHANGELOG.md.gz")
    pages = {path.name: path for path in (ROOT / "docs").glob("*.md") if path.name not in LEFT_OUT}
    for name, path in pages.items():
        (doc / name).write_text(without_dead_links(path.read_text(), pages))
    (doc / "examples").mkdir()
    for example in EXAMPLES:
        shutil.copyfile(example, doc / "examples" / example.name)


def without_dead_links(text: str, pages: Container[str]) -> str:
    """A page as it is where no others are than ``pages``: what leads elsewhere in the sources is its words alone."""

    def link(found: re.Match[str]) -> str:
        words, target, place = found.groups()
        there = not target or target in pages or "://" in target or target.startswith("mailto:")
        example = next((each.name for each in EXAMPLES if target.endswith(f"/{each.name}")), None)
        if example is not None:
            return f"[{words}](examples/{example})"
        return f"[{words}]({target}{place or ''})" if there else words

    return LINK.sub(link, text)


def _archive(called: str) -> Archive:
    scripts = {name: (OURS / name).read_text().replace("@HOME@", f"/{HOME}") for name in SCRIPTS}
    return Archive(
        name=NAME, version=version(), control=(OURS / "control").read_text(), when=epoch(), scripts=scripts,
        conffiles=("/etc/appliance/appliance.toml",), compression=Compression(level=12, threads=2),
        architecture=called,
    )  # fmt: skip


if __name__ == "__main__":
    for each in sys.argv[3:]:
        print(build(Path(sys.argv[1]), Path(sys.argv[2]), each), flush=True)
