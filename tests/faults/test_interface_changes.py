"""A version with other inputs than clients send: what serves goes on, unless an operator says that clients change."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tritonclient.grpc as triton
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.domain.interface import ALLOWED_PARAMETER
from appliance.store.running import read_incumbents
from tests.conftest import Serve
from tests.faults.clients import Stream, ask
from tests.faults.test_swaps import entry, tensor_over_http, write_version

STORE = {
    "store": {"free_floor_bytes": 0},
    "packages": {"unsigned": "allow"},
    "swap": {"watch_s": 0.0, "packed_forms": False},
}
HELD = "is held back: clients of version 1, which serves, could not talk to it: input 'x' was UINT8 [-1,4], is absent"

Command = Callable[..., tuple[int, str]]


def answers_over_http(address: str) -> Any:
    with triton_http.InferenceServerClient(address) as client:
        return client.infer("m", [tensor_over_http()]).get_response()["model_version"]


@pytest.mark.every_front_end
def test_a_version_in_a_directory_that_clients_cannot_talk_to_waits_for_its_configuration(
    serve: Serve, tmp_path: Path
) -> None:
    write_version(tmp_path, 1)
    daemon = serve(tmp_path, {"swap": {"watch_s": 0.0}})
    with Stream(daemon.grpc, "m") as stream:
        stream.wait_for(20)
        write_version(tmp_path, 2, name="z")
        daemon.signal(signal.SIGHUP)
        now = daemon.until("its reason", lambda now: HELD in entry(now, "m", 2).get("reason", ""))
        assert (entry(now, "m", 2)["state"], now["swaps"]["loads"]) == ("UNAVAILABLE", 1)
        assert entry(now, "m", 2)["interface"][0] == {
            "changed": "input 'x'", "was": "UINT8 [-1,4]", "now": "absent",
        }  # fmt: skip
        assert entry(now, "m", 1)["interface"] == []
        stream.wait_for(20)
        assert answers_over_http(daemon.http) == "1"
    assert set(stream.outcomes) == {"OK"}
    assert HELD.encode() in daemon.get("/models/m").replace(b"&#x27;", b"'"), "the page says so, too"
    said = f'parameters {{ key: "{ALLOWED_PARAMETER}" value {{ string_value: "true" }} }}\n'
    (tmp_path / "m" / "config.pbtxt").write_text(said)
    daemon.signal(signal.SIGHUP)
    daemon.until("the new version", lambda now: entry(now, "m", 2).get("state") == "READY")
    with pytest.raises(InferenceServerException, match="unexpected inference input 'x'"):
        ask(daemon.grpc, "m")


@pytest.fixture
def appliance(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Command:
    config = tmp_path / "store.toml"
    config.write_text('[store]\nfree_floor_bytes = 0\n[packages]\nunsigned = "allow"\n')

    def run(*words: object) -> tuple[int, str]:
        place = ("--state-dir", str(tmp_path / "state"), "--config", str(config))
        status = main(["model", *map(str, words), *(place if words[0] != "pack" else ())])
        told = capsys.readouterr()
        return status, " ".join((told.out + told.err).split())

    return run


@pytest.fixture
def packages(tmp_path: Path, appliance: Command) -> Callable[..., Path]:
    """Of version 1 with input x, and of later ones with input z."""
    (tmp_path / "state").mkdir()

    def pack(version: int, *words: str) -> Path:
        source = write_version(tmp_path / "sources", version, name="x" if version == 1 else "z")
        package = tmp_path / f"m-{version}.model"
        assert (
            appliance("pack", source, "--version", version, "--no-proof", "-o", package, *words)[0] == Exit.OK
        )
        return package

    return pack


@pytest.mark.every_front_end
def test_a_package_that_clients_cannot_talk_to_is_held_across_restarts_until_it_is_wanted_so(
    serve: Serve, tmp_path: Path, appliance: Command, packages: Callable[..., Path]
) -> None:
    arguments = ("--state-dir", str(tmp_path / "state"))
    appliance("install", packages(1))
    daemon = serve(None, STORE, arguments=arguments)
    status, said = appliance("install", packages(2), "--wait", "--url", f"http://{daemon.http}")
    assert (status, "input 'x' UINT8 [-1,4] absent" in said) == (Exit.REFUSED, True)
    assert "Clients of m/1 cannot talk to m/2: it is held back where m/1 serves" in said
    assert f"m/2 does not go live: {HELD}" in said
    assert answers_over_http(daemon.http) == "1"
    daemon.stop()
    daemon = serve(None, STORE, arguments=arguments)
    daemon.until("its reason", lambda now: HELD in entry(now, "m", 2).get("reason", ""))
    assert ask(daemon.grpc, "m").get_response().model_version == "1"
    asked = ("want", "m/2", "--wait", "--url", f"http://{daemon.http}")
    status, said = appliance(*asked)
    assert (status, HELD in said) == (Exit.REFUSED, True), (
        "an order of what is not proven here is held as well"
    )
    status, said = appliance(*asked, "--allow-interface-change")
    assert (status, "it goes live, as was allowed" in said) == (Exit.OK, True), said
    with pytest.raises(InferenceServerException, match="unexpected inference input 'x'"):
        answers_over_http(daemon.http)
    daemon.stop()
    daemon = serve(None, STORE, arguments=arguments)
    assert entry(daemon.status(), "m", 2)["state"] == "READY", (
        "it is proven here, and what was wanted is kept"
    )
    assert appliance("rollback", "m", "--wait", "--url", f"http://{daemon.http}")[0] == Exit.OK
    assert answers_over_http(daemon.http) == "1"


def test_what_is_told_is_of_the_version_that_serves_also_before_it_is_proven(
    serve: Serve, tmp_path: Path, appliance: Command, packages: Callable[..., Path]
) -> None:
    arguments = ("--state-dir", str(tmp_path / "state"))
    appliance("install", packages(1))
    serve(None, STORE, arguments=arguments).stop()
    assert [each.version for each in read_incumbents(tmp_path / "state")] == [1]
    daemon = serve(None, {**STORE, "swap": {"watch_s": 600.0}}, arguments=arguments)
    assert "Clients of m/1" in appliance("install", packages(4), "--allow-interface-change")[1]
    daemon.signal(signal.SIGHUP)
    daemon.until("the fourth", lambda now: entry(now, "m", 4).get("phase") == "watched")
    assert [each.version for each in read_incumbents(tmp_path / "state")] == [1]
    status, said = appliance("install", packages(5))
    assert (status, "Clients of" in said) == (Exit.OK, False), said


def test_a_package_may_say_itself_that_clients_change_along(
    serve: Serve, tmp_path: Path, appliance: Command, packages: Callable[..., Path]
) -> None:
    arguments = ("--state-dir", str(tmp_path / "state"))
    appliance("install", packages(1))
    daemon = serve(None, STORE, arguments=arguments)
    status, said = appliance(
        "install", packages(2, "--allow-interface-change"), "--wait", "--url", f"http://{daemon.http}"
    )
    assert (status, "it goes live, as was allowed" in said) == (Exit.OK, True), said
    config = json.loads(daemon.get("/v2/models/m/config"))
    assert config["parameters"][ALLOWED_PARAMETER] == {"string_value": "true"}


@pytest.mark.every_front_end
def test_clients_that_did_not_change_do_not_lead_back_from_a_version_that_may_change_its_interface(
    serve: Serve, tmp_path: Path
) -> None:
    write_version(tmp_path, 1)
    daemon = serve(tmp_path, {"swap": {"trial_requests": 20, "error_percent": 20.0, "watch_s": 2.0}})
    ask(daemon.grpc, "m")
    said = f'parameters {{ key: "{ALLOWED_PARAMETER}" value {{ string_value: "true" }} }}\n'
    (tmp_path / "m" / "config.pbtxt").write_text(said)
    write_version(tmp_path, 2, name="z")
    daemon.signal(signal.SIGHUP)
    daemon.until("the new version", lambda now: entry(now, "m", 2).get("state") == "READY")
    for _ in range(40):
        with pytest.raises(InferenceServerException, match="unexpected inference input 'x'"):
            ask(daemon.grpc, "m")
    now = daemon.until("the end of its watch", lambda now: entry(now, "m", 2).get("phase") != "watched")
    assert (entry(now, "m", 2)["phase"], entry(now, "m", 2)["reason"]) == ("live", "")
    with pytest.raises(InferenceServerException, match="unexpected inference input 'x'"):
        ask(daemon.grpc, "m")


def test_a_load_by_hand_is_never_held_back_and_a_smaller_batch_is_else(serve: Serve, tmp_path: Path) -> None:
    models, path = tmp_path / "models", tmp_path / "control"
    write_version(models, 1)
    sections = {"swap": {"watch_s": 0.0}, "control": {"socket": str(path)}}
    daemon = serve(models, sections)
    (models / "m" / "config.pbtxt").write_text("max_batch_size: 2\n")
    daemon.signal(signal.SIGHUP)
    now = daemon.until("its reason", lambda now: "held back" in entry(now)["reason"])
    assert "still serving the previous file; the new one is held back" in entry(now)["reason"]
    assert "largest batch was 32, is 2" in entry(now)["reason"]
    with triton.InferenceServerClient(f"unix:{path}") as operator:
        operator.load_model("m")
        assert operator.get_model_config("m").config.max_batch_size == 2
    daemon.until("no reason any more", lambda now: not entry(now)["reason"])
