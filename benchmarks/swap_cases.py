"""The cases of hot swap: what is measured and what it has to reach. Entries only."""

from collections.abc import Mapping

from benchmarks.case import Case
from benchmarks.rolling_back import RollBack
from benchmarks.servers import TRITON_CONTROLLED
from benchmarks.swapping import ManySwaps, SwapUnderLoad

SUBJECT = "appliance_controlled"

SWAP_CASES: Mapping[str, Case] = {
    "swap_100mb": Case(
        title="Swaps of a 100 MB model under load on another model",
        procedure=SwapUnderLoad(
            megabytes=100,
            subject=SUBJECT,
            peers=(TRITON_CONTROLLED,),
            against=TRITON_CONTROLLED,
            rate=200.0,
            own_rate=5.0,
            least_seconds=6.0,
            pause_s=1.0,
            p99_ratio=2.0,
        ),
    ),
    "swap_500mb": Case(
        title="Swaps of a 500 MB model under load on another model",
        procedure=SwapUnderLoad(
            megabytes=500,
            subject=SUBJECT,
            peers=(),
            rate=200.0,
            own_rate=1.0,
            least_seconds=15.0,
            pause_s=1.0,
            p99_ratio=2.0,
        ),
    ),
    "rollback_100mb": Case(
        title="Going back to the version before, of 100 MB",
        procedure=RollBack(megabytes=100, orders=6, against=TRITON_CONTROLLED),
    ),
    "swap_1000": Case(
        title="1,000 swaps of a small model: what they leave behind",
        procedure=ManySwaps(megabytes=0, swaps=1000, subject=SUBJECT, peers=(), daemon_mib=2.0, slower=1.1),
    ),
    "swap_200_triton": Case(
        title="200 swaps of a 100 MB model, beside Triton",
        procedure=ManySwaps(
            megabytes=100,
            swaps=200,
            subject=SUBJECT,
            peers=(TRITON_CONTROLLED,),
            daemon_mib=2.0,
            slower=1.1,
        ),
    ),
}
