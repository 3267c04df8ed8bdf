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
    max_config_bytes: int = field(
        default=1 << 20,
        metadata={"min": 1, "max": 1 << 28, "unit": "bytes", "help": "largest config.pbtxt that is read"},
    )
    max_label_bytes: int = field(
        default=4 << 20,
        metadata={"min": 1, "max": 1 << 28, "unit": "bytes", "help": "largest label file that is read"},
    )
    max_models: int = field(
        default=10_000,
        metadata={"min": 1, "max": 1_000_000, "help": "most model directories in the repository"},
    )
    max_versions: int = field(
        default=1_000, metadata={"min": 1, "max": 100_000, "help": "most version directories of one model"}
    )
    max_instances: int = field(
        default=64, metadata={"min": 1, "max": 4_096, "help": "most worker processes of one model version"}
    )
    firewall: FirewallConfig = field(
        default_factory=FirewallConfig, metadata={"help": "what a graph may hold before a runtime sees it"}
    )
