"""What the daemon remembers of versions across its own restarts, as a port: tries, assessments, history, incumbents.

A version that is not proven on this box is counted before each try, and for good before the try begins, as boot loaders
do: one that takes the box down with it is not tried for ever. ``record_files`` keeps all of this under a state
directory; ``MemoryRecords`` for as long as the process lives.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final, NamedTuple, Protocol, TypeVar

from appliance.core.rollout.records import Change, Proof, Standing

CHANGES_KEPT: Final = 1_000
VERSIONS_KEPT: Final = 10_000
VERSIONS_KEPT_OF_MODEL: Final = 64
"""Versions whose tries, assessments, costs and rows are remembered, in all and of one model; the oldest go first. A
directory whose version changes a thousand times a day leaves no more than that."""


class Cost(NamedTuple):
    """What a version takes in one process, private memory and mapped weights, and how long it took to load, or to get
    its weights back (0: not known). ``packed``: it ran from a form."""

    memory_bytes: int
    weights_bytes: int
    load_ns: int
    page_in_ns: int = 0
    packed: bool = False


class Records(Protocol):
    """A version is named by its identity (see ``record_key``); a proof holds for an identity on ``box``: runtime,
    device, processor. Calls return at once; what is to be kept is written later, in order, but for ``count``."""

    def standing(self, identity: str) -> Standing:
        """How it stands."""

    def count(
        self,
        identities: Sequence[str],
        at_ms: int,
        done: Callable[[str | None], None],
        *,
        again: bool = False,
    ) -> None:
        """One more try of each, for good, at ``at_ms``; ``again``: see Standing. Then, perhaps before this returns,
        ``done`` is called in the engine's thread: with None, or with why it could not be written."""

    def given_up(self, identity: str, at_ms: int) -> None:
        """It serves no more, or never will, since ``at_ms``."""

    def reject(self, identity: str, reason: str) -> None:
        """Do not try it again."""

    def give_back(self, identity: str, *, again: bool = False) -> None:
        """The try that was counted last showed nothing: it is one less; ``again``: as it was counted."""

    def forgive(self, identity: str) -> None:
        """Forget its tries: it is proven, or an operator asked for it again."""

    def proof(self, identity: str, box: str) -> Proof | None:
        """What it proved there."""

    def prove(self, identity: str, box: str, proof: Proof) -> None:
        """Remember that."""

    def cost(self, identity: str, box: str) -> Cost | None:
        """What it cost there."""

    def weigh(self, identity: str, box: str, cost: Cost) -> None:
        """Remember that."""

    def rows_mix(self, identity: str, box: str) -> bool | None:
        """Whether its rows change one another's answers there; None: nobody has tried them."""

    def rows_tried(self, identity: str, box: str, *, mix: bool) -> None:
        """Remember that."""

    def seat(self, name: str, identity: str) -> None:
        """The version serves model ``name`` and is proven: after a restart it stands in until another has come as far,
        whatever is wanted by then."""

    def incumbents(self) -> Mapping[str, str]:
        """The identity of the version that was seated last, by name of its model."""

    def asked(self) -> Mapping[str, int] | None:
        """What was heeded last; None: never was anything."""

    def heed(self, asked: Mapping[str, int]) -> None:
        """When each version was asked for last, by its key, as far as that is dealt with. Kept with whatever is written
        next of tries, so that neither can be lost without the other."""

    def last_request(self, key: str) -> int:
        """When version ``key`` (``name/version``) answered a request last, in milliseconds since 1970 (0: never)."""

    def requested(self, last: Mapping[str, int], *, write: bool) -> None:
        """Remember that of several; ``write``: soon on the disk, too, if there is news since the last time."""

    def happened(self, change: Change) -> None:
        """Add a line to the history, under the next number."""

    def history(self, name: str) -> tuple[Change, ...]:
        """The lines of one model, or of all for "", oldest first, as many as are kept."""


K = TypeVar("K")
V = TypeVar("V")


class Newest(Mapping[K, V]):
    """What was put in last: so much of each model, and so much in all. ``name_of`` gives the model of a key."""

    def __init__(self, name_of: Callable[[K], str]) -> None:
        self._name_of = name_of
        self._models: dict[str, dict[K, V]] = {}
        self._size = 0

    def __getitem__(self, key: K) -> V:
        return self._models[self._name_of(key)][key]

    def __iter__(self) -> Iterator[K]:
        for mine in self._models.values():
            yield from mine

    def __len__(self) -> int:
        return self._size

    def all(self) -> Iterator[V]:
        """The values, as ``values`` has them, but without a look-up of each."""
        return chain.from_iterable(map(dict[K, V].values, self._models.values()))

    def put(self, key: K, value: V) -> None:
        """Keep it as the newest; the oldest goes where that is too much."""
        self.drop(key)
        name = self._name_of(key)
        mine = self._models[name] = self._models.pop(name, {})
        mine[key] = value
        self._size += 1
        if len(mine) > VERSIONS_KEPT_OF_MODEL:
            self.drop(next(iter(mine)))
        if self._size > VERSIONS_KEPT:
            self.drop(next(iter(self)))

    def drop(self, key: K) -> None:
        """Keep it no more, if it was kept."""
        name = self._name_of(key)
        mine = self._models.get(name, {})
        if key in mine:
            del mine[key]
            self._size -= 1
            if not mine:
                del self._models[name]


class MemoryRecords:
    """Implements Records without a disk."""

    def __init__(
        self,
        standings: Iterable[tuple[str, Standing]] = (),
        proofs: Iterable[tuple[str, str, Proof]] = (),
        changes: Iterable[Change] = (),
    ) -> None:
        self.standings: Newest[str, Standing] = Newest(model_of)
        self.proofs: Newest[tuple[str, str], Proof] = Newest(lambda key: model_of(key[0]))
        self.costs: Newest[tuple[str, str], Cost] = Newest(lambda key: model_of(key[0]))
        self.rows: Newest[tuple[str, str], bool] = Newest(lambda key: model_of(key[0]))
        self.requests: Newest[str, int] = Newest(model_of)
        self.seats: dict[str, str] = {}
        self.heeded: dict[str, int] | None = None
        self._changes = deque(changes, CHANGES_KEPT)
        self._last = self._changes[-1].sequence if self._changes else 0
        self._boxes: dict[str, str] = {}  # equal ones are kept once
        for identity, standing in standings:
            self.standings.put(identity, standing)
        for identity, box, proof in proofs:
            self.prove(identity, box, proof)

    def standing(self, identity: str) -> Standing:
        """See Records."""
        return self.standings.get(identity, Standing())

    def count(
        self,
        identities: Sequence[str],
        at_ms: int,
        done: Callable[[str | None], None],
        *,
        again: bool = False,
    ) -> None:
        """See Records."""
        for identity in identities:
            self.add_try(identity, at_ms, again)
        done(None)

    def add_try(self, identity: str, at_ms: int, again: bool) -> None:
        """Count without an answer."""
        known = self.standing(identity)
        self.standings.put(
            identity, known._replace(tries=known.tries + 1, at_ms=at_ms, again=known.again + again)
        )

    def given_up(self, identity: str, at_ms: int) -> None:
        """See Records."""
        self.standings.put(identity, self.standing(identity)._replace(at_ms=at_ms))

    def reject(self, identity: str, reason: str) -> None:
        """See Records."""
        self.standings.put(identity, self.standing(identity)._replace(rejected=reason))

    def give_back(self, identity: str, *, again: bool = False) -> None:
        """See Records."""
        if (known := self.standings.get(identity)) is not None:
            less = known._replace(tries=max(known.tries - 1, 0), again=max(known.again - again, 0))
            self.standings.put(identity, less)

    def forgive(self, identity: str) -> None:
        """See Records."""
        self.standings.drop(identity)

    def proof(self, identity: str, box: str) -> Proof | None:
        """See Records."""
        return self.proofs.get((identity, box))

    def prove(self, identity: str, box: str, proof: Proof) -> None:
        """See Records."""
        self.proofs.put((identity, self._boxes.setdefault(box, box)), proof)

    def cost(self, identity: str, box: str) -> Cost | None:
        """See Records."""
        return self.costs.get((identity, box))

    def weigh(self, identity: str, box: str, cost: Cost) -> None:
        """See Records."""
        self.costs.put((identity, self._boxes.setdefault(box, box)), cost)

    def rows_mix(self, identity: str, box: str) -> bool | None:
        """See Records."""
        return self.rows.get((identity, box))

    def rows_tried(self, identity: str, box: str, *, mix: bool) -> None:
        """See Records."""
        self.rows.put((identity, self._boxes.setdefault(box, box)), mix)

    def seat(self, name: str, identity: str) -> None:
        """See Records."""
        self.seats.pop(name, None)
        self.seats[name] = identity
        while len(self.seats) > VERSIONS_KEPT:
            del self.seats[next(iter(self.seats))]

    def incumbents(self) -> Mapping[str, str]:
        """See Records."""
        return dict(self.seats)

    def asked(self) -> Mapping[str, int] | None:
        """See Records."""
        return self.heeded

    def heed(self, asked: Mapping[str, int]) -> None:
        """See Records."""
        self.heeded = dict(asked)

    def last_request(self, key: str) -> int:
        """See Records."""
        return self.requests.get(key, 0)

    def requested(self, last: Mapping[str, int], *, write: bool = False) -> None:
        """See Records."""
        for key, at_ms in last.items():
            self.requests.put(key, at_ms)

    def happened(self, change: Change) -> None:
        """See Records."""
        self.number(change)

    def number(self, change: Change) -> Change:
        """Add a line; gives it with its number."""
        self._last += 1
        numbered = replace(change, sequence=self._last)
        self._changes.append(numbered)
        return numbered

    def history(self, name: str) -> tuple[Change, ...]:
        """See Records."""
        return tuple(change for change in self._changes if not name or change.name == name)


def model_of(identity: str) -> str:
    """The name of the model that a version is of."""
    return identity.partition("/")[0]
