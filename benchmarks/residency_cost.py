"""``python -m benchmarks.residency_cost``: what misses cost, as shares of LRU's.

No clock is read and nothing is loaded: traces by seed (``residency_traces``) are played to each policy
(``residency_rivals``). Every figure is the median over seeds; the verdict is about the worst of ours.
"""

from __future__ import annotations

import argparse
import json
import sys
from statistics import median

from benchmarks.residency_rivals import POLICIES, Lru
from benchmarks.residency_traces import MODELS, PATTERNS, draw

LIMIT = 0.9
"""What misses may cost, as a share of LRU's."""


def main() -> int:
    """Print the table; 1 when a row of ours is above the limit."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.residency_cost", description=__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--models", type=int, default=200)
    parser.add_argument("--requests", type=int, default=20_000)
    parser.add_argument("--rate", type=float, default=20.0, help="requests per second")
    parser.add_argument("--share", type=float, default=0.1, help="memory, as a share of all models")
    parser.add_argument("--pattern", choices=list(PATTERNS), action="append")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    rows = []
    for pattern in given.pattern or PATTERNS:
        for kind in MODELS:
            rows.append((pattern, kind, measure(pattern, kind, given)))
            if not given.json:
                print_row(*rows[-1], first=len(rows) == 1)
    if given.json:
        print(json.dumps([{"pattern": pattern, "models": kind, **shares} for pattern, kind, shares in rows]))
    worst = max(shares["ours"] for _, _, shares in rows)
    print(f"\nworst of ours: {worst:.3f} of LRU's miss cost (at most {LIMIT})", file=sys.stderr)
    return int(worst > LIMIT)


def measure(pattern: str, kind: str, given: argparse.Namespace) -> dict[str, float]:
    """The median share of LRU's cost, of each policy."""
    shares: dict[str, list[float]] = {name: [] for name in POLICIES}
    for seed in range(given.seeds):
        trace = draw(
            pattern, kind, seed, share=given.share, models=given.models, count=given.requests, rate=given.rate
        )
        reference = Lru(trace).play()
        for name, play in POLICIES.items():
            shares[name].append(play(trace) / reference)
    return {name: round(median(found), 3) for name, found in shares.items()}


def print_row(pattern: str, kind: str, shares: dict[str, float], first: bool) -> None:
    """One line of the table as Markdown."""
    if first:
        print(f"| trace | models | {' | '.join(shares)} |\n|---|---|{'---|' * len(shares)}")
    print(f"| {pattern} | {kind} | {' | '.join(f'{share:.3f}' for share in shares.values())} |", flush=True)


if __name__ == "__main__":
    sys.exit(main())
