"""The keys that the controller itself signs with: one for each of targets, snapshot and timestamp, as PKCS#8 files that
only their owner reads, with the public ones beside them for whoever makes the root."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Final, Self

from appliance.domain.errors import OperatorError
from appliance.durable import RealFolder, make_own_directory
from appliance.fleet.metadata import ONLINE_ROLES
from appliance.package.keys import (
    PublicKey,
    Secret,
    Signer,
    make_key,
    open_signer,
    public_key_of,
    public_pem,
    read_public_key,
)

KIND: Final = "ed25519"
_OWNER_ONLY: Final = 0o600


class OnlineKeys:
    """The three keys, ready to sign. A key file may be kept elsewhere, or be of another kind: what is in the directory
    is read like any private key."""

    def __init__(self, signers: Mapping[str, Signer]) -> None:
        self.signers: Mapping[str, Signer] = MappingProxyType(dict(signers))

    @classmethod
    def create(cls, directory: Path) -> Self:
        """New keys in ``directory`` (made if need be): ``targets.pem``, ``snapshot.pem``, ``timestamp.pem``. Raises
        OperatorError, also when there are some: what boxes trust is not replaced by chance."""
        try:
            make_own_directory(directory)
            folder = RealFolder(directory)
        except OSError as error:
            raise OperatorError(f"'{directory}' cannot be made: {error.strerror}") from error
        try:
            for role in ONLINE_ROLES:
                private, public = make_key(KIND)
                for name, data in ((f"{role}.pem", private), (f"{role}.pem.pub", public_pem(public))):
                    with folder.create(name, _OWNER_ONLY) as file:
                        file.write(data)
                        file.sync()
            folder.sync_directory("")
        except FileExistsError as error:
            raise OperatorError(f"'{directory}' already has a key of the {role}") from error
        except OSError as error:
            raise OperatorError(f"a key in '{directory}' cannot be written: {error.strerror}") from error
        finally:
            folder.close()
        return cls.open(directory)

    @classmethod
    def open(cls, directory: Path, secret: Secret = lambda what: "") -> Self:
        """Those in ``directory``; ``secret`` is asked for passwords of files that have one. Raises OperatorError."""
        signers = {}
        for role in ONLINE_ROLES:
            path = directory / f"{role}.pem"
            signers[role] = open_signer(str(path), secret)
            if os.stat(path).st_mode & 0o077:
                raise OperatorError(f"'{path}' can be read by others than its owner; chmod 600 it")
        return cls(signers)

    def public(self) -> Mapping[str, PublicKey]:
        """The keys that check what is signed, by role."""
        return {role: public_key_of(signer) for role, signer in self.signers.items()}


def read_public(directory: Path) -> Mapping[str, PublicKey]:
    """The public keys in ``directory``, by role, for one who has not the others. Raises OperatorError."""
    return {role: read_public_key(directory / f"{role}.pem.pub") for role in ONLINE_ROLES}
