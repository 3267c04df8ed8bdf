"""More models than memory, in the running appliance: a Zipf trace over real processes, from clients at full speed."""

import json
import random
import threading
import time
import urllib.request
from dataclasses import dataclass, replace
from functools import partial
from itertools import accumulate
from pathlib import Path

import grpc

from benchmarks.cache import cache_directory
from benchmarks.load import INFER
from benchmarks.plan import Bench
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples
from benchmarks.servers import POLL_S, Launch, Ports, Running, Server, running
from models.generators.transformer import SIZES, write_transformer

MIB = 1 << 20
MODEL_MIB = 16
"""What a model of 10 MB takes with its worker, about: weights that the runtime has packed, and its process."""
READY_S = 300.0
CLIENTS = 4
SETTING = "zipf 1.0"
FIRST = b"m000"
"""The name in the payload that is made once for all models."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyZipf:
    """``models`` transformers of 10 MB with memory for ``resident`` of them."""

    models: int
    resident: int
    seconds: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Start once, wait until every model has proved itself, then ask."""
        samples = Samples()
        failed = 0
        for server in bench.available((bench.subject,), samples):
            bounded = replace(server, launch=partial(self._launch, server))
            with running(bounded, self._directory()) as instance:
                bench.say(f"{self.models} models prove themselves")
                _wait_all_ready(instance, self.models)
                name = server.name
                samples.add(name, SETTING, "all ready", "s", time.monotonic() - instance.started_s)
                payload = bench.writer.infer(_name(0), self._directory() / _name(0) / "1" / "graph.onnx")
                failed += self._ask(instance, payload, bench.at_length(self.seconds), samples)
        target = (
            f"requests for {self.models} models with memory for {self.resident} that failed or were refused"
        )
        return samples, (Verdict(target=target, bound=Bound.AT_MOST, limit=0, unit="", value=float(failed)),)

    def _launch(self, server: Server, models: Path, scratch: Path, ports: Ports) -> Launch:
        launch = server.launch(models, scratch, ports)
        config = Path(launch.argv[launch.argv.index("--config") + 1])
        budget = f"\n[residency]\nbudget_bytes = {self.resident * MODEL_MIB * MIB}\n"
        config.write_text(config.read_text() + budget)
        return launch

    def _directory(self) -> Path:
        root = cache_directory() / f"residency_{self.models}"
        for number in range(self.models):
            home = root / _name(number)
            if not (home / "1").exists():
                write_transformer(home, SIZES[10], seed=number + 1)
        return root

    def _ask(self, server: Running, payload: bytes, seconds: float, samples: Samples) -> int:
        times: list[float] = []
        errors: list[str] = []
        end = time.monotonic() + seconds
        threads = [
            threading.Thread(target=self._client, args=(server, payload, seed, end, times, errors))
            for seed in range(CLIENTS)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        name, times = server.server.name, sorted(times)
        samples.add(name, SETTING, "answers", "/s", len(times) / seconds)
        for share in (50, 99):
            at = min(len(times) * share // 100, len(times) - 1)
            samples.add(name, SETTING, f"p{share}", "ms", times[at] * 1e3)
        figures = _status(server)["residency"]
        for key in ("misses", "loads", "page_ins", "evictions", "unloads"):
            samples.add(name, SETTING, key, "", figures[key])
        samples.errors.extend(sorted(set(errors)))
        return len(errors)

    def _client(
        self,
        server: Running,
        payload: bytes,
        seed: int,
        end: float,
        times: list[float],
        errors: list[str],
    ) -> None:
        chance = random.Random(seed)
        ranks = list(range(self.models))
        random.Random(0).shuffle(ranks)
        weights = list(accumulate(1 / (rank + 1) for rank in ranks))
        with server.channel() as channel:
            infer = channel.unary_unary(INFER, None, None)
            while time.monotonic() < end:
                number = chance.choices(range(self.models), cum_weights=weights)[0]
                begin = time.perf_counter()
                try:
                    infer(payload.replace(FIRST, _name(number).encode(), 1), timeout=60.0)
                    times.append(time.perf_counter() - begin)
                except grpc.RpcError as error:
                    errors.append(str(error))


def _name(number: int) -> str:
    return f"m{number:03}"


def _status(server: Running) -> dict[str, dict[str, int]]:
    url = f"http://127.0.0.1:{server.ports.http}/status.json"
    with urllib.request.urlopen(url, timeout=10) as answer:
        document: dict[str, dict[str, int]] = json.load(answer)
    return document


def _wait_all_ready(server: Running, models: int) -> None:
    end = time.monotonic() + READY_S
    url = f"http://127.0.0.1:{server.ports.http}/metrics"
    while time.monotonic() < end:
        server.check_alive()
        try:
            with urllib.request.urlopen(url, timeout=10) as answer:
                text = answer.read().decode()
        except OSError:
            text = ""
        ready = sum('state="READY"} 1' in line for line in text.splitlines())
        if ready >= models:
            return
        time.sleep(20 * POLL_S)
    raise TimeoutError(f"not all of {models} models were ready in {READY_S:.0f} s")
