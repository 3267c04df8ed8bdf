"""A package that is being read, as the store takes it in."""

from __future__ import annotations

from appliance.package.reader import PackageReader, SummedStream, tensors_in
from appliance.store.incoming import IncomingPackage


def arrival_of(reader: PackageReader, trust: str) -> IncomingPackage:
    """The package with the word about who signed it; its contents are compared with their sums while they are read."""
    return IncomingPackage(
        manifest=reader.manifest,
        manifest_bytes=reader.manifest_bytes,
        signatures=reader.signatures,
        trust=trust,
        contents=(
            (blob.digest, blob.size, SummedStream(blob, tensors_in(reader.manifest, blob.digest)))
            for blob in reader.blobs()
        ),
    )
