"""One daemon for whoever may listen for HTTP, with a sample model of every kind.

Tests that infer run once more through the native front end, with each of their requests sent several times, so that the
front end serves it by itself.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import tritonclient.http as triton
import tritonclient.http.aio as aio

from appliance.domain.tensor import Datatype
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.conformance.http.repeating import async_repeating, repeating
from tests.fronts import EVERY_FRONT_END, TEMPLATED, WAYS

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


@pytest.fixture(scope="package", params=EVERY_FRONT_END, ids=str)
def way(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which way requests take; modules that infer ask for every one there is."""
    way = str(request.param)
    with pytest.MonkeyPatch.context() as patched:
        if way == TEMPLATED:
            for client, several in ((triton, repeating), (aio, async_repeating)):
                patched.setattr(
                    client.InferenceServerClient, "infer", several(client.InferenceServerClient.infer)
                )
        yield way


@pytest.fixture(scope="package")
def server(way: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    """The daemon, ready."""
    root = tmp_path_factory.mktemp("models")
    for name in NAMES:
        write_model(name, root)
    shutil.copytree(DIGITS, root / "digits")
    with ApplianceProcess(root, WAYS[way]) as process:
        yield process.wait_ready()
