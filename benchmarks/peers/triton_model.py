"""The model Triton's Python backend runs: ONNX Runtime, one thread, the requests of a batch joined into one run.

Copied beside model.onnx as model.py; it runs inside Triton's Python stub, never inside the kit.
"""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, os.environ["BENCH_TRITON_PACKAGES"])  # the stub's interpreter does not look at PYTHONPATH

np: Any = importlib.import_module("numpy")


class TritonPythonModel:
    """The class name and methods are the backend's."""

    def initialize(self, arguments: dict[str, str]) -> None:
        """Load model.onnx from the version folder."""
        self._backend: Any = importlib.import_module("triton_python_backend_utils")
        ort: Any = importlib.import_module("onnxruntime")
        options = ort.SessionOptions()
        options.intra_op_num_threads = 1
        options.inter_op_num_threads = 1
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        folder = Path(arguments["model_repository"]) / arguments["model_version"]
        self._session = ort.InferenceSession(
            str(folder / "model.onnx"), options, providers=["CPUExecutionProvider"]
        )
        self._inputs = [port.name for port in self._session.get_inputs()]
        self._outputs = [port.name for port in self._session.get_outputs()]

    def execute(self, requests: list[Any]) -> list[Any]:
        """One run for all requests handed over together, the rows given back to each."""
        backend = self._backend
        columns = [
            [backend.get_input_tensor_by_name(request, name).as_numpy() for request in requests]
            for name in self._inputs
        ]
        rows = [len(part) for part in columns[0]]
        feed = {
            name: parts[0] if len(parts) == 1 else np.concatenate(parts)
            for name, parts in zip(self._inputs, columns, strict=True)
        }
        results = self._session.run(None, feed)
        split = [np.split(result, np.cumsum(rows)[:-1]) for result in results]
        return [
            backend.InferenceResponse(
                [backend.Tensor(name, parts[i]) for name, parts in zip(self._outputs, split, strict=True)]
            )
            for i in range(len(requests))
        ]
