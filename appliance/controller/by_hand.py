"""What is carried between controller and boxes, on the controller's side: which documents go out, what comes in.

Done by a command beside a controller that runs or does not: the database keeps their changes apart, and blobs, once
there, never change; who reads them keeps them (``DirectoryBlobs.kept``), so that none goes meanwhile.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, Final

from cryptography import x509
from sqlalchemy import Row

from appliance.controller import tables, tokens
from appliance.controller.authority import Authority
from appliance.controller.blobs import DirectoryBlobs
from appliance.controller.bundles import Export, Received, parts_for
from appliance.controller.contact import FULL, is_full, issued_to
from appliance.controller.fleet_store import FleetStore, Rows, View
from appliance.controller.home import AUTHORITY, DATABASE, KEYS, SETTINGS, NoHome
from appliance.controller.online_keys import OnlineKeys
from appliance.controller.publishing import AT_ONCE, Publisher, keep
from appliance.controller.releases import wished_version
from appliance.controller.schemas import PersonTokenRequest
from appliance.domain.digest import digest_of
from appliance.domain.errors import OperatorError
from appliance.domain.manifest import NAME_RULE, is_name
from appliance.fleet.messages import Acknowledged, MessageInvalid, Report, decode
from appliance.fleet.places import CONFLICT, REVOKED
from appliance.transfer.bundle_writer import Part

NOTHING: Final = (CONFLICT, REVOKED)
"""States of devices that get nothing."""
EPOCHS_MAX: Final = 4096
"""Of one box whose acknowledgements are carried: one that makes up epochs spoils nobody else's bundle."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """A controller's directory, for commands."""

    store: FleetStore
    blobs: DirectoryBlobs
    keys: OnlineKeys
    authority: Authority


@dataclass(frozen=True, slots=True, kw_only=True)
class Outgoing:
    """The files of a bundle for ``devices``; ``missing`` are streams and indexes that the controller has not itself,
    ``held`` devices that get nothing until a person says how to go on."""

    devices: tuple[str, ...]
    parts: list[Part]
    missing: tuple[str, ...]
    held: tuple[str, ...]


@contextmanager
def desk_of(folder: Path) -> Iterator[Desk]:
    """The controller in ``folder``. Raises OperatorError."""
    if not (folder / SETTINGS).is_file():
        raise NoHome(f"'{folder}' holds no controller; 'appliance controller init' makes one")
    try:
        authority = Authority.load((folder / AUTHORITY).read_bytes())
        blobs = DirectoryBlobs(folder / "blobs")
    except OSError as error:
        raise NoHome(f"the controller in '{folder}' cannot be used: {error}") from error
    store = FleetStore(f"sqlite:///{folder / DATABASE}")
    try:
        yield Desk(store=store, blobs=blobs, keys=OnlineKeys.open(folder / KEYS), authority=authority)
    finally:
        store.close()


def token_by_hand(desk: Desk, wished: PersonTokenRequest, who: str, now_ms: int) -> str:
    """A new token for a person, in the place of one of the same name: the way in where all tokens are lost or over.
    Raises OperatorError, also where a box's token is called so."""
    name, role, hours = wished.name, wished.role, wished.hours
    if not is_name(name):
        raise OperatorError(f"a person cannot be called '{name}'; take a name of {NAME_RULE}")
    with desk.store.transaction() as rows:
        there = rows.one(tables.tokens, name=name)
        if there is not None and there.kind != tokens.PERSON:
            raise OperatorError(f"'{name}' is the name of a box's token; take another")
        token = tokens.make_person(rows, name, role, who, now_ms + hours * tokens.HOUR_MS)
        rows.note(now_ms, who, "token", name=name, role=role)
    return token


def outgoing(desk: Desk, names: Sequence[str], who: str, now_ms: int) -> Outgoing:
    """What the devices ``names`` are to be brought, all of them where none is named. Raises OperatorError.

    Boxes poll meanwhile: a few devices are one transaction, and what is due of them is found and signed before it
    begins."""
    exports: dict[str, Export] = {}
    held: list[str] = []
    with desk.store.look() as view:
        found = [each.name for each in _devices(view, names)]
    for start in range(0, len(found), AT_ONCE):
        exported, conflicts = _outgoing(desk, found[start : start + AT_ONCE], who, now_ms)
        exports |= exported
        held += conflicts
    with desk.store.look() as view:
        roots = [root.data for root in view.all(tables.roots)]
    parts, missing = parts_for(roots, exports, desk.blobs)
    return Outgoing(devices=tuple(exports), parts=parts, missing=missing, held=tuple(held))


def _outgoing(desk: Desk, names: Sequence[str], who: str, now_ms: int) -> tuple[dict[str, Export], list[str]]:
    """The same of some devices, and those of them that are in conflict. One that something was changed of between is
    looked at anew, in the transaction."""
    publisher = Publisher(desk.keys)
    with desk.store.look() as view:
        seen = {name: row for name in names if (row := view.one(tables.devices, name=name)) is not None}
        version_of = cache(partial(wished_version, view))
        dues = {
            name: publisher.due(view, row, now_ms, version_of)
            for name, row in seen.items()
            if row.state not in NOTHING
        }
        known = {name: view.all(tables.outboxes, device=name) for name in dues}
    exports: dict[str, Export] = {}
    conflicts: list[str] = []
    with desk.store.transaction() as rows:
        revision = rows.number("revision")
        for name in names:
            device = rows.one(tables.devices, name=name)
            if device is None or device.state in NOTHING:
                conflicts += [name] if device is not None and device.state == CONFLICT else []
                continue
            due = dues.get(name)
            if due is None or due.revision != revision or _made_of(device) != _made_of(seen[name]):
                due = publisher.due(rows, device, now_ms)
            keep(rows, device, due)
            rows.note(now_ms, who, "bundle exported", device=name)
            acknowledged = tuple(
                Acknowledged(stream=each.stream, epoch=each.epoch, next=each.next)
                for each in known.get(name, ())[:EPOCHS_MAX]
            )
            exports[name] = Export(metadata=due.metadata, acknowledged=acknowledged)
    return exports, conflicts


def _made_of(device: Row[Any]) -> tuple[object, ...]:
    """What is due of a device is made of this, and of what is wanted."""
    counters = device.timestamp_version, device.snapshot_version, device.generation
    return device.in_group, device.revision, device.document, *counters


def _devices(rows: View, names: Sequence[str]) -> list[Row[Any]]:
    if not names:
        return [each for each in rows.all(tables.devices, "name", "state") if each.state != REVOKED]
    found = {name: rows.one(tables.devices, name=name) for name in names}
    if unknown := [name for name, device in found.items() if device is None]:
        raise OperatorError(
            f"no device is called {', '.join(map(repr, unknown))}; see 'appliance fleet devices'"
        )
    if revoked := [name for name, device in found.items() if device is not None and device.state == REVOKED]:
        raise OperatorError(f"{', '.join(revoked)} was revoked; it gets no documents")
    return [device for device in found.values() if device is not None]


def is_revoked(desk: Desk, certificate: x509.Certificate) -> bool:
    """Whether the box with this certificate is none of ours any more."""
    with desk.store.look() as rows:
        issued = issued_to(rows, certificate)
        device = rows.one(tables.devices, name=issued.device) if issued else None
    return issued is None or issued.revoked or device is None or device.state == REVOKED


def incoming(desk: Desk, received: Received, who: str, now_ms: int) -> tuple[Acknowledged, ...]:
    """Keep what a box's bundle held: telemetry that is here already is passed over, an older report as well. Gives what
    is here now of each outbox. Boxes poll meanwhile: each batch is a transaction, and is read before that. Raises
    OperatorError, also for more than is kept of one box; what came before is kept then, as over the link."""
    latest: dict[tuple[str, str], Acknowledged] = {}
    for batch in received.batches:
        with desk.store.transaction() as rows:
            if is_full(rows, received.device):
                raise OperatorError(FULL)
            latest[batch.stream, batch.epoch] = rows.take_batch(received.device, batch, now_ms)
    with desk.store.transaction() as rows:
        device = rows.one(tables.devices, name=received.device)
        if device is not None and received.report is not None:
            _take_report(rows, device, received.report, received.report_bytes, now_ms)
        rows.note(now_ms, who, "bundle imported", device=received.device, batches=len(received.batches))
    return tuple(latest.values())


def _take_report(rows: Rows, device: Row[Any], report: Report, data: bytes, now_ms: int) -> None:
    key = {"name": device.name}
    try:
        before = decode(device.report, Report).wall_ms if device.report else 0
    except MessageInvalid:
        before = 0
    # One that knows a newer document is newer, also where the box's clock was put back.
    if report.wall_ms >= before or report.trusted_generation > device.told_generation:
        rows.change(tables.devices, key, report=data, report_digest=digest_of(data))
    told = max(report.trusted_generation, device.told_generation)
    rows.change(tables.devices, key, told_generation=told)
    if told > device.generation and device.state != CONFLICT:
        rows.change(tables.devices, key, state=CONFLICT)
        rows.note(now_ms, f"device {device.name}", "conflict", told=told, here=device.generation)
