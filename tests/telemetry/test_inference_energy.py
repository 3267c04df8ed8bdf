"""What is told of what an inference costs: where it is known, and nowhere else. Made-up devices."""

from __future__ import annotations

import io
import json
import os
import time
import urllib.request
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from appliance.cli.activity import Interval, between
from appliance.cli.activity_view import as_json, view
from appliance.cli.snapshot import parse
from appliance.devices.processor import ProcessorAccount
from appliance.devices.rapl import METHOD
from appliance.domain.device import cuda
from appliance.domain.device_reading import Reading, VersionEnergy, WholeBoard
from appliance.domain.energy import ProcessorEnergy
from appliance.fleet.records import Energy
from appliance.frontend.http.model_page import model_main
from appliance.frontend.http.status_page import energy_cells, energy_columns, model_rows, overview
from appliance.telemetry.device_work import processor_energy
from appliance.telemetry.figures import Figures
from appliance.telemetry.metrics.devices import energy_families
from appliance.telemetry.metrics.exposition import exposition
from appliance.telemetry.notices import notices
from appliance.telemetry.recent import RecentFigures
from appliance.telemetry.snapshot import Snapshot
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.frontend.http.engine_figures import made_up_devices, made_up_snapshot, status_document

PRICE = 0.36
NO_EFFECT = (
    "metrics.kwh_price has no effect here, as nothing counts energy: the processor's counters (RAPL) are not there or "
    "may not be read, and no GPU tells of its own. docs/GPU.md says more of both."
)
BEFORE = """
from pathlib import Path
from appliance.devices import energy, processor
from appliance.telemetry import recent
energy.WINDOW_S = processor.WINDOW_S = recent.PERIOD_S = 0.5
processor.ProcessorAccount.__init__.__defaults__ = (Path("PLACE"),)
"""
"""Counters that are made up, and windows for which a test can wait."""
ON_PROCESSOR = ProcessorEnergy(
    idle_w=40.0, versions={"busy/3": VersionEnergy(joules=60.0, inferences=30, window_s=20.0)}
)


def _on_gpu(price: float = PRICE) -> Snapshot:
    """The first version runs on the first GPU: 12 J for 600 rows, which are 20 mJ a row."""
    snapshot = made_up_snapshot()
    first, *others = snapshot.engine.versions
    engine = replace(snapshot.engine, versions=(replace(first, device=cuda(0)), *others))
    return replace(snapshot, engine=engine, devices=made_up_devices(), kwh_price=price)


def _on_processor(price: float = PRICE) -> Snapshot:
    return replace(made_up_snapshot(), processor=ON_PROCESSOR, kwh_price=price)


def _interval(snapshot: Snapshot) -> Interval:
    return between(None, parse(json.dumps(status_document(snapshot)).encode(), "here"))


def _shown(snapshot: Snapshot, *, rates: bool = False) -> list[str]:
    shown = Console(file=io.StringIO(), width=200)
    shown.print(view(_interval(snapshot), rates=rates))
    lines: list[str] = shown.file.getvalue().splitlines()  # type: ignore[attr-defined]
    return lines


def _page(snapshot: Snapshot) -> str:
    columns = energy_columns(snapshot)
    rows = [
        model_rows(each, {}, RecentFigures(), energy_cells(snapshot, each, columns))
        for each in snapshot.engine.versions
    ]
    return overview(snapshot, "".join(rows))


def _lines(snapshot: Snapshot) -> list[str]:
    return [line for line in "".join(exposition(energy_families(snapshot))).splitlines() if line[0] != "#"]


def test_the_status_has_the_cost_beside_the_joules() -> None:
    told: Any = status_document(_on_gpu())["devices"][0]["energy"]["models"]["busy/3"]
    assert told["joules_per_inference"] == pytest.approx(0.02)
    assert told["cost_per_million_inferences"] == pytest.approx(0.02 / 3.6 * PRICE)
    told = status_document(_on_gpu(0.0))["devices"][0]["energy"]["models"]["busy/3"]
    assert "cost_per_million_inferences" not in told


def test_the_status_has_the_processor_where_it_tells() -> None:
    told: Any = status_document(_on_processor())["processor"]["energy"]
    assert (told["method"], told["window_s_min"], told["idle_w"]) == (METHOD, 10.0, 40.0)
    assert told["models"]["busy/3"]["joules_per_inference"] == 2.0
    assert status_document(made_up_snapshot())["processor"] is None


@pytest.mark.parametrize("rates", [False, True])
def test_status_and_top_say_what_is_known(rates: bool) -> None:
    lines = _shown(_on_gpu(), rates=rates)
    (silent,) = (line for line in lines if line.startswith("cuda:1 ") and "version" in line)
    assert "takes no models (2 memory errors, Xid 79), 80 W, 1 version" in lines[1]
    assert " W" not in silent
    at = next(number for number, line in enumerate(lines) if line.startswith("model"))
    head, busy, idle = lines[at : at + 3]
    assert head.split()[-2:] == ["energy/row", "cost/million"]
    assert busy.split()[-3:] == ["20.0", "mJ", "0.00200"]
    assert idle.split()[-2:] == ["-", "-"]
    without_price = _shown(_on_gpu(0.0), rates=rates)
    assert any(line.split()[-1:] == ["energy/row"] for line in without_price)
    assert "cost/million" not in "".join(without_price)


def test_status_and_top_know_versions_on_the_processor() -> None:
    assert any(line.startswith("busy/3") and "2.00 J" in line for line in _shown(_on_processor()))
    models = as_json(_interval(_on_processor()))["models"]
    assert models[0]["joules_per_inference"] == 2.0
    assert models[0]["cost_per_million_inferences"] == pytest.approx(2.0 / 3.6 * PRICE)
    assert (models[1]["joules_per_inference"], models[1]["cost_per_million_inferences"]) == (None, None)


def test_what_a_version_used_where_it_does_not_run_is_not_told_of_it() -> None:
    snapshot = replace(_on_gpu(), processor=ON_PROCESSOR)
    assert any(line.startswith("busy/3") and "20.0 mJ" in line for line in _shown(snapshot))
    used = snapshot.inference_energy(snapshot.engine.versions[0])
    assert used is not None
    assert used.joules == pytest.approx(0.02)


def test_nothing_changes_on_a_box_where_nothing_is_known() -> None:
    snapshot = replace(made_up_snapshot(), kwh_price=PRICE)
    for text in (
        "\n".join(_shown(snapshot)).replace(NO_EFFECT, ""),
        _page(snapshot).replace(NO_EFFECT, ""),
        model_main(snapshot, "busy", RecentFigures(), []),
    ):
        assert "nergy" not in text
        assert "illion" not in text
    assert _lines(snapshot) == []


def test_a_price_that_has_no_effect_is_told_of_once() -> None:
    priced = replace(made_up_snapshot(), kwh_price=PRICE)
    assert list(notices(priced)) == [NO_EFFECT]
    assert "".join(_shown(priced)).count(NO_EFFECT) == 1
    assert not list(notices(made_up_snapshot())), "without a price nothing is expected"
    assert NO_EFFECT not in notices(replace(priced, processor=replace(ON_PROCESSOR, versions={})))
    one, *_ = made_up_devices()
    silent = replace(one, reading=replace(one.reading, energy_j=None))
    assert NO_EFFECT in notices(replace(priced, devices=(silent,)))
    assert NO_EFFECT not in notices(
        replace(priced, devices=(silent, replace(one, reading=Reading(energy_j=0.0))))
    )
    board = WholeBoard(uuid="GPU-0", energy_j=5.0)
    of_board = replace(silent, reading=replace(silent.reading, board=board))
    assert NO_EFFECT not in notices(replace(priced, devices=(of_board,))), "telemetry has what that costs"


def test_the_page_has_columns_for_what_is_known() -> None:
    page = _page(_on_gpu())
    assert '<th role="columnheader" scope="col" class="number">Cost/million</th>' in page
    assert 'data-label="Energy/row" class="number"><span>20.0 mJ</span>' in page
    assert 'data-label="Cost/million" class="number"><span>0.00200</span>' in page
    assert page.count('data-label="Energy/row"') == len(_on_gpu().engine.versions)
    assert 'data-label="Power" class="number"><span>80 W</span>' in page
    assert 'data-label="Power" class="number"><span>–</span>' in page
    without_price = _page(_on_gpu(0.0))
    assert "Energy/row" in without_price
    assert "Cost/million" not in without_price
    dark = tuple(replace(each, reading=replace(each.reading, power_w=None)) for each in made_up_devices())
    assert "Power" not in _page(replace(_on_gpu(), devices=dark))


def test_the_page_of_a_model_says_what_a_row_takes() -> None:
    page = model_main(_on_gpu(), "busy", RecentFigures(), [])
    assert "<dt>Energy of a row</dt><dd>20.0 mJ</dd>" in page
    assert "<dt>Energy of a million rows costs</dt><dd>0.00200</dd>" in page


def test_metrics_have_the_cost_and_the_processor() -> None:
    name, of = "appliance_model_cost_per_million_inferences", 'model="busy",version="3"'
    (cost,) = (line for line in _lines(_on_gpu()) if line.startswith(name))
    assert cost.startswith(f'{name}{{device="GPU-0",{of}}} ')
    assert float(cost.split()[-1]) == pytest.approx(0.002)
    assert not any(line.startswith(name) for line in _lines(_on_gpu(0.0)))
    assert f'appliance_model_energy_joules_total{{device="cpu",{of}}} 60.0' in _lines(_on_processor())


@pytest.mark.parametrize("price", [0.0, PRICE])
def test_the_fleet_is_told_what_versions_used_and_what_that_costs(price: float) -> None:
    figures, before = Figures(), _on_processor(price)
    figures.take(before)
    figures.settled(before)
    more = VersionEnergy(joules=96.0, inferences=48, window_s=40.0)
    now = replace(before, processor=ProcessorEnergy(idle_w=40.0, versions={"busy/3": more}))
    (told,) = (each for each in figures.take(now) if isinstance(each, Energy) and each.model)
    assert (told.device, told.method, told.model) == ("cpu", METHOD, "busy/3")
    assert (told.joules, told.inferences) == (36.0, 18)
    assert told.cost == pytest.approx(36.0 / 3.6e6 * price)


def test_the_account_is_of_versions_on_the_processor_alone() -> None:
    took: list[tuple[set[str], int]] = []

    class Account(ProcessorAccount):
        def take(self, now_s: float, work: Any, elsewhere_ns: int) -> ProcessorEnergy | None:
            took.append((set(work), elsewhere_ns))
            return None

    ran_ns = sum(each.run_ns for each in made_up_snapshot().engine.versions[0].statistics.batches)
    processor_energy(Account(), made_up_snapshot().engine)
    processor_energy(Account(), _on_gpu().engine)
    assert took[0][1] == 0
    assert took[1][1] == ran_ns > 0
    assert took[0][0] - took[1][0] == {"busy/3"}


def _count(zone: Path, joules: float) -> None:
    (zone / "new").write_text(f"{round(joules * 1e6)}\n")
    os.replace(zone / "new", zone / "energy_uj")


def _used(process: ApplianceProcess) -> Any:
    return process.status()["processor"]["energy"]


def test_a_daemon_tells_what_its_versions_used(tmp_path: Path) -> None:
    models, zone, joules = tmp_path / "models", tmp_path / "powercap" / "intel-rapl:0", 0.0
    models.mkdir()
    zone.mkdir(parents=True)
    (zone / "name").write_text("package-0\n")
    (zone / "max_energy_range_uj").write_text("262143328850\n")
    _count(zone, joules)
    write_model("mlp", models)
    tensor = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.5] * 64}
    body, metrics = json.dumps({"inputs": [tensor]}).encode(), {"kwh_price": PRICE}
    before = BEFORE.replace("PLACE", str(zone.parent))
    with ApplianceProcess(models, {"metrics": metrics}, before=before) as process:
        process.wait_ready()
        process.until("idle power", lambda now: now["processor"]["energy"]["idle_w"] is not None)
        until_s = time.monotonic() + 20
        while (
            not (told := _used(process)["models"].get("mlp/1", {})).get("joules")
            and time.monotonic() < until_s
        ):
            urllib.request.urlopen(f"http://{process.http}/v2/models/mlp/infer", body, timeout=20).close()
            _count(zone, joules := joules + 1)
    assert told.get("joules", 0) > 0
    cost = told["joules_per_inference"] / 3.6 * PRICE
    assert told["cost_per_million_inferences"] == pytest.approx(cost)
