"""A model whose rows change one another's answers, in a real daemon: requests of many clients are answered as each
would be alone, over gRPC and HTTP, and who asks how it is served is told."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import tritonclient.grpc as triton
import tritonclient.http as triton_http

from models.generators.graph import model_bytes, node, tensor_port
from tests.conftest import Serve
from tests.faults.test_workers import version_in
from tests.fronts import Sections
from tests.repository.classifiers import SPLIT, classifier

CLIENTS = 8
REQUESTS = 40


def write_softmax(root: Path, name: str, axis: int) -> None:
    """A softmax over the rows (axis 0), or within each."""
    (root / name / "1").mkdir(parents=True)
    graph = model_bytes(
        name,
        [node("Softmax", ["x"], ["y"], axis=axis)],
        inputs=[tensor_port("x", "FP32", ["n", 4])],
        outputs=[tensor_port("y", "FP32", ["n", 4])],
    )
    (root / name / "1" / "model.onnx").write_bytes(graph)


def wrong_answers(edge: Any, url: str) -> int:
    """How many single rows are not answered with ones."""
    client, wrong = edge.InferenceServerClient(url), 0
    for number in range(REQUESTS):
        feed = edge.InferInput("x", [1, 4], "FP32")
        feed.set_data_from_numpy(np.full((1, 4), number, np.float32))
        wrong += not (client.infer("over_rows", [feed]).as_numpy("y") == 1).all()
    client.close()
    return wrong


def test_requests_are_answered_as_each_would_be_alone(
    serve: Serve, front_end: Sections, tmp_path: Path
) -> None:
    write_softmax(tmp_path, "over_rows", 0)
    write_softmax(tmp_path, "within_rows", 1)
    daemon = serve(tmp_path, front_end)
    for edge, url in ((triton, daemon.grpc), (triton_http, daemon.http)):
        with ThreadPoolExecutor(CLIENTS) as pool:
            assert sum(pool.map(lambda _, edge=edge, url=url: wrong_answers(edge, url), range(CLIENTS))) == 0
    batched = {}
    with triton.InferenceServerClient(daemon.grpc) as client:
        for name in ("over_rows", "within_rows"):
            batched[name] = client.get_model_config(name).config.HasField("dynamic_batching")
    assert batched == {"over_rows": False, "within_rows": True}
    with triton_http.InferenceServerClient(daemon.http) as client:
        for name, each in batched.items():
            assert ("dynamic_batching" in client.get_model_config(name)) is each
            notes = version_in(daemon.status(), name)["notes"]
            assert any("its requests are not merged" in note for note in notes) is not each


def mislabelled(url: str, seed: int) -> int:
    """How many rows, asked in requests of some, have another class than their first value says."""
    draw, wrong = np.random.default_rng(seed), 0
    with triton.InferenceServerClient(url) as client:
        for rows in draw.integers(1, 6, REQUESTS):
            asked = draw.random((rows, 2), np.float32)
            feed = triton.InferInput("x", asked.shape, "FP32")
            feed.set_data_from_numpy(asked)
            said = client.infer("labels", [feed]).as_numpy("label")
            wrong += said.tolist() != np.where(asked[:, 0] > SPLIT, 7, 3).tolist()
    return wrong


def test_labels_are_merged_and_handed_out_though_their_shape_says_one(serve: Serve, tmp_path: Path) -> None:
    (tmp_path / "labels" / "1").mkdir(parents=True)
    (tmp_path / "labels" / "1" / "model.onnx").write_bytes(classifier().SerializeToString())
    daemon = serve(tmp_path)
    with ThreadPoolExecutor(CLIENTS) as pool:
        assert sum(pool.map(lambda seed: mislabelled(daemon.grpc, seed), range(CLIENTS))) == 0
    with triton.InferenceServerClient(daemon.grpc) as client:
        assert client.get_model_config("labels").config.HasField("dynamic_batching")
        label, _ = client.get_model_metadata("labels").outputs
    assert label.shape == [-1]
