"""What is served and how it is read: the sections ``[repository]``, with its firewall, and ``[reload]``."""

from __future__ import annotations

from dataclasses import dataclass, field

from appliance.domain.device import Device, DeviceKind
from appliance.domain.device_wish import DeviceWish


@dataclass(frozen=True, slots=True, kw_only=True)
class FirewallConfig:
    """Caps are far above real models and far below what hurts the daemon that reads them.

    ``domains`` are operator sets whose code is part of the runtime that is shipped here: ONNX's own ("" ), its
    classical machine learning, and ONNX Runtime's contrib operators, which its optimiser and quantiser write, with
    their blocked-layout twin. Everything else needs a library from elsewhere, or trains. A domain of functions that the
    model itself brings along needs no permission."""

    domains: tuple[str, ...] = field(
        default=("", "ai.onnx.ml", "com.microsoft", "com.microsoft.nchwc"),
        metadata={"help": 'operator domains that a graph may use; "" is the standard one'},
    )
    max_weight_bytes: int = field(
        default=256 << 30,
        metadata={"min": 1, "max": 1 << 48, "unit": "bytes", "help": "most bytes of tensors in all"},
    )
    max_expanded_bytes: int = field(
        default=1 << 31,
        metadata={
            "min": 0,
            "max": 1 << 48,
            "unit": "bytes",
            "help": "most bytes of tensors beyond those that the files hold: sparse ones dense, functions copied",
        },
    )
    max_nodes: int = field(
        default=500_000,
        metadata={"min": 1, "max": 4_000_000, "help": "most nodes, with all functions expanded"},
    )
    max_tensors: int = field(
        default=100_000,
        metadata={
            "min": 1,
            "max": 1_000_000,
            "help": "most tensors, initializers and attributes alike, with all functions expanded",
        },
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class RepositoryConfig:
    """How model directories are read. ``runtimes`` are those enabled; ``auto_device`` is where an instance group of
    KIND_AUTO runs: who runs models puts "cpu" or "cuda" in the place of "auto" first (SettledRepository), and who only
    judges them need not."""

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
        default="auto",
        metadata={
            "choices": ("auto", "cpu", "cuda"),
            "help": "device of instance groups of KIND_AUTO; auto: a GPU where one can be used at the start",
        },
    )
    firewall: FirewallConfig = field(
        default_factory=FirewallConfig, metadata={"help": "what a graph may hold before a runtime sees it"}
    )

    def auto_kind(self, wish: DeviceWish) -> DeviceKind:
        """Where an instance group of KIND_AUTO runs that asks for ``wish`` of a GPU."""
        return DeviceKind.CUDA if self.auto_device == DeviceKind.CUDA.value else DeviceKind.CPU


@dataclass(frozen=True, slots=True, kw_only=True)
class SettledRepository(RepositoryConfig):
    """The section once "auto" has been decided (``appliance.runtimes.auto_device``): by ``gpus``, all of this machine,
    of which ``usable`` can be used. What an operator set is decided by none, and counts for whatever is asked for.
    ``unused`` is why none of those is used that are sound, and what to do; "" where that is not so."""

    gpus: tuple[Device, ...] = ()
    usable: tuple[Device, ...] = ()
    unused: str = ""

    def auto_kind(self, wish: DeviceWish) -> DeviceKind:
        """As the section's; the processor, where none of the GPUs that can be used is what is asked for."""
        if self.gpus and not any(device in self.usable for device in wish.among(self.gpus)):
            return DeviceKind.CPU
        return RepositoryConfig.auto_kind(self, wish)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReloadConfig:
    """When models are looked at again. With ``watch`` off only SIGHUP does it."""

    watch: bool = field(
        default=True, metadata={"help": "serve new, changed and removed versions without being told"}
    )
    quiet_ms: int = field(
        default=1_000,
        metadata={
            "min": 10,
            "max": 3_600_000,
            "unit": "ms",
            "help": "how long a model's files must have been left alone before they are read: a copy under way "
            "must not pause for longer; renaming complete files into place is always safe",
        },
    )
    poll_s: float = field(
        default=30.0,
        metadata={
            "min": 0.1,
            "max": 86_400,
            "unit": "s",
            "help": "how often to look without having been notified: network file systems send no notices",
        },
    )
