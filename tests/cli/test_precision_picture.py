"""The picture of ``appliance model bench --variants``: what it has, and that it ranks as tables and verdict do."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from appliance.tools.commands import precision
from appliance.tools.evaluation.jobs import Trial, TrialJob
from appliance.tools.evaluation.process import try_precision
from tests.cli.test_precisions import bench, variants

SVG = "{http://www.w3.org/2000/svg}"


def test_the_picture_has_a_line_for_each_and_the_limit(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    picture = tmp_path / "p.svg"
    assert bench(digits, "--variants", "fp16,int8,fp8,int4", "--plot", picture) == 1
    root = ElementTree.parse(picture).getroot()
    words = [each.text or "" for each in root.iter(f"{SVG}text")]
    heights = {each.text: float(each.attrib["y"]) for each in root.iter(f"{SVG}text")}
    assert heights["int4"] < heights["fp8"], "which stands below"
    for expected in ("fp16", "int8", "fp8", "holds", "refused", "no figures", "Latency, ms", "Memory, MB"):
        assert expected in words
    assert "not proven" not in words, "the legend has those verdicts alone that are there"
    lowest = max(float(each.attrib["y2"]) for each in root.iter(f"{SVG}line"))
    (without,) = (each for each in root.iter(f"{SVG}text") if each.text == "fp8")
    assert lowest < float(without.attrib["y"]) - 14, "no axis goes through what has no figures"
    (ground,) = (each for each in root.iter(f"{SVG}rect") if each.attrib["fill"] == "#ffffff")
    assert ground.attrib["width"] == root.attrib["width"]
    assert any("12 golden cases" in each for each in words)
    assert len(list(root.iter(f"{SVG}circle"))) == 3
    assert len([each for each in root.iter(f"{SVG}line") if "stroke-dasharray" in each.attrib]) == 1
    width, height = (float(root.attrib[side]) for side in ("width", "height"))
    for each in root.iter(f"{SVG}text"):
        assert 0 <= float(each.attrib["x"]) < width
        assert 0 <= float(each.attrib["y"]) < height
    capsys.readouterr()


@pytest.mark.parametrize("counts", [True, False])
def test_the_picture_has_memory_and_joules_where_somebody_tells_them(
    counts: bool, digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the driver and the counter tell is made up; bars are as long as that says."""
    real = try_precision
    told: dict[str, tuple[int | None, float | None]] = {
        "fp32": (400_000_000, 0.004),
        "fp16": (100_000_000, 0.001),
        "int8": (None, None),
    }

    def counted(job: TrialJob, progress: Any) -> Trial:
        found = real(job, progress)
        taken, joules = told[job.precision]
        batches = tuple(replace(each, row_joules=joules if counts else None) for each in found.batches)
        return replace(found, device_bytes=taken, memory_bytes=7_000_000, batches=batches)

    monkeypatch.setattr(precision, "try_precision", counted)
    assert bench(digits, "--variants", "fp32,fp16,int8", "--plot", tmp_path / "p.svg") == 1
    texts = [
        (each.text or "", float(each.attrib["x"]))
        for each in ElementTree.parse(tmp_path / "p.svg").getroot().iter(f"{SVG}text")
    ]
    places = dict(texts)

    def lengths(title: str, *figures: str) -> list[float]:
        """Of the bars in front of these figures."""
        return [places[figure] - 6 - places[title] for figure in figures]

    long, short = lengths("Memory, MB", "400", "100")
    assert long == pytest.approx(4 * short)
    words = [text for text, _ in texts]
    assert words.count("not told") == 1
    assert words.count("7") == 3, "and what the process takes, where a device has most of it"
    assert ("Energy, mJ a row" in words) == counts
    assert words.count("not counted") == counts
    if counts:
        long, short = lengths("Energy, mJ a row", "4", "1")
        assert long == pytest.approx(4 * short)


def test_rows_a_second_verdict_and_plot_say_the_same(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Median runs are made up: FP16 is the fastest with single rows, FP32 with batches, and that hardly slower."""
    real = try_precision
    medians = {"fp32": (4_000, 10_000), "fp16": (2_450, 20_000), "int8": (5_000, 40_000)}

    def timed(job: TrialJob, progress: Any) -> Trial:
        found = real(job, progress)
        pairs = zip(found.batches, medians[job.precision], strict=True)
        batches = [replace(each, speed=replace(each.speed, p50_ns=p50_ns)) for each, p50_ns in pairs]
        return replace(found, batches=tuple(batches))

    monkeypatch.setattr(precision, "try_precision", timed)
    words = ("--variants", "fp32,fp16,int8", "--plot", tmp_path / "p.svg")
    assert bench(digits, *words) == 1
    shown = capsys.readouterr().out
    told = "Fastest of those that hold: fp16 at one row and fp32 at batches of 4, within 5 %."
    assert told in " ".join(shown.split())
    assert figures(shown, "fp16", 1) == ["0.002", "408,163", "1.63"]
    assert figures(shown, "", 4) == ["0.010", "400,000", "1.00"]
    root = ElementTree.parse(tmp_path / "p.svg").getroot()
    places = {each.text: float(each.attrib["x"]) for each in root.iter(f"{SVG}text")}
    numbers = ("408,163", "400,000", "200,000")
    lengths = [places[number] - 6 - places["Throughput, rows/s"] for number in numbers]
    assert lengths == pytest.approx([168.0, 168.0 * 400 / 408.163, 168.0 * 200 / 408.163], abs=0.1)
    texts = [each.text for each in root.iter(f"{SVG}text")]
    assert (texts.count("one row"), texts.count("batches of 4")) == (2, 1)
    assert bench(digits, *words, "--json") == 1
    found = variants(capsys.readouterr().out)
    assert [found[name].get("rank") for name in medians] == [2, 1, None]
    assert [found[name]["best_rows"] for name in medians] == [4, 1, 1]
    for each in found.values():
        for batch in each["batches"]:
            assert batch["rows_per_s"] == pytest.approx(batch["rows"] * 1e9 / batch["p50_ns"])


def test_slow_runs_leave_medians_to_be_seen(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Times are made up: the slowest runs of FP16 took a thousand times the median, those of FP32 three times."""
    real = try_precision
    slowest = {"fp32": 3_000, "fp16": 1_000_000}

    def timed(job: TrialJob, progress: Any) -> Trial:
        found = real(job, progress)
        times = {"p50_ns": 1_000, "p99_ns": slowest[job.precision]}
        batches = tuple(replace(each, speed=replace(each.speed, **times)) for each in found.batches)
        return replace(found, batches=batches)

    monkeypatch.setattr(precision, "try_precision", timed)
    assert bench(digits, "--variants", "fp32,fp16", "--plot", tmp_path / "p.svg") == 0
    root = ElementTree.parse(tmp_path / "p.svg").getroot()
    (x,) = (float(each.attrib["x"]) for each in root.iter(f"{SVG}text") if each.text == "Latency, ms")
    bars = [each for each in root.iter(f"{SVG}rect") if each.get("x") == f"{x:.1f}"]
    assert [float(each.attrib["width"]) for each in bars] == pytest.approx([42.0, 42.0]), (
        "a quarter of the panel"
    )
    caps = [
        float(each.attrib["x1"]) - x
        for each in root.iter(f"{SVG}line")
        if each.attrib["x1"] == each.attrib["x2"] and x < float(each.attrib["x1"]) <= x + 168
    ]
    assert caps == pytest.approx([126.0]), "that of FP32 ends, and is three times as long"
    assert len(list(root.iter(f"{SVG}path"))) == 1, "that of FP16 goes on"
    assert "0.001 / 1" in [each.text for each in root.iter(f"{SVG}text")], "and how far is told"


def figures(shown: str, name: str, rows: int) -> list[str]:
    """What the table of speeds says of so many rows: the median, rows/s, times fp32."""
    cells = [[each.strip() for each in line.strip("│").split("│")] for line in shown.splitlines()]
    found = next(each for each in cells if each[:2] == [name, str(rows)])
    return [found[2], *found[4:6]]
