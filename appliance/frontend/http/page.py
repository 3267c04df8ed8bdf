"""The frame of every page for people: head, style, script, and what is alike on all.

Pages are complete as they are written here. A few lines of script fetch the page anew and take over its main part, so
that nothing is rendered in two places; they keep the last picture, marked as old, where no answer comes. A page loads
nothing from anywhere, and its content security policy admits only this style and this script, by digest.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import Self

from appliance import __version__
from appliance.frontend.http.spoken import spoken_time
from appliance.telemetry.notices import notices
from appliance.telemetry.snapshot import Snapshot


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
            style=here.joinpath("page.css").read_text("utf-8"),
            script=here.joinpath("page.js").read_text("utf-8"),
        )

    def content_security_policy(self) -> str:
        """Admits this style, this script, and questions to the appliance itself; nothing else."""
        return (
            f"default-src 'none'; style-src '{_digest(self.style)}'; script-src '{_digest(self.script)}'; "
            "connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )


def _digest(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def framed(snapshot: Snapshot, parts: PageParts, title: str, main: str, above: str = "") -> str:
    """The page with ``main`` as its HTML; ``title`` is text. ``above`` is the way from here to the pages above, as the
    beginning of a relative address."""
    status, site = snapshot.engine, snapshot.membership
    uptime = spoken_time((status.now_ns - status.started_ns) // 1_000_000_000)
    trouble = "" if snapshot.store is None else snapshot.store.trouble
    warnings = [
        "draining: new requests belong elsewhere" * (not status.accepting),
        f"The store cannot be read, and what serves goes on: {trouble}" if trouble else "",
        *status.residency.problems,
        *notices(snapshot),
    ]
    alerts = "".join(f'<p class="alert" role="status">{escape(each)}</p>' for each in warnings if each)
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{escape(f"{site.device}: {title}" if site else title)}</title>
<link rel="icon" href="data:,">
<style>{parts.style}</style>
</head>
<body>
<p id="stale" role="alert" hidden></p>
<main id="live">
<header>
<h1>{escape(title)}</h1>
{f'<span class="site">{escape(site.words)}</span>' if site else ""}
<span class="quiet">{escape(__version__)}, {escape(snapshot.front_end.kind)} front end, up {uptime}</span>
</header>
{alerts}
{main}
</main>
<footer><span id="fresh">as of when this page was loaded</span> · <a href="{above}status.json">status.json</a> ·
<a href="{above}metrics">metrics</a> · <a href="{above}v2">v2 API</a></footer>
<script>{parts.script}</script>
</body>
</html>
"""
