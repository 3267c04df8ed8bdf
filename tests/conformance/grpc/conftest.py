"""One daemon per front door, with models for every row of the table."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.tensor import Datatype
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub
from tests.doors import DOORS, EVERY_DOOR, Sections
from tests.faults.clients import FAKE_SECTIONS
from tests.faults.fake_models import write_fake

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
OWN_WORKERS = {"placement": {"max_processes": 64}}
"""A model that hangs on purpose must not share its worker with those that other tests ask."""
NARROW = "dynamic_batching { default_queue_policy { max_queue_size: 1 } }"
LEVELS = "dynamic_batching { priority_levels: 2 default_priority_level: 1 }"


@pytest.fixture(scope="package", params=EVERY_DOOR, ids=str)
def door(request: pytest.FixtureRequest) -> Sections:
    """Configuration that selects a front door."""
    return {**FAKE_SECTIONS, **DOORS[request.param]}


@pytest.fixture(scope="package")
def server(door: Sections, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    """The daemon, ready."""
    root = tmp_path_factory.mktemp("models")
    for name in NAMES:
        write_model(name, root)
    shutil.copytree(DIGITS, root / "digits")
    write_fake(root, "slow", mode="delay", delay_ms=150)
    write_fake(root, "narrow", mode="delay", delay_ms=300, batched=False, extra=NARROW)
    write_fake(root, "snail", mode="delay", delay_ms=1500, batched=False)
    write_fake(root, "stuck", mode="hang", batched=False)
    write_fake(root, "levels", batched=False, extra=LEVELS)
    write_fake(root, "failing", mode="fail")
    write_fake(root, "pair", versions=(1, 3))
    with ApplianceProcess(root, {**door, **OWN_WORKERS}) as process:
        yield process.wait_ready()


@pytest.fixture
def stub(server: ApplianceProcess) -> Iterator[Stub]:
    """A connection to the daemon."""
    with Stub(server.grpc) as connected:
        yield connected
