"""Packages that arrive at a store, without a file around them: contents in memory."""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from appliance.domain.digest import digest_of
from appliance.domain.manifest import Manifest
from appliance.domain.manifest_codec import encode
from appliance.store.catalog import Catalog
from appliance.store.incoming import IncomingPackage, Stream
from appliance.store.layout import blob_path, view_path
from tests.domain.manifests import manifest_of

CONFIG = b'max_batch_size: 8 default_model_filename: "graph.onnx"'


def contents_of(version: int, weights: bytes = b"", **more: bytes) -> dict[str, bytes]:
    """The files of a version: the configuration is the same for all, the weights are not."""
    weights = weights or b"weights %d " % version * 40
    return {
        "config.pbtxt": CONFIG,
        f"{version}/graph.onnx": b"graph %d" % version,
        f"{version}/weights.bin": weights,
        **{path.replace("__", "/"): content for path, content in more.items()},
    }


def arrival(
    name: str = "digits",
    version: int = 1,
    contents: Mapping[str, bytes] | None = None,
    *,
    signatures: bytes | None = None,
    trust: str = "unsigned",
    fetch_ms: int = 0,
) -> IncomingPackage:
    """A package with ``contents``."""
    files = dict(contents or contents_of(version))
    manifest = manifest_of(files, name=name, version=version)
    return arrival_of(manifest, files, signatures=signatures, trust=trust, fetch_ms=fetch_ms)


def arrival_of(
    manifest: Manifest,
    files: Mapping[str, bytes],
    *,
    signatures: bytes | None = None,
    trust: str = "unsigned",
    fetch_ms: int = 0,
) -> IncomingPackage:
    """A package that says ``manifest`` and brings ``files``."""

    def streams() -> Iterator[tuple[str, int, Stream]]:
        for entry in manifest.blobs:
            yield entry.digest, entry.size, io.BytesIO(files[entry.path])

    return IncomingPackage(
        manifest=manifest,
        manifest_bytes=encode(manifest),
        signatures=signatures,
        trust=trust,
        contents=streams(),
        fetch_ms=fetch_ms,
    )


def lying(
    name: str, version: int, claimed: Mapping[str, bytes], brought: Mapping[str, bytes]
) -> IncomingPackage:
    """A package whose manifest tells of ``claimed`` and that brings ``brought``."""
    return arrival_of(manifest_of(dict(claimed), name=name, version=version), brought)


def renamed(one: IncomingPackage, name: str) -> IncomingPackage:
    """The package under another name, which no manifest would be read with."""
    return replace(one, manifest=replace(one.manifest, name=name))


def assert_served(state: Path, catalog: Catalog) -> None:
    """Every version of the catalog is there byte by byte: as blobs, and as a view of the same files."""
    for _, version in catalog.installed():
        for file in version.files:
            blob = state / blob_path(file.digest)
            data = blob.read_bytes()
            assert len(data) == file.size
            assert digest_of(data) == file.digest
            assert blob.stat().st_mode & 0o777 == 0o400
            assert blob.samefile(state / view_path(version.digest) / file.path)
