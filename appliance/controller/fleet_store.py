"""What the controller knows, in a database: every change is a transaction that is on the disk when it ends.

The database is SQLite in a file; the statements stand here once. One change at a time; the engine's own locks are for
processes beside this one, such as a backup. Who only looks waits for no change, and no change waits for him, but for
a moment once the log of changes is long: the boxes of a large fleet poll while people look at all of it.
"""

from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import (
    Connection,
    Engine,
    Row,
    create_engine,
    delete,
    event,
    func,
    insert,
    literal,
    or_,
    select,
    update,
)
from sqlalchemy.dialects.sqlite import insert as upsert
from sqlalchemy.exc import SQLAlchemyError

from appliance.controller import tables
from appliance.controller.audit import Line, next_line
from appliance.controller.deeds import add_up
from appliance.controller.losses import losses
from appliance.domain.errors import OperatorError
from appliance.fleet.inventory import newest
from appliance.fleet.messages import Acknowledged, Batch
from appliance.fleet.places import REVOKED
from appliance.fleet.records import Lost

MIGRATIONS: Final = Path(__file__).with_name("migrations")
BUSY_MS: Final = 10_000
LOOKS: Final = "appliance_looks"
"""Of a connection: nothing is changed over it."""
LOG_BYTES: Final = 64 << 20
"""Beyond it SQLite's log of changes is begun anew."""
LOG_WAIT_S: Final = 5.0
"""For how long that may wait for who looks."""
ROW_BYTES: Final = 160
"""What a row of telemetry takes besides the record, about: many small ones fill a disk, too."""
KEPT: Final = (
    (tables.telemetry, ("record",)), (tables.losses, ("reason",)), (tables.deeds, ("deeds",)),
    (tables.loads, ("loaded", "ending")),
)  # fmt: skip
"""What is kept of a device's telemetry, each row for a time, and its columns that may be long."""


class DatabaseTrouble(OperatorError):
    """The database cannot be used."""


class FleetStore:
    """See the module. ``url`` is SQLAlchemy's of the file. Brings the database to its present form. Raises
    DatabaseTrouble."""

    def __init__(self, url: str) -> None:
        self._lock = Turns()
        self._lookers = _Lookers()
        self._log_most = LOG_BYTES
        # A look takes a connection of its own, so there are as many as threads: none waits for one that is held.
        self._engine: Engine = create_engine(url, max_overflow=-1)
        self._looks = self._engine.execution_options(**{LOOKS: True})
        _prepare(self._engine)
        try:
            with self._engine.connect() as connection:
                config = Config()
                config.set_main_option("script_location", str(MIGRATIONS))
                config.attributes["connection"] = connection
                command.upgrade(config, "head")
                connection.commit()
        except SQLAlchemyError as error:
            raise DatabaseTrouble(f"the database cannot be opened: {_cause(error)}") from error
        except CommandError as error:
            self._engine.dispose()
            raise DatabaseTrouble(
                f"the database is of a newer release, which this one cannot read ({error}); run that release, or put "
                "back the backup of before the upgrade"
            ) from error

    @contextmanager
    def transaction(self) -> Iterator[Rows]:
        """All that is done in the block, or nothing of it. Raises DatabaseTrouble."""
        with self._lock:
            try:
                with self._engine.begin() as connection:
                    yield Rows(connection)
            except SQLAlchemyError as error:
                raise DatabaseTrouble(f"the database failed: {_cause(error)}; nothing was changed") from error
            self._shorten_log()

    @contextmanager
    def look(self) -> Iterator[View]:
        """All as it is at one moment, to look at. Raises DatabaseTrouble."""
        try:
            with self._lookers.one(), self._looks.begin() as connection:
                yield View(connection)
        except SQLAlchemyError as error:
            raise DatabaseTrouble(f"the database failed: {_cause(error)}; nothing was changed") from error

    def _shorten_log(self) -> None:
        """Begin SQLite's log of changes anew once it is long. By itself SQLite does so only when nobody looks, and at a
        large fleet somebody always may."""
        if (size := self._log_bytes()) < self._log_most:
            return
        with self._lookers.none(LOG_WAIT_S) as away:
            if away:
                _checkpoint(self._engine)
        self._log_most = LOG_BYTES if self._log_bytes() < LOG_BYTES else size + LOG_BYTES

    def _log_bytes(self) -> int:
        try:
            return os.stat(f"{self._engine.url.database}-wal").st_size
        except OSError:
            return 0

    def close(self) -> None:
        """Let go of the database."""
        self._engine.dispose()


class Turns:
    """A lock that goes to who waited longest: one who makes many changes in a row lets others in between. Python's own
    goes to who asks again at once."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        turn = threading.Lock()
        with self._mutex:
            if not self._taken:
                self._taken = True
                return
            turn.acquire()
            self._waiting.append(turn)
        turn.acquire()

    def __exit__(self, *of: object) -> None:
        with self._mutex:
            if self._waiting:
                self._waiting.popleft().release()
            else:
                self._taken = False

    def locked(self) -> bool:
        """Whether somebody has it."""
        return self._taken

    def waiting(self) -> int:
        """How many wait for it."""
        return len(self._waiting)


class _Lookers:
    """Who looks, and when nobody does."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._count = 0
        self._kept_out = False

    @contextmanager
    def one(self) -> Iterator[None]:
        """For one who looks."""
        with self._changed:
            self._changed.wait_for(lambda: not self._kept_out)
            self._count += 1
        try:
            yield
        finally:
            with self._changed:
                self._count -= 1
                self._changed.notify_all()

    @contextmanager
    def none(self, wait_s: float) -> Iterator[bool]:
        """Let nobody begin, and wait for those that look; whether they ended in time."""
        with self._changed:
            self._kept_out = True
            try:
                yield self._changed.wait_for(lambda: not self._count, wait_s)
            finally:
                self._kept_out = False
                self._changed.notify_all()


class View:
    """What is in the database, at one moment."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    def one(self, table: Any, **key: Any) -> Row[Any] | None:
        """The row whose columns have these values."""
        return self._connection.execute(_where(select(table), table, key)).first()

    def all(self, table: Any, *columns: str, **key: Any) -> Sequence[Row[Any]]:
        """The rows whose columns have these values, or one of these where it is a tuple, in the order of their keys; of
        each the ``columns``, or all."""
        order = list(table.primary_key.columns)
        found: Any = select(*(table.c[each] for each in columns)) if columns else select(table)
        rows: Sequence[Row[Any]] = self._connection.execute(_where(found, table, key).order_by(*order)).all()
        return rows

    def number(self, key: str) -> int:
        """A number of the fleet; 0 when it was never set."""
        found = self.one(tables.state, key=key)
        return int(found.value) if found else 0

    # --- devices, of which there may be many: no more of each than is needed

    def documents(self, but: str) -> Sequence[Row[Any]]:
        """Name and document of each device that has one and another state than ``but``."""
        table = tables.devices
        found: Any = select(table.c.name, table.c.document).where(
            table.c.document != b"", table.c.state != but
        )
        rows: Sequence[Row[Any]] = self._connection.execute(found).all()
        return rows

    def behind(self, state: str, revision: int, key: Mapping[str, Any]) -> Sequence[Row[Any]]:
        """Name, group and document of devices in that ``state`` that have ``key``, as far as the document was not made
        for the ``revision``, or is none."""
        table = tables.devices
        other = or_(table.c.revision != revision, func.length(table.c.document) == 0)
        found: Any = select(table.c.name, table.c.in_group, table.c.document).where(
            table.c.state == state, other
        )
        rows: Sequence[Row[Any]] = self._connection.execute(_where(found, table, key)).all()
        return rows

    def certified(self, key: Mapping[str, Any]) -> dict[str, int]:
        """Until when devices that have ``key`` are certified, in milliseconds."""
        table, devices = tables.certificates, tables.devices
        found: Any = select(table.c.device, func.max(table.c.expires_ms)).where(table.c.revoked.is_(False))
        if key:
            found = found.where(table.c.device.in_(_where(select(devices.c.name), devices, key)))
        rows = self._connection.execute(found.group_by(table.c.device)).all()
        return {device: int(expires_ms) for device, expires_ms in rows}

    def deeds(self, model: str, since_ms: int, group: str, device: str, most: int) -> Iterator[Row[Any]]:
        """Device, version, span and deeds of a model since then, at most so many, on devices of the group, or of all
        (""), that were not revoked, or on the one device."""
        table = tables.deeds
        columns = table.c.device, table.c.version, table.c.at_ms, table.c.deeds
        found: Any = select(*columns).where(table.c.model == model, table.c.at_ms >= since_ms)
        found = found.where(table.c.device.in_(_names(group, device))).limit(most)
        with closing(self._connection.execution_options(yield_per=1000).execute(found)) as rows:
            yield from rows

    def loads(self, model: str, group: str, device: str) -> Sequence[Row[Any]]:
        """How versions of a model were loaded, on the same devices."""
        table = tables.loads
        found: Any = select(table).where(table.c.model == model, table.c.device.in_(_names(group, device)))
        rows: Sequence[Row[Any]] = self._connection.execute(found).all()
        return rows

    def lost(self, stream: str, since_ms: int) -> dict[str, int]:
        """How many records of a stream devices told since then that they lost, by their names."""
        table = tables.losses
        count = func.sum(table.c.last - table.c.first + 1)
        found: Any = select(table.c.device, count).where(table.c.stream == stream, table.c.at_ms >= since_ms)
        return {
            device: int(lost) for device, lost in self._connection.execute(found.group_by(table.c.device))
        }

    # --- what happened

    def audit_lines(self, after: int, most: int) -> list[Line]:
        """Lines of the audit log with numbers greater than ``after``, ascending."""
        table = tables.audit
        found = self._connection.execute(
            select(table).where(table.c.number > after).order_by(table.c.number).limit(most)
        )
        return [Line(*row) for row in found]

    def newest_audit_lines(self, most: int) -> list[Line]:
        """The last ``most`` lines of the audit log, ascending."""
        found = self._connection.execute(
            select(tables.audit).order_by(tables.audit.c.number.desc()).limit(most)
        )
        return [Line(*row) for row in found][::-1]

    def telemetry(self, device: str, after_ms: int, most: int, bytes_most: int) -> list[Row[Any]]:
        """The newest records of a device that came at ``after_ms`` or later, in the order in which they came: at most
        so many, of so many bytes."""
        table, taken, size = tables.telemetry, list[Row[Any]](), 0
        found = self._connection.execute(
            _where(select(table), table, {"device": device} if device else {})
            .where(table.c.at_ms >= after_ms)
            .order_by(table.c.at_ms.desc(), table.c.stream.desc(), table.c.number.desc())
            .limit(most)
        )
        with closing(found):
            for row in found:
                size += len(row.record)
                if size > bytes_most:
                    break
                taken.append(row)
        return taken[::-1]


class Rows(View):
    """What is in the database, within a transaction, and changes of it."""

    # --- one row of any table

    def put(self, table: Any, **values: Any) -> None:
        """The row with these values, in the place of the one with its key."""
        keys = [column.name for column in table.primary_key.columns]
        rest = {name: value for name, value in values.items() if name not in keys}
        statement = upsert(table).values(**values)
        self._connection.execute(
            statement.on_conflict_do_update(index_elements=keys, set_=rest or {keys[0]: values[keys[0]]})
        )

    def put_all(self, table: Any, values: Sequence[Mapping[str, Any]]) -> None:
        """The same of many rows, which have the same columns."""
        keys = [column.name for column in table.primary_key.columns]
        statement = upsert(table)
        rest = {name: statement.excluded[name] for name in values[0] if name not in keys}
        self._connection.execute(
            statement.on_conflict_do_update(index_elements=keys, set_=rest), [dict(each) for each in values]
        )

    def change(self, table: Any, key: Mapping[str, Any], **values: Any) -> int:
        """Change rows that have ``key``; gives how many."""
        return self._connection.execute(_where(update(table), table, key).values(**values)).rowcount

    def remove(self, table: Any, **key: Any) -> int:
        """Remove the rows whose columns have these values; gives how many."""
        return self._connection.execute(_where(delete(table), table, key)).rowcount

    def count_up(self, key: str) -> int:
        """A number of the fleet, one more than it was."""
        value = self.number(key) + 1
        self.put(tables.state, key=key, value=value)
        return value

    def note(self, at_ms: int, who: str, what: str, **detail: object) -> None:
        """A line of the audit log."""
        last = self._connection.execute(
            select(tables.audit).order_by(tables.audit.c.number.desc()).limit(1)
        ).first()
        line = next_line(Line(*last) if last else None, at_ms, who[:128], what, detail)
        self._connection.execute(insert(tables.audit).values(**line._asdict()))

    # --- telemetry

    def take_batch(self, device: str, batch: Batch, at_ms: int) -> Acknowledged:
        """Keep what is new in the batch, and which numbers will not come; what was kept before stays as it is."""
        for epoch in {each.epoch for each in batch.lost} - {batch.epoch}:
            lost = [each for each in batch.lost if each.epoch == epoch]
            key = {"device": device, "stream": batch.stream, "epoch": epoch}
            start = self._next(key, min(each.first for each in lost))
            self._lose(key, start, max(each.last for each in lost) + 1, lost, at_ms)
        key = {"device": device, "stream": batch.stream, "epoch": batch.epoch}
        lost = [each for each in batch.lost if each.epoch == batch.epoch]
        start = self._next(key, min([batch.first, *(each.first for each in lost)]))
        self._lose(key, start, batch.first, lost, at_ms)
        records = batch.records[max(start - batch.first, 0) :]
        end = max(start, batch.first + len(batch.records))
        if records:
            fresh = [
                {**key, "number": number, "at_ms": at_ms, "record": record}
                for number, record in enumerate(records, end - len(records))
            ]
            self._connection.execute(insert(tables.telemetry), fresh)
            grown = add_up(self, device, records, at_ms, ROW_BYTES)
            self._grow(device, grown + sum(ROW_BYTES + len(record) for record in records))
            if (facts := newest(records)) is not None:
                self.change(tables.devices, {"name": device}, inventory=json.dumps(facts))
        self.put(tables.outboxes, **key, next=end)
        return Acknowledged(stream=batch.stream, epoch=batch.epoch, next=end)

    def _next(self, key: Mapping[str, Any], otherwise: int) -> int:
        known = self.one(tables.outboxes, **key)
        if known is None:
            self._grow(key["device"], ROW_BYTES)
        return int(known.next) if known else otherwise

    def _lose(self, key: Mapping[str, Any], start: int, end: int, lost: Sequence[Lost], at_ms: int) -> None:
        for each in losses(start, end, lost):
            self._connection.execute(insert(tables.losses).values(**key, **each._asdict(), at_ms=at_ms))
            self._grow(key["device"], ROW_BYTES + len(each.reason))
        self.put(tables.outboxes, **key, next=max(start, end))

    def _grow(self, device: str, count: int) -> None:
        table = tables.devices
        changed = update(table).where(table.c.name == device)
        self._connection.execute(changed.values(telemetry_bytes=table.c.telemetry_bytes + count))

    def forget_telemetry(self, before_ms: int) -> int:
        """Remove records, and what was lost, that came before that time; gives how many records."""
        gone = []
        for table, said in KEPT:
            old = table.c.at_ms < before_ms
            sizes = select(table.c.device, _size(table, said)).where(old)
            for device, count in self._connection.execute(sizes.group_by(table.c.device)).all():
                self._grow(device, -int(count))
            gone.append(self._connection.execute(delete(table).where(old)).rowcount)
        return gone[0]

    def forget_deeds(self, device: str) -> None:
        """Remove what was added up of the device: what comes next is of another machine."""
        for table, said in KEPT[2:]:
            own = table.c.device == device
            self._grow(
                device, -int(self._connection.execute(select(_size(table, said)).where(own)).scalar() or 0)
            )
            self._connection.execute(delete(table).where(own))


def _size(table: Any, said: Sequence[str]) -> Any:
    """What rows take, where the columns ``said`` may be long."""
    return func.sum(sum((func.length(table.c[each]) for each in said), literal(ROW_BYTES)))


def _names(group: str, device: str) -> Any:
    """Who of the devices are meant, but for those that were revoked."""
    table = tables.devices
    found = select(table.c.name).where(table.c.state != REVOKED)
    found = found.where(table.c.in_group == group) if group else found
    return found.where(table.c.name == device) if device else found


def _where(statement: Any, table: Any, key: Mapping[str, Any]) -> Any:
    """The statement of rows whose columns have these values; where the value is a tuple, one of it."""
    for name, value in key.items():
        column = table.c[name]
        statement = statement.where(column.in_(value) if isinstance(value, tuple) else column == value)
    return statement


def _prepare(engine: Engine) -> None:
    """Transactions as SQLite has them, and what was committed on the disk."""

    @event.listens_for(engine, "connect")
    def connected(connection: Any, _: object) -> None:
        connection.isolation_level = None
        for pragma in ("journal_mode = WAL", "synchronous = FULL", f"busy_timeout = {BUSY_MS}"):
            connection.execute(f"PRAGMA {pragma}")

    @event.listens_for(engine, "begin")
    def begun(connection: Connection) -> None:
        looks = connection.get_execution_options().get(LOOKS, False)
        connection.exec_driver_sql("BEGIN" if looks else "BEGIN IMMEDIATE")


def _checkpoint(engine: Engine) -> None:
    """Bring the log into the database and begin it anew, unless another process is reading, or the disk fails: the next
    change tells that."""
    with suppress(SQLAlchemyError, sqlite3.Error), closing(engine.raw_connection()) as connection:
        cursor = connection.cursor()
        cursor.execute("PRAGMA busy_timeout = 0")
        try:
            cursor.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
        finally:
            cursor.execute(f"PRAGMA busy_timeout = {BUSY_MS}")


def _cause(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", None) or error).splitlines()[0][:200]
