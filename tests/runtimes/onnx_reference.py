"""What an in-process ONNX Runtime session answers, and how arrays of every wire datatype are made and compared.

BF16 has no numpy type: here it is the uint16 array of its bits, and the reference runs it through OrtValues.
"""

from __future__ import annotations

import ctypes
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from appliance.domain.tensor import Datatype
from models.generators.graph import ELEMENT_TYPES

Array = NDArray[Any]

NUMPY_NAMES = {
    Datatype.BOOL: "?",
    Datatype.UINT8: "u1",
    Datatype.UINT16: "u2",
    Datatype.UINT32: "u4",
    Datatype.UINT64: "u8",
    Datatype.INT8: "i1",
    Datatype.INT16: "i2",
    Datatype.INT32: "i4",
    Datatype.INT64: "i8",
    Datatype.FP16: "f2",
    Datatype.FP32: "f4",
    Datatype.FP64: "f8",
    Datatype.BYTES: "O",
    Datatype.BF16: "u2",
}
WORDS = ("", "plain", "with\x00zero", "żółw", "\U0001f600", " ", "x" * 300)


def make_array(datatype: Datatype, shape: Sequence[int], seed: int = 5) -> Array:
    """Every bit pattern of the type may occur (NaNs and infinities too); strings are odd ones."""
    count = int(np.prod(shape, dtype=np.int64))
    if datatype is Datatype.BYTES:
        words = np.empty(count, dtype=object)
        words[:] = list(itertools.islice(itertools.cycle(WORDS), seed, seed + count))
        return words.reshape(shape)
    generator = np.random.default_rng(seed)
    if datatype is Datatype.BOOL:
        return generator.integers(0, 2, count).astype(bool).reshape(shape)
    raw = generator.bytes(count * datatype.size)
    return np.frombuffer(raw, dtype=NUMPY_NAMES[datatype]).reshape(shape)


def session_of(path: Path | str | bytes) -> onnxruntime.InferenceSession:
    """A session with the settings a worker uses."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    options.log_severity_level = 4
    model = path if isinstance(path, bytes) else str(path)
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def reference(session: onnxruntime.InferenceSession, feed: Mapping[str, Array]) -> list[Array]:
    """All outputs of one run; BF16 outputs as bits."""
    if not any("bfloat16" in each.type for each in (*session.get_inputs(), *session.get_outputs())):
        return list(session.run(None, dict(feed)))
    binding = session.io_binding()
    keep = []
    for each in session.get_inputs():
        if each.name in feed:
            array = feed[each.name].copy()  # contiguous, and of rank 0 when it was
            keep.append(array)
            binding.bind_input(
                each.name, "cpu", 0, _element(each.type, array), array.shape, array.ctypes.data
            )
    for each in session.get_outputs():
        binding.bind_output(each.name, "cpu")
    session.run_with_iobinding(binding)
    return [_array(value) for value in binding.get_outputs()]


def _element(kind: str, array: Array) -> Any:
    return ELEMENT_TYPES["BF16"] if "bfloat16" in kind else array.dtype.type


def _array(value: onnxruntime.OrtValue) -> Array:
    if value.data_type() != "tensor(bfloat16)":
        plain: Array = value.numpy()
        return plain
    count = int(np.prod(value.shape(), dtype=np.int64))
    raw = ctypes.string_at(value.data_ptr(), count * 2) if count else b""
    return np.frombuffer(raw, np.uint16).reshape(value.shape())
