"""The turns of the event loop: what clients send costs each other time, and nobody else."""

from __future__ import annotations

import asyncio
import gc
import gzip
import http.client
import json
import struct
import time
from asyncio.base_events import BaseEventLoop
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from functools import partial
from typing import Any

import grpc
import pytest
from aiohttp.test_utils import make_mocked_request

from appliance.config.grpc import GrpcConfig
from appliance.config.http import HttpConfig
from appliance.config.quotas import QuotasConfig
from appliance.domain.steps import Steps
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.engine import port
from appliance.engine.port import Tensor
from appliance.frontend.grpc.health import SERVICE
from appliance.frontend.grpc.services import INFER
from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.http.body import BodyReader
from appliance.frontend.http.figures import FiguresHandler
from appliance.frontend.http.protocol import ProtocolHandler
from appliance.frontend.port import Backend, Bound, FrontEnd
from appliance.frontend.python import PythonFrontEnd
from appliance.frontend.turns import CLIENT, Turns
from appliance.maintenance.interpreter import THRESHOLDS
from appliance.telemetry.meter import VersionStatistics
from appliance.telemetry.snapshot import Snapshot
from tests.domain.sample import make_version
from tests.frontend.grpc.engine_double import EngineDouble, LogDouble
from tests.frontend.http.engine_figures import NO_HTTP, PYTHON_FRONT_END, made_up_status
from tests.fronts import EVERY_FRONT_END
from tests.steps import finished

SCORES = 300_000
STRINGS = 1_000_000
NUMBERS = 500_000
LONGEST_S = 0.25
"""Of the processor, for one turn: five times what is asked for, and less than the larger of these take at once."""


def steps(count: int, done: Callable[[], None]) -> Steps[int]:
    for _ in range(count):
        yield
        done()
    return count


async def test_each_turn_does_one_step_of_whoever_waits_longest() -> None:
    turns, done = Turns(), list[int]()
    work = [asyncio.create_task(turns.take(steps(10, partial(done.append, number)))) for number in range(20)]
    most = before = 0
    while not all(task.done() for task in work):
        await asyncio.sleep(0)
        most, before = max(most, len(done) - before), len(done)
    assert [task.result() for task in work] == [10] * 20
    assert (most, len(done)) == (1, 200)
    assert done[:40] == [*range(20), *range(20)]


async def test_a_client_waits_for_each_other_and_not_for_all_that_another_asks() -> None:
    turns, done = Turns(), list[str]()

    async def work(client: str) -> None:
        CLIENT.set(client)
        await turns.take(steps(5, partial(done.append, client)))

    tasks = [asyncio.create_task(work(client)) for client in ["hostile"] * 40 + ["lawful", "other"]]
    await asyncio.gather(*tasks)
    assert done[:15] == ["hostile", "lawful", "other"] * 5
    assert done[15:] == ["hostile"] * 195


async def test_work_that_nobody_waits_for_ends_at_once_and_holds_up_nobody() -> None:
    turns, ended = Turns(), list[str]()

    def endless(name: str) -> Steps[None]:
        try:
            while True:
                yield
        finally:
            ended.append(name)

    gone = asyncio.create_task(turns.take(endless("gone")))
    other = asyncio.create_task(turns.take(steps(3, lambda: None)))
    await asyncio.sleep(0)
    gone.cancel()
    assert await other == 3
    assert ended == ["gone"]
    with pytest.raises(asyncio.CancelledError):
        await gone


@pytest.mark.parametrize("what", ["metrics", "document", "page", "model_page", "statistics", "index"])
async def test_what_tells_of_all_models_is_written_for_one_request_a_turn(what: str) -> None:
    """However many connections ask at once."""
    begun = 0

    def count(answer: Any) -> Any:
        nonlocal begun
        begun += 1
        return answer

    class Counting(EngineDouble):
        def statistics(self, name: str, version: str) -> tuple[VersionStatistics, ...]:
            return tuple[VersionStatistics, ...](count([]))

        def index(self, ready_only: bool) -> tuple[port.IndexEntry, ...]:
            return tuple[port.IndexEntry, ...](count([]))

    snapshot = Snapshot(engine=made_up_status(), front_end=PYTHON_FRONT_END, http=NO_HTTP)
    backend = Backend(engine=Counting(), log=LogDouble(), read=lambda: count(snapshot))
    protocol = ProtocolHandler(backend, BodyReader(HttpConfig(), backend.turns))
    handler = protocol if what in ("statistics", "index") else FiguresHandler(backend)
    names = ["busy"] if what == "model_page" else []
    ask = getattr(handler, what)
    tasks = [asyncio.create_task(ask(make_mocked_request("GET", "/"), *names)) for _ in range(20)]
    most = 0
    while not all(task.done() for task in tasks):
        before = begun
        await asyncio.sleep(0)
        most = max(most, begun - before)
    assert {task.result().status for task in tasks} == {200}
    assert (most, begun) == (1, 20)


async def test_what_is_small_is_done_at_once() -> None:
    turns = Turns()
    waits = asyncio.create_task(turns.take(steps(1, lambda: None)))
    await asyncio.sleep(0)
    assert await turns.take(steps(0, lambda: None)) == finished(steps(0, lambda: None)) == 0
    assert not waits.done()
    assert await waits == 1


class Answering(EngineDouble):
    """Ends every request as soon as it can with what its model gives."""

    def __init__(self) -> None:
        def one(name: str, datatype: Datatype, outputs: int) -> Any:
            return make_version(
                name,
                inputs=(TensorSpec(name="x", datatype=datatype, shape=(-1,)),),
                outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=(outputs,)),),
            )

        self.indexed = 0
        super().__init__(
            one("scores", Datatype.FP32, SCORES),
            one("strings", Datatype.BYTES, 1),
            one("numbers", Datatype.INT32, 1),
        )
        self.scores = struct.pack(f"<{SCORES}f", *(float(index * 7919 % SCORES) for index in range(SCORES)))

    def submit(self, submission: port.Submission, tensors: Sequence[Tensor]) -> int:
        handle = super().submit(submission, tensors)
        data = self.scores if submission.plan.model.name == "scores" else bytes(4)
        asyncio.get_running_loop().call_soon(self.submissions[handle].answer, data)
        return handle

    def index(self, ready_only: bool) -> tuple[port.IndexEntry, ...]:
        self.indexed += 1
        return super().index(ready_only)

    def statistics(self, name: str, version: str) -> tuple[VersionStatistics, ...]:
        self.indexed += 1
        return super().statistics(name, version)


class Longest:
    """How much of the processor the longest turn of the loop took."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seconds = 0.0
        once: Callable[[BaseEventLoop], None] = BaseEventLoop._run_once  # type: ignore[attr-defined]

        def measured(loop: BaseEventLoop) -> None:
            begun = time.thread_time()
            once(loop)
            self.seconds = max(self.seconds, time.thread_time() - begun)

        monkeypatch.setattr(BaseEventLoop, "_run_once", measured)


@pytest.fixture
def longest(monkeypatch: pytest.MonkeyPatch) -> Iterator[Longest]:
    gc.collect()
    gc.freeze()  # as the daemon does: what the tests keep is no load of it
    before = gc.get_threshold()
    gc.set_threshold(*THRESHOLDS)
    with monkeypatch.context() as patched:
        yield Longest(patched)
    gc.set_threshold(*before)
    gc.unfreeze()


@pytest.fixture
def answering() -> Answering:
    return Answering()


@pytest.fixture(params=EVERY_FRONT_END, ids=str)
async def served(request: pytest.FixtureRequest, answering: Answering) -> AsyncIterator[Bound]:
    """The addresses of a front end before an engine that answers at once."""
    backend = Backend(engine=answering, log=LogDouble(), read=lambda: pytest.fail("nobody asks"))
    configs = GrpcConfig(addresses=("127.0.0.1:0",)), HttpConfig(addresses=("127.0.0.1:0",))
    front_end: FrontEnd
    if request.param == "python":
        front_end = PythonFrontEnd(backend, *configs)
    else:
        from appliance.frontend.native.front_end import NativeFrontEnd, native_quotas

        quotas = native_quotas(QuotasConfig(), lambda what, **_: None)
        front_end = NativeFrontEnd(backend, *configs, quotas, lambda error: pytest.fail(str(error)))
    yield await front_end.open()
    await front_end.close()


def grpc_request(model: str, datatype: str, count: int, **contents: Any) -> pb.ModelInferRequest:
    message = pb.ModelInferRequest(model_name=model)
    message.inputs.add(name="x", datatype=datatype, shape=[1, count], contents=contents or None)
    return message


def messages() -> dict[str, bytes]:
    """What takes Python long over gRPC."""
    classes = grpc_request("scores", "FP32", 1)
    classes.raw_input_contents.append(bytes(4))
    classes.outputs.add(name="y").parameters["classification"].int64_param = SCORES
    strings = grpc_request("strings", "BYTES", STRINGS)
    strings.raw_input_contents.append(bytes(4 * STRINGS))
    typed = grpc_request("numbers", "INT32", NUMBERS, int_contents=[1] * NUMBERS)
    texts = grpc_request("strings", "BYTES", STRINGS, bytes_contents=[b""] * STRINGS)
    found = {"classes": classes, "strings": strings, "typed": typed, "texts": texts}
    return {name: message.SerializeToString() for name, message in found.items()}


def bodies() -> dict[str, tuple[str, bytes, dict[str, str]]]:
    """What takes Python long over HTTP: model, body and headers."""

    def of(datatype: str, count: int, data: object, **rest: object) -> bytes:
        tensor = {"name": "x", "datatype": datatype, "shape": [1, count], "data": data}
        return json.dumps({"inputs": [tensor], **rest}, separators=(",", ":")).encode()

    classes = {"name": "y", "parameters": {"classification": SCORES, "binary_data": True}}
    raw = {
        "name": "x",
        "datatype": "BYTES",
        "shape": [1, STRINGS],
        "parameters": {"binary_data_size": 4 * STRINGS},
    }
    ranked = {"name": "x", "datatype": "INT32", "shape": [1] * (2 * STRINGS), "data": [1]}
    head = json.dumps({"inputs": [raw]}).encode()
    numbers = of("INT32", NUMBERS, [[0] * NUMBERS])
    return {
        "classes": ("scores", of("FP32", 1, [1.0], outputs=[classes]), {}),
        "text": ("scores", of("FP32", 1, [1.0]), {}),
        "numbers": ("numbers", numbers, {}),
        "folded": ("numbers", gzip.compress(numbers), {"Content-Encoding": "gzip"}),
        "lists": ("numbers", of("INT32", NUMBERS, [[[]] * NUMBERS]), {}),
        "rank": ("numbers", json.dumps({"inputs": [ranked]}, separators=(",", ":")).encode(), {}),
        "parameter": ("numbers", of("INT32", 1, [1], parameters={"a": [[]] * STRINGS}), {}),
        "words": ("strings", of("BYTES", STRINGS // 2, [["a"] * (STRINGS // 2)]), {}),
        "strings": (
            "strings",
            head + bytes(4 * STRINGS),
            {"Inference-Header-Content-Length": str(len(head))},
        ),
    }


def ask_grpc(address: str, message: bytes) -> int:
    with grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)]) as channel:
        return len(channel.unary_unary(INFER, None, None)(message, timeout=120))


def ask_http(address: str, model: str, body: bytes, headers: dict[str, str]) -> int:
    connection = http.client.HTTPConnection(address, timeout=120)
    try:
        connection.request("POST", f"/v2/models/{model}/infer", body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status
    finally:
        connection.close()


@pytest.mark.parametrize("rpc", ["ModelStatistics", "RepositoryIndex"])
async def test_what_tells_of_all_models_over_grpc_is_written_for_one_request_a_turn(
    served: Bound, answering: Answering, rpc: str
) -> None:
    channel: Any
    async with grpc.aio.insecure_channel(served.grpc[0]) as channel:
        ask = channel.unary_unary(f"/{SERVICE}/{rpc}", None, None)
        tasks = [asyncio.create_task(_answered(ask(b""))) for _ in range(50)]
        most = 0
        while not all(task.done() for task in tasks):
            before = answering.indexed
            await asyncio.sleep(0)
            most = max(most, answering.indexed - before)
    assert all(task.result() is not None for task in tasks)
    assert (most, answering.indexed) == (1, 50)


async def _answered(call: Any) -> bytes:
    answer: bytes = await call
    return answer


async def test_no_request_holds_the_loop(
    served: Bound, longest: Longest, capsys: pytest.CaptureFixture[str]
) -> None:
    asked_grpc, asked_http = messages(), bodies()
    await asyncio.sleep(0)  # making them is not the front end's turn
    longest.seconds = 0.0
    answers = await asyncio.gather(
        *(asyncio.to_thread(ask_grpc, served.grpc[0], message) for message in asked_grpc.values()),
        *(asyncio.to_thread(ask_http, served.http[0], *asked) for asked in asked_http.values()),
    )
    with capsys.disabled():
        print(f"\nlongest turn of the loop: {1000 * longest.seconds:.1f} ms", end=" ")
    assert dict(zip(asked_http, answers[len(asked_grpc) :], strict=True)) == {
        **dict.fromkeys(asked_http, 200),
        **dict.fromkeys(("lists", "rank", "parameter"), 400),
    }
    assert answers[0] > 10 * SCORES
    assert longest.seconds < LONGEST_S
