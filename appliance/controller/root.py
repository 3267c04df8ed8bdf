"""The root of a fleet's trust: made and changed with offline keys, on any machine.

Each step takes bytes and gives bytes, so that every holder signs where his key is: make or change, sign as often as the
threshold asks, publish.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final

from tuf.api.exceptions import RepositoryError
from tuf.api.metadata import Key, Metadata, Role, Root

from appliance.domain.errors import OperatorError
from appliance.fleet.metadata import KEYS_MAX, ONLINE_ROLES, PACKAGE_KEYS, ROOT, ROOT_BYTES_MAX
from appliance.package.keys import PublicKey, Signer, public_key_of

_WRONG: Final = (RepositoryError, ValueError, KeyError, TypeError, AttributeError)


@dataclass(frozen=True, slots=True, kw_only=True)
class RootPlan:
    """Who may sign what: ``offline`` keys, of which ``threshold`` together change the root; ``online`` keys by role;
    keys that ``packages`` may be signed with; when it should be looked at again, which is never the end of its use."""

    offline: Sequence[PublicKey]
    threshold: int
    online: Mapping[str, PublicKey]
    packages: Sequence[PublicKey] = ()
    expires: datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class RootStatus:
    """How far a root is: its version, and how many signatures of its own and the previous root's keys are missing."""

    version: int
    missing: int
    missing_previous: int

    @property
    def complete(self) -> bool:
        """Whether boxes will take it."""
        return not self.missing and not self.missing_previous


def make_root(plan: RootPlan, previous: bytes | None = None) -> bytes:
    """The root that says ``plan``, not signed yet: the first, or the one after ``previous``. Raises OperatorError."""
    offline = {key.keyid: key.key for key in plan.offline}
    if not 1 <= plan.threshold <= len(offline) <= KEYS_MAX or len(offline) != len(plan.offline):
        raise OperatorError(
            f"a root needs 1 to {KEYS_MAX} different offline keys, and no more signatures than keys; "
            f"{len(offline)} keys and {plan.threshold} signatures were given"
        )
    if set(plan.online) != set(ONLINE_ROLES):
        raise OperatorError(f"a root needs a key for each of {', '.join(ONLINE_ROLES)}")
    if shared := offline.keys() & {key.keyid for key in plan.online.values()}:
        raise OperatorError(
            f"the key {min(shared)} is offline and online; a root's own keys are never online"
        )
    roles = {ROOT: Role(list(offline), plan.threshold)}
    keys: dict[str, Key] = dict(offline)
    for role, key in plan.online.items():
        roles[role] = Role([key.keyid], 1)
        keys[key.keyid] = key.key
    packages = {key.keyid: key.key.to_dict() for key in plan.packages}
    if len(packages) > KEYS_MAX:
        raise OperatorError(f"{len(packages)} keys for packages were given; the limit is {KEYS_MAX}")
    version = 1 if previous is None else _read(previous).signed.version + 1
    root = Root(version, None, plan.expires, keys, roles, True, {PACKAGE_KEYS: packages})
    return Metadata(root).to_bytes()


def sign_root(root: bytes, signer: Signer, previous: bytes | None = None) -> bytes:
    """The same with the signature of ``signer`` added. Raises OperatorError where that key has no say in it."""
    metadata = _read(root)
    keyid = public_key_of(signer).keyid
    having = set(metadata.signed.roles[ROOT].keyids)
    if previous is not None:
        having |= set(_read(previous).signed.roles[ROOT].keyids)
    if keyid not in having:
        raise OperatorError(f"the key {keyid} has no say in this root")
    try:
        metadata.sign(signer, append=True)
    except RepositoryError as error:
        raise OperatorError(f"the key cannot sign: {error}") from error
    return metadata.to_bytes()


def root_status(root: bytes, previous: bytes | None = None) -> RootStatus:
    """How far ``root`` is. Raises OperatorError when it is no root, or not the one after ``previous``."""
    metadata = _read(root)
    before = None if previous is None else _read(previous).signed
    try:
        result = metadata.signed.get_root_verification_result(
            before, metadata.signed_bytes, metadata.signatures
        )
    except _WRONG as error:
        raise OperatorError(f"this root does not follow the previous one: {error}") from error
    return RootStatus(
        version=metadata.signed.version,
        missing=result.second.missing,
        missing_previous=0 if before is None else result.first.missing,
    )


def root_plan(root: bytes) -> RootPlan:
    """What ``root`` says, to change it by ``dataclasses.replace`` and ``make_root``. Raises OperatorError."""
    said: Root = _read(root).signed
    packages = said.unrecognized_fields.get(PACKAGE_KEYS, {})
    try:
        return RootPlan(
            offline=[_public(said.keys[keyid]) for keyid in said.roles[ROOT].keyids],
            threshold=said.roles[ROOT].threshold,
            online={role: _public(said.keys[said.roles[role].keyids[0]]) for role in ONLINE_ROLES},
            packages=[_public(Key.from_dict(keyid, dict(found))) for keyid, found in packages.items()],
            expires=said.expires,
        )
    except (*_WRONG, IndexError) as error:
        raise OperatorError("this root was not made by an appliance's controller") from error


def _public(key: Key) -> PublicKey:
    return PublicKey(keyid=key.keyid, scheme=key.scheme, label="the fleet's root", key=key)


def _read(data: bytes) -> Metadata[Any]:
    if len(data) > ROOT_BYTES_MAX:
        raise OperatorError(f"a root has at most {ROOT_BYTES_MAX} bytes; this has {len(data)}")
    try:
        metadata: Metadata[Any] = Metadata.from_bytes(data)
    except _WRONG as error:
        raise OperatorError("this is no root of signed metadata") from error
    if metadata.signed.type != ROOT:
        raise OperatorError(f"this is metadata of the role {metadata.signed.type}, not a root")
    return metadata
