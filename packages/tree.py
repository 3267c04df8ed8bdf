"""The product as it lies below a root: an environment of its own for Debian 13's Python, units, an example.

Nothing of the machine that builds it gets in: wheels are chosen for the Python of the target by the lock file's
digests, files have the modes and times that are said here, and sources are compiled where they are installed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from packages.processor import X86

ROOT: Final = Path(__file__).resolve().parents[1]
RELEASE: Final = "3.13"
"""Of Python in Debian 13."""
GLIBC_MAX: Final = 41
"""Minor release of the C library of Debian 13; wheels that need a newer one are not taken."""
HOME: Final = Path("usr/lib/edge-appliance")
SITE: Final = HOME / f"lib/python{RELEASE}/site-packages"
SHARE: Final = Path("usr/share/edge-appliance")
UNITS: Final = Path("usr/lib/systemd/system")
ENTRY: Final = f"""\
#!/{HOME}/bin/python
import sys

from appliance.cli.main import main

sys.exit(main())
"""
ENVIRONMENT: Final = f"home = /usr/bin\ninclude-system-site-packages = false\nversion = {RELEASE}\n"
UNUSED: Final = (
    "**/.gitignore",
    "securesystemslib/_vendor/*.sh",
    "*/tests",
    "numpy/*/tests",
    "onnxruntime/tools",
    "onnxruntime/quantization",
    "onnxruntime/transformers",
)
"""What is never imported where a box serves, a fifth of it all."""


def lay_out(root: Path, wheels: Path, processor: str) -> None:
    """Make the tree below ``root``, which is not there yet, of the wheels in a folder, for one of the processors that
    they are of. Raises CalledProcessError where what the lock file names cannot be had, and LookupError where there are
    no wheels."""
    (root / SITE).mkdir(parents=True)
    install(root / SITE, ["--require-hashes", "-r", str(ROOT / "requirements.lock")], processor)
    ours = [
        str(_wheel(wheels, pattern))
        for pattern in ("edge_appliance-*", f"edge_appliance_native-*{processor}")
    ]
    install(root / SITE, ["--no-index", *ours], processor)
    leave_out(root / SITE, UNUSED)
    _command(root)
    _units(root)
    _write(root / "etc/appliance/appliance.toml", (ROOT / "packages/debian/appliance.toml").read_bytes())
    shutil.copytree(ROOT / "models/digits", root / SHARE / "models/digits")
    settle(root, epoch())


def install(site: Path, what: list[str], processor: str = X86) -> None:
    """Into the folder ``site``, with pip, for another Python than the one that runs this, and maybe another processor.
    Raises CalledProcessError."""
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input", "install"]
    where = ["--target", str(site), "--upgrade", "--no-deps", "--no-compile", "--only-binary=:all:"]
    target = ["--python-version", RELEASE, "--implementation", "cp"]
    names = [f"manylinux_2_{minor}" for minor in range(GLIBC_MAX, 4, -1)] + [
        "manylinux2014",
        "manylinux2010",
        "linux",
    ]
    platforms = [f"--platform={name}_{processor}" for name in names]
    subprocess.run([*pip, *where, *target, *platforms, *what], check=True, stdin=subprocess.DEVNULL)


def leave_out(site: Path, patterns: Iterable[str]) -> None:
    """Remove from the Python packages in the folder ``site`` what the patterns name, and commands of theirs."""
    for pattern in ("bin", *patterns):
        for found in site.glob(pattern):
            shutil.rmtree(found) if found.is_dir() else found.unlink()


def files(root: Path) -> Iterator[Path]:
    """Everything below ``root``, parents first, in an order that is always the same."""
    for place, directories, names in os.walk(root):
        directories.sort()
        links = [each for each in directories if Path(place, each).is_symlink()]
        yield from (Path(place, each) for each in directories)
        yield from (Path(place, each) for each in sorted(names))
        for each in links:
            directories.remove(each)


def epoch() -> int:
    """The time that files have: that of the last commit, or what ``SOURCE_DATE_EPOCH`` says."""
    said = os.environ.get("SOURCE_DATE_EPOCH", "")
    if said:
        return int(said)
    asked = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return int(asked.stdout)


def version() -> str:
    """Of the product, as its source says."""
    source = (ROOT / "appliance/__init__.py").read_text()
    return next(line.split('"')[1] for line in source.splitlines() if line.startswith("__version__"))


def _wheel(folder: Path, pattern: str) -> Path:
    found = sorted(folder.glob(f"{pattern}.whl"))
    if len(found) != 1:
        raise LookupError(
            f"there is not one {pattern}.whl in '{folder}' but {len(found)}; 'make wheels' makes them"
        )
    return found[0]


def _command(root: Path) -> None:
    _write(root / HOME / "pyvenv.cfg", ENVIRONMENT.encode())
    (root / HOME / "bin").mkdir()
    (root / HOME / "bin/python").symlink_to("/usr/bin/python3")
    _write(root / HOME / "bin/appliance", ENTRY.encode(), 0o755)
    (root / "usr/bin").mkdir()
    (root / "usr/bin/appliance").symlink_to("../lib/edge-appliance/bin/appliance")


def _units(root: Path) -> None:
    for unit in (*(ROOT / "systemd").glob("*.service"), *(ROOT / "systemd").glob("*.slice")):
        _write(root / UNITS / unit.name, unit.read_bytes())
    for kind in ("sysusers", "tmpfiles"):
        place = root / f"usr/lib/{kind}.d/edge-appliance.conf"
        _write(place, (ROOT / f"systemd/{kind}.conf").read_bytes())


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    path.chmod(mode)


def settle(root: Path, when: int, executables: Path = HOME / "bin") -> None:
    """Modes and times that do not tell who built it; only what lies in one folder needs the right to be executed."""
    for path in files(root):
        if not path.is_symlink():
            executable = path.is_dir() or path.parent == root / executables
            path.chmod(0o755 if executable else 0o644)
    settle_times(root, when)


def settle_times(root: Path, when: int) -> None:
    """Have everything below ``root`` be of one time."""
    for path in (*files(root), root):
        os.utime(path, (when, when), follow_symlinks=False)
