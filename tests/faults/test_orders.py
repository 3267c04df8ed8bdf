"""What an operator orders is served at once, however it compares with what it leaves: real commands, a real daemon."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, helper, numpy_helper

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.core.rollout.records import Ending
from appliance.engine.versions.history import read_history
from appliance.store.layout import SERVE
from tests.appliance_process import ApplianceProcess
from tests.conftest import Serve
from tests.repository.onnx_files import model_of, plain_model, port, write_version

SIDE = 512
DIMS = (SIDE, SIDE)
PRODUCTS = 30
STORE = {
    "store": {"free_floor_bytes": 0},
    "packages": {"unsigned": "allow"},
    "swap": {"watch_s": 0.3, "packed_forms": False},
}

Command = Callable[..., str]


def slow_model() -> ModelProto:
    """y = x, by many products with a matrix that changes nothing."""
    names = ["x", *(f"x{number}" for number in range(1, PRODUCTS)), "y"]
    products = [helper.make_node("MatMul", [one, "w"], [following]) for one, following in pairwise(names)]
    weights = numpy_helper.from_array(np.eye(SIDE, dtype=np.float32), "w")
    return model_of([port("x", DIMS)], [port("y", DIMS)], products, [weights])


@pytest.fixture
def appliance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    """A command that works on the store; gives what it printed."""
    config = tmp_path / "store.toml"
    config.write_text('[store]\nfree_floor_bytes = 0\n[packages]\nunsigned = "allow"\n')

    def run(*words: object) -> str:
        place = ("--state-dir", str(tmp_path / "state"), "--config", str(config))
        status = main(["model", *map(str, words), *place])
        told = capsys.readouterr()
        assert status == Exit.OK, told.err
        return told.out

    return run


@pytest.fixture
def packages(tmp_path: Path) -> list[Path]:
    """Of a version that takes long and of one that takes no time, with the same inputs and outputs."""
    (tmp_path / "state").mkdir()
    made = []
    models = (slow_model(), plain_model(DIMS))
    for version, model in enumerate(models, start=1):
        source = write_version(tmp_path / "sources", "m", model, version)
        made.append(tmp_path / f"m-{version}.model")
        words = ("model", "pack", source, "--version", version, "--no-proof", "-o", made[-1])
        assert main([str(word) for word in words]) == Exit.OK
    return made


def serves(version: int) -> Callable[[Any], bool]:
    """Whether that is all there is, and nothing of it is to be seen any more."""

    def holds(now: Any) -> bool:
        found = [(entry["version"], entry["state"], entry["trial"]) for entry in now["models"]]
        return found == [(version, "READY", None)]

    return holds


@pytest.mark.parametrize(
    ("order", "runs"),
    [(("rollback", "m"), True), (("want", "m/1"), False)],
    ids=["while_it_serves", "while_nothing_runs"],
)
def test_a_version_that_is_much_slower_than_what_it_leaves_is_gone_back_to(
    serve: Serve, tmp_path: Path, appliance: Command, packages: list[Path], order: tuple[str, ...], runs: bool
) -> None:
    def start() -> ApplianceProcess:
        return serve(None, STORE, arguments=("--state-dir", str(tmp_path / "state")))

    appliance("install", packages[0])
    daemon = start()
    daemon.until("the first", serves(1))
    appliance("install", packages[1], "--wait", "--url", daemon.http)
    daemon.until("the second alone", serves(2))
    if runs:
        appliance(*order, "--wait", "--url", daemon.http)
        daemon.until("the first alone", serves(1))
        assert daemon.stop() == 0
    else:
        assert daemon.stop() == 0
        appliance(*order)
    daemon = start()
    daemon.until("what was ordered, alone", serves(1))
    assert daemon.stop() == 0, "what is written follows what serves"
    told = [(each.version, each.ending) for each in read_history(tmp_path / "state" / SERVE, "m")]
    assert told == [(1, Ending.LIVE), (2, Ending.LIVE), (1, Ending.LIVE)]


@pytest.mark.every_front_end
def test_where_what_is_gone_back_to_cannot_be_loaded_any_more_the_next_older_stands_in(
    serve: Serve, tmp_path: Path, appliance: Command, packages: list[Path]
) -> None:
    state = tmp_path / "state"
    third = plain_model(DIMS)
    third.doc_string = "its file is its own"
    source = write_version(tmp_path / "third", "m", third, 3)
    packages.append(tmp_path / "m-3.model")
    words = ("model", "pack", source, "--version", 3, "--no-proof", "-o", packages[-1])
    assert main([str(word) for word in words]) == Exit.OK
    appliance("install", packages[0])
    daemon = serve(None, STORE, arguments=("--state-dir", str(state)))
    daemon.until("the first", serves(1))
    for version, package in enumerate(packages[1:], start=2):
        appliance("install", package, "--wait", "--url", daemon.http)
        daemon.until("it alone", serves(version))
    for file in (state / "views").rglob("m/2/*.onnx"):
        data = file.read_bytes()
        file.chmod(0o600)
        file.write_bytes(bytes(len(data)))
    appliance("rollback", "m")

    def stands_in(now: Any) -> bool:
        return [(each["version"], each["state"]) for each in now["models"]] == [
            (1, "READY"),
            (2, "UNAVAILABLE"),
        ]

    daemon.until("the next older one", stands_in)
    assert daemon.stop() == 0
    daemon = serve(None, STORE, arguments=("--state-dir", str(state)))
    daemon.until("it still", stands_in)
    appliance("want", "m/3")
    daemon.until("what is wanted, alone", serves(3))
