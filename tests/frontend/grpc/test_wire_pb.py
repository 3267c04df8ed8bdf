"""The committed descriptors are what the sources give, fit other people's, and live beside them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from tritonclient.grpc import model_config_pb2 as their_config
from tritonclient.grpc import service_pb2 as theirs

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.grpc.wire_pb import model_config_pb2 as config_pb

ROOT = Path(__file__).resolve().parents[3]
RPCS = 20


def test_committed_files_are_what_the_sources_give() -> None:
    check = subprocess.run(
        [sys.executable, "proto/build.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert check.returncode == 0, check.stderr


def test_every_rpc_of_theirs_is_ours() -> None:
    ours = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    their_methods = theirs.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods_by_name
    assert set(ours) == set(their_methods)
    assert len(ours) == RPCS
    for name, method in their_methods.items():
        assert ours[name].input_type.full_name == method.input_type.full_name
        assert ours[name].output_type.full_name == method.output_type.full_name
        assert ours[name].client_streaming == method.client_streaming


@pytest.mark.parametrize("name", sorted(theirs.DESCRIPTOR.message_types_by_name))
def test_inference_messages_agree_field_by_field(name: str) -> None:
    _agree(
        pb.DESCRIPTOR.message_types_by_name[name],
        theirs.DESCRIPTOR.message_types_by_name[name],
        complete=True,
    )


@pytest.mark.parametrize("name", sorted(config_pb.DESCRIPTOR.message_types_by_name))
def test_config_messages_agree_where_ours_has_the_field(name: str) -> None:
    message = their_config.DESCRIPTOR.message_types_by_name[name]
    _agree(config_pb.DESCRIPTOR.message_types_by_name[name], message, complete=False)


def test_datatype_numbers_agree() -> None:
    theirs_by_name = dict(their_config.DataType.items())
    assert dict(config_pb.DataType.items()) == theirs_by_name


@pytest.mark.parametrize("order", ["ours, theirs", "theirs, ours"])
def test_importing_beside_another_copy_of_the_protocol(order: str) -> None:
    modules = {
        "ours": "from appliance.frontend.grpc.wire_pb import inference_pb2 as ours",
        "theirs": "from tritonclient.grpc import service_pb2 as theirs",
    }
    check = "assert ours.ModelInferRequest is not theirs.ModelInferRequest"
    program = "\n".join([*(modules[name] for name in order.split(", ")), check])
    subprocess.run([sys.executable, "-W", "error", "-c", program], cwd=ROOT, check=True)


def _agree(ours: Descriptor, other: Descriptor, *, complete: bool) -> None:
    for field in other.fields:
        mine = ours.fields_by_name.get(field.name)
        if mine is None:
            assert not complete, f"{ours.full_name} lacks {field.name}"
            assert field.number not in ours.fields_by_number
            continue
        assert _form(mine) == _form(field)
    for nested in other.nested_types:
        if complete or nested.name in ours.nested_types_by_name:
            _agree(ours.nested_types_by_name[nested.name], nested, complete=complete)


def _form(field: FieldDescriptor) -> tuple[object, ...]:
    kind = field.message_type or field.enum_type
    return field.full_name, field.number, field.type, field.is_repeated, kind.full_name if kind else None
