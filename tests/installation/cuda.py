"""The add-on for a GPU on a Debian 13 without one: part of ``make units-test``, where dist/ has it.

It shows what can be seen without a device: which runtime answers, what is said to a model for a GPU, and that either
package comes, is upgraded and goes without the other. Nothing here ran on a GPU.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from packages.processor import newest
from tests.installation.machine import PYTHON, ROOT, Machine, journal_of, machine, play, until

ADD_ON: Final = "/srv/cuda.deb"
NEWER: Final = "/srv/newer.deb"
PICTURE: Final = "/usr/share/edge-appliance/models/digits/golden/3-0539.png"
PROVIDERS: Final = "import onnxruntime as o; print(o.__version__, o.__file__, *o.get_available_providers())"
GROUP: Final = "instance_group [ { kind: KIND_GPU } ]"
NO_DRIVER: Final = "asks for device 'cuda', but there is no NVIDIA driver here; docs/GPU.md"
PLACE: Final = "/usr/lib/edge-appliance-cuda"


def answers_by(box: Machine, distribution: str) -> str:
    """Demand an answer, by the runtime of that ``distribution`` alone; gives what Python finds."""
    assert "three" in box.do("appliance", "infer", "digits", "--input", f"image=@{PICTURE}", "--json")
    said = box.do("appliance", "version", "--all")
    found = re.findall(r"^(onnxruntime\S*) (\S+)$", said, re.MULTILINE)
    assert [name for name, _ in found] == [distribution], said
    imported = box.do(PYTHON, "-P", "-c", PROVIDERS)
    assert imported.split()[0] == found[0][1], (imported, said)
    assert "a runtime is installed twice" not in journal_of(box, "appliance")
    return imported


def changes(box: Machine, *command: str) -> None:
    """Run a command that has to start the daemon anew by itself."""
    before = box.shown("MainPID")
    begun = time.monotonic()
    box.do(*command)
    print(f"   {' '.join(command[:2])}: {time.monotonic() - begun:.1f} s")
    until("it serves", lambda: box.do("systemctl", "is-active", "appliance", check=False) == "active")
    assert box.shown("MainPID") not in (before, "0")


def the_product_alone_answers_by_its_own_runtime(box: Machine) -> None:
    box.do("dpkg", "-i", "/srv/package.deb")
    box.do("systemctl", "start", "appliance")
    assert "CUDAExecutionProvider" not in answers_by(box, "onnxruntime")


def the_add_on_goes_before_it(box: Machine) -> None:
    changes(box, "dpkg", "-i", ADD_ON)
    imported = answers_by(box, "onnxruntime-gpu")
    print("  ", imported)
    assert "CUDAExecutionProvider" in imported
    assert f" {PLACE}/" in imported
    assert box.shown("PrivateDevices") == "no"
    assert "there is no NVIDIA device" in journal_of(box, "appliance-gpu")


def a_model_for_a_gpu_is_refused_with_the_reason(box: Machine) -> None:
    """No driver is here; what is for the processor goes on."""
    models = "/usr/share/edge-appliance/models"
    box.do("cp", "-r", f"{models}/digits", f"{models}/digits_gpu")
    for edit in ('s/^name: .*/name: "digits_gpu"/', f"$a {GROUP}"):
        box.do("sed", "-i", edit, f"{models}/digits_gpu/config.pbtxt")
    box.do("systemctl", "reload", "appliance")

    def refused() -> list[str]:
        told = json.loads(box.do("appliance", "status", "--json"))["models"]
        return [each["reason"] for each in told if each["name"] == "digits_gpu" and each.get("reason")]

    until("it is refused", refused)
    for reason in refused():
        print("  ", reason)
        assert NO_DRIVER in reason, reason
    assert "CUDAExecutionProvider" in answers_by(box, "onnxruntime-gpu")
    box.do("rm", "-r", f"{models}/digits_gpu")
    box.do("systemctl", "reload", "appliance")


def an_upgrade_of_the_product_leaves_it(box: Machine) -> None:
    changes(box, "dpkg", "-i", NEWER)
    assert version_of(box, "edge-appliance") == "9.9.9"
    answers_by(box, "onnxruntime-gpu")
    changes(box, "dpkg", "-i", "/srv/package.deb")
    answers_by(box, "onnxruntime-gpu")


def the_product_is_not_removed_from_below_it(box: Machine) -> None:
    said = subprocess.run(
        [*box.enter, "dpkg", "--remove", "edge-appliance"], capture_output=True, text=True, check=False
    )
    assert said.returncode != 0
    assert "edge-appliance-cuda depends on edge-appliance" in said.stderr


def without_it_the_products_own_is_back(box: Machine) -> None:
    changes(box, "dpkg", "--purge", "edge-appliance-cuda")
    assert "CUDAExecutionProvider" not in answers_by(box, "onnxruntime")
    assert box.do("find", PLACE, check=False) == "", "nothing of it is left"
    assert box.shown("PrivateDevices") == "yes"


def both_come_at_once_in_the_other_order(box: Machine) -> None:
    box.do("dpkg", "--purge", "edge-appliance")
    box.do("dpkg", "-i", ADD_ON, "/srv/package.deb")
    box.do("systemctl", "start", "appliance")
    answers_by(box, "onnxruntime-gpu")
    box.do("dpkg", "--purge", "edge-appliance-cuda", "edge-appliance")
    assert box.do("find", PLACE, "/usr/lib/edge-appliance", check=False) == ""


def version_of(box: Machine, package: str) -> str:
    """The release that dpkg has of a package."""
    return box.do("dpkg-query", "--show", "--showformat=${Version}", package)


CHECKS: Final = (
    the_product_alone_answers_by_its_own_runtime,
    the_add_on_goes_before_it,
    a_model_for_a_gpu_is_refused_with_the_reason,
    an_upgrade_of_the_product_leaves_it,
    the_product_is_not_removed_from_below_it,
    without_it_the_products_own_is_back,
    both_come_at_once_in_the_other_order,
)


def newer(package: Path, folder: Path) -> Path:
    """The product's package as a later version, made in a folder."""
    tree, target = folder / "tree", folder / "newer.deb"
    subprocess.run(["dpkg-deb", "-R", str(package), str(tree)], check=True)
    control = tree / "DEBIAN/control"
    control.write_text(re.sub(r"(?m)^Version: .*$", "Version: 9.9.9", control.read_text()))
    subprocess.run(["dpkg-deb", "-Znone", "-b", str(tree), str(target)], check=True, capture_output=True)
    shutil.rmtree(tree)
    return target


def main() -> int:
    """Run them all; 0 when all hold."""
    product, add_on = newest(ROOT / "dist"), newest(ROOT / "dist", "edge-appliance-cuda")
    if os.geteuid() != 0 or shutil.which("mmdebstrap") is None or product is None or add_on is None:
        print("this takes root, mmdebstrap, and the packages that 'make deb cuda-deb' makes", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(1))
    with tempfile.TemporaryDirectory(prefix="cuda-test-") as place:
        files = {"cuda.deb": add_on, "newer.deb": newer(product, Path(place))}
        return played(product, files)


def played(product: Path, files: dict[str, Path]) -> int:
    """What came of all checks, on a machine that has these files."""
    with machine(product, name="cuda-test-", files=files) as box:
        box.do("sh", "-c", "echo force-unsafe-io >/etc/dpkg/dpkg.cfg.d/fast")
        print(f"   {files['cuda.deb'].name}: {files['cuda.deb'].stat().st_size:,} bytes")
        play(CHECKS, box)
    return 0


if __name__ == "__main__":
    sys.exit(main())
