"""``appliance image check``: the gate of an image and of an upgrade, asked of a real server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from tests.conftest import Serve


def test_every_model_that_is_ready_answers_and_so_does_each_that_is_named(
    serve: Serve, model_directory: Callable[..., Path], capsys: pytest.CaptureFixture[str]
) -> None:
    models = model_directory("mlp")
    (broken := models / "broken" / "1").mkdir(parents=True)
    (broken / "model.onnx").write_bytes(b"no model")
    daemon = serve(models)
    check = ["image", "check", "--url", daemon.http, "--within", "1"]
    assert main(check) == Exit.OK, "one that never was ready is no reason to go back"
    assert "answered: mlp" in capsys.readouterr().out
    assert main([*check, "--model", "mlp"]) == Exit.OK
    assert main([*check, "--model", "mlp", "--model", "broken", "--model", "gone"]) == Exit.REFUSED
    assert "not ready: broken, gone" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "said"),
    [(["--url", "a:b"], "not an address"), (["--cert", "a"], "--cert and --key go together")],
)
def test_what_was_typed_wrong_is_not_waited_for(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["image", "check", "--within", "1", *words]) == Exit.USAGE
    told = capsys.readouterr().err
    assert said in told
    assert "within" not in told
