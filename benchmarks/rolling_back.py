"""How quickly an operator is back on the version before: from the order to that version's first answer.

Here the order is `appliance model rollback`, and `want` to go forth again, each as a command of its own and as a call
of a program that runs already; for a server that is told what to load it is that call. All load the same weights.
"""

import contextlib
import io
import os
import subprocess
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import grpc

from appliance.cli.main import main
from benchmarks.cache import ROOT, cache_directory
from benchmarks.load import INFER
from benchmarks.payload import RequestWriter
from benchmarks.plan import READY_TIMEOUT_S, Bench, collecting_failures
from benchmarks.results import Verdict
from benchmarks.samples import Samples
from benchmarks.servers import (
    APPLIANCE,
    MODEL_READY,
    READY_ANSWER,
    Launch,
    Ports,
    Server,
    ServerFailed,
    running,
    wait_models_ready,
)
from benchmarks.sizes import at_most
from benchmarks.swapping import LOOK_S, MODEL, PATIENCE_S, SWAPPED, Swapper, ready_to_swap, transformer_files

OURS, COMMAND, CALL, LOAD = "appliance_store", "by a command", "by a call", "by its load call"
Order = Callable[[tuple[str, ...]], contextlib.AbstractContextManager[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class RollBack:
    """Orders on an idle server, one after another; `against` loads the same version when it is told to."""

    megabytes: int
    orders: int
    against: str

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""
        samples, orders = Samples(), 2 if bench.smoke else self.orders
        for number in range(bench.rounds):
            bench.say(f"round {number + 1} of {bench.rounds}: {OURS}")
            with collecting_failures(OURS, samples), _store(self.megabytes) as store:
                for how, order in ((COMMAND, store.by_command), (CALL, store.by_call)):
                    for _ in range(orders):
                        samples.add(OURS, how, "first answer", "ms", store.go(order, bench) * 1e3)
            for server in bench.available((self.against,), samples):
                bench.say(f"round {number + 1} of {bench.rounds}: {server.name}")
                with (
                    collecting_failures(server.name, samples),
                    ready_to_swap(server.name, self.megabytes) as (instance, there),
                ):
                    payload = bench.writer.infer(SWAPPED, there.graph)
                    swapper = Swapper(instance=instance, there=there, payload=payload)
                    swapper.swap()  # the first one finds nothing in any cache
                    for _ in range(orders):
                        samples.add(server.name, LOAD, "first answer", "ms", swapper.swap() * 1e3)
        return samples, self._verdicts(samples)

    def _verdicts(self, samples: Samples) -> tuple[Verdict, ...]:
        theirs = samples.median(self.against, LOAD, "first answer")
        verdicts = []
        for how in (COMMAND, CALL):
            ours = samples.median(OURS, how, "first answer")
            ratio = ours / theirs if ours is not None and theirs else None
            verdicts.append(at_most(f"back {how}, over the load call of {self.against}", 1.0, ratio, "x"))
        return tuple(verdicts)


@dataclass(slots=True, kw_only=True)
class _Store:
    """A store that is served, with two versions of a model that were proven."""

    state: Path
    address: str
    graph: Path
    version: int = 2

    def go(self, order: Order, bench: Bench) -> float:
        """Seconds from an order to the first answer of the other version."""
        payload = bench.writer.infer(SWAPPED, self.graph)
        self.version = 3 - self.version
        words = ("rollback", SWAPPED) if self.version == 1 else ("want", f"{SWAPPED}/2")
        with grpc.insecure_channel(self.address) as channel:
            infer, ready = (channel.unary_unary(each, None, None) for each in (INFER, MODEL_READY))
            infer(payload, timeout=PATIENCE_S)
            question = bench.writer.model_ready(SWAPPED, str(self.version))
            begin = time.monotonic()
            with order(("model", *words, "--state-dir", str(self.state))):
                while ready(question, timeout=PATIENCE_S) != READY_ANSWER:
                    if time.monotonic() - begin > PATIENCE_S:
                        raise ServerFailed(f"{OURS}: version {self.version} never answered")
                    time.sleep(LOOK_S)
                if _version_of(infer(payload, timeout=PATIENCE_S)) != self.version:
                    raise ServerFailed(f"{OURS}: version {self.version} is ready and another answers")
                return time.monotonic() - begin

    @contextlib.contextmanager
    def by_command(self, words: tuple[str, ...]) -> Iterator[None]:
        """Begin an order as a person does."""
        with subprocess.Popen([str(APPLIANCE), *words], cwd=ROOT, stdout=subprocess.DEVNULL) as command:
            yield
        if command.returncode:
            raise ServerFailed(f"{OURS}: {' '.join(words)} ended with {command.returncode}")

    @contextlib.contextmanager
    def by_call(self, words: tuple[str, ...]) -> Iterator[None]:
        """Do an order as a program does that runs already."""
        with contextlib.redirect_stdout(io.StringIO()):
            status = main(list(words))
        if status:
            raise ServerFailed(f"{OURS}: {' '.join(words)} ended with {status}")
        yield


def _version_of(answer: bytes) -> int:
    """The version that a ModelInferResponse tells: its second field, behind the name."""
    at = 2 + answer[1]
    return int(answer[at + 2 : at + 2 + answer[at + 1]])


@contextlib.contextmanager
def _store(megabytes: int) -> Iterator[_Store]:
    """Two packages installed one after the other and proven, of which only the one that serves is in memory."""
    with TemporaryDirectory(prefix="bench-rollback-", dir=cache_directory()) as folder:
        place = Path(folder)
        source, state, key = place / SWAPPED, place / "state", place / "site.key"
        _run("model", "keygen", str(key))
        for version in (1, 2):
            (source / str(version)).mkdir(parents=True)
            for file in transformer_files(megabytes, version - 1).iterdir():
                os.link(file, source / str(version) / (MODEL if file.suffix == ".onnx" else file.name))
            written = ("-o", str(place / f"{version}.model"))
            _run("model", "pack", str(source), "--version", str(version), "--key", str(key), *written)
        trusted = place / "site.toml"
        trusted.write_text(f'[packages]\ntrusted_keys = ["{key}.pub"]\n')
        install = ("model", "install", "--state-dir", str(state), "--config", str(trusted))
        _run(*install, str(place / "1.model"))
        server = Server(name=OURS, launch=partial(_launch, trusted), missing=lambda: None)
        with running(server, state) as instance:
            wait_models_ready(instance, RequestWriter(), (SWAPPED,), READY_TIMEOUT_S)
            _run(*install, str(place / "2.model"), "--wait", "--url", f"127.0.0.1:{instance.ports.http}")
            yield _Store(state=state, address=instance.target, graph=source / "1" / MODEL)


def _launch(trusted: Path, state: Path, scratch: Path, ports: Ports) -> Launch:
    config = scratch / "appliance.toml"
    config.write_text(trusted.read_text() + "[swap]\nwatch_s = 0.0\n")
    addresses = ("--grpc", f"127.0.0.1:{ports.grpc}", "--http", f"127.0.0.1:{ports.http}")
    return Launch(
        argv=[str(APPLIANCE), "serve", "--state-dir", str(state), "--config", str(config), *addresses]
    )


def _run(*words: str) -> None:
    done = subprocess.run([str(APPLIANCE), *words], cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ServerFailed(f"{OURS}: {' '.join(words[:2])} ended with {done.returncode}: {done.stderr}")
