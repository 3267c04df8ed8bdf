"""Both edges tell the same of how a model is served."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf.json_format import MessageToDict, ParseDict

from appliance.config.repository import RepositoryConfig
from appliance.domain.model import ModelVersion, VersionChoice, VersionPolicy, Warmup, WarmupInput
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.frontend import documents
from appliance.frontend.grpc.handlers import Handlers
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.grpc.wire_pb import model_config_pb2 as config_pb
from tests.domain.sample import EVERYTHING, make_version
from tests.frontend.grpc.engine_double import EngineDouble, LogDouble
from tests.repository.scanning import scan

MODELS = Path(__file__).parents[2] / "models"
ZEROS = Warmup(
    name="zeros",
    batch_size=1,
    count=1,
    inputs=(WarmupInput(spec=TensorSpec(name="x", datatype=Datatype.FP32, shape=(1, 4))),),
)
SAMPLES = {
    "everything": EVERYTHING,
    "everything, all versions": replace(EVERYTHING, policy=VersionPolicy(choice=VersionChoice.ALL)),
    "everything, latest versions": replace(EVERYTHING, policy=VersionPolicy(count=4)),
    "everything, warmed with zeros": replace(EVERYTHING, warmups=(*EVERYTHING.warmups, ZEROS)),
    "little": make_version(batching=None, max_batch_size=0),
}


def _digits() -> ModelVersion:
    found = scan(MODELS, RepositoryConfig())
    return next(entry.model for entry in found.servable if entry.model.name == "digits")


def _over_grpc(model: ModelVersion) -> dict[str, Any]:
    told = Handlers(EngineDouble(model), LogDouble()).model_config(pb.ModelConfigRequest(name=model.name))
    return MessageToDict(told.config, preserving_proto_field_name=True)


def _over_http(model: ModelVersion) -> dict[str, Any]:
    """The document as the public message reads it, which refuses names that the message lacks."""
    document = json.loads(json.dumps(documents.model_config(model)))
    message = ParseDict(document, config_pb.ModelConfig())
    return MessageToDict(message, preserving_proto_field_name=True)


@pytest.mark.parametrize("model", SAMPLES.values(), ids=SAMPLES)
def test_the_edges_agree(model: ModelVersion) -> None:
    assert _over_http(model) == _over_grpc(model)


def test_the_edges_agree_on_digits_and_say_what_its_file_says() -> None:
    told = _over_grpc(_digits())
    assert _over_http(_digits()) == told
    assert told["output"][0]["label_filename"] == "digits_labels.txt"
    assert told["version_policy"] == {"all": {}}
    assert told["default_model_filename"] == "model.onnx"


def test_warmups_are_told_in_full() -> None:
    model = SAMPLES["everything, warmed with zeros"]
    first, second = _over_http(model)["model_warmup"]
    assert (first["name"], first["batch_size"], first["count"]) == ("w", 2, 3)
    assert first["inputs"]["x"] == {"data_type": "TYPE_FP32", "dims": ["5", "4"], "random_data": True}
    assert first["inputs"]["s"] == {"data_type": "TYPE_STRING", "dims": ["1"], "input_data_file": "s"}
    assert second["inputs"]["x"] == {"data_type": "TYPE_FP32", "dims": ["1", "4"], "zero_data": True}
