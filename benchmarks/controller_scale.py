"""``python -m benchmarks.controller_scale``: what boxes cost their controller: processor time, memory, disk.

A real controller serves boxes that are enrolled over TLS. For each hour of the run each of them asks once what is
wanted and sends the telemetry of that hour, of models under a load that comes and goes (as in ``outbox_speed``); each
request has a connection of its own, one after the other, as fast as it goes. Prints JSON. What a thousand boxes need
follows from it by arithmetic.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from appliance.controller.contact import POLL_S
from appliance.controller.server import KEEP_MS
from appliance.fleet.messages import Batch
from appliance.fleet.records import encode
from appliance.telemetry.figures import Figures
from benchmarks.outbox_speed import Load
from demo.fleet import free_port
from tests.controller.conftest import Box, Served

MAIN: Final = "import sys; from appliance.cli.main import main; sys.exit(main())"
THOUSAND: Final = 1000
DAY_S: Final = 86_400
EPOCH: Final = "1" * 32
START_S: Final = 60.0
PAUSE_S: Final = 0.1
TICKS: Final = os.sysconf("SC_CLK_TCK")


class Sender:
    """A box with its telemetry."""

    def __init__(self, served: Served, number: int, models: int, seed: int) -> None:
        self.box = Box(served, f"box-{number}").enrol(served.token())
        self.load = Load(models, seed)
        self.figures = Figures()
        self.sent = 0

    def hour(self, hour: int) -> Batch:
        """The records of that hour."""
        records = []
        for minute in range(60):
            snapshot = self.load.minute(hour * 60 + minute)
            records += [encode(each) for each in self.figures.take(snapshot)]
            self.figures.settled(snapshot)
        batch = Batch(stream="serve", epoch=EPOCH, first=self.sent, records=tuple(records))
        self.sent += len(records)
        return batch


def main() -> int:
    """Print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.controller_scale", description=__doc__)
    parser.add_argument("--boxes", type=int, default=20)
    parser.add_argument("--hours", type=int, default=6)
    parser.add_argument("--models", type=int, default=20)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as place, controller(Path(place)) as (served, pid):
        print(json.dumps(measure(served, pid, options), indent=2))
    return 0


@contextmanager
def controller(folder: Path) -> Iterator[tuple[Served, int]]:
    """A controller that is made and served below ``folder``, and its process."""
    home, port = folder / "controller", free_port()
    address = f"127.0.0.1:{port}"
    words = [sys.executable, "-c", MAIN, "controller"]
    said = subprocess.run(
        [*words, "init", str(home), "--url", f"https://{address}", "--address", address],
        capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    token = re.search(r"shown once: (\S+)", said)
    assert token is not None, said
    log = folder / "log"
    with log.open("wb") as file:
        process = subprocess.Popen([*words, "serve", str(home)], stdout=file, stderr=file)
    try:
        end = time.monotonic() + START_S
        while "listens at" not in log.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise SystemExit(f"the controller does not listen:\n{log.read_text()}")
            time.sleep(PAUSE_S)
        yield Served(home, token[1], (home / "authority.crt").read_text(), port), process.pid
    finally:
        process.terminate()
        process.wait(30)


def measure(served: Served, pid: int, options: argparse.Namespace) -> dict[str, object]:
    """Enrol the boxes, let their hours pass, and see what that took."""
    idle = memory_mb(pid)
    senders = [
        Sender(served, number, options.models, options.seed + number) for number in range(options.boxes)
    ]
    enrolled, polled_s, sent_s, peak, records = disk_mb(served.folder), 0.0, 0.0, idle, 0
    for hour in range(options.hours):
        for sender in senders:
            batch = sender.hour(hour)
            before = cpu_s(pid)
            sender.box.poll()
            between = cpu_s(pid)
            sender.box.send(batch)
            polled_s, sent_s = polled_s + between - before, sent_s + cpu_s(pid) - between
            peak, records = max(peak, memory_mb(pid)), records + len(batch.records)
    hours = options.boxes * options.hours
    poll_ms, hour_ms = polled_s / hours * 1e3, sent_s / hours * 1e3
    day_mb = (disk_mb(served.folder) - enrolled) / hours * 24
    cores = THOUSAND * (poll_ms / POLL_S + hour_ms / 3600) / 1e3
    return {
        "boxes": options.boxes, "hours": options.hours, "models of each": options.models, "records": records,
        "memory, MB": {"idle": idle, "highest": peak},
        "processor, ms": {"a poll": round(poll_ms, 2), "an hour's telemetry": round(hour_ms, 2)},
        "disk, MB for a box and day": round(day_mb, 2),
        "a thousand boxes, by arithmetic": {
            "processors": round(cores, 2), "disk, GB in the days kept": round(day_mb * KEEP_MS / 1e3 / DAY_S),
        },
    }  # fmt: skip


def cpu_s(pid: int) -> float:
    """Processor time that the process took."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def memory_mb(pid: int) -> int:
    """Memory that the process has."""
    found = re.search(r"VmRSS:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def disk_mb(folder: Path) -> float:
    """What lies in the folder."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file()) / 1e6


if __name__ == "__main__":
    sys.exit(main())
