"""Models that change while the appliance serves, seen without being told, and by the operator's socket."""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from appliance.engine.versions.wording import AS_THEY_ARE
from models.generate import write_model
from tests.conftest import Serve
from tests.faults.clients import FAKE_SECTIONS, Stream, ask
from tests.faults.fake_models import write_fake

QUICK = {"reload": {"quiet_ms": 50, "poll_s": 3600.0}}
ONLY_POLLING = {"reload": {"quiet_ms": 50, "poll_s": 0.2}}


def keys(now: dict[str, Any]) -> list[str]:
    return [f"{entry['name']}/{entry['version']}" for entry in now["models"] if entry["state"] == "READY"]


def test_versions_come_and_go_without_a_signal_and_without_a_failed_request(
    serve: Serve, tmp_path: Path
) -> None:
    models, aside = tmp_path / "models", tmp_path / "aside"
    write_fake(models, "m")
    daemon = serve(models, {**FAKE_SECTIONS, **QUICK})
    with Stream(daemon.grpc, "m") as stream:
        stream.wait_for(20)
        write_fake(aside, "m", versions=(2,))
        (aside / "m" / "2").rename(models / "m" / "2")
        daemon.until("the new version", lambda now: keys(now) == ["m/1", "m/2"])
        shutil.rmtree(models / "m" / "1")
        write_fake(aside, "new")
        (aside / "new").rename(models / "new")
        daemon.until("the new model", lambda now: keys(now) == ["m/2", "new/1"])
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}
    shutil.rmtree(models / "new")
    daemon.until("the model's end", lambda now: keys(now) == ["m/2"])


def test_what_no_notice_tells_of_is_found_by_looking_now_and_then(serve: Serve, tmp_path: Path) -> None:
    """A link's target changes elsewhere: the directory itself is not touched."""
    models, elsewhere = tmp_path / "models", tmp_path / "models" / "_elsewhere"
    write_fake(models, "m")
    write_fake(elsewhere, "far")
    (models / "far").symlink_to(elsewhere / "far")
    daemon = serve(models, {**FAKE_SECTIONS, **ONLY_POLLING})
    daemon.until("the linked model", lambda now: keys(now) == ["far/1", "m/1"])
    write_fake(elsewhere, "far", versions=(2,))
    daemon.until("its new version", lambda now: keys(now) == ["far/1", "far/2", "m/1"])


def test_the_operator_loads_and_unloads_over_the_socket_and_nobody_else(serve: Serve, tmp_path: Path) -> None:
    write_model("mlp", tmp_path / "models")
    path = tmp_path / "control"
    daemon = serve(tmp_path / "models", {**QUICK, "control": {"socket": str(path)}})
    assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
    operator, other = triton.InferenceServerClient(f"unix:{path}"), triton.InferenceServerClient(daemon.grpc)
    operator.unload_model("mlp")
    daemon.until("the model's end", lambda now: keys(now) == [])
    (entry,) = operator.get_model_repository_index().models
    assert (entry.name, entry.version, entry.state) == ("mlp", "1", "UNAVAILABLE")
    assert entry.reason.startswith("unloaded by hand")
    assert operator.is_server_ready()
    operator.unload_model("mlp")
    with pytest.raises(InferenceServerException):
        ask(daemon.grpc, "mlp")
    with pytest.raises(InferenceServerException, match="turned off"):
        other.load_model("mlp")
    with pytest.raises(InferenceServerException, match="turned off"):
        other.update_log_settings({"log_info": False})
    assert not operator.update_log_settings({"log_info": False}).settings["log_info"].bool_param
    assert not other.get_log_settings().settings["log_info"].bool_param
    operator.load_model("mlp")
    assert operator.is_model_ready("mlp")
    assert [entry.state for entry in operator.get_model_repository_index().models] == ["READY"]
    operator.load_model("mlp", config=json.dumps({"max_batch_size": 5}))
    assert other.get_model_config("mlp").config.max_batch_size == 5
    with pytest.raises(InferenceServerException, match="there is no such model"):
        operator.load_model("unheard-of")
    with pytest.raises(
        InferenceServerException, match=r"failed to load 'mlp': .* is no model configuration in JSON"
    ):
        operator.load_model("mlp", config="{nonsense")
    operator.close()
    other.close()


def test_a_configuration_that_was_given_stays_until_the_files_change_or_the_model_is_unloaded(
    serve: Serve, tmp_path: Path
) -> None:
    """As in Triton: a load without a configuration reads anew what changed since, and nothing else."""
    models, path = tmp_path / "models", tmp_path / "control"
    home = write_model("mlp", models)
    daemon = serve(models, {**QUICK, "control": {"socket": str(path)}})
    with triton.InferenceServerClient(f"unix:{path}") as operator:

        def largest() -> int:
            found: int = operator.get_model_config("mlp").config.max_batch_size
            return found

        def look(name: str) -> None:
            """Have the directory looked at: a further model is found there."""
            (write_model("mlp", tmp_path / "aside")).rename(models / name)
            daemon.until("the further model", lambda now: f"{name}/1" in keys(now))

        operator.load_model("mlp", config=json.dumps({"max_batch_size": 5}))
        operator.load_model("mlp")
        look("second")
        operator.load_model("mlp")
        assert largest() == 5
        (home / "config.pbtxt").write_text("max_batch_size: 7\n")
        look("third")
        assert largest() == 5, "what changes in the directory waits for a load"
        operator.load_model("mlp")
        assert largest() == 7
        operator.load_model("mlp", config=json.dumps({"max_batch_size": 5}))
        assert largest() == 5
        operator.unload_model("mlp")
        operator.load_model("mlp")
        assert largest() == 7


def test_a_version_that_is_not_taken_is_an_error_also_where_an_older_one_serves_on(
    serve: Serve, tmp_path: Path
) -> None:
    models, path = tmp_path / "models", tmp_path / "control"
    write_fake(models, "m")
    daemon = serve(
        models, {**FAKE_SECTIONS, **QUICK, "reload": {"watch": False}, "control": {"socket": str(path)}}
    )
    write_fake(models, "m", versions=(2,), mode="fail_at_load")
    with (
        triton.InferenceServerClient(f"unix:{path}") as operator,
        pytest.raises(InferenceServerException, match="failed to load 'm'"),
    ):
        operator.load_model("m")
    assert ask(daemon.grpc, "m").get_response().model_version == "1"


def test_a_model_can_be_given_with_its_files(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model("mlp", tmp_path / "models")
    graph = (tmp_path / "models" / "mlp" / "1" / "model.onnx").read_bytes()
    path, temporary = tmp_path / "control", tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    daemon = serve(tmp_path / "models", {**QUICK, "swap": {"watch_s": 0.1}, "control": {"socket": str(path)}})
    with triton.InferenceServerClient(f"unix:{path}") as operator:
        operator.load_model("given", config=json.dumps({"name": "given"}), files={"file:3/model.onnx": graph})
        assert operator.is_model_ready("given", "3")
        with pytest.raises(
            InferenceServerException, match=r"failed to load 'evil': file '\.\./\.\./evil' has a part that"
        ):
            operator.load_model("evil", config="{}", files={"file:../../evil": b"x"})
        with pytest.raises(InferenceServerException, match=r"failed to load '\.\./evil': is no model's name"):
            operator.load_model("../evil", config="{}", files={"file:1/model.onnx": b"x"})
        with pytest.raises(InferenceServerException, match="failed to load 'bad'"):
            operator.load_model("bad", config="{}", files={"file:1/model.onnx": b"not onnx"})
        with pytest.raises(InferenceServerException, match="no config with them"):
            operator.load_model("bare", files={"file:1/model.onnx": graph})
        daemon.until("both models", lambda now: keys(now) == ["given/3", "mlp/1"])
        before = repositories(temporary)
        assert len(before) == 1, "what was refused has left"
        operator.load_model("given", config=json.dumps({"name": "given"}), files={"file:4/model.onnx": graph})
        daemon.until("what was replaced to leave", lambda _: repositories(temporary).isdisjoint(before))
        assert len(repositories(temporary)) == 1
        operator.unload_model("given")
        daemon.until("what was unloaded to leave", lambda _: not repositories(temporary))


def repositories(temporary: Path) -> set[Path]:
    """Where the models lie that were given."""
    return set(temporary.glob("appliance-given-*/*/"))


def test_a_directory_that_vanishes_costs_no_request_and_is_taken_up_again(
    serve: Serve, tmp_path: Path
) -> None:
    models = tmp_path / "models"
    write_fake(models, "m")
    daemon = serve(models, {**FAKE_SECTIONS, **ONLY_POLLING})
    with Stream(daemon.grpc, "m") as stream:
        models.rename(tmp_path / "unmounted")
        daemon.wait_log("models cannot be read")
        stream.wait_for(20)
        write_fake(tmp_path / "unmounted", "m", versions=(2,))
        os.rename(tmp_path / "unmounted", models)
        daemon.until("the new version", lambda now: keys(now) == ["m/1", "m/2"])
        stream.wait_for(20)
    assert set(stream.outcomes) == {"OK"}


def write_late(folder: Path) -> None:
    """A model of a format that no release of ONNX Runtime reads yet."""
    graph = write_model("mlp", folder.parent / "plain") / "1" / "model.onnx"
    data = graph.read_bytes()
    assert data[0] == 8, "the number of its format comes first"
    folder.mkdir(parents=True)
    (folder / "model.onnx").write_bytes(data[:1] + bytes([99]) + data[2:])


def test_what_is_too_new_for_the_runtime_is_tried_once_until_something_changes(
    serve: Serve, tmp_path: Path
) -> None:
    """Beside it, a third party's runtime refuses a model, and says no more than that: this is tried again."""
    models, path = tmp_path / "models", tmp_path / "control"
    write_late(tmp_path / "late")
    shutil.copytree(tmp_path / "late", models / "late" / "1")
    write_fake(models, "refused", mode="fail_at_load")
    write_model("mlp", models)
    sections = {"swap": {"retry_first_s": 0.05}, "control": {"socket": str(path)}}
    daemon = serve(models, {**FAKE_SECTIONS, **QUICK, **sections})

    def entry(now: dict[str, Any], key: str) -> dict[str, Any]:
        name, number = key.split("/")
        (found,) = (each for each in now["models"] if (each["name"], each["version"]) == (name, int(number)))
        return dict(found)

    now = daemon.until("tries of the other", lambda now: now["swaps"]["retries"] >= 2)
    late = entry(now, "late/1")
    assert (late["state"], late["next_try_ms"]) == ("UNAVAILABLE", 0)
    assert re.search(r"ir_version is 99, and onnxruntime \S+ reads up to \d+; save the model", late["reason"])
    assert late["reason"].endswith(AS_THEY_ARE)
    with triton.InferenceServerClient(daemon.grpc) as client:
        with pytest.raises(
            InferenceServerException, match="version 1 failed, and the repository index says why"
        ):
            client.get_model_metadata("late")
        (listed,) = (each for each in client.get_model_repository_index().models if each.name == "late")
        assert listed.reason == late["reason"]
    assert tries(daemon.log(), "refused/1") >= 2
    assert tries(daemon.log(), "late/1") == 0
    shutil.copytree(tmp_path / "late", tmp_path / "late-2")
    (tmp_path / "late-2").rename(models / "mlp" / "2")
    now = daemon.until(
        "its refusal",
        lambda now: (
            any(each["version"] == 2 for each in now["models"])
            and entry(now, "mlp/2")["state"] == "UNAVAILABLE"
        ),
    )
    assert entry(now, "mlp/1")["state"] == "READY"
    with triton.InferenceServerClient(f"unix:{path}") as operator:
        with pytest.raises(InferenceServerException, match="ir_version is 99"):
            operator.load_model("late")
        (tmp_path / "plain" / "mlp" / "1").rename(models / "late" / "2")
        daemon.until("what was saved anew", lambda now: "late/2" in keys(now))
    assert tries(daemon.log(), "late/1") == tries(daemon.log(), "mlp/2") == 0


def tries(log: str, key: str) -> int:
    """How often it was planned to try a version again."""
    lines = (line for line in log.splitlines() if "version will be tried again" in line)
    return sum(key in line for line in lines)


@pytest.mark.timeout(240)
def test_very_many_swaps_leave_hardly_any_memory(serve: Serve, tmp_path: Path) -> None:
    """What a swap leaves in the daemon is bounded: lines of history, and what the interpreter keeps to use again. A
    version's plans, its meter or a worker's lane that stayed would be more than 20 KB a swap."""
    models, path = tmp_path / "models", tmp_path / "control"
    write_fake(models, "m")
    sections = {**FAKE_SECTIONS, "reload": {"watch": False}, "control": {"socket": str(path)}}
    daemon = serve(models, sections)

    def swap(number: int) -> None:
        write_fake(models, "m", versions=(number,))
        shutil.rmtree(models / "m" / str(number - 1))
        with triton.InferenceServerClient(f"unix:{path}") as operator:
            operator.load_model("m")
        assert ask(daemon.grpc, "m").get_response().model_version == str(number)

    for number in range(2, 22):
        swap(number)
    before = anonymous_bytes(daemon.pid)
    for number in range(22, 102):
        swap(number)
    assert anonymous_bytes(daemon.pid) - before < 3 << 19


def anonymous_bytes(pid: int) -> int:
    """Resident memory of a process that no file lies behind."""
    status = Path(f"/proc/{pid}/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("RssAnon"))
