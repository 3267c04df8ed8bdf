"""Answers as JSON."""

from __future__ import annotations

import json

import pytest

from appliance.cli.answer import as_json
from appliance.cli.oip_client import Reply
from appliance.domain.inference import OutputTensor
from appliance.domain.tensor import Datatype, encode_bytes


def test_scores_that_json_does_not_have_are_texts_as_other_values_are() -> None:
    data = encode_bytes([b"inf:1:one", b"0.5:0:zero", b"nan:2:two"])
    output = OutputTensor("y", Datatype.BYTES, (1, 3), data)
    reply = Reply(model="m", version="1", outputs=(output,), milliseconds=1.0)
    told = json.loads(json.dumps(as_json(reply, {"y": 3})), parse_constant=pytest.fail)
    assert [each["score"] for each in told["outputs"][0]["classes"][0]] == ["inf", 0.5, "nan"]
