"""``python -m tests.faults.chaos --minutes 10 --seed 1``: every trouble there is, under load, and every request
accounted for exactly once. What the clients saw must be what the daemon counted, which lives through all of it.

The seed chooses who asks what and which trouble comes when; how these meet is the machine's own choice.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from http.client import HTTPConnection
from pathlib import Path
from typing import Any, Final, NamedTuple

import grpc

from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.streaming import Sending
from tests.conformance.grpc.stub import Stub, failure_of
from tests.faults.cut_proxy import CutProxy
from tests.faults.fake_models import write_fake
from tests.faults.held_interpreter import Hold
from tests.faults.leased import NATIVE_FAKES, is_empty, message, teach
from tests.faults.test_workers import version_in
from tests.fronts import with_front_end

POISON: Final = 66
WIDE: Final = 600 << 10
JOIN_S: Final = 60.0
PATIENCE_S: Final = 60.0
SECTIONS = with_front_end(
    {
        "restart": {"quarantine_after": 1_000_000_000, "restart_delay_ms": 0},
        "workers": {"run_timeout_ms": 1000},
        "engine": {"lease_slots": [[4096, 64], [2 << 20, 4]]},
        "placement": {"max_processes": 64},
    },
    NATIVE_FAKES,
)
ALLOWED: Final = {
    "quick": {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"},
    "slow": {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"},
    "crashing": {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"},
    "lying": {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"},
    "device": {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"},
    "failing": {"OK", "UNAVAILABLE", "INTERNAL", "RESOURCE_EXHAUSTED"},
    "changing": {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED"},
    "hasty": {"OK", "UNAVAILABLE", "CANCELLED", "DEADLINE_EXCEEDED", "RESOURCE_EXHAUSTED"},
    "wide": {"OK", "UNAVAILABLE", "RESOURCE_EXHAUSTED", "CANCELLED"},
}
"""How requests of each model may end. UNAVAILABLE: a worker died of one; RESOURCE_EXHAUSTED: workers did of others of
its client, which is held. A worker that is stopped for too long is one that a request hangs, whatever its model."""
EXACT: Final = ("quick", "slow", "crashing", "lying", "device", "failing")
"""Models whose clients wait for every answer: as many of them end there as here, in the same ways."""


class Broken(Exception):
    """A rule did not hold."""


class Ledger:
    """How requests ended, by model, as their clients saw it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.outcomes: dict[str, Counter[str]] = {model: Counter() for model in ALLOWED}
        self.wrong: list[str] = []

    def note(self, model: str, outcome: str) -> None:
        """One request ended."""
        with self._lock:
            self.outcomes[model][outcome] += 1

    def complain(self, text: str) -> None:
        """Something that may not be."""
        with self._lock:
            self.wrong.append(text)


class Clients:
    """Threads that ask until they are stopped, each by its own dice."""

    def __init__(self, address: str, ledger: Ledger, seed: int) -> None:
        self._address = address
        self._ledger = ledger
        self._stop = threading.Event()
        kinds: list[Callable[[Stub, random.Random], None]] = [
            *[self._plain] * 8,
            *[self._hasty] * 3,
            *[self._streamed] * 3,
            self._cut,
        ]
        self._threads = [
            threading.Thread(target=self._run, args=(kind, random.Random(f"{seed} {index}")), daemon=True)
            for index, kind in enumerate(kinds)
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End after the requests that are under way."""
        self._stop.set()
        end = time.monotonic() + JOIN_S
        for thread in self._threads:
            thread.join(max(0.0, end - time.monotonic()))
            if thread.is_alive():
                raise Broken("a client hangs")

    def _run(self, once: Callable[[Stub, random.Random], None], dice: random.Random) -> None:
        try:
            with Stub(self._address) as stub:
                while not self._stop.is_set():
                    once(stub, dice)
        except Exception as error:  # noqa: BLE001  a thread's end is nobody's business otherwise
            self._ledger.complain(f"a client failed: {error!r}")

    def _plain(self, stub: Stub, dice: random.Random) -> None:
        """A request, waited for without a deadline of its own."""
        self._ask(stub, *_drawn(dice), PATIENCE_S)

    def _streamed(self, stub: Stub, dice: random.Random) -> None:
        """Several at once over one stream, all of them waited for, or some of them left."""
        if dice.random() < 0.2:
            self._leave_stream(stub, dice.randrange(1, 12), dice.uniform(0, 0.02))
            return
        asked = {str(number): _drawn(dice) for number in range(dice.randrange(1, 40))}
        requests = [message(model, first=first, request_id=name) for name, (model, first) in asked.items()]
        for answer in stub.stream(iter(requests), timeout_s=PATIENCE_S):
            model, first = asked.pop(answer.infer_response.id)
            outcome = _in_band(answer.error_message)
            self._ledger.note(model, outcome)
            if outcome not in ALLOWED[model]:
                self._ledger.complain(f"{model} on a stream: {answer.error_message}")
            elif outcome == "OK" and answer.infer_response.raw_output_contents[0] != bytes((first, 1, 2, 3)):
                self._ledger.complain(f"{model} on a stream: the answer to {first} was wrong")
        if asked:
            self._ledger.complain(f"a stream ended without an answer to {asked}")

    def _leave_stream(self, stub: Stub, count: int, after_s: float) -> None:
        answers = stub.stream(Sending(*[message("hasty", request_id=str(number)) for number in range(count)]))
        self._stop.wait(after_s)
        answers.cancel()
        answered = 0
        with contextlib.suppress(grpc.RpcError):
            for answer in answers:
                self._ledger.note("hasty", _in_band(answer.error_message))
                answered += 1
        for _ in range(count - answered):
            self._ledger.note("hasty", "CANCELLED")

    def _hasty(self, stub: Stub, dice: random.Random) -> None:
        """One that is given up, or has a short deadline."""
        if dice.random() < 0.5:
            self._ask(stub, "hasty", 1, dice.uniform(0.001, 0.05))
            return
        calls = [stub.begin("ModelInfer", message("hasty")) for _ in range(dice.randrange(1, 12))]
        self._stop.wait(dice.uniform(0, 0.02))
        for call in calls:
            call.cancel()
        for call in calls:
            self._ledger.note("hasty", _outcome_of(call))

    def _cut(self, stub: Stub, dice: random.Random) -> None:
        """A large one, whole or broken off somewhere."""
        request = message("wide", width=WIDE).SerializeToString()
        if dice.random() < 0.3:
            self._ledger.note("wide", _outcome_of(stub.begin("ModelInfer", request, PATIENCE_S)))
            return
        limit, reset = dice.randrange(1, len(request) + 500), dice.random() < 0.5
        with CutProxy(self._address, limit, reset=reset) as proxy, Stub(proxy.address) as away:
            self._ledger.note("wide", _outcome_of(away.begin("ModelInfer", request, PATIENCE_S)))

    def _ask(self, stub: Stub, model: str, first: int, timeout_s: float) -> None:
        try:
            answer = stub.infer(message(model, first=first), timeout_s)
        except grpc.RpcError as error:
            failure = failure_of(error)
            self._ledger.note(model, failure.code)
            if failure.code not in ALLOWED[model]:
                self._ledger.complain(f"{model}: {failure.code} {failure.text}")
            return
        self._ledger.note(model, "OK")
        if answer.raw_output_contents[0] != bytes((first, 1, 2, 3)):
            self._ledger.complain(f"{model}: the answer to {first} was {answer.raw_output_contents[0]!r}")


def _drawn(dice: random.Random) -> tuple[str, int]:
    """A model, and the first byte of a request to it."""
    model = dice.choice([*EXACT, "quick", "quick", "changing"])
    poisonous = {"crashing": 0.02, "lying": 0.01, "device": 0.01, "failing": 0.1}.get(model, 0.0)
    return model, POISON if dice.random() < poisonous else dice.randrange(POISON)


def _in_band(error: str) -> str:
    """The status that an error on a stream would have been outside of it."""
    if not error:
        return "OK"
    known = {
        "died with the request": "UNAVAILABLE",
        "is not at ready state": "UNAVAILABLE",
        "told to fail": "INTERNAL",
        "requests of this client ended workers": "RESOURCE_EXHAUSTED",
    }
    return next((code for words, code in known.items() if words in error), error)


def _outcome_of(call: Any) -> str:
    try:
        call.result()
    except grpc.FutureCancelledError:
        return "CANCELLED"
    except grpc.RpcError:
        return str(call.code().name)
    return "OK"


class Troubles:
    """What befalls the daemon and its workers, one after the other."""

    def __init__(self, daemon: ApplianceProcess, models: Path, hold: Hold, seed: int) -> None:
        self._daemon = daemon
        self._models = models
        self._hold = hold
        self._dice = random.Random(f"troubles {seed}")
        self._width = 8
        self.counts: Counter[str] = Counter()

    def until(self, end: float) -> None:
        """Make trouble until this moment of the monotonic clock."""
        kinds = [self.kill, self.kill, self.stop, self.reload, self.replace, self.hold, self.kill_zygote]
        weights = [4, 4, 2, 2, 2, 3, 1]
        pause = threading.Event()
        while time.monotonic() < end:
            trouble = self._dice.choices(kinds, weights)[0]
            trouble()
            self.counts[trouble.__name__] += 1
            pause.wait(self._dice.uniform(0.05, 0.8))

    def kill(self) -> None:
        """A worker ends."""
        self._signal(self._worker(), signal.SIGKILL)

    def stop(self) -> None:
        """A worker stands still, for a while or until it is found out."""
        pid = self._worker()
        self._signal(pid, signal.SIGSTOP)
        if self._dice.random() < 0.5:
            threading.Event().wait(self._dice.uniform(0, 0.5))
            self._signal(pid, signal.SIGCONT)

    def cease(self) -> None:
        """Whoever still stands goes on: a worker that was stopped when no client had anything to ask of it was not
        found out, and would take the next request for one that hangs."""
        for pid in self._workers():
            self._signal(pid, signal.SIGCONT)

    def reload(self) -> None:
        """Nothing has changed."""
        self._daemon.signal(signal.SIGHUP)

    def replace(self) -> None:
        """A model becomes another one."""
        self._width = 12 - self._width
        config = self._models / "changing" / "config.pbtxt"
        text = config.read_text().replace(
            f"max_batch_size: {12 - self._width}", f"max_batch_size: {self._width}"
        )
        config.with_suffix(".new").write_text(text)
        os.replace(config.with_suffix(".new"), config)
        self._daemon.signal(signal.SIGHUP)

    def hold(self) -> None:
        """No Python runs in the daemon for a while."""
        with self._hold:
            threading.Event().wait(self._dice.uniform(0, 0.3))

    def kill_zygote(self) -> None:
        """All workers end."""
        pid = self._worker()
        if pid:
            try:
                parent = int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
            except OSError:
                return
            if parent not in (1, self._daemon.pid):
                self._signal(parent, signal.SIGKILL)

    def _worker(self) -> int:
        pids = self._workers()
        return self._dice.choice(pids) if pids else 0

    def _workers(self) -> list[int]:
        return [int(worker["pid"]) for worker in self._daemon.status()["workers"] if worker["pid"]]

    def _signal(self, pid: int, number: int) -> None:
        try:
            if pid:
                os.kill(pid, number)
        except ProcessLookupError:
            pass


class Report(NamedTuple):
    """What came of a run."""

    seconds: float
    seed: int
    requests: int
    leased: int
    outcomes: dict[str, dict[str, int]]
    troubles: dict[str, int]


def run(seconds: float, seed: int) -> Report:
    """Raises Broken, or AssertionError, when a rule does not hold."""
    with tempfile.TemporaryDirectory(prefix="appliance-chaos-") as folder:
        models = Path(folder) / "models"
        _write_models(models)
        hold = Hold(Path(folder) / "hold")
        with ApplianceProcess(models, SECTIONS, environment=hold.environment) as daemon:
            daemon.wait_ready()
            teach(daemon, *(model for model in ALLOWED if model != "wide"))
            teach(daemon, "wide", width=WIDE)
            before = daemon.status()
            ledger = Ledger()
            clients = Clients(daemon.grpc, ledger, seed)
            troubles = Troubles(daemon, models, hold, seed)
            clients.start()
            began = time.monotonic()
            try:
                troubles.until(began + seconds)
            finally:
                clients.stop()
            after = daemon.until("an empty house", is_empty, timeout_s=60.0)
            _check(before, after, ledger)
            troubles.cease()
            _still_serves(daemon)
            if daemon.stop():
                raise Broken(f"the daemon ended with {daemon.process.returncode}:\n{daemon.log()[-4000:]}")
    outcomes = {model: dict(counts) for model, counts in ledger.outcomes.items()}
    total = sum(sum(counts.values()) for counts in outcomes.values())
    leased = sum(entry["leased"] for entry in after["models"])
    return Report(seconds, seed, total, leased, outcomes, dict(troubles.counts))


def _write_models(root: Path) -> None:
    write_fake(root, "quick")
    write_fake(root, "slow", mode="delay", delay_ms=10, batched=False)
    write_fake(root, "crashing", mode="crash", magic=POISON)
    write_fake(root, "lying", mode="ring_fault", fault="stranger", magic=POISON)
    write_fake(root, "device", mode="device", magic=POISON)
    write_fake(root, "failing", mode="fail", magic=POISON)
    write_fake(root, "changing", allow_interface_change="true")
    write_fake(root, "hasty", mode="delay", delay_ms=10, batched=False)
    write_fake(root, "wide", width=WIDE)


def _check(before: Any, after: Any, ledger: Ledger) -> None:
    """Hold what the clients saw against what the daemon counted."""
    problems = list(ledger.wrong)
    for model, outcomes in ledger.outcomes.items():
        if not set(outcomes) <= ALLOWED[model]:
            problems.append(f"{model} ended in unforeseen ways: {dict(outcomes)}")
        if model == "changing":
            continue  # its counts began anew with each replacement
        counted = {
            result: count - version_in(before, model)["requests"][result]
            for result, count in version_in(after, model)["requests"].items()
        }
        said = f"{model}: the clients saw {dict(outcomes)}, the daemon counted {counted}"
        if not _possible(outcomes, counted) or (model in EXACT and not _agree(outcomes, counted)):
            problems.append(said)
        if not version_in(after, model)["leased"]:
            problems.append(f"{model} was never leased")
    if problems:
        raise Broken("\n".join(problems[:20]))


def _possible(outcomes: Counter[str], counted: dict[str, int]) -> bool:
    """Whoever was answered was counted, and nobody twice."""
    return outcomes["OK"] <= counted["success"] and sum(counted.values()) <= sum(outcomes.values())


def _agree(outcomes: Counter[str], counted: dict[str, int]) -> bool:
    """All of them are the same."""
    expected = sum(outcomes.values()) == sum(counted.values()) and counted["success"] == outcomes["OK"]
    failed = sum(count for outcome, count in outcomes.items() if outcome not in ("OK", "RESOURCE_EXHAUSTED"))
    refused = counted["refused"] == outcomes["RESOURCE_EXHAUSTED"]
    return expected and refused and failed == counted["failed"] + counted["unavailable"]


def _still_serves(daemon: ApplianceProcess) -> None:
    """All models serve another client: the one there was may still be held."""
    host, port = daemon.http.rsplit(":", 1)
    for model in (*EXACT, "wide"):
        width = WIDE if model == "wide" else 4
        binary = {"binary_data_size": width}
        tensor = {"name": "x", "datatype": "UINT8", "shape": [1, width], "parameters": binary}
        header = json.dumps({"inputs": [tensor]}).encode()
        with contextlib.closing(HTTPConnection(host, int(port), source_address=("127.0.0.2", 0))) as other:
            other.request(
                "POST",
                f"/v2/models/{model}/infer",
                header + bytes(width),
                {"Inference-Header-Content-Length": str(len(header))},
            )
            answer = other.getresponse()
            if answer.status != 200:
                raise Broken(f"{model} serves nobody else: {answer.status} {answer.read()!r}")


def main(arguments: list[str] | None = None) -> int:
    """0 when all rules held."""
    parser = argparse.ArgumentParser(prog="python -m tests.faults.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    try:
        report = run(options.minutes * 60, options.seed)
    except (Broken, AssertionError) as broken:
        print(f"seed {options.seed}: {broken}", file=sys.stderr)
        return 1
    print(json.dumps(report._asdict(), indent=2))
    return 0


if __name__ == "__main__":
    sys.exit(main())
