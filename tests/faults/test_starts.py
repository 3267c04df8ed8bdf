"""A start that takes its time or comes to nothing: signals meanwhile, runtimes that cannot be had, and what is told."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.appliance_process import to_toml
from tests.conftest import Serve
from tests.faults.clients import ask
from tests.faults.fake_models import write_fake
from tests.faults.gate import Gate


def _offer_runtime(folder: Path, code: str) -> dict[str, str]:
    """A runtime ``theirs`` of a third party, made by ``code``: the environment in which it is installed."""
    installed = folder / "theirs-1.dist-info"
    installed.mkdir(parents=True)
    (installed / "METADATA").write_text("Metadata-Version: 2.1\nName: theirs\nVersion: 1\n")
    (installed / "entry_points.txt").write_text("[appliance.runtimes]\ntheirs = theirs_runtime:make\n")
    (folder / "theirs_runtime.py").write_text(
        f"from tests.runtimes.fake import FakeRuntime as make\n{code}\n"
    )
    return {"PYTHONPATH": os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))}


def _with_runtimes(*names: str, **sections: Any) -> dict[str, Any]:
    return {"repository": {"runtimes": list(names)}, "reload": {"watch": False}, **sections}


def test_a_runtime_that_nobody_offers_is_a_problem_of_the_configuration(serve: Serve, tmp_path: Path) -> None:
    daemon = serve(tmp_path, _with_runtimes("onnx", "typo"), ready=False)
    assert daemon.process.wait(30) == 2
    assert (
        "repository.runtimes: no runtime 'typo' is installed; known here: fake, hostile, onnx" in daemon.log()
    )
    assert "Traceback" not in daemon.log()


def test_a_runtime_that_cannot_be_imported_is_told_wherever_the_log_goes(
    serve: Serve, tmp_path: Path
) -> None:
    environment = _offer_runtime(tmp_path / "installed", "raise ImportError('libtheirs.so.9: no such file')")
    log = tmp_path / "log"
    sections = _with_runtimes("theirs", log={"file": str(log)})
    (tmp_path / "models").mkdir()
    daemon = serve(tmp_path / "models", sections, ready=False, environment=environment)
    assert daemon.process.wait(60) == 2
    told = daemon.log()
    assert "Traceback" not in told
    assert "runtime 'theirs' is not available: libtheirs.so.9: no such file" in told
    assert "appliance: no worker can be started: " in told
    assert "before it was ready: appliance workers: configuration" in told


def test_a_runtime_that_cannot_be_imported_costs_its_own_models_alone(serve: Serve, tmp_path: Path) -> None:
    environment = _offer_runtime(tmp_path / "installed", "raise ImportError('libtheirs.so.9: no such file')")
    models = tmp_path / "models"
    write_fake(models, "ours")
    write_fake(models, "other")
    config = models / "other" / "config.pbtxt"
    config.write_text(config.read_text().replace('"fake"', '"theirs"'))
    daemon = serve(models, _with_runtimes("fake", "theirs"), environment=environment)
    assert ask(daemon.grpc, "ours").as_numpy("y") is not None
    (other,) = [each for each in daemon.status()["models"] if each["name"] == "other"]
    assert other["state"] == "UNAVAILABLE"
    assert "runtime 'theirs' cannot be had here: libtheirs.so.9: no such file" in other["reason"]
    assert "runtime 'theirs' cannot be had here: libtheirs.so.9" in daemon.log()


@pytest.mark.every_front_end
def test_sighup_during_the_start_is_heeded_after_it(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path / "models", "first")
    gate = tmp_path / "gate"
    environment = _offer_runtime(tmp_path / "installed", f"open({str(gate)!r}).read()")
    with Gate(gate) as start:
        sections = _with_runtimes("fake", "theirs")
        daemon = serve(tmp_path / "models", sections, ready=False, environment=environment)
        start.reached()  # by the workers' zygote, when the models have been read
        write_fake(tmp_path / "models", "second")
        daemon.signal(signal.SIGHUP)
    daemon.wait_ready()
    assert sum("READY=1" in message for message in daemon.messages) == 1
    daemon.until("both models", lambda now: {e["name"] for e in now["models"]} == {"first", "second"})
    daemon.until("both ready", lambda now: {e["state"] for e in now["models"]} == {"READY"})
    assert ask(daemon.grpc, "second").as_numpy("y") is not None


def test_sighup_before_the_configuration_is_read_does_no_harm(serve: Serve, tmp_path: Path) -> None:
    write_fake(tmp_path / "models", "first")
    configuration, pipe = tmp_path / "plain.toml", tmp_path / "config.toml"
    text = to_toml(
        _with_runtimes("fake", grpc={"addresses": ["127.0.0.1:0"]}, http={"addresses": ["127.0.0.1:0"]})
    )
    configuration.write_text(text)
    os.mkfifo(pipe)
    daemon = serve(tmp_path / "models", ready=False, arguments=("--config", str(pipe)))
    with pipe.open("w") as slow:  # which it has begun to read by then
        configuration.rename(pipe)
        daemon.signal(signal.SIGHUP)
        slow.write(text)
    daemon.wait_ready()
    daemon.wait_log("reading the models again")
    daemon.signal(signal.SIGTERM)
    assert daemon.process.wait(30) == 0


WAITING_READS = """
import os, sys
from appliance.sources.directory import DirectorySource
from appliance.workers.daemon.pool import WorkerPool
read, close, reads = DirectorySource.read, WorkerPool.close, []
def stands_at_the_gate(self):
    reads.append(self)
    if len(reads) > 1:
        open({gate!r}).read()
    return read(self)
async def and_says_so(self):
    await close(self)
    print("no workers any more", file=sys.stderr, flush=True)
DirectorySource.read, WorkerPool.close = stands_at_the_gate, and_says_so
"""


def test_who_is_told_to_stop_before_models_are_read_again_has_not_failed(
    serve: Serve, tmp_path: Path
) -> None:
    (tmp_path / "models").mkdir()
    gate = tmp_path / "gate"
    with Gate(gate) as reading:
        before = WAITING_READS.format(gate=str(gate))
        daemon = serve(tmp_path / "models", _with_runtimes("fake"), before=before)
        daemon.signal(signal.SIGHUP)
        reading.reached()
        daemon.wait_for("RELOADING=1")
        daemon.messages.clear()
        daemon.signal(signal.SIGHUP)
        daemon.wait_for("RELOADING=1")
        daemon.signal(signal.SIGTERM)
        daemon.wait_log("no workers any more")
    assert daemon.process.wait(30) == 0
    with pytest.raises(AssertionError, match="no 'never'"):
        daemon.wait_for("never")  # hears all that was said
    assert "failed" not in daemon.log()
    assert "STOPPING=1" in daemon.messages[-1], daemon.messages


@pytest.mark.every_front_end
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=["term", "int"])
def test_who_is_told_to_stop_while_starting_ends_in_order(
    serve: Serve, tmp_path: Path, number: signal.Signals
) -> None:
    (tmp_path / "models").mkdir()
    gate = tmp_path / "gate"
    environment = _offer_runtime(tmp_path / "installed", f"open({str(gate)!r}).read()")
    with Gate(gate) as start:
        daemon = serve(tmp_path / "models", _with_runtimes("theirs"), ready=False, environment=environment)
        start.reached()
        daemon.signal(number)
        assert daemon.process.wait(30) == 0
    daemon.wait_for("STOPPING=1")
    assert "stopped" in daemon.log()
    assert "Traceback" not in daemon.log()
