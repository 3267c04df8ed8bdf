"""The ``[repository]`` section of the configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from appliance.config.firewall import FirewallConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryConfig:
    """How model directories are read. ``runtimes`` are those enabled; ``auto_device`` ("cpu" or "cuda") is
    where an instance group of KIND_AUTO runs."""

    default_max_batch_size: int = field(
        default=32,
        metadata={
            "min": 0,
            "max": 1 << 20,
            "unit": "rows",
            "help": "largest batch of a batchable model whose config says none; 0: never batched",
        },
    )
    runtimes: tuple[str, ...] = field(
        default=("onnx",), metadata={"help": "enabled runtimes; a model that needs another one is refused"}
    )
    auto_device: str = field(
        default="cpu", metadata={"choices": ("cpu", "cuda"), "help": "device of instance groups of KIND_AUTO"}
    )
    firewall: FirewallConfig = field(
        default_factory=FirewallConfig, metadata={"help": "what a graph may hold before a runtime sees it"}
    )
