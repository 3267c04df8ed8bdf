"""The add-on for a GPU with a stand-in of its runtime: small, made without a network, of no use but to be looked at."""

from __future__ import annotations

from pathlib import Path

from packages import cuda_deb, cuda_runtime
from packages.cuda_deb import SITE, Entry


def stand_in(site: Path, distribution: str, version: str) -> None:
    """What pip leaves of a runtime, without what it runs."""
    papers = site / f"{distribution.replace('-', '_')}-{version}.dist-info"
    papers.mkdir(parents=True)
    (papers / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: {version}\n")
    (site / "onnxruntime").mkdir()
    for module in ("onnxruntime/__init__.py", "pynvml.py"):
        (site / module).write_text(f"MADE_BY = {distribution!r}\n")
        (site / module).chmod(0o600)


def made(folder: Path, entry: Entry) -> Path:
    """The package, made in a folder."""
    root = folder / "root"
    stand_in(root / SITE, "onnxruntime-gpu", cuda_runtime.releases()[0])
    return cuda_deb.pack(root, entry, folder / "out")
