"""``python -m packages WHEELS OUT``: the Debian package and the image, with their bills and licences beside them."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from packages import bill, deb, oci
from packages.archive import sha256_of
from packages.tree import SITE


def main(wheels: Path, out: Path) -> int:
    """Make all of them; 1 where the image could not be made for want of a tool."""
    package = deb.build(wheels, out)
    print(f"make: {package}", flush=True)
    made: list[tuple[Path, str, str]] = [(package, sha256_of(package), "")]
    python = next(wheels.glob("edge_appliance-*.whl"))
    made.append((python, sha256_of(python), ""))
    missing = shutil.which("mmdebstrap") is None
    if missing:
        print(
            "make: there is no image for container engines: it is made with mmdebstrap, which is not here",
            flush=True,
        )
    else:
        layout, status = oci.build(package, out)
        print(f"make: {layout}", flush=True)
        made.append((layout, oci.digest_of(layout), status))
    with tempfile.TemporaryDirectory(prefix="edge-appliance-") as place:
        subprocess.run(["dpkg-deb", "-x", str(package), place], check=True)
        for path, digest, status in made:
            for file in bill.write(out / path.name, Path(place) / SITE, digest, status):
                print(f"make: {file}", flush=True)
    return int(missing)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
