"""Forms that are only read when this box has sealed them: sealed once built, dropped aloud for whatever does not hold.

The runtime is one of this test: its engines are text, and it says what it is tied to.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NoReturn

import pytest

from appliance.domain.errors import LoadFailed
from appliance.domain.load_wish import LoadWish
from appliance.domain.model import ModelVersion
from appliance.domain.regular_file import read_file
from appliance.runtimes.runtime import (
    ENGINE_FILE,
    KEPT_FILE,
    LIKE_FILE,
    Donor,
    RuntimeSettings,
    Session,
)
from appliance.store.layout import FORMS_KEY
from appliance.workers.child.form_builder import build_form
from appliance.workers.child.loading import Loader
from appliance.workers.daemon.forms_on_disk import for_worker, mark_form, take_up_form
from appliance.workers.forms import (
    DROPPED_FILE,
    FORM_FILE,
    REFUSED_FILE,
    SEAL_FILE,
    SEALED_BYTES_MAX,
    WEIGHTS_FILE,
)
from appliance.workers.jail.support import Support
from appliance.workers.messages import Load
from appliance.workers.port import FormBuilt, FormJudged, FormVerdict
from appliance.workers.seal import driver_changed, seal_form, seal_problem, sealed_documents
from tests.runtimes.fake import FakeRuntime
from tests.workers.bench import fake, version_of
from tests.workers.in_time import in_time
from tests.workers.transformers import flip_bit

DIGEST = "d" * 64


def _fail(*arguments: object) -> NoReturn:
    raise AssertionError("nothing tells of this here")


@dataclass
class Engines:
    """A runtime whose packed forms are engines; ``read`` are those that it has believed."""

    identity: str = "TensorRT 11.4, driver 580, GPU-1"
    name: str = "fake"
    form_file: str = ENGINE_FILE
    sealed: bool = True
    read: list[bytes] = field(default_factory=list)
    kept: list[bytes] = field(default_factory=list)
    like: str = ""
    donors: list[tuple[Donor, ...]] = field(default_factory=list)

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        if settings.packed:
            self.read.append(read_file(version.path, 100, version.digests[version.path]))
        return FakeRuntime().load(version, replace(settings, packed=False))

    def pack(self, version: ModelVersion, settings: RuntimeSettings, graph: str, weights: str) -> None:
        self.kept.append(settings.kept)
        self.donors.append(settings.donors)
        if self.like:
            Path(graph).with_name(LIKE_FILE).write_text(self.like)
        for done in range(4):
            settings.progress(done, 4)
        Path(graph).write_bytes(b"an engine")
        Path(graph).with_name(KEPT_FILE).write_bytes(b"what was learned")


class Box:
    """A state directory, with a daemon's and a worker's part in it."""

    def __init__(self, state: Path, runtime: Engines | None = None) -> None:
        self.forms = state / "forms"
        self.runtime = runtime or Engines()
        self.version = replace(fake(), digest=DIGEST, forms=str(self.forms))
        self.judged: list[tuple[FormVerdict, str]] = []
        self.told: list[tuple[int, int]] = []
        state.mkdir(parents=True, exist_ok=True)

    def judge(self, name: str, verdict: FormVerdict, reason: str) -> None:
        self.judged.append((verdict, reason))
        mark_form(Load(1, self.version), FormJudged(1, 1, name, verdict, reason))

    def build(self) -> Path:
        """The directory of the form that a builder leaves and the daemon takes up."""
        asked = for_worker(self.version)
        settings = RuntimeSettings(progress=lambda done, total: self.told.append((done, total)))
        name, nbytes, _ = build_form(asked, self.runtime, settings, self.judge)
        built = take_up_form(self.version, FormBuilt(1, 1, name, nbytes, 1, None))
        assert built is not None
        assert built.failure is None, built.failure
        return self.forms / name

    def loads_packed(self) -> bool:
        """Whether a worker runs the version from its form."""
        loader = Loader(1, {"fake": self.runtime}, 1)
        load = Load(1, for_worker(self.version), LoadWish())
        opened = loader.load(load, alone=True, tell=_fail, judge=self.judge)
        opened.model.session.close()
        return opened.said.packed


@pytest.fixture(autouse=True)
def keeps_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the kernel is on which this is tried."""
    monkeypatch.setattr("appliance.workers.seal.kernel_support", lambda: Support(landlock=1, filter=True))


@pytest.fixture
def box(tmp_path: Path) -> Box:
    box = Box(tmp_path / "serve")
    box.build()
    box.runtime.read.clear()  # it was proven
    return box


def form_of(box: Box) -> Path:
    (form,) = box.forms.iterdir()
    return form


def test_an_engine_that_this_box_has_sealed_is_run(box: Box) -> None:
    assert box.loads_packed()
    assert box.runtime.read == [b"an engine"]
    assert not box.judged
    assert box.told == [(0, 4), (1, 4), (2, 4), (3, 4)]


def test_the_key_is_made_once_for_its_owner_alone_and_is_in_no_form(box: Box) -> None:
    key = box.forms.parent / FORMS_KEY
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    known = key.read_bytes()
    assert len(known) == 32
    shutil.rmtree(form_of(box))
    form = box.build()
    assert key.read_bytes() == known
    written = b"".join(each.read_bytes() for each in form.iterdir())
    assert known not in written
    assert known.hex().encode() not in written


def flipped_engine(form: Path) -> None:
    flip_bit(str(form / ENGINE_FILE), 2)


def flipped_document(form: Path) -> None:
    text = (form / FORM_FILE).read_text()
    (form / FORM_FILE).write_text(text.replace("driver 580", "driver 581"))


def flipped_seal(form: Path) -> None:
    flip_bit(str(form / SEAL_FILE), 2)


def no_seal(form: Path) -> None:
    (form / SEAL_FILE).unlink()


def other_key(form: Path) -> None:
    (form.parent.parent / FORMS_KEY).write_bytes(bytes(32))


def readable_key(form: Path) -> None:
    (form.parent.parent / FORMS_KEY).chmod(0o640)


def of_another_box(form: Path) -> None:
    """With its seal, document and name, as a copy of that box's disk would have it."""
    other = Box(form.parent.parent.parent / "other")
    theirs = other.build()
    shutil.rmtree(form)
    shutil.copytree(theirs, form)


def of_another_version(form: Path) -> None:
    """An engine that this box sealed, for another model, under this one's name."""
    other = Box(form.parent.parent)
    other.version = replace(other.version, digest="e" * 64)
    theirs = other.build()
    shutil.rmtree(form)
    theirs.rename(form)


@pytest.mark.parametrize(
    "spoil",
    [
        flipped_engine,
        flipped_document,
        flipped_seal,
        no_seal,
        other_key,
        readable_key,
        of_another_box,
        of_another_version,
    ],
)
def test_what_does_not_hold_is_never_read_but_dropped_aloud_and_built_anew(
    box: Box, spoil: Callable[[Path], None]
) -> None:
    spoil(form_of(box))
    assert not box.loads_packed()
    assert box.runtime.read == []
    ((verdict, reason),) = box.judged
    assert verdict is FormVerdict.DROPPED
    assert reason
    assert (form_of(box) / DROPPED_FILE).exists()
    assert not (form_of(box) / ENGINE_FILE).exists()
    box.build()
    box.judged.clear()
    assert box.loads_packed()
    assert [verdict for verdict, _ in box.judged] == [FormVerdict.PROVEN]


@pytest.mark.parametrize(
    "now",
    [
        "TensorRT 11.5, driver 580, GPU-1",
        "TensorRT 11.4, driver 590, GPU-1",
        "TensorRT 11.4, driver 580, GPU-2",
    ],
)
def test_an_engine_for_another_release_driver_or_device_is_dropped_aloud_and_built_anew(
    box: Box, now: str
) -> None:
    before, box.runtime.identity = box.runtime.identity, now
    assert not box.loads_packed()
    assert box.runtime.read == []
    ((verdict, reason),) = box.judged
    assert verdict is FormVerdict.DROPPED
    assert before in reason
    assert now in reason
    box.build()
    assert box.loads_packed()
    form_of(box)  # the one before is gone


def test_what_was_learned_is_there_for_the_next_build_as_it_was_kept(box: Box) -> None:
    box.runtime.identity = "TensorRT 11.4, driver 590, GPU-1"
    box.build()
    assert box.runtime.kept == [b"", b"what was learned"]


@pytest.mark.parametrize("file", [KEPT_FILE, SEAL_FILE, FORM_FILE])
def test_what_was_learned_is_left_alone_where_its_seal_does_not_hold(box: Box, file: str) -> None:
    flip_bit(str(form_of(box) / file), 3)
    box.runtime.identity = "TensorRT 11.4, driver 590, GPU-1"
    box.build()
    assert box.runtime.kept == [b"", b""]


def test_a_builder_cannot_bring_a_seal(tmp_path: Path) -> None:
    box = Box(tmp_path / "serve")

    class Sealing(Engines):
        def pack(self, version: ModelVersion, settings: RuntimeSettings, graph: str, weights: str) -> None:
            super().pack(version, settings, graph, weights)
            Path(graph).with_name(SEAL_FILE).write_bytes(b"mine")

    box.runtime = Sealing()
    asked = for_worker(box.version)
    name, nbytes, _ = build_form(asked, box.runtime, RuntimeSettings(), box.judge)
    built = take_up_form(box.version, FormBuilt(1, 1, name, nbytes, 1, None))
    assert built is not None
    assert "other files" in str(built.failure)
    assert os.listdir(box.forms) == []


def test_a_form_that_a_builder_only_says_it_built_gets_no_seal(box: Box) -> None:
    (form_of(box) / SEAL_FILE).unlink()
    take_up_form(box.version, FormBuilt(1, 1, form_of(box).name, 1, 1, None))
    assert sealed_documents(box.version) == ()


def test_what_is_tied_to_nothing_needs_no_seal(tmp_path: Path) -> None:
    box = Box(tmp_path / "serve", Engines(sealed=False))
    form = box.build()
    assert not (form / SEAL_FILE).exists()
    assert not (box.forms.parent / FORMS_KEY).exists()
    assert box.loads_packed()


def test_a_form_whose_document_cannot_be_read_is_not_sealed(tmp_path: Path) -> None:
    form = tmp_path / "forms" / f"{DIGEST}-0123456789abcdef"
    form.mkdir(parents=True)
    (form / FORM_FILE).write_text("{}")
    seal_form(version_of("m", [], [], forms=str(form.parent)), form.name)
    assert os.listdir(form) == [FORM_FILE]


@pytest.mark.parametrize("file", [FORM_FILE, SEAL_FILE, f"../../{FORMS_KEY}"])
@pytest.mark.parametrize("kind", ["fifo", "link"])
def test_a_seal_is_found_in_files_alone_and_holds_nobody_up(box: Box, file: str, kind: str) -> None:
    place = form_of(box) / file
    assert in_time(lambda: sealed_documents(box.version))
    place.rename(box.forms.parent / "aside")
    if kind == "fifo":
        os.mkfifo(place, 0o600)
    else:
        place.symlink_to(box.forms.parent / "aside")
    assert in_time(lambda: sealed_documents(box.version)) == ()


def test_a_key_that_is_no_file_is_replaced_by_one(box: Box) -> None:
    key = box.forms.parent / FORMS_KEY
    key.unlink()
    os.mkfifo(key, 0o600)
    shutil.rmtree(form_of(box))
    in_time(box.build)
    assert key.is_file()
    assert sealed_documents(box.version)


def test_a_link_to_a_sealed_form_is_not_sealed(box: Box) -> None:
    form = form_of(box)
    aside = form.rename(box.forms.parent / "aside")
    form.symlink_to(aside)
    assert sealed_documents(box.version) == ()


def test_a_document_longer_than_those_that_are_sealed_is_not_read_here(box: Box) -> None:
    form = form_of(box)
    text = (form / FORM_FILE).read_text()
    (form / SEAL_FILE).unlink()
    (form / FORM_FILE).write_text(text + " " * (SEALED_BYTES_MAX - len(text)))
    seal_form(box.version, form.name)
    assert sealed_documents(box.version)
    (form / SEAL_FILE).unlink()
    (form / FORM_FILE).write_text(text + " " * (SEALED_BYTES_MAX + 1 - len(text)))
    seal_form(box.version, form.name)
    assert not (form / SEAL_FILE).exists()


def test_an_engine_that_was_refused_does_not_come_back_without_its_mark(box: Box) -> None:
    form = form_of(box)
    engine = (form / ENGINE_FILE).read_bytes()
    kept = sorted(os.listdir(form))
    box.judge(form.name, FormVerdict.REFUSED, "golden case 'a': wrong")
    box.judged.clear()
    (form / REFUSED_FILE).unlink()
    (form / ENGINE_FILE).write_bytes(engine)
    (form / WEIGHTS_FILE).write_bytes(b"")
    assert sorted({*os.listdir(form), SEAL_FILE}) == kept
    assert not box.loads_packed()
    assert box.runtime.read == []
    assert [verdict for verdict, _ in box.judged] == [FormVerdict.DROPPED]


def test_without_landlock_nothing_is_sealed_or_opened_and_what_is_there_stays(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker could read the key there."""
    form, engine = form_of(box), replace(box.version, runtime="tensorrt")
    left = sorted(os.listdir(form))
    assert sealed_documents(engine)
    assert for_worker(engine).forms == engine.forms
    with monkeypatch.context() as patched:
        patched.setattr("appliance.workers.seal.kernel_support", lambda: Support(landlock=0, filter=True))
        assert "no Landlock" in seal_problem("tensorrt")
        assert seal_problem("onnx") == ""
        assert (for_worker(engine).forms, for_worker(engine).sealed) == ("", ())
        assert for_worker(replace(engine, runtime="onnx")).forms == engine.forms
        (form / SEAL_FILE).rename(form / "aside")
        seal_form(box.version, form.name)
        assert not (form / SEAL_FILE).exists()
        (form / "aside").rename(form / SEAL_FILE)
        assert sorted(os.listdir(form)) == left
    assert box.loads_packed(), "it is opened where the kernel has Landlock again"


def test_once_the_driver_was_changed_nothing_is_sealed_or_opened_and_what_is_there_stays(
    box: Box, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it is tied to was asked of the driver that was there at the start."""
    form, engine = form_of(box), replace(box.version, runtime="tensorrt")
    left = sorted(os.listdir(form))
    with monkeypatch.context() as patched:
        patched.setattr("appliance.workers.seal._driver_changed", threading.Event())
        assert for_worker(engine).forms == engine.forms
        driver_changed()
        assert "the driver was changed" in seal_problem("tensorrt")
        assert seal_problem("onnx") == ""
        assert for_worker(engine).forms == ""
        (form / SEAL_FILE).rename(form / "aside")
        seal_form(box.version, form.name)
        assert not (form / SEAL_FILE).exists()
        (form / "aside").rename(form / SEAL_FILE)
        assert sorted(os.listdir(form)) == left
    assert box.loads_packed(), "it is opened after a new start, if the driver is the same again"


def test_an_engine_that_is_ready_when_the_driver_is_known_to_have_changed_is_thrown_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = Box(tmp_path / "serve", Engines())
    monkeypatch.setattr("appliance.workers.seal._driver_changed", threading.Event())
    monkeypatch.setattr("appliance.workers.seal.ENGINE_RUNTIMES", frozenset({box.runtime.name}))
    name, nbytes, _ = build_form(for_worker(box.version), box.runtime, RuntimeSettings(), box.judge)
    driver_changed()
    done = take_up_form(box.version, FormBuilt(1, 1, name, nbytes, 1, None))
    assert done is not None
    assert "the driver was changed under the appliance" in str(done.failure)
    assert os.listdir(box.forms) == []


def test_an_engine_that_cannot_be_built_leaves_nothing(tmp_path: Path) -> None:
    class Unable(Engines):
        def pack(self, version: ModelVersion, settings: RuntimeSettings, graph: str, weights: str) -> None:
            raise LoadFailed("node 'a' (Einsum): is not supported")

    box = Box(tmp_path / "serve", Unable())
    with pytest.raises(LoadFailed, match="Einsum"):
        box.build()
