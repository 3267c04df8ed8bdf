"""An ONNX Runtime session as every in-process peer runs it: one thread, no spinning, no batching."""

import importlib
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

WIRE_DATATYPES = {
    "tensor(float)": "FP32",
    "tensor(double)": "FP64",
    "tensor(int64)": "INT64",
    "tensor(int32)": "INT32",
}


class Session:
    """One loaded model and the names and shapes of its tensors."""

    def __init__(self, file: Path) -> None:
        ort: Any = importlib.import_module("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        self._session = ort.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        self.inputs = [
            (port.name, WIRE_DATATYPES[port.type], _shape(port)) for port in self._session.get_inputs()
        ]
        self.outputs = [
            (port.name, WIRE_DATATYPES[port.type], _shape(port)) for port in self._session.get_outputs()
        ]
        self.output_names = [name for name, _, _ in self.outputs]

    def run(self, feed: dict[str, NDArray[Any]]) -> list[NDArray[Any]]:
        """All outputs, in the graph's order."""
        results: list[NDArray[Any]] = self._session.run(None, feed)
        return results


def _shape(port: Any) -> list[int]:
    return [size if isinstance(size, int) else -1 for size in port.shape]
