"""Names that hold control characters stay on their line, whoever shows them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from rich.console import Console

from appliance.cli.answer import show
from appliance.cli.failure import CommandFailed, Exit, printable
from appliance.cli.infer import build_inputs
from appliance.cli.main import main
from appliance.cli.oip_client import Reply
from appliance.domain.errors import ArtefactError
from appliance.domain.inference import OutputTensor
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.tools.evaluation.inputs import random_inputs
from tests.domain.sample import make_version

if TYPE_CHECKING:
    from tests.appliance_process import ApplianceProcess

BROKEN = "two\nlines\x1b[2J"
SHOWN = r"two\nlines\x1b[2J"
ODD_INPUTS = [TensorSpec(name=name, datatype=Datatype.FP32, shape=(-1,)) for name in ("a", "a=b", "n\n")]


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("digits/2", "digits/2"),
        ("m\u00fc \u6570", "m\u00fc \u6570"),
        (BROKEN, SHOWN),
        ("a\r\tb\x00\x7f\x9b", r"a\r\tb\x00\x7f\x9b"),
        ("\u2028\u202e\udc80", r"\u2028\u202e\udc80"),
    ],
)
def test_only_what_shows_nothing_is_escaped(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_a_failure_is_one_line_and_its_list_one_line_each() -> None:
    assert str(CommandFailed(f"no '{BROKEN}'")) == f"no '{SHOWN}'"
    assert str(CommandFailed("all:", lines=["a\nb", "c"])) == "all:\na\\nb\nc"


def test_a_model_directory_with_a_newline_in_its_name(
    serve: Callable[..., ApplianceProcess],
    model_directory: Callable[..., Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    models = model_directory("mlp")
    (models / BROKEN / "1").mkdir(parents=True)
    process = serve(models)
    process.wait_log("Try:")
    (line,) = [line for line in process.log().splitlines() if line.startswith("Not ready:")]
    assert line.startswith(f"Not ready: {SHOWN}: is not a name")
    for command in (["status"], ["top", "--once", "--interval", "0.1"]):
        assert main([*command, "--url", process.http]) == Exit.OK
        shown = capsys.readouterr().out
        assert "\x1b" not in shown
        assert [line for line in shown.splitlines() if line.startswith(SHOWN[:5])]
        assert not [line for line in shown.splitlines() if line.startswith("lines")]


def test_an_answer_with_control_characters_in_its_names(capsys: pytest.CaptureFixture[str]) -> None:
    output = OutputTensor(BROKEN, Datatype.FP32, (1,), np.zeros(1, np.float32).tobytes())
    reply = Reply(model="[bold]m\n", version="1", outputs=(output,), milliseconds=1.0)
    show(Console(width=120), reply, {})
    shown = capsys.readouterr().out
    assert SHOWN in shown
    assert r"[bold]m\n version 1" in shown


@pytest.mark.parametrize(("word", "name"), [("a=1", "a"), ("a=b=1", "a=b"), ("n\n=1", "n\n")])
def test_an_inputs_name_may_hold_what_parts_it_from_its_value(word: str, name: str) -> None:
    (given,) = build_inputs("m", ODD_INPUTS, [word], zero_fill=False)
    assert given.name == name


def test_a_model_without_inputs_is_asked_without_any() -> None:
    assert build_inputs("m", [], [], zero_fill=False) == ()


@pytest.mark.parametrize(("name", "said"), [("x", "--shape x=N,4"), ("my x", "--shape 'my x=N,4'")])
def test_what_is_told_to_give_can_be_copied_whatever_an_input_is_called(name: str, said: str) -> None:
    spec = TensorSpec(name=name, datatype=Datatype.FP32, shape=(-1, 4))
    with pytest.raises(ArtefactError, match=f"give {said} with"):
        random_inputs(make_version(inputs=(spec,)), 1, {}, seed=1)


def test_what_follows_an_inputs_name_is_its_value() -> None:
    with pytest.raises(CommandFailed, match="'c=1' is not a number"):
        build_inputs("m", ODD_INPUTS, ["a=c=1"], zero_fill=False)
