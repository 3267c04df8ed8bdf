"""A comparison of versions as one page without anything from elsewhere: to be opened in a browser, sent and printed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

from appliance.cli.failure import printable
from appliance.cli.fleet.compare_view import in_order, judgement_text, notes_of, site_cells, summary_rows

BARS_MAX: Final = 40
"""Sites that the chart shows, those that do worst first."""
STYLE: Final = """
body{font:15px/1.45 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;color:#1a1a1a}
table{border-collapse:collapse;margin:1em 0}
th,td{text-align:left;padding:.25em .9em .25em 0;border-bottom:1px solid #ddd}
.met{color:#176b2c}.missed{color:#a11}.unknown{color:#7a5a00}small{color:#555}svg{max-width:100%;height:auto}
"""
WIDTH: Final = 900
LEFT: Final = 190
STEP: Final = 22


def page(found: Any, judgement: Any) -> str:
    """The page, as HTML."""
    title = f"{found['model']}/{found['version']}"
    if found["against"]:
        title += f" against {found['against_model']}/{found['against']}"
    sites = in_order(found["sites"])
    verdict = judgement["verdict"] if judgement is not None else ""
    said = f'<p class="{verdict}"><b>{_text(judgement_text(judgement))}</b></p>' if verdict else ""
    notes = "".join(f"<p>{_text(note)}</p>" for note in notes_of(found))
    why = "".join(
        f"<li><b>{_text(site['device'])}</b>: {_text('; '.join(site['why']))}</li>"
        for site in sites
        if site["why"]
    )
    return (
        f'<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{_text(title)}</title>'
        f"<style>{STYLE}</style></head><body><h1>{_text(title)}</h1>{said}{notes}"
        f"{_table(summary_rows(found))}<h2>99th percentile, site by site</h2>{''.join(_chart(found, sites))}"
        f"{f'<h2>Sites that stand out</h2><ul>{why}</ul>' if why else ''}"
        f"<h2>Sites</h2>{_table(site_cells(sites))}</body></html>\n"
    )


def _text(said: object) -> str:
    return escape(printable(str(said)))


def _table(rows: Sequence[Sequence[object]]) -> str:
    """The first row is of titles."""
    head, *rest = rows
    lines = ["".join(f"<th>{_text(cell)}</th>" for cell in head)]
    lines += ["".join(f"<td>{_text(cell)}</td>" for cell in row) for row in rest]
    return f"<table>{''.join(f'<tr>{line}</tr>' for line in lines)}</table>"


def _chart(found: Any, sites: Sequence[Any]) -> Iterator[str]:
    """Of each site a dot for either version, joined by a line; the axis begins at nought."""
    shown = [site for site in sites if _p99(site, "new") is not None or _p99(site, "old") is not None]
    told = [value for site in shown for which in ("new", "old") if (value := _p99(site, which)) is not None]
    most = max(told, default=0.0)
    if not most:
        yield "<p>No site has told of answers.</p>"
        return
    bars = shown[:BARS_MAX]
    scale, height = (WIDTH - LEFT - 80) / most, STEP * (len(bars) + 2)
    yield f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="99th percentile of each site">'
    yield f'<line x1="{LEFT}" x2="{WIDTH - 80}" y1="{STEP}" y2="{STEP}" stroke="#bbb"/>'
    yield f'<text x="{LEFT}" y="14" font-size="12">0 ms</text>'
    yield f'<text x="{WIDTH - 80}" y="14" font-size="12" text-anchor="end">{most:.3g} ms</text>'
    for place, site in enumerate(bars):
        yield from _bar(site, STEP * (place + 2), scale)
    yield "</svg>"
    against = f"; hollow: {found['against_model']}/{found['against']}" if found["against"] else ""
    left = f"; the {len(bars):,} of {len(shown):,} sites that do worst" if len(shown) > len(bars) else ""
    legend = f"filled: {found['model']}/{found['version']}{against}{left}"
    yield f"<p><small>{_text(legend)}</small></p>"


def _bar(site: Any, y: int, scale: float) -> Iterator[str]:
    new, old = _p99(site, "new"), _p99(site, "old")
    yield f'<text x="{LEFT - 10}" y="{y + 4}" font-size="12" text-anchor="end">{_text(site["device"])[:40]}</text>'
    if new is not None and old is not None:
        ends = f'x1="{LEFT + old * scale:.1f}" x2="{LEFT + new * scale:.1f}"'
        yield f'<line {ends} y1="{y}" y2="{y}" stroke="#888" stroke-width="2"/>'
    colour = "#a11" if site["why"] else "#1f5fa8"
    for value, fill in ((old, "#fff"), (new, colour)):
        if value is not None:
            x = LEFT + value * scale
            yield f'<circle cx="{x:.1f}" cy="{y}" r="5" fill="{fill}" stroke="{colour}" stroke-width="2"/>'


def _p99(site: Any, which: str) -> float | None:
    measured = site[which]
    found: float | None = measured["p99_ms"] if measured else None
    return found
