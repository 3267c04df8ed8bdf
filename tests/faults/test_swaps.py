"""Versions that must not take over, or not for long, in real processes under load: no client notices."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from onnx import TensorProto, helper, numpy_helper
from tritonclient.utils import InferenceServerException

from appliance.core.rollout.policy import RolloutPolicy
from appliance.domain.interface import ALLOWED_PARAMETER
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS, Stream, ask, tensor
from tests.faults.fake_models import write_fake
from tests.faults.golden_sets import write_expected
from tests.repository.onnx_files import model_of, port

BYTE = TensorProto.UINT8
WATCHED: dict[str, Any] = {"watch_s": 60.0, "error_percent": 0.0}


def entry(now: Any, name: str = "m", version: int = 1) -> Any:
    """The version's entry in the status document; {} when there is none."""
    found = (each for each in now["models"] if (each["name"], each["version"]) == (name, version))
    return next(found, {})


def on_trial(model: Any) -> bool:
    """Whether another file of the version runs some requests, or all, while the one before is there."""
    return "is on trial" in model["reason"] or bool(model["trial"] and model["trial"]["before"])


def write_version(root: Path, number: int, added: int = 0, *, elements: int = 0, name: str = "x") -> Path:
    """A version of ``m`` in ONNX: y = x + ``added``, UINT8 [4]. ``elements``: as large as the constant is that the
    runtime computes when it loads; ``name``: that of the input, where there are none."""
    nodes = [helper.make_node("Add", [name, "added"], ["y"])]
    tensors = [numpy_helper.from_array(np.array([added], np.uint8), "added")]
    if elements:
        zero = numpy_helper.from_array(np.zeros(1, np.float32))
        nodes = [
            helper.make_node("ConstantOfShape", ["size"], ["huge"], value=zero),
            helper.make_node("Cos", ["huge"], ["cosines"]),
            helper.make_node("ReduceMin", ["cosines"], ["one"], keepdims=0),
            helper.make_node("Cast", ["one"], ["byte"], to=BYTE),
            helper.make_node("Sub", ["byte", "byte"], ["zero"]),
            helper.make_node("Add", ["x", "zero"], ["y"]),
        ]
        tensors = [numpy_helper.from_array(np.array([elements], np.int64), "size")]
    model = model_of([port(name, ("batch", 4), BYTE)], [port("y", ("batch", 4), BYTE)], nodes, tensors)
    folder = root / "m" / str(number)
    folder.mkdir(parents=True)
    onnx.save(model, str(folder / "model.onnx"))
    return folder


@pytest.mark.parametrize(
    ("mode", "words"),
    [
        ("crash_at_load", "quarantined after repeated crashes"),
        ("hang_at_load", "quarantined after repeated crashes: hung"),
        ("fail_at_load", "told to refuse"),
        ("delay", "swap.slower_factor"),
    ],
)
def test_what_cannot_load_or_is_too_slow_changes_nothing(
    serve: Serve, tmp_path: Path, mode: str, words: str
) -> None:
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path, {**FAKE_SECTIONS, "workers": {"load_timeout_ms": 400}})
    with Stream(daemon.grpc, "m") as stream:
        stream.wait_for(20)
        write_fake(tmp_path, "m", mode=mode, delay_ms=30)
        daemon.signal(signal.SIGHUP)
        now = daemon.until("the refusal", lambda now: words in entry(now)["reason"])
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    assert entry(now)["state"] == "READY"
    assert "still serving the previous file" in entry(now)["reason"]
    assert now["swaps"]["endings"]["refused"] == 1


def test_a_load_that_nobody_waits_for_any_more_ends_at_once_and_makes_place(
    serve: Serve, tmp_path: Path
) -> None:
    """Loads that hang take every place; the one that is abandoned gives its own up."""
    names = ("m", "n")
    for name in names:
        write_fake(tmp_path, name)
    limits = {
        "workers": {"load_timeout_ms": 600_000},
        "swap": {"watch_s": 0.0, "slower_factor": 0.0},
    }
    daemon = serve(tmp_path, {**FAKE_SECTIONS, **limits})
    with Stream(daemon.grpc, "m") as stream:
        stream.wait_for(20)
        for name in names:
            write_fake(tmp_path, name, mode="hang_at_load")
        daemon.signal(signal.SIGHUP)
        daemon.until("both loads", lambda now: len(now["workers"]) == 2 + RolloutPolicy().loads)
        write_fake(tmp_path, "m", mode="delay", delay_ms=1)
        daemon.signal(signal.SIGHUP)
        now = daemon.until("the next", lambda now: now["swaps"]["endings"].get("live") == 3)
        daemon.until("the end of both others of m", lambda now: len(now["workers"]) == 3)
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    assert now["swaps"]["endings"] == {"live": 3, "abandoned": 1}


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("mode", ["crash", "fail"])
def test_what_goes_wrong_after_a_while_is_rolled_back_and_nobody_notices(
    serve: Serve, tmp_path: Path, mode: str, threads: int
) -> None:
    write_fake(tmp_path, "m")
    daemon = serve(tmp_path, {**FAKE_SECTIONS, "swap": WATCHED})
    with Stream(daemon.grpc, "m", threads=threads) as stream:
        stream.wait_for(20)
        write_fake(tmp_path, "m", mode=mode, crash_after=100)
        daemon.signal(signal.SIGHUP)
        now = daemon.until("the way back", lambda now: "rolled back" in entry(now)["reason"])
        stream.wait_for(50)
        daemon.signal(signal.SIGHUP)
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    assert entry(now)["state"] == "READY"
    assert now["swaps"]["endings"]["rolled back"] == 1


@pytest.mark.every_front_end
@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("canary", [0.0, 50.0])
def test_a_run_that_hangs_while_another_version_could_answer_costs_a_moment(
    serve: Serve, tmp_path: Path, canary: float, threads: int
) -> None:
    write_fake(tmp_path, "m")
    swap = {**WATCHED, "canary_percent": canary, "trial_requests": 100_000}
    daemon = serve(tmp_path, {**FAKE_SECTIONS, "swap": swap, "workers": {"run_timeout_ms": 600_000}})
    with Stream(daemon.grpc, "m") as stream:
        stream.wait_for(20)
        write_fake(tmp_path, "m", mode="hang", magic=7)
        daemon.signal(signal.SIGHUP)
        daemon.until("its trial", lambda now: on_trial(entry(now)))
        with Stream(daemon.grpc, "m", threads=threads, first=7) as hanging:
            now = daemon.until("the way back", lambda now: "hung" in entry(now)["reason"])
            hanging.wait_for(20)
        stream.wait_for(20)
    assert set(stream.outcomes) == set(hanging.outcomes) == {"OK"}
    assert entry(now)["state"] == "READY"


def test_a_wrong_answer_to_the_golden_set_keeps_a_version_out(serve: Serve, tmp_path: Path) -> None:
    write_version(tmp_path, 1)
    write_expected(tmp_path / "m" / "1", [1, 2, 3, 4], p99_us=10_000_000)
    daemon = serve(tmp_path)
    with Stream(daemon.grpc, "m") as stream:
        stream.wait_for(20)
        write_expected(write_version(tmp_path, 2, 1), [1, 2, 3, 4])
        daemon.signal(signal.SIGHUP)
        now = daemon.until("the refusal", lambda now: entry(now, "m", 2).get("state") == "UNAVAILABLE")
        assert "golden case 'a'" in entry(now, "m", 2)["reason"]
        assert now["swaps"]["assessments_failed"] == 1
        write_expected(write_version(tmp_path, 3), [1, 2, 3, 4], p99_us=1)
        daemon.signal(signal.SIGHUP)
        now = daemon.until("the refusal", lambda now: entry(now, "m", 3).get("state") == "UNAVAILABLE")
        assert "are promised" in entry(now, "m", 3)["reason"]
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    assert stream.wrong == 0
    assert ask(daemon.grpc, "m").get_response().model_version == "1"


def test_a_version_that_needs_too_much_memory_to_load_keeps_out(serve: Serve, tmp_path: Path) -> None:
    write_version(tmp_path, 1)
    daemon = serve(tmp_path, {"workers": {"memory_limit_bytes": 512 << 20}})
    with Stream(daemon.grpc, "m") as stream:
        stream.wait_for(20)
        write_version(tmp_path, 2, elements=1 << 30)
        daemon.signal(signal.SIGHUP)
        daemon.until("the refusal", lambda now: entry(now, "m", 2).get("state") == "UNAVAILABLE")
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    assert ask(daemon.grpc, "m").get_response().model_version == "1"


def test_versions_that_answer_otherwise_are_found_in_the_shadow(serve: Serve, tmp_path: Path) -> None:
    write_version(tmp_path, 1)
    shadow = {"shadow_percent": 50.0, "trial_requests": 20, "stage_s": 0.0, "watch_s": 0.0}
    daemon = serve(tmp_path, {"swap": shadow})
    with Stream(daemon.grpc, "m") as stream:
        stream.wait_for(20)
        write_version(tmp_path, 2, 1)
        daemon.signal(signal.SIGHUP)
        now = daemon.until("the refusal", lambda now: entry(now, "m", 2).get("state") == "UNAVAILABLE")
        assert "answers differently" in entry(now, "m", 2)["reason"]
        write_version(tmp_path, 3)
        daemon.signal(signal.SIGHUP)
        now = daemon.until("the new version", lambda now: entry(now, "m", 3).get("state") == "READY")
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    assert stream.wrong == 0, "an answer of the shadow was sent"
    assert now["swaps"]["compared"] >= 20


@pytest.mark.every_front_end
def test_a_version_that_may_have_other_inputs_than_its_clients_have_stays_where_a_trial_is_configured(
    serve: Serve, tmp_path: Path
) -> None:
    """Somebody said that clients change along: what the old ones get is what was said."""
    write_version(tmp_path, 1)
    swap = {"shadow_percent": 50.0, "trial_requests": 20, "error_percent": 20.0, "watch_s": 600.0}
    daemon = serve(tmp_path, {"swap": swap})
    ask(daemon.grpc, "m")
    (tmp_path / "m" / "config.pbtxt").write_text(
        f'parameters {{ key: "{ALLOWED_PARAMETER}" value {{ string_value: "true" }} }}\n'
    )
    write_version(tmp_path, 2, name="z")
    daemon.signal(signal.SIGHUP)
    now = daemon.until("the new version", lambda now: entry(now, "m", 2).get("state") == "READY")
    assert entry(now, "m", 2)["untried"] == "its inputs are not those of version 1"
    daemon.wait_log("went live without the configured trial")
    over_http = triton_http.InferenceServerClient(daemon.http)
    for _ in range(10):
        with pytest.raises(InferenceServerException, match="unexpected inference input 'x'"):
            ask(daemon.grpc, "m")
        with pytest.raises(InferenceServerException, match="unexpected inference input 'x'"):
            over_http.infer("m", [tensor_over_http()])
    over_http.close()
    now = daemon.until("the refusals", lambda now: entry(now, "m", 2)["requests"]["invalid"] == 20)
    assert (entry(now, "m", 2)["state"], entry(now, "m", 2)["trial"]["failed"]) == ("READY", 0)


def tensor_over_http() -> triton_http.InferInput:
    """What ``clients.tensor`` is over gRPC."""
    feed = triton_http.InferInput("x", [1, 4], "UINT8")
    feed.set_data_from_numpy(np.array([[1, 2, 3, 4]], dtype=np.uint8))
    return feed


@pytest.mark.every_front_end
def test_a_canary_serves_the_clients_of_its_header_and_those_that_name_it(
    serve: Serve, tmp_path: Path
) -> None:
    write_version(tmp_path, 1)
    canary = {"canary_percent": 50.0, "canary_header": "x-site", "trial_requests": 100_000, "watch_s": 0.0}
    daemon = serve(tmp_path, {"swap": canary})
    client = triton.InferenceServerClient(daemon.grpc)

    def served_by(site: str) -> str:
        headers = {"x-site": site} if site else None
        return str(client.infer("m", [tensor()], headers=headers).get_response().model_version)

    assert {served_by(""), served_by("a")} == {"1"}
    write_version(tmp_path, 2)
    daemon.signal(signal.SIGHUP)
    daemon.until("the canary", lambda now: (entry(now, "m", 2).get("trial") or {}).get("stage") == "canary")
    by_site = {site: {served_by(site) for _ in range(4)} for site in map(str, range(40))}
    assert {len(versions) for versions in by_site.values()} == {1}, "a client stays with its version"
    assert {version for versions in by_site.values() for version in versions} == {"1", "2"}
    assert {served_by("") for _ in range(10)} == {"1"}
    for version in ("1", "2"):
        assert ask(daemon.grpc, "m", version=version).get_response().model_version == version
        assert client.is_model_ready("m", version)
        assert json.loads(daemon.get(f"/v2/models/m/versions/{version}/ready"))["ready"]
    states = {each.version: (each.state, each.reason) for each in client.get_model_repository_index().models}
    assert states == {"1": ("READY", ""), "2": ("READY", "")}
    assert [entry(daemon.status(), "m", version)["state"] for version in (1, 2)] == ["READY", "READY"]
    client.close()


@pytest.mark.every_front_end
def test_a_canary_serves_the_clients_of_its_header_over_http_as_well(serve: Serve, tmp_path: Path) -> None:
    """Whoever listens, and also for requests that the native front end has learned to serve by itself: each client is
    led where gRPC leads it, by a header in whatever case, on one connection; and nobody when the canary is over."""
    write_version(tmp_path, 1)
    canary = {"canary_percent": 50.0, "canary_header": "x-site", "trial_requests": 100_000, "watch_s": 0.0}
    daemon = serve(tmp_path, {"swap": canary})
    x = triton_http.InferInput("x", [1, 4], "UINT8")
    x.set_data_from_numpy(np.array([[1, 2, 3, 4]], np.uint8))
    with (
        triton_http.InferenceServerClient(daemon.http) as client,
        triton.InferenceServerClient(daemon.grpc) as by_grpc,
    ):

        def served_by(site: str, header: str = "X-Site") -> str:
            answer = client.infer("m", [x], headers={header: site} if site else None)
            return str(answer.get_response()["model_version"])

        assert {served_by(site) for site in ("", "a", "b") for _ in range(20)} == {"1"}
        folder = write_version(tmp_path, 2)
        daemon.signal(signal.SIGHUP)
        daemon.until(
            "the canary", lambda now: (entry(now, "m", 2).get("trial") or {}).get("stage") == "canary"
        )
        by_site = {site: {served_by(site) for _ in range(4)} for site in map(str, range(40))}
        assert {len(versions) for versions in by_site.values()} == {1}, "a client stays with its version"
        assert {version for versions in by_site.values() for version in versions} == {"1", "2"}
        assert {served_by("") for _ in range(10)} == {"1"}
        for site in map(str, range(8)):
            led = by_grpc.infer("m", [tensor()], headers={"x-site": site}).get_response().model_version
            assert by_site[site] == {str(led), served_by(site, "x-SITE")}
        now = daemon.status()
        assert entry(now, "m", 2)["trial"]["answered"] == entry(now, "m", 2)["requests"]["success"] > 0
        shutil.rmtree(folder)
        daemon.signal(signal.SIGHUP)
        daemon.until("the end of the canary", lambda now: not entry(now, "m", 2))
        assert {served_by(site) for site in map(str, range(40))} == {"1"}
