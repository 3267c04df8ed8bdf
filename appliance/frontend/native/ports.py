"""A port of the native front end: the sockets that it listens on and the certificates that it shows.

Both are opened here; the server in Rust takes the sockets over.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar

from edge_appliance_native import Tls

from appliance.config.grpc import GrpcConfig
from appliance.config.http import HttpConfig
from appliance.domain.errors import AddressUnavailable, OperatorError
from appliance.frontend.listening.certificates import Certificates, read_certificates, reread_certificates
from appliance.frontend.listening.sockets import Listeners, inherited, unix_access
from appliance.frontend.native.kept import KeptSockets, plain

T = TypeVar("T")


class NativePort:
    """The port of a ``section`` of the configuration, on sockets that were ``kept`` where there are some. ``protocol``
    is what it speaks over TLS, for clients that ask (ALPN), if not HTTP/2. Owner: the event loop's thread."""

    def __init__(
        self,
        section: str,
        config: GrpcConfig | HttpConfig,
        kept: KeptSockets,
        *,
        protocol: str = "",
        dual_stack: bool = True,
    ) -> None:
        self._section = section
        self._config = config
        self._protocol = (protocol,) if protocol else ()
        self._kept = kept
        self._listeners = Listeners(section, dual_stack=dual_stack, kept=kept.take)
        self._tls: Tls | None = None

    def open(self, take: Callable[[list[int], Tls | None], T]) -> tuple[tuple[str, ...], T]:
        """Listen; gives the addresses as bound, and what ``take`` makes of the descriptors, which are its own unless it
        raises, and of TLS where that is on. Raises AddressUnavailable, and OperatorError for certificates that cannot
        be used."""
        config = self._config
        certificates = read_certificates(config, self._section) if config.addresses else None
        try:
            bound = self._listen()
        except AddressUnavailable:
            if not self._kept.let_go():
                raise
            bound = self._listen()  # what was kept is of another configuration, and was in the way
        self._kept.keep(self._listeners.fixed)
        try:
            if certificates is not None:
                self._tls = Tls(*certificates, config.tls_client_names, *self._protocol)
            taken = self._listeners.hand_over(lambda listeners: take(listeners, self._tls))
        except (OSError, ValueError) as error:
            self.close()
            raise OperatorError(f"the native front end cannot be opened: {error}") from error
        return bound, taken

    def admit(self, take: Callable[[list[int]], None]) -> None:
        """The same for inherited sockets, which ``open`` left alone. Raises OperatorError."""
        try:
            self._listeners.hand_over_inherited(take)
        except OSError as error:
            raise OperatorError(f"the native front end cannot take over the sockets: {error}") from error

    async def reload(self) -> str | None:
        """Show the certificates as they are now from the next connection on; see ``reread_certificates``."""
        return await reread_certificates(self._config, self._section, self._show) if self._tls else None

    def close(self) -> None:
        """Close what was not handed over; what was is closed already. May be called twice."""
        self._listeners.close()

    def _listen(self) -> tuple[str, ...]:
        return self._listeners.open(
            self._config.addresses,
            plain(inherited(os.environ, os.getpid())),
            reuse_port=self._config.reuse_port,
            access=unix_access(self._config.unix_mode, self._config.unix_group),
        )

    def _show(self, certificates: Certificates) -> None:
        assert self._tls is not None
        try:
            self._tls.reload(*certificates)
        except ValueError as error:
            raise OperatorError(f"the native front end refuses the certificates: {error}") from error
