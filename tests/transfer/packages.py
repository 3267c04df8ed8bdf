"""Packages of tensors as tests want them, and the contents of one as a store keeps them."""

from __future__ import annotations

import io
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from appliance.domain.digest import Digester
from appliance.domain.manifest import FileEntry, Manifest, RuntimeNeed, TensorEntry
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.package.container import write_package
from appliance.package.reader import open_package

NAMES = {
    "float32": "FLOAT", "float64": "DOUBLE", "float16": "FLOAT16", "int8": "INT8", "uint8": "UINT8", "int64": "INT64",
    "uint16": "UINT16", "int32": "INT32",
}  # fmt: skip
ALIGN = 4096


def entry(path: str, data: bytes) -> FileEntry:
    digester = Digester()
    digester.update(data)
    found = digester.finish()
    return FileEntry(path=path, size=len(data), digest=found.digest, pieces=found.pieces)


def make(
    path: Path,
    tensors: Mapping[str, NDArray[Any]],
    *,
    version: int = 1,
    graph: bytes = b"graph",
    **files: bytes,
) -> Path:
    """A package whose weights are ``tensors``, each at a multiple of ALIGN, in this order."""
    weights, entries = bytearray(), []
    for name, array in tensors.items():
        weights += bytes(-len(weights) % ALIGN)
        data = array.tobytes()
        entries.append(
            TensorEntry(
                name=name,
                datatype=NAMES[array.dtype.name],
                shape=array.shape,
                file=f"{version}/weights.bin",
                offset=len(weights),
                length=len(data),
                digest=entry("x", data).digest,
            )
        )
        weights += data
    contents = {
        f"{version}/graph.onnx": graph,
        f"{version}/weights.bin": bytes(weights),
        **{f"{version}/{name}": data for name, data in files.items()},
    }
    listed = tuple(entry(each, contents[each]) for each in sorted(contents))
    manifest = Manifest(
        name="m",
        version=version,
        runtime=RuntimeNeed(name="onnx", minimum="1.20"),
        files=listed,
        inputs=(TensorSpec(name="x", datatype=Datatype.FP32, shape=(-1,)),),
        outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=(-1,)),),
        tensors=tuple(sorted(entries, key=lambda each: (each.file, each.offset, each.name))),
    )
    by_digest = {each.digest: contents[each.path] for each in listed}
    with path.open("wb") as out:
        write_package(out, manifest, None, lambda each: io.BytesIO(by_digest[each.digest]))
    return path


def unpack(package: Path, folder: Path) -> Path:
    """The package's contents as a store has them: FOLDER/XX/DIGEST."""
    with open_package(package) as reader:
        for blob in reader.blobs():
            home = folder / blob.digest[:2]
            home.mkdir(parents=True, exist_ok=True)
            with (home / blob.digest).open("wb") as out:
                while data := blob.stream.read(1 << 20):
                    out.write(data)
    return folder


def random_tensors(seed: int, sizes: Mapping[str, tuple[str, tuple[int, ...]]]) -> dict[str, NDArray[Any]]:
    """Tensors of random bits: of floats also those that are no numbers."""
    random = np.random.default_rng(seed)
    return {
        name: np.frombuffer(random.bytes(int(np.prod(shape)) * np.dtype(kind).itemsize), kind).reshape(shape)
        for name, (kind, shape) in sizes.items()
    }
