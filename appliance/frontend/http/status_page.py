"""The status page at ``/`` as HTML text.

Pure. The page is complete as it is written here; a few lines of script keep it fresh from ``/status.json``. It loads
nothing from anywhere, and its content security policy admits only this style and this script, by digest.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Final, Self

from appliance import __version__
from appliance.domain.histogram import HistogramValue
from appliance.domain.model import VersionState
from appliance.engine.versions.wording import with_next_try
from appliance.telemetry.meter import Result, Stage
from appliance.telemetry.snapshot import EngineStatus, ResidencyFigures, VersionStatus, WorkerStatus
from appliance.telemetry.status_document import batch_mean

_NO_BUDGET: Final = 1 << 62
"""What is said where it is not known how much memory there is."""
_COLUMNS: Final = (
    ("Model", ""),
    ("Version", "number"),
    ("State", ""),
    ("Rate", "number"),
    ("Answered", "number"),
    ("p50", "number"),
    ("p99", "number"),
    ("Queued", "number"),
    ("Running", "number"),
    ("Batch", "number"),
    ("Worker (memory)", ""),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageParts:
    """What every page is made with: its style and its script."""

    style: str
    script: str

    @classmethod
    def load(cls) -> Self:
        """Read both from beside this module."""
        here = files("appliance.frontend.http")
        return cls(
            style=here.joinpath("status_page.css").read_text("utf-8"),
            script=here.joinpath("status_page.js").read_text("utf-8"),
        )

    def content_security_policy(self) -> str:
        """Admits this style, this script, and questions to the appliance itself; nothing else."""
        return (
            f"default-src 'none'; style-src '{_digest(self.style)}'; script-src '{_digest(self.script)}'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def page_text(status: EngineStatus, rows: str, parts: PageParts, trouble: str = "") -> str:
    """The page; ``rows`` is the text of model_rows for each version, ``trouble`` why the store cannot be read."""
    heads = "".join(f'<th scope="col" class="{kind}">{escape(name)}</th>' for name, kind in _COLUMNS)
    accepting = "" if status.accepting else "draining: new requests are refused"
    uptime = spoken_time((status.now_ns - status.started_ns) // 1_000_000_000)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Appliance status</title>
<link rel="icon" href="data:,">
<style>{parts.style}</style>
</head>
<body>
<header>
<h1>Edge inference appliance</h1>
<span class="quiet">{escape(__version__)}</span>
<span class="quiet" id="uptime">up {uptime}</span>
<strong id="accepting">{accepting}</strong>
<strong id="trouble">{escape(trouble)}</strong>
<strong id="problems">{escape("; ".join(status.residency.problems))}</strong>
</header>
<dl class="tiles">{_tiles(status)}</dl>
<h2>Models</h2>
<div class="scroll"><table>
<thead><tr>{heads}</tr></thead>
<tbody id="models">{rows}</tbody>
</table></div>
<footer><span id="fresh">as of when this page was loaded; quantiles since the start</span> ·
<a href="status.json">status.json</a> · <a href="metrics">metrics</a> · <a href="v2">v2 API</a></footer>
<script>{parts.script}</script>
</body>
</html>
"""


def _tiles(status: EngineStatus) -> str:
    ready = sum(version.state is VersionState.READY for version in status.versions)
    tiles = (
        ("Models ready", "ready", f"{ready} of {len(status.versions)}"),
        ("Queued", "queued", str(status.queued_requests)),
        ("Running", "running", str(status.running_requests)),
        ("Workers", "workers", str(sum(worker.pid > 0 for worker in status.workers))),
        (
            "Tensor memory",
            "arena",
            f"{spoken_bytes(status.arena_used_bytes)} of {spoken_bytes(status.arena_limit_bytes)}",
        ),
        ("Model memory", "residency", _of_budget(status.residency)),
    )
    return "".join(f'<div><dt>{name}</dt><dd id="{key}">{value}</dd></div>' for name, key, value in tiles)


def _of_budget(residency: ResidencyFigures) -> str:
    used, budget = residency.used_bytes, residency.budget_bytes
    return spoken_bytes(used) + (f" of {spoken_bytes(budget)}" if 0 < budget < _NO_BUDGET else "")


def model_rows(version: VersionStatus, workers: Mapping[int, WorkerStatus]) -> str:
    """The table rows of one version: its figures, and its reason when it has one. ``workers`` are by number."""
    statistics = version.statistics
    total = statistics.stages[Stage.TOTAL]
    mean = batch_mean(statistics)
    cells = (
        _cell(version.name, "name"),
        _cell(str(version.version or "–"), "number"),
        f'<td><span class="badge {version.state.value}">{version.state.value}</span></td>',
        _cell("–", "number"),
        _cell(str(statistics.results.get(Result.SUCCESS, 0)), "number"),
        _cell(_quantile(total, 0.50), "number quiet"),
        _cell(_quantile(total, 0.99), "number quiet"),
        _cell(str(version.queued), "number"),
        _cell(str(version.running), "number"),
        _cell("–" if mean is None else f"{mean:.2f}", "number"),
        _cell(_spoken_workers(version.workers, workers)),
    )
    row = f"<tr>{''.join(cells)}</tr>"
    if version.reason:
        reason = with_next_try(version.reason, version.next_try_ms)
        row += f'<tr class="reason"><td colspan="{len(cells)}">{escape(reason)}</td></tr>'
    return row


def _cell(text: str, kind: str = "") -> str:
    return f'<td class="{kind}">{escape(text)}</td>' if kind else f"<td>{escape(text)}</td>"


def _quantile(histogram: HistogramValue, fraction: float) -> str:
    if not any(histogram.counts):
        return "–"
    microseconds = histogram.quantile_ns(fraction) / 1_000
    if microseconds < 1_000:
        return f"{microseconds:.0f} µs"
    if microseconds < 1_000_000:
        return f"{microseconds / 1_000:.{2 if microseconds < 10_000 else 1}f} ms"
    return f"{microseconds / 1_000_000:.2f} s"


def _spoken_workers(numbers: Sequence[int], workers: Mapping[int, WorkerStatus]) -> str:
    known = [workers[number] for number in numbers if number in workers]
    return ", ".join(f"{worker.pid} ({spoken_bytes(worker.memory_bytes)})" for worker in known) or "–"


def spoken_bytes(count: int) -> str:
    """``count`` bytes for people: 812 B, 4.5 MiB."""
    value, unit = float(count), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{count} B" if unit == "B" else f"{value:.{1 if value < 10 else 0}f} {unit}"


def spoken_time(seconds: int) -> str:
    """``seconds`` for people: 3 min 12 s, 4 d 2 h."""
    days, hours, minutes = seconds // 86_400, seconds // 3_600 % 24, seconds // 60 % 60
    if days:
        return f"{days} d {hours} h"
    if hours:
        return f"{hours} h {minutes} min"
    return f"{minutes} min {seconds % 60} s" if minutes else f"{seconds} s"
