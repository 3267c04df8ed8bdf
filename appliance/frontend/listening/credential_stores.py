"""Where systemd takes the files from that it gives a service at its start (systemd.exec(5), Credentials).

A configuration names them where the service finds them, ``/run/credentials/UNIT/NAME``. Before the service starts there
is nothing, or what the last start was given; who checks a configuration for the next start looks where that will come
from.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Final

from appliance.config.listening import ListeningConfig

GIVEN: Final = Path("/run/credentials")
STORES: Final = (Path("/etc"), Path("/run"), Path("/usr/lib"))
PLAIN: Final = "credstore"
ENCRYPTED: Final = "credstore.encrypted"


def for_next_start(config: ListeningConfig, root: Path = Path("/")) -> ListeningConfig | None:
    """The port's settings with the files that the next start is given; None where one of them is encrypted, so that it
    cannot be checked here."""
    places = [root / each.relative_to("/") for each in STORES]

    def next_one(said: str) -> str:
        path = Path(said)
        if path.parent.parent != GIVEN:
            return said
        if any((each / ENCRYPTED / path.name).exists() for each in places):
            raise _EncryptedError
        plain = (str(each / PLAIN / path.name) for each in places)
        return next((each for each in plain if os.access(each, os.R_OK)), said)

    try:
        return replace(
            config,
            tls_certificate=next_one(config.tls_certificate),
            tls_key=next_one(config.tls_key),
            tls_client_ca=next_one(config.tls_client_ca),
        )
    except _EncryptedError:
        return None


class _EncryptedError(Exception):
    """A file can be read by its service alone."""
