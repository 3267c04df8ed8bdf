"""Requests that take Python long, of every kind and all at once: how long does somebody wait who only asks whether the
server lives? That is answered on the loop, so it shows the longest turn."""

import gzip
import http.client
import json
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.plan import Bench, model_directory, ready_server
from benchmarks.results import Bound, Verdict
from benchmarks.samples import Samples
from benchmarks.servers import Running, Server

FLOATS, STRINGS = "identity_fp32", "identity_bytes"
ELEMENTS = 1_000_000
TIMEOUT_S = 120.0
ALONE, BESIDE = "alone", "beside the others"
Request = tuple[str, bytes, Mapping[str, str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopTurns:
    """Health is asked for over one connection, one question after another."""

    subjects: tuple[str, ...]
    longest_ms: float

    def run(self, bench: Bench) -> tuple[Samples, tuple[Verdict, ...]]:
        """Measure and judge."""
        samples = Samples()
        bench.in_turns(self.subjects, samples, lambda server, number: _started(bench, server, samples))
        return samples, tuple(
            Verdict(
                target=f"longest wait for health with {name}",
                bound=Bound.AT_MOST,
                limit=self.longest_ms,
                unit="ms",
                value=samples.median(name, BESIDE, "longest"),
            )
            for name in self.subjects
        )


def _started(bench: Bench, server: Server, samples: Samples) -> None:
    with (
        model_directory((FLOATS, STRINGS)) as (models, names),
        ready_server(bench, server, models, names) as instance,
    ):
        _measure(instance, samples)


def _measure(instance: Running, samples: Samples) -> None:
    requests = list(_requests())
    with ThreadPoolExecutor(len(requests)) as pool:
        for setting, asked in ((ALONE, []), (BESIDE, requests)):
            over = threading.Event()
            longest = pool.submit(_longest, instance.ports.http, over)
            statuses = list(pool.map(lambda one: _status(instance.ports.http, *one), asked))
            if not asked:
                time.sleep(1.0)
            over.set()
            samples.add(instance.server.name, setting, "longest", "ms", 1000 * longest.result())
            if any(status != 200 for status in statuses):
                samples.errors.append(f"{instance.server.name}: answered {statuses}")


def _longest(port: int, over: threading.Event) -> float:
    """The seconds that the slowest of the answers took that came before it was over."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    longest = 0.0
    while not over.is_set():
        begun = time.monotonic()
        connection.request("GET", "/v2/health/live")
        connection.getresponse().read()
        longest = max(longest, time.monotonic() - begun)
    connection.close()
    return longest


def _status(port: int, model: str, body: bytes, headers: Mapping[str, str]) -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=TIMEOUT_S)
    connection.request("POST", f"/v2/models/{model}/infer", body, dict(headers))
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def _requests() -> Iterator[Request]:
    floats = {"name": "x", "datatype": "FP32", "shape": [1, ELEMENTS]}
    strings = {"name": "x", "datatype": "BYTES", "shape": [1, ELEMENTS]}
    classes = {"name": "y", "parameters": {"classification": ELEMENTS, "binary_data": True}}
    raw = bytes(4 * ELEMENTS)
    yield _with_tensor(FLOATS, {"inputs": [_sized(floats)], "outputs": [classes]}, raw)
    yield _with_tensor(FLOATS, {"inputs": [_sized(floats)]}, raw)
    yield _with_tensor(
        STRINGS, {"inputs": [_sized(strings)], "parameters": {"binary_data_output": True}}, raw
    )
    text = json.dumps({"inputs": [{**floats, "data": [[0] * ELEMENTS]}]}, separators=(",", ":")).encode()
    yield FLOATS, text, {}
    yield FLOATS, gzip.compress(text), {"Content-Encoding": "gzip"}


def _sized(tensor: Mapping[str, object]) -> dict[str, object]:
    return {**tensor, "parameters": {"binary_data_size": 4 * ELEMENTS}}


def _with_tensor(model: str, document: Mapping[str, object], raw: bytes) -> Request:
    head = json.dumps(document).encode()
    return model, head + raw, {"Inference-Header-Content-Length": str(len(head))}
