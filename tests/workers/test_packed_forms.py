"""Packed forms with real workers and ONNX Runtime: built, taken, evicted; and what becomes of those that rot."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from appliance.domain.errors import AssessmentFailed, FormHasNoRoom, LoadFailed
from appliance.domain.exit_cause import ExitCause
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import FormRoom, ModelVersion
from appliance.runtimes.onnx import OnnxRuntime
from appliance.runtimes.runtime import RuntimeSettings, Session
from appliance.store.layout import FORMS, blob_path
from appliance.workers.child.form_builder import build_form
from appliance.workers.child.loading import Loader
from appliance.workers.daemon.forms_on_disk import BUILDING_FILES_MAX
from appliance.workers.daemon.pool import BACKGROUND_PATIENCE
from appliance.workers.forms import DROPPED_FILE, REFUSED_FILE, form_name, refuse_forms
from appliance.workers.jail.access import FORM_BYTES_MIN, FORM_FACTOR
from appliance.workers.port import FormBuilt, FormVerdict, WorkerExited
from tests.workers.bench import PLAIN, Bench
from tests.workers.transformers import (
    DIGEST,
    answer,
    evict_weights,
    flip_bit,
    load,
    page_in,
    private_bytes,
    read_version,
    stop,
)


@pytest.fixture(scope="module")
def forms(home: Path, shared_bench: Bench, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with the form of the version that ``home`` has."""
    root = tmp_path_factory.mktemp("forms") / "forms"
    built = build(shared_bench, with_forms(read_version(home), root))
    assert built.failure is None
    assert built.name.startswith(f"{DIGEST}-")
    assert sorted(os.listdir(root)) == [built.name]
    assert built.nbytes == sum(entry.stat().st_size for entry in os.scandir(root / built.name))
    return root


def with_forms(version: ModelVersion, forms: Path) -> ModelVersion:
    return replace(version, digest=DIGEST, forms=str(forms))


def build(bench: Bench, version: ModelVersion) -> FormBuilt:
    worker = bench.start(PLAIN.building(version))
    bench.call(bench.pool.build_form, worker, 500, version)
    built = bench.event(FormBuilt)
    assert (built.worker, built.model) == (worker, 500)
    stop(bench, worker)
    return built


def test_a_packed_form_answers_bit_for_bit_and_can_be_evicted(
    shared_bench: Bench, version: ModelVersion, forms: Path
) -> None:
    worker = shared_bench.start()
    plain = load(shared_bench, worker, version, LoadWish(), 101)
    packed = load(shared_bench, worker, with_forms(version, forms), LoadWish(assess=True), 102)
    assert (plain.packed, packed.packed) == (False, True)
    assert version.weights is not None
    assert packed.evictable_bytes > version.weights.size * 0.9
    right = answer(shared_bench, worker, 101)
    assert answer(shared_bench, worker, 102) == right
    for _ in range(2):
        evict_weights(shared_bench, worker, 102)
        assert page_in(shared_bench, worker, model=102).failure is None
        assert answer(shared_bench, worker, 102) == right
    stop(shared_bench, worker)


def test_an_evicted_packed_form_costs_its_session_and_its_largest_batch(
    shared_bench: Bench, version: ModelVersion, forms: Path
) -> None:
    worker = shared_bench.start()
    before = private_bytes(shared_bench.pids[worker])
    loaded = load(shared_bench, worker, with_forms(version, forms), LoadWish())
    evict_weights(shared_bench, worker)
    assert private_bytes(shared_bench.pids[worker]) - before < loaded.evictable_bytes / 2
    stop(shared_bench, worker)


def test_a_form_that_is_there_is_not_built_again(
    shared_bench: Bench, version: ModelVersion, forms: Path
) -> None:
    (name,) = os.listdir(forms)
    inode = (forms / name).stat().st_ino
    built = build(shared_bench, with_forms(version, forms))
    assert (built.name, built.failure, (forms / name).stat().st_ino) == (name, None, inode)


def test_a_form_of_another_processor_or_runtime_is_not_used(
    shared_bench: Bench, version: ModelVersion, tmp_path: Path, forms: Path
) -> None:
    (name,) = os.listdir(forms)
    (tmp_path / f"{DIGEST}-0123456789abcdef").symlink_to(forms / name)
    worker = shared_bench.start()
    assert not load(shared_bench, worker, with_forms(version, tmp_path), LoadWish()).packed
    stop(shared_bench, worker)


def test_a_form_of_another_processor_or_runtime_leaves_when_one_for_this_is_built(
    shared_bench: Bench, version: ModelVersion, tmp_path: Path
) -> None:
    for identity in ("0" * 16, "1" * 16):
        (tmp_path / f"{DIGEST}-{identity}").mkdir()
    refused = tmp_path / f"{DIGEST}-{'1' * 16}"
    (refused / REFUSED_FILE).write_text("it crashed")
    built = build(shared_bench, with_forms(version, tmp_path))
    assert set(os.listdir(tmp_path)) == {built.name, refused.name}


def rotten(form: Path, rot: str) -> None:
    if rot == "bit":
        flip_bit(str(form / "weights.bin"), 4 << 20)
    elif rot == "short":
        os.truncate(form / "weights.bin", 4096)
    elif rot == "document":
        (form / "form.json").write_text(json.dumps({"format": 7}))
    else:
        flip_bit(str(form / "graph.onnx"), 1)


def loads_packed(bench: Bench, version: ModelVersion) -> bool:
    worker = bench.start()
    loaded = load(bench, worker, version, LoadWish())
    assert answer(bench, worker, 100)
    stop(bench, worker)
    return loaded.packed


@pytest.mark.parametrize("rot", ["bit", "short", "document", "graph"])
def test_the_version_loads_without_a_form_that_rots_which_is_built_anew(
    shared_bench: Bench, version: ModelVersion, tmp_path: Path, rot: str
) -> None:
    whole = with_forms(version, tmp_path)
    form = tmp_path / build(shared_bench, whole).name
    rotten(form, rot)
    assert not loads_packed(shared_bench, whole)
    assert sorted(os.listdir(form)) == [DROPPED_FILE, "form.json"]
    assert not loads_packed(shared_bench, whole), "it is said of each form once"
    assert build(shared_bench, whole).failure is None
    assert loads_packed(shared_bench, whole)
    assert sorted(os.listdir(form)) == ["form.json", "graph.onnx", "weights.bin"]


def test_a_form_that_rots_again_before_it_was_loaded_is_refused(
    shared_bench: Bench, version: ModelVersion, tmp_path: Path
) -> None:
    whole = with_forms(version, tmp_path)
    for _ in range(2):
        built = build(shared_bench, whole)
        assert built.failure is None
        rotten(tmp_path / built.name, "short")
        assert not loads_packed(shared_bench, whole)
    assert (tmp_path / built.name / REFUSED_FILE).read_text()
    assert "was refused before" in str(build(shared_bench, whole).failure)


class Packing:
    """As much of a runtime with packed forms as finding one takes."""

    name = "onnx"
    identity = "a runtime"

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        raise AssertionError("nothing is loaded here")

    def pack(self, version: ModelVersion, settings: RuntimeSettings, graph: str, weights: str) -> None:
        raise AssertionError("nothing is packed here")


@pytest.mark.parametrize(
    ("problem", "verdict"),
    [
        (AssessmentFailed("golden case 'a': wrong"), FormVerdict.REFUSED),
        (LoadFailed("no memory"), FormVerdict.DROPPED),
        (OSError(errno.EIO, "it failed for a moment"), FormVerdict.DROPPED),
    ],
)
def test_only_a_form_that_answers_wrongly_is_refused_at_once(
    version: ModelVersion,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    problem: Exception,
    verdict: FormVerdict,
) -> None:
    runtime = Packing()
    judged: list[tuple[str, FormVerdict, str]] = []

    def judge(name: str, said: FormVerdict, reason: str) -> None:
        judged.append((name, said, reason))

    def failing(*arguments: str) -> None:
        raise problem

    monkeypatch.setattr("appliance.workers.child.loading.find_form", failing)
    monkeypatch.setattr(Loader, "_proven", lambda self, *how: how)
    loader, manner = Loader(1, {"onnx": runtime}, 1), SimpleNamespace(wish=LoadWish(), judge=judge)
    assert loader._proven_form(with_forms(version, tmp_path), manner, None) is None  # type: ignore[arg-type]
    assert judged == [(form_name(DIGEST, runtime.identity), verdict, str(problem))]


def test_a_form_that_took_a_worker_down_is_not_used(
    shared_bench: Bench, version: ModelVersion, tmp_path: Path
) -> None:
    whole = with_forms(version, tmp_path)
    build(shared_bench, whole)
    refuse_forms(str(tmp_path), DIGEST, "the worker was killed by signal 4")
    worker = shared_bench.start()
    assert not load(shared_bench, worker, whole, LoadWish()).packed
    stop(shared_bench, worker)
    assert "killed by signal 4" in str(build(shared_bench, whole).failure)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"digest": ""}, "a version with a digest"),
        ({"forms": ""}, "needs a directory of forms"),
        ({"runtime": "fake"}, "has no packed forms"),
        ({"file_bytes": 1 << 60}, "free bytes while it is built"),
        ({"form_room": FormRoom(free_floor_bytes=1 << 60)}, "of which store.free_floor_bytes"),
        ({"path": "nowhere.onnx"}, "nowhere.onnx"),
    ],
)
def test_forms_that_cannot_be_built_leave_nothing_behind(
    shared_bench: Bench, version: ModelVersion, tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    built = build(shared_bench, replace(with_forms(version, tmp_path), **change))  # type: ignore[arg-type]
    assert reason in str(built.failure)
    assert built.name == ""
    assert os.listdir(tmp_path) == []


def test_a_form_is_not_built_where_it_would_take_more_than_the_quota_with_blobs_and_forms(
    shared_bench: Bench, version: ModelVersion, tmp_path: Path
) -> None:
    blob, other = tmp_path / blob_path("a" * 64), tmp_path / FORMS / f"{'b' * 64}-{'1' * 16}"
    for path in (blob, other / "weights.bin"):
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(1000))
    whole = with_forms(version, tmp_path / FORMS)
    taken = 2000 + int(FORM_FACTOR * version.file_bytes)
    for quota, builds in ((taken - 1, False), (taken, True)):
        room = FormRoom(state=str(tmp_path), quota_bytes=quota)
        built = build(shared_bench, replace(whole, form_room=room))
        assert (built.failure is None, built.later) == (builds, not builds), built.failure
    assert len(os.listdir(tmp_path / FORMS)) == 2


class Installing(OnnxRuntime):
    """While it packs a form, something is installed."""

    def __init__(self, blob: Path) -> None:
        super().__init__()
        self._blob = blob

    def pack(self, version: ModelVersion, settings: RuntimeSettings, graph: str, weights: str) -> None:
        super().pack(version, settings, graph, weights)
        self._blob.parent.mkdir(parents=True, exist_ok=True)
        self._blob.write_bytes(bytes(version.file_bytes))


def test_what_is_installed_while_a_form_is_built_comes_before_it(
    version: ModelVersion, tmp_path: Path
) -> None:
    room = FormRoom(state=str(tmp_path), quota_bytes=2 * version.file_bytes + 1000)
    (tmp_path / "blobs").mkdir()
    (tmp_path / FORMS).parent.mkdir()
    whole, settings = (
        replace(with_forms(version, tmp_path / FORMS), form_room=room),
        RuntimeSettings(),
    )
    with pytest.raises(FormHasNoRoom, match="quota_bytes"):
        build_form(whole, Installing(tmp_path / blob_path("a" * 64)), settings, lambda *said: None)
    assert not [each for each in (tmp_path / FORMS).rglob("*") if not each.is_dir()]


def test_a_worker_that_dies_while_it_builds_names_the_model_and_leaves_nothing(
    make_bench: Callable[..., Bench], version: ModelVersion, tmp_path: Path
) -> None:
    bench = make_bench()
    worker = bench.start(PLAIN.building(with_forms(version, tmp_path)))
    bench.call(bench.pool.build_form, worker, 500, with_forms(version, tmp_path))
    while not os.listdir(tmp_path):
        pass
    os.kill(bench.pids[worker], signal.SIGKILL)
    exited = bench.event(WorkerExited)
    assert (exited.worker, exited.loading) == (worker, 500)
    assert os.listdir(tmp_path) == []
    assert build(bench, with_forms(version, tmp_path)).failure is None
    assert len(os.listdir(tmp_path)) == 1


def test_a_builder_that_never_ends_is_ended_says_what_to_do_and_leaves_nothing(
    make_bench: Callable[..., Bench], version: ModelVersion, tmp_path: Path
) -> None:
    bench = make_bench(load_timeout_ms=50)
    worker = bench.start(PLAIN.building(with_forms(version, tmp_path)))
    while not os.listdir(tmp_path):
        pass
    os.kill(bench.pids[worker], signal.SIGSTOP)
    bench.call(bench.pool.build_form, worker, 500, with_forms(version, tmp_path))
    exited = bench.event(WorkerExited)
    assert (exited.worker, exited.cause, exited.loading) == (worker, ExitCause.HUNG, 500)
    most_ms = 50 * BACKGROUND_PATIENCE
    assert exited.detail == (
        f"a packed form took longer than {most_ms} ms; raise workers.load_timeout_ms if it needs more"
    )
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(("files", "size"), [(BUILDING_FILES_MAX + 1, 1), (1, 3 * FORM_BYTES_MIN + 4096)])
def test_a_builder_that_fills_the_disk_is_stopped_and_leaves_nothing(
    shared_bench: Bench, version: ModelVersion, tmp_path: Path, files: int, size: int
) -> None:
    built = replace(with_forms(version, tmp_path), file_bytes=0)
    worker = shared_bench.start(PLAIN.building(built))
    while not os.listdir(tmp_path):
        pass
    os.kill(shared_bench.pids[worker], signal.SIGSTOP)
    shared_bench.call(shared_bench.pool.build_form, worker, 500, built)
    (site,) = tmp_path.iterdir()
    for number in range(files):
        with open(site / str(number), "wb") as file:
            os.posix_fallocate(file.fileno(), 0, size)
    exited = shared_bench.event(WorkerExited)
    assert (exited.cause, exited.loading) == (ExitCause.NONSENSE, 500)
    assert "for a packed form" in exited.detail
    assert os.listdir(tmp_path) == []
