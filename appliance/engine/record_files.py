"""The records of versions under a state directory: tries, proofs, costs, incumbents and history, written by a thread
of their own.

Where the folder was moved they are written into it still; where another one has its place, all of them are written
there. What must be there before something begins is told back when it is on the disk; all else only follows. A file
that cannot be read is begun anew, and that is reported: at worst a version is tried or assessed once more. Owner: the
event loop's thread, but for what the writer's thread does.
"""

from __future__ import annotations

import json
import os
import queue
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from appliance.durable import RealFolder, read_whole, replace_file
from appliance.engine.history import FILE, FILE_BEFORE, FILE_BYTES_MAX, encoded, read_history
from appliance.engine.records import Change, Cost, MemoryRecords, Proof, Standing
from appliance.errors import OperatorError
from appliance.store.layout import INCUMBENTS
from appliance.workers.port import Assessment, Deviation

TRIES: Final = "tries.json"
PROOFS: Final = "proofs.json"
COSTS: Final = "costs.json"
SEATS: Final = Path(INCUMBENTS).name
FORMAT: Final = 1
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
            folder.mkdir(exist_ok=True)
            self._folder = RealFolder(folder)
            self._known = MemoryRecords(changes=read_history(folder))
        except OSError as error:
            raise OperatorError(
                f"'{folder}' cannot be used: {error.strerror}; it must be writable"
            ) from error
        self._read()
        self._said = ""
        self._newest: dict[str, Callable[[], bytes]] = {
            TRIES: _tries(self._known),
            PROOFS: _proofs(self._known.proofs),
            COSTS: _costs(self._known.costs),
            SEATS: _seats(self._known.seats),
        }
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()
        self._dirty: dict[str, Callable[[], bytes]] = {}
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._write, name="records", daemon=True)
        self._thread.start()

    def _read(self) -> None:
        for file, take in (
            (COSTS, self._take_costs),
            (TRIES, self._take_tries),
            (PROOFS, self._take_proofs),
            (SEATS, self._take_seats),
        ):
            try:
                data = read_whole(self._folder, file, BYTES_MAX)
                if data is not None:
                    document = json.loads(data)
                    if document["format"] != FORMAT:
                        raise ValueError(f"format {document['format']} is not {FORMAT}")
                    take(document)
            except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                self._report("records cannot be read; they begin anew", file=file, error=str(error))

    def _take_tries(self, document: Mapping[str, Any]) -> None:
        for identity, (tries, rejected, *later) in document["versions"].items():
            self._known.standings.put(
                str(identity), Standing(int(tries), str(rejected), *map(int, later[:2]))
            )
        if (asked := document.get("asked")) is not None:
            self._known.heed({str(key): int(at_ms) for key, at_ms in asked.items()})

    def _take_proofs(self, document: Mapping[str, Any]) -> None:
        for identity, box, proven, assessment in document["proofs"]:
            proof = Proof(None if assessment is None else _assessment(assessment), proven=bool(proven))
            self._known.prove(str(identity), str(box), proof)

    def _take_costs(self, document: Mapping[str, Any]) -> None:
        for identity, box, packed, *numbers in document["costs"]:
            memory_bytes, weights_bytes, load_ns, fill_ns = (max(int(number), 0) for number in numbers)
            cost = Cost(memory_bytes, weights_bytes, load_ns, fill_ns, packed=bool(packed))
            self._known.weigh(str(identity), str(box), cost)

    def _take_seats(self, document: Mapping[str, Any]) -> None:
        self._known.seats = {str(name): str(identity) for name, identity in document["models"].items()}

    # --- Records

    def standing(self, identity: str) -> Standing:
        """See Records."""
        return self._known.standing(identity)

    def count(
        self, identities: Sequence[str], at_ms: int, done: Callable[[str], None], *, again: bool = False
    ) -> None:
        """See Records."""
        self._known.add_tries(identities, at_ms, again)
        self._put(TRIES, _tries(self._known), done)

    def given_up(self, identity: str, at_ms: int) -> None:
        """See Records."""
        self._known.given_up(identity, at_ms)
        self._put(TRIES, _tries(self._known))

    def reject(self, identity: str, reason: str) -> None:
        """See Records."""
        self._known.reject(identity, reason)
        self._put(TRIES, _tries(self._known))

    def forgive(self, identity: str) -> None:
        """See Records."""
        if identity in self._known.standings:
            self._known.forgive(identity)
            self._put(TRIES, _tries(self._known))

    def proof(self, identity: str, box: str) -> Proof | None:
        """See Records."""
        return self._known.proof(identity, box)

    def prove(self, identity: str, box: str, proof: Proof) -> None:
        """See Records."""
        if proof != self._known.proof(identity, box):
            self._known.prove(identity, box, proof)
            self._put(PROOFS, _proofs(self._known.proofs))

    def cost(self, identity: str, box: str) -> Cost | None:
        """See Records."""
        return self._known.cost(identity, box)

    def weigh(self, identity: str, box: str, cost: Cost) -> None:
        """See Records."""
        self._known.weigh(identity, box, cost)
        self._put(COSTS, _costs(self._known.costs))

    def seat(self, name: str, identity: str) -> None:
        """See Records."""
        if self._known.seats.get(name) != identity:
            self._known.seat(name, identity)
            self._put(SEATS, _seats(self._known.seats))

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

    def happened(self, change: Change) -> None:
        """See Records."""
        self._known.happened(change)
        self._jobs.put(lambda: self._attempt(lambda: self._append(encoded(change)), None))

    def history(self, name: str) -> tuple[Change, ...]:
        """See Records."""
        return self._known.history(name)

    def close(self) -> None:
        """Write what is left, within CLOSE_S seconds."""
        self._jobs.put(None)
        self._thread.join(CLOSE_S)
        if not self._thread.is_alive():
            self._folder.close()

    # --- the writer's thread

    def _put(self, file: str, encode: Callable[[], bytes], done: Callable[[str], None] | None = None) -> None:
        """Have ``file`` replaced by what ``encode`` gives; only the newest of several that wait is written."""
        with self._lock:
            self._dirty[file] = self._newest[file] = encode
        self._jobs.put(lambda: self._attempt(lambda: self._replace(file), done))

    def _write(self) -> None:
        while (job := self._jobs.get()) is not None:
            job()

    def _attempt(self, write: Callable[[], None], done: Callable[[str], None] | None) -> None:
        problem = ""
        try:
            write()
        except OSError as error:
            problem = error.strerror or str(error)
        try:
            if done is not None:
                self._post(lambda: done(problem))
            elif problem and problem != self._said:
                self._post(lambda: self._report("records cannot be written", error=problem))
            if done is None:
                self._said = problem
        except RuntimeError:
            return  # the event loop is gone, and whoever waited with it

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
        with self._lock:
            self._dirty |= self._newest
        for file in list(self._newest):
            self._replace(file)

    def _replace(self, file: str) -> None:
        self._follow()
        with self._lock:
            encode = self._dirty.pop(file, None)
        if encode is None:
            return
        try:
            replace_file(self._folder, file, f"{file}.new", encode())
        except OSError:
            with self._lock:
                self._dirty.setdefault(file, encode)
            raise

    def _append(self, line: bytes) -> None:
        """One line at the end, for good; a line that was cut short by a power cut is ended first."""
        self._follow()
        descriptor = self._folder.open(FILE, os.O_RDWR | os.O_CREAT | os.O_APPEND)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":
                line = b"\n" + line
            os.write(descriptor, line)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        if not size:
            self._folder.sync_directory("")
        if size + len(line) > FILE_BYTES_MAX:
            self._folder.rename(FILE, FILE_BEFORE)


def _tries(known: MemoryRecords) -> Callable[[], bytes]:
    versions, asked = dict(known.standings), known.heeded
    return lambda: (
        _document(versions=versions) if asked is None else _document(versions=versions, asked=asked)
    )


def _proofs(proofs: Mapping[tuple[str, str], Proof]) -> Callable[[], bytes]:
    rows = [(identity, box, proof.proven, proof.assessment) for (identity, box), proof in proofs.items()]
    return lambda: _document(proofs=rows)


def _costs(costs: Mapping[tuple[str, str], Cost]) -> Callable[[], bytes]:
    rows = [(identity, box, cost.packed, *cost[:4]) for (identity, box), cost in costs.items()]
    return lambda: _document(costs=rows)


def _seats(seats: Mapping[str, str]) -> Callable[[], bytes]:
    models = dict(seats)
    return lambda: _document(models=models)


def _document(**content: object) -> bytes:
    return json.dumps({"format": FORMAT, **content}, separators=(",", ":")).encode() + b"\n"


def _assessment(fields: Sequence[Any]) -> Assessment:
    cases, worst, rows, runs, p50_ns, p99_ns, failure = fields
    deviations = tuple(Deviation(str(name), float(one), float(other)) for name, one, other in worst)
    return Assessment(int(cases), deviations, int(rows), int(runs), int(p50_ns), int(p99_ns), str(failure))
