"""The cases: what is measured and what it has to reach. Entries only; each kind of measuring has its own module."""

from collections.abc import Mapping

from benchmarks.case import Case
from benchmarks.comparison import Comparison, ratio
from benchmarks.front_end_cases import FRONT_END_CASES
from benchmarks.generator import GeneratorCheck
from benchmarks.load_cases import LOAD_CASES
from benchmarks.overload import Overload
from benchmarks.residency_zipf import ResidencyZipf
from benchmarks.results import Bound
from benchmarks.sizes import IdleLimits, ManyModels
from benchmarks.swap_cases import SWAP_CASES

CASES: Mapping[str, Case] = {
    "generator": Case(
        title="The load generator against a bare echo server",
        procedure=GeneratorCheck(concurrencies=(1, 32), rate=2500.0, lag_p99_ms=2.0),
    ),
    "small_mlp": Case(
        title="Small MLP (64-64-64-10), batch 1 per request",
        procedure=Comparison(
            model="mlp",
            peers=("appliance_python", "plain_aio", "triton_python", "mlserver"),
            concurrencies=(1, 8, 32),
            targets=(
                ratio("throughput", "plain_aio", 32, Bound.AT_LEAST, 0.85, "appliance_python"),
                ratio("p50", "plain_aio", 1, Bound.AT_MOST, 1.5, "appliance_python"),
                ratio("throughput", "mlserver", 8, Bound.AT_LEAST, 2.0, "appliance_python"),
            ),
        ),
    ),
    "batching_pays": Case(
        title="A model of 2 ms at batch 1 and 2.4 ms at batch 8",
        procedure=Comparison(
            model="burn_2ms",
            peers=("plain_aio", "triton_python"),
            concurrencies=(32,),
            targets=(ratio("throughput", "plain_aio", 32, Bound.AT_LEAST, 3.0),),
        ),
    ),
    "overload": Case(
        title="A model of 10 ms at batch 1 and 12 ms at batch 8, deadlines of 50 ms",
        procedure=Overload(
            model="burn_10ms",
            batch_1_ms=10.0,
            deadline_ms=50.0,
            mild_factor=1.5,
            heavy_factor=3.0,
            heavy_seconds=60.0,
            in_time_share=0.97,
            goodput_of_peak=0.9,
            refusal_p99_ms=5.0,
        ),
    ),
    "tensors_600k": Case(
        title="Tensors of 600 KB",
        procedure=Comparison(
            model="big_mean",
            peers=("plain_aio",),
            concurrencies=(4, 8),
            targets=(
                ratio("throughput", "plain_aio", 4, Bound.AT_LEAST, 0.8),
                ratio("throughput", "plain_aio", 8, Bound.AT_LEAST, 0.8),
            ),
        ),
    ),
    "sizes": Case(
        title="Memory and start-up with five small models",
        procedure=IdleLimits(models=5, daemon_rss_mib=90.0, worker_private_mib=60.0, first_answer_s=2.0),
    ),
    "thousand_models": Case(
        title="1,000 small models from 1,000 directories",
        procedure=ManyModels(models=1000, ready_s=60.0, memory_mib=4096.0, p50_ratio=1.1),
    ),
    "residency_zipf": Case(
        title="200 models of 10 MB with memory for 20",
        procedure=ResidencyZipf(models=200, resident=20, seconds=30.0),
    ),
    **FRONT_END_CASES,
    **SWAP_CASES,
    **LOAD_CASES,
}
