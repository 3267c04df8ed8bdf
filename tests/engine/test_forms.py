"""Which versions have their packed form built, and when once more."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from appliance.core.processes.form_queue import FIRST_PAUSE_NS
from appliance.core.rollout.version import Artifact
from appliance.domain.model import WeightsFile
from appliance.domain.tensor import Datatype, TensorSpec
from appliance.engine.control.forms import LOOK_NS, Forms
from appliance.engine.environment import Shell
from appliance.engine.versions.served import Served
from appliance.engine.versions.shape_history import SETTLED_NS, ShapeHistory
from appliance.engine.versions.wording import awaits_shapes_text, no_room_for_builder_text
from appliance.telemetry.meter import VersionMeter
from appliance.workers.jail.support import Support
from appliance.workers.port import FormBuilt, FormJudged, FormVerdict, LoadStage, ModelProgress, WorkerStarted
from appliance.workers.settings import WorkerTerms
from tests.domain.sample import make_version
from tests.engine.silent_workers import SilentWorkers
from tests.engine.versions import make_served

DIGEST = "d" * 64


class Rig:
    """Forms, and what they ask for and say."""

    def __init__(self) -> None:
        self.workers = SilentWorkers()
        self.taken = 100
        self.asked_for: list[int] = []
        """Times at which it wants to be called."""
        self.said: list[str] = []
        self.fields: list[dict[str, object]] = []
        shell = SimpleNamespace(pace=SimpleNamespace(at=self.asked_for.append, soon=lambda: None), log=self)
        self.history = ShapeHistory(lambda: 0)
        self.forms = Forms(
            workers=self.workers,
            processes=WorkerTerms(),
            ids=self,
            history=self.history,
            shell=cast(Shell, shell),
        )

    def event(self, what: str, **fields: object) -> None:
        self.said.append(what)
        self.fields.append(fields)

    def take_id(self) -> int:
        self.taken += 1
        return self.taken

    @property
    def builds(self) -> int:
        """How many were begun."""
        return self.workers.asked.count("build_form")

    def build(self, *, later: bool, now_ns: int) -> None:
        """Have one built, for which there is no room now or ``later`` would not help either."""
        self.forms.build()
        self.forms.ended(FormBuilt(self.taken - 1, self.taken, "", 0, 1, "none", later), now_ns)

    def consider_and_build(self, served: Served) -> None:
        self.forms.consider(served)
        if self.forms.next is not None:
            self.forms.build()
            self.forms.ended(FormBuilt(self.taken - 1, self.taken, "form", 1, 1, None), 0)


@pytest.fixture
def rig() -> Rig:
    return Rig()


@pytest.fixture
def served() -> Served:
    weights = WeightsFile(path="w", size=1)
    model = replace(make_version("m", 1), forms="/nowhere", digest=DIGEST, weights=weights)
    return make_served(
        id=1, model=model, fingerprint="", identity=f"m/1@{DIGEST}", meter=VersionMeter("m", 1)
    )


def test_a_version_that_comes_again_after_it_was_gone_has_its_form_built_again(
    rig: Rig, served: Served
) -> None:
    for _ in range(2):
        rig.consider_and_build(served)
    assert rig.builds == 1, "once while it stays"
    rig.forms.forget(served.identity)
    rig.consider_and_build(served)
    assert rig.builds == 2


def test_a_form_that_a_version_ran_from_and_cannot_any_more_is_built_anew(rig: Rig, served: Served) -> None:
    rig.consider_and_build(served)
    for packed in (True, False, False):
        served.version.packed = packed
        rig.consider_and_build(served)
    assert rig.builds == 2, "once for each that it ran from"


def test_what_would_not_change_over_any_more_is_not_built_and_may_be_later(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    assert [rig.forms.next] == [served]
    rig.forms.skip()
    assert rig.builds == 0
    assert rig.forms.next is None
    rig.consider_and_build(served)
    assert rig.builds == 1


def test_a_form_that_has_no_room_is_tried_again_after_pauses_that_double(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    rig.build(later=True, now_ns=5)
    assert rig.asked_for == [5 + FIRST_PAUSE_NS]
    waiting = []
    for now_ns in (4 + FIRST_PAUSE_NS, 5 + FIRST_PAUSE_NS):
        rig.forms.tick(now_ns)
        waiting.append(rig.forms.next)
    assert waiting == [None, served]
    rig.build(later=True, now_ns=10)
    assert rig.asked_for[1:] == [10 + 2 * FIRST_PAUSE_NS]
    rig.forms.tick(10 + 2 * FIRST_PAUSE_NS)
    rig.build(later=False, now_ns=20)
    assert (rig.builds, rig.asked_for[2:], rig.forms.next) == (3, [], None), "nothing helps that one"


def test_what_is_gone_is_not_tried_again(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    rig.build(later=True, now_ns=5)
    rig.forms.forget(served.identity)
    rig.forms.tick(5 + FIRST_PAUSE_NS)
    assert rig.forms.next is None


@pytest.mark.parametrize("mixes", [None, False, True])
def test_the_form_of_a_version_whose_rows_mix_is_held_against_sessions_that_fill_no_batch_up(
    rig: Rig, served: Served, mixes: bool | None
) -> None:
    served.placed.mixes = mixes
    rig.forms.consider(served)
    rig.forms.build()
    (built,) = rig.workers.built
    assert served.model.batching is not None
    assert (built.batching is None) is bool(mixes)


def test_a_builder_is_ended_with_the_daemon_whatever_it_has_not_built_yet(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    rig.forms.build()
    rig.forms.stop()
    rig.forms.exited(rig.taken - 1, "killed: stopped")
    assert rig.workers.asked == ["start", "build_form", "kill"], "stop would wait for the form"
    assert rig.said == ["building the packed form", "the packed form is left unbuilt"]
    rig.forms.stop()
    assert rig.workers.asked.count("kill") == 1


def test_a_version_without_a_directory_of_forms_is_refused_without_an_error(
    rig: Rig, served: Served, tmp_path: Path
) -> None:
    served.model = replace(served.model, forms=str(tmp_path / "missing"))
    served.version.spec = replace(served.version.spec, artifact=Artifact.PACKED)
    rig.forms.refuse(served, "it crashed")


def test_a_builder_is_ended_with_its_version_alone(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    rig.forms.build()
    rig.forms.forget("another")
    assert rig.workers.asked == ["start", "build_form"]
    rig.forms.forget(served.identity)
    assert rig.workers.asked == ["start", "build_form", "kill"], "it would hold up what takes its place"
    assert rig.said == ["building the packed form", "the packed form is left unbuilt"]
    rig.consider_and_build(served)
    assert rig.builds == 2, "if it comes again, so may a form"


def progress(rig: Rig, done: int, total: int = 100) -> ModelProgress:
    return ModelProgress(rig.taken - 1, rig.taken, LoadStage.BUILDING, done, total)


def test_how_far_a_form_is_goes_into_the_log_by_quarters(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    rig.forms.build()
    for done in range(1, 101):
        rig.forms.told(progress(rig, done), None)
    rig.forms.told(progress(rig, 0, 0), None)
    assert rig.said[1:] == ["the packed form is under way"] * 3
    assert [fields["percent"] for fields in rig.fields[1:]] == [25, 50, 75]
    assert rig.fields[1]["model"] == served.key
    rig.forms.told(progress(rig, 100)._replace(worker=3), None)
    assert len(rig.said) == 4, "of another worker, and of nothing known"


@pytest.mark.parametrize(
    ("verdict", "said"),
    [
        (FormVerdict.DROPPED, ["packed form dropped"]),
        (FormVerdict.REFUSED, ["packed form refused"]),
        (FormVerdict.PROVEN, []),
    ],
)
def test_what_becomes_of_a_form_goes_into_the_log(
    rig: Rig, served: Served, verdict: FormVerdict, said: list[str]
) -> None:
    judged = FormJudged(1, 2, f"{DIGEST}-0", verdict, "another driver")
    rig.forms.told(judged, None)
    rig.forms.told(judged, served)
    assert rig.said == said
    assert rig.fields == [{"model": served.key, "reason": "another driver"}] * len(said)


def test_a_version_says_why_it_has_no_engine_until_it_has_one(rig: Rig, served: Served) -> None:
    served.model = replace(served.model, runtime="tensorrt", weights=None)
    for failure, note in (
        ("node 'n' (Unique)", "it has no engine, and runs without: node 'n' (Unique)"),
        (None, ""),
    ):
        rig.forms.consider(served)
        rig.forms.build()
        rig.forms.ended(FormBuilt(rig.taken - 1, rig.taken, "" if failure else "form", 0, 1, failure), 0)
        assert served.unbuilt == note
        rig.forms.forget(served.identity)


@pytest.mark.parametrize(
    ("runtime", "note"),
    [("onnx", ""), ("tensorrt", "it has no engine, and runs without: a packed form took longer than 9 ms")],
)
def test_a_builder_that_was_ended_leaves_its_place_to_the_next_and_says_why_there_is_no_engine(
    rig: Rig, served: Served, runtime: str, note: str
) -> None:
    served.model = replace(served.model, runtime=runtime)
    other = make_served(
        id=2, model=served.model, fingerprint="", identity=f"o/1@{DIGEST}", meter=VersionMeter("o", 1)
    )
    for each in (served, other):
        rig.forms.consider(each)
    rig.forms.build()
    assert [rig.forms.next] == [None]
    rig.forms.exited(rig.taken - 1, "a packed form took longer than 9 ms")
    assert served.unbuilt == note
    assert (rig.said[-1], rig.fields[-1]["reason"]) == (
        "no packed form",
        "a packed form took longer than 9 ms",
    )
    assert rig.forms.next is other
    rig.forms.consider(served)
    rig.forms.build()
    assert rig.forms.next is None, "once while it stays"


@pytest.mark.parametrize(("runtime", "said"), [("tensorrt", True), ("onnx", False)])
def test_a_version_that_goes_without_its_engine_says_so_and_one_without_a_form_of_weights_does_not(
    rig: Rig, served: Served, runtime: str, said: bool
) -> None:
    served.model = replace(served.model, runtime=runtime)
    rig.forms.goes_without(served, "its engine is slower")
    assert bool(served.unbuilt) is said
    assert not rig.said, "its trial was told of"


def test_no_engine_is_built_where_a_worker_could_read_the_key_that_seals_it(
    rig: Rig, served: Served, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("appliance.workers.seal.kernel_support", lambda: Support(landlock=0, filter=True))
    form = tmp_path / f"{DIGEST}-0123456789abcdef"
    form.mkdir()
    served.model = replace(served.model, runtime="tensorrt", forms=str(tmp_path))
    for _ in range(2):
        rig.forms.consider(served)
    assert rig.forms.next is None
    assert rig.said == ["no packed form"], "it is said once"
    assert "has no Landlock" in str(rig.fields[0]["reason"])
    assert served.unbuilt == f"it has no engine, and runs without: {rig.fields[0]['reason']}"
    assert not rig.forms.blame(served, "it crashed"), "it ran from none"
    assert list(form.iterdir()) == []
    served.model = replace(served.model, runtime="onnx")
    rig.forms.consider(served)
    assert rig.forms.next is served


def test_a_version_without_a_file_of_weights_has_a_form_where_its_runtime_makes_engines(
    rig: Rig, served: Served
) -> None:
    served.model = replace(served.model, weights=None)
    rig.forms.consider(served)
    assert rig.forms.next is None
    served.model = replace(served.model, runtime="tensorrt")
    rig.forms.consider(served)
    assert rig.forms.next is served


KIN = ("e" * 64 + "-" + "1" * 16,)


@pytest.fixture
def kin(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each version has a form from which its own may be made."""
    monkeypatch.setattr("appliance.engine.control.forms.kin_of", lambda model: KIN)


@pytest.mark.usefixtures("kin")
def test_what_a_form_may_be_made_from_is_spared_until_it_was_built(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    assert rig.forms.spared == set(KIN)
    rig.forms.build()
    assert rig.forms.spared == set(KIN)
    assert rig.workers.built[-1].kin == KIN
    rig.forms.ended(FormBuilt(rig.taken - 1, rig.taken, "form", 1, 1, None), 0)
    assert rig.forms.spared == set()


@pytest.mark.usefixtures("kin")
@pytest.mark.parametrize(
    "end",
    [
        lambda forms, worker, model: forms.ended(
            FormBuilt(worker, model, "", 0, 1, "no room", later=True), 0
        ),
        lambda forms, worker, model: forms.exited(worker, "killed"),
        lambda forms, worker, model: forms.forget(f"m/1@{DIGEST}"),
        lambda forms, worker, model: forms.stop(),
    ],
    ids=["failed", "died", "gone", "stopped"],
)
def test_nothing_is_spared_for_what_was_not_built(
    rig: Rig, served: Served, end: Callable[[Forms, int, int], object]
) -> None:
    rig.forms.consider(served)
    rig.forms.build()
    end(rig.forms, rig.taken - 1, rig.taken)
    assert rig.forms.spared == set()


@pytest.mark.usefixtures("kin")
def test_a_builder_that_dies_of_what_it_had_of_another_version_is_followed_by_one_without(
    rig: Rig, served: Served
) -> None:
    rig.forms.consider(served)
    rig.forms.build()
    rig.forms.exited(rig.taken - 1, "killed by signal 11")
    rig.forms.consider(served)
    assert rig.forms.spared == set()
    rig.forms.build()
    assert [model.kin for model in rig.workers.built] == [KIN, ()]
    rig.forms.exited(rig.taken - 1, "killed by signal 11")
    assert rig.forms.next is None, "it was not that"
    rig.forms.forget(served.identity)
    rig.forms.consider(served)
    assert rig.forms.spared == set(KIN)


@pytest.mark.usefixtures("kin")
def test_nothing_is_spared_for_what_is_skipped_or_runs_from_a_form(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    rig.forms.skip()
    assert rig.forms.spared == set()
    served.version.packed = True
    rig.forms.consider(served)
    assert rig.forms.spared == set()


def test_a_form_whose_builder_has_no_room_on_its_device_is_tried_again(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    rig.forms.build(0, 5)
    assert (rig.builds, rig.asked_for) == (0, [5 + FIRST_PAUSE_NS])
    assert rig.fields[-1]["reason"] == no_room_for_builder_text()
    rig.forms.tick(5 + FIRST_PAUSE_NS)
    rig.forms.build(70, 6 + FIRST_PAUSE_NS)
    assert (rig.builds, rig.workers.rooms) == (1, [70])
    assert rig.forms.promised_bytes(served.memory.device) == 70
    rig.forms.ended(FormBuilt(rig.taken - 1, rig.taken, "form", 1, 1, None), 0)
    assert rig.forms.promised_bytes(served.memory.device) == 0


def test_an_engine_for_what_requests_bring_is_built_once_they_bring_nothing_larger_any_more(
    rig: Rig, served: Served
) -> None:
    text = TensorSpec(name="x", datatype=Datatype.FP32, shape=(-1,))
    served.model = replace(served.model, runtime="tensorrt", inputs=(text,), golden="/golden/set.json")
    rig.forms.consider(served)
    rig.forms.build(70, 5)
    assert (rig.builds, rig.asked_for) == (0, [5 + LOOK_NS]), "there was no request"
    assert served.unbuilt == f"it has no engine, and runs without: {awaits_shapes_text()}"
    rig.history.note(served.model, ((9,),))
    rig.forms.tick(5 + LOOK_NS)
    rig.forms.build(70, 5 + LOOK_NS)
    assert (rig.builds, rig.asked_for[1:]) == (0, [SETTLED_NS])
    assert not rig.said
    rig.forms.tick(SETTLED_NS)
    rig.forms.build(70, SETTLED_NS)
    assert rig.builds == 1
    assert rig.workers.built[-1].free_sizes == {"x": (9,)}


def test_a_version_that_moved_to_another_device_is_built_for_there(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    rig.build(later=True, now_ns=5)
    moved = make_served(
        id=2, model=served.model, fingerprint="", identity=served.identity, meter=VersionMeter("m", 1)
    )
    rig.forms.consider(moved)
    rig.forms.tick(5 + FIRST_PAUSE_NS)
    assert rig.forms.next is moved, "the one that left would be skipped, and with it what it is"
    rig.forms.build()
    assert rig.forms.next is None


def test_an_engine_that_nothing_can_prove_is_not_waited_for(rig: Rig, served: Served) -> None:
    text = TensorSpec(name="x", datatype=Datatype.FP32, shape=(-1,))
    served.model = replace(served.model, runtime="tensorrt", inputs=(text,))
    rig.forms.consider(served)
    rig.forms.build(70, 5)
    assert rig.builds == 1, "which says why there is none"


def test_a_process_that_builds_is_known_until_it_has_ended(rig: Rig, served: Served) -> None:
    rig.forms.consider(served)
    rig.forms.build()
    worker = rig.taken - 1
    assert not rig.forms.processes
    for each, pid in ((worker, 4711), (worker + 9, 4712)):
        rig.forms.started(WorkerStarted(each, pid))
    assert rig.forms.processes == ((served.memory.device, 4711),)
    rig.forms.ended(FormBuilt(worker, rig.taken, "form", 1, 1, None), 0)
    assert rig.forms.processes == ((served.memory.device, 4711),), "it has its memory still"
    rig.forms.exited(worker, "it was told to")
    assert not rig.forms.processes
