"""The product as it lies in the image's root: what the Debian package installs, without its pages."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Final

from image.place import ROOT, Place
from packages.tree import SITE

LEFT_OUT: Final = ("usr/share/doc", "usr/share/lintian")


def lay_out(place: Place) -> None:
    """Make the tree ``product`` in the build's folder anew. Ends the build where there is no package."""
    found = sorted((ROOT / "dist").glob("edge-appliance_*_amd64.deb"))
    if not found:
        raise SystemExit("make: there is no Debian package in dist/; 'make image' makes it first")
    tree = place.folder / "product"
    shutil.rmtree(tree, ignore_errors=True)
    print(f"make: laying out the product of {found[-1].name}", flush=True)
    subprocess.run(["dpkg-deb", "-x", str(found[-1]), str(tree)], check=True)
    if not (tree / SITE).is_dir():
        raise SystemExit(f"make: {found[-1]} is not of Debian 13's Python: it has no {SITE}")
    for each in LEFT_OUT:
        shutil.rmtree(tree / each)


def distributions(place: Place) -> Path:
    """Where the Python packages of the product lie."""
    return place.folder / "product" / SITE
