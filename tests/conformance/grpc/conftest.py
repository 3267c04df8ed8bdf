"""One daemon per front end, with models for every row of the table.

Tests that infer run once more against the native front end, with each of their requests sent several times, so that
the front end serves it by itself."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from appliance.domain.tensor import Datatype
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.repeating import TIMES, async_repeating, repeating
from tests.conformance.grpc.stub import Stub
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake
from tests.fronts import EVERY_FRONT_END, TEMPLATED, WAYS, Sections

DIGITS = Path(__file__).parents[3] / "models" / "digits"
NAMES = (
    *(f"identity_{datatype.wire.lower()}" for datatype in Datatype),
    *(f"rank_{rank}" for rank in range(1, 7)),
    "add_sub",
    "many_io",
    "mlp",
    "no_batch",
    "not_onnx",
    "odd_names",
    "optional_input",
    "scalar",
    "string_concat",
    "variable",
)
UNTAUGHT = frozenset({"identity_bytes", "string_concat", "levels", "narrow", "snail"})
"""Models whose requests are the engine's: outputs of text, priorities, a bounded queue; and one never asked twice."""
OWN_WORKERS = {"placement": {"max_processes": 64}}
"""A model that hangs on purpose must not share its worker with those that other tests ask."""
NARROW = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
LEVELS = "dynamic_batching { priority_levels: 2 default_priority_level: 1 }"


@pytest.fixture(scope="package", params=EVERY_FRONT_END, ids=str)
def way(request: pytest.FixtureRequest) -> str:
    """Which way requests take; modules that infer ask for every one there is."""
    return str(request.param)


@pytest.fixture(scope="package")
def front_end(way: str) -> Sections:
    """Configuration that selects a front end."""
    return {**FAKE_SECTIONS, **WAYS[way]}


@pytest.fixture(scope="package")
def times(way: str) -> int:
    """How often each blocking inference is sent."""
    return TIMES if way == TEMPLATED else 1


@pytest.fixture(autouse=True)
def _repeated(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the channels of clients repeat what they send, where a test wants that."""
    if "way" in request.fixturenames and request.getfixturevalue("way") == TEMPLATED:
        monkeypatch.setattr(grpc, "insecure_channel", repeating(grpc.insecure_channel))
        monkeypatch.setattr(grpc.aio, "insecure_channel", async_repeating(grpc.aio.insecure_channel))


@pytest.fixture(scope="package")
def server(
    front_end: Sections, times: int, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ApplianceProcess]:
    """The daemon, ready."""
    root = tmp_path_factory.mktemp("models")
    for name in NAMES:
        write_model(name, root)
    shutil.copytree(DIGITS, root / "digits")
    write_fake(root, "slow", mode="delay", delay_ms=150)
    write_fake(root, "narrow", mode="delay", delay_ms=300, batched=False, extra=NARROW)
    write_fake(root, "snail", mode="delay", delay_ms=1500, batched=False)
    write_fake(root, "stuck", mode="hang", batched=False, run_timeout_ms=4000)
    write_fake(root, "levels", batched=False, extra=LEVELS)
    write_fake(root, "failing", mode="fail")
    write_fake(root, "pair", versions=(1, 3))
    with ApplianceProcess(root, {**front_end, **OWN_WORKERS}) as process:
        yield process.wait_ready()
        if times > 1:
            _were_leased(process)


def _were_leased(process: ApplianceProcess) -> None:
    """What was answered more than once was the front end's own, but for what it cannot serve."""
    answered = [entry for entry in process.status()["models"] if entry["requests"]["success"]]
    asked = {(entry["name"], entry["version"]) for entry in answered if not entry["leased"]}
    assert {name for name, _ in asked} <= UNTAUGHT, f"never leased: {sorted(asked)}"


@pytest.fixture
def stub(server: ApplianceProcess) -> Iterator[Stub]:
    """A connection to the daemon."""
    with Stub(server.grpc) as connected:
        yield connected
