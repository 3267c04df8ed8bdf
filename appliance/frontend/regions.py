"""Regions of shared memory that clients on this machine registered: Triton's system shared memory extension.

A region belongs to the user who registered it, and so does its file below /dev/shm: others can neither use nor see nor
unregister it. Who a client is the kernel says (SO_PEERCRED of a Unix socket), never the client. Its memory is never
mapped here, since whoever has its file may shrink it at any time, and a mapping would then end this process: it is read
and written through the descriptor, where that is an error of one request. What this process and its workers share has
no name below /dev/shm and cannot be registered.
"""

from __future__ import annotations

import os
import pwd
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple
from weakref import finalize

from appliance.config.shared_memory import SharedMemoryConfig
from appliance.domain.errors import (
    Forbidden,
    InvalidRequest,
    QueueFull,
    RegionExists,
    RegionsFull,
    UnknownRegion,
    Unsupported,
)
from appliance.domain.inference import OutputTensor, Parameter
from appliance.domain.protocol import RegionPart, region_part
from appliance.domain.steps import Steps

FOLDER: Final = "/dev/shm"
UNKNOWN_USER: Final = -1
OVERFLOW_USER: Final = 65_534
"""What the kernel says for users of another namespace that are none here: all of them are one."""
USER_MAX: Final = (1 << 32) - 2
NAME_BYTES_MAX: Final = 255
REGIONS_MAX: Final = 64
"""Regions of one user that may be open, each of which takes a descriptor: a client needs one for each request that it
has under way, or one for all."""
RESERVED: Final = "triton_python_backend_shm_region_"
"""Triton's own segments have such names; a client has no business with those of a neighbour."""
STRINGS_BYTES_MAX: Final = 64 << 20
"""Largest BYTES tensor in a region. They are read into memory of this process first, where the client cannot change
them any more after they were checked."""
COPIES_BYTES_MAX: Final = 4 * STRINGS_BYTES_MAX
"""Of all such copies that are not in a slot yet: requests of a stream may wait for one."""
PIECE_BYTES: Final = 4 << 20
"""Of strings, what is read in one step."""

NO_DEVICE_MEMORY: Final = (
    "CUDA shared memory of clients is not offered here; send and receive tensors in the message, or in system shared "
    "memory where an operator allows it (shared_memory.users)"
)

_OPEN: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


class Registered(NamedTuple):
    """A region as its user may see it: ``offset`` is where it begins in its file."""

    name: str
    key: str
    offset: int
    nbytes: int


class _Copy(bytearray):
    """Strings of a region; unlike a plain one it can be told when it goes."""

    __slots__ = ("__weakref__",)


class _Copies:
    """Owns the count of bytes in copies of strings."""

    def __init__(self) -> None:
        self._held_bytes = 0

    def take(self, nbytes: int) -> memoryview:
        """Memory for a copy, which counts until nobody holds it. Raises QueueFull."""
        if self._held_bytes + nbytes > COPIES_BYTES_MAX:
            raise QueueFull(
                f"Exceeds maximum queue size: strings copied from shared memory hold {self._held_bytes} of "
                f"{COPIES_BYTES_MAX} bytes"
            )
        copy = _Copy(nbytes)
        self._held_bytes += nbytes
        finalize(copy, self._give, nbytes).atexit = False
        return memoryview(copy)

    def _give(self, nbytes: int) -> None:
        self._held_bytes -= nbytes


class Region:
    """An open region. Whoever uses it holds it open; its descriptor is closed with the last of them."""

    __slots__ = ("__weakref__", "_copies", "_descriptor", "_registered")

    def __init__(self, registered: Registered, descriptor: int, copies: _Copies) -> None:
        self._registered = registered
        self._copies = copies
        self._descriptor = descriptor

    @property
    def registered(self) -> Registered:
        """What its user said of it."""
        return self._registered

    def read_into(self, offset: int, place: memoryview) -> InvalidRequest | None:
        """Fill ``place`` with what is at ``offset``; gives why that is not possible."""
        done, start = 0, self._registered.offset + offset
        try:
            while done < len(place):
                count = os.preadv(self._descriptor, [place[done:]], start + done)
                if not count:
                    return self._shrunk()
                done += count
        except OSError as error:
            return self._failed(error)
        return None

    def room_for_copy(self, nbytes: int) -> memoryview:
        """Memory for a copy of strings. Raises QueueFull."""
        return self._copies.take(nbytes)

    def write(self, offset: int, data: bytes | memoryview) -> None:
        """Put ``data`` at ``offset``. Raises InvalidRequest."""
        rest, start = memoryview(data), self._registered.offset + offset
        try:
            # Its user may shrink it even after this; then it grows again, never beyond what was registered.
            if os.fstat(self._descriptor).st_size < start + len(rest):
                raise self._shrunk()
            while rest:
                count = os.pwrite(self._descriptor, rest, start)
                rest, start = rest[count:], start + count
        except OSError as error:
            raise self._failed(error) from error

    def _shrunk(self) -> InvalidRequest:
        return InvalidRequest(
            f"shared memory region '{self._registered.name}' is smaller than when it was registered; register it anew "
            "with the size that it has"
        )

    def _failed(self, error: OSError) -> InvalidRequest:
        return InvalidRequest(
            f"shared memory region '{self._registered.name}' cannot be read or written: {error.strerror}; register it "
            "anew"
        )


class Window:
    """The part of a region that a tensor of a request is in, or an output shall be put into. To the engine it is a
    tensor that lies outside: its bytes go straight from the region to where they are needed."""

    __slots__ = ("_part", "_region")

    def __init__(self, region: Region, part: RegionPart) -> None:
        self._region = region
        self._part = part

    def __len__(self) -> int:
        return self._part.nbytes

    def read_into(self, place: memoryview) -> InvalidRequest | None:
        """See Outside."""
        return self._region.read_into(self._part.offset, place)

    def read(self, name: str) -> Steps[memoryview]:
        """The strings of input ``name``, copied. Raises InvalidRequest and QueueFull."""
        nbytes = self._part.nbytes
        if nbytes > STRINGS_BYTES_MAX:
            raise InvalidRequest(
                f"input '{name}' has {nbytes} bytes of strings in shared memory; at most {STRINGS_BYTES_MAX} are "
                "accepted"
            )
        copied = self._region.room_for_copy(nbytes)
        for start in range(0, nbytes, PIECE_BYTES):
            if start:
                yield
            piece = copied[start : start + PIECE_BYTES]
            if (error := self._region.read_into(self._part.offset + start, piece)) is not None:
                raise error
        return copied

    def check_room(self, output: OutputTensor) -> None:
        """Raise InvalidRequest where ``output`` has no room."""
        if len(output.data) > self._part.nbytes:
            raise InvalidRequest(
                f"shared memory size specified with the request for output '{output.name}' ({self._part.nbytes} bytes) "
                f"should be at least {len(output.data)} bytes to hold the results"
            )

    def put(self, output: OutputTensor) -> RegionPart:
        """Copy ``output`` there; gives where it is. Raises InvalidRequest."""
        self._region.write(self._part.offset, output.data)
        return self._part._replace(nbytes=len(output.data))


Windows = Mapping[str, Window]
NO_WINDOWS: Final[Windows] = {}
NO_PARTS: Final[Mapping[str, RegionPart]] = {}


def put_outputs(
    outputs: Sequence[OutputTensor], windows: Windows
) -> tuple[tuple[OutputTensor, ...], Mapping[str, RegionPart]]:
    """Copy outputs to the windows that there are for them, by their names: the outputs, of which those have no data any
    more, and where that is. Raises InvalidRequest, where one has no room before any is written."""
    for output in outputs:
        if output.name in windows:
            windows[output.name].check_room(output)
    written = {each.name: windows[each.name].put(each) for each in outputs if each.name in windows}
    return tuple(each._replace(data=b"") if each.name in written else each for each in outputs), written


class Regions:
    """Those of all users, in files of ``folder``. Owner: the event loop's thread."""

    def __init__(
        self,
        config: SharedMemoryConfig | None = None,
        users: frozenset[int] = frozenset(),
        folder: str = FOLDER,
    ) -> None:
        """``users`` are the numbers of those whom ``config`` names."""
        self._config = config or SharedMemoryConfig()
        self._users = users
        self._folder = folder
        self._regions: dict[int, dict[str, Region]] = {}
        self._copies = _Copies()
        self._held: dict[int, tuple[int, int]] = {}
        """By user: how many are open, with those that only requests use any more, and their bytes."""

    @property
    def on(self) -> bool:
        """Whether anybody may register one."""
        return bool(self._users)

    def check(self, user: int) -> None:
        """Raise Unsupported or Forbidden where ``user`` may have none."""
        self._check_user(user, "client shared memory")

    def register(self, user: int, registered: Registered) -> None:
        """Open a region for ``user``. Raises Unsupported, Forbidden, RegionExists, RegionsFull, InvalidRequest."""
        self.check(user)
        name, key, offset, nbytes = registered
        if not 0 < len(_encoded(name, "name")) <= NAME_BYTES_MAX:
            raise InvalidRequest(f"the name of a shared memory region must have 1 to {NAME_BYTES_MAX} bytes")
        if name.startswith(RESERVED):
            raise InvalidRequest(
                f"cannot register shared memory region '{name}': names that start with '{RESERVED}' are reserved; "
                "choose another"
            )
        if nbytes < 1 or offset < 0:
            raise InvalidRequest(
                f"shared memory region '{name}' has offset {offset} and byte size {nbytes}; the offset must not be "
                "negative, and the size must be at least 1"
            )
        own = self._regions.get(user, {})
        if name in own:
            raise RegionExists(f"shared memory region '{name}' already in manager; unregister it first")
        self._check_room(user, name, nbytes)
        descriptor = self._opened(user, key, offset + nbytes)
        region = Region(registered, descriptor, self._copies)
        count, held = self._held.get(user, (0, 0))
        self._held[user] = count + 1, held + nbytes
        finalize(region, self._close, user, descriptor, nbytes).atexit = False
        self._regions.setdefault(user, {})[name] = region

    def unregister(self, user: int, name: str) -> None:
        """Forget a region of ``user``, or all ("") of them; requests that were checked before still use it. Raises
        Unsupported, Forbidden."""
        self.check(user)
        if name:
            self._regions.get(user, {}).pop(name, None)
        else:
            self._regions.pop(user, None)

    def status(self, user: int, name: str) -> list[Registered]:
        """A region of ``user``, or all ("") of them. Raises Unsupported, Forbidden, UnknownRegion."""
        self.check(user)
        if name:
            return [self._find(user, name).registered]
        return [region.registered for region in self._regions.get(user, {}).values()]

    def window(self, user: int, kind: str, name: str, parameters: Mapping[str, Parameter]) -> Window:
        """Where the ``kind`` ("input", "output") of this ``name`` is, which asks for a region by its ``parameters``.
        Raises Unsupported, Forbidden, UnknownRegion, InvalidRequest."""
        self._check_user(user, f"{kind} '{name}' asks for client shared memory, which")
        part = region_part(kind, name, parameters)
        region = self._find(user, part.region)
        if part.offset + part.nbytes > region.registered.nbytes:
            raise InvalidRequest(
                f"Invalid offset + byte size for shared memory region: '{part.region}': {kind} '{name}' asks for "
                f"{part.nbytes} bytes at offset {part.offset}, and the region has {region.registered.nbytes} bytes"
            )
        return Window(region, part)

    def _find(self, user: int, name: str) -> Region:
        region = self._regions.get(user, {}).get(name)
        if region is None:
            raise UnknownRegion(f"Unable to find system shared memory region: '{name}'; register it first")
        return region

    def _check_user(self, user: int, what: str) -> None:
        if not self._users:
            raise Unsupported(
                f"{what} is turned off here; send and receive tensors in the message, or have an operator name the "
                "client's user in shared_memory.users"
            )
        if user in (UNKNOWN_USER, OVERFLOW_USER):
            raise Forbidden(
                f"{what} is for users of this machine, and the kernel does not tell whose this connection is; connect "
                "over a Unix socket (an address unix:/path of [http], or of [grpc] with the native front end)"
            )
        if user not in self._users:
            raise Forbidden(
                f"{what} is not for user {user}; send and receive tensors in the message, or have an operator name "
                "that user in shared_memory.users"
            )

    def _check_room(self, user: int, name: str, nbytes: int) -> None:
        count, held = self._held.get(user, (0, 0))
        most_bytes = self._config.max_bytes
        if count >= REGIONS_MAX:
            raise RegionsFull(
                f"cannot register shared memory region '{name}': user {user} has {count} open, and no more are kept of "
                "one user; unregister one",
                -1,
            )
        if held + nbytes > most_bytes:
            raise RegionsFull(
                f"cannot register shared memory region '{name}' of {nbytes} bytes: user {user} has {held} bytes open, "
                f"and shared_memory.max_bytes allows {most_bytes}; unregister one",
                -1,
            )

    def _close(self, user: int, descriptor: int, nbytes: int) -> None:
        os.close(descriptor)
        count, held = self._held[user]
        self._held[user] = count - 1, held - nbytes

    # --- files

    def _opened(self, user: int, key: str, end: int) -> int:
        """A descriptor of the file behind ``key``, as shm_open(3) takes it, which is the user's and has ``end`` bytes
        at least. Raises InvalidRequest."""
        leaf = key.lstrip("/")
        if leaf in ("", ".", "..") or set(leaf) & {"/", "\0"} or len(_encoded(leaf, "key")) > NAME_BYTES_MAX:
            raise _unfit(key, f"a key is '/' and one name of 1 to {NAME_BYTES_MAX} bytes without slashes")
        if leaf.startswith(RESERVED):
            raise _unfit(key, f"keys that start with '{RESERVED}' are reserved; choose another")
        try:
            descriptor = os.open(os.path.join(self._folder, leaf), _OPEN)
        except PermissionError as error:
            raise _unfit(
                key,
                f"the appliance, which runs as user {os.geteuid()}, may not read and write it; give it both rights, "
                "as with chmod 666, or by a group that both are in and chmod 660",
            ) from error
        except OSError as error:
            raise _unfit(
                key, f"{error.strerror}; create it first, as a regular file of {self._folder}"
            ) from error
        try:
            self._check_file(os.fstat(descriptor), user, key, end)
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _check_file(self, found: os.stat_result, user: int, key: str, end: int) -> None:
        if not stat.S_ISREG(found.st_mode) or found.st_dev != os.stat(self._folder).st_dev:
            raise _unfit(key, f"it is no regular file of {self._folder}; create it as one")
        if found.st_uid != user:
            raise _unfit(key, f"it does not belong to user {user}, who registers it; let its owner do that")
        if end > found.st_size:
            raise _unfit(
                key,
                f"it has {found.st_size} bytes, and offset and byte size ask for {end}; register what there is",
            )


NOBODYS: Final = Regions()
"""Those where client shared memory is turned off."""


def _encoded(text: str, what: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"the {what} of a shared memory region is not valid Unicode; choose another"
        ) from None


def _unfit(key: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"Unable to open shared memory region: '{key}': {why}")


def users_of(names: Sequence[str]) -> frozenset[int]:
    """The numbers of ``names``, which have no problems. Raises KeyError for a user that there is not any more."""
    return frozenset(map(_user_of, names))


def user_problems(names: Sequence[str]) -> Iterator[str]:
    """Why ``names`` cannot be users of this machine, one text for each that cannot."""
    for name in names:
        try:
            user = _user_of(name)
        except (KeyError, ValueError):
            yield f"'{name}' is no user of this machine; give the name of one, or its number"
        else:
            if user == OVERFLOW_USER:
                yield f"'{name}' stands for everybody of whom the kernel knows no user; name another one"


def _user_of(name: str) -> int:
    if not (name.isascii() and name.isdecimal()):
        return pwd.getpwnam(name).pw_uid
    if int(name) > USER_MAX:
        raise KeyError(name)
    return int(name)
