"""An engine status made up for tests of pure code: one busy version, one idle, one broken; two workers."""

from __future__ import annotations

import json
from typing import Any

from appliance.domain.device import Device, DeviceKind
from appliance.domain.device_reading import DeviceFigures, Reading, VersionEnergy, WholeBoard
from appliance.domain.model import VersionState
from appliance.telemetry.meter import Result, VersionMeter
from appliance.telemetry.snapshot import (
    EngineStatus,
    FrontEndFigures,
    GoldenStatus,
    HttpStatistics,
    InterfaceRow,
    LaneUse,
    SlotUse,
    Snapshot,
    StoredArtifact,
    StoreFigures,
    SwapFigures,
    TrialStatus,
    VersionStatus,
    WorkerStatus,
)
from appliance.telemetry.status_document import model_document, status_header

PYTHON_FRONT_END = FrontEndFigures(kind="python", counts={}, limits={})
NO_HTTP = HttpStatistics(
    answers=(), handshakes=(), connections=0, refused_connections=0, in_flight=0, body_bytes=0, answer_bytes=0,
    refused_answers=0,
)  # fmt: skip
"""Of what nobody has asked."""
AWKWARD_NAME = 'quo"te\\back<b>'


def busy_meter() -> VersionMeter:
    """Three answered requests in two batches, and one request of every other outcome."""
    meter = VersionMeter("busy", 3)
    for total_ns in (400_000, 900_000, 20_000_000_000):
        meter.succeeded(2, 50_000, (10_000, total_ns - 70_000, 10_000), total_ns, 1_700_000_000_000)
    meter.batch_finished(2, 10_000, 330_000, 10_000)
    meter.batch_finished(4, 20_000, 1_660_000, 20_000)
    for result in Result:
        if result is not Result.SUCCESS:
            meter.ended(result, 1_000)
    meter.retries = 2
    meter.leased = 2
    return meter


def made_up_status() -> EngineStatus:
    """The whole status."""
    return EngineStatus(
        now_ns=95_000_000_000,
        started_ns=5_000_000_000,
        accepting=True,
        versions=(
            _version(busy_meter(), VersionState.READY, "", workers=(1, 2)),
            _version(VersionMeter("idle", 1), VersionState.LOADING, "", workers=()),
            _version(VersionMeter(AWKWARD_NAME, 1), VersionState.UNAVAILABLE, "no <script> here", workers=()),
        ),
        workers=(
            WorkerStatus(
                worker=1,
                pid=4711,
                state="serving",
                models=("busy/3",),
                memory_bytes=30 << 20,
                restarts=1,
                use=LaneUse(asked=4, leased=2, leased_now=True),
                place=0,
            ),
            WorkerStatus(
                worker=2,
                pid=0,
                state="starting",
                models=("busy/3",),
                memory_bytes=0,
                restarts=0,
                use=LaneUse(),
                place=1,
            ),
        ),
        queued_requests=5,
        queued_bytes=1280,
        batch_keys=5,
        running_requests=2,
        arena_used_bytes=4096,
        arena_limit_bytes=1 << 30,
        slots=(SlotUse(4096, 128, 3), SlotUse(65536, 16, 0)),
        swaps=SwapFigures(endings={"live": 2, "rolled back": 1}, loads=3, load_ns=5_000_000, compared=2),
    )


def made_up_devices() -> tuple[DeviceFigures, ...]:
    """One that tells everything, and one that tells nothing."""
    told = Reading(
        power_w=80.5,
        power_limit_w=700.0,
        energy_j=2524.9,
        temperature_c=38,
        sm_clock_mhz=345,
        memory_clock_mhz=3201,
        utilization=0.25,
        memory_used_bytes=1 << 30,
        memory_free_bytes=3 << 30,
        ecc_corrected=0,
        ecc_uncorrected=2,
        remapped_rows=1,
        pcie_replays=0,
        throttle=("software power cap",),
        processes={4711: 1 << 29},
        xids=(79,),
    )
    energy = {"busy/3": VersionEnergy(joules=12.0, inferences=600, window_s=10.5)}
    return (
        DeviceFigures(
            device=Device(
                kind=DeviceKind.CUDA, index=0, uuid="GPU-0", name="made up", driver="0", capability=(9, 0)
            ),
            reading=told,
            idle_w=80.0,
            energy=energy,
            budget_bytes=70 << 30,
            others_bytes=9 << 30,
            unsaid_bytes=1 << 30,
        ),
        DeviceFigures(
            device=Device(kind=DeviceKind.CUDA, index=1, uuid="GPU-1", name="silent", driver="0"),
            reading=Reading(lost=True),
        ),
    )


def made_up_instances() -> tuple[DeviceFigures, ...]:
    """Both of one GPU (MIG)."""
    board = WholeBoard(uuid="GPU-7", power_w=210.0, power_limit_w=400.0, energy_j=5_000.0)
    return tuple(
        DeviceFigures(
            device=Device(
                kind=DeviceKind.CUDA,
                index=index,
                uuid=f"MIG-{index}",
                name="made up MIG 1g.10gb",
                driver="0",
                memory_bytes=10 << 30,
                mig=True,
                instance_of="GPU-7",
            ),
            reading=Reading(memory_used_bytes=(index + 1) << 30, board=board),
            budget_bytes=9 << 30,
        )
        for index in range(2)
    )


def made_up_store() -> StoreFigures:
    """A store of two versions."""
    return StoreFigures(
        versions=2,
        wanted=1,
        unsigned=1,
        bytes=3 << 20,
        damaged=0,
        passes=4,
        failures=0,
        scrubbed_at_s=1_700_000_000.5,
        generation=7,
        trouble="",
        taken_bytes=4 << 20,
        quota_bytes=1 << 30,
        free_bytes=5 << 30,
        free_floor_bytes=1 << 30,
        artifacts=(
            StoredArtifact(name="busy", version=3, kind="package", made_s=1_700_000_000.5),
            StoredArtifact(name="busy", version=3, kind="packed form", made_s=1_700_000_900.0),
        ),
    )


def _version(
    meter: VersionMeter, state: VersionState, reason: str, workers: tuple[int, ...]
) -> VersionStatus:
    return VersionStatus(
        name=meter.name,
        version=meter.version,
        state=state,
        reason=reason,
        queued=5 if workers else 0,
        running=2 if workers else 0,
        held_clients=3 if workers else 0,
        workers=workers,
        statistics=meter.frozen(),
        trial=TrialStatus("canary", 1, 10.0, "", 34, 0, 0, 0) if workers else None,
        next_try_ms=0 if workers else 1_800_000_000_000,
        memory_bytes=(30 << 20) if workers else 0,
        weights_bytes=(20 << 20) if workers else 0,
        restarts={"died": 2, "hung": 0} if workers else {},
        packed=bool(workers),
        golden=GoldenStatus(5, "") if workers else None,
        interface=() if workers else (InterfaceRow("input 'x<y>'", "FP32 [-1, 64]", "not there"),),
    )


def made_up_snapshot() -> Snapshot:
    """The status and the store."""
    return Snapshot(engine=made_up_status(), front_end=PYTHON_FRONT_END, http=NO_HTTP, store=made_up_store())


def status_document(snapshot: Snapshot) -> dict[str, Any]:
    """What a client reads of ``/status.json``."""
    models = [model_document(version) for version in snapshot.engine.versions]
    document: dict[str, Any] = {**status_header(snapshot), "models": models}
    return json.loads(json.dumps(document, allow_nan=False))  # type: ignore[no-any-return]
