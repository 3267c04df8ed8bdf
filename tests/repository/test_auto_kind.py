"""What instance groups of KIND_AUTO come to once the operator, or this machine, has said what that is."""

from __future__ import annotations

import pytest

from appliance.domain.device import ON_CPU, ON_CUDA, DeviceKind, DeviceWish
from appliance.domain.session_options import ON_GPU_ALONE
from tests.repository.conftest import ReadModel
from tests.repository.outcomes import served


def test_instances_of_kind_auto_run_where_the_operator_says(read_model: ReadModel) -> None:
    assert served(read_model("instance_group { count: 2 }", auto_device="cuda")).device == ON_CUDA
    assert served(read_model("instance_group { kind: KIND_CPU }", auto_device="cuda")).device == ON_CPU


@pytest.mark.parametrize("auto_device", ["auto", "cpu"])
def test_gpus_that_kind_auto_names_are_noted_where_it_is_the_processor(
    read_model: ReadModel, auto_device: str
) -> None:
    config = "instance_group { kind: KIND_AUTO gpus: [ 0, 2 ] }"
    found = read_model(config, auto_device=auto_device)
    assert served(found).device == ON_CPU
    (note,) = found.notes
    assert note.key == "instance_group[0]"
    assert note.text == "KIND_AUTO is the processor here, where 'gpus' has no effect"
    on_gpu = read_model(config, auto_device="cuda")
    assert served(on_gpu).device == DeviceWish(DeviceKind.CUDA, (0, 2))
    assert not on_gpu.notes


@pytest.mark.parametrize("key", sorted(ON_GPU_ALONE))
def test_what_is_for_a_gpu_alone_is_noted_on_the_processor(read_model: ReadModel, key: str) -> None:
    said = f'parameters {{ key: "{key}" value {{ string_value: "1" }} }}'
    for group in ("", "instance_group { kind: KIND_CPU }", "instance_group { kind: KIND_AUTO }"):
        (note,) = read_model(said + group, auto_device="cpu").notes
        assert note.key == f'parameters["{key}"]'
        assert note.text.endswith("has no effect here: the model runs on the processor")
    for group in ("instance_group { kind: KIND_GPU }", "instance_group { kind: KIND_AUTO }"):
        assert not read_model(said + group, auto_device="cuda").notes


@pytest.mark.parametrize(("named", "device"), [("KIND_CPU", ON_CPU), ("KIND_GPU", ON_CUDA)])
def test_beside_a_kind_that_is_named_kind_auto_is_that_one(
    read_model: ReadModel, named: str, device: DeviceWish
) -> None:
    for auto_device in ("auto", "cpu", "cuda"):
        config = f"instance_group [ {{ count: 2 kind: {named} }}, {{ kind: KIND_AUTO }} ]"
        assert served(read_model(config, auto_device=auto_device)).device == device


@pytest.mark.parametrize(
    "config",
    [
        "instance_group { kind: KIND_AUTO gpus: [ 0 ] }",
        "instance_group { kind: KIND_AUTO gpus: [ ] }",
        "instance_group [ { kind: KIND_AUTO count: 2 }, { gpus: [ 1 ] } ]",
        "instance_group { kind: KIND_AUTO gpus: [ 64 ] }",
        "instance_group { kind: KIND_AUTO count: 65 }",
        "instance_group [ { kind: KIND_CPU }, { kind: KIND_GPU }, { kind: KIND_AUTO } ]",
        "instance_group [ { kind: KIND_CPU }, { gpus: [ 0 ] } ]",
    ],
)
def test_whether_a_model_may_be_served_does_not_depend_on_the_machine(
    read_model: ReadModel, config: str
) -> None:
    verdicts = {read_model(config, auto_device=each).broken for each in ("auto", "cpu", "cuda")}
    assert len(verdicts) == 1
