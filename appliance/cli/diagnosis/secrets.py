"""Where the secrets of a box lie: read so that they are looked for in what leaves it, and for nothing else."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path
from typing import Final

from appliance.config.tree import ApplianceConfig
from appliance.domain.errors import ArtefactError
from appliance.domain.regular_file import read_file
from appliance.durable import RealFolder
from appliance.frontend.listening.credential_stores import ENCRYPTED, GIVEN, PLAIN, STORES
from appliance.store.layout import FLEET, FORMS_KEY, SERVE
from appliance.sync.identity import IDENTITY, PENDING

BYTES_MAX: Final = 64 << 10
VAR_KEY: Final = Path("var/lib/appliance-image/var-key")
"""Opens a sealed /var of the image on the day on which its TPM does not."""
OURS: Final = "appliance."
PUBLIC: Final = (".crt", ".pub", ".toml")
"""Certificates, and the configuration that a box is given."""
PEM: Final = ".pem"
PRIVATE: Final = b"PRIVATE KEY-----"
FORMS_KEY_BYTES: Final = 32


def kept(config: ApplianceConfig, state: Path | None, root: Path) -> tuple[bytes, ...]:
    """What is in those of the files that this user can read; another user's cannot have been read into a part. Below
    the state directory no link is followed: it is the service's, which must not choose what root opens."""
    found = []
    for path in _places(config, state, root):
        with suppress(ArtefactError, OSError):
            data = _read(path, state)
            if _is_secret(path.name, data):
                found.append(data)
    return tuple(found)


def _read(path: Path, state: Path | None) -> bytes:
    path = Path(os.path.abspath(path))  # also a setting's path with ".." in it
    top = None if state is None else Path(os.path.abspath(state))
    if top is None or top not in path.parents:
        return read_file(str(path), BYTES_MAX)
    with closing(RealFolder(top)) as folder:
        descriptor = folder.open(str(path.relative_to(top)), os.O_RDONLY | os.O_NONBLOCK)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"'{path}' is not a regular file")
        data = os.read(descriptor, BYTES_MAX + 1)
    finally:
        os.close(descriptor)
    if len(data) > BYTES_MAX:
        raise OSError(f"'{path}' is too large for a key")
    return data


def _is_secret(name: str, data: bytes) -> bool:
    """Whether it can be the key that belongs there: who put another text there would choose what is taken out."""
    if name == FORMS_KEY:
        return len(data) == FORMS_KEY_BYTES and not data.isascii()
    return not name.endswith(PEM) or PRIVATE in data


def _places(config: ApplianceConfig, state: Path | None, root: Path) -> Iterator[Path]:
    yield from (Path(port.tls_key) for port in (config.grpc, config.http) if port.tls_key)
    if state is not None:
        yield from (state / FLEET / name for name in (IDENTITY, PENDING))
        yield state / SERVE / FORMS_KEY
    yield root / VAR_KEY
    stores = [root / each.relative_to("/") / kind for each in STORES for kind in (PLAIN, ENCRYPTED)]
    given = root / GIVEN.relative_to("/")
    with suppress(OSError):
        stores += sorted(given.iterdir())
    for store in stores:
        with suppress(OSError):
            yield from (
                path
                for path in sorted(store.iterdir())
                if path.name.startswith(OURS) and path.suffix not in PUBLIC
            )
