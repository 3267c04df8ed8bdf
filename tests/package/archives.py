"""Packages to test with, well made and otherwise."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping

from appliance.domain.manifest import FileEntry, Manifest
from appliance.domain.manifest_codec import encode
from appliance.package.container import MANIFEST_NAME, SIGNATURE_NAME, blob_name, write_package
from appliance.package.reader import PackageReader
from tests.domain.manifests import manifest_of

CONTENTS: Mapping[str, bytes] = {
    "1/graph.onnx": b"graph" * 300,
    "1/weights.bin": bytes(5000),
    "config.pbtxt": b"name: 'sample'\n",
    "labels.txt": b"",
}


def packed(
    contents: Mapping[str, bytes] = CONTENTS, signatures: bytes | None = None, **about: object
) -> tuple[Manifest, bytes]:
    """A package of ``contents`` as bytes, with its manifest."""
    manifest = manifest_of(dict(contents), **about)  # type: ignore[arg-type]
    out = io.BytesIO()
    write_package(out, manifest, signatures, lambda entry: io.BytesIO(contents[entry.path]))
    return manifest, out.getvalue()


def read_all(data: bytes) -> dict[str, bytes]:
    """Every content by digest; raises what the reader raises."""
    reader = PackageReader(io.BytesIO(data))
    return {blob.digest: blob.stream.read() for blob in reader.blobs()}


Member = tuple[tarfile.TarInfo, bytes]


def members_of(
    manifest: Manifest, contents: Mapping[str, bytes], signatures: bytes | None = None
) -> list[Member]:
    """The members of a package, to be changed and written by ``archive``."""
    members = [member(MANIFEST_NAME, encode(manifest))]
    if signatures is not None:
        members.append(member(SIGNATURE_NAME, signatures))
    members += [blob_member(entry, contents[entry.path]) for entry in manifest.blobs]
    return members


def member(name: str, content: bytes) -> Member:
    """A member as the writer makes it."""
    info = tarfile.TarInfo(name)
    info.size, info.mode = len(content), 0o444
    return info, content


def blob_member(entry: FileEntry, content: bytes) -> Member:
    """The member of a content."""
    return member(blob_name(entry.digest), content)


def archive(members: list[Member], end: bytes = bytes(1024)) -> bytes:
    """A tar of ``members``."""
    out = io.BytesIO()
    for info, content in members:
        out.write(info.tobuf(tarfile.PAX_FORMAT))
        out.write(content + bytes(-len(content) % 512))
    return out.getvalue() + end
