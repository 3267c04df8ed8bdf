"""One piece of signed metadata: whether it may be looked at, what it says, whether enough of the right keys signed it.

Where tuf's own client would compare an expiry with the clock of the machine, nothing here does: a box whose clock is
wrong trusts exactly what one whose clock is right does.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final

from securesystemslib.exceptions import Error as SignatureError
from securesystemslib.signer import Signature
from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Key, Metadata, Root, Snapshot, Targets, Timestamp

from appliance.domain.manifest import INT64_MAX
from appliance.fleet.metadata import (
    KEYS_MAX,
    PACKAGE_KEYS,
    ROOT,
    ROOT_BYTES_MAX,
    SNAPSHOT,
    SNAPSHOT_BYTES_MAX,
    TARGETS,
    TARGETS_BYTES_MAX,
    TIMESTAMP,
    TIMESTAMP_BYTES_MAX,
)

__all__ = ["Key", "Root", "Snapshot", "Targets", "Timestamp"]

LIMITS: Final[Mapping[str, int]] = MappingProxyType(
    {
        ROOT: ROOT_BYTES_MAX,
        TIMESTAMP: TIMESTAMP_BYTES_MAX,
        SNAPSHOT: SNAPSHOT_BYTES_MAX,
        TARGETS: TARGETS_BYTES_MAX,
    }
)
_WRONG: Final = (
    RepositoryError,
    ValueError,
    KeyError,
    TypeError,
    AttributeError,
    RecursionError,
    OverflowError,
)
"""What the libraries raise for bytes that are wrong, at whatever depth."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """Why something was not taken: a ``code`` for programs, the ``role`` it is about, a ``text`` for people."""

    code: str
    role: str
    text: str


class MetadataRefused(Exception):
    """Carries what was refused up to where it is decided what is trusted instead."""

    def __init__(self, code: str, role: str, text: str) -> None:
        super().__init__(text)
        self.refused = Refused(code=code, role=role, text=text)


def read(data: bytes, role: str) -> Metadata[Any]:
    """What ``data`` says as metadata of ``role``; nothing is believed yet. Raises MetadataRefused."""
    if len(data) > LIMITS[role]:
        raise MetadataRefused(
            "too-long", role, f"the {role} has {len(data)} bytes; the limit is {LIMITS[role]}"
        )
    try:
        metadata: Metadata[Any] = Metadata.from_bytes(data)
        wrong = _says_nonsense(metadata, role)
    except _WRONG as error:
        raise MetadataRefused("invalid", role, f"the {role} is no signed metadata") from error
    if wrong:
        raise MetadataRefused("invalid", role, f"the {role} {wrong}")
    return metadata


def check_signatures(by: Root, metadata: Metadata[Any], role: str) -> None:
    """Raise MetadataRefused unless as many keys as ``by`` asks for signed the metadata of that role."""
    try:
        result = by.get_verification_result(role, metadata.signed_bytes, metadata.signatures)
    except _WRONG as error:
        raise MetadataRefused("invalid", role, f"the {role} cannot be checked") from error
    if result.verified:
        return
    strange = len(set(metadata.signatures) - set(by.roles[role].keyids))
    text = f"the {role} has right signatures of {len(result.signed)} of the {result.threshold} keys that it needs"
    if strange:
        text += f", and {strange} of keys that have no say in it, or none any more"
    raise MetadataRefused("unknown-key" if strange and not result.signed else "threshold", role, text)


def is_signed(by: Root, data: bytes, role: str) -> bool:
    """Whether ``data`` is metadata of that role that enough keys signed."""
    try:
        check_signatures(by, read(data, role), role)
    except MetadataRefused:
        return False
    return True


def is_signature(by: Root, role: str, keyid: str, signature: bytes, data: bytes) -> bool:
    """Whether ``signature`` is one of ``data``, which is no metadata, by a key of that role."""
    if keyid not in by.roles[role].keyids:
        return False
    try:
        by.keys[keyid].verify_signature(Signature(keyid, signature.hex()), data)
    except (*_WRONG, SignatureError):
        return False
    return True


def check_bytes(data: bytes, said: Any, role: str, by: str) -> None:
    """Raise MetadataRefused unless ``data`` has the length and the digest that ``by`` said of it."""
    if len(data) != said.length or hashlib.sha256(data).hexdigest() != said.hashes["sha256"]:
        what = f"the {role} is not the one that the {by} speaks of"
        raise MetadataRefused(
            "mix-and-match", role, what if data else f"{what}: none was sent, and none is here"
        )


def package_keys(root: Root) -> Mapping[str, Key]:
    """The keys that packages may be signed with. Raises MetadataRefused."""
    found = root.unrecognized_fields.get(PACKAGE_KEYS, {})
    try:
        keys = {keyid: Key.from_dict(keyid, dict(said)) for keyid, said in found.items()}
    except _WRONG as error:
        raise MetadataRefused("invalid", ROOT, f"the root's {PACKAGE_KEYS} are no keys") from error
    if len(keys) > KEYS_MAX:
        raise MetadataRefused(
            "invalid", ROOT, f"the root has {len(keys)} {PACKAGE_KEYS}; the limit is {KEYS_MAX}"
        )
    return keys


def _says_nonsense(metadata: Metadata[Any], role: str) -> str:
    """What is wrong with it whoever signed it; "" for nothing."""
    signed = metadata.signed
    if signed.type != role:
        return f"is of another role: {str(signed.type)[:20]!r}"
    if type(signed.version) is not int or signed.version > INT64_MAX:
        return "has a version that is no whole number of 63 bits"
    if isinstance(signed, Root):
        return _root_nonsense(signed)
    said = _speaks_of(signed)
    if said is None:
        return "does not speak of exactly one file"
    if type(said.length) is not int or not isinstance(said.hashes, dict) or "sha256" not in said.hashes:
        return "gives no length or no sha256"
    return ""


def _root_nonsense(root: Root) -> str:
    for name, role in root.roles.items():
        if not isinstance(role.keyids, list) or type(role.threshold) is not int:
            return f"says of {name} what cannot be"
        if len(role.keyids) > KEYS_MAX:
            return f"has {len(role.keyids)} keys for {name}; the limit is {KEYS_MAX}"
        values = {"".join(str(root.keys[keyid].keyval.get("public")).split()) for keyid in role.keyids}
        if len(values) != len(role.keyids):
            return f"has one key twice for {name}, by two names"
        if role.threshold > len(role.keyids):
            return f"asks for more signatures of {name} than there are keys"
    package_keys(root)
    return ""


def _speaks_of(signed: Timestamp | Snapshot | Targets) -> Any:
    """What the metadata says of the one file that it is about; None where that is not one."""
    if isinstance(signed, Timestamp):
        return signed.snapshot_meta
    files: Mapping[str, Any] = signed.meta if isinstance(signed, Snapshot) else signed.targets
    return next(iter(files.values())) if len(files) == 1 else None
