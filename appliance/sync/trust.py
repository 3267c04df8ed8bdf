"""What the box trusts: the newest root, the metadata that follows from it, and the document that it vouches for.

This is the client workflow of TUF for one repository with one target, whose parts all come in one message. Roots are
taken one after another, each signed by the keys of the one before and by its own. The rest is taken as one set or not
at all, so what is kept always fits together. A version below one that was seen is refused; the only way down is a new
root by which what was seen does not count any more. Time plays no part, what metadata says of its expiry neither: how
old all this is says ``freshness``.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final, cast

from appliance.domain.errors import ApplianceError
from appliance.fleet.bundle import SIGNED_PREFIX, SignedIndex
from appliance.fleet.documents import DesiredState, DocumentInvalid, decode
from appliance.fleet.messages import Polled
from appliance.fleet.metadata import DESIRED, ROOT, SNAPSHOT, TARGETS, TIMESTAMP, Counters
from appliance.package.keys import PublicKey
from appliance.sync.signed_metadata import (
    MetadataRefused,
    Refused,
    Root,
    Snapshot,
    Targets,
    Timestamp,
    check_bytes,
    check_signatures,
    is_signature,
    is_signed,
    package_keys,
    read,
)

TARGETS_FILE: Final = f"{TARGETS}.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trusted:
    """The newest set that the box trusts, as bytes: what is kept. ``document`` is the newest that is vouched for;
    ``working`` is the newest that can be read here, the same one as a rule. What was not had yet is empty."""

    root: bytes
    timestamp: bytes = b""
    snapshot: bytes = b""
    targets: bytes = b""
    document: bytes = b""
    working: bytes = b""
    root_version: int = field(compare=False)
    counters: Counters = field(compare=False, default=Counters())
    desired: DesiredState | None = field(compare=False, default=None)


class NoRoot(ApplianceError):
    """Bytes that are no root that vouches for itself."""


def begin(root: bytes) -> Trusted:
    """What a box trusts that was just enrolled with ``root``. Raises NoRoot."""
    try:
        metadata = read(root, ROOT)
        check_signatures(metadata.signed, metadata, ROOT)
    except MetadataRefused as refusal:
        raise NoRoot(refusal.refused.text) from refusal
    return Trusted(root=root, root_version=metadata.signed.version)


def restored(
    root: bytes, timestamp: bytes, snapshot: bytes, targets: bytes, document: bytes, working: bytes
) -> Trusted:
    """What was trusted before, from what was kept of it. Raises NoRoot, also where the rest cannot be read. A document
    that an older or newer appliance worked towards and this one cannot read is not worked towards."""
    trusted = begin(root)
    try:
        counters = Counters(
            timestamp=read(timestamp, TIMESTAMP).signed.version if timestamp else 0,
            snapshot=read(snapshot, SNAPSHOT).signed.version if snapshot else 0,
            targets=read(targets, TARGETS).signed.version if targets else 0,
        )
    except MetadataRefused as refusal:
        raise NoRoot(refusal.refused.text) from refusal
    try:
        desired = decode(working) if working else None
    except DocumentInvalid:
        desired, working = None, b""
    return replace(
        trusted, timestamp=timestamp, snapshot=snapshot, targets=targets, document=document,
        working=working, counters=counters, desired=desired,
    )  # fmt: skip


def examine(trusted: Trusted, polled: Polled, device: str) -> tuple[Trusted, Refused | None]:
    """What is trusted after ``polled``, and why not all of that was taken. Never raises for what was sent.

    A document that is vouched for and cannot be read here, because it is of a newer format perhaps, moves the
    versions on and leaves the box to work towards the one before.
    """
    try:
        for data in polled.roots:
            trusted = _follow(trusted, data)
        trusted = _next_set(trusted, polled, device)
        if trusted.document != trusted.working:
            trusted = _adopt(trusted, device)
    except _NotDoable as refusal:
        return refusal.trusted, refusal.refused
    except MetadataRefused as refusal:
        return trusted, refusal.refused
    return trusted, None


def keys_of_packages(trusted: Trusted) -> tuple[PublicKey, ...]:
    """The keys that the root lets packages be signed with, beside those of the configuration."""
    root: Root = read(trusted.root, ROOT).signed
    return tuple(
        PublicKey(keyid=keyid, scheme=key.scheme, label="the fleet's root", key=key)
        for keyid, key in sorted(package_keys(root).items())
    )


def is_signed_by_controller(trusted: Trusted, signed: SignedIndex) -> bool:
    """Whether the index of a bundle was signed with the key that the root lets timestamps be signed with."""
    root: Root = read(trusted.root, ROOT).signed
    return is_signature(root, TIMESTAMP, signed.signer, signed.signature, SIGNED_PREFIX + signed.index)


def _follow(trusted: Trusted, data: bytes) -> Trusted:
    """What is trusted with the root in ``data``; one that is not newer changes nothing."""
    metadata = read(data, ROOT)
    root: Root = metadata.signed
    if root.version <= trusted.root_version:
        return trusted
    if root.version != trusted.root_version + 1:
        text = f"root {root.version} was sent, but root {trusted.root_version + 1} comes next"
        raise MetadataRefused("root-skipped", ROOT, text)
    check_signatures(read(trusted.root, ROOT).signed, metadata, ROOT)
    check_signatures(root, metadata, ROOT)
    trusted = replace(trusted, root=data, root_version=root.version)
    counters = trusted.counters
    if not (is_signed(root, trusted.timestamp, TIMESTAMP) and is_signed(root, trusted.snapshot, SNAPSHOT)):
        counters = Counters(targets=counters.targets)
        trusted = replace(trusted, timestamp=b"", snapshot=b"", counters=counters)
    if not is_signed(root, trusted.targets, TARGETS):
        counters = Counters(timestamp=counters.timestamp, snapshot=counters.snapshot)
        trusted = replace(trusted, targets=b"", counters=counters)
    return trusted


def _next_set(trusted: Trusted, polled: Polled, device: str) -> Trusted:
    """What is trusted with the timestamp and all that it leads to; parts that were not sent are those that are here."""
    if not polled.timestamp:
        if polled.snapshot or polled.targets or polled.document:
            raise MetadataRefused(
                "mix-and-match", TIMESTAMP, "metadata came without the timestamp that it belongs to"
            )
        return trusted
    root: Root = read(trusted.root, ROOT).signed
    timestamp = cast(Timestamp, _role(root, polled.timestamp, TIMESTAMP))
    if timestamp.version < trusted.counters.timestamp:
        _check_generation(root, trusted, polled.targets)
        raise _went_back(TIMESTAMP, timestamp.version, trusted.counters.timestamp)
    if timestamp.version == trusted.counters.timestamp:
        was: Timestamp = read(trusted.timestamp, TIMESTAMP).signed
        if was.snapshot_meta != timestamp.snapshot_meta:
            raise _equivocates(TIMESTAMP, timestamp.version)
        return trusted
    snapshot_bytes = polled.snapshot or trusted.snapshot
    check_bytes(snapshot_bytes, timestamp.snapshot_meta, SNAPSHOT, TIMESTAMP)
    snapshot = cast(Snapshot, _role(root, snapshot_bytes, SNAPSHOT))
    _check_version(snapshot.version, timestamp.snapshot_meta.version, SNAPSHOT, TIMESTAMP)
    if snapshot.version < trusted.counters.snapshot:
        raise _went_back(SNAPSHOT, snapshot.version, trusted.counters.snapshot)
    said = snapshot.meta.get(TARGETS_FILE)
    if said is None:
        raise MetadataRefused("invalid", SNAPSHOT, "the snapshot does not speak of the targets")
    targets_bytes = polled.targets or trusted.targets
    _check_generation(root, trusted, targets_bytes)
    check_bytes(targets_bytes, said, TARGETS, SNAPSHOT)
    targets = cast(Targets, _role(root, targets_bytes, TARGETS))
    _check_version(targets.version, said.version, TARGETS, SNAPSHOT)
    document = polled.document or trusted.document
    _check_document(targets, document, device)
    if targets.version == trusted.counters.targets and document != trusted.document:
        raise _equivocates(TARGETS, targets.version)
    return replace(
        trusted, timestamp=polled.timestamp, snapshot=snapshot_bytes, targets=targets_bytes, document=document,
        counters=Counters(timestamp=timestamp.version, snapshot=snapshot.version, targets=targets.version),
    )  # fmt: skip


def _adopt(trusted: Trusted, device: str) -> Trusted:
    """Work towards the newest document, if that can be done. Raises _NotDoable."""
    try:
        desired = decode(trusted.document)
    except DocumentInvalid as error:
        raise _NotDoable(str(error), trusted) from error
    if desired.device != device or desired.generation != trusted.counters.targets:
        raise _NotDoable("is not the one that its metadata speaks of", trusted)
    return replace(trusted, working=trusted.document, desired=desired)


class _NotDoable(MetadataRefused):
    """A document that is trusted and cannot be worked towards."""

    def __init__(self, text: str, trusted: Trusted) -> None:
        super().__init__("document-invalid", DESIRED, f"the desired state {text}")
        self.trusted = trusted


def _role(root: Root, data: bytes, role: str) -> Timestamp | Snapshot | Targets:
    metadata = read(data, role)
    check_signatures(root, metadata, role)
    return cast("Timestamp | Snapshot | Targets", metadata.signed)


def _check_generation(root: Root, trusted: Trusted, targets: bytes) -> None:
    """Raise the MetadataRefused that says most where the generation itself goes back."""
    if targets and is_signed(root, targets, TARGETS):
        generation = read(targets, TARGETS).signed.version
        if generation < trusted.counters.targets:
            text = (
                f"generation {generation} was sent, but this box has seen {trusted.counters.targets}: the controller "
                "was restored from a backup, or old metadata is replayed; see 'appliance fleet resume'"
            )
            raise MetadataRefused("generation-went-back", TARGETS, text)


def _check_version(version: int, said: int, role: str, by: str) -> None:
    if version != said:
        text = f"the {role} has version {version}, and the {by} says {said}"
        raise MetadataRefused("mix-and-match", role, text)


def _check_document(targets: Targets, document: bytes, device: str) -> None:
    said = targets.targets.get(DESIRED)
    if said is None:
        raise MetadataRefused("invalid", TARGETS, f"the targets do not name '{DESIRED}'")
    custom = said.custom
    if not isinstance(custom, dict) or custom.get("device") != device:
        raise MetadataRefused(
            "other-device", TARGETS, f"the desired state is for another device than '{device}'"
        )
    check_bytes(document, said, "document", TARGETS)


def _went_back(role: str, version: int, seen: int) -> MetadataRefused:
    return MetadataRefused("rollback", role, f"{role} {version} was sent, but this box has seen {seen}")


def _equivocates(role: str, version: int) -> MetadataRefused:
    return MetadataRefused("equivocation", role, f"{role} {version} was sent with other contents than before")
