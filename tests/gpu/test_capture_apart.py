"""Graphs that are captured on a real GPU while another thread makes sessions and closes them, or has a run that fails,
which waits for the whole device; or runs a session with texts. Skipped where there is no GPU."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.domain.device_wish import ON_CUDA
from appliance.domain.errors import RunFailed
from appliance.domain.tensor import Datatype, encode_bytes
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.tools.conformance.memory import Memory
from models.generators.graph import constant, model_bytes, node, tensor_port
from tests.gpu.test_staging import given, is_right, load
from tests.workers.bench import spec, version_of

SESSIONS = 10
TOO_MANY = 1 << 38
"""Elements of four bytes: no GPU has so much memory."""


def test_captures_and_sessions_that_come_and_go_leave_each_other_alone(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other"
    other.mkdir()
    sessions, problems, over = [load(tmp_path, graphs=True)], list[Exception](), threading.Event()

    def come_and_go() -> None:
        try:
            while not over.is_set():
                load(other, graphs=True).close()
        except Exception as problem:  # noqa: BLE001 - told below
            problems.append(problem)

    thread = threading.Thread(target=come_and_go)
    thread.start()
    try:
        for _ in range(SESSIONS):
            for rows in range(1, 7):
                memory = given(rows, rows)
                assert all(is_right(sessions[-1], memory, rows, rows) for _ in range(8))
            sessions.append(load(tmp_path, graphs=True))
    finally:
        over.set()
        thread.join()
    for each in sessions:
        each.close()
    assert not problems
    assert "without CUDA graphs" not in capfd.readouterr().err


def greedy(folder: Path) -> Session:
    """A session each of whose runs asks the GPU for more memory than it has."""
    graph = model_bytes(
        "greedy",
        [node("Expand", ["x", "shape"], ["wide"]), node("ReduceMax", ["wide"], ["y"], keepdims=1)],
        inputs=[tensor_port("x", "FP32", [1])],
        outputs=[tensor_port("y", "FP32", [1])],
        constants=[constant("shape", np.array([TOO_MANY], np.int64))],
    )
    path = folder / "greedy.onnx"
    path.write_bytes(graph)
    version = version_of(path, [spec("x", Datatype.FP32, 1)], [spec("y", Datatype.FP32, 1)])
    return OnnxRuntime().load(replace(version, device=ON_CUDA, cuda_graphs=False), RuntimeSettings())


def test_a_run_that_fails_beside_captures_costs_nobody_a_graph(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """One for each session, at the most unlucky moment: its capture is tried twice."""
    session = load(tmp_path, graphs=True)
    failing, asked, failed = greedy(tmp_path), Memory(np.ones(1, np.float32)), list[str]()

    def fail() -> None:
        try:
            asked.run(failing, (0,))
        except RunFailed as problem:
            failed.append(str(problem))

    for _ in range(SESSIONS):
        thread = threading.Thread(target=fail)
        thread.start()
        for rows in range(1, 7):
            memory = given(rows, rows)
            assert all(is_right(session, memory, rows, rows) for _ in range(8))
        thread.join()
        session.close()
        session = load(tmp_path, graphs=True)
    session.close()
    failing.close()
    assert len(failed) == SESSIONS
    assert all("memory" in each for each in failed)
    assert "without CUDA graphs" not in capfd.readouterr().err


def test_a_session_with_texts_runs_beside_captures(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """It takes memory of the GPU for each size that is new, which CUDA forbids to threads that are in the way."""
    graph = model_bytes(
        "texts",
        [node("MatMul", ["x", "x"], ["y"]), node("Identity", ["t"], ["u"])],
        inputs=[tensor_port("x", "FP32", ["n", "n"]), tensor_port("t", "BYTES", [1])],
        outputs=[tensor_port("y", "FP32", ["n", "n"]), tensor_port("u", "BYTES", [1])],
    )
    path = tmp_path / "texts.onnx"
    path.write_bytes(graph)
    inputs = [spec("x", Datatype.FP32, -1, -1), spec("t", Datatype.BYTES, 1)]
    outputs = [spec("y", Datatype.FP32, -1, -1), spec("u", Datatype.BYTES, 1)]
    session, problems, over = load(tmp_path, graphs=True), list[Exception](), threading.Event()
    texts = OnnxRuntime().load(replace(version_of(path, inputs, outputs), device=ON_CUDA), RuntimeSettings())
    text = np.frombuffer(encode_bytes([b"four"]), np.uint64)

    def run() -> None:
        size = 8
        try:
            while not over.is_set():
                x = np.full((size, size), 2, np.float32)
                memory = Memory(x, text, capacity=4 * size * size + 4096)
                found = memory.outputs(memory.run(texts, (0, 1)))
                assert found == [np.full((size, size), 4 * size, np.float32).tobytes(), text.tobytes()]
                size = size % 56 + 8
        except Exception as problem:  # noqa: BLE001 - told below
            problems.append(problem)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        for _ in range(SESSIONS):
            for rows in range(1, 7):
                memory = given(rows, rows)
                assert all(is_right(session, memory, rows, rows) for _ in range(8))
            session.close()
            session = load(tmp_path, graphs=True)
    finally:
        over.set()
        thread.join()
    session.close()
    texts.close()
    assert not problems
    assert "without CUDA graphs" not in capfd.readouterr().err
