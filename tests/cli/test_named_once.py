"""Nothing that a person is told names a model twice."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli.main import main
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve

SAMPLES = (
    "not_onnx",
    "truncated",
    "unknown_operator",
    "external_outside",
    "wrong_config",
    "mlp",
    "mlp",
    "mlp",
    "mlp",
)
CONFIGS = {
    5: "instance_group { kind: KIND_GPU }",
    6: 'backend: "python"',
    7: "max_batch_size: 8 input { name: 'nope' data_type: TYPE_FP32 dims: [ 4 ] }",
}
"""What is wrong with some of them; the last one serves."""
ASTRAY = "astray-q"
"""A model that came to no version: its reason names the place where one belongs, so it is named anew there."""
NAMES = tuple(f"model-q{number}q" for number in range(len(SAMPLES)))
BODIES = (b"{", b'{"inputs":[]}', b'{"inputs":[{"name":"none","shape":[1],"datatype":"FP32","data":["a"]}]}')


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """Models that cannot be served for as many reasons, whose names occur nowhere else."""
    root = tmp_path / "models"
    (root / ASTRAY).mkdir(parents=True)
    (write_model("mlp", tmp_path / ASTRAY) / "1").rename(root / ASTRAY / "v1")
    for number, (name, sample) in enumerate(zip(NAMES, SAMPLES, strict=True)):
        model = write_model(sample, tmp_path / name).rename(root / name)
        if number in CONFIGS:
            (model / "config.pbtxt").write_text(CONFIGS[number])
    return root


def _answers(address: str, name: str) -> Iterator[str]:
    place = f"/v2/models/{name}"
    asks = [
        ("GET", f"{place}{rest}", None)
        for rest in ("", "/versions/9", "/config", "/stats", "/versions/x/stats")
    ]
    for method, path, body in [*asks, *(("POST", f"{place}/infer", body) for body in BODIES)]:
        connection = http.client.HTTPConnection(address, timeout=30)
        connection.request(method, path, body)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        if answer.status >= http.client.BAD_REQUEST:
            yield json.loads(text)["error"]


@pytest.mark.every_front_end
def test_nothing_names_a_model_twice(
    serve: Serve, directory: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "2000")
    daemon = serve(directory)
    reasons = {each["name"]: each["reason"] for each in daemon.status()["models"] if each["name"] != ASTRAY}
    assert [name for name in NAMES if not reasons[name]] == [NAMES[-1]]
    assert not [(name, reason) for name, reason in reasons.items() if name in reason]
    told = [text for name in (*NAMES, "none-q9q") for text in _answers(daemon.http, name)]
    for words in (
        ["status"],
        ["top", "--once"],
        ["model", "list"],
        *(["infer", name, "--zeros"] for name in NAMES),
    ):
        main([*words, "--url", daemon.http])
    shown = capsys.readouterr()
    lines = [*told, *shown.out.splitlines(), *shown.err.splitlines(), *_not_ready(daemon)]
    assert sum(line.startswith(f"{ASTRAY}: ") for line in lines) == 3, "status, top and list"
    assert f"{ASTRAY}/0" not in shown.out
    assert len(lines) > 5 * len(NAMES)
    assert not [line for line in lines if any(line.count(name) > 1 for name in (*NAMES, "none-q9q"))]


def _not_ready(daemon: ApplianceProcess) -> Iterator[str]:
    """What the start tells of what does not serve."""
    yield from (line for line in daemon.log().splitlines() if line.startswith("Not ready: "))
