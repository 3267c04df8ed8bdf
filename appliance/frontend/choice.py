"""Which front door serves, and the making of it: a door is imported only when it is the one."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import fields
from importlib.util import find_spec
from typing import Final

from appliance.config.control import ControlConfig
from appliance.config.grpc import DoorConfig, DoorKind
from appliance.config.listening import OWN_USER, inherits
from appliance.config.quotas import QuotasConfig
from appliance.domain.errors import OperatorError
from appliance.engine.fastpath.direct import DirectEngine
from appliance.engine.port import EnginePort
from appliance.frontend.grpc.control import ControlHandlers, ModelControl
from appliance.frontend.grpc.door import FrontDoor, LogControl
from appliance.frontend.native.package import PACKAGE, native_problem
from appliance.frontend.quota.quotas import Quotas
from appliance.frontend.quota.rule import Registry
from appliance.telemetry.trace import Tracer
from appliance.workers.port import LaneMemory

NATIVE_ONLY: Final = frozenset(
    {
        "max_messages_bytes",
        "max_connections",
        "max_connections_per_peer",
        "body_stall_s",
        "write_stall_s",
        "max_resets_per_10s",
        "max_control_frames_per_10s",
    }
)
"""Settings that the gRPC library has no means to keep."""


def chosen(kind: DoorKind) -> DoorKind:
    """NATIVE or GRPCIO for ``kind``. Raises OperatorError when the native door is asked for and cannot be used."""
    if kind is DoorKind.GRPCIO:
        return kind
    problem = native_problem()
    if kind is DoorKind.NATIVE and problem:
        raise OperatorError(f"the native door cannot be used: {problem}")
    return DoorKind.GRPCIO if problem else DoorKind.NATIVE


def passed_over(kind: DoorKind) -> str:
    """Why AUTO does not take a native door that is installed; empty when it takes it or there is none."""
    return native_problem() if kind is DoorKind.AUTO and find_spec(PACKAGE) else ""


def door_problems(config: DoorConfig) -> Iterator[tuple[str, str]]:
    """Keys of the ``[grpc]`` section that ask for what the door that would serve here cannot do, and why."""
    problem = native_problem()
    if config.door is not DoorKind.GRPCIO and not problem:
        return
    if config.door is DoorKind.NATIVE:
        yield "door", f"the native door cannot be used: {problem}"
        return
    native = (
        "the native door does" if config.door is DoorKind.GRPCIO else f"the native door does, but {problem}"
    )
    for address in filter(inherits, config.addresses):
        yield "addresses", f"'{address}': the grpcio door takes over no sockets; {native}"
    if config.tls_certificate:
        yield "tls_certificate", f"the grpcio door speaks no TLS; {native}"


def front_problems(config: DoorConfig) -> Iterator[str]:
    """What keeps the native door from listening for HTTP."""
    if config.door is DoorKind.GRPCIO:
        yield "grpc.door is grpcio, and only the native door can listen for HTTP"
    elif problem := native_problem():
        yield f"the native door cannot be used: {problem}"
    elif not config.addresses:
        yield "grpc.addresses is empty, so that no door is open that could listen for HTTP"


def idle_settings(config: DoorConfig, kind: DoorKind) -> Iterator[str]:
    """Keys that were set and that a door of ``kind`` does not keep."""
    if kind is DoorKind.GRPCIO:
        for each in fields(config):
            if each.name in NATIVE_ONLY and getattr(config, each.name) != each.default:
                yield each.name


def lane_memory(kind: DoorKind) -> Callable[[], LaneMemory] | None:
    """What makes the memory that a door of ``kind`` shares with a worker; None when it shares none."""
    if kind is not DoorKind.NATIVE:
        return None
    from appliance.frontend.native.front_end import LaneMemory as Memory

    return Memory


def make_door(
    kind: DoorKind,
    engine: EnginePort,
    config: DoorConfig,
    log: LogControl,
    failed: Callable[[BaseException], None],
    direct: DirectEngine | None = None,
    tracer: Tracer | None = None,
    quotas: Quotas | None = None,
) -> FrontDoor:
    """A door of ``kind``, which is not AUTO, in front of ``engine``. ``failed`` is called when a door with a thread of
    its own loses that: nothing is served any more. A native door serves by itself what ``direct`` grants it.
    ``tracer`` traces some of what the door asks of the engine; ``quotas`` are what ``make_quotas`` made for it."""
    if kind is DoorKind.NATIVE:
        from appliance.frontend.native.front_end import NativeDoor

        return NativeDoor(engine, config, log, failed, direct, tracer, quotas)
    from appliance.frontend.grpc.grpcio_door import GrpcioDoor

    return GrpcioDoor(engine, config, log, tracer, quotas=quotas)


def make_quotas(kind: DoorKind, config: QuotasConfig, report: Callable[..., None]) -> Quotas:
    """What clients may ask of all edges, kept where a door of ``kind`` can ask it for each request; ``report`` writes a
    line of the log."""
    if kind is DoorKind.NATIVE:
        from appliance.frontend.native.quotas import native_quotas

        return native_quotas(config, report)
    return Quotas(Registry(), config, time.monotonic_ns, report)


def make_control_door(
    engine: EnginePort, config: ControlConfig, log: LogControl, control: ModelControl
) -> FrontDoor | None:
    """The operator's door, at which models can be loaded and unloaded; None when it is off."""
    if not config.socket:
        return None
    from appliance.frontend.grpc.grpcio_door import GrpcioDoor

    doors = DoorConfig(
        addresses=(f"unix:{config.socket}",),
        unix_mode=OWN_USER,
        max_message_bytes=config.max_message_bytes,
        max_messages_bytes=max(config.max_message_bytes, DoorConfig().max_messages_bytes),
    )
    return GrpcioDoor(engine, doors, log, control=ControlHandlers(control))
