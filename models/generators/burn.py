"""Models that take a chosen time: cost = base + row * batch, one thread, answer y = x.

The work is a loop whose turn count is `fixed + per_row * batch`, read from the shape of the input, so the cost is a
straight line in the batch size by construction and no optimiser can fold it away. One turn multiplies a matrix of ones
by a permutation, which leaves exactly ones; the product of x and their mean is x, bit for bit.

Only the time of one turn depends on the machine. It is measured when the model is made, in the runtime itself.
"""

from __future__ import annotations

import statistics
import time
from dataclasses import dataclass
from typing import Final

import numpy as np
import onnxruntime as ort

from models.generators.graph import constant, model_bytes, node, subgraph, tensor_port
from models.generators.package import ModelPackage, SampleModel

SIDE: Final = 32
WIDTH: Final = 16
BATCH_MAX: Final = 8
PROBE_TURNS: Final = 400
MEASURED_RUNS: Final = 25

CONFIG = """\
name: "{name}"
backend: "onnxruntime"
max_batch_size: {batch_max}
dynamic_batching {{ }}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class BurnTime:
    """Wanted run times of one batch, in milliseconds, at batch sizes 1 and 8."""

    batch_1_ms: float
    batch_8_ms: float

    def __post_init__(self) -> None:
        if not 0 < self.batch_1_ms <= self.batch_8_ms:
            raise ValueError(f"run times must satisfy 0 < batch 1 <= batch 8, got {self}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """Loop turns of one run: `fixed + per_row * batch`."""

    fixed: int
    per_row: int


def burn_graph(turns: Turns) -> bytes:
    """y = x, FP32 [batch, 16], after `turns.fixed + turns.per_row * batch` matrix products."""
    body = subgraph(
        "turn",
        [
            node("Identity", ["going"], ["still_going"]),
            node("MatMul", ["state", "permutation"], ["next_state"]),
        ],
        inputs=[
            tensor_port("turn", "INT64", []),
            tensor_port("going", "BOOL", []),
            tensor_port("state", "FP32", [SIDE, SIDE]),
        ],
        outputs=[tensor_port("still_going", "BOOL", []), tensor_port("next_state", "FP32", [SIDE, SIDE])],
    )
    return model_bytes(
        "burn",
        [
            node("Shape", ["x"], ["rows"], start=0, end=1),
            node("Mul", ["rows", "per_row"], ["row_turns"]),
            node("Add", ["row_turns", "fixed"], ["turns"]),
            node("Loop", ["turns", "", "ones"], ["worked"], body=body),
            node("ReduceMean", ["worked"], ["one"], axes=[0, 1], keepdims=0),
            node("Mul", ["x", "one"], ["y"]),
        ],
        inputs=[tensor_port("x", "FP32", ["batch", WIDTH])],
        outputs=[tensor_port("y", "FP32", ["batch", WIDTH])],
        constants=[
            constant("per_row", np.array([turns.per_row], np.int64)),
            constant("fixed", np.array([turns.fixed], np.int64)),
            constant("ones", np.ones((SIDE, SIDE), np.float32)),
            constant("permutation", np.roll(np.eye(SIDE, dtype=np.float32), 1, axis=0)),
        ],
    )


def plan_turns(wanted: BurnTime, *, turn_ms: float, overhead_ms: float) -> Turns:
    """Turn counts that come nearest to `wanted` when a turn takes `turn_ms` and an empty run `overhead_ms`."""
    row_ms = (wanted.batch_8_ms - wanted.batch_1_ms) / (BATCH_MAX - 1)
    per_row = round(row_ms / turn_ms)
    fixed = round((wanted.batch_1_ms - overhead_ms) / turn_ms) - per_row
    return Turns(fixed=max(fixed, 0), per_row=per_row)


def measure_ms(model: bytes, *, batch: int) -> float:
    """Median run time of `model` in milliseconds, one thread, after a warm-up."""
    options = ort.SessionOptions()
    options.intra_op_num_threads = 1
    options.inter_op_num_threads = 1
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    feed = {"x": np.zeros((batch, WIDTH), np.float32)}
    times_ns = []
    for _ in range(MEASURED_RUNS + 3):
        started_ns = time.perf_counter_ns()
        session.run(None, feed)
        times_ns.append(time.perf_counter_ns() - started_ns)
    return statistics.median(times_ns[3:]) / 1e6


def calibrated(name: str, wanted: BurnTime) -> ModelPackage:
    """A model whose run times are `wanted` on this machine; prints the times it was measured to have."""
    overhead_ms = measure_ms(burn_graph(Turns(fixed=0, per_row=0)), batch=1)
    probe_ms = measure_ms(burn_graph(Turns(fixed=PROBE_TURNS, per_row=0)), batch=1)
    turns = plan_turns(wanted, turn_ms=(probe_ms - overhead_ms) / PROBE_TURNS, overhead_ms=overhead_ms)
    model = burn_graph(turns)
    print(
        f"{name}: {turns.fixed} + {turns.per_row} * batch turns, measured "
        f"{measure_ms(model, batch=1):.2f} ms at batch 1 (wanted {wanted.batch_1_ms:g}) and "
        f"{measure_ms(model, batch=BATCH_MAX):.2f} ms at batch {BATCH_MAX} (wanted {wanted.batch_8_ms:g})"
    )
    return ModelPackage(model=model, config=CONFIG.format(name=name, batch_max=BATCH_MAX))


SAMPLES = (
    SampleModel(
        name="burn_2ms",
        summary="y = x after 2 ms at batch 1, 2.4 ms at batch 8, calibrated on this machine",
        build=lambda: calibrated("burn_2ms", BurnTime(batch_1_ms=2.0, batch_8_ms=2.4)),
    ),
    SampleModel(
        name="burn_10ms",
        summary="y = x after 10 ms at batch 1, 12 ms at batch 8, calibrated on this machine",
        build=lambda: calibrated("burn_10ms", BurnTime(batch_1_ms=10.0, batch_8_ms=12.0)),
    ),
)
