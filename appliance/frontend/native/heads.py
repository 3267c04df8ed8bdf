"""Heads of requests that were considered for a template: each once, until the templates of its version are forgotten.

There are only so many. When there is no room, the client that brought most of them makes some: of its heads the first
goes, with its template, that no request came for since it was looked at last. So nobody puts out what others use, and
who brings ever new ones puts out its own, for which it must bring a head twice.
"""

from __future__ import annotations

from collections import OrderedDict
from itertools import islice
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

from appliance.domain.model import ModelVersion
from appliance.engine.fastpath.direct import DirectEngine

if TYPE_CHECKING:
    from edge_appliance_native import FastPath

HEADS_MAX: Final = 4096
SPARED_MAX: Final = 64
"""Heads in use that are passed over at most before one of them goes."""


class Epochs(Protocol):
    """What knows when templates were forgotten."""

    def epoch(self, model: ModelVersion) -> int:
        """A number that becomes another one when the templates of ``model`` are forgotten."""


class _Considered(NamedTuple):
    """A head that ``client`` brought when its version had this epoch; ``plan`` is that of its template, 0 where it has
    none."""

    client: str
    epoch: int
    plan: int = 0


class Heads:
    """``epochs`` tells when the templates of a version are forgotten; ``fast_path`` has the templates, ``direct`` their
    plans. Owner: the event loop's thread."""

    def __init__(self, epochs: Epochs, fast_path: FastPath, direct: DirectEngine) -> None:
        self._epochs = epochs
        self._fast_path = fast_path
        self._direct = direct
        self._heads: dict[bytes, _Considered] = {}
        self._of: OrderedDict[str, OrderedDict[bytes, None]] = OrderedDict()
        """Those of each client that brought any; both in the order in which they are looked at for room."""
        self._seen: OrderedDict[int, None] = OrderedDict()
        """Hashes of heads that came once while there was no room."""

    def is_due(self, head: bytes, client: str, model: ModelVersion) -> bool:
        """Whether ``head``, a request of ``client`` for ``model``, is to be considered now; then it is not again."""
        epoch = self._epochs.epoch(model)
        known = self._heads.get(head)
        if known is not None:
            if known.epoch == epoch:
                return False
            self._forget(head)
        elif len(self._heads) >= HEADS_MAX and not self._make_room(head, client):
            return False
        self._heads[head] = _Considered(client, epoch)
        self._of.setdefault(client, OrderedDict())[head] = None
        return True

    def keep(self, head: bytes, plan: int) -> None:
        """Note that ``head``, which was due, has a template of ``plan``."""
        self._heads[head] = self._heads[head]._replace(plan=plan)

    def _make_room(self, head: bytes, client: str) -> bool:
        """Drop one for ``head``; False where that would be for a head that ``client`` may never bring again."""
        most = max(map(len, self._of.values()))
        if len(self._of.get(client, ())) == most:
            if not self._came_before(hash(head)):
                return False
            clients = [client]
        else:
            clients = [each for each, heads in self._of.items() if len(heads) == most]
        looked_at = list(islice((each for client in clients for each in self._of[client]), SPARED_MAX))
        for each in looked_at:
            if self._fast_path.retire_template(each, spare=True):
                break
            owner = self._heads[each].client
            self._of[owner].move_to_end(each)
            self._of.move_to_end(owner)
        else:
            each = looked_at[0]
            self._fast_path.retire_template(each, spare=False)
        self._forget(each)
        return True

    def _came_before(self, mark: int) -> bool:
        if mark in self._seen:
            del self._seen[mark]
            return True
        if len(self._seen) >= HEADS_MAX:
            self._seen.popitem(last=False)
        self._seen[mark] = None
        return False

    def _forget(self, head: bytes) -> None:
        known = self._heads.pop(head)
        heads = self._of[known.client]
        del heads[head]
        if not heads:
            del self._of[known.client]
        if known.plan:
            self._direct.release(known.plan)
