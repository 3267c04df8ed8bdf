"""The whole configuration as one frozen tree; each component is given its own section."""

from __future__ import annotations

from dataclasses import dataclass, field

from appliance.config.daemon import ControlConfig, DaemonConfig
from appliance.config.engine import EngineConfig, ResidencyConfig, SchedulingConfig
from appliance.config.fleet import FleetConfig
from appliance.config.grpc import GrpcConfig
from appliance.config.http import HttpConfig
from appliance.config.listening import FrontEndConfig
from appliance.config.quotas import QuotasConfig
from appliance.config.repository import ReloadConfig, RepositoryConfig
from appliance.config.shared_memory import SharedMemoryConfig
from appliance.config.store import PackagesConfig, StoreConfig
from appliance.config.swap import SwapConfig
from appliance.config.telemetry import LogConfig, MetricsConfig, TraceConfig
from appliance.config.workers import ArenaConfig, PlacementConfig, RestartConfig, WorkersConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceConfig:
    """Everything an operator may set. ``models`` and ``state_dir`` are relative to the working directory."""

    models: str = field(
        default="models",
        metadata={"help": "directory that holds NAME/VERSION/model.onnx"},
    )
    state_dir: str = field(
        default="",
        metadata={
            "help": "serve the store in this directory, which 'appliance model install' fills, in the place of models"
        },
    )
    daemon: DaemonConfig = field(default_factory=DaemonConfig, metadata={"help": "stopping"})
    reload: ReloadConfig = field(
        default_factory=ReloadConfig, metadata={"help": "models that change while the appliance runs"}
    )
    control: ControlConfig = field(
        default_factory=ControlConfig, metadata={"help": "the local operator's socket"}
    )
    repository: RepositoryConfig = field(
        default_factory=RepositoryConfig, metadata={"help": "reading the model directory"}
    )
    packages: PackagesConfig = field(
        default_factory=PackagesConfig, metadata={"help": "which model packages may be installed"}
    )
    store: StoreConfig = field(default_factory=StoreConfig, metadata={"help": "the store of model versions"})
    frontend: FrontEndConfig = field(
        default_factory=FrontEndConfig, metadata={"help": "what listens for gRPC and HTTP"}
    )
    grpc: GrpcConfig = field(default_factory=GrpcConfig, metadata={"help": "gRPC"})
    http: HttpConfig = field(default_factory=HttpConfig, metadata={"help": "HTTP"})
    quotas: QuotasConfig = field(
        default_factory=QuotasConfig,
        metadata={"help": "how much each client may ask, over gRPC and HTTP together"},
    )
    shared_memory: SharedMemoryConfig = field(
        default_factory=SharedMemoryConfig,
        metadata={"help": "tensors in shared memory of clients on this machine"},
    )
    engine: EngineConfig = field(default_factory=EngineConfig, metadata={"help": "deadlines and shapes"})
    scheduling: SchedulingConfig = field(
        default_factory=SchedulingConfig, metadata={"help": "queues and planning"}
    )
    placement: PlacementConfig = field(
        default_factory=PlacementConfig, metadata={"help": "which models share a worker process"}
    )
    restart: RestartConfig = field(default_factory=RestartConfig, metadata={"help": "crashing workers"})
    swap: SwapConfig = field(default_factory=SwapConfig, metadata={"help": "versions that replace others"})
    residency: ResidencyConfig = field(
        default_factory=ResidencyConfig, metadata={"help": "which models are in memory"}
    )
    workers: WorkersConfig = field(default_factory=WorkersConfig, metadata={"help": "worker processes"})
    arena: ArenaConfig = field(
        default_factory=ArenaConfig, metadata={"help": "shared memory between daemon and workers"}
    )
    metrics: MetricsConfig = field(default_factory=MetricsConfig, metadata={"help": "Prometheus metrics"})
    trace: TraceConfig = field(
        default_factory=TraceConfig, metadata={"help": "traces of single requests, for OpenTelemetry"}
    )
    log: LogConfig = field(default_factory=LogConfig, metadata={"help": "the log"})
    fleet: FleetConfig = field(
        default_factory=FleetConfig, metadata={"help": "the link to a controller ('appliance sync')"}
    )

    @property
    def place(self) -> str:
        """Where the models are, for people."""
        return self.state_dir or self.models
