"""Sockets that the service manager keeps while this process starts anew: who connects meanwhile waits for it.

What listens on a fixed TCP port is given to it (``FDSTORE=1`` of sd_notify(3), which ``FileDescriptorStoreMax=`` of the
unit allows), and comes back in the next process among the inherited ones, under a name that says where it listens.
"""

from __future__ import annotations

import os
import select
import socket
from collections.abc import Iterable
from typing import Final

from appliance.frontend.listening.sockets import Inherited
from appliance.telemetry.notify import notify

MANAGER_S: Final = 5.0
_PREFIX: Final = "kept."


class KeptSockets:
    """Those that this process was given, until they are taken or let go. Owner: the event loop's thread."""

    def __init__(self, given: Iterable[Inherited]) -> None:
        self._left: dict[str, socket.socket] = {}
        self._taken: set[str] = set()
        for each in given:
            if each.name.startswith(_PREFIX):
                os.set_inheritable(each.descriptor, False)
                self._left[each.name] = socket.socket(fileno=each.descriptor)

    def take(self, address: str) -> socket.socket | None:
        """The one that listens at ``address``, as ``Listeners`` tells where it is bound; None where there is none."""
        name = _name(address)
        found = self._left.pop(name, None)
        if found is not None:
            self._taken.add(name)
            found.setblocking(False)
        return found

    def keep(self, listeners: Iterable[tuple[str, socket.socket]]) -> None:
        """Have these kept from now on, each with the address where it is bound."""
        for address, listener in listeners:
            if _name(address) not in self._taken:
                notify((listener.fileno(),), FDSTORE="1", FDNAME=_name(address))

    def let_go(self) -> bool:
        """Have all of them closed that are not handed over yet, and kept no longer; gives whether there were any. They
        may be in the way of who is to listen elsewhere, so it waits until the service manager has done so."""
        names = {*self._left, *self._taken}
        for each in self._left.values():
            each.close()
        self._left.clear()
        self._taken.clear()
        for name in names:
            notify(FDSTOREREMOVE="1", FDNAME=name)
        if names:
            _wait_for_manager()
        return bool(names)

    def end(self) -> None:
        """Let those go that nobody took: they listen where nobody is to listen any more."""
        for name, each in self._left.items():
            each.close()
            notify(FDSTOREREMOVE="1", FDNAME=name)
        self._left.clear()


def plain(given: Iterable[Inherited]) -> tuple[Inherited, ...]:
    """Those that a unit of sockets opened."""
    return tuple(each for each in given if not each.name.startswith(_PREFIX))


def _name(address: str) -> str:
    return _PREFIX + address.replace(":", "_")


def _wait_for_manager() -> None:
    """Until it has read all that it was told, which it shows by closing what it is sent last; not for one that does not
    read."""
    reading, writing = os.pipe2(os.O_CLOEXEC)
    try:
        notify((writing,), BARRIER="1")
    finally:
        os.close(writing)
    closing = select.poll()
    closing.register(reading, select.POLLIN)
    closing.poll(MANAGER_S * 1000)
    os.close(reading)
