"""What instance groups of KIND_AUTO come to once the operator, or this machine, has said what that is."""

from __future__ import annotations

from dataclasses import replace

import pytest

from appliance.domain.device import Device, DeviceKind
from appliance.domain.device_wish import ON_CPU, ON_CUDA, DeviceWish
from appliance.domain.session_options import OF_ENGINES, ON_GPU_ALONE
from appliance.reconciler.wanted import with_fallbacks
from tests.repository.conftest import ReadModel
from tests.repository.outcomes import served

L4 = Device(kind=DeviceKind.CUDA, index=0, uuid="GPU-5f", name="L4", driver="1", capability=(8, 9))
FOUND = {"gpus": (L4,), "usable": (L4,)}


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


ALONE = dict.fromkeys(sorted(ON_GPU_ALONE), "1") | {"min_compute_capability": "8.9", "gpu_uuids": "GPU-1"}


@pytest.mark.parametrize(("key", "value"), ALONE.items())
def test_what_is_for_a_gpu_alone_is_noted_on_the_processor(
    read_model: ReadModel, key: str, value: str
) -> None:
    said = f'parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'
    for group in ("", "instance_group { kind: KIND_CPU }", "instance_group { kind: KIND_AUTO }"):
        (note,) = read_model(said + group, auto_device="cpu").notes
        assert note.key == f'parameters["{key}"]'
        assert note.text.endswith("has no effect here: the model runs on the processor")
    backend = 'backend: "tensorrt"' if key in OF_ENGINES else ""
    for group in ("instance_group { kind: KIND_GPU }", "instance_group { kind: KIND_AUTO }"):
        assert not read_model(backend + said + group, auto_device="cuda", runtimes=("onnx", "tensorrt")).notes


@pytest.mark.parametrize(
    ("groups", "auto"),
    [
        ("", False),
        ("{ count: 2 }", True),
        ("{ kind: KIND_AUTO }", True),
        ("{ kind: KIND_AUTO }, { kind: KIND_GPU }", False),
        ("{ kind: KIND_CPU }, { kind: KIND_GPU }", False),
    ],
)
def test_a_scan_knows_whether_kind_auto_decides(read_model: ReadModel, groups: str, auto: bool) -> None:
    found = read_model(f"instance_group [ {groups} ]" if groups else "", auto_device="cpu")
    assert found.auto == auto


def test_what_stands_in_counts_as_well(read_model: ReadModel) -> None:
    config = "instance_group { kind: KIND_%s }"
    wanted, stands = (read_model(config % each, auto_device="cpu") for each in ("CPU", "AUTO"))
    assert not with_fallbacks(wanted, {}).auto
    assert with_fallbacks(wanted, {"m": stands}).auto


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
        'instance_group { } parameters { key: "gpu_uuids" value { string_value: "GPU" } }',
        'instance_group { } parameters { key: "min_compute_capability" value { string_value: "8.9" } }',
    ],
)
def test_whether_a_model_may_be_served_does_not_depend_on_the_machine(
    read_model: ReadModel, config: str
) -> None:
    scans = [read_model(config, auto_device=each) for each in ("auto", "cpu", "cuda")]
    scans.append(read_model(config, auto_device="cuda", **FOUND))
    verdicts = {tuple(replace(each, device=ON_CPU) for each in found.broken) for found in scans}
    assert len(verdicts) == 1


WISHES = """
parameters { key: "gpu_uuids" value { string_value: "GPU-77,GPU-5" } }
parameters { key: "min_compute_capability" value { string_value: "%s" } }
"""
NONE_SUCH = "KIND_AUTO is the processor here: no GPU that can be used is what the model asks for"


def test_where_no_gpu_is_what_a_model_asks_for_kind_auto_is_the_processor(read_model: ReadModel) -> None:
    group = "instance_group { kind: KIND_AUTO gpus: [ 0 ] count: 2 }"
    found = read_model(group + WISHES % "9.0", auto_device="cuda", **FOUND)
    assert (served(found).device, served(found).instance_count) == (ON_CPU, 2)
    assert NONE_SUCH in [note.text for note in found.notes if note.key == "instance_group[0]"]
    found = read_model(group + WISHES % "8.9", auto_device="cuda", **FOUND)
    assert served(found).device == DeviceWish(DeviceKind.CUDA, (0,), (8, 9), ("GPU-77", "GPU-5"))
    assert not [note for note in found.notes if note.text == NONE_SUCH]


@pytest.mark.parametrize(
    ("kind", "device"),
    [
        ("KIND_CPU", ON_CPU),
        ("KIND_GPU", DeviceWish(DeviceKind.CUDA, (), (9, 0), ("GPU-77", "GPU-5"))),
    ],
)
def test_a_kind_that_is_named_is_that_one_whatever_gpus_there_are(
    read_model: ReadModel, kind: str, device: DeviceWish
) -> None:
    for groups in (f"instance_group {{ kind: {kind} }}", f"instance_group [ {{ kind: {kind} }}, {{ }} ]"):
        found = read_model(groups + WISHES % "9.0", auto_device="cuda", **FOUND)
        assert served(found).device == device
        assert not [note for note in found.notes if note.text == NONE_SUCH]
