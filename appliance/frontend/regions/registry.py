"""Who has which regions: registering, finding and forgetting them."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from typing import Final
from weakref import finalize

from appliance.config.shared_memory import SharedMemoryConfig
from appliance.domain.errors import (
    Forbidden,
    InvalidRequest,
    RegionExists,
    RegionsFull,
    UnknownRegion,
    Unsupported,
)
from appliance.domain.inference import Parameter
from appliance.domain.protocol import REGION_NAME_BYTES_MAX, region_part
from appliance.frontend.regions.account import Account
from appliance.frontend.regions.region import File, Region, Registered
from appliance.frontend.regions.users import OVERFLOW_USER, UNKNOWN_USER
from appliance.frontend.regions.window import Window

FOLDER: Final = "/dev/shm"
REGIONS_MAX: Final = 64
"""Regions of one user that may be open: a client needs one for each request that it has under way, or one for all."""
FILES_MAX: Final = 2 * REGIONS_MAX
"""Files of one user that may be open, with those of regions that nobody has any more and that are still to be
closed."""
KEY_BYTES_MAX: Final = 255
RETRY_NS: Final = 100_000_000
RESERVED: Final = "triton_python_backend_shm_region_"
"""Triton's own segments have such names; a client has no business with those of a neighbour."""
INPUT_BYTES_MAX: Final = 64 << 20
COPIED_REQUESTS_MAX: Final = 2
"""What a user may have in copies of strings, in the largest requests that there may be."""

NO_DEVICE_MEMORY: Final = (
    "CUDA shared memory of clients is not offered here; send and receive tensors in the message, or in system shared "
    "memory where an operator allows it (shared_memory.users)"
)

_OPEN: Final = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
"""Not waiting for a lease that the file's owner has on it, nor for the other end of a pipe."""


class Regions:
    """Those of all users, in files of ``folder``. Owner: the event loop's thread."""

    def __init__(
        self,
        config: SharedMemoryConfig | None = None,
        users: frozenset[int] = frozenset(),
        input_bytes_max: int = INPUT_BYTES_MAX,
        folder: str = FOLDER,
    ) -> None:
        """``users`` are the numbers of those whom ``config`` names; a request may have inputs of ``input_bytes_max``
        together in regions."""
        self._config = config or SharedMemoryConfig()
        self._users = users
        self._input_bytes_max = input_bytes_max
        self._folder = folder
        self._regions: dict[int, dict[str, Region]] = {}
        self._accounts: dict[int, Account] = {}

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
        name = registered.name
        _check_words(registered)
        own = self._regions.setdefault(user, {})
        if name in own:
            raise RegionExists(f"shared memory region '{name}' already in manager; unregister it first")
        account = self._accounts.get(user)
        if account is None:
            account = self._accounts[user] = Account(COPIED_REQUESTS_MAX * self._input_bytes_max)
        self._check_room(user, account, registered)
        region = Region(registered, file := self._opened(user, account, registered))
        account.regions.take(registered.nbytes)
        finalize(region, account.let_go, file, registered.nbytes).atexit = False
        own[name] = region

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

    def check_device_regions(self, user: int, name: str) -> None:
        """Answer for the regions of devices' memory, of which nobody has any: raise UnknownRegion of one that is named.
        Clients forget those of either kind before they begin. Raises Unsupported, Forbidden."""
        self.check(user)
        if name:
            raise UnknownRegion(f"Unable to find cuda shared memory region: '{name}'; there are none here")

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
        return Window(region, part, self._accounts[user])

    def check_inputs(self, windows: Iterable[Window]) -> None:
        """Raise InvalidRequest where all inputs of a request that are in regions have too many bytes: they are read at
        once, as those of a message are."""
        nbytes, most = sum(map(len, windows)), self._input_bytes_max
        if nbytes > most:
            raise InvalidRequest(
                f"inputs in shared memory have {nbytes} bytes; those of one request may have {most}, as a message may "
                "(grpc.max_message_bytes)"
            )

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
        if user == UNKNOWN_USER:
            raise Forbidden(
                f"{what} is for users of this machine, and the kernel does not tell whose this connection is; connect "
                "over a Unix socket (an address unix:/path of [http], or of [grpc] with the native front end)"
            )
        if user == OVERFLOW_USER:
            raise Forbidden(
                f"{what} is for users whom the appliance can tell apart, and this one is none in its user namespace; "
                "start both in one (with systemd: PrivateUsers=no in a drop-in of the appliance's unit)"
            )
        if user not in self._users:
            raise Forbidden(
                f"{what} is not for user {user}; send and receive tensors in the message, or have an operator name "
                "that user in shared_memory.users"
            )

    def _check_room(self, user: int, account: Account, registered: Registered) -> None:
        name, nbytes = registered.name, registered.nbytes
        held, most = account.regions.nbytes, self._config.max_bytes
        if account.regions.count >= REGIONS_MAX:
            raise RegionsFull(
                f"cannot register shared memory region '{name}': user {user} has {REGIONS_MAX} open, and may have "
                "no more; unregister one",
                -1,
            )
        if held + nbytes > most:
            raise RegionsFull(
                f"cannot register shared memory region '{name}' of {nbytes} bytes: user {user} has {held} bytes open, "
                f"and shared_memory.max_bytes allows {most}; unregister one",
                -1,
            )
        if account.files.count >= FILES_MAX:
            raise RegionsFull(
                f"cannot register shared memory region '{name}': user {user} has {FILES_MAX} files that are still to "
                "be closed; try again later",
                RETRY_NS,
            )

    def _opened(self, user: int, account: Account, registered: Registered) -> File:
        """The file of a key, as shm_open(3) takes it, which is the user's and large enough. Raises InvalidRequest."""
        key = registered.key
        try:
            descriptor = os.open(os.path.join(self._folder, key.lstrip("/")), _OPEN)
        except PermissionError as error:
            raise _unfit(
                key,
                f"the appliance, which runs as user {os.geteuid()}, may not read and write it; give it both rights, "
                f"by a group that both are in (chmod 660), or by 'setfacl -m u:{os.geteuid()}:rw'",
            ) from error
        except OSError as error:
            raise _unfit(
                key, f"{error.strerror}; create it first, as a regular file of {self._folder}"
            ) from error
        file = File(descriptor, registered.offset, registered.end)
        account.files.take(0)
        try:
            self._check_file(os.fstat(descriptor), user, registered)
        except InvalidRequest:
            account.close(file)
            raise
        return file

    def _check_file(self, found: os.stat_result, user: int, registered: Registered) -> None:
        key, end = registered.key, registered.end
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


def _check_words(registered: Registered) -> None:
    """Raise InvalidRequest where what a client says of a region makes no sense, whatever is on this machine."""
    name, key, offset, nbytes = registered
    if not 0 < _size(name, "name") <= REGION_NAME_BYTES_MAX:
        raise InvalidRequest(
            f"the name of a shared memory region must have 1 to {REGION_NAME_BYTES_MAX} bytes"
        )
    if _size(key, "key") > KEY_BYTES_MAX:
        raise InvalidRequest(f"the key of a shared memory region must have at most {KEY_BYTES_MAX} bytes")
    leaf = key.lstrip("/")
    if leaf in ("", ".", "..") or set(leaf) & {"/", "\0"}:
        raise _unfit(key, "a key is '/' and one name without slashes")
    for what, word in (("names", name), ("keys", leaf)):
        if word.startswith(RESERVED):
            raise InvalidRequest(
                f"cannot register shared memory region '{name}': {what} that start with '{RESERVED}' are reserved; "
                "choose another"
            )
    if nbytes < 1 or offset < 0:
        raise InvalidRequest(
            f"shared memory region '{name}' has offset {offset} and byte size {nbytes}; the offset must not be "
            "negative, and the size must be at least 1"
        )


def _size(text: str, what: str) -> int:
    """Bytes of ``text``."""
    try:
        return len(text.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(
            f"the {what} of a shared memory region is not valid Unicode; choose another"
        ) from None


def _unfit(key: str, why: str) -> InvalidRequest:
    return InvalidRequest(f"Unable to open shared memory region: '{key}': {why}")
