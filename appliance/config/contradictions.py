"""Settings of different sections that cannot be had together. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.config.listening import shared_sockets
from appliance.config.quotas import certified_names
from appliance.config.tree import ApplianceConfig
from appliance.domain.address import named_twice


def contradictions(config: ApplianceConfig) -> Iterator[tuple[str, str]]:
    """Keys of such settings, and why."""
    if config.state_dir and config.models:
        yield "models", f"is '{config.models}', but state_dir is set, too; keep the one that shall be served"
    yield from (("arena.classes", text) for text in _too_small(config))
    if config.trace.one_in and not config.trace.file:
        yield "trace.file", "traces need a file; name one"
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


def _too_small(config: ApplianceConfig) -> Iterator[str]:
    """Requests that a front end lets in must fit once the arena is empty, else they are told for ever to come back."""
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
