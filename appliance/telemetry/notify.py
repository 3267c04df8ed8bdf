"""Tell the service manager how the daemon is: the sd_notify datagram protocol, without its library.

Does nothing unless ``NOTIFY_SOCKET`` is set. Source of the protocol: the sd_notify(3) manual page.
"""

from __future__ import annotations

import os
import socket
from array import array
from collections.abc import Sequence


def notify(descriptors: Sequence[int] = (), /, **fields: str) -> None:
    """Send fields such as ``READY="1"``, ``STATUS="..."``, ``STOPPING="1"``, and copies of descriptors with them. Never
    raises: a service manager that does not listen must not stop the service."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return
    if address.startswith("@"):
        address = "\0" + address[1:]
    message = "\n".join(f"{key}={value}" for key, value in fields.items())
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as channel:
            channel.settimeout(1.0)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array("i", descriptors))] if descriptors else []
            channel.sendmsg([message.encode()], rights, 0, address)
    except OSError:
        return
