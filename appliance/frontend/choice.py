"""Which front end serves, what that one cannot keep, and the making of it: one is imported only when it is the one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields, replace
from importlib.util import find_spec
from types import MappingProxyType
from typing import Final, Protocol

from appliance.config.daemon import ControlConfig
from appliance.config.grpc import GrpcConfig
from appliance.config.listening import OWN_USER, FrontEndKind, inherits
from appliance.config.quotas import QuotasConfig
from appliance.config.tree import ApplianceConfig
from appliance.domain.address import UNIX
from appliance.domain.binding import as_far
from appliance.domain.errors import OperatorError
from appliance.engine.fastpath.direct import DirectEngine
from appliance.frontend.grpc.control import ControlHandlers, ModelControl
from appliance.frontend.native.package import PACKAGE, native_problem
from appliance.frontend.port import Backend, FrontEnd
from appliance.frontend.quotas import Quotas
from appliance.workers.port import LaneMemory

NATIVE_ONLY: Final[Mapping[str, frozenset[str]]] = MappingProxyType(
    {
        "grpc": frozenset(
            {
                "tls_client_names",
                "max_messages_bytes",
                "max_connections",
                "max_connections_per_peer",
                "body_stall_s",
                "write_stall_s",
            }
        ),
        "http": frozenset({"tls_client_names", "max_connections_per_peer"}),
        "quotas": frozenset({"requests_per_s", "burst", "in_flight", "clients"}),
        "engine": frozenset({"lease_limit", "lease_slots"}),
    }
)
"""Settings, by section, that the libraries of the Python front end have no means to keep."""


def chosen(kind: FrontEndKind) -> FrontEndKind:
    """NATIVE or PYTHON for ``kind``. Raises OperatorError when the native one is asked for and cannot be used."""
    if kind is FrontEndKind.PYTHON:
        return kind
    problem = native_problem()
    if kind is FrontEndKind.NATIVE and problem:
        raise OperatorError(f"the native front end cannot be used: {problem}")
    return FrontEndKind.PYTHON if problem else FrontEndKind.NATIVE


def passed_over(kind: FrontEndKind) -> str:
    """Why AUTO does not take a native front end that is installed; empty when it takes it or there is none."""
    return native_problem() if kind is FrontEndKind.AUTO and find_spec(PACKAGE) else ""


def front_end_problems(config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    """Keys that ask for what the front end that would serve here cannot do, why, and the way out."""
    kind, problem = config.frontend.kind, native_problem()
    if kind is not FrontEndKind.PYTHON and not problem:
        return
    if kind is FrontEndKind.NATIVE:
        yield "frontend.kind", f"the native front end cannot be used: {problem}"
        return
    way_out = (
        "set frontend.kind to native, or remove this setting"
        if kind is FrontEndKind.PYTHON
        else f"that cannot be used: {problem}; install it, or remove this setting"
    )
    for section in ("grpc", "http"):
        for address in as_far(_inherited(config, section)):
            yield (
                f"{section}.addresses",
                f"'{address}': only the native front end takes over sockets; {way_out}",
            )
    for section, keys in NATIVE_ONLY.items():
        for key in _said(config, section, keys):
            yield f"{section}.{key}", f"only the native front end keeps it; {way_out}"


def _inherited(config: ApplianceConfig, section: str) -> Iterator[str]:
    yield from filter(inherits, getattr(config, section).addresses)


def region_problems(config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    """Users of shared memory, where none of them can be told by the address that they come to."""
    native = config.frontend.kind is not FrontEndKind.PYTHON and not native_problem()
    tells = [*config.http.addresses, *(config.grpc.addresses if native else ())]
    if config.shared_memory.users and not any(
        each.startswith(f"{UNIX}:") or inherits(each) for each in tells
    ):
        text = (
            "nobody can hand over a region: whose a connection is the kernel tells of Unix sockets alone; add an "
            "address unix:/path to http.addresses, or to grpc.addresses with the native front end"
        )
        yield "shared_memory.users", text


def _said(config: ApplianceConfig, section: str, keys: frozenset[str]) -> Iterator[str]:
    """Those of ``keys`` that ask for something."""
    for name in sorted(keys):
        yield from as_far(_if_said(config, section, name))


def _if_said(config: ApplianceConfig, section: str, name: str) -> Iterator[str]:
    found = getattr(config, section)
    value = getattr(found, name)
    (default,) = [each.default for each in fields(found) if each.name == name]
    if value != ({} if name == "clients" else default) and not (name == "lease_limit" and not value):
        yield name


def lane_memory(kind: FrontEndKind) -> Callable[[], LaneMemory] | None:
    """What makes the memory that a front end of ``kind`` shares with a worker; None when it shares none."""
    if kind is not FrontEndKind.NATIVE:
        return None
    from appliance.frontend.native.front_end import LaneMemory as Memory

    return Memory


def make_quotas(kind: FrontEndKind, config: QuotasConfig, report: Callable[..., None]) -> Quotas | None:
    """What clients may ask over gRPC and HTTP, where a front end of ``kind`` keeps that; ``report`` writes a line of
    the log."""
    if kind is not FrontEndKind.NATIVE:
        return None
    from appliance.frontend.native.front_end import native_quotas

    return native_quotas(config, report)


def make_front_end(
    kind: FrontEndKind,
    backend: Backend,
    config: ApplianceConfig,
    failed: Callable[[BaseException], None],
    direct: DirectEngine,
    quotas: Quotas | None,
) -> FrontEnd:
    """A front end of ``kind``, which is not AUTO. ``failed`` is called when one with a thread of its own loses that:
    nothing is served any more. The native one serves by itself what ``direct`` leases to it; ``quotas`` are what
    ``make_quotas`` made for it."""
    if kind is FrontEndKind.NATIVE:
        from appliance.frontend.native.front_end import NativeFrontEnd

        assert quotas is not None, "the native front end asks quotas"
        return NativeFrontEnd(backend, config.grpc, config.http, quotas, failed, direct)
    from appliance.frontend.python import PythonFrontEnd

    return PythonFrontEnd(backend, config.grpc, config.http)


class ControlSocket(Protocol):
    """The operator's server, at which models can be loaded and unloaded."""

    async def open(self) -> tuple[str, ...]:
        """Listen. Raises AddressUnavailable."""

    async def close(self) -> None:
        """Close at once what is still open. May be called twice, and without ``open``."""


def make_control_socket(
    backend: Backend, config: ControlConfig, control: ModelControl
) -> ControlSocket | None:
    """The operator's server; None when it is off."""
    if not config.socket:
        return None
    from appliance.frontend.grpc.server import GrpcServer

    settings = GrpcConfig(
        addresses=(f"unix:{config.socket}",),
        unix_mode=OWN_USER,
        max_message_bytes=config.max_message_bytes,
        max_messages_bytes=max(config.max_message_bytes, GrpcConfig().max_messages_bytes),
    )
    return GrpcServer(replace(backend, tracer=None), settings, ControlHandlers(control))
