"""What people should see of devices."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from appliance.domain.device import cuda
from appliance.domain.device_reading import MigTrouble, Reading
from appliance.domain.model import VersionState
from appliance.telemetry.metrics.devices import device_families
from appliance.telemetry.metrics.exposition import exposition
from appliance.telemetry.notices import notices
from appliance.telemetry.status_document import device_document
from tests.frontend.http.engine_figures import made_up_devices, made_up_snapshot

GIB = 1 << 30


def test_what_others_have_of_a_device_is_told_from_a_tenth_of_it_on() -> None:
    device, _ = made_up_devices()
    device = replace(device, device=replace(device.device, memory_bytes=80 * GIB))
    quiet = len(list(notices(replace(made_up_snapshot(), devices=(replace(device, others_bytes=7 * GIB),)))))
    told = list(notices(replace(made_up_snapshot(), devices=(device,))))
    assert len(told) == quiet + 1
    assert (
        "cuda:0 (made up, GPU-0): other processes have 9.0 GiB of its memory; models may take 70.0 GiB."
        in told
    )


def test_that_nothing_tells_of_gpus_matters_where_models_ask_for_one() -> None:
    problem = "NVML Shared Library Not Found"
    snapshot = replace(made_up_snapshot(), devices_problem=problem)
    assert not list(notices(snapshot))
    first, *others = snapshot.engine.versions
    asking = replace(snapshot.engine, versions=(replace(first, device=cuda(0)), *others))
    (told,) = notices(replace(snapshot, engine=asking))
    assert told == (
        f"Models ask for a GPU, and nothing tells of one ({problem}): they have no budget there, and no fault of it "
        f"is seen ({first.name}/{first.version}). docs/GPU.md says what to install."
    )
    refused = replace(first, device=cuda(0), state=VersionState.UNAVAILABLE)
    asking = replace(
        snapshot.engine, versions=(*[replace(refused, version=each) for each in range(7)], *others)
    )
    (told,) = notices(replace(snapshot, engine=asking))
    named = ", ".join(f"{first.name}/{each}" for each in range(5))
    assert told == (
        f"Models ask for a GPU, and nothing tells of one ({problem}): none of them serves ({named} and 2 more). "
        "docs/GPU.md says what to install."
    )


def test_that_models_of_kind_auto_use_no_gpu_that_is_there_is_told() -> None:
    snapshot = made_up_snapshot()
    assert not list(notices(snapshot))
    (told,) = notices(replace(snapshot, unused_gpus="onnxruntime-gpu is not installed; install it"))
    assert told == (
        "Models of KIND_AUTO run on the processor although there is a GPU, as onnxruntime-gpu is not installed; "
        'install it. Where that is meant, auto_device = "cpu" in [repository] says so.'
    )


@pytest.mark.parametrize(
    ("ails", "words"),
    [
        ({"ecc_uncorrected": 3}, "3 memory errors"),
        ({"ecc_uncorrected": 1, "xids": (79, 13, 79)}, "1 memory error, Xid 79"),
        ({"lost": True}, "lost"),
        ({"silent": True}, "no answer"),
        ({"remap_failed": True}, "broken row of memory"),
        ({"mig_trouble": MigTrouble.REMOVED}, "MIG"),
    ],
)
def test_a_fault_is_told_in_a_few_words_where_the_device_is(ails: dict[str, Any], words: str) -> None:
    device, _ = made_up_devices()
    assert device_document(replace(device, reading=Reading(**ails)), 0.0)["fault"] == words
    assert "fault" not in device_document(replace(device, reading=Reading()), 0.0)


def test_models_that_stay_on_a_slowed_device_are_named() -> None:
    slow = "has been slowed by its hardware for 30 s (power brake); look at its cooling and its power"
    device, other = made_up_devices()
    snapshot = made_up_snapshot()
    versions = [
        replace(snapshot.engine.versions[0], name=f"m{index}", version=1, device=cuda(index % 2))
        for index in range(14)
    ]
    now = replace(
        snapshot,
        devices=(replace(device, slow=slow), other),
        engine=replace(snapshot.engine, versions=tuple(versions)),
    )
    (told,) = [each for each in notices(now) if "slowed" in each]
    assert told == (
        f"cuda:0 (made up, GPU-0) {slow}. Its models move to another GPU that they may run on and that has room; "
        "still there: m0/1, m2/1, m4/1, m6/1, m8/1 and 2 more."
    )
    (told,) = [
        each for each in notices(replace(now, engine=replace(now.engine, versions=()))) if "slowed" in each
    ]
    assert told.endswith("still there: none.")
    assert device_document(now.devices[0], 0.0)["slow"] == slow
    assert "slow" not in device_document(other, 0.0)
    slowed = [
        line for line in "".join(exposition(device_families(now.devices))).splitlines() if "_slowed{" in line
    ]
    assert [line.split()[-1] for line in slowed] == ["1", "0"]
