"""Listening sockets of our own: opened here, or inherited from the service manager, and handed to the front end; who
may connect to them, and how many descriptors connections may take.

A Unix socket's file is removed when nothing listens on it any more, and at the end when it is still ours.
"""

from __future__ import annotations

import contextlib
import grp
import os
import resource
import socket
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final, NamedTuple, TypeVar

from appliance.config.listening import SYSTEMD, inherits
from appliance.domain.address import Address, check_free, parse_address, unavailable
from appliance.domain.errors import AddressUnavailable

T = TypeVar("T")

BACKLOG: Final = 4096
FIRST_INHERITED: Final = 3
"""The first descriptor of socket activation, as ``sd_listen_fds`` numbers them."""
UNNAMED: Final = "unknown"
GROUP_MAX: Final = (1 << 32) - 2
"""Number of the last group that there can be."""
WORKERS_NEED: Final = 512
"""Left for workers, models' files, the store and the rest: some ten for each worker that is started or replaced."""


class UnixAccess(NamedTuple):
    """Who may connect to a Unix socket: its permission bits, and its group (-1: that of the process)."""

    mode: int = 0o600
    group: int = -1


OWNER_ONLY: Final = UnixAccess()


class Inherited(NamedTuple):
    """A socket that the service manager opened."""

    name: str
    descriptor: int


def inherited(environment: Mapping[str, str], pid: int) -> tuple[Inherited, ...]:
    """The sockets that ``environment`` gives to process ``pid``; none when it means another process or none."""
    if environment.get("LISTEN_PID") != str(pid):
        return ()
    count = environment.get("LISTEN_FDS", "")
    names = environment.get("LISTEN_FDNAMES", "")
    given = names.split(":") if names else []
    return tuple(
        Inherited(given[index] if index < len(given) else UNNAMED, FIRST_INHERITED + index)
        for index in range(int(count) if count.isdecimal() else 0)
    )


class Listeners:
    """Sockets that listen, for the section ``edge`` of the configuration. ``dual_stack``: the unspecified address of
    version 6 takes clients of version 4, too; ``kept`` gives the socket that listens at an address already, from before
    a new start, and counts as inherited. Owner: the event loop's thread."""

    def __init__(
        self,
        edge: str = "grpc",
        *,
        dual_stack: bool = True,
        kept: Callable[[str], socket.socket | None] = lambda address: None,
    ) -> None:
        self._edge = edge
        self._kept = kept
        self._dual_stack = dual_stack
        self._sockets: list[socket.socket] = []
        self._inherited: list[socket.socket] = []
        self._files: list[Address] = []
        self._fixed: list[tuple[str, socket.socket]] = []

    def open(
        self,
        addresses: Iterable[str],
        available: tuple[Inherited, ...],
        *,
        reuse_port: bool = False,
        access: UnixAccess = OWNER_ONLY,
    ) -> tuple[str, ...]:
        """Listen on every address; gives them as bound. ``access`` is that to our own Unix sockets. Raises
        AddressUnavailable, and then nothing stays open."""
        bound: list[str] = []
        try:
            for text in addresses:
                if inherits(text):
                    bound += self._inherit(text, available)
                else:
                    bound += self._listen(text, reuse_port, access)
        except AddressUnavailable:
            self.close()
            raise
        return tuple(bound)

    @property
    def fixed(self) -> tuple[tuple[str, socket.socket], ...]:
        """What listens on TCP ports that the configuration names, with the addresses as bound."""
        return tuple(self._fixed)

    def hand_over(self, take: Callable[[list[int]], T]) -> T:
        """What ``take`` makes of the descriptors, but for those that were inherited. They then belong to that; when it
        raises they stay ours, as the files of Unix sockets do in any case."""
        return _handed(self._sockets, take)

    def hand_over_inherited(self, take: Callable[[list[int]], None]) -> None:
        """The same for those that were inherited, if there are any."""
        if self._inherited:
            _handed(self._inherited, take)

    def close(self) -> None:
        """Close what was not handed over and remove the files of our Unix sockets where nothing else listens by now. To
        be called when what was handed over is closed; may be called twice."""
        for each in (*self._sockets, *self._inherited):
            each.close()
        self._sockets.clear()
        self._inherited.clear()
        self._fixed.clear()
        for address in self._files:
            with contextlib.suppress(AddressUnavailable, FileNotFoundError):
                check_free(address, self._edge)
                os.unlink(address.path)
        self._files.clear()

    # --- our own

    def _listen(self, text: str, reuse_port: bool, access: UnixAccess) -> list[str]:
        address = parse_address(text)
        try:
            return (
                self._listen_unix(address, access) if address.path else self._listen_port(address, reuse_port)
            )
        except (OSError, UnicodeError) as error:
            raise unavailable(address, self._edge, error) from error

    def _listen_unix(self, address: Address, access: UnixAccess) -> list[str]:
        check_free(address, self._edge)
        listener = self._new(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(address.path)  # nothing listens there: check_free said so
        with masked(access.mode):
            listener.bind(address.path)
        self._files.append(address)
        give_to_group(address.path, access.group)
        listener.listen(BACKLOG)  # no client could connect before
        return [address.with_port(0)]

    def _listen_port(self, address: Address, reuse_port: bool) -> list[str]:
        """Every network address that the host has, all on the port that the first one took."""
        found = socket.getaddrinfo(
            address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )
        port = address.port
        bound: list[str] = []
        for family, _, _, _, target in dict.fromkeys(found):
            kept = self._kept(Address(str(target[0]), port).with_port(port)) if port else None
            if kept is not None:
                self._inherited.append(kept)
                bound.append(_name_of(kept))
                continue
            listener = self._new(family)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if reuse_port:
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
            if family == socket.AF_INET6:
                # "[::]" is every address of the machine, those of version 4 too, as the gRPC library has it.
                listener.setsockopt(
                    socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, int(target[0] != "::" or not self._dual_stack)
                )
            listener.bind((target[0], port, *target[2:]))
            listener.listen(BACKLOG)
            port = listener.getsockname()[1]
            bound.append(_name_of(listener))
            if address.port:
                self._fixed.append((bound[-1], listener))
        return bound

    def _new(self, family: int) -> socket.socket:
        listener = socket.socket(family, socket.SOCK_STREAM)
        listener.setblocking(False)
        self._sockets.append(listener)
        return listener

    # --- the service manager's

    def _inherit(self, text: str, available: tuple[Inherited, ...]) -> list[str]:
        wanted = text.partition(":")[2]
        chosen = [each for each in available if wanted in ("", each.name)]
        if not chosen:
            names = ", ".join(sorted({each.name for each in available}))
            given = (
                f"the sockets it gave are named {names}" if names else "it gave no sockets to this process"
            )
            raise AddressUnavailable(
                f"{self._edge} cannot listen on {text}: {given}; name one in a .socket unit with FileDescriptorName= "
                f"and start that unit, or set {self._edge}.addresses to another address"
            )
        return [self._adopt(each) for each in chosen]

    def _adopt(self, given: Inherited) -> str:
        place = f"{SYSTEMD}:{given.name} (descriptor {given.descriptor})"
        try:
            if not stat.S_ISSOCK(os.fstat(given.descriptor).st_mode):
                raise OSError(88, "it is no socket")
            listener = socket.socket(fileno=given.descriptor)
        except OSError as error:
            raise self._unfit(place, error.strerror or str(error)) from error
        self._inherited.append(listener)
        listens = listener.type == socket.SOCK_STREAM and listener.getsockopt(
            socket.SOL_SOCKET, socket.SO_ACCEPTCONN
        )
        if not listens or listener.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
            raise self._unfit(place, "it does not listen for streams; use ListenStream= and Accept=no")
        listener.setblocking(False)
        listener.set_inheritable(False)
        return _name_of(listener)

    def _unfit(self, place: str, reason: str) -> AddressUnavailable:
        return AddressUnavailable(f"{self._edge} cannot listen on {place}: {reason}")


@contextlib.contextmanager
def masked(mode: int) -> Iterator[None]:
    """Files and sockets that are made meanwhile have no permissions beyond ``mode``."""
    before = os.umask(0o777 & ~mode)
    try:
        yield
    finally:
        os.umask(before)


def give_to_group(path: str, group: int) -> None:
    """Make a file that of a group; -1 leaves it as it is. Raises OSError, with a text for people."""
    if group < 0:
        return
    try:
        os.chown(path, -1, group, follow_symlinks=False)
    except PermissionError as error:
        text = f"it cannot be given to group {group}, to which the appliance's user must belong"
        raise PermissionError(error.errno, text) from error


def place_problem(path: str) -> str:
    """Why another user could put a socket of theirs into the place of the one at ``path``; "" where none can."""
    try:
        found = os.stat(os.path.dirname(path) or ".")
    except OSError:
        return ""  # nothing listens there, which is told by who tries to
    if found.st_uid not in (0, os.geteuid()):
        return f"its directory belongs to user {found.st_uid}, who can replace it; give it one of its own"
    if found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and not found.st_mode & stat.S_ISVTX:
        return "others may write to its directory, and replace it; take that away (chmod go-w), or use another one"
    return ""


def _handed(sockets: list[socket.socket], take: Callable[[list[int]], T]) -> T:
    taken = take([each.fileno() for each in sockets])
    for each in sockets:
        each.detach()
    sockets.clear()
    return taken


def _name_of(listener: socket.socket) -> str:
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        path = os.fsdecode(name)
        return Address("", 0, "@" + path[1:] if path.startswith("\0") else path).with_port(0)
    return Address(name[0], name[1]).with_port(name[1])


def group_problems(group: str) -> Iterator[str]:
    """Why ``group`` cannot be that of a Unix socket; "" stands for that of the process."""
    try:
        _group_of(group)
    except (KeyError, ValueError):
        yield f"'{group}' is no group of this machine; give the name of one, or its number"


def unix_access(mode: str, group: str) -> UnixAccess:
    """What two settings without problems mean. Raises KeyError for a group that there is not any more."""
    return UnixAccess(int(mode, 8), _group_of(group))


def _group_of(group: str) -> int:
    if not group:
        return -1
    if not (group.isascii() and group.isdecimal()):
        return grp.getgrnam(group).gr_gid
    if int(group) > GROUP_MAX:
        raise KeyError(group)
    return int(group)


def raise_descriptor_limit() -> None:
    """Each connection is a descriptor: use all that the system lets us have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def descriptor_limit() -> int:
    """How many descriptors this process may have."""
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def descriptor_shortage(connections: int, allowed: int) -> str:
    """What happens where connections may take ``connections`` descriptors of the ``allowed`` ones, and what to do; ""
    where enough are left."""
    if connections + WORKERS_NEED <= allowed:
        return ""
    return (
        f"grpc.max_connections and http.max_connections allow connections that take {connections} descriptors, and the "
        f"system allows this process {allowed} in all: when they are used up, no worker can be started; lower those "
        f"settings, or raise the limit (LimitNOFILE= of the service, 'ulimit -Hn') to {connections + WORKERS_NEED}"
    )
