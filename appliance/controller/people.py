"""What operators ask of the controller. Each change is one transaction with its line in the audit log. Blocks: off the
event loop."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec
from sqlalchemy import Row

from appliance.controller import tables, tokens
from appliance.controller.audit import FIRST, Line, first_wrong
from appliance.controller.authority import Authority
from appliance.controller.fleet_store import FleetStore, View
from appliance.controller.publishing import AT_ONCE, Publisher
from appliance.controller.releases import Releases
from appliance.controller.rollout_rows import halt_strayed
from appliance.controller.schemas import (
    AuditCheck,
    AuditEntry,
    Changed,
    Device,
    DriftEntry,
    EnrolmentTokenRequest,
    Group,
    LogEntry,
    ModelStanding,
    PersonTokenRequest,
    Release,
    Replaced,
    SettingRequest,
    TokenInfo,
    TokenMade,
    TokenWithdrawn,
    WantRequest,
    Wish,
    WishMade,
)
from appliance.controller.standings import SHOWN, is_current, report_of, standings
from appliance.controller.wishing import make_ready, put_wish
from appliance.domain.errors import OperatorError
from appliance.fleet.documents import Setting
from appliance.fleet.messages import Report
from appliance.fleet.places import CONFLICT, REVOKED, Census, Whereabouts, census
from appliance.fleet.settings import setting_problems

LOG_MAX: Final = 10_000
LOG_BYTES_MAX: Final = 8 << 20
"""Of records in one answer."""
AUDIT_PAGE: Final = 1000
TOLD_MAX: Final = 1 << 62
"""Versions beyond which nobody comes by going on from where he is: a box that tells of such lies, or was lied to."""
POLL_SETTING: Final = "fleet.poll_s"
POLL_DIGITS: Final = 5
"""A day has 86,400 seconds: what is longer is no pause between polls."""


class Unknown(OperatorError):
    """A device, group or token that is not there."""


class People:
    """See the module. ``url`` is where boxes reach the controller."""

    def __init__(
        self, store: FleetStore, authority: Authority, publisher: Publisher, releases: Releases, url: str
    ) -> None:
        self._store = store
        self._authority = authority
        self._publisher = publisher
        self._releases = releases
        self._url = url

    # --- tokens

    def enrolment_token(self, request: EnrolmentTokenRequest, who: str, now_ms: int) -> TokenMade:
        """A token for a box. Raises Unknown where it is to replace one that is not there."""
        expires = now_ms + request.hours * tokens.HOUR_MS
        with self._store.transaction() as rows:
            if request.device:
                _device(rows, request.device)
            name, token = tokens.make_enrolment(
                rows,
                self._url,
                self._authority.digest,
                who,
                expires,
                device=request.device,
                group=request.group,
            )
            rows.note(now_ms, who, "token", name=name, device=request.device, group=request.group)
        return TokenMade(name, token, expires)

    def person_token(self, request: PersonTokenRequest, who: str, now_ms: int) -> TokenMade:
        """A token for a person. Raises OperatorError where there is one of that name."""
        expires = now_ms + request.hours * tokens.HOUR_MS
        with self._store.transaction() as rows:
            there = rows.one(tables.tokens, name=request.name)
            if there is not None and not there.revoked:
                raise OperatorError(
                    f"there is a token '{request.name}' already; revoke it first, or take another name"
                )
            token = tokens.make_person(rows, request.name, request.role, who, expires)
            rows.note(now_ms, who, "token", name=request.name, role=request.role)
        return TokenMade(request.name, token, expires)

    def revoke_token(self, name: str, who: str, now_ms: int) -> TokenWithdrawn:
        """The token is good for nothing any more. Raises Unknown."""
        with self._store.transaction() as rows:
            if not rows.change(tables.tokens, {"name": name}, revoked=True):
                raise Unknown(f"there is no token '{name}'")
            rows.note(now_ms, who, "token-revoked", name=name)
            admins = rows.all(tables.tokens, "name", "expires_ms", "revoked", role=tokens.ADMIN)
        left = any(not each.revoked and now_ms < each.expires_ms for each in admins)
        return TokenWithdrawn(0, not left and any(each.name == name for each in admins))

    def tokens(self) -> list[TokenInfo]:
        """All tokens, without themselves."""
        with self._store.look() as rows:
            found = rows.all(tables.tokens)
        return [
            TokenInfo(
                row.name,
                row.kind,
                row.role,
                row.device,
                row.in_group,
                row.made_by,
                row.expires_ms,
                row.used_by,
                row.revoked,
            )
            for row in found
        ]

    # --- devices and groups

    def devices(self, group: str = "") -> list[Device]:
        """All devices, or those of the group."""
        return self._devices({"in_group": group} if group else {})

    def device(self, name: str) -> Device:
        """The device. Raises Unknown."""
        if not (found := self._devices({"name": name})):
            raise _unknown(name)
        with self._store.look() as rows:
            facts = json.loads(_device(rows, name).inventory)
        return msgspec.structs.replace(found[0], facts=facts)

    def _devices(self, key: Mapping[str, Any]) -> list[Device]:
        with self._store.look() as rows:
            found = rows.all(tables.devices, *SHOWN, **key)
            expiries = rows.certified(key)
            own = _scoped(rows, "device/")
            behind = self._publisher.behind(rows, key)
        return [
            _standing(
                row,
                row.generation + (row.name in behind),
                expiries.get(row.name, 0),
                *own(f"device/{row.name}"),
            )
            for row in found
        ]

    def drift(self) -> list[DriftEntry]:
        """What operators of boxes decided there, of all devices."""
        with self._store.look() as rows:
            found = rows.all(tables.devices, "name", "report")
        return [entry for row in found for entry in _drift(row.name, report_of(row))]

    def groups(self, group: str, now_ms: int) -> list[Group]:
        """All groups that have devices, wishes or settings, or the one ("": all), if it has."""
        with self._store.look() as rows:
            found = standings(rows, self._publisher, {"in_group": group} if group else {}).groups
            scopes = {
                row.scope for table in (tables.wishes, tables.settings) for row in rows.all(table, "scope")
            }
            own = _scoped(rows, f"group/{group}")
        names = found.keys() | {each.removeprefix("group/") for each in scopes if each.startswith("group/")}
        names = names & {group} if group else names - {""}
        return [
            _group(name, census(found.get(name, ()), now_ms), *own(f"group/{name}")) for name in sorted(names)
        ]

    def regroup(self, name: str, group: str, who: str, now_ms: int) -> Changed:
        """The device belongs to that group from now on. Raises Unknown."""
        with self._store.transaction() as rows:
            _device(rows, name)
            rows.change(tables.devices, {"name": name}, in_group=group, revision=-1)
            rows.note(now_ms, who, "group", device=name, group=group)
        return Changed(1)

    def revoke(self, name: str, who: str, now_ms: int) -> Changed:
        """The device's certificates, and tokens to take its place, are good for nothing any more. Raises Unknown."""
        with self._store.transaction() as rows:
            _device(rows, name)
            rows.change(tables.devices, {"name": name}, state=REVOKED)
            rows.change(tables.certificates, {"device": name}, revoked=True)
            rows.change(tables.tokens, {"device": name}, revoked=True)
            rows.note(now_ms, who, "revoked", device=name)
        return Changed(1)

    def resume(self, name: str, who: str, now_ms: int) -> Changed:
        """The device, or all of them ("") that are in conflict, get what is wanted here, above what they have; one that
        has come too far for that is left as it is. Raises Unknown, and OperatorError where it was named."""
        with self._store.look() as view:
            names = [name] if name else [row.name for row in view.all(tables.devices, "name", state=CONFLICT)]
        groups = (names[start : start + AT_ONCE] for start in range(0, len(names), AT_ONCE))
        return Changed(sum(self._resume(each, bool(name), who, now_ms) for each in groups))

    def _resume(self, names: Sequence[str], named: bool, who: str, now_ms: int) -> int:
        """The same of some devices, in one transaction; gives how many."""
        with self._store.transaction() as rows:
            found = [row for each in names if (row := _device(rows, each)).state == CONFLICT]
            near = [row for row in found if _told(row) < TOLD_MAX]
            if named and len(near) < len(found):
                text = f"'{names[0]}' tells of documents beyond all that can be made; enrol it anew, or revoke it"
                raise OperatorError(text)
            for row in near:
                self._publisher.resume(rows, row, now_ms)
                rows.note(now_ms, who, "resumed", device=row.name, told=row.told_generation)
        return len(near)

    # --- what is wanted

    def want(self, request: WantRequest, who: str, now_ms: int) -> WishMade:
        """The wish counts from the next poll of each device on. Raises NoRelease, Unknown and OperatorError."""
        scope = _scope(request.group, request.device)
        with self._store.look() as rows:
            concerned = _concerned(rows, request.group, request.device, "name")
        key = {"name": request.device} if request.device else {"in_group": request.group}
        make_ready(self._store, self._releases, request.model, request.wish, key, [scope])
        with self._store.transaction() as rows:
            before = put_wish(rows, scope, request.model, request.wish, who, now_ms)
            halts = halt_strayed(rows, request.model, who, now_ms)
        return WishMade(len(concerned), before, halts)

    def setting(self, request: SettingRequest, who: str, now_ms: int) -> Replaced:
        """The setting counts from the next poll of each device on. Raises Unknown and OperatorError."""
        scope = _scope(request.group, request.device)
        if request.value is not None and (wrong := setting_problems({request.name: request.value})):
            raise OperatorError("; ".join(wrong))
        with self._store.transaction() as rows:
            concerned = _concerned(rows, request.group, request.device, "name")
            there = rows.one(tables.settings, scope=scope, name=request.name)
            if request.value is None and there is None:
                return Replaced(len(concerned), False)
            if request.value is None:
                rows.remove(tables.settings, scope=scope, name=request.name)
            else:
                rows.put(tables.settings, scope=scope, name=request.name, value=json.dumps(request.value))
            rows.count_up("revision")
            rows.note(now_ms, who, "setting", scope=scope, name=request.name, value=request.value)
        return Replaced(len(concerned), there is not None)

    def all_releases(self) -> list[Release]:
        """What was uploaded, and not withdrawn."""
        with self._store.look() as rows:
            found, ways = rows.all(tables.releases), rows.all(tables.transfers)
        return [
            Release(
                row.model,
                row.version,
                row.manifest,
                row.total_bytes,
                next((way.size for way in ways if _is_of(way, row) and not way.base), 0),
                {way.base: way.size for way in ways if _is_of(way, row) and way.base},
                row.trust,
                row.by_whom,
                row.at_ms,
            )
            for row in found
            if row.package
        ]

    # --- what happened

    def logs(self, device: str, after_ms: int, most: int) -> list[LogEntry]:
        """The newest records of a device ("": of all), within ``most`` and LOG_BYTES_MAX. Raises Unknown."""
        with self._store.look() as rows:
            if device:
                _device(rows, device)
            found = rows.telemetry(device, after_ms, min(most, LOG_MAX), LOG_BYTES_MAX)
        return [
            LogEntry(row.device, row.stream, row.epoch, row.number, row.at_ms, _shown(row.record))
            for row in found
        ]

    def audit(self, after: int, most: int, newest: int) -> list[AuditEntry]:
        """Lines of the audit log after the number ``after``; or so many that are the ``newest``, if that is not 0."""
        with self._store.look() as rows:
            if newest:
                return [AuditEntry(*line) for line in rows.newest_audit_lines(min(newest, AUDIT_PAGE))]
            return [AuditEntry(*line) for line in rows.audit_lines(after, min(most, AUDIT_PAGE))]

    def check_audit(self) -> AuditCheck:
        """Whether no line was changed or left out."""
        lines: list[Line] = []
        with self._store.look() as rows:
            while page := rows.audit_lines(lines[-1].number if lines else 0, AUDIT_PAGE):
                lines += page
        return AuditCheck(len(lines), first_wrong(lines), lines[-1].digest if lines else FIRST)


def _scope(group: str, device: str) -> str:
    if bool(group) == bool(device):
        raise OperatorError("say for which group or for which device, one of them")
    return f"group/{group}" if group else f"device/{device}"


def _concerned(rows: View, group: str, device: str, column: str) -> Sequence[Row[Any]]:
    """The ``column`` of the device, or of all that are in the group. Raises Unknown."""
    if device:
        _device(rows, device)
    return rows.all(tables.devices, column, **({"name": device} if device else {"in_group": group}))


def _device(rows: View, name: str) -> Row[Any]:
    found = rows.one(tables.devices, name=name)
    if found is None:
        raise _unknown(name)
    return found


def _unknown(name: str) -> Unknown:
    return Unknown(f"there is no device '{name}'")


def _told(row: Row[Any]) -> int:
    return int(max(row.told_timestamp, row.told_snapshot, row.told_generation))


def _is_of(way: Row[Any], row: Row[Any]) -> bool:
    return bool((way.model, way.version) == (row.model, row.version))


def poll_s_of(report: Report) -> int:
    """How often the device asks, as it reported; 0: it has not. One for which nothing was chosen reports the default,
    and goes by ``POLL_S``, which is the same."""
    number = report.settings.get(POLL_SETTING, "").partition(" ")[0]
    return int(number) if number.isascii() and number.isdecimal() and len(number) <= POLL_DIGITS else 0


def _scoped(rows: View, of: str) -> Callable[[str], tuple[dict[str, Wish], dict[str, Setting]]]:
    """What is wished and set, by its scope, for scopes that begin with ``of``."""
    wishes: dict[str, dict[str, Wish]] = {}
    settings: dict[str, dict[str, Setting]] = {}
    for row in rows.all(tables.wishes):
        if row.scope.startswith(of):
            wishes.setdefault(row.scope, {})[row.model] = msgspec.json.decode(row.wish, type=Wish)
    for row in rows.all(tables.settings):
        if row.scope.startswith(of):
            settings.setdefault(row.scope, {})[row.name] = json.loads(row.value)
    return lambda scope: (wishes.get(scope, {}), settings.get(scope, {}))


def _drift(name: str, report: Report) -> tuple[DriftEntry, ...]:
    return tuple(
        DriftEntry(name, each.model, each.what, each.version, each.who, each.since_ms)
        for each in report.drift
    )


def _group(name: str, counts: Census, wishes: dict[str, Wish], settings: dict[str, Setting]) -> Group:
    return Group(
        name=name,
        devices=counts.devices,
        there=counts.places.get(Whereabouts.THERE, 0),
        failed=counts.failed,
        silent=sum(counts.silent) + counts.never,
        wishes=wishes,
        settings=settings,
    )


def _standing(
    row: Row[Any],
    generation: int,
    certificate_expires_ms: int,
    wishes: dict[str, Wish],
    settings: dict[str, Setting],
) -> Device:
    report = report_of(row)
    return Device(
        name=row.name,
        group=row.in_group,
        state=row.state,
        seen_ms=row.seen_ms,
        generation=generation,
        told_generation=row.told_generation,
        freshness=report.freshness,
        converged=report.converged and is_current(row, report, generation),
        serving=report.serving,
        agent=report.agent,
        models=tuple(
            ModelStanding(
                each.name,
                each.wanted,
                each.serving,
                each.phase,
                each.reason or each.code,
                each.missing_bytes,
                each.managed,
            )
            for each in report.models
        ),
        drift=_drift(row.name, report),
        problems=report.problems,
        outbox_bytes=report.outbox_bytes,
        certificate_expires_ms=certificate_expires_ms,
        poll_s=poll_s_of(report),
        wishes=wishes,
        settings=settings,
    )


def _shown(record: bytes) -> Any:
    """The record as JSON, or in hexadecimal where it cannot be: what a box sends keeps nobody from reading the rest."""
    try:
        return msgspec.Raw(msgspec.json.encode(msgspec.msgpack.decode(record)))
    except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
        return record[:2048].hex()
