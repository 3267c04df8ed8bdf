"""The kit's own Rust programs, built from `benchmarks/native` where there is cargo: `load`, `stream` and `echo`.

They are built into the kit's cache folder and built anew when their sources have changed.
"""

import hashlib
import os
import shutil
import subprocess
from pathlib import Path

from benchmarks.cache import ROOT

SOURCES = ROOT / "benchmarks" / "native"
PROGRAMS = ("echo", "load", "stream")


def sources_digest() -> str:
    """Names what a build was made from."""
    files = [SOURCES / "Cargo.toml", SOURCES / "Cargo.lock", *sorted((SOURCES / "src").rglob("*.rs"))]
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.relative_to(SOURCES).as_posix().encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def build(folder: Path) -> None:
    """Build the programs into `folder`. Raises RuntimeError without cargo, CalledProcessError when it fails."""
    if shutil.which("cargo") is None:
        raise RuntimeError("Rust's cargo is not on the PATH (https://rustup.rs)")
    target = folder / "target"
    command = ["cargo", "build", "--release", "--locked", "--quiet"]
    arguments = ["--manifest-path", str(SOURCES / "Cargo.toml"), "--target-dir", str(target)]
    subprocess.run([*command, *arguments], check=True)
    for program in PROGRAMS:
        fresh = folder / f"{program}.new"
        shutil.copy2(target / "release" / program, fresh)
        os.replace(fresh, folder / program)
