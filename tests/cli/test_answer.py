"""Answers as JSON, and for people on screens of any width."""

from __future__ import annotations

import io
import json

import pytest
from rich.cells import cell_len
from rich.console import Console

from appliance.cli.answer import BAR_CELLS, as_json, show
from appliance.cli.oip_client import Reply
from appliance.domain.inference import OutputTensor
from appliance.domain.tensor import Datatype, encode_bytes


def test_scores_that_json_does_not_have_are_texts_as_other_values_are() -> None:
    data = encode_bytes([b"inf:1:one", b"0.5:0:zero", b"nan:2:two"])
    output = OutputTensor("y", Datatype.BYTES, (1, 3), data)
    reply = Reply(model="m", version="1", outputs=(output,), milliseconds=1.0)
    told = json.loads(json.dumps(as_json(reply, {"y": 3})), parse_constant=pytest.fail)
    assert [each["score"] for each in told["outputs"][0]["classes"][0]] == ["inf", 0.5, "nan"]


@pytest.mark.parametrize(("width", "beside"), [(120, True), (80, True), (60, False), (44, False)])
def test_figures_stay_whole_and_values_stand_below_where_there_is_no_room(width: int, beside: bool) -> None:
    classes = OutputTensor(
        "probabilities", Datatype.BYTES, (1, 2), encode_bytes([b"0.572264:4:four", b"0.1:7:seven"])
    )
    plain = OutputTensor("scores", Datatype.FP64, (1, 1), bytes(8))
    reply = Reply(model="digits", version="1", outputs=(classes, plain), milliseconds=1.5)
    console = Console(width=width, record=True, file=io.StringIO())
    show(console, reply, {"probabilities": 2})
    lines = console.export_text().splitlines()
    assert max(map(cell_len, lines)) <= width
    assert not any("…" in line for line in lines)
    (four,) = [line for line in lines if "four" in line]
    assert (four.count("█") + four.count("░"), "0.572264" in four) == (BAR_CELLS, True)
    assert ("probabilities" in four) is beside
    assert any("scores" in line and "FP64" in line for line in lines)
