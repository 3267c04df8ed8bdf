"""What people should see of devices."""

from __future__ import annotations

from dataclasses import replace

from appliance.domain.device import cuda
from appliance.telemetry.notices import notices
from tests.frontend.http.engine_figures import made_up_devices, made_up_snapshot

GIB = 1 << 30


def test_what_others_have_of_a_device_is_told_from_a_tenth_of_it_on() -> None:
    device, _ = made_up_devices()
    device = replace(device, device=replace(device.device, memory_bytes=80 * GIB))
    quiet = len(list(notices(replace(made_up_snapshot(), devices=(replace(device, others_bytes=7 * GIB),)))))
    told = list(notices(replace(made_up_snapshot(), devices=(device,))))
    assert len(told) == quiet + 1
    assert (
        "Device 0 (made up, GPU-0): other processes have 9.0 GiB of its memory; models may take 70.0 GiB."
        in told
    )


def test_that_nothing_tells_of_gpus_matters_where_models_ask_for_one() -> None:
    problem = "NVML: NVML Shared Library Not Found"
    snapshot = replace(made_up_snapshot(), devices_problem=problem)
    assert not list(notices(snapshot))
    first, *others = snapshot.engine.versions
    asking = replace(snapshot.engine, versions=(replace(first, device=cuda(0)), *others))
    (told,) = notices(replace(snapshot, engine=asking))
    assert told == (
        f"Models ask for a GPU, and nothing tells of one ({problem}): they have no budget there, and no fault of it "
        "is seen. docs/GPU.md says what to install."
    )
