"""A box of a fleet as it is used: a daemon under load, its agent, releases that come, one of them bad, and kills."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from onnx import TensorProto

from appliance.cli.main import main
from appliance.fleet.documents import WishedModel, WishedVersion
from appliance.fleet.messages import ModelReport
from tests.conftest import Serve
from tests.faults.clients import Stream, ask
from tests.faults.golden_sets import write_expected
from tests.repository.onnx_files import plain_model, write_version
from tests.sync.conftest import controller
from tests.sync.controller_double import ControllerDouble

__all__ = ["controller"]

STORE = {"store": {"free_floor_bytes": 0}, "packages": {"unsigned": "allow"}}
Offer = Callable[..., WishedVersion]
Agent = Callable[[], "subprocess.Popen[bytes]"]


@pytest.fixture
def offer(controller: ControllerDouble, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Offer:
    """Make a version of model ``m``, y = x, that can be had. ``answer``: what its golden set wants to 1, 2, 3, 4."""

    def offered(version: int, answer: Sequence[int] = ()) -> WishedVersion:
        source = write_version(tmp_path / "sources", "m", plain_model(element=TensorProto.UINT8), version)
        if answer:
            write_expected(source, answer)
        package = tmp_path / f"m-{version}.model"
        words = ("--version", str(version), "-o", str(package), *["--no-proof"] * bool(answer))
        assert main(["model", "pack", str(source), *words]) == 0
        capsys.readouterr()
        before = tmp_path / f"m-{version - 1}.model"
        return controller.offer(package, before if before.exists() else None)

    return offered


@pytest.fixture
def box(tmp_path: Path, controller: ControllerDouble) -> tuple[str, ...]:
    """The arguments of a box that belongs to the fleet."""
    config = tmp_path / "box.toml"
    config.write_text('[store]\nfree_floor_bytes = 0\n[packages]\nunsigned = "allow"\n')
    words = ("--state-dir", str(tmp_path / "state"), "--config", str(config))
    assert main(["sync", "enrol", controller.token(), *words]) == 0
    return words


AS_USUAL = (
    "from appliance.cli.main import main; from appliance.cli.sync import agent; agent.NICENESS = 0; "
    "raise SystemExit(main())"
)
"""An agent at the usual priority. At its own, below all others, a step that computes for a third of a second stands for
a minute beside four busy tests on two processors, and this is about what comes of steps."""


@pytest.fixture
def agent(box: tuple[str, ...]) -> Iterator[Agent]:
    begun: list[subprocess.Popen[bytes]] = []

    def start() -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", AS_USUAL]
        begun.append(subprocess.Popen([*command, "sync", *box]))  # what it says is told where the test fails
        return begun[-1]

    yield start
    for process in begun:
        process.kill()
        process.wait()


def told(controller: ControllerDouble) -> ModelReport:
    """What the controller was told of the model last."""
    models = controller.last.models if controller.last else ()
    return next((each for each in models if each.name == "m"), ModelReport(name="m"))


@pytest.mark.timeout(180)
def test_releases_reach_a_serving_box_and_a_bad_one_is_led_back_by_the_box(
    serve: Serve,
    box: tuple[str, ...],
    controller: ControllerDouble,
    offer: Offer,
    agent: Agent,
    tmp_path: Path,
) -> None:
    first, second, fourth = offer(1), offer(2), offer(4)
    bad = offer(3, (4, 3, 2, 1))
    daemon = serve(None, STORE, arguments=("--state-dir", str(tmp_path / "state")))
    controller.want(WishedModel(name="m", wanted=first))
    working = agent()
    controller.wait(lambda: told(controller).serving == 1, 60)
    with Stream(daemon.grpc, "m", pause_s=0.01) as stream:
        stream.wait_for(20)
        controller.want(WishedModel(name="m", wanted=second))
        working.kill()
        working.wait()
        agent()
        controller.wait(lambda: told(controller).serving == 2, 60)
        assert told(controller).phase == "done"
        controller.want(WishedModel(name="m", wanted=bad))
        controller.wait(lambda: told(controller).phase == "failed", 60)
        report = told(controller)
        assert (report.wanted, report.serving, report.code) == (3, 2, "failed")
        assert report.reason
        assert controller.last is not None
        assert not controller.last.converged
        controller.want(WishedModel(name="m", wanted=bad, prefetch=(second,)))
        polls = len(controller.polls)
        controller.wait(lambda: len(controller.polls) > polls + 1, 60)
        assert told(controller).phase == "failed", "it is not tried again for something else that is wished"
        assert main(["model", "want", "m/1", *box]) == 0
        controller.wait(lambda: controller.last and controller.last.drift, 60)
        controller.want(WishedModel(name="m", wanted=fourth))
        polls = len(controller.polls)
        controller.wait(lambda: len(controller.polls) > polls + 1, 60)
        assert told(controller).wanted == 1, "what a person wants stands"
        assert main(["model", "resume", "m", *box]) == 0
        controller.wait(lambda: told(controller).serving == 4, 60)
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    assert not stream.wrong
    assert ask(daemon.grpc, "m").get_response().model_version == "4"
