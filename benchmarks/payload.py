"""Request bytes for a model, read from its file: random values of a fixed seed, batch of one, raw contents."""

from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.peers.session import Session
from benchmarks.peers.wire import compile_oip

SEED = 7


class RequestWriter:
    """Writes serialised requests. One per process: protobuf messages can be registered only once."""

    def __init__(self) -> None:
        self._pb, _ = compile_oip()

    def infer(self, served_name: str, model: Path) -> bytes:
        """A ModelInferRequest for the model file, addressed to `served_name`."""
        request = self._pb.ModelInferRequest(model_name=served_name)
        random = np.random.default_rng(SEED)
        for name, datatype, shape in Session(model).inputs:
            sizes = [1 if size < 0 else size for size in shape]
            request.inputs.add(name=name, datatype=datatype, shape=sizes)
            request.raw_input_contents.append(_values(random, datatype, sizes))
        serialised: bytes = request.SerializeToString()
        return serialised

    def model_ready(self, served_name: str, version: str = "") -> bytes:
        """A ModelReadyRequest; "" asks for any version."""
        serialised: bytes = self._pb.ModelReadyRequest(name=served_name, version=version).SerializeToString()
        return serialised


def _values(random: np.random.Generator, datatype: str, shape: list[int]) -> bytes:
    if datatype.startswith("INT"):
        return random.integers(0, 100, shape).astype(f"<i{int(datatype[3:]) // 8}").tobytes()
    return random.standard_normal(shape).astype(f"<f{int(datatype[2:]) // 8}").tobytes()


def shape_arguments(model: Path) -> list[str]:
    """`--shape` arguments for perf_analyzer for inputs with free dimensions beside the batch."""
    arguments: list[str] = []
    for name, _, shape in Session(model).inputs:
        if any(size < 0 for size in shape[1:]):
            arguments += ["--shape", f"{name}:{','.join(str(max(size, 1)) for size in shape[1:])}"]
    return arguments


def port_names(model: Path) -> tuple[list[Any], list[Any]]:
    """(inputs, outputs) of the model file as (name, wire datatype, shape with -1 for free dimensions)."""
    session = Session(model)
    return session.inputs, session.outputs
