"""A model loaded again and again by ONNX Runtime alone: what loads cost a neighbour, however swaps are made.

`python -m benchmarks.bare_loads MODEL PAUSE_S`, until killed. Every load is a process forked from one that has the
runtime imported. It loads and runs the model in the idle class, then comes back for one run in the normal one, as the
first answer of a new version is, and ends in the idle class once the next one has loaded. No server, no lane, no file
but the model's.
"""

import argparse
import os
import signal
import time
from pathlib import Path

import numpy as np
import onnxruntime

RUNS = 4
"""As many as a version makes before it serves."""


def main() -> None:
    """Load until killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("pause_s", type=float)
    asked = parser.parse_args()
    before = 0
    while True:
        loaded, tells = os.pipe()
        process = os.fork()
        if not process:
            os.close(loaded)
            _load(asked.model, tells)
        os.close(tells)
        os.read(loaded, 1)
        os.close(loaded)
        if before:
            os.kill(before, signal.SIGTERM)
            os.waitpid(before, 0)
        before = process
        time.sleep(asked.pause_s)


def _load(model: Path, tells: int) -> None:
    """In the forked process, until it is told to end."""
    _put_into(os.SCHED_IDLE)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])
    feeds = {
        port.name: np.zeros(
            [size if isinstance(size, int) else 1 for size in port.shape],
            np.int64 if port.type == "tensor(int64)" else np.float32,
        )
        for port in session.get_inputs()
    }
    for _ in range(RUNS):
        session.run(None, feeds)
    _put_into(os.SCHED_OTHER)
    session.run(None, feeds)
    _put_into(os.SCHED_IDLE)
    os.write(tells, b"x")
    signal.pause()


def _put_into(policy: int) -> None:
    os.sched_setscheduler(0, policy, os.sched_param(0))


if __name__ == "__main__":
    main()
