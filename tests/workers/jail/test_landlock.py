"""Landlock by a real kernel: what is granted can be done, and nothing else."""

from __future__ import annotations

import os
import socket
import struct
import threading
from pathlib import Path
from typing import Any

import pytest

from appliance.process.calls import prctl
from appliance.workers.jail import landlock
from appliance.workers.jail.landlock import Grant
from tests.workers.jail.forked import (
    SUPPORT,
    in_fork,
    needs_landlock,
    needs_network_rules,
    needs_scopes,
    outcome,
)

NO_NEW_PRIVILEGES = 38
DENIED = "Permission denied"


def restrict(*grants: Grant, known: int = SUPPORT.landlock) -> None:
    prctl(NO_NEW_PRIVILEGES, 1)
    landlock.restrict(list(landlock.open_grants(grants)), known)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("mine", "others", "site"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text(name)
    return tmp_path


@needs_landlock
def test_only_what_is_granted_can_be_read(tree: Path) -> None:
    def tries() -> list[str]:
        restrict(Grant(str(tree / "mine")))
        return [
            outcome((tree / "mine/file").read_bytes),
            outcome(lambda: os.listdir(tree / "mine")),
            outcome((tree / "others/file").read_bytes),
            outcome(lambda: os.listdir(tree / "others")),
            outcome(lambda: os.listdir(tree)),
        ]

    assert in_fork(tries) == str(["done", "done", DENIED, DENIED, DENIED])


@needs_landlock
def test_what_may_be_read_may_not_be_written(tree: Path) -> None:
    def tries() -> set[str]:
        restrict(Grant(str(tree / "mine")))
        mine = tree / "mine"
        return {
            outcome(lambda: (mine / "file").write_text("x")),
            outcome((mine / "file").unlink),
            outcome(lambda: (mine / "more").write_text("x")),
            outcome((mine / "directory").mkdir),
            outcome(lambda: os.truncate(mine / "file", 0)),
            outcome(lambda: os.rename(mine / "file", mine / "other")),
        }

    assert in_fork(tries) == str({DENIED})
    assert (tree / "mine/file").read_text() == "mine"


@needs_landlock
def test_at_the_site_files_are_made_and_nothing_else(tree: Path) -> None:
    site = tree / "site"

    def tries() -> list[str]:
        restrict(Grant(str(site), landlock.BUILD))
        return [
            outcome(lambda: (site / "new").write_text("x")),
            outcome((site / "file").unlink),
            outcome(lambda: (site / "link").symlink_to("/")),
            outcome(lambda: os.mkfifo(site / "pipe")),
            outcome((site / "directory").mkdir),
            outcome(lambda: os.rename(site / "new", tree / "others/new")),
        ]

    assert in_fork(tries) == str(["done", "done", DENIED, DENIED, DENIED, DENIED])
    assert os.listdir(site) == ["new"]


@needs_landlock
def test_a_directory_that_may_be_listed_cannot_be_read(tree: Path) -> None:
    def tries() -> list[str]:
        restrict(Grant(str(tree / "others"), landlock.LIST))
        return [
            outcome(lambda: os.listdir(tree / "others")),
            outcome(lambda: os.stat(tree / "others/file")),
            outcome((tree / "others/file").read_bytes),
        ]

    assert in_fork(tries) == str(["done", "done", DENIED])


@needs_landlock
def test_what_is_not_there_grants_nothing_and_hurts_nobody(tree: Path) -> None:
    def tries() -> str:
        restrict(Grant(str(tree / "nothing")), Grant(str(tree / "mine/file")))
        return outcome((tree / "mine/file").read_bytes)

    assert in_fork(tries) == "done"


@needs_landlock
def test_what_is_granted_of_the_own_process_stays(tree: Path) -> None:
    def tries() -> list[str]:
        restrict(Grant("/proc/self"))
        return [
            outcome(Path("/proc/self/maps").read_bytes),
            outcome(lambda: os.listdir("/proc/self/task")),
            outcome(Path("/proc/thread-self/schedstat").read_bytes),
            outcome(Path(f"/proc/{os.getppid()}/maps").read_bytes),
            outcome(Path(f"/proc/{os.getppid()}/environ").read_bytes),
        ]

    assert in_fork(tries) == str(["done", "done", "done", DENIED, DENIED])


@needs_landlock
def test_a_grant_is_for_the_directory_that_was_there(tree: Path) -> None:
    """A directory of models that is exchanged under a worker is another one: it sees nothing of that."""

    def tries() -> list[str]:
        restrict(Grant(str(tree / "mine")))
        os.write(entered, b"x")
        os.read(exchanged, 1)
        return [outcome((tree / "mine/file").read_bytes), outcome((tree / "moved/file").read_bytes)]

    has_entered, entered = os.pipe()
    exchanged, exchange = os.pipe()

    def exchange_it() -> None:
        os.read(has_entered, 1)
        (tree / "mine").rename(tree / "moved")
        (tree / "mine").mkdir()
        (tree / "mine/file").write_text("new")
        os.write(exchange, b"x")

    threading.Thread(target=exchange_it, daemon=True).start()
    assert in_fork(tries) == str([DENIED, "done"])
    for each in (has_entered, entered, exchanged, exchange):
        os.close(each)


@needs_network_rules
def test_tcp_can_be_neither_bound_nor_connected() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()

        def tries() -> list[str]:
            restrict()
            with socket.socket() as one, socket.socket() as other:
                return [outcome(lambda: one.connect(address)), outcome(lambda: other.bind(("127.0.0.1", 0)))]

        assert in_fork(tries) == str([DENIED, DENIED])


@needs_scopes
def test_abstract_sockets_and_processes_of_others_are_out_of_reach() -> None:
    name = f"\0appliance-test-{os.getpid()}"
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(name)
        server.listen()

        def tries() -> list[str]:
            restrict()
            with socket.socket(socket.AF_UNIX) as client:
                return [
                    outcome(lambda: client.connect(name)),
                    outcome(lambda: os.kill(os.getppid(), 0)),
                    outcome(lambda: os.kill(os.getpid(), 0)),
                ]

        assert in_fork(tries) == str(["Operation not permitted", "Operation not permitted", "done"])


@pytest.mark.parametrize(
    ("known", "files", "network", "scopes"),
    [
        (0, False, False, False),
        (2, False, False, False),
        (3, True, False, False),
        (4, True, True, False),
        (7, True, True, True),
    ],
)
def test_what_versions_can_do(known: int, files: bool, network: bool, scopes: bool) -> None:
    assert landlock.handles_files(known) is files
    assert landlock.handles_network(known) is network
    assert landlock.scopes(known) is scopes


@pytest.mark.parametrize(
    ("known", "files", "network", "scoped"),
    [(1, 13, 0, 0), (2, 14, 0, 0), (3, 15, 0, 0), (4, 15, 2, 0), (5, 16, 2, 0), (6, 16, 2, 2), (7, 16, 2, 2)],
)
def test_all_that_a_version_can_refuse_is_asked_of_it(
    monkeypatch: pytest.MonkeyPatch, known: int, files: int, network: int, scoped: int
) -> None:
    """As many rights as the kernel's header has at each: on files (devices from 5 on), TCP ports, and scopes."""
    asked: list[tuple[int, ...]] = []

    def note(number: int, *arguments: Any) -> int:
        if number == 444:
            attributes, size, flags = arguments
            asked.append((size, flags, *struct.unpack("=QQQ", attributes)))
        return os.open(os.devnull, os.O_RDONLY) if number == 444 else 0

    monkeypatch.setattr(landlock, "call", note)
    landlock.restrict([], known)
    size = 24 if scoped else 16 if network else 8
    assert asked == [(size, 0, (1 << files) - 1, (1 << network) - 1, (1 << scoped) - 1)]


@needs_landlock
@pytest.mark.parametrize("known", range(1, SUPPORT.landlock + 1))
def test_rulesets_of_all_versions_are_taken(tree: Path, known: int) -> None:
    """As on an older kernel: what it does not know is left out of what is asked."""

    def tries() -> list[str]:
        restrict(Grant(str(tree / "mine"), landlock.USE), Grant("/dev/null", landlock.USE), known=known)
        return [outcome((tree / "mine/file").read_bytes), outcome((tree / "others/file").read_bytes)]

    assert in_fork(tries) == str(["done", DENIED])
