"""``python -m tests.simulation.replay SEED [--leased] [--trace]``: play a seed of the scheduler's simulation again."""

from __future__ import annotations

import argparse
import sys

from tests.simulation.leased_world import LeasedWorld
from tests.simulation.scheduler_world import World


def main(arguments: list[str] | None = None) -> int:
    """0 when the seed keeps all rules; 1 and the broken rule on standard error when it does not."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation.replay", description=__doc__)
    parser.add_argument("seed", type=int)
    parser.add_argument(
        "--leased", action="store_true", help="the world with a front end that is leased lanes"
    )
    parser.add_argument("--trace", action="store_true", help="print every event with its actions")
    options = parser.parse_args(arguments)

    def trace(now_ns: int, event: object, actions: object) -> None:
        print(f"{now_ns:>18,} {event} -> {actions}")

    kind = LeasedWorld if options.leased else World
    world = kind(options.seed, trace if options.trace else None)
    try:
        referee = world.run()
    except AssertionError as broken:
        print(f"seed {options.seed} ({world.kind}) at {world.now_ns:,}: {broken}", file=sys.stderr)
        return 1
    print(f"seed {options.seed} ({world.kind}): {referee.outcomes}, {referee.late} late")
    return 0


if __name__ == "__main__":
    sys.exit(main())
