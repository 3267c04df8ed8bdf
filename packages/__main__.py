"""``python -m packages WHEELS OUT PROCESSOR...``: a Debian package and an image for each processor, with their
bills and licences beside them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from packages import bill, deb, oci
from packages.archive import sha256_of
from packages.tree import SITE


def main(wheels: Path, out: Path, processors: Sequence[str]) -> int:
    """Make all of them; 1 where no image could be made for want of a tool."""
    (python,) = wheels.glob("edge_appliance-*.whl")
    images = 0
    for processor in processors:
        package = deb.build(wheels, out, processor)
        print(f"make: {package}", flush=True)
        made: list[tuple[Path, str, str]] = [(package, sha256_of(package), "")]
        if processor == processors[0]:
            made.append((python, sha256_of(python), ""))
        if lacking := oci.lacking(processor):
            print(
                f"make: no image of {package.name} for container engines: {lacking} is not here", flush=True
            )
        else:
            layout, said = oci.build(package, out, processor)
            print(f"make: {layout}", flush=True)
            made.append((layout, oci.digest_of(layout), said))
            images += 1
        _write_bills(package, made, out)
    return int(images == 0)


def _write_bills(package: Path, made: list[tuple[Path, str, str]], out: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="edge-appliance-") as place:
        subprocess.run(["dpkg-deb", "-x", str(package), place], check=True)
        for path, digest, said in made:
            for file in bill.write(out / path.name, Path(place) / SITE, digest, said):
                print(f"make: {file}", flush=True)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3:]))
