"""What people and machines are told of instances of a GPU (MIG)."""

from __future__ import annotations

import io
import json
from dataclasses import replace

from rich.console import Console

from appliance.cli.activity import between
from appliance.cli.activity_view import as_json, view
from appliance.cli.snapshot import parse
from appliance.devices.energy import METHOD
from appliance.domain.device import cuda
from appliance.domain.device_reading import MigTrouble, Reading
from appliance.fleet.records import Energy
from appliance.frontend.http.status_page import model_rows, overview
from appliance.telemetry.figures import Figures
from appliance.telemetry.metrics.devices import device_families
from appliance.telemetry.metrics.exposition import exposition
from appliance.telemetry.notices import notices
from appliance.telemetry.recent import RecentFigures
from appliance.telemetry.snapshot import Snapshot
from tests.frontend.http.engine_figures import made_up_instances, made_up_snapshot, status_document


def _snapshot() -> Snapshot:
    """The first version runs on the second instance."""
    snapshot = made_up_snapshot()
    first, *others = snapshot.engine.versions
    engine = replace(snapshot.engine, versions=(replace(first, device=cuda(1)), *others))
    return replace(snapshot, engine=engine, devices=made_up_instances())


def test_power_and_energy_of_the_gpu_are_told_once_and_under_its_own_uuid() -> None:
    text = "".join(exposition(device_families(made_up_instances())))
    lines = text.splitlines()
    assert 'appliance_device_power_watts{device="GPU-7"} 210.0' in lines
    assert 'appliance_device_energy_joules_total{device="GPU-7"} 5000.0' in lines
    assert sum(line.startswith("appliance_device_power_watts{") for line in lines) == 1
    assert 'appliance_device_memory_used_bytes{device="MIG-1"} 2147483648' in lines
    assert (
        'appliance_device_info{device="MIG-1",called="cuda:1",name="made up MIG 1g.10gb",driver="0",'
        'instance_of="GPU-7"} 1'
    ) in lines


def test_the_fleet_is_told_the_energy_of_the_gpu_once() -> None:
    figures, before = Figures(), _snapshot()
    figures.take(before)
    figures.settled(before)
    devices = tuple(
        replace(each, reading=replace(each.reading, board=replace(each.reading.board, energy_j=5_060.0)))
        for each in before.devices
        if each.reading.board is not None
    )
    now = replace(before, devices=devices)
    told = [
        (each.device, each.joules)
        for each in figures.take(now)
        if isinstance(each, Energy) and each.method == METHOD
    ]
    assert told == [("GPU-7", 60.0)]


def test_the_status_tells_of_the_gpu_beside_its_instance() -> None:
    first, second = status_document(_snapshot())["devices"]
    assert (second["uuid"], second["index"], second["instance_of"]) == ("MIG-1", 1, "GPU-7")
    assert second["board"] == {"uuid": "GPU-7", "power_w": 210.0, "power_limit_w": 400.0, "energy_j": 5_000.0}
    assert "power_w" not in first
    assert "energy_j" not in first


def test_status_and_top_say_which_instance_runs_what() -> None:
    document = status_document(_snapshot())
    found = between(None, parse(json.dumps(document).encode(), "here"))
    shown = Console(file=io.StringIO(), width=200)
    shown.print(view(found))
    text = shown.file.getvalue()  # type: ignore[attr-defined]
    assert (
        "cuda:1 made up MIG 1g.10gb (MIG-1), 2.0 GiB of 10.0 GiB taken, 9.0 GiB for models, 1 version" in text
    )
    assert "4711 +1 cuda:1" in text or "4711 cuda:1" in text
    told = as_json(found)
    assert [each["uuid"] for each in told["devices"]] == ["MIG-0", "MIG-1"]
    assert told["models"][0]["device"] == "cuda:1"


def test_the_page_shows_instances_and_what_ails_them() -> None:
    snapshot = _snapshot()
    gone = replace(made_up_instances()[0], reading=Reading(mig_trouble=MigTrouble.REMOVED))
    snapshot = replace(snapshot, devices=(gone, snapshot.devices[1]))
    rows = [model_rows(each, {}, RecentFigures()) for each in snapshot.engine.versions]
    page = overview(snapshot, "".join(rows))
    assert "made up MIG 1g.10gb" in page
    assert "MIG-1" in page
    assert "is gone, as its MIG instance was destroyed" in page
    assert " on cuda:1" in page
    assert "cuda:0 (made up MIG 1g.10gb, MIG-0) is gone, as its MIG instance was destroyed" in "".join(
        notices(snapshot)
    )


def test_a_page_without_devices_shows_none() -> None:
    assert "Devices" not in overview(made_up_snapshot(), "")
