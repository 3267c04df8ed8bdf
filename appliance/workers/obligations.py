"""What one worker owes: the answers it was asked for, in order, and whether what it says pays them. Pure.

Answers come in the order of the questions. Whatever cannot be true raises MessageInvalid, after which nothing more that
this worker says is to be believed.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from appliance.model import ModelVersion
from appliance.workers.answers import ModelContract
from appliance.workers.codec import MessageInvalid
from appliance.workers.messages import Fetch, Finished, FromWorker, Loaded, Refused, Run, Stored
from appliance.workers.port import (
    Fetched,
    ItemStatus,
    ModelLoaded,
    ModelRefused,
    PoolEvent,
    RunFinished,
    RunItem,
)


class _Owed(NamedTuple):
    """``asked`` is a batch, the id of a model that is loading, or a fetch. ``contract`` is None for a load and for a
    fetch of something that was never held."""

    asked: Run | int | Fetch
    contract: ModelContract | None
    timeout_ns: int


class _Held(NamedTuple):
    contract: ModelContract
    item: RunItem


class _Model(NamedTuple):
    contract: ModelContract
    run_timeout_ns: int


class Obligations:
    """Of the worker with id ``worker``. Owner: the pool."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._owed: deque[_Owed] = deque()
        self._models: dict[int, _Model] = {}
        self._held: dict[int, _Held] = {}

    def __len__(self) -> int:
        return len(self._owed)

    @property
    def timeout_ns(self) -> int:
        """How long the oldest answer may take."""
        return self._owed[0].timeout_ns

    @property
    def oldest(self) -> str:
        """What the oldest answer is about, for people."""
        asked = self._owed[0].asked
        if type(asked) is int:
            return "a load"
        return "a batch" if type(asked) is Run else "a fetch"

    def batches(self) -> tuple[int, ...]:
        """Unfinished batches, the running one first."""
        return tuple(owed.asked.batch for owed in self._owed if type(owed.asked) is Run)

    def loading(self) -> int:
        """The model that is being loaded right now, or -1."""
        asked = self._owed[0].asked if self._owed else None
        return asked if type(asked) is int else -1

    def owe_load(self, model: int, version: ModelVersion, load_timeout_ns: int, run_timeout_ns: int) -> None:
        """A load was asked for; batches of the model may take ``run_timeout_ns`` each."""
        self._models[model] = _Model(ModelContract(version), run_timeout_ns)
        self._owed.append(_Owed(model, None, load_timeout_ns))

    def owe_run(self, run: Run) -> None:
        """A batch was given."""
        contract, timeout_ns = self._models[run.model]
        self._owed.append(_Owed(run, contract, timeout_ns))

    def owe_fetch(self, fetch: Fetch, timeout_ns: int) -> None:
        """Held outputs were asked for."""
        held = self._held.get(fetch.ticket)
        self._owed.append(_Owed(fetch, None if held is None else held.contract, timeout_ns))

    def forget_held(self, ticket: int) -> None:
        """Held outputs are no longer wanted."""
        self._held.pop(ticket, None)

    def forget_model(self, model: int) -> None:
        """No more batches for the model."""
        self._models.pop(model, None)

    def settle(self, message: FromWorker) -> PoolEvent:
        """The event that an answer is."""
        if not self._owed:
            raise MessageInvalid(f"said {type(message).__name__} unasked")
        owed = self._owed[0]
        if type(message) is Finished:
            event: PoolEvent = self._finished(owed, message)
        elif type(message) is Stored:
            event = self._stored(owed, message)
        else:
            assert isinstance(message, (Loaded, Refused))
            event = self._loaded(owed, message)
        self._owed.popleft()
        return event

    def _finished(self, owed: _Owed, message: Finished) -> RunFinished:
        asked, contract, _ = owed
        batch, results, gather_ns, run_ns, scatter_ns = message
        if type(asked) is not Run or asked.batch != batch or contract is None:
            raise MessageInvalid(f"finished batch {batch}, which is not what it owes next")
        if gather_ns < 0 or run_ns < 0 or scatter_ns < 0:
            raise MessageInvalid("times below zero")
        if not contract.check_batch(asked, results):
            for item, result in zip(asked.items, results, strict=True):
                if result.status is ItemStatus.TOO_LARGE:
                    self._held[item.ticket] = _Held(contract, item)
        return RunFinished(self._worker, batch, results, gather_ns, run_ns, scatter_ns)

    def _stored(self, owed: _Owed, message: Stored) -> Fetched:
        asked, result = owed.asked, message.result
        if type(asked) is not Fetch or asked.ticket != result.ticket:
            raise MessageInvalid(f"stored ticket {result.ticket}, which is not what it owes next")
        held = self._held.pop(asked.ticket, None)
        if held is not None:
            held.contract.check_result(held.item, result, asked.out_capacity)
            if result.status is ItemStatus.TOO_LARGE:
                self._held[asked.ticket] = held
        elif not result.status.failed:
            raise MessageInvalid(f"stored ticket {asked.ticket}, which it did not hold")
        return Fetched(self._worker, result)

    def _loaded(self, owed: _Owed, message: Loaded | Refused) -> ModelLoaded | ModelRefused:
        if type(owed.asked) is not int or owed.asked != message.model:
            raise MessageInvalid(
                f"said {type(message).__name__} of model {message.model}, which is not what it owes next"
            )
        if isinstance(message, Refused):
            self.forget_model(message.model)
            return ModelRefused(self._worker, message.model, message.reason)
        if message.load_ns < 0 or message.memory_bytes < 0 or any(min(seed) < 1 for seed in message.seeds):
            raise MessageInvalid("measurements below zero")
        return ModelLoaded(self._worker, message.model, message.seeds, message.load_ns, message.memory_bytes)
