"""Where a controller keeps everything: one directory, to be backed up as a whole, and made once.

settings.json   where boxes reach it, where it listens
fleet.db        the database        blobs/      packages, streams, indexes
authority.pem   issues certificates server.pem  the server's own
keys/           sign metadata       offline/    the root's key, to be carried elsewhere
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from appliance.controller import tables, tokens
from appliance.controller.authority import Authority, utc
from appliance.controller.blobs import DirectoryBlobs
from appliance.controller.fleet_store import FleetStore
from appliance.controller.online_keys import OnlineKeys
from appliance.controller.root import RootPlan, make_root, root_plan, sign_root
from appliance.domain.errors import OperatorError
from appliance.durable import RealFolder, WriterLock, make_own_directory, replace_file
from appliance.package.keys import PublicKey, make_key, open_signer, public_pem, read_public_key

SETTINGS: Final = "settings.json"
DATABASE: Final = "fleet.db"
AUTHORITY: Final = "authority.pem"
SERVER: Final = "server.pem"
KEYS: Final = "keys"
OFFLINE: Final = "offline"
LOCK: Final = "controller.lock"
HTTPS: Final = 443
ROOT_GOOD: Final = timedelta(days=10 * 365)
FIRST_ADMIN: Final = "admin"
ADMIN_MS: Final = 365 * 24 * tokens.HOUR_MS


class NoHome(OperatorError):
    """A directory that holds no controller, or one that cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``url``: where boxes reach the controller; ``address``: host:port where it listens."""

    url: str
    address: str


@dataclass(slots=True, kw_only=True)
class Home:
    """An open controller directory, held by a lock until ``close``."""

    settings: Settings
    store: FleetStore
    blobs: DirectoryBlobs
    authority: Authority
    keys: OnlineKeys
    package_keys: Sequence[PublicKey]
    server: Path
    lock: WriterLock

    def close(self) -> None:
        """Let go of it."""
        self.store.close()
        self.lock.release()


def listening_at(url: str) -> str:
    """Where a controller listens that boxes reach at ``url``, if nothing else is between them. Raises OperatorError."""
    return f"0.0.0.0:{_reached_at(url)[1]}"


def _reached_at(url: str) -> tuple[str, int]:
    """Host and port. Raises OperatorError."""
    try:
        parts = urlsplit(url)
        scheme, host, port = parts.scheme, parts.hostname, parts.port or HTTPS
    except ValueError:
        scheme, host, port = "", None, 0
    if scheme != "https" or not host:
        raise OperatorError(f"'{url[:80]}' is no https URL; give the one where boxes reach the controller")
    return host, port


def make_home(
    folder: Path, settings: Settings, hosts: Sequence[str], package_keys: Sequence[Path], now_ms: int
) -> str:
    """Make a controller in ``folder``; gives the first admin's token. Raises OperatorError, also where there is one."""
    host, _ = _reached_at(settings.url)
    publics = [read_public_key(path) for path in package_keys]
    try:
        make_own_directory(folder)
        if (folder / SETTINGS).exists():
            raise OperatorError(f"'{folder}' holds a controller already")
        folder.chmod(
            0o700
        )  # one that was there may be open to everybody, and the database is made as SQLite likes
        with closing(RealFolder(folder)) as held:
            (folder / OFFLINE).mkdir(mode=0o700)
            private, public = make_key("ed25519")
            for name, data in (("root.pem", private), ("root.pem.pub", public_pem(public))):
                replace_file(held, f"{OFFLINE}/{name}", f"{OFFLINE}/new", data)
            authority = Authority.create(utc(now_ms))
            replace_file(held, AUTHORITY, "new", authority.dump())
            replace_file(held, SERVER, "new", authority.server([host, *hosts], utc(now_ms)))
            online = OnlineKeys.create(folder / KEYS)
            offline = read_public_key(folder / OFFLINE / "root.pem.pub")
            plan = RootPlan(
                offline=[offline],
                threshold=1,
                online=online.public(),
                packages=publics,
                expires=utc(now_ms).replace(microsecond=0) + ROOT_GOOD,
            )
            root = sign_root(
                make_root(plan), open_signer(str(folder / OFFLINE / "root.pem"), lambda what: "")
            )
            store = FleetStore(f"sqlite:///{folder / DATABASE}")
            with store.transaction() as rows:
                rows.put(tables.roots, version=1, data=root)
                rows.count_up("revision")
                token = tokens.make_person(rows, FIRST_ADMIN, "admin", "init", now_ms + ADMIN_MS)
                rows.note(now_ms, "init", "made", url=settings.url)
            store.close()
            replace_file(held, SETTINGS, "new", json.dumps(asdict(settings)).encode())
    except OSError as error:
        raise OperatorError(f"'{folder}' cannot be used: {error.strerror or error}") from error
    return token


def open_home(folder: Path) -> Home:
    """The controller in ``folder``. Raises OperatorError."""
    try:
        settings = Settings(**json.loads((folder / SETTINGS).read_bytes()))
        lock = WriterLock(folder / LOCK)
    except FileNotFoundError as error:
        raise NoHome(f"'{folder}' holds no controller; 'appliance controller init' makes one") from error
    except (OSError, ValueError, TypeError) as error:
        raise NoHome(f"the controller in '{folder}' cannot be used: {error}") from error
    store = FleetStore(f"sqlite:///{folder / DATABASE}")
    with store.transaction() as rows:
        newest = rows.all(tables.roots)[-1]
    blobs = DirectoryBlobs(folder / "blobs")
    blobs.forget_drafts()
    return Home(
        settings=settings,
        store=store,
        blobs=blobs,
        authority=Authority.load((folder / AUTHORITY).read_bytes()),
        keys=OnlineKeys.open(folder / KEYS),
        package_keys=root_plan(newest.data).packages,
        server=folder / SERVER,
        lock=lock,
    )
