"""A way to a server that breaks after so many bytes."""

from __future__ import annotations

import socket
import struct
import threading
from contextlib import suppress
from multiprocessing.connection import wait
from types import TracebackType
from typing import Self

PIECE = 1 << 14
NO_LINGER = struct.pack("ii", 1, 0)


class CutProxy:
    """Takes one connection and carries it to ``address`` until the client has sent ``limit`` bytes. Then both ends are
    closed, or, with ``reset``, aborted; with ``stall`` nothing moves until the end of the block."""

    def __init__(self, address: str, limit: int, *, reset: bool = False, stall: bool = False) -> None:
        host, port = address.rsplit(":", 1)
        self._target = (host, int(port))
        self._left = limit
        self._reset = reset
        self._over = threading.Event()
        if not stall:
            self._over.set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._carry, daemon=True)

    def _carry(self) -> None:
        client, _ = self._listener.accept()
        self._listener.close()  # who comes again is refused
        with client, socket.create_connection(self._target) as server:
            with suppress(OSError):
                while self._left and self._step(client, server):
                    pass
            self._over.wait()
            if self._reset:
                for end in (client, server):
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)

    def _step(self, client: socket.socket, server: socket.socket) -> bool:
        """Carry what there is; false when one of them has closed."""
        ready = wait([client, server])
        for end in filter(ready.__contains__, (client, server)):
            piece = end.recv(min(PIECE, self._left) if end is client else PIECE)
            if not piece:
                return False
            if end is client:
                self._left -= len(piece)
            (server if end is client else client).sendall(piece)
        return True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join(30.0)
        assert not self._thread.is_alive(), "nobody came, or nobody went"
