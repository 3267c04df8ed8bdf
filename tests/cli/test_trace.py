"""``appliance trace`` finds a request and shows its stages."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.telemetry.otlp import Parent, Told, trace_id_of, trace_line

TRACE_ID = "4bf92f3577b34da6a3ce929d0e0e4736"


def line(request_id: str, *, at_ms: int = 0, error: str = "", path: str = "leased") -> bytes:
    """A request of 100 us that took a tenth of it for each of the first stages."""
    start = 1_700_000_000_000_000_000 + at_ms * 1_000_000
    stamps = [start + 10_000 * step for step in (0, 1, 2, 3, 4, 5, 6, 10)]
    attributes: dict[str, str | int] = {
        "appliance.request.id": request_id,
        "appliance.model": "digits",
        "appliance.model.version": 2,
        "appliance.path": path,
        "appliance.worker": 4,
        "appliance.rows": 1,
        "appliance.outcome": "failed" if error else "success",
    }
    parent = Parent(TRACE_ID, "00f067aa0ba902b7", True) if request_id == "with parent" else None
    bits = random.Random(at_ms).getrandbits
    told = Told("infer", trace_id_of(parent, bits), parent, stamps, attributes, error)
    return trace_line(told, {}, bits)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Traces, some of them in the file that was moved away, and lines that are none."""
    path = tmp_path / "traces.jsonl"
    path.with_name("traces.jsonl.1").write_bytes(line("moved") + line("twice", at_ms=1))
    broken = b'{"resourceSpans":[]}\nnonsense "twice"\n{"resourceSpans": 7}\n[1]\n"twice"\n'
    path.write_bytes(
        line("with parent", at_ms=2) + line("twice", at_ms=3) + line("twice", at_ms=4, error="it broke [bold]")
        + broken + line('odd "\x1b[2J ü', at_ms=5) + line("last", at_ms=6, path="asked")[:-9] + b"\n"
        + line("last", at_ms=6, path="asked")
    )  # fmt: skip
    return path


def show(capsys: pytest.CaptureFixture[str], file: Path, *words: str, status: Exit = Exit.OK) -> str:
    assert main(["trace", *words, "--file", str(file)]) == status
    printed = capsys.readouterr()
    return printed.out if status is Exit.OK else printed.err


def test_stages_are_shown_with_their_times_and_shares(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    shown = show(capsys, file, "with parent")
    assert "digits/2, request 'with parent', at 2023-11-14T22:13:20.002+00:00, 100.0 us" in shown
    assert "served by the front end under a lease, 1 row, worker 4" in shown
    assert f"trace {TRACE_ID}" in shown
    rows = {row.split()[0]: row.split()[1:] for row in shown.splitlines()[4:]}
    assert list(rows) == ["admission", "queue", "hand-over", "gather", "run", "scatter", "reply"]
    assert rows["run"][:3] == ["40.0", "10.0", "10%"]
    assert rows["reply"] == ["60.0", "40.0", "40%", "█" * 16]


@pytest.mark.parametrize(("width", "mark"), [(200, 16), (60, 13), (44, 7), (34, 0)])
def test_bars_give_way_to_stages_and_figures(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    file: Path,
    width: int,
    mark: int,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    lines = show(capsys, file, "with parent").splitlines()
    assert max(map(len, lines)) <= width
    table = lines[next(number for number, line in enumerate(lines) if line.startswith("stage")) :]
    assert table[0].split() == ["stage", "from", "takes", "share"]
    assert [line.split()[0] for line in table[1:]][-2:] == ["scatter", "reply"]
    assert table[-1].split() == ["reply", "60.0", "40.0", "40%", *(["█" * mark] if mark else [])]


def test_the_latest_of_several_is_shown_and_an_error_is_told(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    shown = show(capsys, file, "twice")
    assert "20.004" in shown
    assert "failed: it broke [bold]" in shown


@pytest.mark.parametrize("wanted", ["moved", TRACE_ID, 'odd "\x1b[2J ü'])
def test_a_request_is_found_wherever_and_however_it_is_named(
    capsys: pytest.CaptureFixture[str], file: Path, wanted: str
) -> None:
    shown = show(capsys, file, wanted)
    assert "admission" in shown
    assert "\x1b" not in shown


def test_without_a_request_the_latest_of_all_is_shown(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    shown = show(capsys, file)
    assert "request 'last'" in shown
    assert "served through the engine" in shown


def test_json_is_the_line_of_the_file(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert show(capsys, file, "twice", "--json").encode() == line("twice", at_ms=4, error="it broke [bold]")
    assert json.loads(show(capsys, file, "--json"))["resourceSpans"]


def test_after_a_rotation_the_file_that_was_moved_away_is_enough(
    capsys: pytest.CaptureFixture[str], file: Path
) -> None:
    file.unlink()
    assert "moved" in show(capsys, file, "moved")
    assert "twice" in show(capsys, file)


def test_what_is_not_there_is_one_sentence(capsys: pytest.CaptureFixture[str], file: Path) -> None:
    assert "has no trace about 'twic'" in show(capsys, file, "twic", status=Exit.REFUSED)
    missing = file.with_name("missing")
    assert "cannot be read: No such file" in show(capsys, missing, "x", status=Exit.USAGE)
