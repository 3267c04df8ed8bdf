"""What a version proves before it serves: with real workers, real files and, where it matters, ONNX Runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.domain.exit_cause import ExitCause
from appliance.domain.golden import GoldenCase, GoldenSet, TensorFile, Tolerance, write_golden
from appliance.domain.load_wish import LoadWish
from appliance.domain.manifest import LatencyPromise
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype, aligned, encode_bytes
from appliance.runtimes.runtime import Feed, Place, Produced, Region
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.measurement import WARM_RUNS, assess
from appliance.workers.port import ModelLoaded, ModelRefused, WorkerExited
from models.generate import write_model
from tests.runtimes.fake import FakeSession
from tests.workers.bench import Bench, fake, spec, version_of

ASSESS = LoadWish(assess=True)
WISHES = [ASSESS, LoadWish(assess=True, background=True), LoadWish(assess=True, quick=True)]


def golden_of(
    root: Path,
    *right: list[float],
    given: list[float] | None = None,
    tolerances: Mapping[str, Tolerance] | None = None,
    promise: LatencyPromise | None = None,
) -> str:
    """A set for a version of the fake runtime: each case gives ``given``, or what is right, and wants what is right."""
    file = TensorFile()
    cases = []
    for number, values in enumerate(right):
        raw = [np.array([each], np.float32).tobytes() for each in (given or values, values)]
        cases.append(
            GoldenCase(
                name=f"case {number}",
                inputs=(file.add("x", Datatype.FP32, (1, 4), raw[0]),),
                outputs=(file.add("y", Datatype.FP32, (1, 4), raw[1]),),
            )
        )
    golden = GoldenSet(cases=tuple(cases), tolerances=tolerances or {}, promise=promise)
    write_golden(str(root / "golden"), golden, file.data())
    return str(root / "golden" / "set.json")


def load(bench: Bench, version: ModelVersion, wish: LoadWish) -> ModelLoaded | ModelRefused:
    worker = bench.start()
    bench.call(bench.pool.load, worker, 100, version, wish)
    ended: ModelLoaded | ModelRefused = bench.event((ModelLoaded, ModelRefused))  # type: ignore[arg-type]
    bench.call(bench.pool.stop, worker)
    bench.event(WorkerExited)
    return ended


@pytest.mark.parametrize("wish", WISHES)
def test_a_golden_set_that_holds(shared_bench: Bench, tmp_path: Path, wish: LoadWish) -> None:
    version = replace(fake(), golden=golden_of(tmp_path, [1, 2, 3, 4], [0, 0, 0, 0]))
    loaded = load(shared_bench, version, wish)
    assert isinstance(loaded, ModelLoaded)
    assert loaded.assessment is not None
    assert (loaded.assessment.cases, loaded.assessment.is_broken) == (2, False)
    assert loaded.assessment.worst == (("y", 0.0, 0.0),)
    assert (loaded.assessment.rows, loaded.assessment.runs) == (1, 200 if wish.quick else 5), (
        "passes do as well"
    )


@pytest.mark.parametrize("wish", WISHES)
def test_a_golden_set_that_fails_refuses_the_version(
    shared_bench: Bench, tmp_path: Path, wish: LoadWish
) -> None:
    golden = golden_of(tmp_path, [1, 2, 3, 4], [1, 2, 3.5, 4], given=[1, 2, 3, 4])
    refused = load(shared_bench, replace(fake(), golden=golden), wish)
    assert isinstance(refused, ModelRefused)
    assert "golden case 'case 1': output 'y' has 1 of 4 values outside its tolerance" in refused.reason
    assert "value 2: 3 instead of 3.5" in refused.reason


def test_how_far_off_is_told_within_the_tolerance(shared_bench: Bench, tmp_path: Path) -> None:
    golden = golden_of(
        tmp_path, [1, 2, 3, 4], [1, 2, 4, 4], given=[1, 2, 3, 4], tolerances={"y": Tolerance(absolute=1.5)}
    )
    loaded = load(shared_bench, replace(fake(), golden=golden), ASSESS)
    assert isinstance(loaded, ModelLoaded)
    assert loaded.assessment is not None
    assert loaded.assessment.worst == (("y", 1.0, 0.25),)


def test_without_the_wish_nothing_is_assessed(shared_bench: Bench, tmp_path: Path) -> None:
    golden = golden_of(tmp_path, [1, 2, 3, 5], given=[1, 2, 3, 4])
    loaded = load(shared_bench, replace(fake(), golden=golden), LoadWish())
    assert isinstance(loaded, ModelLoaded)
    assert loaded.assessment is None


@pytest.mark.parametrize("cases", [([1, 2, 3, 4],), ()], ids=["beside a case", "alone"])
def test_a_promise_that_is_kept_and_one_that_is_broken(
    shared_bench: Bench, tmp_path: Path, cases: tuple[list[float], ...]
) -> None:
    broken = []
    for p99_us in (60_000_000, 5000):
        golden = golden_of(tmp_path, *cases, promise=LatencyPromise(rows=3, p99_us=p99_us))
        loaded = load(shared_bench, replace(fake("delay", delay_ms=12), golden=golden), ASSESS)
        assert isinstance(loaded, ModelLoaded)
        assert loaded.assessment is not None
        assert loaded.assessment.rows == 3
        assert loaded.assessment.p50_ns >= 12_000_000
        broken.append(loaded.assessment.promised_ns)
    assert broken == [0, 5_000_000]


class Placed(FakeSession):
    """Notes where its outputs may be written."""

    def __init__(self, version: ModelVersion) -> None:
        super().__init__(version, "identity")
        self.places: list[Place] = []

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        self.places.append(place)
        return super().run(source, feeds, wanted, place)


def test_runs_are_measured_with_room_for_their_outputs_as_those_of_requests_have_it() -> None:
    session = Placed(fake())
    assessment = assess(LoadedModel(version=fake(), session=session), None, (), ())
    assert len(session.places) == WARM_RUNS + assessment.runs
    assert {(place.offset, place.capacity) for place in session.places[1:]} == {(0, aligned(16))}


def test_a_set_that_is_not_of_this_version_or_not_there(shared_bench: Bench, tmp_path: Path) -> None:
    golden = golden_of(tmp_path, [1, 2, 3, 4])
    other = version_of(
        "",
        [spec("x", Datatype.FP32, 4)],
        [spec("z", Datatype.FP32, 4)],
        runtime="fake",
        max_batch_size=8,
        golden=golden,
    )
    refused = load(shared_bench, other, ASSESS)
    assert isinstance(refused, ModelRefused)
    assert "the golden set cannot be used" in refused.reason
    assert "'y', which the model does not have" in refused.reason
    (tmp_path / "golden" / "tensors.bin").unlink()
    refused = load(shared_bench, replace(fake(), golden=golden), ASSESS)
    assert isinstance(refused, ModelRefused)
    assert "tensors.bin cannot be opened" in refused.reason


def test_a_version_that_fails_its_own_golden_request(shared_bench: Bench, tmp_path: Path) -> None:
    version = replace(fake("fail"), golden=golden_of(tmp_path, [1, 2, 3, 4]))
    refused = load(shared_bench, version, ASSESS)
    assert isinstance(refused, ModelRefused)
    assert "golden case 'case 0': told to fail" in refused.reason


def test_texts_and_free_dimensions_are_assessed_by_the_golden_set_alone(
    shared_bench: Bench, tmp_path: Path
) -> None:
    version = version_of(
        write_model("string_concat", tmp_path) / "1" / "model.onnx",
        [spec("a", Datatype.BYTES, -1), spec("b", Datatype.BYTES, -1)],
        [spec("y", Datatype.BYTES, -1)],
        max_batch_size=4,
    )
    loaded = load(shared_bench, version, ASSESS)
    assert isinstance(loaded, ModelLoaded)
    assert loaded.assessment == (0, (), 0, 0, 0, 0, 0)
    file = TensorFile()
    texts, empty = encode_bytes([b"a", "ü".encode(), b""]), encode_bytes([b""] * 3)
    case = GoldenCase(
        name="texts",
        inputs=(file.add("a", Datatype.BYTES, (1, 3), texts), file.add("b", Datatype.BYTES, (1, 3), empty)),
        outputs=(file.add("y", Datatype.BYTES, (1, 3), texts),),
    )
    write_golden(str(tmp_path / "golden"), GoldenSet(cases=(case,), tolerances={}), file.data())
    loaded = load(shared_bench, replace(version, golden=str(tmp_path / "golden" / "set.json")), ASSESS)
    assert isinstance(loaded, ModelLoaded)
    assert loaded.assessment is not None
    assert (loaded.assessment.cases, loaded.assessment.worst) == (1, (("y", 0.0, 0.0),))
    assert loaded.assessment.runs > 0
    promised = GoldenSet(cases=(case,), tolerances={}, promise=LatencyPromise(rows=3, p99_us=1))
    write_golden(str(tmp_path / "golden"), promised, file.data())
    loaded = load(shared_bench, replace(version, golden=str(tmp_path / "golden" / "set.json")), ASSESS)
    assert isinstance(loaded, ModelLoaded)
    assert loaded.assessment is not None
    assert (loaded.assessment.rows, loaded.assessment.promised_ns) == (3, 1_000)


@pytest.mark.parametrize("wish", WISHES[:2])
def test_a_golden_set_that_hangs_ends_the_worker(
    make_bench: Callable[..., Bench], tmp_path: Path, wish: LoadWish
) -> None:
    bench = make_bench(load_timeout_ms=100)
    worker = bench.start()
    version = replace(fake("hang"), golden=golden_of(tmp_path, [1, 2, 3, 4]))
    bench.call(bench.pool.load, worker, 100, version, wish)
    exited = bench.event(WorkerExited)
    assert (exited.cause, exited.loading) == (ExitCause.HUNG, 100)
