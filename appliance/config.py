"""The whole configuration: one frozen tree, read once from a TOML file. Each component is given its own section.

The sections are defined beside the components that use them. Composition only: imported by the daemon and the command
line, and by nothing below them.
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import MappingProxyType
from typing import Final

from appliance.binding import bind
from appliance.core.scheduling.settings import SchedulingConfig
from appliance.domain.address import named_twice
from appliance.domain.errors import ConfigInvalid, Problem
from appliance.engine.control.placement import PlacementConfig
from appliance.engine.control.residency_settings import ResidencyConfig
from appliance.engine.control.supervisor import SupervisorConfig
from appliance.engine.control.swap_settings import SwapConfig
from appliance.engine.settings import EngineConfig
from appliance.frontend.choice import door_problems, front_problems
from appliance.frontend.grpc.control import ControlConfig
from appliance.frontend.grpc.door import DoorConfig
from appliance.frontend.http.config import HttpConfig, HttpNative
from appliance.frontend.listening.certificates import certificate_problems
from appliance.frontend.listening.settings import shared_sockets
from appliance.frontend.quota.settings import QuotasConfig, certified_names
from appliance.package.settings import PackagesConfig
from appliance.repository.directory import RepositoryConfig
from appliance.runtimes.runtime import known_runtimes
from appliance.sources.settings import ReloadConfig
from appliance.store.settings import StoreConfig
from appliance.telemetry.log import LogConfig, file_problems
from appliance.telemetry.metrics.process import MetricsConfig
from appliance.telemetry.trace import TraceConfig
from appliance.workers.arena import ArenaConfig
from appliance.workers.settings import WorkersConfig

Table = Mapping[str, object]

COMMAND_LINE: Final = "command line"
_NOTHING: Final[Table] = MappingProxyType({})


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


def directory_problems(models: str) -> Iterator[str]:
    """What keeps the model directory from being read; "" stands for none."""
    if not models:
        return
    try:
        with os.scandir(models):
            pass
    except (OSError, ValueError) as error:
        yield (
            f"'{models}' cannot be read: {_reason(error)}; give a directory that holds NAME/VERSION/model.onnx, "
            "or the state directory of a store (state_dir)"
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApplianceConfig:
    """Everything an operator may set. ``models`` and ``state_dir`` are relative to the working directory."""

    models: str = field(
        default="models",
        metadata={"help": "directory that holds NAME/VERSION/model.onnx", "check": directory_problems},
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
    grpc: DoorConfig = field(default_factory=DoorConfig, metadata={"help": "the gRPC door"})
    http: HttpConfig = field(default_factory=HttpConfig, metadata={"help": "the HTTP edge"})
    quotas: QuotasConfig = field(
        default_factory=QuotasConfig,
        metadata={"help": "how much each client may ask, over gRPC and HTTP together"},
    )
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

    @property
    def place(self) -> str:
        """Where the models are, for people."""
        return self.state_dir or self.models


def load(path: Path | None, overrides: Table = _NOTHING, *, checked: bool = True) -> ApplianceConfig:
    """What ``path`` says (None: nothing), with ``overrides`` in its place: a table of the same form, from the command
    line. ``checked`` also asks whether this machine can serve so. Raises ConfigInvalid with everything that is wrong.
    """
    file = "configuration" if path is None else str(path)
    said = _NOTHING if path is None else _beside(path.parent, _table(_text(path), file))
    try:
        return _bound(_one_source(_merged(said, overrides)), file, checked)
    except ConfigInvalid as error:
        raise ConfigInvalid(_placed(problem, overrides) for problem in error.problems) from None


def reload(path: Path | None, overrides: Table, section: str) -> ApplianceConfig:
    """As ``load``, for the sake of one ``section``: what is wrong elsewhere keeps nobody from what that one says.
    Raises ConfigInvalid with everything that is wrong if any of it concerns that section, or the file cannot be read.
    """
    try:
        return load(path, overrides)
    except ConfigInvalid as error:
        if any(problem.key.partition(".")[0] in ("", section) for problem in error.problems):
            raise
        try:
            return load(path, overrides, checked=False)
        except ConfigInvalid:
            raise error from None


def parse(text: str, file: str) -> ApplianceConfig:
    """Read TOML ``text``; ``file`` is named in problems. Asks nothing of this machine. Raises ConfigInvalid."""
    return _bound(_table(text, file), file, checked=False)


def _bound(table: Table, file: str, checked: bool) -> ApplianceConfig:
    config = bind(ApplianceConfig, table, file, checked=checked)
    if checked and (unfit := tuple(_unfit(config))):
        raise ConfigInvalid(Problem(file=file, key=key, text=text) for key, text in unfit)
    return config


def _unfit(config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    """Keys of settings that cannot be had together, or not on this machine, and why."""
    yield from _unfit_source(config)
    known = known_runtimes()
    for name in sorted(set(config.repository.runtimes) - set(known)):
        yield "repository.runtimes", f"no runtime '{name}' is installed; known here: {', '.join(known)}"
    yield from (("arena.classes", text) for text in _too_small(config))
    if config.trace.one_in:
        problems = (
            file_problems(config.trace.file) if config.trace.file else ("traces need a file; name one",)
        )
        yield from (("trace.file", text) for text in problems)
    if config.grpc.addresses:
        for key, text in (*door_problems(config.grpc), *certificate_problems(config.grpc)):
            yield f"grpc.{key}", text
    if config.http.addresses:
        yield from ((f"http.{key}", text) for key, text in certificate_problems(config.http))
    if shared_sockets(config.grpc.addresses, config.http.addresses):
        text = "grpc.addresses names the same sockets of the service manager; name them by FileDescriptorName= and"
        yield "http.addresses", f"{text} tell them apart, as in 'systemd:grpc' and 'systemd:http'"
    for address in named_twice((*config.grpc.addresses, *config.http.addresses)):
        key = "http" if address in config.http.addresses else "grpc"
        yield (
            f"{key}.addresses",
            f"'{address}' is named twice, and one socket listens there; name another one",
        )
    if not config.grpc.tls_client_ca and not config.http.tls_client_ca:
        for name in certified_names(config.quotas):
            text = "is no address, and only certificates tell names, for which tls_client_ca of [grpc] or [http] asks"
            yield f"quotas.clients.{name}", f"{text}; set one, or name an address, or unix"
    if config.http.addresses and config.http.native is HttpNative.ON:
        yield from (("http.native", f"is on, but {text}") for text in front_problems(config.grpc))


def _unfit_source(config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    if config.state_dir and config.models:
        yield "models", f"is '{config.models}', but state_dir is set, too; keep the one that shall be served"
    if config.state_dir and not os.path.isdir(config.state_dir):
        yield (
            "state_dir",
            f"'{config.state_dir}' is no directory; make it, or let 'appliance model install' do so",
        )


def _too_small(config: ApplianceConfig) -> Iterator[str]:
    """Requests that an edge lets in must fit once the arena is empty, else they are told for ever to come back."""
    room = config.arena.largest_bytes
    edges = (
        ("grpc.max_message_bytes", config.grpc.max_message_bytes, config.grpc.addresses),
        ("http.max_body_bytes", config.http.max_body_bytes, config.http.addresses),
    )
    for key, wanted, addresses in edges:
        if addresses and wanted > room:
            yield (
                f"one request gets at most {room} bytes, the lesser of the largest class and "
                f"arena.memory_limit_bytes, but {key} lets {wanted} bytes in; raise those or lower {key}"
            )


def _one_source(table: Table) -> Table:
    """Who names the store does not mean the default directory."""
    return {"models": "", **table} if table.get("state_dir") else table


def _merged(table: Table, overrides: Table) -> Table:
    merged = dict(table)
    for key, value in overrides.items():
        section = table.get(key, _NOTHING)
        if not isinstance(value, Mapping):
            merged[key] = value
        elif isinstance(section, Mapping):
            merged[key] = {**section, **value}
    return merged


def _beside(folder: Path, table: Table) -> Table:
    """The table with the files of keys where the configuration means them: relative to the ``folder`` it is in."""
    packages = table.get("packages")
    keys = packages.get("trusted_keys") if isinstance(packages, Mapping) else None
    if not isinstance(packages, Mapping) or not isinstance(keys, list):
        return table
    found = [str(folder / key) if isinstance(key, str) else key for key in keys]
    return {**table, "packages": {**packages, "trusted_keys": found}}


def _placed(problem: Problem, overrides: Table) -> Problem:
    """The problem with the command line named for what was said there."""
    section, _, key = problem.key.partition(".")
    over = overrides.get(section, _NOTHING)
    here = not isinstance(over, Mapping) or key.partition("[")[0] in over
    return replace(problem, file=COMMAND_LINE) if here else problem


def _table(text: str, file: str) -> Table:
    try:
        return tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigInvalid([Problem(file=file, key="", text=f"is not TOML: {error}")]) from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        text = f"cannot be read: {_reason(error)}"
        raise ConfigInvalid([Problem(file=str(path), key="", text=text)]) from error


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror if isinstance(error, OSError) else None) or str(error)
