"""What operators of ONNX Runtime stage in memory of the process for a real GPU to copy: it is given back, and graphs
read their own. Skipped where there is no GPU."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from appliance.devices.cuda import CudaFailed
from appliance.domain.device_wish import ON_CUDA
from appliance.domain.errors import LoadFailed
from appliance.domain.tensor import Datatype
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.tools.conformance.memory import Memory
from models.generators.graph import model_bytes, node, tensor_port
from tests.devices.absent import absent
from tests.workers.bench import spec, version_of

LONG, SHORT = 1_000, 50
"""Of what is put together: a Concat of inputs that differ in size stages eight bytes for each of both."""
RUNS = 10_000
STAGED_BYTES = RUNS * 8 * (LONG + SHORT)
CAPACITY = 48 << 10
PARTS = [spec("a", Datatype.FP32, LONG), spec("b", Datatype.FP32, SHORT)]


def load(folder: Path, *, graphs: bool) -> Session:
    """A session on the first GPU."""
    graph = model_bytes(
        "concat",
        [node("Concat", ["a", "b"], ["c"], axis=1), node("Neg", ["c"], ["y"])],
        inputs=[tensor_port("a", "FP32", ["n", LONG]), tensor_port("b", "FP32", ["n", SHORT])],
        outputs=[tensor_port("y", "FP32", ["n", LONG + SHORT])],
    )
    path = folder / "model.onnx"
    path.write_bytes(graph)
    version = version_of(path, PARTS, [spec("y", Datatype.FP32, LONG + SHORT)], max_batch_size=8)
    try:
        return OnnxRuntime().load(replace(version, device=ON_CUDA, cuda_graphs=graphs), RuntimeSettings())
    except (CudaFailed, LoadFailed) as problem:
        if "CUDAExecutionProvider" not in onnxruntime.get_available_providers():
            absent("the installed onnxruntime has no CUDA")
        absent(f"no GPU: {problem}")


@pytest.fixture
def without(tmp_path: Path) -> Iterator[Session]:
    """Without graphs."""
    session = load(tmp_path, graphs=False)
    yield session
    session.close()


@pytest.fixture
def captured(tmp_path: Path) -> Iterator[Session]:
    """With graphs."""
    session = load(tmp_path, graphs=True)
    yield session
    session.close()


def given(rows: int, seed: int) -> Memory:
    """A request."""
    numbers = np.random.default_rng(seed)
    return Memory(*(numbers.random((rows, size), np.float32) for size in (LONG, SHORT)), capacity=CAPACITY)


def is_right(session: Session, memory: Memory, rows: int, seed: int) -> bool:
    """Whether the request is answered as it has to be."""
    numbers = np.random.default_rng(seed)
    right = -np.concatenate([numbers.random((rows, size), np.float32) for size in (LONG, SHORT)], axis=1)
    return memory.outputs(memory.run(session, (0,))) == [right.tobytes()]


def mapped_bytes() -> int:
    """Memory of this process, with what is pinned."""
    (line,) = (
        line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmSize")
    )
    return int(line.split()[1]) << 10


def test_runs_without_graphs_give_back_what_they_staged(without: Session) -> None:
    memory = given(1, 1)
    for _ in range(50):
        assert is_right(without, memory, 1, 1)
    before = mapped_bytes()
    for _ in range(RUNS):
        memory.run(without, (0,))
    grown = mapped_bytes() - before
    print(f"{grown} bytes more after {RUNS} runs that stage {STAGED_BYTES}")
    assert grown < STAGED_BYTES // 2


def test_graphs_are_right_after_runs_of_other_shapes(captured: Session) -> None:
    memories = {rows: given(rows, rows) for rows in range(1, 7)}
    for _ in range(5):
        assert is_right(captured, memories[1], 1, 1)
    for rows in (*range(2, 7), *range(1, 7)) * 3:
        assert is_right(captured, memories[rows], rows, rows)
        assert is_right(captured, memories[1], 1, 1)
