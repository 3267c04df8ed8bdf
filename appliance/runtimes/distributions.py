"""What a runtime is installed as. Learned without importing one.

ONNX Runtime comes as several distributions, one for each kind of device, that put their files in folders of the same
names. Python imports from the first place on its path that has them: what lies in a later one is hidden, and no part of
the runtime. In one and the same place each has lost the files that the other brought later.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from importlib.metadata import distributions
from pathlib import Path
from typing import Final

ONNX_FOR_CUDA: Final = "onnxruntime-gpu"
DISTRIBUTIONS: Final = {
    "onnx": ("onnxruntime", ONNX_FOR_CUDA),
    "tensorrt": ("tensorrt-cu13-bindings", "tensorrt-cu12-bindings"),
}
"""What to ask for the version of a runtime, by its name."""
DEBIAN_HOME: Final = "/usr/lib/edge-appliance"
"""Where the Debian package has the product, with an environment of its own; in images, too, which are made of it."""
DEBIAN_PAPERS: Final = Path("/var/lib/dpkg/info/edge-appliance.list")
"""What says that a package is installed; an image has none."""


def installed(runtime: str) -> dict[str, str]:
    """The versions of the distributions that ``runtime`` is imported from, by their names."""
    names = DISTRIBUTIONS.get(runtime, (runtime,))
    return next((found for place in sys.path if (found := _lying_in(place, names))), {})


def clash(runtime: str) -> str:
    """Why it cannot be known what ``runtime`` can do here, and what to do; "" where one distribution is installed."""
    found = installed(runtime)
    if len(found) < 2:
        return ""
    named = " and ".join(f"{name} {release}" for name, release in found.items())
    return (
        f"{named} are both installed and share one folder, so that devices may be missing and versions mixed; "
        f"uninstall both ('pip uninstall -y {' '.join(found)}'), then install the one for this machine's device"
    )


def cuda_problem() -> str:
    """Why ONNX Runtime as it is installed can use no GPU; "" where it brings CUDA's provider."""
    if reason := clash("onnx"):
        return reason
    return "" if ONNX_FOR_CUDA in installed("onnx") else f"{ONNX_FOR_CUDA} is not installed"


def cuda_remedy(home: str = sys.prefix, papers: Path = DEBIAN_PAPERS) -> str:
    """How a runtime for CUDA is had where the product runs from ``home``: what Debian's package brought is not for pip
    to change. A clash says by itself what to do."""
    if reason := clash("onnx"):
        return reason
    if home != DEBIAN_HOME:
        return f"install {ONNX_FOR_CUDA} in its place (docs/GPU.md) and start the appliance anew"
    if papers.exists():
        return "'apt install edge-appliance-cuda' brings one (docs/GPU.md), and starts the appliance anew"
    return "the variant gpu of the image has one (image/README.md)"


def _lying_in(place: str, names: Iterable[str]) -> dict[str, str]:
    return {name: each.version for name in names for each in distributions(name=name, path=[place])}
