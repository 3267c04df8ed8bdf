"""Files that other tools leave where an ONNX model should be: known by their first bytes, told how to get a model."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

HEAD_BYTES: Final = 64
"""How much of a file's beginning tells what it is."""

_EXPORT_TORCH: Final = "export the model with torch.onnx.export(model, inputs, 'model.onnx')"
_EXPORT_TENSORFLOW: Final = "convert it with 'python -m tf2onnx.convert'"


_BACKENDS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "python": "it is Python code, which is never run here; export what it computes as ONNX, or have clients do it",
        "pytorch": f"it is a PyTorch model; {_EXPORT_TORCH}",
        "tensorflow": f"it is a TensorFlow model; {_EXPORT_TENSORFLOW}",
        "tensorrt": "it is an engine that fits one device alone; give the ONNX model it was made from",
        "openvino": "give the ONNX model it was made from, or install a package that runs OpenVINO's and add it to the "
        "setting repository.runtimes (docs/RUNTIMES.md)",
        "ensemble": "it is made of other models; serve these one by one, or make one graph of them",
    }
)
"""By how the names of backends and platforms begin."""


def backend_advice(name: str) -> str:
    """Say what a model for the backend or platform ``name`` of another server is and what to do; "" where that is not
    known."""
    return next((advice for kind, advice in _BACKENDS.items() if name.startswith(kind)), "")


def foreign_format(head: bytes) -> str:
    """Say what a file that begins with ``head`` is and what to do; "" where it may be an ONNX model."""
    if head.startswith(b"version https://git-lfs"):
        return "a Git LFS pointer and not the model itself; run 'git lfs pull' where it came from"
    if head[4:8] == b"ORTM":
        return "in ORT format; give the ONNX model it was made from"
    if head.startswith(b"PK\x03\x04"):
        return f"an archive, as PyTorch saves its models; {_EXPORT_TORCH}"
    if head[:1] == b"\x80" and head[1:2] in b"\x02\x03\x04\x05" and len(head) > 1:
        return f"a Python pickle, which is never opened; {_EXPORT_TORCH} where it was made"
    if _is_safetensors(head):
        return "safetensors, weights without a graph; export the model with 'optimum-cli export onnx'"
    if head[4:8] == b"TFL3":
        return f"a TensorFlow Lite model; {_EXPORT_TENSORFLOW} --tflite"
    if _is_saved_model(head):
        return f"a TensorFlow SavedModel; {_EXPORT_TENSORFLOW} --saved-model"
    if head.startswith(b"\x89HDF\r\n"):
        return f"HDF5, as Keras saves its models; {_EXPORT_TENSORFLOW}"
    if head.startswith(b"ptrt") or head[:4] == b"ftrt":
        return "a TensorRT engine, which fits one device alone; give the ONNX model it was made from"
    if head.startswith((b"<?xml", b"<net")):
        return "XML, as OpenVINO writes its graphs; give the ONNX model it was made from"
    return ""


def _is_saved_model(head: bytes) -> bool:
    """Version 1 of its schema, and a message that begins with one, where ONNX has the name of a producer."""
    lengths = head[3:13]
    size = next((index for index, byte in enumerate(lengths, 1) if byte < 0x80), 0)
    return head.startswith(b"\x08\x01\x12") and size > 0 and head[3 + size : 4 + size] == b"\n"


def _is_safetensors(head: bytes) -> bool:
    """The length of a JSON object in eight bytes, and its beginning."""
    return (
        len(head) > 9 and head[8:10] in (b'{"', b"{ ") and 2 <= int.from_bytes(head[:8], "little") < 1 << 32
    )
