"""The whole configuration: one frozen tree, read once from a TOML file. Each component is given its own section.

The sections are defined beside the components that use them. Composition only: imported by the daemon and the command
line, and by nothing below them.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from appliance.binding import bind
from appliance.door.door import DoorConfig
from appliance.engine.placement import PlacementConfig
from appliance.engine.settings import EngineConfig
from appliance.engine.supervisor import SupervisorConfig
from appliance.errors import ConfigInvalid, Problem
from appliance.http.config import HttpConfig
from appliance.repository.directory import RepositoryConfig
from appliance.scheduling.settings import SchedulingConfig
from appliance.telemetry.log import LogConfig
from appliance.telemetry.prometheus import MetricsConfig
from appliance.workers.arena import ArenaConfig
from appliance.workers.pool import WorkersConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DaemonConfig:
    """How the daemon stops."""

    drain_grace_s: float = field(
        default=25.0,
        metadata={"min": 0, "unit": "s", "help": "how long accepted requests may take after SIGTERM"},
    )
    drain_notice_s: float = field(
        default=1.0,
        metadata={"min": 0, "unit": "s", "help": "how long to go on serving after health turned NOT_SERVING"},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceConfig:
    """Everything an operator may set. ``models`` is relative to the working directory."""

    models: str = field(default="models", metadata={"help": "directory that holds NAME/VERSION/model.onnx"})
    daemon: DaemonConfig = field(default_factory=DaemonConfig, metadata={"help": "stopping"})
    repository: RepositoryConfig = field(
        default_factory=RepositoryConfig, metadata={"help": "reading the model directory"}
    )
    grpc: DoorConfig = field(default_factory=DoorConfig, metadata={"help": "the gRPC door"})
    http: HttpConfig = field(default_factory=HttpConfig, metadata={"help": "the HTTP edge"})
    engine: EngineConfig = field(default_factory=EngineConfig, metadata={"help": "deadlines and shapes"})
    scheduling: SchedulingConfig = field(
        default_factory=SchedulingConfig, metadata={"help": "queues and planning"}
    )
    placement: PlacementConfig = field(
        default_factory=PlacementConfig, metadata={"help": "which models share a worker process"}
    )
    supervisor: SupervisorConfig = field(
        default_factory=SupervisorConfig, metadata={"help": "crashing workers"}
    )
    workers: WorkersConfig = field(default_factory=WorkersConfig, metadata={"help": "worker processes"})
    arena: ArenaConfig = field(
        default_factory=ArenaConfig, metadata={"help": "shared memory between daemon and workers"}
    )
    metrics: MetricsConfig = field(default_factory=MetricsConfig, metadata={"help": "Prometheus metrics"})
    log: LogConfig = field(default_factory=LogConfig, metadata={"help": "the log"})


def load(path: Path) -> ApplianceConfig:
    """Read ``path``; raises ConfigInvalid with everything that is wrong in it."""
    return parse(_text(path), str(path))


def parse(text: str, file: str) -> ApplianceConfig:
    """Read TOML ``text``; ``file`` is named in problems. Raises ConfigInvalid."""
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigInvalid([Problem(file=file, key="", text=f"is not TOML: {error}")]) from error
    return bind(ApplianceConfig, table, file)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigInvalid([Problem(file=str(path), key="", text=f"cannot be read: {reason}")]) from error
