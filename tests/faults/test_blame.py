"""One client takes a model from the others for no longer than a restart of its worker, whatever it asks."""

from __future__ import annotations

import http.client
import json
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS, ask
from tests.faults.fake_models import write_fake
from tests.faults.test_workers import version_in

HOSTILE: Final = "127.0.0.2"
"""The address of the client that others share the appliance with."""
POISON: Final = {"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 4], "data": [66, 1, 2, 3]}]}
LAWFUL: Final = {"inputs": [{"name": "x", "datatype": "UINT8", "shape": [1, 4], "data": [0, 1, 2, 3]}]}
HANGS: Final[dict[str, Any]] = {"mode": "hang", "magic": 66, "run_timeout_ms": 300}
CRASHES: Final[dict[str, Any]] = {"mode": "crash", "magic": 66}


def hostile(
    daemon: ApplianceProcess, model: str, body: object, timeout_s: float = 30.0, source: str = HOSTILE
) -> tuple[int, str]:
    """What a client at another address is answered over HTTP; (0, "") when it does not wait for that."""
    host, _, port = daemon.http.rpartition(":")
    connection = http.client.HTTPConnection(host, int(port), timeout_s, source_address=(source, 0))
    try:
        connection.request(
            "POST", f"/v2/models/{model}/infer", json.dumps(body), {"Content-Type": "application/json"}
        )
        answer = connection.getresponse()
        return answer.status, answer.read().decode()
    except TimeoutError:
        return 0, ""
    finally:
        connection.close()


def has_restarted(restarts: int, now: Any) -> bool:
    """Whether by this status the first worker was started again so often."""
    return bool(now["workers"][0]["restarts"] == restarts)


def version_of(answer: Any) -> str:
    """Which version has answered."""
    return str(answer.get_response().model_version)


@pytest.mark.every_front_end
@pytest.mark.parametrize("mode", [HANGS, CRASHES], ids=["hangs", "crashes"])
def test_a_request_that_ends_its_worker_is_refused_and_others_go_on(
    serve: Serve, tmp_path: Path, mode: dict[str, Any]
) -> None:
    write_fake(tmp_path, "m", **mode)
    daemon = serve(tmp_path, FAKE_SECTIONS)
    ask(daemon.grpc, "m")
    for status in (503, 503, 429):
        answered, text = hostile(daemon, "m", POISON)
        assert answered == status, text
        assert ("died with the request" if status == 503 else "requests of this client") in text
        assert ask(daemon.grpc, "m").as_numpy("y").tolist() == [[0, 1, 2, 3]]
    now = daemon.status()
    assert version_in(now, "m")["state"] == "READY"
    assert sum(worker["restarts"] for worker in now["workers"]) == 2, "each cost one worker"
    restarts = version_in(now, "m")["restarts"]
    assert restarts == {**dict.fromkeys(restarts, 0), "hung" if mode is HANGS else "died": 2}
    told = daemon.get("/metrics").decode()
    assert 'appliance_worker_info{worker="0",model="m",version="1"} 1' in told, (
        "in the place of the one that died"
    )


@pytest.mark.every_front_end
def test_requests_that_nobody_waits_for_any_more_are_known_to_be_whose(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m", **HANGS)
    daemon = serve(tmp_path, FAKE_SECTIONS)
    for restarts in (1, 2):
        assert hostile(daemon, "m", POISON, timeout_s=0.1) == (0, "")
        daemon.until("its end", partial(has_restarted, restarts))
        assert ask(daemon.grpc, "m") is not None
    assert hostile(daemon, "m", POISON)[0] == 429
    assert version_in(daemon.status(), "m")["state"] == "READY"


@pytest.mark.every_front_end
def test_a_request_that_ends_workers_of_two_versions_moves_nobody(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m", versions=(1, 2), **CRASHES)
    daemon = serve(tmp_path, FAKE_SECTIONS)
    for status in (503, 503, 429):
        assert hostile(daemon, "m", POISON)[0] == status
        assert version_of(ask(daemon.grpc, "m")) == "2"
        assert version_of(ask(daemon.grpc, "m", version="1")) == "1"
    assert {each["state"] for each in daemon.status()["models"]} == {"READY"}


@pytest.mark.every_front_end
def test_a_client_of_many_addresses_takes_nothing_away_that_has_answered(
    serve: Serve, tmp_path: Path
) -> None:
    write_fake(tmp_path, "m", **CRASHES)
    daemon = serve(tmp_path, FAKE_SECTIONS)
    ask(daemon.grpc, "m")
    for each in range(4):
        assert hostile(daemon, "m", POISON, source=f"127.0.1.{each + 1}")[0] == 503
        assert ask(daemon.grpc, "m") is not None
    assert version_in(daemon.status(), "m")["state"] == "READY"


@pytest.mark.every_front_end
def test_addresses_do_not_take_away_what_was_asked_nothing_else_before(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m", **CRASHES)
    daemon = serve(tmp_path, FAKE_SECTIONS)
    for each in range(3):
        assert hostile(daemon, "m", POISON, source=f"127.0.1.{each + 1}")[0] == 503
    assert ask(daemon.grpc, "m").as_numpy("y").tolist() == [[0, 1, 2, 3]]
    assert version_in(daemon.status(), "m")["state"] == "READY"


@pytest.mark.every_front_end
def test_what_no_new_worker_can_run_any_more_is_to_blame(serve: Serve, tmp_path: Path) -> None:
    broken = tmp_path / "it broke"
    models = tmp_path / "models"
    write_fake(models, "m", **CRASHES, crash_while=broken)
    daemon = serve(models, FAKE_SECTIONS)
    ask(daemon.grpc, "m")
    broken.touch()
    assert hostile(daemon, "m", LAWFUL)[0] == 503
    daemon.until("its end", lambda now: version_in(now, "m")["state"] == "UNAVAILABLE")
    assert "quarantined after repeated crashes" in version_in(daemon.status(), "m")["reason"]


@pytest.mark.every_front_end
def test_a_worker_that_died_leaves_no_memory_behind(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path, "m", **CRASHES)
    daemon = serve(tmp_path, FAKE_SECTIONS)
    ask(daemon.grpc, "m")
    before = tensors_of(daemon)
    for each in range(5):
        assert hostile(daemon, "m", POISON, source=f"127.0.1.{each + 1}")[0] == 503
        assert hostile(daemon, "m", LAWFUL)[0] == 200
        assert ask(daemon.grpc, "m") is not None
    assert tensors_of(daemon) == before


def tensors_of(daemon: ApplianceProcess) -> int:
    """How many memory objects for tensors the daemon has mapped."""
    return Path(f"/proc/{daemon.pid}/maps").read_text().count("appliance-tensors")


def looping(root: Path, name: str) -> None:
    """A model that goes round as often as its input says."""
    body = helper.make_graph(
        [
            helper.make_node("Identity", ["go_on"], ["goes_on"]),
            helper.make_node("Add", ["sum", "one"], ["summed"]),
        ],
        "body",
        [
            helper.make_tensor_value_info("turn", TensorProto.INT64, []),
            helper.make_tensor_value_info("go_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("sum", TensorProto.FLOAT, [1]),
        ],
        [
            helper.make_tensor_value_info("goes_on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("summed", TensorProto.FLOAT, [1]),
        ],
        [helper.make_tensor("one", TensorProto.FLOAT, [1], [1.0])],
    )
    graph = helper.make_graph(
        [
            helper.make_node("Squeeze", ["n"], ["turns"]),
            helper.make_node("Loop", ["turns", "yes", "zero"], ["y"], body=body),
        ],
        "loops",
        [helper.make_tensor_value_info("n", TensorProto.INT64, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])],
        [
            helper.make_tensor("yes", TensorProto.BOOL, [], [True]),
            helper.make_tensor("zero", TensorProto.FLOAT, [1], [0.0]),
        ],
    )
    write_onnx(root, name, graph, "n", "TYPE_INT64", "[ 1 ]", "y", "TYPE_FP32", "[ 1 ]", run_timeout_ms=500)


def write_onnx(root: Path, name: str, graph: onnx.GraphProto, *tensors: str, run_timeout_ms: int) -> None:
    """A model of one version; ``tensors`` are name, type and dimensions of its input and of its output."""
    folder = root / name / "1"
    folder.mkdir(parents=True)
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    onnx.save(made, folder / "model.onnx")
    source, kind, dims, into, out_kind, out_dims = tensors
    (root / name / "config.pbtxt").write_text(
        f"""platform: "onnxruntime_onnx"
input {{ name: "{source}" data_type: {kind} dims: {dims} }}
output {{ name: "{into}" data_type: {out_kind} dims: {out_dims} }}
parameters {{ key: "run_timeout_ms" value {{ string_value: "{run_timeout_ms}" }} }}
"""
    )


def loop(address: str, turns: int) -> float:
    """What the looping model makes of so many turns."""
    feed = triton.InferInput("n", [1], "INT64")
    feed.set_data_from_numpy(np.array([turns], dtype=np.int64))
    with triton.InferenceServerClient(address) as client:
        return float(client.infer("loop", [feed], client_timeout=30.0).as_numpy("y")[0])


@pytest.mark.every_front_end
def test_a_loop_that_its_input_makes_endless_ends_for_its_client_alone(serve: Serve, tmp_path: Path) -> None:
    looping(tmp_path, "loop")
    daemon = serve(tmp_path)
    assert loop(daemon.grpc, 5) == 5.0
    endless = {"inputs": [{"name": "n", "datatype": "INT64", "shape": [1], "data": [1 << 40]}]}
    for status in (503, 503, 429):
        assert hostile(daemon, "loop", endless)[0] == status
        assert loop(daemon.grpc, 7) == 7.0
    assert version_in(daemon.status(), "loop")["state"] == "READY"


def texts(address: str, count: int, size: int) -> int:
    """How many texts of that size come back."""
    feed = triton.InferInput("x", [count], "BYTES")
    feed.set_data_from_numpy(np.full(count, b"x" * size, dtype=object))
    with triton.InferenceServerClient(address) as client:
        return len(client.infer("texts", [feed], client_timeout=60.0).as_numpy("y"))


@pytest.mark.every_front_end
def test_lawful_texts_that_take_longer_than_a_run_may_end_for_their_client_alone(
    serve: Serve, tmp_path: Path
) -> None:
    tensor = helper.make_tensor_value_info("x", TensorProto.STRING, ["n"])
    out = helper.make_tensor_value_info("y", TensorProto.STRING, ["n"])
    graph = helper.make_graph([helper.make_node("Identity", ["x"], ["y"])], "texts", [tensor], [out])
    write_onnx(
        tmp_path,
        "texts",
        graph,
        "x",
        "TYPE_STRING",
        "[ -1 ]",
        "y",
        "TYPE_STRING",
        "[ -1 ]",
        run_timeout_ms=300,
    )
    daemon = serve(tmp_path)
    assert texts(daemon.grpc, 3, 10) == 3
    for _ in range(2):
        with pytest.raises(InferenceServerException, match="died with the request"):
            texts(daemon.grpc, 1 << 20, 59)  # with their lengths 63 MiB
        until = daemon.until("a new worker", serves_again)
        assert version_in(until, "texts")["state"] == "READY"
    said = {"inputs": [{"name": "x", "datatype": "BYTES", "shape": [1], "data": ["x"]}]}
    assert hostile(daemon, "texts", said)[0] == 200, "others are served"


def serves_again(now: Any) -> bool:
    """Whether by this status the first worker serves."""
    return bool(now["workers"] and now["workers"][0]["state"] == "serving")
