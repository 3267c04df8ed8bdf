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
    """The port's settings with the files that the next start is given; None where one of them is encrypted, which its
    service alone can read."""
    certificate, key, client_ca = (
        _source(said, root) for said in (config.tls_certificate, config.tls_key, config.tls_client_ca)
    )
    if certificate is None or key is None or client_ca is None:
        return None
    if (certificate, key, client_ca) == (config.tls_certificate, config.tls_key, config.tls_client_ca):
        return config
    return replace(config, tls_certificate=certificate, tls_key=key, tls_client_ca=client_ca)


def _source(said: str, root: Path) -> str | None:
    """Where that file comes from: for systemd, too, what is not encrypted goes first. None: it is encrypted."""
    path = Path(said)
    if path.parent.parent != GIVEN:
        return said
    stores = [root / each.relative_to("/") for each in STORES]
    plain = next((each / PLAIN / path.name for each in stores if (each / PLAIN / path.name).exists()), None)
    if plain is not None:
        return str(plain) if os.access(plain, os.R_OK) else said
    return None if any((each / ENCRYPTED / path.name).exists() for each in stores) else said
