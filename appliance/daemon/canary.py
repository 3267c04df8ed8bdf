"""A request of our own, by which the daemon knows that it can still have a model answer.

Asked only where no client was answered for a while, of the version that was used last and is in memory, with zeros; it
counts among that version's requests. A version that does not take zeros is asked no more; where none is left to ask,
nothing is known but that the loop turns.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Final

from appliance.domain.errors import ApplianceError
from appliance.domain.inference import NO_DEADLINE, Answer, Outcome, RequestHead, TensorHead
from appliance.domain.model import ModelVersion, VersionState
from appliance.domain.tensor import FREE, element_count
from appliance.engine.port import EnginePort, Submission

REQUEST_ID: Final = "canary"
_RESIDENT: Final = "resident"
_EMPTY_TEXT: Final = 4
"""Bytes of one in a tensor of texts."""


class Canary:
    """Asks ``engine``, one request at a time; ``proven`` is called whenever one was answered. Owner: the event loop's
    thread."""

    def __init__(self, engine: EnginePort, proven: Callable[[], None]) -> None:
        self._engine = engine
        self._proven = proven
        self._answered = self._answers()
        self._under_way = False
        self._proved: set[tuple[str, int]] = set()
        self._unfit: set[tuple[str, int]] = set()

    def look(self) -> None:
        """Call ``proven`` now where requests were answered since the last look, or where nothing can be asked; ask
        otherwise, unless what was asked then is still under way."""
        before, self._answered = self._answered, self._answers()
        if self._answered > before:
            self._proven()
        elif not self._under_way:
            version = self._fit()
            if version is None:
                self._proven()
            else:
                self._ask(version)

    def _answers(self) -> int:
        return sum(each.statistics.inferences for each in self._engine.status().versions)

    def _fit(self) -> ModelVersion | None:
        """The version to ask: that which was used last of those in memory that may take zeros."""
        ready = [
            each
            for each in self._engine.status().versions
            if each.state is VersionState.READY and each.residency == _RESIDENT
        ]
        ready.sort(key=lambda each: each.statistics.last_inference_ms, reverse=True)
        for each in ready:
            for version in self._engine.versions(each.name):
                if version.version == each.version and _key(version) not in self._unfit:
                    return version
        return None

    def _ask(self, version: ModelVersion) -> None:
        """Where the engine has no room, others wait to be answered, which the next look sees."""
        shapes = [(spec, _shape_of(version, spec.shape)) for spec in version.inputs if not spec.optional]
        heads = tuple(TensorHead(spec.name, spec.datatype.wire, shape) for spec, shape in shapes)
        head = RequestHead(model_name=version.name, model_version=str(version.version), inputs=heads)
        try:
            plan = self._engine.plan(head)
        except ApplianceError:
            self._ended(version, None)
            return
        submission = Submission(
            plan=plan,
            request_id=REQUEST_ID,
            arrived_ns=self._engine.now_ns(),
            deadline_ns=NO_DEADLINE,
            on_done=partial(self._ended, version),
        )
        zeros = [bytes(element_count(shape) * (spec.datatype.size or _EMPTY_TEXT)) for spec, shape in shapes]
        with suppress(ApplianceError):
            self._engine.submit(submission, zeros)
            self._under_way = True

    def _ended(self, version: ModelVersion, outcome: Outcome | None) -> None:
        """A version that never took zeros is asked no more; that one which did fails proves nothing."""
        self._under_way = False
        if isinstance(outcome, Answer):
            outcome.release()
            self._proved.add(_key(version))
        elif _key(version) in self._proved:
            return
        else:
            self._unfit.add(_key(version))
        self._proven()


def _key(version: ModelVersion) -> tuple[str, int]:
    return version.name, version.version


def _shape_of(version: ModelVersion, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Of one row, with one element where a dimension is free."""
    fixed = tuple(1 if size == FREE else size for size in shape)
    return (1, *fixed) if version.max_batch_size > 0 else fixed
