"""What the controller signs: the metadata of one device's desired state. Pure but for the keys: time comes in, bytes go
out; what was signed, and the versions so far, are kept by who calls.

How long metadata is good for is written into it because its format asks for that; boxes use it for as long as they have
nothing newer, and tell people.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, Final

from tuf.api.metadata import Metadata, MetaFile, Signed, Snapshot, TargetFile, Targets, Timestamp

from appliance.controller.online_keys import OnlineKeys
from appliance.fleet.bundle import SIGNED_PREFIX, SignedIndex
from appliance.fleet.documents import DesiredState, encode
from appliance.fleet.metadata import DESIRED, TARGETS, TIMESTAMP, TIMESTAMP_PERIOD_S, Counters

TIMESTAMP_GOOD: Final = timedelta(seconds=2 * TIMESTAMP_PERIOD_S)
GOOD: Final = timedelta(days=365)
"""Of targets and snapshot, which are signed only when something changed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMetadata:
    """All that vouches for one document, as the box gets it in ``Polled``, and the versions."""

    counters: Counters
    targets: bytes
    snapshot: bytes
    timestamp: bytes
    document: bytes


def sign_document(keys: OnlineKeys, state: DesiredState, before: Counters, now: datetime) -> DeviceMetadata:
    """The metadata for ``state``; snapshot and timestamp get the versions after those ``before``. Raises ValueError
    unless its generation is above ``before.targets``: a generation never says two things."""
    if state.generation <= before.targets:
        raise ValueError(f"generation {state.generation} is not above {before.targets}")
    document = encode(state)
    target = TargetFile.from_data(DESIRED, document, ["sha256"])
    target.unrecognized_fields["custom"] = {"device": state.device}
    targets = _signed(keys, Targets(state.generation, None, now + GOOD, {DESIRED: target}))
    meta = MetaFile.from_data(state.generation, targets, ["sha256"])
    snapshot_version = before.snapshot + 1
    snapshot = _signed(keys, Snapshot(snapshot_version, None, now + GOOD, {f"{TARGETS}.json": meta}))
    counters = Counters(timestamp=before.timestamp, snapshot=snapshot_version, targets=state.generation)
    unstamped = DeviceMetadata(
        counters=counters, targets=targets, snapshot=snapshot, timestamp=b"", document=document
    )
    return sign_timestamp(keys, unstamped, now)


def sign_timestamp(keys: OnlineKeys, metadata: DeviceMetadata, now: datetime) -> DeviceMetadata:
    """The same with the next timestamp: for one that is due."""
    counters = metadata.counters
    version = counters.timestamp + 1
    meta = MetaFile.from_data(counters.snapshot, metadata.snapshot, ["sha256"])
    timestamp = _signed(keys, Timestamp(version, None, now + TIMESTAMP_GOOD, meta))
    stamped = Counters(timestamp=version, snapshot=counters.snapshot, targets=counters.targets)
    return replace(metadata, timestamp=timestamp, counters=stamped)


def is_due(timestamp: bytes, now: datetime) -> bool:
    """Whether ``timestamp`` is of a period ago or longer, or of a clock that was ahead of ``now``."""
    signed_at: datetime = Metadata.from_bytes(timestamp).signed.expires - TIMESTAMP_GOOD
    return not timedelta() <= now - signed_at < timedelta(seconds=TIMESTAMP_PERIOD_S)


def sign_bundle(keys: OnlineKeys, index: bytes) -> SignedIndex:
    """The index of a bundle for boxes, so that they believe its acknowledgements."""
    signature = keys.signers[TIMESTAMP].sign(SIGNED_PREFIX + index)
    return SignedIndex(index=index, signer=signature.keyid, signature=bytes.fromhex(signature.signature))


def _signed(keys: OnlineKeys, signed: Signed) -> bytes:
    metadata: Metadata[Any] = Metadata(signed)
    metadata.sign(keys.signers[signed.type])
    return metadata.to_bytes()
