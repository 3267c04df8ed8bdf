"""Make a release of what was built: its parts as streams with indexes, its papers signed."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from appliance.domain.digest import digest_of, digests_of_file
from appliance.image.release import PAYLOAD_TYPE, RELEASE, SIGNATURE, Part, Release, encode
from appliance.package.keys import open_signer
from appliance.package.trust import sign
from appliance.transfer.pieces import PIECE_BYTES
from image.place import Built


def publish(built: Built, variant: str, key: Path, folder: Path) -> Release:
    """Write the release into ``folder``, which is made anew, and sign it with ``key``."""
    shutil.rmtree(folder, ignore_errors=True)
    for name in ("streams", "indexes"):
        (folder / name).mkdir(parents=True)
    parts = tuple(_part(path, folder) for path in (built.sums, built.root, built.kernel))
    release = Release(version=built.version, machine=built.architecture, variant=variant, parts=parts)
    papers = encode(release)
    (folder / RELEASE).write_bytes(papers)
    signer = open_signer(str(key), _no_secret)
    (folder / SIGNATURE).write_bytes(sign(papers, [signer], kind=PAYLOAD_TYPE))
    return release


def _part(path: Path, folder: Path) -> Part:
    index = bytearray()
    with open(path, "rb") as file:
        while piece := file.read(PIECE_BYTES):
            index += bytes.fromhex(digest_of(piece))
    stream, summed = digests_of_file(path), digest_of(index)
    os.link(path, folder / "streams" / stream.digest)
    (folder / "indexes" / summed).write_bytes(index)
    return Part(name=path.name, size=stream.size, stream=stream.digest, index=summed)


def _no_secret(what: str) -> str:
    raise SystemExit(f"make: the key needs a {what}; give one without")
