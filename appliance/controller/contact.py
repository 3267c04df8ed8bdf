"""What a box and the controller have to do with one another: enrolment, renewal, polls, telemetry.

Each is one transaction. Who the box is, its certificate says and nothing else. Blocks: off the event loop.
"""

from __future__ import annotations

import json
import secrets
from datetime import timedelta
from typing import Any, Final

import msgspec
from cryptography import x509
from sqlalchemy import Row

from appliance.controller import tables, tokens
from appliance.controller.authority import (
    DEVICE_GOOD,
    RENEW_BEFORE,
    Authority,
    RequestInvalid,
    key_digest,
    key_of,
    utc,
)
from appliance.controller.bodies import Refused
from appliance.controller.bundles import batch_in, device_of
from appliance.controller.fleet_store import FleetStore, Rows, View
from appliance.controller.publishing import Publisher
from appliance.domain.digest import digest_of
from appliance.domain.manifest import NAME_RULE, is_name
from appliance.fleet.inventory import bounded
from appliance.fleet.messages import (
    Acknowledged,
    Batch,
    Enrolled,
    Enrolment,
    MessageInvalid,
    Poll,
    Polled,
    Renewal,
    Renewed,
    Report,
    decode,
)
from appliance.fleet.metadata import ROOTS_PER_ANSWER_MAX
from appliance.fleet.places import ACTIVE, REVOKED

POLL_S: Final = 60
TELEMETRY_MAX: Final = 1 << 30
"""Bytes of records kept of one box: beyond that its own outbox decides what it drops, and says so."""
FULL: Final = f"{TELEMETRY_MAX} bytes of this box are kept; keep the rest until some are forgotten"
FULL_RETRY_S: Final = 3600
ISSUED_MAX: Final = 16
ISSUED_WITHIN_S: Final = 3600
"""How many certificates a box gets within which time; answers may be lost."""
NO_CERTIFICATE: Final = "a box shows its certificate; enrol it first"
NOTHING_SAID: Final[dict[str, Any]] = {
    "seen_ms": 0, "told_timestamp": 0, "told_snapshot": 0, "told_generation": 0, "report": b"", "report_digest": "",
    "clock_ahead_ms": 0,
}  # fmt: skip
"""What is known of a box that has not asked yet: what another one in its place said is not so of it."""


class Contact:
    """See the module."""

    def __init__(self, store: FleetStore, authority: Authority, publisher: Publisher) -> None:
        self._store = store
        self._authority = authority
        self._publisher = publisher

    def enrol(self, enrolment: Enrolment, now_ms: int) -> Enrolled:
        """The box is one of the fleet from now on. One whose answer was lost asks again with the same key and token.
        Raises Refused."""
        try:
            name, secret = tokens.parts_of(enrolment.token)
            key = key_of(enrolment.request)
        except (ValueError, RequestInvalid) as error:
            raise Refused(400, "bad-enrolment", str(error)) from error
        if enrolment.name and not is_name(enrolment.name):
            raise Refused(400, "bad-enrolment", f"a device is called by {NAME_RULE}")
        with self._store.transaction() as rows:
            token = tokens.enrolment(rows, name, secret, now_ms)
            if token is None:
                raise Refused(403, "bad-token", "this token is not known, was withdrawn or is too old")
            if token.used_by:
                known = rows.all(tables.certificates, device=token.used_by, key=key, revoked=False)
                if not known:
                    raise Refused(403, "token-used", "this token was used already, by another box")
                device = token.used_by
            else:
                device = self._admit(rows, token, enrolment, now_ms)
            certificate = self._issue(rows, enrolment.request, device, now_ms)
            root = rows.one(tables.roots, version=1)
        assert root is not None
        return Enrolled(
            device=device, certificate=certificate, authorities=self._authority.pem, root=root.data
        )

    def _admit(self, rows: Rows, token: Row[Any], enrolment: Enrolment, now_ms: int) -> str:
        """The box's name: the one that it replaces, the one that it would like if that is free, or a new one."""
        device = token.device or enrolment.name
        there = rows.one(tables.devices, name=device) if device else None
        if token.device:
            rows.change(tables.certificates, {"device": device}, revoked=True)
        elif there is not None:
            raise Refused(
                409,
                "name-taken",
                f"there is a device '{device}'; give this one another name, or a token for it",
            )
        device = device or f"box-{secrets.token_hex(4)}"
        said = json.dumps(bounded(enrolment.inventory))
        if there is None:
            rows.put(
                tables.devices,
                name=device,
                in_group=token.in_group,
                state=ACTIVE,
                created_ms=now_ms,
                inventory=said,
            )
        else:
            rows.change(tables.devices, {"name": device}, state=ACTIVE, inventory=said, **NOTHING_SAID)
            rows.forget_deeds(device)
        rows.change(tables.tokens, {"name": token.name}, used_by=device)
        rows.note(now_ms, f"token {token.name}", "enrolled", device=device, replaces=bool(there))
        return device

    def _issue(self, rows: Rows, request: str, device: str, now_ms: int) -> str:
        """A certificate; each is remembered for good, so few are issued at a time. Raises Refused."""
        good_till_ms = now_ms + DEVICE_GOOD // timedelta(milliseconds=1)
        known = rows.all(tables.certificates, device=device, revoked=False)
        if sum(each.expires_ms > good_till_ms - ISSUED_WITHIN_S * 1000 for each in known) >= ISSUED_MAX:
            raise Refused(429, "too-often", "this box asks for too many certificates", ISSUED_WITHIN_S)
        issued = self._authority.issue(request, device, utc(now_ms))
        rows.put(
            tables.certificates,
            serial=issued.serial,
            device=device,
            key=issued.key,
            expires_ms=issued.expires_ms,
            revoked=False,
        )
        return issued.pem

    def renew(self, certificate: x509.Certificate | None, renewal: Renewal, now_ms: int) -> Renewed:
        """A new certificate for the same key. The old one may have expired. Raises Refused."""
        with self._store.transaction() as rows:
            device = self._device(rows, certificate, now_ms, expired=True)
            assert certificate is not None
            try:
                asked = key_of(renewal.request)
            except RequestInvalid as error:
                raise Refused(400, "bad-request", str(error)) from error
            if asked != key_digest(certificate.public_key()):  # type: ignore[arg-type]
                raise Refused(403, "another-key", "a renewal is for the key that the box has")
            pem = self._issue(rows, renewal.request, device.name, now_ms)
            rows.note(now_ms, f"device {device.name}", "renewed")
        return Renewed(certificate=pem, authorities=self._authority.pem)

    def poll(self, certificate: x509.Certificate | None, poll: Poll, now_ms: int) -> Polled:
        """What the box lacks. Raises Refused."""
        with self._store.transaction() as rows:
            device = self._device(rows, certificate, now_ms)
            assert certificate is not None
            wants_report = self._take_report(rows, device, poll, now_ms)
            told = {
                "told_timestamp": poll.timestamp,
                "told_snapshot": poll.snapshot,
                "told_generation": poll.targets,
            }
            if not wants_report:  # else the report that is here would stand beside what it knows now
                rows.change(tables.devices, {"name": device.name}, seen_ms=now_ms, **told)
            metadata = self._publisher.current(rows, device, poll, now_ms)
            roots = rows.all(tables.roots)
        left = certificate.not_valid_after_utc - utc(now_ms)
        newer = [root.data for root in roots if root.version > poll.root]
        answer = Polled(
            now_ms=now_ms,
            poll_s=POLL_S,
            renew=left < RENEW_BEFORE,
            wants_report=wants_report,
            roots=tuple(newer[:ROOTS_PER_ANSWER_MAX]),
            group=device.in_group,
        )
        if metadata is None:
            return answer
        counters = metadata.counters
        return msgspec.structs.replace(
            answer,
            timestamp=metadata.timestamp if counters.timestamp > poll.timestamp else b"",
            snapshot=metadata.snapshot if counters.snapshot > poll.snapshot else b"",
            targets=metadata.targets if counters.targets > poll.targets else b"",
            document=metadata.document if counters.targets > poll.targets else b"",
        )

    def _take_report(self, rows: Rows, device: Row[Any], poll: Poll, now_ms: int) -> bool:
        """Keep the report; whether the one of its digest is wanted."""
        if not poll.report:
            return poll.report_digest not in ("", device.report_digest)
        try:
            report = decode(poll.report, Report)
        except MessageInvalid as error:
            raise Refused(400, "bad-report", str(error)) from error
        if report.device != device.name:
            raise Refused(403, "another-device", f"a report of '{report.device}' came from '{device.name}'")
        rows.change(
            tables.devices,
            {"name": device.name},
            report=poll.report,
            report_digest=digest_of(poll.report),
            clock_ahead_ms=report.wall_ms - now_ms if report.wall_ms else 0,
        )
        return False

    def batch(self, body: bytes) -> Batch:
        """The telemetry in a body. Raises Refused."""
        try:
            return batch_in(body)
        except MessageInvalid as error:
            raise Refused(400, "bad-telemetry", str(error)) from error

    def telemetry(self, certificate: x509.Certificate | None, batch: Batch, now_ms: int) -> Acknowledged:
        """Keep records; what is acknowledged is on the disk. Raises Refused."""
        with self._store.transaction() as rows:
            device = self._device(rows, certificate, now_ms)
            if is_full(rows, device.name):
                raise Refused(429, "telemetry-full", FULL, FULL_RETRY_S)
            return rows.take_batch(device.name, batch, now_ms)

    def known(self, certificate: x509.Certificate | None, now_ms: int) -> str:
        """The device's name, for what needs no more. Raises Refused."""
        with self._store.look() as rows:
            return str(self._device(rows, certificate, now_ms).name)

    def _device(
        self, rows: View, certificate: x509.Certificate | None, now_ms: int, *, expired: bool = False
    ) -> Row[Any]:
        """Who shows the certificate; ``expired``: it may have expired. Raises Refused."""
        if certificate is None:
            raise Refused(401, "no-certificate", NO_CERTIFICATE)
        issued = issued_to(rows, certificate)
        device = rows.one(tables.devices, name=device_of(certificate))
        if issued is None or device is None or issued.device != device.name:
            raise Refused(
                403, "unknown-certificate", "this certificate is not known here; enrol the box again"
            )
        if issued.revoked or device.state == REVOKED:
            raise Refused(403, "revoked", f"'{device.name}' was revoked")
        if not expired and certificate.not_valid_after_utc <= utc(now_ms):
            raise Refused(403, "certificate-expired", "the certificate has expired; renew it")
        return device


def issued_to(rows: View, certificate: x509.Certificate) -> Row[Any] | None:
    """What is known of a certificate that the authority has signed. A renewal that is younger than the backup which the
    controller came back from is not known: it counts by another one for the same device and key."""
    issued = rows.one(tables.certificates, serial=f"{certificate.serial_number:x}")
    if issued is not None:
        return issued
    key = key_digest(certificate.public_key())  # type: ignore[arg-type]
    same = rows.all(tables.certificates, device=device_of(certificate), key=key)
    return min(same, key=lambda each: bool(each.revoked), default=None)


def is_full(rows: Rows, name: str) -> bool:
    """Whether so much is kept of the device that no more is taken."""
    device = rows.one(tables.devices, name=name)
    return device is not None and int(device.telemetry_bytes) >= TELEMETRY_MAX
