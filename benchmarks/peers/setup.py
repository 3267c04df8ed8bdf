"""Install the peers, outside the repository: `python -m benchmarks.peers.setup [NAME ...]`.

Everything goes under the kit's cache folder, each peer in a folder of its own, so that no package of theirs meets ours.
Triton needs Debian's libb64-0d only for perf_analyzer; the command says so when it is absent. Running it again does
nothing for what is already there; delete a folder to have it made anew. `native` is not a peer but the kit's own load
generator and echo server, and is made anew when its sources change; `lg` is another load generator, whose source lies
beside the repository where there is one.
"""

import argparse
import subprocess
import sys
import venv
import zipfile
from collections.abc import Callable
from pathlib import Path

from rich.console import Console

from benchmarks.cache import ROOT, cache_directory
from benchmarks.environment import package_version
from benchmarks.peers import native
from benchmarks.peers.triton import python_library_folder

TRITON_WHEEL = "nvidia-pytriton==0.7.0"
PERF_ANALYZER_WHEEL = "tritonclient==2.51.0"
CUDA_RUNTIME_WHEEL = "nvidia-cuda-runtime-cu12"
MLSERVER = "mlserver>=1.7.1,<2"
B64_LIBRARY = "libb64.so.0d"
LG_BUILD = ROOT.parent / "shared" / "tools" / "lg" / "build.sh"
DONE_MARK = "installed"


def install_folder(name: str) -> Path:
    """Where a peer is installed, whether it is there or not."""
    return cache_directory() / name


def installed(name: str) -> bool:
    """Whether the peer's installation was completed, and from the sources of today."""
    mark = install_folder(name) / DONE_MARK
    return mark.exists() and mark.read_text() == _made_from(name)


def _made_from(name: str) -> str:
    return native.sources_digest() if name == "native" else ""


def missing(name: str) -> str | None:
    """Why the peer cannot run here, or None."""
    command = f"python -m benchmarks.peers.setup {name}"
    return None if installed(name) else f"{name} is not installed: run `{command}`"


def _pip(*arguments: str, python: str = sys.executable) -> None:
    subprocess.run(
        [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *arguments], check=True
    )


def _same_runtime() -> list[str]:
    """The runtime of this environment, so that every server runs the same kernels."""
    return [f"onnxruntime=={package_version('onnxruntime')}", f"numpy=={package_version('numpy')}"]


def _triton(folder: Path) -> None:
    if python_library_folder() is None:
        raise RuntimeError(
            "this Python has no shared libpython, which Triton's Python backend links; use one that has"
        )
    _pip("--no-deps", "--target", str(folder), TRITON_WHEEL)
    _pip("--target", str(folder / "python"), *_same_runtime())


def _mlserver(folder: Path) -> None:
    venv.create(folder, with_pip=True)
    _pip(MLSERVER, *_same_runtime(), python=str(folder / "bin" / "python"))


def _perf_analyzer(folder: Path) -> None:
    wheels = folder / "wheels"
    download = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "-d", str(wheels)]
    subprocess.run([*download, PERF_ANALYZER_WHEEL, CUDA_RUNTIME_WHEEL], check=True)
    for wheel in wheels.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            wanted = [
                n for n in archive.namelist() if n.endswith("bin/perf_analyzer") or "/lib/libcudart.so" in n
            ]
            for name in wanted:
                (folder / Path(name).name).write_bytes(archive.read(name))
    (folder / "perf_analyzer").chmod(0o755)


def _lg(folder: Path) -> None:
    if not LG_BUILD.exists():
        raise RuntimeError(
            f"its source is not here: {LG_BUILD.relative_to(ROOT.parent)} beside the repository"
        )
    subprocess.run(["sh", str(LG_BUILD), str(folder / "lg")], check=True)


INSTALLERS: dict[str, Callable[[Path], None]] = {
    "triton": _triton,
    "mlserver": _mlserver,
    "perf_analyzer": _perf_analyzer,
    "native": native.build,
    "lg": _lg,
}


def install(name: str, console: Console) -> bool:
    """Install one peer; says what failed and returns False instead of raising."""
    folder = install_folder(name)
    if installed(name):
        console.print(f"[green]{name}[/] is installed in {folder}")
        return True
    folder.mkdir(parents=True, exist_ok=True)
    with console.status(f"installing {name} into {folder}"):
        try:
            INSTALLERS[name](folder)
        except (subprocess.CalledProcessError, OSError, RuntimeError) as problem:
            console.print(f"[red]{name}[/] could not be installed: {problem}")
            return False
    (folder / DONE_MARK).write_text(_made_from(name))
    console.print(f"[green]{name}[/] installed in {folder}")
    return True


def main() -> int:
    """Command line entry; status 1 when something could not be installed."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers.setup", description=__doc__)
    parser.add_argument("names", nargs="*", help="peers to install (default: all)")
    console = Console()
    results = [install(name, console) for name in parser.parse_args().names or INSTALLERS]
    if not any(folder.glob(f"*/{B64_LIBRARY}") for folder in (Path("/lib"), Path("/usr/lib"))):
        console.print("perf_analyzer needs libb64: apt-get install libb64-0d")
    return 0 if all(results) else 1


if __name__ == "__main__":
    raise SystemExit(main())
