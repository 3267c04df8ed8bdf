"""Load one version inside a worker: the session, its weights, warm-ups, assessment, measurements.

While a session is made of a file of weights, the file is read ahead and verified beside it; nothing of the version runs
before that is done, but for an early load (see LoadWish), of which no answer leaves before. A load in the background
yields in a thread of its own, to its end: what it measures does not count its waits for a processor. One of a session
with threads of its own does not: no thread of a worker can give another one its class back.
"""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice
from typing import Final, NamedTuple, TypeVar

from appliance.domain.assessment import Assessment, Deviation
from appliance.domain.device import CPU, DeviceName
from appliance.domain.errors import ApplianceError, AssessmentFailed, LoadFailed, is_of_full_device
from appliance.domain.golden import TENSORS_NAME
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion, WeightsFile
from appliance.domain.regular_file import check_digest, opened
from appliance.domain.session_options import session_options
from appliance.process.heap import trim_heap
from appliance.process.memory import private_bytes
from appliance.process.priority import yield_disk, yield_processor
from appliance.runtimes import reshape
from appliance.runtimes.runtime import (
    Packer,
    Runtime,
    RuntimeSettings,
    Session,
    batch_sizes,
    check_signature,
    form_file,
    is_for_requests,
    is_sealed,
    note_of,
)
from appliance.workers.child.early_session import EarlySession, WeightsArrival
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.form_builder import Built, Judge, build_form, check_seal
from appliance.workers.child.measurement import PASSES_MIN, assess, measure_passes
from appliance.workers.child.proof import Golden, open_golden, run_golden, run_warmups
from appliance.workers.child.rows import mixes_rows
from appliance.workers.child.tensors import fixed_shapes
from appliance.workers.forms import ANEW_FILE, PackedForm, find_form, form_name, tied_elsewhere
from appliance.workers.messages import Load
from appliance.workers.port import (
    REASON_CHARACTERS_MAX,
    FormVerdict,
    LoadStage,
    ModelLoaded,
)

Result = TypeVar("Result")
SILENCE_NS: Final = 50_000_000
"""Between two words about how much is read."""
READS_MAX: Final = 200
"""Words about that for one file: the daemon takes only so many."""
TOLD_MAX: Final = 2
"""Forms of one version that are dropped by one load because they are for another driver, device or release."""
BUILT_PARTS: Final = 100
"""Parts in which it is told how far a form is."""


Tell = Callable[[LoadStage, int, int], None]
"""Takes the stage, the bytes of weights that were read, and how many there are."""


class LoadReport:
    """How far a load is, said on the way: each stage when it begins, and now and then how much of the weights is read;
    silent unless it was asked to tell. Its methods are called by one thread at a time: the reader's
    while the weights are read, and then the loader's."""

    def __init__(self, load: Load, tell: Tell) -> None:
        self._tell = tell if load.wish.tell else None
        self._stage: LoadStage | None = None
        self._done_bytes = self._total_bytes = 0
        self._silent_until_ns = self._silent_until_bytes = 0

    def begin(self, stage: LoadStage) -> None:
        """The load has come to ``stage``."""
        if stage is not self._stage:
            self._stage = stage
            self._say()

    def read(self, done_bytes: int, total_bytes: int) -> None:
        """So much of the file of weights is in memory."""
        self._stage = LoadStage.READING
        if done_bytes < self._done_bytes:  # another file, of the same version
            self._silent_until_bytes = 0
        self._done_bytes, self._total_bytes = done_bytes, total_bytes
        if done_bytes >= self._silent_until_bytes and time.monotonic_ns() >= self._silent_until_ns:
            self._say()

    def _say(self) -> None:
        if self._tell is not None and self._stage is not None:
            self._silent_until_ns = time.monotonic_ns() + SILENCE_NS
            self._silent_until_bytes = self._done_bytes + self._total_bytes // READS_MAX
            self._tell(self._stage, self._done_bytes, self._total_bytes)


class Opened(NamedTuple):
    """A loaded version, what the daemon is told of it, and what is still on its way."""

    model: LoadedModel
    said: ModelLoaded
    arrival: WeightsArrival


class _Proven(NamedTuple):
    """A version that may serve, from its packed form or as it came; what the golden set found, and whether rows change
    one another's answers, as in ModelLoaded."""

    model: LoadedModel
    packed: bool
    golden: Golden | None
    worst: tuple[Deviation, ...]
    arrival: WeightsArrival
    mixes: bool | None
    rows_tried: bool


class _Manner(NamedTuple):
    """How one load is done: ``lower`` puts a thread of it into the classes that it should have, ``report`` says how far
    it is, ``judge`` what is to become of a packed form."""

    wish: LoadWish
    lower: Callable[[], None]
    report: LoadReport
    judge: Judge


class _Measured(NamedTuple):
    """What its runs take."""

    seeds: tuple[tuple[int, int], ...]
    assessment: Assessment | None


class Loader:
    """Makes sessions with the runtimes of ``worker``, on its device."""

    def __init__(
        self, worker: int, runtimes: Mapping[str, Runtime], threads: int, device: DeviceName = CPU
    ) -> None:
        self._worker = worker
        self._runtimes = runtimes
        self._settings = RuntimeSettings(threads=threads, device=device)

    def load(self, load: Load, *, alone: bool, tell: Tell, judge: Judge) -> Opened:
        """Load; ``alone``: the worker holds no other model; ``tell`` says how far it is, and ``judge`` what is to
        become of a packed form, from whatever thread. In the background, a session without threads of its own is made
        and measured in the class that this has: waits for a processor do not count. Threads of a session would be born
        into a class that they cannot leave; only the disk is yielded then, by what reads the weights. Raises
        ApplianceError, or whatever a runtime or a model does wrong."""
        begin, before = time.monotonic_ns(), private_bytes(os.getpid())
        wish = load.wish
        alone_on_its_thread = session_options(load.version.parameters).on_one_thread(self._settings.threads)
        yields = wish.yields and alone_on_its_thread and load.version.on_cpu
        manner = _Manner(wish, _lowering(wish, whole=yields and alone), LoadReport(load, tell), judge)

        def prove_and_measure() -> tuple[_Proven, _Measured]:
            if yields:
                manner.lower()
            golden = open_golden(load.version) if wish.assess else None
            proven = self._proven_form(load.version, manner, golden)
            proven = proven or self._proven(load.version, None, manner, golden)
            return proven, _measured(proven, manner)

        proven, measured = in_thread(prove_and_measure) if yields else prove_and_measure()
        if not wish.early:
            gc.collect()
            gc.freeze()
            trim_heap()
        session = proven.model.session
        own, held = max(private_bytes(os.getpid()) - before, 0), session.memory()
        grown, device_bytes = (own + held, 0) if load.version.on_cpu else (own, held)
        evictable_bytes = 0 if session.weights is None else session.weights.nbytes
        took = time.monotonic_ns() - begin
        said = ModelLoaded(
            self._worker,
            load.model,
            measured.seeds,
            took,
            grown,
            measured.assessment,
            evictable_bytes,
            proven.packed,
            device_bytes,
            note_of(session)[:REASON_CHARACTERS_MAX],
            proven.mixes,
            proven.rows_tried,
        )
        return Opened(proven.model, said, proven.arrival)

    def build(self, version: ModelVersion, judge: Judge, tell: Tell, room_bytes: int = 0) -> Built:
        """Build the packed form of a version in the background, in so much of its device's memory (0: what there is).
        See ``form_builder``."""
        settings = replace(self._settings, progress=_in_parts(tell), room_bytes=room_bytes)

        def build() -> Built:
            yield_disk()
            yield_processor()
            return build_form(version, self.runtime_of(version), settings, judge)

        return in_thread(build)

    def _proven_form(self, version: ModelVersion, manner: _Manner, golden: Golden | None) -> _Proven | None:
        """The version from its packed form; None when there is none, or it is not good any more. Raises ApplianceError
        where its device is full, which says nothing against the form: it may have taken minutes to build."""
        runtime = self.runtime_of(version)
        if manner.wish.quick or not version.forms or not version.digest or not isinstance(runtime, Packer):
            return None
        name = form_name(version.digest, runtime.identity)
        if is_sealed(runtime):
            for other, tie in islice(
                tied_elsewhere(version.forms, version.digest, runtime.identity), TOLD_MAX
            ):
                reason = f"it was built for {tie}, and this is {runtime.identity}; it is built anew"
                manner.judge(other, FormVerdict.DROPPED, reason)
        try:
            form = find_form(version.forms, name, form_file(runtime))
            if form is None:
                return None
            check_seal(version, runtime, form)
            proven = self._proven(version, form, manner, golden)
        except (ApplianceError, OSError) as problem:
            if is_of_full_device(problem):
                raise
            if isinstance(problem, AssessmentFailed):
                manner.judge(name, FormVerdict.REFUSED, str(problem))
            elif not isinstance(problem.__cause__, PermissionError):  # else it is only none of this worker's
                # bytes that rotted, or a disk or memory that failed for a moment
                manner.judge(name, FormVerdict.DROPPED, str(problem))
            return None
        if os.path.exists(os.path.join(version.forms, name, ANEW_FILE)):
            manner.judge(name, FormVerdict.PROVEN, "")
        return proven

    def _proven(
        self, version: ModelVersion, form: PackedForm | None, manner: _Manner, golden: Golden | None
    ) -> _Proven:
        """The version loaded and proven."""
        session, arrival = self._open(version, form, manner)
        model = LoadedModel(version=version, session=session)
        probed = manner.wish.probe and not manner.wish.early
        seen = mixes_rows(model, golden) if probed else None
        if seen and batch_sizes(session):
            session.close()  # it fills batches up, and rows are answered otherwise beside what it puts there
            manner = manner._replace(wish=manner.wish._replace(probe=False))
            alone = replace(version, batching=None)
            return self._proven(alone, form, manner, golden)._replace(mixes=True, rows_tried=True)
        try:
            if not manner.wish.quick and version.warmups:
                manner.report.begin(LoadStage.WARM_UP)
                run_warmups(model)
            if golden is not None:
                manner.report.begin(LoadStage.GOLDEN)
            worst = () if golden is None else run_golden(model, golden)
            mixes = bool(seen) if probed else None
            return _Proven(model, form is not None, golden, worst, arrival, mixes, seen is not None)
        except BaseException:
            session.close()
            raise

    def _open(
        self, version: ModelVersion, form: PackedForm | None, manner: _Manner
    ) -> tuple[Session, WeightsArrival]:
        """A session of verified weights whose pages are there, or are on their way for an early load."""
        runtime, wish = self.runtime_of(version), manner.wish
        opened = version if form is None else form.version_of(version)
        original = version if form is not None and is_for_requests(version) else None
        _check_beside(original or opened)
        arrival = _arrival((original or opened).weights, manner)
        settings = replace(
            self._settings,
            quick=wish.quick,
            packed=form is not None,
            room_bytes=wish.room_bytes,
            original=original,
        )
        try:
            session = reshape.load(runtime, opened, settings)
        except BaseException:
            arrival.finish()
            raise
        try:
            check_signature(version, session)
            if wish.early:
                return EarlySession(session, arrival), arrival
            problem = arrival.finish()
            if problem is not None:
                raise LoadFailed(f"{version.key}: {problem}") from problem
            if session.weights is not None:
                session.weights.page_in(verify=False)  # the pages are there; its page tables are not
        except BaseException:
            session.close()
            raise
        return session, arrival

    def runtime_of(self, version: ModelVersion) -> Runtime:
        """The runtime of a version. Raises LoadFailed when it is not enabled."""
        runtime = self._runtimes.get(version.runtime)
        if runtime is None:
            raise LoadFailed(
                f"{version.key}: needs runtime '{version.runtime}', which is not enabled "
                f"(enabled: {', '.join(self._runtimes)}); add it to the configuration"
            )
        return runtime


def _in_parts(tell: Tell) -> Callable[[int, int], None]:
    """What tells how far a form is, in hundredths, and each of them once."""
    told = 0

    def progress(done: int, total: int) -> None:
        nonlocal told
        part = BUILT_PARTS * done // max(total, 1)
        if told < part <= BUILT_PARTS:
            told = part
            tell(LoadStage.BUILDING, part, BUILT_PARTS)

    return progress


def _check_beside(version: ModelVersion) -> None:
    """Raise FileDiffers where a file that the runtime opens by itself beside the graph is not what its package brought:
    weights in several files, which have no pieces that are verified as they come."""
    beside = f"{os.path.dirname(version.path)}/"
    tensors = os.path.join(os.path.dirname(version.golden), TENSORS_NAME)
    for path, digest in version.digests.items():
        if path.startswith(beside) and path not in (version.path, version.golden, tensors):
            with opened(path, name := f"{version.key}: {os.path.basename(path)}") as descriptor:
                check_digest(descriptor, digest, name)


def _lowering(wish: LoadWish, *, whole: bool) -> Callable[[], None]:
    """What puts a thread of a load into the classes that it should have; ``whole``: the processor is yielded, too."""

    def lower() -> None:
        if wish.yields:
            yield_disk()
        if whole:
            yield_processor()

    return lower


def _measured(proven: _Proven, manner: _Manner) -> _Measured:
    """Measure; a session that cannot be is closed."""
    wish = manner.wish
    try:
        if _is_measured(proven, wish):
            manner.report.begin(LoadStage.MEASURING)
        least = PASSES_MIN if wish.assess else 1
        passes = () if wish.quick else measure_passes(proven.model, least)
        assessment = assess(proven.model, proven.golden, proven.worst, passes) if wish.assess else None
    except BaseException:
        proven.model.session.close()
        raise
    return _Measured(tuple(each.seed for each in passes), assessment)


def _is_measured(proven: _Proven, wish: LoadWish) -> bool:
    """Whether anything of it will be: it is wanted, the session can be, and it is known what to run it with."""
    wanted = wish.assess or not wish.quick
    version, session = proven.model.version, proven.model.session
    return wanted and session.measurable and (proven.golden is not None or fixed_shapes(version) is not None)


def _arrival(file: WeightsFile | None, manner: _Manner) -> WeightsArrival:
    """Begin to read and verify a file of weights."""
    report = manner.report
    size = 0 if file is None else file.size
    if file is None:
        report.begin(LoadStage.SESSION)
    if manner.wish.early:  # it may be loaded before all is read
        return WeightsArrival(file, begin=manner.lower)

    def progress(done_bytes: int) -> None:
        report.read(done_bytes, size)
        if done_bytes >= size:
            report.begin(LoadStage.SESSION)

    return WeightsArrival(file, begin=manner.lower, progress=progress)


def in_thread(do: Callable[[], Result]) -> Result:
    """Do something in a thread of its own, which may take a class that it cannot come back from; raises what it
    raises."""
    results: list[Result] = []
    problems: list[BaseException] = []

    def run() -> None:
        try:
            results.append(do())
        except BaseException as problem:  # noqa: BLE001 - raised again by the caller's thread
            problems.append(problem)

    thread = threading.Thread(target=run, name="background", daemon=True)
    thread.start()
    thread.join()
    if problems:
        raise problems[0]
    return results[0]
