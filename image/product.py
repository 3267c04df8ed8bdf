"""The product as it lies in the image's root: what the Debian package installs, without its pages.

The variant for a GPU has another build of ONNX Runtime in the place of the package's, and CUDA's libraries with it:
what the package edge-appliance-cuda brings, without the product's own runtime beside it, which nothing would load.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from appliance.runtimes.distributions import DISTRIBUTIONS
from image.place import ROOT, Place, processor_of
from packages import cuda_runtime
from packages.processor import architecture, newest
from packages.tree import SITE, epoch, settle

LEFT_OUT: Final = ("usr/share/doc", "usr/share/lintian")


def lay_out(place: Place, variant: str) -> None:
    """Make the tree ``product`` in the build's folder anew. Ends the build where there is no package."""
    processor = processor_of(place.architecture)
    found = newest(ROOT / "dist", processor=processor)
    if found is None:
        raise SystemExit(
            f"make: there is no Debian package for {architecture(processor)} in dist/; 'make image' makes it first"
        )
    tree = place.folder / "product"
    shutil.rmtree(tree, ignore_errors=True)
    print(f"make: laying out the product of {found.name}", flush=True)
    subprocess.run(["dpkg-deb", "-x", str(found), str(tree)], check=True)
    if not (tree / SITE).is_dir():
        raise SystemExit(f"make: {found} is not of Debian 13's Python: it has no {SITE}")
    for each in LEFT_OUT:
        shutil.rmtree(tree / each)
    if variant == "gpu":
        _lay_out_runtime(place)
        _drop_runtime(tree)
        cuda_runtime.lay_out_devices(tree)


def distributions(place: Place, variant: str) -> list[Path]:
    """Where the Python packages of the product lie."""
    trees = ("product", "runtime") if variant == "gpu" else ("product",)
    return [place.folder / each / SITE for each in trees]


def _lay_out_runtime(place: Place) -> None:
    """Make the tree ``runtime`` where what is there is not of this lock file: it is three gigabytes."""
    tree, stamp = place.folder / "runtime", place.folder / "runtime.made-of"
    made_of = cuda_runtime.made_of()
    if stamp.exists() and stamp.read_text() == made_of:
        return
    stamp.unlink(missing_ok=True)
    shutil.rmtree(tree, ignore_errors=True)
    (tree / SITE).mkdir(parents=True)
    print("make: installing the runtime for a GPU (two gigabytes to fetch)", flush=True)
    cuda_runtime.lay_out(tree / SITE)
    settle(tree, epoch())
    stamp.write_text(made_of)


def _drop_runtime(tree: Path) -> None:
    """Two distributions of the runtime in one folder would spoil each other, so that of the package goes."""
    for name in DISTRIBUTIONS["onnx"]:
        for papers in (tree / SITE).glob(f"{name.replace('-', '_')}-*.dist-info"):
            shutil.rmtree(papers)
    shutil.rmtree(tree / SITE / "onnxruntime")
