"""Both edges tell the same of how a model is served."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from google.protobuf import text_format
from google.protobuf.json_format import MessageToDict, ParseDict
from tritonclient.grpc import model_config_pb2 as public_pb2

from appliance.config.repository import RepositoryConfig
from appliance.domain.model import ModelVersion, VersionChoice, VersionPolicy, Warmup, WarmupInput
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.frontend import documents
from appliance.frontend.grpc.handlers import Handlers
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.grpc.wire_pb import model_config_pb2 as config_pb
from tests.domain.sample import EVERYTHING, make_version
from tests.frontend.grpc.engine_double import EngineDouble, LogDouble
from tests.repository.onnx_files import plain_model, write_version
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


WRITTEN = """
name: "m"
platform: "onnxruntime_onnx"
max_batch_size: 8
version_policy { specific { versions: [ 1 ] } }
input { name: "x" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ 1, 2, 2 ] reshape { shape: [ 4 ] } }
output { name: "y" data_type: TYPE_FP32 dims: [ 2, 2 ] reshape { shape: [ 4 ] } label_filename: "labels.txt" }
instance_group { name: "first" count: 1 kind: KIND_GPU gpus: [ 0 ] host_policy: "numa0" }
instance_group { name: "second" count: 2 kind: KIND_GPU }
optimization {
  graph { level: -1 }
  priority: PRIORITY_MAX
  cuda {
    graphs: true
    graph_spec { batch_size: 1 input { key: "x" value { dim: [ 4, 9000000000 ] } } graph_lower_bound { batch_size: 1 } }
  }
  input_pinned_memory { enable: true }
  output_pinned_memory { enable: false }
  gather_kernel_buffer_threshold: 7
  eager_batching: true
}
metric_tags { key: "site" value: "north" }
metric_tags { key: "line" value: "7" }
model_metrics { metric_control { metric_identifier { family: "f" } histogram_options { buckets: [ 0.5, 2, 1e3 ] } } }
response_cache { enable: true }
model_transaction_policy { decoupled: false }
parameters { key: "intra_op_thread_count" value { string_value: "2" } }
parameters { key: "site's own" value { string_value: "\\"x\\"" } }
dynamic_batching {
  preferred_batch_size: [ 2, 4, 8 ]
  max_queue_delay_microseconds: 100
  priority_levels: 3
  default_priority_level: 2
  default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 allow_timeout_override: true }
  priority_queue_policy { key: 1 value { max_queue_size: 3 } }
}
model_warmup { name: "w" batch_size: 2 count: 3
  inputs { key: "x" value { data_type: TYPE_FP32 dims: [ 1, 2, 2 ] random_data: true } } }
default_model_filename: "model.onnx"
"""


def _missing(written: Any, told: Any, place: str = "") -> list[str]:
    """Where ``told`` lacks something that was written."""
    if isinstance(written, dict):
        return [
            text
            for key, value in written.items()
            for text in (
                _missing(value, told[key], f"{place}.{key}") if key in told else [f"{place}.{key} is missing"]
            )
        ]
    if isinstance(written, list) and written and isinstance(written[0], dict):
        return [
            text
            for index, (one, other) in enumerate(zip(written, told, strict=True))
            for text in _missing(one, other, f"{place}[{index}]")
        ]
    return [] if written == told else [f"{place} is {told}, {written} was written"]


def test_all_that_was_written_is_told_by_the_public_messages(tmp_path: Path) -> None:
    directory = write_version(tmp_path, "m", plain_model())
    (directory / "config.pbtxt").write_text(WRITTEN)
    (directory / "labels.txt").write_text("a\nb\n")
    (entry,) = scan(tmp_path, RepositoryConfig()).servable
    public = text_format.Parse(WRITTEN, public_pb2.ModelConfig())
    wire = Handlers(EngineDouble(entry.model), LogDouble()).model_config(pb.ModelConfigRequest(name="m"))
    for told in (
        public_pb2.ModelConfig.FromString(wire.config.SerializeToString()),
        ParseDict(json.loads(json.dumps(documents.model_config(entry.model))), public_pb2.ModelConfig()),
    ):
        assert _missing(_plain(public), _plain(told)) == []
    config: Any = documents.model_config(_digits())
    formats = [each["format"] for each in config["input"]]
    assert formats == ["FORMAT_NONE"], "clients of HTTP read it without asking whether it is there"


def _plain(message: Any) -> dict[str, Any]:
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
