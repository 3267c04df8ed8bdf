"""docs/CONFIG-PBTXT.md says what is so: each line of its tables is read, and no key that there is is missing."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.frontend.grpc.wire_pb import model_config_pb2 as pb
from appliance.repository import instance_config, model_config
from appliance.repository.findings import Findings
from appliance.repository.model_config import read_model_config
from appliance.repository.noted import NOTED, OPTIMIZATION
from appliance.repository.pbtxt import parse

DOCUMENT = (Path(__file__).parents[2] / "docs" / "CONFIG-PBTXT.md").read_text()
RUNTIMES = ("onnx", "tensorrt")
"""Of the box that a line with a parameter of TensorRT is for."""
LINES = re.findall(r"^\| `(.+?)` \| (obeyed|noted|refused) \|", DOCUMENT, re.MULTILINE)


@pytest.mark.parametrize(("line", "said"), LINES, ids=[line for line, _ in LINES])
def test_each_line_is_what_the_document_says(line: str, said: str) -> None:
    findings = Findings()
    read_model_config(
        parse(line.encode()),
        file="config.pbtxt",
        model_name="m",
        settings=RepositoryConfig(runtimes=RUNTIMES if "tensorrt_" in line else ("onnx",)),
        findings=findings,
    )
    found = "refused" if findings.problems else "noted" if findings.notes else "obeyed"
    assert found == said, (findings.problems, findings.notes)


def _keys(message: Any) -> Iterator[str]:
    for each in message.fields:
        if message.GetOptions().map_entry and each.name in ("key", "value"):
            pass
        else:
            yield each.name
        if each.message_type is not None:
            yield from _keys(each.message_type)


def test_no_key_is_missing() -> None:
    known = {
        *_keys(pb.ModelConfig.DESCRIPTOR),
        *NOTED,
        *OPTIMIZATION,
        *model_config._REFUSED,
        *instance_config._UNOFFERED,
    }
    told = set(re.findall(r"\w+", " ".join(line for line, _ in LINES)))
    assert known - told == set()
