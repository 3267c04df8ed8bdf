"""The cases of the native front end: what is measured and what it has to reach. Entries only."""

from collections.abc import Mapping

from benchmarks.case import Case
from benchmarks.comparison import LG, NATIVE, OWN, STREAM, Comparison, LimitTarget, ratio
from benchmarks.http_json import HttpJson
from benchmarks.idle_connections import IdleConnections
from benchmarks.loading import SERVER_CPU
from benchmarks.loop_turns import LoopTurns
from benchmarks.neighbours import Neighbours
from benchmarks.results import Bound
from benchmarks.saturation import Saturation
from benchmarks.scale import Scale
from benchmarks.sizes import FrontEndMemory, ManyModels
from benchmarks.stalls import Stalls

SUBJECT = "appliance_native"


def _cpu_at_most(microseconds: float, concurrency: int) -> LimitTarget:
    return LimitTarget(
        metric=SERVER_CPU, concurrency=concurrency, bound=Bound.AT_MOST, limit=microseconds, unit="us"
    )


FRONT_END_CASES: Mapping[str, Case] = {
    "frontend_generators": Case(
        title="The load generators against a bare echo server on the native front end's stack",
        procedure=Comparison(
            model="mlp",
            subject="native_echo",
            peers=(),
            concurrencies=(1, 8, 32, 64),
            tools=(NATIVE, LG, OWN),
            targets=(),
        ),
    ),
    "frontend_c1": Case(
        title="The native front end, one request at a time: small MLP",
        procedure=Comparison(
            model="mlp",
            subject=SUBJECT,
            peers=("native_echo", "triton_python", "appliance_python"),
            concurrencies=(1,),
            tools=(NATIVE, LG),
            every_tool=True,
            targets=(
                ratio("p50", "native_echo", 1, Bound.AT_MOST, 1.3),
                ratio("p50", "triton_python", 1, Bound.AT_MOST, 0.4),
                _cpu_at_most(55.0, 1),
            ),
        ),
    ),
    "frontend_c32": Case(
        title="The native front end, 32 requests at a time: small MLP",
        procedure=Comparison(
            model="mlp",
            subject=SUBJECT,
            peers=("native_echo", "triton_python", "appliance_python"),
            concurrencies=(32,),
            tools=(NATIVE, LG),
            every_tool=True,
            targets=(
                ratio("throughput", "native_echo", 32, Bound.AT_LEAST, 0.75),
                ratio("throughput", "triton_python", 32, Bound.AT_LEAST, 3.0),
                ratio("throughput", "appliance_python", 32, Bound.AT_LEAST, 7.0),
                _cpu_at_most(15.0, 32),
            ),
        ),
    ),
    "frontend_600k": Case(
        title="The native front end with inputs of 600 KB",
        procedure=Comparison(
            model="big_mean",
            subject=SUBJECT,
            peers=("plain_aio",),
            concurrencies=(8,),
            tools=(NATIVE, LG),
            every_tool=True,
            targets=(ratio("throughput", "plain_aio", 8, Bound.AT_LEAST, 5.0),),
        ),
    ),
    "frontend_5m": Case(
        title="The native front end with pictures of 640 by 640, 4.9 MB",
        procedure=Comparison(
            model="detector_mean",
            subject=SUBJECT,
            peers=("plain_aio", "triton_python"),
            concurrencies=(1, 8),
            tools=(NATIVE,),
            targets=(
                ratio("throughput", "plain_aio", 8, Bound.AT_LEAST, 3.0),
                ratio("p50", "plain_aio", 1, Bound.AT_MOST, 0.5),
                ratio("throughput", "triton_python", 8, Bound.AT_LEAST, 1.5),
                ratio("p50", "triton_python", 1, Bound.AT_MOST, 0.5),
            ),
        ),
    ),
    "frontend_neighbours": Case(
        title="Small requests beside a model of 10 ms and beside pictures of 4.9 MB, both asked for all they can do",
        procedure=Neighbours(
            model="mlp",
            others=("burn_10ms", "detector_mean"),
            rate=200.0,
            concurrency=2,
            subject=SUBJECT,
            peer="triton_python",
            ratio=0.8,
        ),
    ),
    "frontend_stream": Case(
        title="The native front end, all requests over one stream: small MLP",
        procedure=Comparison(
            model="mlp",
            subject=SUBJECT,
            peers=("appliance_ungranted", "appliance_python"),
            concurrencies=(1, 32),
            tools=(STREAM,),
            targets=(
                ratio("p50", "appliance_ungranted", 1, Bound.AT_MOST, 0.6),
                ratio("throughput", "appliance_ungranted", 32, Bound.AT_LEAST, 3.0),
                ratio("throughput", "appliance_python", 32, Bound.AT_LEAST, 7.0),
            ),
        ),
    ),
    "frontend_http_json": Case(
        title="HTTP with tensors as JSON both ways: the native front end beside the Python one",
        procedure=HttpJson(
            model="mlp",
            width=64,
            rows=(1, 16),
            concurrencies=(1, 8),
            subject=SUBJECT,
            peer="appliance_python",
            speedup=3.0,
        ),
    ),
    "frontend_overload": Case(
        title="The native front end at three times its capacity: 2 ms per batch of 4, deadlines of 10 ms",
        procedure=Saturation(
            model="burn_2ms_of_4",
            batch=4,
            subject=SUBJECT,
            deadline_ms=10.0,
            factor=3.0,
            seconds=60.0,
            nearly=0.8,
            goodput_share=0.97,
            refusal_p50_ms=0.2,
            refusal_p99_ms=1.0,
            drift=0.05,
            tail_ratio=2.5,
        ),
    ),
    "frontend_stall": Case(
        title="The native front end with the interpreter held for 20 ms four times a second",
        procedure=Stalls(model="mlp", subject="appliance_stalled", calm=SUBJECT, rate=2000.0, p99_ms=2.0),
    ),
    "loop_turns": Case(
        title="Requests that take Python long, all at once: how long others wait",
        procedure=LoopTurns(subjects=(SUBJECT, "appliance_python"), longest_ms=50.0),
    ),
    "frontend_idle": Case(
        title="The native front end with 10,000 idle connections",
        procedure=IdleConnections(
            model="mlp",
            subject="appliance_roomy",
            other="native_echo",
            connections=10_000,
            rate=2000.0,
            memory_mb=200.0,
            p99_ratio=1.1,
        ),
    ),
    "frontend_tls": Case(
        title="The native front end with TLS and without",
        procedure=Comparison(
            model="mlp",
            subject="appliance_tls",
            peers=(SUBJECT,),
            concurrencies=(1, 32),
            tools=(NATIVE,),
            targets=(
                ratio(SERVER_CPU, SUBJECT, 1, Bound.AT_MOST, 1.35),
                ratio(SERVER_CPU, SUBJECT, 32, Bound.AT_MOST, 1.35),
            ),
        ),
    ),
    "frontend_memory": Case(
        title="What the native front end adds to the idle daemon",
        procedure=FrontEndMemory(
            models=5,
            subject=SUBJECT,
            peers=("appliance_python",),
            without="appliance_http_only",
            library="edge_appliance_native",
            adds_mb=15.0,
        ),
    ),
    "frontend_models": Case(
        title="The native front end with 1,000 published models",
        procedure=ManyModels(
            models=1000, ready_s=60.0, memory_mib=4096.0, p50_ratio=1.05, subject=SUBJECT, native=True
        ),
    ),
    "frontend_scale": Case(
        title="The native front end on one core, and two daemons on one port",
        procedure=Scale(model="mlp", subject=SUBJECT, shared="appliance_shared", concurrencies=(32, 128)),
    ),
}
