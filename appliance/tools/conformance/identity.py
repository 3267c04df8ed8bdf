"""The model that runtimes are tried with, p = a and q = b, as the version that it is and as an ONNX file.

The file is given as it is, so that a box without the package ``onnx`` can try its runtimes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from appliance.domain.device_wish import ON_CPU, DeviceWish
from appliance.domain.errors import ArtefactError
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import FREE, Datatype, TensorSpec

NAME: Final = "identity"
MODEL_FILE: Final = "model.onnx"
INPUTS: Final = tuple(TensorSpec(name=name, datatype=Datatype.FP32, shape=(FREE, FREE)) for name in "ab")
OUTPUTS: Final = tuple(TensorSpec(name=name, datatype=Datatype.FP32, shape=(FREE, FREE)) for name in "pq")


def _message(number: int, *parts: bytes) -> bytes:
    """A field of Protocol Buffers that holds bytes, fewer than a length of one byte can say."""
    body = b"".join(parts)
    assert len(body) < 0x80
    return bytes([number << 3 | 2, len(body)]) + body


def _port(number: int, name: str) -> bytes:
    """A ValueInfoProto: FP32, two dimensions that have names alone."""
    dimensions = (_message(1, _message(2, f"{name}{index}".encode())) for index in range(2))
    tensor = _message(1, b"\x08\x01", _message(2, *dimensions))
    return _message(number, _message(1, name.encode()), _message(2, tensor))


def _node(source: str, target: str) -> bytes:
    return _message(1, _message(1, source.encode()), _message(2, target.encode()), _message(4, b"Identity"))


def onnx_bytes() -> bytes:
    """Give the model as ONNX: IR version 8, opset 17."""
    graph = [_node("a", "p"), _node("b", "q"), _message(2, NAME.encode())]
    graph += [*(_port(11, name) for name in "ab"), *(_port(12, name) for name in "pq")]
    body = b"".join(graph)
    length = bytes([len(body) & 0x7F | 0x80, len(body) >> 7])
    return b"\x08\x08" + b"\x3a" + length + body + _message(8, b"\x10\x11")


def write_onnx(home: Path) -> Path:
    """Write the model as a version directory below ``home``; gives that."""
    folder = home / NAME / "1"
    folder.mkdir(parents=True)
    (folder / MODEL_FILE).write_bytes(onnx_bytes())
    return folder


def version_directory(path: Path) -> Path:
    """Give the version directory that ``path`` is, or the highest one in it. Raises ArtefactError."""
    try:
        names = [entry.name for entry in path.resolve(strict=True).iterdir()]
    except OSError as error:
        raise ArtefactError(f"'{path}' cannot be read: {error.strerror}") from error
    if not names:
        raise ArtefactError(
            f"'{path}' is empty; give the directory of a model (NAME, with NAME/1 in it), or that of its version"
        )
    numbers = [int(name) for name in names if name.isdecimal() and (path / name).is_dir()]
    return path.resolve() / str(max(numbers)) if numbers else path.resolve()


def identity_version(runtime: str, folder: str, device: DeviceWish = ON_CPU) -> ModelVersion:
    """Give what the daemon would make of a ``config.pbtxt`` for the files in ``folder``; with ON_CUDA, of one that
    says KIND_GPU."""
    return ModelVersion(
        name=NAME,
        version=1,
        platform="",
        backend=runtime,
        runtime=runtime,
        path=folder,
        file_bytes=0,
        inputs=INPUTS,
        outputs=OUTPUTS,
        device=device,
    )
