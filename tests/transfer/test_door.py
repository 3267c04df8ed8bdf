"""The door of who serves many: one address takes no more than its share, whatever it does with it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack, ExitStack, closing
from pathlib import Path
from types import SimpleNamespace

import pytest

from appliance.config.fleet import FleetConfig
from appliance.sync.neighbours import AT_ONCE_MAX, offering
from appliance.transfer.door import Door, doors

Call = Callable[[str], socket.socket]


@pytest.fixture
def door() -> Iterator[Door]:
    with Door(socket.create_server(("127.0.0.1", 0)), 3) as found:
        yield found


@pytest.fixture
def call(door: Door) -> Iterator[Call]:
    """Connect from an address."""
    with ExitStack() as stack:
        yield lambda source: stack.enter_context(
            socket.create_connection(door.getsockname(), 30, source_address=(source, 0))
        )


def test_an_address_has_its_share_and_others_have_theirs(door: Door, call: Call) -> None:
    inside = []
    for _ in range(3):
        call("127.0.0.1")
        inside.append(door.accept()[0])
    sent_away = call("127.0.0.1")
    with pytest.raises(ConnectionAbortedError):
        door.accept()
    assert sent_away.recv(1) == b""
    call("127.0.0.2")
    inside.append(door.accept()[0])
    for _ in range(2):
        inside[0].close()
    call("127.0.0.1")
    inside.append(door.accept()[0])
    call("127.0.0.1")
    with pytest.raises(ConnectionAbortedError):
        door.accept()
    for each in inside:
        each.close()
    assert not door._inside


def test_every_address_of_a_name_has_a_door() -> None:
    with ExitStack() as stack:
        found = [stack.enter_context(each) for each in doors("127.0.0.1", 0, 1)]
        assert [each.getsockname()[0] for each in found] == ["127.0.0.1"]
        port = found[0].getsockname()[1]
        with pytest.raises(OSError, match="in use"):
            doors("127.0.0.1", port, 1)


async def test_a_neighbour_takes_few_connections_of_a_box_s(tmp_path: Path) -> None:
    with closing(socket.create_server(("127.0.0.1", 0))) as found:
        place = "{}:{}".format(*found.getsockname())
    box = SimpleNamespace(
        settings=SimpleNamespace(state=tmp_path, fleet=FleetConfig(neighbour_address=place))
    )
    (tmp_path / "fleet").mkdir()
    host, _, port = place.partition(":")
    async with offering(box), AsyncExitStack() as stack:  # type: ignore[arg-type]
        for number in range(AT_ONCE_MAX + 1):
            reader, writer = await asyncio.open_connection(host, int(port))
            stack.callback(writer.close)
            if number < AT_ONCE_MAX:
                writer.write(b"GET / HTTP/1.1\r\nHost: n\r\n\r\n")
                assert (await reader.readline()).startswith(b"HTTP/1.1 404 ")
        assert await reader.read() == b""
