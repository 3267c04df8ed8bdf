"""A Debian archive: what dpkg is told of a tree of files, their sums, and bytes that are the same each time.

Made by ``dpkg-deb`` alone, without root.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from packages.processor import ARCHITECTURES, X86
from packages.tree import files, settle_times

MAINTAINER: Final = "Edge appliance maintainers <maintainers@edge-appliance.invalid>"
DOC: Final = Path("usr/share/doc")
OVERRIDES: Final = Path("usr/share/lintian/overrides")


@dataclass(frozen=True, slots=True, kw_only=True)
class Compression:
    """How ``dpkg-deb`` compresses with zstd. More than one thread gives other bytes than one does."""

    level: int
    threads: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Archive:
    """What is told of the tree: ``control`` with the places @VERSION@, @ARCHITECTURE@ and @SIZE@, the text of each
    script by its name, the paths of conffiles, and ``when`` in seconds since 1970, which all files are of."""

    name: str
    version: str
    control: str
    when: int
    compression: Compression
    scripts: Mapping[str, str] = field(default_factory=dict)
    conffiles: Collection[str] = ()
    architecture: str = ARCHITECTURES[X86]

    @property
    def file_name(self) -> str:
        """What Debian calls such a file."""
        return f"{self.name}_{self.version}_{self.architecture}.deb"

    def write(self, root: Path, out: Path) -> Path:
        """Make the archive of what is below ``root`` in the folder ``out``; gives its path. Leaves the folder DEBIAN in
        the tree. Raises CalledProcessError."""
        self._tell(root)
        made = out / self.file_name
        out.mkdir(parents=True, exist_ok=True)
        compression = (
            f"--threads-max={self.compression.threads}",
            "-Zzstd",
            f"-z{self.compression.level}",
        )
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", *compression, "--build", str(root), str(made)], check=True,
            env={**os.environ, "SOURCE_DATE_EPOCH": str(self.when)}, stdout=subprocess.DEVNULL,
        )  # fmt: skip
        return made

    def _tell(self, root: Path) -> None:
        sizes = sum((path.lstat().st_size + 1023) // 1024 for path in files(root) if not path.is_dir())
        sums = [
            f"{md5_of(path)}  {path.relative_to(root)}\n"
            for path in files(root)
            if _is_file(path) and f"/{path.relative_to(root)}" not in self.conffiles
        ]
        control = root / "DEBIAN"
        control.mkdir()
        told = self.control.replace("@VERSION@", self.version).replace("@SIZE@", str(sizes))
        told = told.replace("@ARCHITECTURE@", self.architecture)
        (control / "control").write_text(told)
        if self.conffiles:
            (control / "conffiles").write_text("".join(f"{path}\n" for path in self.conffiles))
        (control / "md5sums").write_text("".join(sums))
        for name, text in self.scripts.items():
            (control / name).write_text(text)
            (control / name).chmod(0o755)
        control.chmod(0o755)
        settle_times(root, self.when)  # dpkg-deb has only files that are newer be of that time


def add_papers(root: Path, name: str, ours: Path, changelog: str, called: str = "changelog") -> Path:
    """Lay out what Debian asks of each package, from the folder ``ours`` with ``copyright`` and ``lintian-overrides``;
    gives the folder of its documents. The changelog is ``called`` otherwise where the version has a revision."""
    doc = root / DOC / name
    doc.mkdir(parents=True)
    (doc / called).write_text(changelog)
    compress(doc / called, doc / f"{called}.gz")
    (doc / called).unlink()
    (doc / "copyright").write_bytes((ours / "copyright").read_bytes())
    overrides = root / OVERRIDES / name
    overrides.parent.mkdir(parents=True)
    overrides.write_bytes((ours / "lintian-overrides").read_bytes())
    return doc


def compress(source: Path, target: Path) -> None:
    """Write ``source`` as gzip, without its name and time."""
    done = subprocess.run(["gzip", "-9nc", str(source)], check=True, capture_output=True)
    target.write_bytes(done.stdout)


def sha256_of(path: Path) -> str:
    """The digest of a file that need not fit into memory."""
    return _digest(path, "sha256")


def md5_of(path: Path) -> str:
    """The sum by which dpkg knows a file."""
    return _digest(path, "md5")


def _digest(path: Path, kind: str) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.new(kind, usedforsecurity=False)).hexdigest()


def _is_file(path: Path) -> bool:
    return path.is_file() and not path.is_symlink()
