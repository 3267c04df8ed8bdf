"""Taking in a bundle at a box: the same documents, the same verifier, the same pieces as over the link.

Everything is looked at before anything is kept, and kept in an order that loses nothing when it is cut off: first what
the new desired state needs, then the state, then what the controller has of our telemetry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

import msgspec

from appliance.domain.errors import Problem
from appliance.fleet.bundle import TO_BOXES, BundleInvalid, Index, Member
from appliance.fleet.documents import DesiredState
from appliance.fleet.messages import Acknowledged, Polled
from appliance.sync.carried import Carried
from appliance.sync.signed_metadata import Refused
from appliance.sync.trust import Trusted, examine, is_signed_by_controller
from appliance.transfer.bundle_reader import BundleReader, Progress

PARTS = ("timestamp", "snapshot", "targets", "document")


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """What a bundle holds for this box, all of it checked; nothing is kept yet. ``pieces`` are the streams and indexes
    that the desired state needs and that the bundle has; ``refused``: why the state was not taken."""

    polled: Polled
    trusted: Trusted
    refused: Refused | None
    pieces: tuple[Member, ...]
    acknowledged: tuple[Acknowledged, ...]
    signed: bool


def look(
    bundle: BundleReader,
    trusted: Trusted,
    device: str,
    progress: Progress = lambda count: None,
) -> Found:
    """What ``bundle`` holds for ``device``. Raises BundleInvalid with everything that is wrong with it."""
    index = bundle.index
    if wrong := _not_for(index, device):
        raise BundleInvalid([Problem(file=str(bundle.path), key="", text=wrong)])
    found: list[Problem] = []
    small: dict[str, bytes] = {}
    for member in (
        *index.of("root"),
        *chain.from_iterable(index.of(kind, device) for kind in (*PARTS, "acknowledgements")),
    ):
        try:
            small[member.path] = bundle.read(member)
        except BundleInvalid as error:
            found += error.problems
    polled = None if found else _polled(index, small, device)
    after, refused = examine(trusted, polled, device) if polled else (trusted, None)
    pieces = tuple(_pieces(index, after.desired if polled else None))
    try:
        bundle.check(pieces, progress)
    except BundleInvalid as error:
        found += error.problems
    acknowledged: tuple[Acknowledged, ...] = ()
    try:
        acknowledged = _acknowledged(index, small, device)
    except BundleInvalid as error:
        found += error.problems
    if found or polled is None:
        raise BundleInvalid(found)
    signed = is_signed_by_controller(after, bundle.signed)
    return Found(
        polled=polled,
        trusted=after,
        refused=refused,
        pieces=pieces,
        signed=signed,
        acknowledged=acknowledged if signed else (),
    )


def take(
    bundle: BundleReader,
    found: Found,
    carried: Carried,
    keep: Callable[[Trusted], None],
    acknowledge: Callable[[Acknowledged], None],
    progress: Progress = lambda count: None,
) -> None:
    """Keep what was ``found``. Raises OSError, and BundleInvalid where the bundle is another one meanwhile."""
    take_pieces(bundle, found, carried, progress)
    keep(found.trusted)
    for each in found.acknowledged:
        acknowledge(each)


def take_pieces(
    bundle: BundleReader, found: Found, carried: Carried, progress: Progress = lambda count: None
) -> None:
    """Keep the streams and indexes that were ``found``. Raises as ``take``."""
    carried.check_room((member.path, member.size) for member in found.pieces)
    for member in found.pieces:
        if not carried.has(member.path, member.size):
            carried.put(member.path, _told(bundle.chunks(member), progress))


def _not_for(index: Index, device: str) -> str:
    if index.kind != TO_BOXES:
        return "comes from a box; its controller imports it"
    if index.devices and device not in index.devices:
        names = ", ".join(index.devices[:8]) + (" and others" if len(index.devices) > 8 else "")
        return f"is for {names}, and this is {device}"
    return ""


def _polled(index: Index, small: dict[str, bytes], device: str) -> Polled:
    """The bundle as the controller's answer to a poll."""
    roots = sorted(
        index.of("root"), key=lambda each: int(each.path.removeprefix("roots/").removesuffix(".json"))
    )
    parts = {kind: small[each.path] for kind in PARTS for each in index.of(kind, device)}
    return Polled(
        now_ms=0,
        poll_s=0,
        roots=tuple(small[each.path] for each in roots),
        timestamp=parts.get("timestamp", b""),
        snapshot=parts.get("snapshot", b""),
        targets=parts.get("targets", b""),
        document=parts.get("document", b""),
    )


def _pieces(index: Index, desired: DesiredState | None) -> Iterable[Member]:
    """The streams and indexes that ``desired`` speaks of; where that is not known, all."""
    members = (*index.of("stream"), *index.of("index"))
    if desired is None:
        return members
    transfers = [
        transfer for model in desired.models for version in model.versions() for transfer in version.transfers
    ]
    asked = {each.stream for each in transfers} | {each.index for each in transfers}
    return (each for each in members if each.digest in asked)


def _acknowledged(index: Index, small: dict[str, bytes], device: str) -> tuple[Acknowledged, ...]:
    for member in index.of("acknowledgements", device):
        if (data := small.get(member.path)) is None:
            continue
        try:
            return msgspec.msgpack.decode(data, type=tuple[Acknowledged, ...])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            text = "holds no acknowledgements"
            raise BundleInvalid([Problem(file=member.path, key="", text=text)]) from error
    return ()


def _told(
    chunks: Iterable[bytes | bytearray | memoryview], progress: Progress
) -> Iterable[bytes | bytearray | memoryview]:
    for chunk in chunks:
        progress(len(chunk))
        yield chunk
