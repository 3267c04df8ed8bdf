"""The Debian package: the product's tree, what dpkg is told of it, and what runs when it is installed.

Made by ``dpkg-deb`` alone, without root; the same sources give the same bytes. ``python -m packages.deb WHEELS OUT``.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Container
from email.utils import formatdate
from pathlib import Path
from typing import Final

from packages.tree import HOME, ROOT, epoch, files, lay_out, settle_times, version

NAME: Final = "edge-appliance"
MAINTAINER: Final = "Edge appliance maintainers <maintainers@edge-appliance.invalid>"
OURS: Final = ROOT / "packages/debian"
DOC: Final = Path("usr/share/doc/edge-appliance")
LEFT_OUT: Final = ("BENCHMARKS.md", "IMAGE-TESTS.md")
"""Records of measurements, which nobody needs at a site."""
EXAMPLES: Final = (ROOT / "systemd/appliance-gpu.conf",)
LINK: Final = re.compile(r"\[([^\]]+)\]\(([^)#\s]*)(#[^)\s]*)?\)")
SCRIPTS: Final = ("postinst", "prerm", "postrm")


def build(wheels: Path, out: Path) -> Path:
    """Make the package in the folder ``out``; gives its path."""
    with tempfile.TemporaryDirectory(prefix="edge-appliance-") as place:
        root = Path(place) / "root"
        lay_out(root, wheels)
        _document(root)
        _control(root)
        made = out / f"{NAME}_{version()}_amd64.deb"
        out.mkdir(parents=True, exist_ok=True)
        environment = {**os.environ, "SOURCE_DATE_EPOCH": str(epoch())}
        command = ["dpkg-deb", "--root-owner-group", "-Zzstd", "-z12", "--build", str(root), str(made)]
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL)
    return made


def _document(root: Path) -> None:
    """What Debian asks of each package, and the pages that an operator needs where there is no network."""
    doc = root / DOC
    doc.mkdir(parents=True)
    _zip(ROOT / "CHANGELOG.md", doc / "CHANGELOG.md.gz")
    when = formatdate(epoch())
    head = f"{NAME} ({version()}) unstable; urgency=medium"
    entry = f"{head}\n\n  * What is new: CHANGELOG.md.gz.\n\n -- {MAINTAINER}  {when}\n"
    (doc / "changelog").write_text(entry)
    _zip(doc / "changelog", doc / "changelog.gz")
    (doc / "changelog").unlink()
    (doc / "copyright").write_bytes((OURS / "copyright").read_bytes())
    pages = {path.name: path for path in (ROOT / "docs").glob("*.md") if path.name not in LEFT_OUT}
    for name, path in pages.items():
        (doc / name).write_text(without_dead_links(path.read_text(), pages))
    (doc / "examples").mkdir()
    for example in EXAMPLES:
        shutil.copyfile(example, doc / "examples" / example.name)
    overrides = root / f"usr/share/lintian/overrides/{NAME}"
    overrides.parent.mkdir(parents=True)
    overrides.write_bytes((OURS / "lintian-overrides").read_bytes())


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


def _zip(source: Path, target: Path) -> None:
    done = subprocess.run(["gzip", "-9nc", str(source)], check=True, capture_output=True)
    target.write_bytes(done.stdout)


def _control(root: Path) -> None:
    """The folder DEBIAN, with sums of all files."""
    settle_times(root)
    sizes = sum((path.lstat().st_size + 1023) // 1024 for path in files(root) if not path.is_dir())
    sums = [
        f"{_md5(path)}  {path.relative_to(root)}\n"
        for path in files(root)
        if _is_file(path) and not _is_conffile(path)
    ]
    control = root / "DEBIAN"
    control.mkdir()
    told = (OURS / "control").read_text().replace("@VERSION@", version()).replace("@SIZE@", str(sizes))
    (control / "control").write_text(told)
    (control / "conffiles").write_text("/etc/appliance/appliance.toml\n")
    (control / "md5sums").write_text("".join(sums))
    for name in SCRIPTS:
        (control / name).write_text((OURS / name).read_text().replace("@HOME@", f"/{HOME}"))
        (control / name).chmod(0o755)
    control.chmod(0o755)


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()


def _is_conffile(path: Path) -> bool:
    return path.parent.name == "appliance" and path.parent.parent.name == "etc"


def _md5(path: Path) -> str:
    return hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()


if __name__ == "__main__":
    print(build(Path(sys.argv[1]), Path(sys.argv[2])))
