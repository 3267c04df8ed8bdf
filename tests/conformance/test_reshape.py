"""A tensor that clients see in another shape than the model: over both protocols, asked once and again, with golden
answers, packed and measured."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from appliance.cli.main import main
from models.generators.graph import model_bytes, node, tensor_port
from tests.conftest import Serve

TRITONS_QUICKSTART: Final = """
platform: "onnxruntime_onnx"
max_batch_size: 0
input { name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 3, 2, 2 ] reshape { shape: [ 1, 3, 2, 2 ] } }
output { name: "y" data_type: TYPE_FP32 dims: [ 12 ] reshape { shape: [ 1, 3, 2, 2 ] } label_filename: "labels.txt" }
"""
BATCHED: Final = """
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 6 ] reshape { shape: [ 2, 3 ] } }
output { name: "y" data_type: TYPE_FP32 dims: [ 3, 2 ] reshape { shape: [ 2, 3 ] } }
dynamic_batching { }
"""
FREE: Final = """
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 2, 3, -1, 5 ] reshape { shape: [ 6, -1, 1, 5 ] } }
output { name: "y" data_type: TYPE_FP32 dims: [ 1, 6, -1, 5 ] reshape { shape: [ 6, -1, 1, 5 ] } }
"""
SCALARS: Final = """
max_batch_size: 4
input { name: "x" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ ] } }
output { name: "y" data_type: TYPE_FP32 dims: [ 1 ] reshape { } }
dynamic_batching { }
"""
Case = tuple[str, list[int | str], tuple[int, ...], tuple[int, ...]]
CASES: Final[dict[str, Case]] = {
    "quickstart": (TRITONS_QUICKSTART, [1, 3, 2, 2], (3, 2, 2), (12,)),
    "batched": (BATCHED, ["n", 2, 3], (2, 6), (2, 3, 2)),
    "free": (FREE, ["n", 6, "m", 1, 5], (2, 2, 3, 4, 5), (2, 1, 6, 4, 5)),
    "scalars": (SCALARS, ["n"], (3, 1), (3, 1)),
}
"""The configuration, the graph's shape, what a client sends and what it gets."""


def write(root: Path, name: str) -> None:
    """A model whose output is its input, twice."""
    config, shape, _, _ = CASES[name]
    folder = root / name / "1"
    folder.mkdir(parents=True)
    (folder.parent / "config.pbtxt").write_text(config)
    (folder.parent / "labels.txt").write_text("\n".join(f"class {index}" for index in range(12)))
    port = {"x": tensor_port("x", "FP32", shape), "y": tensor_port("y", "FP32", shape)}
    graph = model_bytes("twice", [node("Add", ["x", "x"], ["y"])], inputs=[port["x"]], outputs=[port["y"]])
    (folder / "model.onnx").write_bytes(graph)


def values(name: str) -> Any:
    """What a client sends."""
    shape = CASES[name][2]
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.every_front_end
def test_clients_send_dims_and_get_dims(serve: Serve, tmp_path: Path) -> None:
    for name in CASES:
        write(tmp_path, name)
    daemon = serve(tmp_path)
    (note,) = next(each["notes"] for each in daemon.status()["models"] if each["name"] == "quickstart")
    assert note.startswith("input[0].format: is accepted, but nothing acts on it")
    assert note.encode() in daemon.get("/models/quickstart")
    with (
        triton.InferenceServerClient(daemon.grpc) as grpc,
        triton_http.InferenceServerClient(daemon.http) as http,
    ):
        for name, (_, _, sent, got) in CASES.items():
            metadata = grpc.get_model_metadata(name, as_json=True)
            assert len(metadata["inputs"][0]["shape"]) == len(sent), metadata
            assert http.get_model_metadata(name)["outputs"][0]["shape"] == [
                int(size) for size in metadata["outputs"][0]["shape"]
            ]
            for client, protocol in ((grpc, triton), (http, triton_http)):
                for _ in range(4):  # the native front end answers by itself what it has seen before
                    feed = protocol.InferInput("x", list(sent), "FP32")
                    feed.set_data_from_numpy(values(name))
                    answer = client.infer(name, [feed]).as_numpy("y")
                    assert answer.shape == got
                    assert answer.ravel().tolist() == (2 * values(name)).ravel().tolist()
        feed = triton.InferInput("x", [1, 3, 2, 2], "FP32")
        feed.set_data_from_numpy(values("quickstart").reshape(1, 3, 2, 2))
        with pytest.raises(InferenceServerException, match=r"Expected \[3,2,2\], got \[1,3,2,2\]"):
            grpc.infer("quickstart", [feed])
        feed = triton.InferInput("x", [3, 2, 2], "FP32")
        feed.set_data_from_numpy(values("quickstart"))
        top = triton.InferRequestedOutput("y", class_count=1)
        assert grpc.infer("quickstart", [feed], outputs=[top]).as_numpy("y").tolist() == [
            b"22.000000:11:class 11"
        ]
        config = grpc.get_model_config("quickstart", as_json=True)["config"]
        assert config["input"][0]["reshape"] == {"shape": ["1", "3", "2", "2"]}


@pytest.mark.parametrize("name", CASES)
def test_golden_answers_packages_and_measurements_are_in_what_clients_see(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tmp_path, name)
    version, shape = tmp_path / name / "1", ["--shape", "x=2,3,4,5"] if name == "free" else []
    for words in (
        ("golden", version, "--random", 1, *shape),
        ("bench", version, "--rows", 1, "--budget-ms", 10),
        ("pack", version, "--out", tmp_path / "package"),
    ):
        assert main(["model", *map(str, words)]) == 0, (words, capsys.readouterr())
    golden = json.loads((version / "golden" / "set.json").read_text())
    rows = [1] if "max_batch_size: 4" in CASES[name][0] else []
    assert golden["cases"][0]["outputs"][0]["shape"] == [*rows, *CASES[name][3][len(rows) :]]
