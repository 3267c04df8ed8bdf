"""What a model's parameters say of how its session runs, by the names that Triton's backend has for them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

THREADS_MAX: Final = 1_024
"""As of the setting ``workers.threads``."""
INTRA_OP: Final = "intra_op_thread_count"
INTER_OP: Final = "inter_op_thread_count"
MODE: Final = "execution_mode"
ARENA: Final = "enable_mem_arena"
PATTERN: Final = "enable_mem_pattern"
DEVICE_BYTES: Final = "gpu_mem_limit"
BYTES_MAX: Final = (1 << 63) - 1
ENGINE_FREE_MAX: Final = "tensorrt_free_max"
"""How long free dimensions other than the batch can be, for an engine of TensorRT; 0: nobody knows."""
FREE_MAX: Final = 1 << 24
ENGINE_WEIGHTS_MAX: Final = "tensorrt_weights_bytes_max"
"""How many bytes of weights an engine of TensorRT keeps on the device; the others lie in the machine's memory, and come
at each run. 0: all are on the device."""
WEIGHTS_MAX: Final = 1 << 40
ENGINE_REFIT: Final = "tensorrt_refit"
"""A flag: an engine of TensorRT can take the weights of another version of its model."""
LARGEST: Final[Mapping[str, int]] = MappingProxyType(
    {
        INTRA_OP: THREADS_MAX,
        INTER_OP: THREADS_MAX,
        MODE: 1,
        ARENA: 1,
        PATTERN: 1,
        DEVICE_BYTES: BYTES_MAX,
        ENGINE_FREE_MAX: FREE_MAX,
        ENGINE_WEIGHTS_MAX: WEIGHTS_MAX,
    }
)
"""The parameters that are obeyed, each a whole number from 0 up to this."""
OF_ENGINES: Final = frozenset((ENGINE_FREE_MAX, ENGINE_WEIGHTS_MAX, ENGINE_REFIT))
"""Those of a model that TensorRT runs; elsewhere they do nothing."""
ON_GPU_ALONE: Final = OF_ENGINES | {DEVICE_BYTES}
"""Those of a model on a GPU; on the processor they do nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionOptions:
    """``threads`` within an operator; ``across``: between operators, which run beside one another where ``parallel``.
    0: not said, and what the appliance is set to counts. ``device_bytes``: of a GPU at most, for weights and what runs
    make; 0: no bound of its own."""

    threads: int = 0
    across: int = 0
    parallel: bool = False
    arena: bool = True
    pattern: bool = True
    device_bytes: int = 0

    def on_one_thread(self, usual: int) -> bool:
        """Whether a session has no threads of its own, where ``usual`` is how many one has that does not say."""
        return (self.threads or usual) == 1 and not self.parallel


def option_problem(key: str, said: str) -> str:
    """What is wrong with ``said`` as the value of ``key``, one of LARGEST; "" when nothing is."""
    if (
        said.isascii()
        and said.isdecimal()
        and len(said) <= len(str(LARGEST[key]))
        and int(said) <= LARGEST[key]
    ):
        return ""
    return f"{key} must be a whole number from 0 to {LARGEST[key]}, not '{said[:40]}'"


def session_options(parameters: Mapping[str, str]) -> SessionOptions:
    """The options that ``parameters``, which were checked, ask for."""
    said = {key: int(parameters[key]) for key in LARGEST if key in parameters}
    return SessionOptions(
        threads=said.get(INTRA_OP, 0),
        across=said.get(INTER_OP, 0),
        parallel=said.get(MODE, 0) == 1,
        arena=said.get(ARENA, 1) == 1,
        pattern=said.get(PATTERN, 1) == 1,
        device_bytes=said.get(DEVICE_BYTES, 0),
    )
