"""Packages, the store and the daemon together, as somebody at a site uses them: real commands, real processes."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton
from onnx import TensorProto
from tritonclient.utils import InferenceServerException

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.core.rollout.records import Ending
from appliance.engine.versions.history import read_history
from appliance.store.catalog_file import read_catalog
from appliance.store.layout import CATALOG, SERVE, blob_path, view_root
from appliance.store.running import read_running
from tests.conftest import Serve
from tests.faults.clients import Stream, ask
from tests.faults.golden_sets import write_expected
from tests.repository.onnx_files import plain_model, write_version

Run = Callable[..., str]

STORE = {"store": {"free_floor_bytes": 0}, "packages": {"unsigned": "allow"}}


def keys(now: dict[str, Any]) -> list[str]:
    return [f"{entry['name']}/{entry['version']}" for entry in now["models"] if entry["state"] == "READY"]


def pids(now: dict[str, Any]) -> set[int]:
    return {each["pid"] for each in now["workers"] if each["pid"]}


@pytest.fixture
def state(tmp_path: Path) -> Path:
    folder = tmp_path / "state"
    folder.mkdir()
    return folder


@pytest.fixture
def appliance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Run:
    """A command that works; gives what it printed."""

    def run(*words: object) -> str:
        status = main([str(word) for word in words])
        told = capsys.readouterr()
        assert status == Exit.OK, told.err
        return told.out

    return run


@pytest.fixture
def install(appliance: Run, state: Path, tmp_path: Path) -> Callable[..., None]:
    """Make a package of model ``m``, y = x, in this version, and install it. ``answer``: what its golden set wants to
    1, 2, 3, 4."""
    config = tmp_path / "store.toml"
    config.write_text('[store]\nfree_floor_bytes = 0\n[packages]\nunsigned = "allow"\n')

    def put(version: int, answer: Sequence[int] = ()) -> None:
        source = write_version(tmp_path / "sources", "m", plain_model(element=TensorProto.UINT8), version)
        if proof := ["--no-proof"] * bool(answer):
            write_expected(source, answer)
        package = tmp_path / f"m-{version}.model"
        appliance("model", "pack", source, "--version", version, "-o", package, "--force", *proof)
        appliance("model", "install", package, "--downgrade", "--state-dir", state, "--config", config)

    return put


def test_what_is_installed_goes_live_and_back_without_a_failed_request(
    serve: Serve, state: Path, install: Callable[[int], None], appliance: Run
) -> None:
    install(1)
    daemon = serve(None, STORE, arguments=("--state-dir", str(state)))
    with Stream(daemon.grpc, "m") as stream:
        stream.wait_for(20)
        for version in (2, 3):
            install(version)
            daemon.until(f"version {version}", lambda now, v=version: keys(now)[-1:] == [f"m/{v}"])
            stream.wait_for(20)
        assert "m/2 is wanted again" in appliance("model", "rollback", "m", "--state-dir", state)
        daemon.until("the version before", lambda now: "m/2" in keys(now))
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    assert not stream.wrong
    daemon.until("the end of the others", lambda now: keys(now) == ["m/2"])
    assert ask(daemon.grpc, "m").get_response().model_version == "2"


@pytest.mark.parametrize("trial", [(), ("--canary", "30"), ("--shadow", "30")])
def test_a_model_that_is_uninstalled_says_so_in_its_history_and_may_come_back(
    serve: Serve, state: Path, install: Callable[..., None], appliance: Run, trial: tuple[str, ...]
) -> None:
    """Proven as it is, and with another on trial beside it."""
    install(1)
    arguments = ("--state-dir", str(state))
    daemon = serve(None, {**STORE, "swap": {"watch_s": 0.0}}, arguments=arguments)
    first, last = (Ending.LIVE, 0, 1), [(Ending.WITHDRAWN, 1, 0), (Ending.LIVE, 0, 1)]
    if trial:
        install(2)
        appliance("model", "want", "m/1", *arguments)
        daemon.until("the first again", lambda now: keys(now) == ["m/1"])
        appliance("model", "trial", "m/2", *trial, *arguments)
        stage = trial[0].removeprefix("--")
        daemon.until(
            "its trial", lambda now: stage in [(each["trial"] or {}).get("stage") for each in now["models"]]
        )
        last = [(Ending.ABANDONED, 1, 1), *last]
    appliance("model", "uninstall", "m", *arguments)
    daemon.until("its end", lambda now: not keys(now))
    install(1)
    daemon.until("its return", lambda now: keys(now) == ["m/1"])
    daemon.stop()
    told = [(each.ending, each.before, each.after) for each in read_history(state / SERVE, "m")]
    assert (told[0], told[-len(last) :]) == (first, last), told
    assert "no version of the model is wanted any more" in appliance("model", "history", "m", *arguments)


def test_a_model_that_was_uninstalled_while_nothing_ran_has_that_in_its_history_once(
    serve: Serve, state: Path, install: Callable[..., None], appliance: Run
) -> None:
    install(1)
    arguments = ("--state-dir", str(state))
    serve(None, STORE, arguments=arguments).stop()
    appliance("model", "uninstall", "m", *arguments)
    for _ in range(2):
        serve(None, STORE, arguments=arguments).stop()
    told = [(each.ending, each.before, each.after) for each in read_history(state / SERVE, "m")]
    assert told == [(Ending.LIVE, 0, 1), (Ending.WITHDRAWN, 1, 0)]


def test_a_daemon_that_was_killed_comes_back_with_what_was_wanted(
    serve: Serve, state: Path, install: Callable[[int], None]
) -> None:
    install(1)
    arguments = ("--state-dir", str(state))
    daemon = serve(None, STORE, arguments=arguments)
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait(30)
    install(2)
    again = serve(None, STORE, arguments=arguments)
    again.until("the version that is wanted", lambda now: keys(now) == ["m/2"])
    assert ask(again.grpc, "m").get_response().model_version == "2"


def test_what_was_proven_serves_after_a_restart_though_what_is_wanted_is_unfit(
    serve: Serve, state: Path, install: Callable[..., None], appliance: Run
) -> None:
    arguments, sections = ("--state-dir", str(state)), {**STORE, "swap": {"watch_s": 0.2}}
    install(1)
    daemon = serve(None, sections, arguments=arguments)
    daemon.until("the end of its trial", lambda now: [each["trial"] for each in now["models"]] == [None])
    install(2, answer=[9, 9, 9, 9])
    daemon.until("the refusal", lambda now: "golden case" in now["models"][-1]["reason"])
    daemon.process.send_signal(signal.SIGKILL)
    daemon.process.wait(30)
    again = serve(None, sections, arguments=arguments)
    assert ask(again.grpc, "m").get_response().model_version == "1"
    again.until("the refusal, once more", lambda now: now["models"][-1]["state"] == "UNAVAILABLE")
    with Stream(again.grpc, "m") as stream:
        stream.wait_for(20)
        install(3, answer=[1, 2, 3, 4])
        again.until("the repaired version", lambda now: keys(now) == ["m/3"])
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    told = appliance("model", "rollback", "m", "--state-dir", state)
    assert "m/1 is wanted again" in told
    assert "failed here: version 2" in told
    again.until("the first", lambda now: keys(now) == ["m/1"])


def refusals(state: Path) -> int:
    """How often the second version was tried and refused."""
    changes = read_history(state / "serve", "m")
    return sum(change.version == 2 and change.ending is Ending.REFUSED for change in changes)


def test_each_command_that_asks_for_a_version_that_failed_has_it_tried_once_more(
    serve: Serve, state: Path, install: Callable[..., None], appliance: Run
) -> None:
    install(1)
    arguments, sections = ("--state-dir", str(state)), {**STORE, "swap": {"watch_s": 0.2, "tries": 1}}
    daemon = serve(None, sections, arguments=arguments)
    daemon.until("the version that serves", lambda now: keys(now) == ["m/1"])
    install(2, [9, 9, 9, 9])
    daemon.until("its refusal", lambda now: refusals(state) == 1)
    assert "it failed here and is to be tried again" in appliance("model", "want", "m/2", *arguments)
    daemon.until("the second try", lambda now: refusals(state) == 2)
    install(2, [9, 9, 9, 9])
    daemon.until("the third try", lambda now: refusals(state) == 3)
    appliance("model", "want", "m/1", *arguments)
    daemon.until("the other one", lambda now: [entry["version"] for entry in now["models"]] == [1])
    for tried in (4, 5):
        appliance("model", "trial", "m/2", "--canary", "30", *arguments)
        daemon.until("the trial's end", lambda now, tried=tried: refusals(state) == tried)
    daemon.signal(signal.SIGTERM)
    daemon.process.wait(30)
    again = serve(None, sections, arguments=arguments)
    again.until("what serves", lambda now: keys(now) == ["m/1"])
    again.until("the other one", lambda now: len(now["models"]) == 2 and now["models"][1]["reason"])
    assert "'appliance model want m/2' asks for it again" in again.status()["models"][1]["reason"]
    assert refusals(state) == 5, "a restart is nobody who asks"


def test_what_was_asked_for_while_no_daemon_ran_is_tried_once_more_by_the_next_one_and_no_other(
    serve: Serve, state: Path, install: Callable[..., None], appliance: Run
) -> None:
    install(1)
    arguments, sections = ("--state-dir", str(state)), {**STORE, "swap": {"watch_s": 0.2, "tries": 1}}
    daemon = serve(None, sections, arguments=arguments)
    daemon.until("its proof", lambda now: keys(now) == ["m/1"] and now["models"][0]["trial"] is None)
    install(2, [9, 9, 9, 9])
    daemon.until("its refusal", lambda now: refusals(state) == 1)
    daemon.signal(signal.SIGTERM)
    daemon.process.wait(30)
    assert "it failed here and is to be tried again" in appliance("model", "want", "m/2", *arguments)
    for _ in range(2):
        daemon = serve(None, sections, arguments=arguments)
        daemon.until("what came of it", lambda now: keys(now) == ["m/1"] and refusals(state) == 2)
        daemon.until(
            "why", lambda now: any(each["version"] == 2 and each["reason"] for each in now["models"][1:])
        )
        daemon.signal(signal.SIGTERM)
        daemon.process.wait(30)
    assert refusals(state) == 2, "a restart is nobody who asks"


def test_nobody_waits_for_a_version_that_memory_can_never_hold(
    serve: Serve, state: Path, install: Callable[[int], None], capsys: pytest.CaptureFixture[str]
) -> None:
    install(1)
    sections = {**STORE, "residency": {"budget_bytes": 1 << 20}}
    daemon = serve(None, sections, arguments=("--state-dir", str(state)))
    words = ["model", "want", "m/1", "--state-dir", str(state), "--wait", "--url", daemon.http]
    assert main(words) == Exit.REFUSED
    assert "m/1 does not go live: can never fit into memory: it needs about" in capsys.readouterr().err
    (problem,) = daemon.status()["residency"]["problems"]
    assert problem.startswith("m/1 can never fit into memory")


def test_a_state_directory_that_is_open_to_others_is_closed_and_served(
    serve: Serve, state: Path, install: Callable[[int], None]
) -> None:
    """With its packed form, its records and its scrub."""
    install(1)
    for path in (state, *state.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    daemon = serve(None, STORE, arguments=("--state-dir", str(state)))
    daemon.wait_log("the state directory was open to others, or closed to its group, and is not any more")
    daemon.wait_log("the store was scrubbed")
    assert ask(daemon.grpc, "m").get_response().model_version == "1"
    daemon.signal(signal.SIGTERM)
    daemon.process.wait(30)
    assert not [str(path) for path in (state, *state.rglob("*")) if path.stat().st_mode & 0o077]


def test_a_second_daemon_is_refused_with_the_reason(
    serve: Serve, state: Path, install: Callable[[int], None]
) -> None:
    install(1)
    daemon = serve(None, STORE, arguments=("--state-dir", str(state)))
    second = serve(None, STORE, arguments=("--state-dir", str(state)), ready=False)
    assert second.process.wait(30) == 2
    told = (
        rf"an appliance serves from '.*' already: process {daemon.pid}, for \d+ s; stop it, or give another"
    )
    assert re.search(told, second.log())


def test_damage_on_the_disk_is_told_and_what_is_loaded_goes_on(
    serve: Serve, state: Path, install: Callable[[int], None]
) -> None:
    install(1)
    catalog = read_catalog(state)
    assert catalog is not None
    digest = next(
        file.digest
        for _, version in catalog.installed()
        for file in version.files
        if file.path.endswith("graph.onnx")
    )
    daemon = serve(None, {**STORE, "store": {"free_floor_bytes": 0, "scrub_interval_h": 0.001}},
                   arguments=("--state-dir", str(state)))  # fmt: skip
    daemon.wait_log("the store was scrubbed")
    blob = state / blob_path(digest)
    blob.chmod(0o644)
    data = bytearray(blob.read_bytes())
    data[-1] ^= 1
    blob.write_bytes(data)
    daemon.wait_log("install its package again", timeout_s=90)
    assert ask(daemon.grpc, "m").get_response().model_version == "1"


def test_the_grpc_library_has_nothing_to_say_when_the_daemon_starts_its_scrub(
    serve: Serve, state: Path, install: Callable[[int], None], tmp_path: Path
) -> None:
    """It would complain at every fork about the threads that it has for the control socket."""
    install(1)
    sections = {**STORE, "control": {"socket": str(tmp_path / "control")}}
    daemon = serve(None, sections, arguments=("--state-dir", str(state)))
    daemon.wait_log("the store was scrubbed")
    assert not re.findall(r"^[IWEF]\d{4} .*", daemon.log(), re.MULTILINE)


def test_a_version_that_went_down_with_its_file_is_back_when_its_package_is_installed_again(
    serve: Serve, state: Path, install: Callable[..., None]
) -> None:
    install(1)
    catalog = read_catalog(state)
    assert catalog is not None
    view = next(iter(catalog.installed()))[1].digest
    graph = view_root(state, view) / "m" / "1" / "graph.onnx"
    graph.chmod(0o644)
    data = graph.read_bytes()
    graph.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    daemon = serve(None, STORE, arguments=("--state-dir", str(state)))
    daemon.until("the refusal", lambda now: [each["state"] for each in now["models"]] == ["UNAVAILABLE"])
    assert "its digest differs" in daemon.status()["models"][0]["reason"]
    install(1)
    daemon.until("the repaired version", lambda now: keys(now) == ["m/1"])
    assert ask(daemon.grpc, "m").get_response().model_version == "1"


def test_a_command_waits_until_what_it_asked_for_serves(
    serve: Serve,
    state: Path,
    install: Callable[[int], None],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(1)
    daemon = serve(None, STORE, arguments=("--state-dir", str(state)))
    at = ("--state-dir", str(state), "--wait", "--url", daemon.http)

    def told(*words: object) -> tuple[int, str]:
        status = main([str(word) for word in (*words, *at)])
        said = capsys.readouterr()
        return status, said.out + said.err

    source = write_version(tmp_path / "sources", "m", plain_model(element=TensorProto.UINT8), 2)
    write_expected(source, [1, 2, 3, 5])
    package = tmp_path / "m-2.model"
    assert main(["model", "pack", str(source), "--version", "2", "--no-proof", "-o", str(package)]) == Exit.OK
    status, said = told("model", "install", "--allow-unsigned", package)
    assert status == Exit.REFUSED
    assert "m/2 does not go live: golden case 'a': output 'y'" in said
    for words, end in (
        (("rollback", "m"), "m/1 is live after"),
        (("want", "m/1"), "m/1 is live after"),
    ):
        status, said = told("model", *words)
        assert (status, said.splitlines()[1].startswith(end)) == (Exit.OK, True), said
    shutil.rmtree(source / "golden")
    install(3)
    assert told("model", "want", "m/1")[0] == Exit.OK
    status, said = told("model", "trial", "m/3", "--canary", "20")
    assert status == Exit.OK, said
    assert "m/3 is on trial (canary: 20 % of the requests" in said
    assert main(["model", "list", "--state-dir", str(state), "--url", daemon.http]) == Exit.OK
    (line,) = [line for line in capsys.readouterr().out.splitlines() if line.startswith("m/3 ")]
    assert ", canary " in line, "how it stands: it answers already, and is loading no more"
    assert "loading" not in line


def test_an_operator_serves_a_package_with_another_configuration_and_as_it_came(
    serve: Serve,
    state: Path,
    install: Callable[[int], None],
    appliance: Run,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Nobody who changes how a model batches knows how its file is called inside a package."""
    install(1)
    path = tmp_path / "control"
    daemon = serve(None, {**STORE, "control": {"socket": str(path)}}, arguments=("--state-dir", str(state)))
    with (
        triton.InferenceServerClient(f"unix:{path}") as operator,
        triton.InferenceServerClient(daemon.grpc) as client,
    ):
        as_it_came = client.get_model_config("m", as_json=True)["config"]
        operator.load_model("m", config=json.dumps({"max_batch_size": 2}))
        assert client.get_model_config("m").config.max_batch_size == 2
        assert client.get_model_config("m").config.default_model_filename == "graph.onnx"
        assert ask(daemon.grpc, "m").get_response().model_version == "1"
        operator.load_model("m", config=json.dumps({**as_it_came, "max_batch_size": 3}))
        assert client.get_model_config("m").config.max_batch_size == 3
        with pytest.raises(InferenceServerException, match=r"model\.onnx"):
            operator.load_model("m", config=json.dumps({"default_model_filename": "model.onnx"}))
        assert ask(daemon.grpc, "m").get_response().model_version == "1"
        operator.load_model("m")
        assert client.get_model_config("m").config.max_batch_size == 3, "kept, as the files are the same"
        operator.unload_model("m")
        operator.load_model("m")
        assert client.get_model_config("m", as_json=True)["config"] == as_it_came
        socket = ("--socket", path)
        words = ("--url", daemon.http, "--model-config", '{"max_batch_size": 5}')
        assert "m is live after" in appliance("model", "load", "m", *socket, *words)
        assert client.get_model_config("m").config.max_batch_size == 5
        install(2)
        url = ("--url", daemon.http)
        for version in (2, 1):
            wanted = ["model", "want", f"m/{version}", "--state-dir", str(state), "--wait", *url]
            assert main(wanted) == Exit.REFUSED
        trial = ["model", "trial", "m/2", "--canary", "50", "--state-dir", str(state), "--wait", *url]
        assert main(trial) == Exit.REFUSED
        assert capsys.readouterr().err.count("loaded by hand with other settings") == 3
        reasons = {each["version"]: each["reason"] for each in daemon.status()["models"]}
        assert reasons.keys() == {1, 2}
        assert all(
            "'appliance model unload m' and 'load m' take them back" in reason for reason in reasons.values()
        )
        assert "loaded by hand with other settings" in appliance("status", *url)
        assert appliance("model", "list", *url).count("loaded by hand with other settings") == 2
        appliance("model", "trial", "m", "--stop", "--state-dir", str(state))
        assert appliance("model", "unload", "m", *socket) == "m is not served any more\n"
        assert "m is live after" in appliance("model", "load", "m", *socket, *url)
        assert [each["reason"] for each in daemon.status()["models"] if each["version"] == 1] == [""]
        assert main(["model", "load", "unheard-of", *map(str, socket)]) == Exit.REFUSED
        assert main(["model", "load", "m", "--model-config", "{", *map(str, socket)]) == Exit.REFUSED
        assert main(["model", "load", "m", "--socket", str(tmp_path)]) == Exit.UNREACHABLE
        told = capsys.readouterr().err
        for text in ("there is no such model", "no model configuration in JSON", "is no socket"):
            assert text in told
        assert appliance("model", "unload", "m", *socket) == "m is not served any more\n"
        assert not client.is_model_ready("m")
        assert main(["model", "want", "m/1", "--state-dir", str(state), "--wait", *url]) == Exit.REFUSED
        assert "unloaded by hand" in capsys.readouterr().err


def test_a_lost_catalog_is_told_loudly_and_made_anew_under_a_daemon_that_serves(
    serve: Serve,
    state: Path,
    install: Callable[[int], None],
    appliance: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(1)
    install(2)
    arguments = ("--state-dir", str(state))
    daemon = serve(None, STORE, arguments=arguments)
    with Stream(daemon.grpc, "m") as stream:
        (state / CATALOG).unlink()
        now = daemon.until("the trouble", lambda now: now["store"]["trouble"])
        assert "store check --rebuild" in now["store"]["trouble"]
        assert "The store cannot be read" in appliance("status", "--url", daemon.http)
        assert b"store check --rebuild" in daemon.get("/")
        assert main(["store", "gc", *arguments]) == Exit.USAGE
        assert "store check --rebuild" in capsys.readouterr().err
        second = serve(None, STORE, arguments=arguments, ready=False)
        assert second.process.wait(30) == 2
        stream.wait_for(20)
        assert "m/2: wanted" in appliance("store", "check", "--rebuild", *arguments)
        daemon.until("the end of the trouble", lambda now: not now["store"]["trouble"])
        assert keys(daemon.status()) == ["m/2"]
        appliance("model", "want", "m/1", *arguments)
        daemon.until("the other version", lambda now: "m/1" in keys(now))
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    daemon.stop()
    (state / CATALOG).unlink()
    third = serve(None, STORE, arguments=arguments, ready=False)
    assert third.process.wait(30) == 2
    assert "store check --rebuild" in third.log()


def test_what_serves_keeps_its_files_while_another_package_of_its_number_is_tried(
    serve: Serve, state: Path, install: Callable[..., None], appliance: Run
) -> None:
    """The error that refuses another package of a number advises to uninstall the old one first: both come within one
    look, and the new one fails its golden set."""
    install(1)
    arguments = ("--state-dir", str(state))
    daemon = serve(None, {**STORE, "swap": {"watch_s": 0.2, "tries": 1}}, arguments=arguments)
    (first,) = {each.digest for each in read_running(state)}
    daemon.until("its proof", lambda now: [each["trial"] for each in now["models"]] == [None])
    daemon.signal(signal.SIGSTOP)
    appliance("model", "uninstall", "m", *arguments)
    install(1, [9, 9, 9, 9])
    daemon.signal(signal.SIGCONT)
    daemon.until("the refusal", lambda now: "golden case" in now["models"][0]["reason"])
    appliance("store", "gc", *arguments)
    assert (view_root(state, first) / "m" / "1" / "graph.onnx").exists()
    now = daemon.until("the end of the one that was tried", lambda now: len(pids(now)) == 1)
    (worker,) = pids(now)
    os.kill(worker, signal.SIGKILL)
    daemon.until("its return", lambda now: keys(now) == ["m/1"] and len(pids(now) - {worker}) == 1)
    assert ask(daemon.grpc, "m").get_response().model_version == "1"
