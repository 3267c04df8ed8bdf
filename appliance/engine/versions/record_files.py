"""The records of versions under a state directory: tries, proofs, costs, rows, incumbents and history, written by a
thread of their own.

Where the folder was moved they are written into it still; where another one has its place, all of them are written
there. What must be there before something begins is told back when it is on the disk; all else only follows. A file
that cannot be read is begun anew, and that is reported: at worst a version, or its rows, are tried once more. Owner:
the event loop's thread, but for what the writer's thread does.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from appliance.core.rollout.records import Change, Proof, Standing
from appliance.domain.assessment import Assessment, Deviation
from appliance.domain.errors import OperatorError
from appliance.domain.manifest import INT64_MAX
from appliance.durable import RealFolder, make_own_directory, read_whole, replace_file
from appliance.engine.versions.history import FILE, FILE_BEFORE, FILE_BYTES_MAX, encoded, read_history
from appliance.engine.versions.record_table import FORMAT, RecordTable, as_json
from appliance.engine.versions.records import Cost, MemoryRecords, model_of
from appliance.store.full_disk import reason_of
from appliance.store.layout import INCUMBENTS

TRIES: Final = "tries.json"
PROOFS: Final = "proofs.json"
COSTS: Final = "costs.json"
ROWS: Final = "rows.json"
REQUESTS: Final = "requests.json"
SEATS: Final = Path(INCUMBENTS).name
BYTES_MAX: Final = 64 << 20
CLOSE_S: Final = 5.0

Job = Callable[[], None]


class FileRecords:
    """Implements Records in the directory ``folder``, which is made if need be. ``post`` runs a function in the event
    loop's thread; ``report`` writes a log line, from there. Raises OperatorError when the directory cannot be used."""

    def __init__(
        self, folder: Path, post: Callable[[Callable[[], None]], object], report: Callable[..., None]
    ) -> None:
        self._path = folder
        self._post = post
        self._report = report
        try:
            make_own_directory(folder)
            self._folder = RealFolder(folder)
            self._known = MemoryRecords(changes=read_history(folder))
        except OSError as error:
            raise OperatorError(
                f"'{folder}' cannot be used: {error.strerror}; it must be writable"
            ) from error
        self._read()
        self._said: str | None = None
        self._tries = RecordTable(TRIES, "versions", "{}", model_of, _try_row)
        self._tries.change(self._known.standings.items(), self._known.heeded)
        self._proofs = RecordTable(PROOFS, "proofs", "[]", _model_of_pair, _proof_row)
        self._proofs.change(self._known.proofs.items())
        self._costs = RecordTable(COSTS, "costs", "[]", _model_of_pair, _cost_row)
        self._costs.change(self._known.costs.items())
        self._rows = RecordTable(ROWS, "rows", "[]", _model_of_pair, _rows_row)
        self._rows.change(self._known.rows.items())
        self._seats = RecordTable(SEATS, "models", "{}", str, _seat_row)
        self._seats.change(self._known.seats.items())
        self._requests = RecordTable(REQUESTS, "versions", "{}", model_of, _request_row)
        self._requests.change(self._known.requests.items())
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write, name="records", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for file, take in (
            (COSTS, self._take_costs),
            (TRIES, self._take_tries),
            (PROOFS, self._take_proofs),
            (ROWS, self._take_rows),
            (SEATS, self._take_seats),
            (REQUESTS, self._take_requests),
        ):
            try:
                data = read_whole(self._folder, file, BYTES_MAX)
                if data is not None:
                    document = json.loads(data)
                    if document["format"] != FORMAT:
                        raise ValueError(f"format {document['format']} is not {FORMAT}")
                    take(document)
            except (
                OSError,
                ValueError,
                TypeError,
                KeyError,
                AttributeError,
                ArithmeticError,
                RecursionError,
            ) as error:
                self._report("records cannot be read; they begin anew", file=file, error=str(error))

    def _take_tries(self, document: Mapping[str, Any]) -> None:
        for identity, (tries, rejected, *later) in document["versions"].items():
            self._known.standings.put(
                str(identity), Standing(_whole(tries), str(rejected) or None, *map(_whole, later[:2]))
            )
        if (asked := document.get("asked")) is not None:
            self._known.heed({str(key): _whole(at_ms) for key, at_ms in asked.items()})

    def _take_proofs(self, document: Mapping[str, Any]) -> None:
        for identity, box, proven, assessment in document["proofs"]:
            proof = Proof(None if assessment is None else _assessment(*assessment), proven=bool(proven))
            self._known.prove(str(identity), str(box), proof)

    def _take_costs(self, document: Mapping[str, Any]) -> None:
        for identity, box, packed, *numbers in document["costs"]:
            memory_bytes, weights_bytes, load_ns, page_in_ns = (max(_whole(number), 0) for number in numbers)
            cost = Cost(memory_bytes, weights_bytes, load_ns, page_in_ns, packed=bool(packed))
            self._known.weigh(str(identity), str(box), cost)

    def _take_rows(self, document: Mapping[str, Any]) -> None:
        for identity, box, mix in document["rows"]:
            if not isinstance(mix, bool):
                raise ValueError(f"whether rows mix is {mix!r}")
            self._known.rows_tried(str(identity), str(box), mix=mix)

    def _take_seats(self, document: Mapping[str, Any]) -> None:
        self._known.seats = {str(name): str(identity) for name, identity in document["models"].items()}

    def _take_requests(self, document: Mapping[str, Any]) -> None:
        self._known.requested({str(key): _whole(at_ms) for key, at_ms in document["versions"].items()})

    # --- Records

    def standing(self, identity: str) -> Standing:
        """See Records."""
        return self._known.standing(identity)

    def count(
        self,
        identities: Sequence[str],
        at_ms: int,
        done: Callable[[str | None], None],
        *,
        again: bool = False,
    ) -> None:
        """See Records."""
        rows: list[tuple[str, Standing | None]] = []
        for identity in identities:
            self._known.add_try(identity, at_ms, again)
            rows.append((identity, self._known.standing(identity)))
        self._tries.change(rows, self._known.heeded)
        self._put(self._tries, done)

    def given_up(self, identity: str, at_ms: int) -> None:
        """See Records."""
        self._known.given_up(identity, at_ms)
        self._put_standing(identity)

    def reject(self, identity: str, reason: str) -> None:
        """See Records."""
        self._known.reject(identity, reason)
        self._put_standing(identity)

    def give_back(self, identity: str, *, again: bool = False) -> None:
        """See Records."""
        if identity in self._known.standings:
            self._known.give_back(identity, again=again)
            self._put_standing(identity)

    def forgive(self, identity: str) -> None:
        """See Records."""
        if identity in self._known.standings:
            self._known.forgive(identity)
            self._put_standing(identity)

    def _put_standing(self, identity: str) -> None:
        self._tries.change(((identity, self._known.standings.get(identity)),), self._known.heeded)
        self._put(self._tries)

    def proof(self, identity: str, box: str) -> Proof | None:
        """See Records."""
        return self._known.proof(identity, box)

    def prove(self, identity: str, box: str, proof: Proof) -> None:
        """See Records."""
        if proof != self._known.proof(identity, box):
            self._known.prove(identity, box, proof)
            self._proofs.change((((identity, box), proof),))
            self._put(self._proofs)

    def cost(self, identity: str, box: str) -> Cost | None:
        """See Records."""
        return self._known.cost(identity, box)

    def weigh(self, identity: str, box: str, cost: Cost) -> None:
        """See Records."""
        self._known.weigh(identity, box, cost)
        self._costs.change((((identity, box), cost),))
        self._put(self._costs)

    def rows_mix(self, identity: str, box: str) -> bool | None:
        """See Records."""
        return self._known.rows_mix(identity, box)

    def rows_tried(self, identity: str, box: str, *, mix: bool) -> None:
        """See Records."""
        if mix is not self._known.rows_mix(identity, box):
            self._known.rows_tried(identity, box, mix=mix)
            self._rows.change((((identity, box), mix),))
            self._put(self._rows)

    def seat(self, name: str, identity: str) -> None:
        """See Records."""
        if self._known.seats.get(name) != identity:
            self._known.seat(name, identity)
            self._seats.change(((name, identity),))
            self._put(self._seats)

    def incumbents(self) -> Mapping[str, str]:
        """See Records."""
        return self._known.incumbents()

    def asked(self) -> Mapping[str, int] | None:
        """See Records."""
        return self._known.asked()

    def heed(self, asked: Mapping[str, int]) -> None:
        """See Records."""
        self._known.heed(asked)
        self._jobs.put(lambda: self._attempt(self._follow, None))

    def last_request(self, key: str) -> int:
        """See Records."""
        return self._known.last_request(key)

    def requested(self, last: Mapping[str, int], *, write: bool) -> None:
        """See Records."""
        news = {key: at_ms for key, at_ms in last.items() if at_ms > self.last_request(key)}
        self._known.requested(news)
        if news:
            self._requests.change(news.items())
        if write:
            self._put(self._requests)

    def happened(self, change: Change) -> None:
        """See Records."""
        line = encoded(self._known.number(change))
        self._jobs.put(lambda: self._attempt(lambda: self._append(line), None))

    def history(self, name: str) -> tuple[Change, ...]:
        """See Records."""
        return self._known.history(name)

    def close(self) -> None:
        """Write what is left, within CLOSE_S seconds."""
        self._jobs.put(None)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._folder.close()

    def _put(self, table: RecordTable[Any, Any], done: Callable[[str | None], None] | None = None) -> None:
        """Have its file replaced; the first of several that wait writes what all of them changed."""
        self._jobs.put(lambda: self._attempt(lambda: self._replace(table), done))

    # --- the writer's thread

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _attempt(self, write: Callable[[], None], done: Callable[[str | None], None] | None) -> None:
        problem: str | None = None
        try:
            write()
        except OSError as error:
            problem = reason_of(error)
        try:
            if done is not None:
                self._post(lambda: done(problem))
            elif problem is not None and problem != self._said:
                self._post(lambda: self._report("records cannot be written", error=problem))
            if done is None:
                self._said = problem
        except RuntimeError:
            return  # the event loop is gone, and with it what waited

    def _follow(self) -> None:
        """Go on in the directory that has the folder's place now, if it is another one."""
        if self._folder.is_in_place():
            return
        try:
            folder = RealFolder(self._path)
        except OSError:
            return  # nothing has its place
        self._folder.close()
        self._folder = folder
        tables: tuple[RecordTable[Any, Any], ...] = (
            self._tries,
            self._proofs,
            self._costs,
            self._rows,
            self._seats,
            self._requests,
        )
        for table in tables:
            table.touch()
        for table in tables:
            self._replace(table)

    def _replace(self, table: RecordTable[Any, Any]) -> None:
        self._follow()
        if table.due():
            replace_file(self._folder, table.file, f"{table.file}.new", table.document())
            table.written()

    def _append(self, line: bytes) -> None:
        """One line at the end, for good; a line that was cut short by a power cut is ended first."""
        self._follow()
        descriptor = self._folder.open(FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            rest = memoryview(line)
            while rest:  # a disk that is nearly full takes a part first, and refuses the next
                rest = rest[os.write(descriptor, rest) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not size:
            self._folder.sync_directory("")
        if size + len(line) > FILE_BYTES_MAX:
            self._folder.rename(FILE, FILE_BEFORE)


def last_requests(folder: Path) -> Mapping[str, int]:
    """When versions were asked last, by their keys, as the records in ``folder`` say; nothing where they cannot be
    read."""
    try:
        versions = json.loads((folder / REQUESTS).read_bytes())["versions"]
        return {str(key): _whole(at_ms) for key, at_ms in versions.items()}
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return {}


def _model_of_pair(pair: tuple[str, str]) -> str:
    return model_of(pair[0])


def _try_row(identity: str, standing: Standing) -> bytes:
    document = standing._replace(rejected=standing.rejected or "")
    return as_json(identity) + b":" + as_json(document)


def _proof_row(pair: tuple[str, str], proof: Proof) -> bytes:
    """Releases before this one look whether the last field is empty, and find a promise broken where it is not."""
    found = proof.assessment
    return as_json((*pair, proof.proven, found and (*found[:-1], found.promised_ns or "")))


def _cost_row(pair: tuple[str, str], cost: Cost) -> bytes:
    return as_json((*pair, cost.packed, *cost[:4]))


def _rows_row(pair: tuple[str, str], mix: bool) -> bytes:
    return as_json((*pair, mix))


def _request_row(key: str, at_ms: int) -> bytes:
    return as_json(key) + b":" + as_json(at_ms)


def _seat_row(name: str, identity: str) -> bytes:
    return as_json(name) + b":" + as_json(identity)


def _assessment(cases: Any, worst: Sequence[Any], *numbers: Any) -> Assessment | None:
    """None where an older release says in words that a promise was not kept: it is assessed anew."""
    *measured, promised = numbers
    if isinstance(promised, str) and promised:
        return None
    deviations = tuple(Deviation(str(name), float(one), float(other)) for name, one, other in worst)
    rows, runs, p50_ns, p99_ns = map(_whole, measured)
    return Assessment(_whole(cases), deviations, rows, runs, p50_ns, p99_ns, _whole(promised or 0))


def _whole(number: Any) -> int:
    """A count or time of a record. Raises ValueError for what none can be."""
    if not abs(number) <= INT64_MAX:
        raise ValueError("a number in it is none of its kind")
    return int(number)
