"""One pass of the scrub in a process of its own, at the lowest classes of processor and disk.

A thread of the daemon would hold the interpreter while it starves. The process ends with the daemon; the next one
goes on where it was. Run as ``python -m appliance.maintenance.scrub_process STATE BYTES_PER_S DAEMON_PID``.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from appliance.config.store import StoreConfig
from appliance.domain.errors import OperatorError
from appliance.process.life import die_with_parent, ignore_terminal_signals, rename
from appliance.process.priority import yield_disk, yield_processor
from appliance.store.scrub import Scrub


def main(arguments: list[str]) -> int:
    """Entry of the process; gives its exit status: 2 when the store cannot be read, with the reason on stderr."""
    state, bytes_per_s, daemon = arguments
    die_with_parent(int(daemon))
    ignore_terminal_signals()
    rename("appliance-scrub")
    yield_processor()
    yield_disk()
    try:
        scrub = Scrub(
            Path(state),
            StoreConfig(scrub_bytes_per_s=int(bytes_per_s)),
            wall_ms=lambda: time.time_ns() // 1_000_000,
            elapsed_s=time.monotonic,
            pause=time.sleep,
        )
        try:
            scrub.run_pass()
        finally:
            scrub.close()
    except (OperatorError, OSError) as problem:
        print(problem, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
