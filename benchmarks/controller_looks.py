"""``python -m benchmarks.controller_looks``: what a person's look costs a large fleet, and what it costs the boxes that
poll meanwhile.

A real controller has a database of so many devices, each with a signed document and a report. Boxes of its poll over
open TLS connections at a steady rate from a process of their own, each poll counted from when it was due; a person
looks every two seconds, as ``--watch`` and ``--wait`` do, and Prometheus every fifteen. ``--beside TREE`` serves a copy
of the same database by the code in another checkout, too, and both take turns, look by look. Prints JSON.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from http.client import HTTPSConnection
from pathlib import Path
from statistics import median
from typing import Any, Final

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.cli.fleet.session import PROFILE
from appliance.controller import tables
from appliance.controller.authority import utc
from appliance.controller.fleet_store import Rows
from appliance.controller.home import SETTINGS, Home, open_home
from appliance.controller.publishing import Publisher
from appliance.controller.schemas import Wish
from appliance.controller.server import wall_ms
from appliance.controller.signing import DeviceMetadata, sign_document
from appliance.domain.digest import digest_of
from appliance.fleet import messages
from appliance.fleet.messages import ModelReport, Poll, Report
from appliance.fleet.metadata import Counters
from appliance.fleet.settings import NAMES
from benchmarks.controller_scale import MAIN, PAUSE_S, START_S, cpu_s, memory_mb
from demo.fleet import free_port
from tests.controller.conftest import Served, csr

VERSIONS: Final = 3
GROUP: Final = "group-7"
LOOK_S: Final = 2.0
SCRAPE: Final = "a scrape of /metrics"
SCRAPE_S: Final = 15.0
"""Between scrapes: more than the figures of the fleet are kept for, so that each counts all devices."""
STARTS: Final = 3
SETTLE_S: Final = 5.0
"""What controllers that have just started do by themselves is no part of what is measured."""
MODEL: Final = "model-3"
LOOKS: Final[Mapping[str, Sequence[tuple[str, str, Any]]]] = {
    "nobody looks": (),
    "devices": (("GET", "/devices", None),),
    "devices, nobody polled since a wish": (("GET", "/devices", None),),
    "one device": (("GET", "/devices/box-123", None),),
    "groups": (("GET", "/groups", None),),
    "--wait for a group": (("GET", f"/devices?group={GROUP}", None), ("GET", f"/groups?group={GROUP}", None)),
    "drift": (("GET", "/drift", None),),
    "release --withdraw, refused": (("POST", f"/releases/{MODEL}/2/withdraw", None),),
    SCRAPE: (("GET", "/metrics", None),),
    "want": (("POST", "/want", {"model": MODEL, "group": GROUP, "wish": {"version": 2}}),),
}
"""What is asked in a look. A controller that does not know ``group`` tells of all devices."""
ALONE: Final = ("one device", "groups", "drift", "want")
"""Looks that are measured while no box polls, and not beside polls as well."""
COMMANDS: Final[Mapping[str, Sequence[str]]] = {
    "fleet groups": ("groups",),
    "fleet devices": ("devices",),
    "fleet devices --json": ("devices", "--json"),
    "fleet want --wait --timeout 0.1": (
        "want", f"{MODEL}=2", "--group", GROUP, "--wait", "--timeout", "0.1", "--json",
    ),
}  # fmt: skip


def fill(home: Home, options: argparse.Namespace, now_ms: int) -> list[Path]:
    """Have the devices in the database, as if they had followed what was wished; gives the identities of those that
    poll."""
    publisher, found = Publisher(home.keys), list[Path]()
    models = [f"model-{number}" for number in range(options.models)]
    with home.store.transaction() as rows:
        for model in models:
            _release(rows, model, now_ms)
        for number in range(options.groups):
            for model in models:
                rows.put(
                    tables.wishes, scope=f"group/group-{number}", model=model, by_whom="admin", at_ms=now_ms,
                    wish=msgspec.json.encode(Wish(2)).decode(),
                )  # fmt: skip
        rows.count_up("revision")
        for number in range(options.devices):
            _device(rows, home, publisher, models, number, options, now_ms)
            key = ec.generate_private_key(ec.SECP256R1()) if number < options.boxes else None
            if key is None:
                rows.put(
                    tables.certificates, serial=f"{number:040x}", device=f"box-{number}", expires_ms=now_ms + 10**9,
                    key=digest_of(str(number).encode()), revoked=False,
                )  # fmt: skip
                continue
            issued = home.authority.issue(csr(key), f"box-{number}", utc(now_ms))
            rows.put(
                tables.certificates, serial=issued.serial, device=f"box-{number}", expires_ms=issued.expires_ms,
                key=issued.key, revoked=False,
            )  # fmt: skip
            private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
            found.append(Path(home.server).parent.parent / f"box-{number}.pem")
            found[-1].write_bytes(private + issued.pem.encode())
    return found


def _release(rows: Rows, model: str, now_ms: int) -> None:
    """Versions of the model, each with ways from those before it."""
    for version in range(1, VERSIONS + 1):
        rows.put(
            tables.releases, model=model, version=version, manifest=_manifest(model, version),
            package=digest_of(f"package {model}/{version}".encode()), total_bytes=10**8, trust="key " + "a" * 64,
            by_whom="admin", at_ms=now_ms,
        )  # fmt: skip
        for base in ("", *(_manifest(model, each) for each in range(1, version))):
            stream = digest_of(f"{model}/{version} {base}".encode())
            rows.put(
                tables.transfers, model=model, version=version, base=base, stream=stream,
                size=10**7 if base else 10**8, index_digest=digest_of(stream.encode()),
            )  # fmt: skip


def _manifest(model: str, version: int) -> str:
    return digest_of(f"{model}/{version}".encode())


def _device(
    rows: Rows, home: Home, publisher: Publisher, models: Sequence[str], number: int, options: argparse.Namespace,
    now_ms: int,
) -> None:  # fmt: skip
    """A device that did all that is wanted, and said so."""
    name, group = f"box-{number}", f"group-{number % options.groups}"
    rows.put(
        tables.devices, name=name, in_group=group, state="active", created_ms=now_ms, seen_ms=now_ms,
        inventory=json.dumps({"cpu": "Xeon D-2733NT", "memory": "64 GiB", "gpu": "none", "os": "Debian 13"}),
    )  # fmt: skip
    row = rows.one(tables.devices, name=name)
    assert row is not None
    state = msgspec.structs.replace(publisher.wanted(rows, row), generation=1, issued_ms=now_ms)
    made = sign_document(home.keys, state, Counters(timestamp=0, snapshot=0, targets=0), utc(now_ms))
    report = messages.encode(_report(name, models, now_ms))
    rows.change(
        tables.devices, {"name": name}, report=report, report_digest=digest_of(report), **_kept(made),
        revision=rows.number("revision"),
    )  # fmt: skip


def _kept(made: DeviceMetadata) -> dict[str, Any]:
    counters = made.counters
    return {
        "timestamp_version": counters.timestamp, "snapshot_version": counters.snapshot,
        "generation": counters.targets, "told_timestamp": counters.timestamp, "told_snapshot": counters.snapshot,
        "told_generation": counters.targets, "timestamp": made.timestamp, "snapshot": made.snapshot,
        "targets": made.targets, "document": made.document,
    }  # fmt: skip


def _report(name: str, models: Sequence[str], now_ms: int) -> Report:
    return Report(
        device=name, agent="1.0.0", generation=1, trusted_generation=1, converged=True, freshness="fresh",
        serving=True, wall_ms=now_ms, outbox_bytes=12_345, settings=dict.fromkeys(NAMES, "60"),
        models=tuple(
            ModelReport(name=each, wanted=2, serving=2, installed=(1, 2), phase="done", managed=True) for each in models
        ),
    )  # fmt: skip


@dataclass(kw_only=True)
class Side:
    """The code in ``tree``, which serves a controller of its own; ``polls`` are times and latencies by look."""

    tree: Path
    served: Served
    pid: int
    start_s: float
    looks: dict[str, list[tuple[float, float, int]]] = field(default_factory=dict)
    polls: dict[str, list[float]] = field(default_factory=dict)
    commands: dict[str, list[float]] = field(default_factory=dict)


@contextmanager
def side(tree: Path, folder: Path, admin: str) -> Iterator[Side]:
    """The controller in ``folder``, served by the code in ``tree``."""
    port, home = free_port(), folder / "controller"
    address = f"127.0.0.1:{port}"
    (home / SETTINGS).write_text(json.dumps({"url": f"https://{address}", "address": address}))
    authority, best = (home / "authority.crt").read_text(), START_S
    for left in reversed(range(STARTS)):
        before, log = time.monotonic(), folder / "log"
        with log.open("wb") as file:
            process = subprocess.Popen(
                [sys.executable, "-c", MAIN, "controller", "serve", str(home)],
                stdout=file,
                stderr=file,
                cwd=tree,
            )
        try:
            while "listens at" not in log.read_text():
                if process.poll() is not None or time.monotonic() > before + START_S:
                    raise SystemExit(f"the controller does not listen:\n{log.read_text()}")
                time.sleep(PAUSE_S / 10)
            best = min(best, time.monotonic() - before)
            if not left:
                profile = {"url": f"https://{address}", "token": admin, "authority": authority}
                (folder / "profile.json").write_text(json.dumps(profile))
                yield Side(
                    tree=tree, served=Served(home, admin, authority, port), pid=process.pid, start_s=best
                )
        finally:
            process.terminate()
            process.wait(30)


def poll_all(served: Served, identities: Sequence[Path], rate: float, seconds: float) -> list[float]:
    """Have the boxes poll at ``rate`` a second together, for so long; gives how long each poll took since it was due.
    For a process of its own: what looks take in this one would count otherwise."""
    found, began = list[float](), time.monotonic() + 1.0
    pause_s = len(identities) / rate
    body = messages.encode(Poll(root=1, timestamp=1, snapshot=1, targets=1))

    def poll(number: int, identity: Path) -> None:
        connection = HTTPSConnection("127.0.0.1", served.port, context=served.tls(identity), timeout=120)
        connection.connect()
        due = began + number / rate
        while due < began + seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            connection.request("POST", messages.POLL, body, {"Content-Type": messages.CONTENT_TYPE})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            found.append(time.monotonic() - due)
            due += pause_s

    threads = [threading.Thread(target=poll, args=each) for each in enumerate(identities)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return found


def looked(served: Served, name: str) -> tuple[float, int]:
    """Look once: how long that took, and how many bytes came."""
    before, size = time.monotonic(), 0
    for method, path, body in LOOKS[name]:
        connection = HTTPSConnection("127.0.0.1", served.port, context=served.tls(), timeout=300)
        data = json.dumps(body).encode() if body else b""
        place = path if path == "/metrics" else f"/api/v1{path}"
        connection.request(method, place, data, {"Authorization": f"Bearer {served.admin}"})
        answer = connection.getresponse()
        size += len(answer.read())
        assert answer.status in (200, 422), (answer.status, path)
        connection.close()
    return time.monotonic() - before, size


def beside(which: Side, name: str, identities: Sequence[Path], options: argparse.Namespace) -> None:
    """Look again and again while boxes poll."""
    pause_s = SCRAPE_S if name == SCRAPE else LOOK_S
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        polls = pool.apply_async(poll_all, (which.served, identities, options.rate, options.seconds))
        end = time.monotonic() + 1.0 + options.seconds
        while time.monotonic() < end:
            due = time.monotonic() + pause_s
            if LOOKS[name]:
                busy_s = cpu_s(which.pid)
                took_s, size = looked(which.served, name)
                which.looks.setdefault(name, []).append((took_s, cpu_s(which.pid) - busy_s, size))
            time.sleep(max(0.0, min(due, end) - time.monotonic()))
        which.polls.setdefault(name, []).extend(polls.get(300))


def quiet(which: Side, name: str, options: argparse.Namespace) -> None:
    """Look while no box polls."""
    for _ in range(options.looks):
        before = cpu_s(which.pid)
        took_s, size = looked(which.served, name)
        which.looks.setdefault(f"{name}, no polls", []).append((took_s, cpu_s(which.pid) - before, size))


def commanded(which: Side, name: str) -> None:
    """Run the command of the code, to its end."""
    words = [sys.executable, "-c", MAIN, "fleet", *COMMANDS[name]]
    profile = str(which.served.folder.parent / "profile.json")
    before = time.monotonic()
    done = subprocess.run(
        words, cwd=which.tree, env={**os.environ, PROFILE: profile}, capture_output=True, check=False
    )
    took_s = time.monotonic() - before
    assert done.returncode in (0, 5), done.stderr.decode()
    which.commands.setdefault(name, []).append(took_s)


def results(which: Side) -> dict[str, object]:
    """All of it, in milliseconds."""
    return {
        "start, ms": round(which.start_s * 1e3),
        "memory at the end and at most, MB": [memory_mb(which.pid), peak_mb(which.pid)],
        "looks, ms, processor ms, bytes": {
            name: [
                round(median(each[0] for each in found) * 1e3),
                round(sum(each[1] for each in found) / len(found) * 1e3),
                found[-1][2],
            ]
            for name, found in which.looks.items()
        },
        "polls beside, ms: p50, p99, most": {
            name: [round(_part(found, part) * 1e3, 1) for part in (0.5, 0.99, 1.0)]
            for name, found in which.polls.items()
        },
        "commands, ms": {name: round(median(found) * 1e3) for name, found in which.commands.items()},
    }  # fmt: skip


def _part(found: Sequence[float], part: float) -> float:
    return sorted(found)[min(int(len(found) * part), len(found) - 1)]


def peak_mb(pid: int) -> int:
    """The most memory that the process had."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path(f"/proc/{pid}/status").read_text())
    assert found is not None
    return int(found[1]) // 1024


def main() -> int:
    """Print the results."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.controller_looks", description=__doc__)
    parser.add_argument("--devices", type=int, default=5000)
    parser.add_argument("--groups", type=int, default=50)
    parser.add_argument("--models", type=int, default=10)
    parser.add_argument("--boxes", type=int, default=20, help="devices that poll, at --rate together")
    parser.add_argument("--rate", type=float, default=20.0, help="polls a second")
    parser.add_argument("--seconds", type=float, default=12.0, help="of each look, in each round")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--looks", type=int, default=3, help="of each kind, while no box polls, in each round"
    )
    parser.add_argument(
        "--only", action="append", choices=tuple(LOOKS), help="this look alone; may be repeated"
    )
    parser.add_argument("--beside", type=Path, help="another checkout, to take turns with")
    options = parser.parse_args()
    trees = [Path.cwd(), *([options.beside.resolve()] if options.beside else [])]
    with tempfile.TemporaryDirectory() as place, ExitStack() as stack:
        folder = Path(place)
        admin, identities = made(folder, options)
        sides = []
        for number, tree in enumerate(trees):
            shutil.copytree(folder / "controller", folder / str(number) / "controller")
            sides.append(stack.enter_context(side(tree, folder / str(number), admin)))
        time.sleep(SETTLE_S)
        for number in range(options.rounds):
            for name in options.only or LOOKS:
                for which in sides[:: -1 if number % 2 else 1]:
                    print(f"{name}, {which.tree}", file=sys.stderr)
                    _turn(which, name, identities, options)
            for name in () if options.only else COMMANDS:
                for which in sides[:: -1 if number % 2 else 1]:
                    commanded(which, name)
        print(json.dumps({str(number): results(each) for number, each in enumerate(sides)}, indent=2))
    return 0


def _turn(which: Side, name: str, identities: Sequence[Path], options: argparse.Namespace) -> None:
    if "since a wish" in name:
        looked(which.served, "want")
    if LOOKS[name] and name != SCRAPE:
        quiet(which, name, options)
    if name not in ALONE:
        beside(which, name, identities, options)


def made(folder: Path, options: argparse.Namespace) -> tuple[str, list[Path]]:
    """A controller with all devices: its admin's token, and identities of boxes."""
    words = [sys.executable, "-c", MAIN, "controller", "init", str(folder / "controller")]
    said = subprocess.run(
        [*words, "--url", "https://127.0.0.1:1", "--address", "127.0.0.1:1"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    token = re.search(r"shown once: (\S+)", said)
    assert token is not None, said
    home = open_home(folder / "controller")
    try:
        return token[1], fill(home, options, wall_ms())
    finally:
        home.close()


if __name__ == "__main__":
    sys.exit(main())
