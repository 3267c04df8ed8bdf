"""Restarts of a daemon that serves from its store: what used up its tries is tried again, what is proven rests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import tritonclient.grpc as triton

from appliance.cli.main import main
from tests.conftest import Serve
from tests.faults.clients import ask
from tests.faults.test_mixed_rows import write_softmax
from tests.faults.test_swaps import write_version
from tests.faults.test_swaps_of_the_store import SECTIONS, wait_for


def install(folder: Path, name: str, source: Path | None = None) -> Path:
    """The store in ``folder`` with one version of ``name``, a small one or that in ``source``, which is wanted."""
    state, config, package = folder / "state", folder / "store.toml", str(folder / f"{name}-1.model")
    state.mkdir(exist_ok=True)
    config.write_text('[store]\nfree_floor_bytes = 0\n[packages]\nunsigned = "allow"\n')
    source = source or write_version(folder / "sources" / name, 1)
    assert main(["model", "pack", str(source), "--version", "1", "--name", name, "-o", package]) == 0
    assert main(["model", "install", package, "--state-dir", str(state), "--config", str(config)]) == 0
    return state


def test_the_only_version_is_tried_again_by_itself_when_power_cuts_have_used_up_its_tries(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = install(tmp_path, "t")
    arguments = ("--state-dir", str(state))
    swap = {"watch_s": 60.0, "tries": 3, "retry_first_s": 1.0, "packed_forms": False}
    for cut in range(3):
        daemon = serve(None, {**SECTIONS, "swap": swap}, arguments=arguments)
        wait_for(state, ["live"] * (cut + 1), daemon)
        daemon.process.kill()
        daemon.process.wait(30)
    daemon = serve(None, {**SECTIONS, "swap": swap}, arguments=arguments)
    wait_for(state, ["live", "live", "live", "given up", "postponed", "live"], daemon)
    now = daemon.status()
    assert (now["models"][0]["state"], now["swaps"]["retries"]) == ("READY", 1)
    assert b"appliance_swap_retries_total 1" in daemon.get("/metrics")
    ((tries, rejected, _, again),) = json.loads((state / "serve" / "tries.json").read_bytes())[
        "versions"
    ].values()
    assert (tries, rejected, again) == (4, "", 1)
    capsys.readouterr()
    assert main(["model", "history", "t", *arguments, "--json"]) == 0
    said = [change["reason"] for change in json.loads(capsys.readouterr().out)]
    assert said[3].startswith("was tried 3 times")
    assert said[4].startswith("nothing else of the model serves; next try at 20")


def test_when_a_model_was_asked_last_outlives_the_daemon(
    serve: Serve, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    state = install(tmp_path, "t")
    arguments = ("--state-dir", str(state))
    daemon = serve(None, SECTIONS, arguments=arguments)
    ask(daemon.grpc, "t")
    asked_ms = daemon.status()["models"][0]["last_inference_ms"]
    assert asked_ms > 0
    daemon.stop()
    capsys.readouterr()
    assert main(["model", "list", *arguments, "--url", f"http://{daemon.http}", "--json"]) == 0
    (listed,) = json.loads(capsys.readouterr().out)["versions"]
    assert (listed["state"], listed["last_inference_ms"]) == ("", asked_ms)
    daemon = serve(None, SECTIONS, arguments=arguments)
    assert daemon.status()["models"][0]["last_inference_ms"] == asked_ms


def test_a_restart_loads_only_what_memory_has_room_for(serve: Serve, tmp_path: Path) -> None:
    for name in "abcd":
        state = install(tmp_path, name)
    memory = {"residency": {"budget_bytes": 8 << 20}, "placement": {"share_below_bytes": 0}}
    sections, arguments = {**SECTIONS, **memory}, ("--state-dir", str(state))
    daemon = serve(None, sections, arguments=arguments)
    now = daemon.until(
        "all proven",
        lambda now: all(each["state"] == "READY" and not each["trial"] for each in now["models"]),
    )
    assert now["swaps"]["loads"] == 4
    daemon.stop()
    costs = json.loads((state / "serve" / "costs.json").read_bytes())["costs"]
    assert sorted(row[0].partition("/")[0] for row in costs) == list("abcd")
    assert all(took_ns > 0 for *_, took_ns, _ in costs)
    again = serve(None, sections, arguments=arguments)
    now = again.status()
    assert {each["state"] for each in now["models"]} == {"READY"}
    assert 1 <= now["swaps"]["loads"] <= 2
    assert [each["residency"] for each in now["models"]].count("cold") >= 2
    for name in "abcd":
        assert ask(again.grpc, name).as_numpy("y").tolist() == [[0, 1, 2, 3]]


@pytest.mark.parametrize(
    ("axis", "known", "merged"), [(1, True, False), (1, None, True), (0, None, False), (0, False, True)]
)
def test_whether_rows_mix_is_not_tried_again_after_a_restart(
    serve: Serve, tmp_path: Path, axis: int, known: bool | None, merged: bool
) -> None:
    """What is known is believed, true or not; where it was lost, rows are tried once more."""
    write_softmax(tmp_path / "sources", "t", axis)
    state = install(tmp_path, "t", tmp_path / "sources" / "t")
    daemon = serve(None, SECTIONS, arguments=("--state-dir", str(state)))
    assert merges(daemon.grpc) is (axis == 1)
    daemon.stop()
    file = state / "serve" / "rows.json"
    document = json.loads(file.read_bytes())
    ((identity, box, mix),) = document["rows"]
    assert identity.startswith("t/1@")
    assert mix is (axis == 0)
    if known is None:
        file.unlink()
    else:
        file.write_text(json.dumps({**document, "rows": [[identity, box, known]]}))
    assert merges(serve(None, SECTIONS, arguments=("--state-dir", str(state))).grpc) is merged


def merges(address: str) -> bool:
    with triton.InferenceServerClient(address) as client:
        return bool(client.get_model_config("t").config.HasField("dynamic_batching"))
