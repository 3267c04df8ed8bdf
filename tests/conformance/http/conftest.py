"""One daemon for the whole suite, with a sample model of every kind."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.tensor import Datatype
from models.generate import write_model
from tests.appliance_process import ApplianceProcess

DIGITS = Path(__file__).parents[3] / "models" / "digits"
NAMES = (
    *(f"identity_{datatype.wire.lower()}" for datatype in Datatype),
    *(f"rank_{rank}" for rank in range(1, 7)),
    "add_sub",
    "data_shape",
    "many_io",
    "mlp",
    "no_batch",
    "not_onnx",
    "odd_names",
    "optional_input",
    "scalar",
    "string_concat",
    "transpose",
    "variable",
)


@pytest.fixture(scope="package")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    """The daemon, ready."""
    root = tmp_path_factory.mktemp("models")
    for name in NAMES:
        write_model(name, root)
    shutil.copytree(DIGITS, root / "digits")
    with ApplianceProcess(root) as process:
        yield process.wait_ready()
