"""What one worker owes: the answers it was asked for, in order, and whether what it says pays them. Pure.

Answers come in the order of the questions, in line and in the background each for itself (see ``port``). Whatever
cannot be true raises MessageInvalid, after which nothing more that this worker says is to be believed.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from collections.abc import Iterator, Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

from appliance.domain.assessment import Assessment
from appliance.domain.model import ModelVersion
from appliance.domain.side_by_side import SIZES_MAX
from appliance.store.layout import form_digest
from appliance.workers.codec import MessageInvalid
from appliance.workers.daemon.answers import ModelContract, check_failure
from appliance.workers.jail.access import longest_file
from appliance.workers.messages import Build, EvictWeights, FromWorker, Load, PageIn
from appliance.workers.port import (
    REASON_CHARACTERS_MAX,
    SEEDS_MAX,
    Fetch,
    Fetched,
    FormBuilt,
    FormJudged,
    ItemStatus,
    ModelLoaded,
    ModelProgress,
    ModelRefused,
    Run,
    RunFinished,
    RunItem,
    WeightsEvicted,
    WeightsPagedIn,
)

BackgroundTask = EvictWeights | PageIn | Build
Asked = Run | Load | Fetch | BackgroundTask
_ANSWERS: Final[Mapping[type, type[BackgroundTask]]] = MappingProxyType(
    {WeightsEvicted: EvictWeights, WeightsPagedIn: PageIn, FormBuilt: Build}
)
_NAMES: Final[Mapping[type, str]] = MappingProxyType(
    {
        Run: "a batch",
        Fetch: "a fetch",
        Load: "a load",
        EvictWeights: "an eviction",
        PageIn: "a page-in",
        Build: "a packed form",
    }
)
_ADVICE: Final[Mapping[type, str]] = MappingProxyType(
    {Build: "; raise workers.load_timeout_ms if it needs more"}
)
"""What to do where a person reads of nothing else."""
_PLAIN_NAME: Final = re.compile(r"[0-9a-z][0-9a-z-]{0,199}")
JUDGED_MAX: Final = 4
"""Words about forms for one load."""
PROGRESS_MAX: Final = 1000
"""Words about how far one load is, of which an honest worker says half at most."""
SLACK_NS: Final = 10_000_000_000
"""What takes longer than it may is ended by then, however busy the daemon is."""
BYTES_MAX: Final = 1 << 47
"""What a process can address."""
COUNT_MAX: Final = 1 << 31
"""Of rows, runs and cases."""


class _Owed(NamedTuple):
    """``contract`` is None for what gives no outputs and for a fetch of something that was never held. ``after`` is the
    early load that a page-in belongs to and begins with the end of. ``pauses_ns`` may be in the times that are said."""

    asked: Asked
    contract: ModelContract | None
    timeout_ns: int
    after: Load | None = None
    pauses_ns: int = 0


class Awaited(NamedTuple):
    """What the worker does now in line and in the background; None: nothing. The same objects while that lasts."""

    in_line: _Owed | None
    background: _Owed | None


class _Held(NamedTuple):
    contract: ModelContract
    item: RunItem


class _Model(NamedTuple):
    contract: ModelContract
    run_timeout_ns: int


class PendingReplies:
    """Of the worker with id ``worker``. Owner: the pool."""

    def __init__(self, worker: int) -> None:
        self._worker = worker
        self._owed: deque[_Owed] = deque()
        self._background: deque[_Owed] = deque()
        self._models: dict[int, _Model] = {}
        self._loaded_models: set[int] = set()
        self._held: dict[int, _Held] = {}
        self._builds: ModelVersion | None = None
        self._built: FormBuilt | None = None
        self._words: defaultdict[int, Counter[type]] = defaultdict(Counter)

    def __len__(self) -> int:
        return len(self._owed) + len(self._background)

    @property
    def in_line(self) -> int:
        """How many answers are awaited one after the other."""
        return len(self._owed)

    @property
    def background(self) -> int:
        """How many answers are awaited beside them."""
        return len(self._background)

    @property
    def form(self) -> tuple[ModelVersion | None, FormBuilt | None]:
        """The version whose packed form was to be built, and what came of that as it says."""
        return self._builds, self._built

    @property
    def loads(self) -> int:
        """How many loads are awaited."""
        return sum(type(owed.asked) is Load for owed in (*self._owed, *self._background))

    @property
    def awaited(self) -> Awaited:
        """What an answer is awaited of. A page-in whose early load is still owed has not begun, nor has what
        follows."""
        background = self._background[0] if self._background else None
        if background is not None and self._waits_for_load(background):
            background = None
        return Awaited(self._owed[0] if self._owed else None, background)

    def overdue(self, line_ns: int, background_ns: int) -> str:
        """What takes too long and how long it may, for people, when the line has waited for its oldest answer for
        ``line_ns`` and the background for its own for ``background_ns``; "" when nothing does."""
        for owed, waited_ns in zip(self.awaited, (line_ns, background_ns), strict=True):
            if owed is not None and waited_ns > owed.timeout_ns:
                asked, most_ms = type(owed.asked), owed.timeout_ns // 1_000_000
                return f"{_NAMES[asked]} took longer than {most_ms} ms{_ADVICE.get(asked, '')}"
        return ""

    def pardon(self, pause_ns: int) -> None:
        """The daemon stood still for ``pause_ns``, and the worker may have: its own clock went on."""
        self._owed, self._background = (
            deque(owed._replace(pauses_ns=owed.pauses_ns + pause_ns) for owed in line)
            for line in (self._owed, self._background)
        )

    def batches(self) -> tuple[int, ...]:
        """Unfinished batches, the running one first."""
        return tuple(owed.asked.batch for owed in self._owed if type(owed.asked) is Run)

    def loading(self) -> int:
        """The model that is being loaded, evicted, paged in or packed right now, or -1."""
        for owed in self.awaited:
            if owed is not None and not isinstance(owed.asked, Run | Fetch):
                return owed.asked.model
        return -1

    def owe_load(self, load: Load, load_timeout_ns: int, run_timeout_ns: int) -> None:
        """A load was asked for; batches of the model may take ``run_timeout_ns`` each."""
        if load.model not in self._models:
            self._models[load.model] = _Model(ModelContract(load.version), run_timeout_ns)
        line = self._background if load.wish.background else self._owed
        line.append(_Owed(load, None, load_timeout_ns))
        if load.wish.early:
            self._background.append(_Owed(PageIn(load.model), None, 2 * load_timeout_ns, load))

    def expect_background(self, asked: BackgroundTask, timeout_ns: int) -> None:
        """Something was asked for that is done beside the line."""
        if isinstance(asked, Build):
            self._builds = asked.version
        self._background.append(_Owed(asked, None, timeout_ns))

    def owe_run(self, run: Run) -> None:
        """A batch was given. One of a model whose weights are still arriving may wait for them."""
        contract, timeout_ns = self._models[run.model]
        for owed in self._background:
            if type(owed.asked) is PageIn and owed.asked.model == run.model:
                timeout_ns += owed.timeout_ns
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
        self._loaded_models.discard(model)

    def settle(self, message: FromWorker) -> Asked:
        """Take note of an answer, or of a word on the way to one; gives what was asked. Raises MessageInvalid unless it
        can be true."""
        if message.worker != self._worker:
            raise MessageInvalid(f"said that it is worker {message.worker}, and is {self._worker}")
        if isinstance(message, ModelProgress):
            return self._check_progress(message)
        if isinstance(message, FormJudged):
            return self._check_judged(message)
        line = self._line_of(message)
        if not line:
            raise MessageInvalid(f"said {type(message).__name__} unasked")
        owed = line[0]
        if type(message) is RunFinished:
            self._finished(owed, message)
        elif type(message) is Fetched:
            self._fetched(owed, message)
        elif isinstance(message, ModelLoaded | ModelRefused):
            self._loaded(owed, message)
        else:
            assert isinstance(message, WeightsEvicted | WeightsPagedIn | FormBuilt)
            self._done_aside(owed, message)
        line.popleft()
        if isinstance(owed.asked, Load | Build):
            self._words.pop(owed.asked.model, None)
        return owed.asked

    def _line_of(self, message: FromWorker) -> deque[_Owed]:
        """Where the message can be the next answer, if it is one."""
        if type(message) in _ANSWERS:
            return self._background
        if isinstance(message, ModelLoaded | ModelRefused) and self._background:
            asked = self._background[0].asked
            if type(asked) is Load and asked.model == message.model:
                return self._background
        return self._owed

    def _under_way(self, model: int) -> Iterator[Load | Build]:
        """Loads of the model, and the building of its form, that are at the head of a line."""
        for line in (self._owed, self._background):
            if line and isinstance(line[0].asked, Load | Build) and line[0].asked.model == model:
                yield line[0].asked

    def _check_progress(self, message: ModelProgress) -> Load | Build:
        """Of a load that is under way and was asked to tell, or of a form that is built."""
        told = (each for each in self._under_way(message.model) if isinstance(each, Build) or each.wish.tell)
        asked = self._check_count(message, next(told, None), PROGRESS_MAX)
        if message.done_bytes > message.total_bytes:
            raise MessageInvalid("a load that is further than its end")
        _check_sizes(message.done_bytes, message.total_bytes)
        return asked

    def _check_judged(self, message: FormJudged) -> Load | Build:
        """Of a form of the version that is being loaded or built; what is said of it is done to that version alone."""
        asked = self._check_count(message, next(self._under_way(message.model), None), JUDGED_MAX)
        _check_form_name(message.name, asked.version)
        _check_reason(message.reason)
        return asked

    def _check_count(
        self, message: ModelProgress | FormJudged, asked: Load | Build | None, most: int
    ) -> Load | Build:
        """Give what a word on the way to its answer is about. Raises MessageInvalid where there is nothing, or too much
        was said of it."""
        if asked is None:
            raise MessageInvalid(f"said {type(message).__name__} of model {message.model} unasked")
        said = self._words[message.model]
        said[type(message)] += 1
        if said[type(message)] > most:
            raise MessageInvalid(f"said {type(message).__name__} of one load more than {most} times")
        return asked

    def _finished(self, owed: _Owed, message: RunFinished) -> None:
        asked, contract = owed.asked, owed.contract
        _, batch, results, gather_ns, run_ns, scatter_ns = message
        if type(asked) is not Run or asked.batch != batch or contract is None:
            raise MessageInvalid(f"finished batch {batch}, which is not what it owes next")
        _check_times(owed, gather_ns, run_ns, scatter_ns)
        if not contract.check_batch(asked, results):
            for item, result in zip(asked.items, results, strict=True):
                if result.status is ItemStatus.TOO_LARGE:
                    self._held[item.ticket] = _Held(contract, item)

    def _fetched(self, owed: _Owed, message: Fetched) -> None:
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
        else:
            check_failure(result)

    def _loaded(self, owed: _Owed, message: ModelLoaded | ModelRefused) -> None:
        asked = owed.asked
        if type(asked) is not Load or asked.model != message.model:
            raise MessageInvalid(
                f"said {type(message).__name__} of model {message.model}, which is not what it owes next"
            )
        if isinstance(message, ModelRefused):
            _check_reason(message.reason)
            self._refused(asked)
            return
        if len(message.seeds) > SEEDS_MAX:
            raise MessageInvalid(f"{len(message.seeds)} measurements where {SEEDS_MAX} are taken")
        if any(not 1 <= rows <= COUNT_MAX or ns < 1 for rows, ns in message.seeds):
            raise MessageInvalid("measurements that cannot be")
        _check_times(owed, message.load_ns, *(ns for _, ns in message.seeds))
        _check_sizes(message.memory_bytes, message.evictable_bytes, message.device_bytes)
        _check_reason(message.note)
        if message.evictable_bytes > longest_file(asked.version):
            raise MessageInvalid("more weights than there are of its version")
        if message.assessment is not None:
            _check_assessment(owed, asked, message.assessment)
        self._loaded_models.add(message.model)

    def _refused(self, load: Load) -> None:
        """What a load that was refused leads to no more. One that was to exchange a session leaves what was there, and
        an old one leaves the model to another load of it."""
        if load.model not in self._loaded_models and not self._loads_again(load):
            self.forget_model(load.model)
        if load.wish.early:
            self._background = deque(owed for owed in self._background if owed.after is not load)

    def _loads_again(self, load: Load) -> bool:
        """Whether another load of its model is owed beside ``load``."""
        asked = (owed.asked for owed in (*self._owed, *self._background))
        return any(isinstance(each, Load) and each is not load and each.model == load.model for each in asked)

    def _waits_for_load(self, owed: _Owed) -> bool:
        """Whether it belongs to an early load that has not been answered."""
        return owed.after is not None and any(each.asked is owed.after for each in self._owed)

    def _done_aside(self, owed: _Owed, message: WeightsEvicted | WeightsPagedIn | FormBuilt) -> None:
        asked = owed.asked
        if not isinstance(asked, _ANSWERS[type(message)]) or asked.model != message.model:
            raise MessageInvalid(
                f"said {type(message).__name__} of model {message.model}, which is not what it owes next"
            )
        if self._waits_for_load(owed):
            raise MessageInvalid(
                f"said that model {message.model} is paged in before it said that it is loaded"
            )
        _check_times(owed, message.ns)
        if isinstance(message, WeightsEvicted):
            return
        _check_sizes(message.nbytes)
        if message.failure is not None:
            _check_reason(message.failure)
        if isinstance(message, FormBuilt) and isinstance(asked, Build):
            if message.failure is not None and message.name:
                raise MessageInvalid("a packed form that was not built and has a name")
            if message.failure is None:
                _check_form_name(message.name, asked.version)
            _check_compared(owed, message)
            self._built = message


def _check_times(owed: _Owed, *durations_ns: int) -> None:
    """Raise MessageInvalid unless all of this can have passed since it was asked for: what takes longer is ended."""
    most_ns = owed.timeout_ns + owed.pauses_ns + SLACK_NS
    if not 0 <= min(durations_ns) <= max(durations_ns) <= most_ns:
        raise MessageInvalid("times that cannot have passed")


def _check_sizes(*sizes: int) -> None:
    if not 0 <= min(sizes) <= max(sizes) <= BYTES_MAX:
        raise MessageInvalid("sizes that cannot be")


def _check_assessment(owed: _Owed, asked: Load, found: Assessment) -> None:
    """Raise MessageInvalid unless an assessment was asked for and this can be one."""
    if not asked.wish.assess:
        raise MessageInvalid("an assessment that nobody asked for")
    counts = found.cases, found.rows, found.runs
    if not 0 <= min(counts) <= max(counts) <= COUNT_MAX or found.p50_ns > found.p99_ns:
        raise MessageInvalid("an assessment with measurements that cannot be")
    _check_times(owed, found.p50_ns, found.p99_ns)
    if found.promised_ns and not 0 < found.promised_ns < found.p99_ns:
        raise MessageInvalid("an assessment that names a promise which was kept")
    outputs = {spec.name for spec in asked.version.outputs}
    for output, absolute, relative in found.worst:
        if output not in outputs or not (absolute >= 0 and relative >= 0):
            raise MessageInvalid("an assessment of outputs that are none, or of differences that cannot be")
    if len(found.worst) > len(outputs):
        raise MessageInvalid("an assessment of more outputs than there are")


def _check_compared(owed: _Owed, built: FormBuilt) -> None:
    """Raise MessageInvalid unless a form was built and this is what its engine can have been compared by."""
    compared = built.compared
    if len(compared) > SIZES_MAX or (compared and built.failure is not None):
        raise MessageInvalid(f"{len(compared)} comparisons of an engine where fewer are taken")
    if not all(each.possible and max(each.rows, each.pairs) <= COUNT_MAX for each in compared):
        raise MessageInvalid("comparisons of an engine that cannot be")
    _check_times(owed, *(ns for each in compared for ns in (each.engine_ns, each.session_ns)), 0)


def _check_form_name(name: str, version: ModelVersion) -> None:
    if not (version.digest and _PLAIN_NAME.fullmatch(name) and form_digest(name) == version.digest):
        raise MessageInvalid(f"a packed form under a name that is none of {version.key}")


def _check_reason(reason: str) -> None:
    if len(reason) > REASON_CHARACTERS_MAX:
        raise MessageInvalid(f"a reason of {len(reason)} characters where {REASON_CHARACTERS_MAX} are taken")
