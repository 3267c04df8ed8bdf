"""A fleet's keys and the metadata of one device, in memory: what is right, and what only looks right."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from msgspec import structs
from securesystemslib.exceptions import FormatError
from securesystemslib.formats import encode_canonical
from securesystemslib.signer import CryptoSigner, Signer

from appliance.controller.online_keys import OnlineKeys
from appliance.controller.root import RootPlan, make_root, sign_root
from appliance.controller.signing import DeviceMetadata, sign_document, sign_timestamp
from appliance.fleet.bundle import SignedIndex
from appliance.fleet.documents import DesiredState, WishedModel, WishedVersion
from appliance.fleet.messages import Polled
from appliance.fleet.metadata import ONLINE_ROLES, Counters
from appliance.package.keys import public_key_of

NOW = datetime(2026, 11, 24, tzinfo=UTC)
LATER = NOW + timedelta(days=3650)
DEVICE = "box-1"
NONE = Counters()
VERSION = WishedVersion(version=1, manifest="a" * 64, total_bytes=1, transfers=())


def signers(count: int) -> list[Signer]:
    """New keys that sign."""
    return [CryptoSigner.generate_ed25519() for _ in range(count)]


def online_keys() -> OnlineKeys:
    """New keys of a controller."""
    return OnlineKeys(dict(zip(ONLINE_ROLES, signers(3), strict=True)))


def state(generation: int, device: str = DEVICE, **changes: Any) -> DesiredState:
    """A desired state that differs with its generation."""
    changes.setdefault("models", (WishedModel(name="digits", wanted=VERSION),))
    return DesiredState(device=device, generation=generation, **changes)


def unsigned(index: bytes) -> SignedIndex:
    """The index of a bundle that nobody vouches for."""
    return SignedIndex(index=index)


class Fleet:
    """Three offline keys of which two sign, the controller's keys, and every root so far."""

    def __init__(self, offline: int = 3, threshold: int = 2) -> None:
        self.offline = signers(offline)
        self.keys = online_keys()
        self.packages: Sequence[Signer] = ()
        self.plan = RootPlan(
            offline=[public_key_of(each) for each in self.offline],
            threshold=threshold,
            online=self.keys.public(),
            expires=LATER,
        )
        self.roots = [self.signed(make_root(self.plan), self.offline)]

    @property
    def root(self) -> bytes:
        """The newest one."""
        return self.roots[-1]

    def signed(self, root: bytes, by: Sequence[Signer], previous: bytes | None = None) -> bytes:
        """The root with the signatures of ``by``."""
        for each in by:
            root = sign_root(root, each, previous)
        return root

    def rotate(
        self, *, offline: Sequence[Signer] | None = None, keys: OnlineKeys | None = None, **changes: Any
    ) -> bytes:
        """The next root, signed by all old and new keys, which are those of the fleet from now on."""
        old, previous = self.offline, self.root
        self.offline = list(offline or old)
        self.keys = keys or self.keys
        public = [public_key_of(each) for each in self.offline]
        self.plan = replace(self.plan, offline=public, online=self.keys.public(), **changes)
        every = {public_key_of(each).keyid: each for each in (*old, *self.offline)}
        root = self.signed(make_root(self.plan, previous), list(every.values()), previous)
        self.roots.append(root)
        return root

    def publish(
        self,
        generation: int,
        before: DeviceMetadata | Counters = NONE,
        device: str = DEVICE,
        **changes: Any,
    ) -> DeviceMetadata:
        """What the controller signs for a state of that generation."""
        counters = before.counters if isinstance(before, DeviceMetadata) else before
        return sign_document(self.keys, state(generation, device, **changes), counters, NOW)

    def stamped(self, metadata: DeviceMetadata, times: int = 1) -> DeviceMetadata:
        """The same with a newer timestamp."""
        for _ in range(times):
            metadata = sign_timestamp(self.keys, metadata, NOW)
        return metadata


def polled(metadata: DeviceMetadata | None, roots: Sequence[bytes] = (), **changes: bytes) -> Polled:
    """The controller's answer with all of it, or with ``changes``."""
    parts: dict[str, bytes] = {}
    if metadata is not None:
        parts = {each: getattr(metadata, each) for each in ("timestamp", "snapshot", "targets", "document")}
    return structs.replace(Polled(now_ms=0, poll_s=60, roots=tuple(roots)), **{**parts, **changes})


def forged(data: bytes, by: Sequence[Signer], **changes: Any) -> bytes:
    """The metadata with fields of its signed part changed, whether or not they make sense, and signed by ``by``."""
    signed = {**json.loads(data)["signed"], **changes}
    try:
        payload = str(encode_canonical(signed)).encode()
    except FormatError:  # there are values that cannot be signed
        payload = b""
    signatures = [each.sign(payload).to_dict() for each in by]
    return json.dumps({"signatures": signatures, "signed": signed}).encode()


def rebuilt(
    fleet: Fleet, metadata: DeviceMetadata, role: str, change: Callable[[bytes], bytes]
) -> DeviceMetadata:
    """The metadata with that of ``role`` changed; those above are signed anew and speak of what it is now."""
    parts = {each: getattr(metadata, each) for each in ONLINE_ROLES}
    parts[role] = change(parts[role])
    for name, above in (("targets", "snapshot"), ("snapshot", "timestamp")):
        if ONLINE_ROLES.index(role) <= ONLINE_ROLES.index(name):
            parts[above] = forged(
                parts[above], [fleet.keys.signers[above]], meta={f"{name}.json": said(parts[name])}
            )
    return replace(metadata, **parts)


def said(data: bytes) -> dict[str, Any]:
    """How metadata speaks of ``data``."""
    digest = hashlib.sha256(data).hexdigest()
    return {
        "version": json.loads(data)["signed"]["version"],
        "length": len(data),
        "hashes": {"sha256": digest},
    }


def with_broken_signatures(data: bytes) -> bytes:
    """The metadata with every signature wrong in its last byte."""
    document = json.loads(data)
    for each in document["signatures"]:
        each["sig"] = each["sig"][:-2] + ("00" if each["sig"][-2:] != "00" else "01")
    return json.dumps(document).encode()
