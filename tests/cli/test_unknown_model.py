"""A name that no model has: every command that takes one says so, and which may be meant."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.domain.model_names import no_such_model
from tests.cli.conftest import Pack, Run
from tests.conftest import Serve


def test_the_near_name_and_the_versions_that_there_are_are_told(
    serve: Serve, model_directory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = serve(model_directory("mlp"))
    for command, url in (
        (["infer", "--zeros"], daemon.grpc),
        (["status"], daemon.http),
        (["top", "--once", "--interval", "0.1"], daemon.http),
        (["model", "list"], daemon.http),
    ):
        assert main([*command, "mpl", "--url", url]) == Exit.REFUSED
        assert "no such model: 'mpl'; did you mean 'mlp'?" in capsys.readouterr().err
        assert main([*command, "mlp", "--url", url]) == Exit.OK
        assert main([*command, "other", "--url", url]) == Exit.REFUSED
        assert "no such model: 'other'; there are 'mlp'" in capsys.readouterr().err
    assert main(["infer", "mlp", "--zeros", "--version", "9", "--url", daemon.grpc]) == Exit.REFUSED
    assert "no such version: mlp/9; there are 1" in capsys.readouterr().err


def test_status_of_one_model_shows_no_other(
    serve: Serve, model_directory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    daemon = serve(model_directory("mlp", "scalar"))
    for name in ("mlp", "mlp/1"):
        assert main(["status", name, "--url", f"http://{daemon.http}"]) == Exit.OK
        shown = capsys.readouterr().out
        assert "mlp/1" in shown
        assert "scalar" not in shown
    assert main(["status", "mlp/2", "--url", f"http://{daemon.http}"]) == Exit.REFUSED
    assert "no such model: 'mlp/2'; did you mean 'mlp/1'?" in capsys.readouterr().err


def test_few_of_many_names_are_told() -> None:
    names = [f"model_{number}" for number in range(30)]
    assert no_such_model("zzz", names).endswith("'model_16', 'model_17' and 20 more")
    assert no_such_model("zzz", []).endswith("there are none")


@pytest.mark.every_front_end
def test_the_control_socket_tells_near_names_and_what_is_unloaded_is_no_unknown_version(
    serve: Serve,
    model_directory: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
) -> None:
    control = str(tmp_path / "control")
    daemon = serve(model_directory("mlp", "scalar"), {"control": {"socket": control}})
    for command in ("load", "unload"):
        assert main(["model", command, "mpl", "--socket", control]) == Exit.REFUSED
        told = capsys.readouterr().err
        assert f"failed to {command} 'mpl': there is no such model; did you mean 'mlp'?" in told
    assert main(["model", "unload", "mlp", "--socket", control]) == Exit.OK
    for version in ([], ["--version", "1"]):
        assert main(["infer", "mlp", "--zeros", *version, "--url", daemon.grpc]) == Exit.REFUSED
        told = capsys.readouterr().err
        assert "Request for unknown model: 'mlp' " in told
        assert "no such version" not in told


@pytest.mark.parametrize(
    "command",
    [
        ["want", "digit/1"],
        ["trial", "digit/1", "--canary", "10"],
        ["trial", "digit", "--stop"],
        ["rollback", "digit"],
        ["pin", "digit/1"],
        ["unpin", "digit/1"],
        ["uninstall", "digit"],
        ["uninstall", "digit/1"],
        ["history", "digit"],
        ["list", "digit"],
    ],
    ids=lambda words: words[0],
)
def test_the_near_name_is_told_of_what_is_installed(appliance: Run, pack: Pack, command: list[str]) -> None:
    assert appliance("model", "install", str(pack()))[0] == Exit.OK
    status, _, err = appliance("model", *command)
    assert status == Exit.REFUSED
    assert "no such model: 'digit'; did you mean 'digits'?" in err


def test_why_a_model_that_is_there_does_not_serve_is_told(
    serve: Serve, model_directory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    models = model_directory("mlp")
    (models / "broken" / "1").mkdir(parents=True)
    (models / "broken" / "1" / "model.onnx").write_bytes(b"no model")
    daemon = serve(models)
    for words in ([], ["--version", "1"]):
        assert main(["infer", "broken", "--zeros", *words, "--url", daemon.grpc]) == Exit.REFUSED
        refusal, mark, why = capsys.readouterr().err.partition("; version 1 is UNAVAILABLE: ")
        assert ("'broken'" in refusal, bool(mark)) == (True, True)
        assert len(why) > 10
