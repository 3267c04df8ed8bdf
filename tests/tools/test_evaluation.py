"""Trials in real processes with the real runtime: golden sets, measurements, variants, and what goes wrong."""

from __future__ import annotations

import fcntl
import os
import resource
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from appliance.domain.errors import ArtefactError
from appliance.domain.golden import EXACT, Tolerance, read_golden, read_tensors, tensor_data, write_golden
from appliance.domain.manifest import LatencyPromise
from appliance.tools.evaluation import process
from appliance.tools.evaluation.jobs import (
    METHODS,
    CompareJob,
    ConvertJob,
    GoldenJob,
    MeasureJob,
    Measurement,
    from_plain,
    to_plain,
)
from appliance.tools.evaluation.process import _lines, compare, convert, make_golden, measure
from appliance.tools.variants.output import next_version
from models.generators.bert_graph import sentence_encoder
from tests.models.encoders import small_encoder
from tests.repository.onnx_files import port
from tests.tools.models import endless_model, mlp_home, noisy_model, tiled_model, wide_model, write

Steps = list[tuple[int, int, str]]


@pytest.fixture
def steps() -> Steps:
    return []


def _tell(steps: Steps):  # type: ignore[no-untyped-def]
    return lambda done, total, text: steps.append((done, total, text))


def _golden(source: Path, **job: object) -> str:
    folder = str((source.parent if source.is_file() else source / "1") / "golden")
    values = {"random": 3, "seed": 5, "default": Tolerance(absolute=1e-5), **job}
    made = make_golden(GoldenJob(source=str(source), folder=folder, **values), _tell([]))  # type: ignore[arg-type]
    return made.path


def test_a_golden_set_holds_what_the_model_answers(tmp_path: Path, steps: Steps) -> None:
    source = write(tmp_path / "net.onnx", wide_model())
    job = GoldenJob(
        source=str(source),
        folder=str(tmp_path / "golden"),
        random=2,
        seed=7,
        rows=3,
        default=Tolerance(absolute=1e-6),
        promise=LatencyPromise(rows=4, p99_us=0),
        budget_ms=5,
    )
    made = make_golden(job, _tell(steps))
    golden = read_golden(made.path)
    assert made.cases == len(golden.cases) == 2
    assert [each[2] for each in steps] == ["loading", "case random-7", "case random-8", "measuring 4 rows"]
    assert golden.promise == made.promise
    assert made.promise is not None and made.measured is not None  # noqa: PT018
    assert made.promise.p99_us * 1000 >= 2 * made.measured.p99_ns
    assert golden.tolerances == {"y": Tolerance(absolute=1e-6)}
    session = onnxruntime.InferenceSession(source, providers=["CPUExecutionProvider"])
    tensors = read_tensors(made.path, golden)
    for case in golden.cases:
        given, right = (
            np.frombuffer(tensor_data(tensors, each), np.float32).reshape(each.shape)
            for each in (case.inputs[0], case.outputs[0])
        )
        np.testing.assert_array_equal(session.run(None, {"x": given})[0], right)


def test_a_model_that_does_not_repeat_itself_has_no_golden_set(tmp_path: Path) -> None:
    source = write(tmp_path / "net.onnx", noisy_model())
    with pytest.raises(ArtefactError, match="'y' is not the same twice"):
        _golden(source)
    assert not (tmp_path / "golden").exists()


def test_a_model_that_fails_random_values_is_asked_for_requests_that_it_answers(tmp_path: Path) -> None:
    source = str(write(tmp_path / "net.onnx", tiled_model()))
    shapes = {"x": (4,)}
    golden = GoldenJob(source=source, folder=str(tmp_path / "golden"), random=1, shapes=shapes)
    measured = MeasureJob(source=source, shapes=shapes, budget_ms=5)
    wanted = r"^the model fails random values: .*Reshape.*; make a golden set of requests that it answers \('appliance"
    with pytest.raises(ArtefactError, match=wanted):
        make_golden(golden, _tell([]))
    with pytest.raises(ArtefactError, match=wanted):
        measure(measured, _tell([]))


def test_more_cases_than_a_set_holds_are_refused_before_they_are_run(tmp_path: Path, steps: Steps) -> None:
    source = write(tmp_path / "net.onnx", wide_model())
    path = Path(_golden(source))
    before = path.read_bytes()
    job = GoldenJob(source=str(source), folder=str(path.parent), random=1_025)
    with pytest.raises(ArtefactError, match="at most 1,024 cases; 1,025 are asked for"):
        make_golden(job, _tell(steps))
    assert [each[2] for each in steps] == ["loading"]
    assert path.read_bytes() == before


def test_a_measurement(tmp_path: Path, steps: Steps) -> None:
    home = mlp_home(tmp_path)
    found = measure(MeasureJob(source=str(home), rows=(1, 4), budget_ms=5), _tell(steps))
    assert [each.rows for each in found.speeds] == [1, 4]
    assert all(0 < each.best_ns <= each.p50_ns <= each.p99_ns for each in found.speeds)
    assert found.first_answer_ns > found.load_ns > 0
    assert found.inputs == "random values"
    assert steps[-1] == (2, 3, "4 rows")
    with pytest.raises(ArtefactError, match="batches of 1 to 32 rows"):
        measure(MeasureJob(source=str(home), rows=(33,)), _tell([]))


def test_variants_are_held_against_the_golden_set(tmp_path: Path) -> None:
    source = write(tmp_path / "net.onnx", wide_model())
    _golden(source)
    files = {}
    for method in METHODS:
        target = tmp_path / f"{method}.onnx"
        converted = convert(ConvertJob(source=str(source), method=method, target=str(target)), _tell([]))
        assert converted.file_bytes == target.stat().st_size
        files[method] = str(target)
    (tmp_path / "broken.onnx").write_bytes(b"\x08\x08")
    files["broken"] = str(tmp_path / "broken.onnx")
    job = CompareJob(source=str(source), files=files, classes=("y",), budget_ms=10)
    found = compare(job, _tell([]))
    by_method = {each.method: each for each in found.candidates}
    assert list(by_method) == ["original", *METHODS, "broken"]
    assert by_method["original"].holds
    assert by_method["original"].accuracy[0].absolute == 0.0
    assert "holds no graph" in by_method["broken"].problem
    for method in METHODS:
        (accuracy,) = by_method[method].accuracy
        assert not by_method[method].holds
        assert 1e-5 < accuracy.absolute < 0.2
        assert accuracy.reason.startswith("case 'random-")
        assert (accuracy.values, accuracy.tops) == (12, 3)
        assert accuracy.same_top <= 3
        assert [each.rows for each in by_method[method].speeds] == [1, 16]
    half = by_method["fp16"].accuracy[0]
    assert half.absolute < by_method["int8-dynamic"].accuracy[0].absolute
    loose = compare(replace(job, tolerances={"y": Tolerance(absolute=0.2)}), _tell([]))
    assert all(each.holds for each in loose.candidates if each.method != "broken")


def test_a_model_without_anything_to_quantise_has_no_int8_variant(tmp_path: Path) -> None:
    source = write(tmp_path / "net.onnx", noisy_model())
    with pytest.raises(ArtefactError, match="no operator of the model takes INT8"):
        convert(
            ConvertJob(source=str(source), method="int8-dynamic", target=str(tmp_path / "t.onnx")), _tell([])
        )


def test_variants_of_a_transformer(tmp_path: Path) -> None:
    source = tmp_path / "encoder.onnx"
    source.write_bytes(sentence_encoder(small_encoder()))
    _golden(source, shapes={"input_ids": (6,), "attention_mask": (6,)})
    files = {}
    for method in ("int8-dynamic", "int8-static"):
        files[method] = str(tmp_path / f"{method}.onnx")
        convert(ConvertJob(source=str(source), method=method, target=files[method]), _tell([]))
    tolerances = {"sentence_embedding": Tolerance(absolute=0.1)}
    job = CompareJob(source=str(source), files=files, tolerances=tolerances, budget_ms=1)
    found = compare(job, _tell([]))
    assert [each.holds for each in found.candidates] == [True, True, True]
    assert found.candidates[1].file_bytes < found.candidates[0].file_bytes


def test_comparing_needs_a_golden_set(tmp_path: Path) -> None:
    source = write(tmp_path / "net.onnx", wide_model())
    with pytest.raises(ArtefactError, match="has no golden cases"):
        compare(CompareJob(source=str(source), files={}), _tell([]))


def test_a_golden_set_that_no_longer_holds_is_seen(tmp_path: Path) -> None:
    source = write(tmp_path / "net.onnx", wide_model())
    path = _golden(source)
    golden = read_golden(path)
    tensors = bytearray(read_tensors(path, golden))
    tensors[golden.cases[1].outputs[0].offset + 3] ^= 0x40
    write_golden(str(tmp_path / "golden"), replace(golden, tolerances={"y": EXACT}), bytes(tensors))
    (original,) = compare(CompareJob(source=str(source), files={}, budget_ms=1), _tell([])).candidates
    assert not original.holds
    assert "case 'random-6' has 1 of 4 values outside" in original.accuracy[0].reason


def test_a_process_that_dies_is_told_as_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = write(tmp_path / "net.onnx", wide_model())
    killer = tmp_path / "python"
    killer.write_text("#!/bin/sh\nread -r job\necho 'last words' >&2\nkill -SEGV $$\n")
    killer.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(killer))
    with pytest.raises(ArtefactError, match="was ended by SIGSEGV: last words"):
        measure(MeasureJob(source=str(source)), _tell([]))


def test_a_variant_that_ends_the_process_is_told_and_the_others_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "net.onnx", wide_model())
    _golden(source)
    files = {}
    for method in ("crash", "int8-dynamic"):
        files[method] = str(tmp_path / f"{method}.onnx")
        convert(ConvertJob(source=str(source), method="int8-dynamic", target=files[method]), _tell([]))
    chooser = tmp_path / "python"
    chooser.write_text(
        '#!/bin/sh\njob=$(cat)\ncase "$job" in *crash.onnx*) kill -SEGV $$ ;; esac\n'
        f'printf %s "$job" | {sys.executable} "$@"\n'
    )
    chooser.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(chooser))
    found = compare(CompareJob(source=str(source), files=files, budget_ms=1), _tell([]))
    by_method = {each.method: each for each in found.candidates}
    assert by_method.keys() == {"original", "int8-dynamic", "crash"}
    assert by_method["crash"].problem == "the process that tried it was ended by SIGSEGV"
    assert by_method["int8-dynamic"].accuracy
    assert by_method["original"].holds


def test_a_variant_that_runs_without_end_is_told_and_the_others_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "SILENCE_S", 8)
    source = write(tmp_path / "net.onnx", wide_model())
    _golden(source)
    files = {
        "endless": str(write(tmp_path / "endless.onnx", endless_model())),
        "same": str(write(tmp_path / "same.onnx", wide_model())),
    }
    found = compare(CompareJob(source=str(source), files=files, budget_ms=1), _tell([]))
    by_method = {each.method: each for each in found.candidates}
    assert by_method["endless"].problem.startswith("it did not go on for 8 s (at: answers of endless)")
    assert by_method["same"].holds


def test_each_step_is_a_sign_of_life(tmp_path: Path, steps: Steps) -> None:
    source = write(tmp_path / "net.onnx", wide_model())
    _golden(source)
    compare(CompareJob(source=str(source), files={}, budget_ms=1), _tell(steps))
    assert [each[2] for each in steps] == ["answers of original"] * 4 + ["1 row", "16 rows"] + ["speed"] * 9


def test_shapes_that_the_exporter_noted_wrongly_stop_no_method(tmp_path: Path) -> None:
    model = wide_model()
    for initializer in model.graph.initializer:
        model.graph.value_info.append(port(initializer.name, [7, 7, 7]))
    source = write(tmp_path / "net.onnx", model)
    _golden(source)
    for method in METHODS:
        target = tmp_path / f"{method}.onnx"
        assert convert(
            ConvertJob(source=str(source), method=method, target=str(target)), _tell([])
        ).file_bytes


def test_jobs_and_results_travel_as_plain_values() -> None:
    job = GoldenJob(source="s", folder="f", shapes={"x": (1, 2)}, tolerances={"y": Tolerance(relative=0.5)})
    assert from_plain(GoldenJob, to_plain(job)) == job
    promised = replace(job, promise=LatencyPromise(rows=2, p99_us=0))
    assert from_plain(GoldenJob, to_plain(promised)) == promised
    found = Measurement(load_ns=1, first_answer_ns=2, memory_bytes=3, inputs="", speeds=())
    assert from_plain(Measurement, to_plain(found)) == found


def test_the_next_version_is_above_all_others(tmp_path: Path) -> None:
    assert next_version("") == 1
    for name in ("1", "10", "9", "x", ".11.new"):
        (tmp_path / name).mkdir()
    assert next_version(str(tmp_path)) == 11


@pytest.fixture
def _many_descriptors() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2_048), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_many_descriptors")
def test_what_it_says_is_read_from_any_descriptor() -> None:
    reading, writing = os.pipe()
    high = fcntl.fcntl(reading, fcntl.F_DUPFD_CLOEXEC, 1_500)
    os.close(reading)
    os.write(writing, b"one\ntwo\n")
    os.close(writing)
    with open(high, "rb", buffering=0) as out:
        assert list(_lines(out, 60.0)) == [b"one", b"two"]
