"""What the daemon does on the disk by what workers say of packed forms."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from appliance.config.workers import WorkersConfig
from appliance.domain.digest import digest_of, piece_count
from appliance.domain.errors import ArtefactError
from appliance.domain.model import ModelVersion
from appliance.domain.side_by_side import SideBySide
from appliance.runtimes.runtime import ENGINE_FILE, GRAPH_FILE, KEPT_BYTES_MAX, KEPT_FILE
from appliance.workers.arena import Arena
from appliance.workers.daemon.forms_on_disk import mark_form, take_up_form
from appliance.workers.daemon.pool import WorkerPool
from appliance.workers.daemon.process import WorkerProcess
from appliance.workers.forms import (
    ANEW_FILE,
    DROPPED_FILE,
    FORM_BYTES_MAX,
    FORM_FILE,
    REFUSED_FILE,
    SEAL_FILE,
    WEIGHTS_FILE,
    FormDocument,
    document_bytes_max,
    encode_document,
    find_form,
    form_bytes,
    make_site,
    read_document,
    refusal,
    refuse_form,
    refuse_forms,
    remove_forms,
)
from appliance.workers.jail.access import access_to, longest_file
from appliance.workers.lane import DaemonLane, socket_pair
from appliance.workers.messages import Load
from appliance.workers.port import FormBuilt, FormJudged, FormVerdict, ModelLoaded, PoolEvent
from tests.workers.bench import SMALL_ARENA, fake
from tests.workers.in_time import in_time

DIGEST = "d" * 64
NAME = f"{DIGEST}-0123456789abcdef"


@pytest.mark.parametrize(
    ("verdict", "anew", "left"),
    [
        (FormVerdict.PROVEN, True, [FORM_FILE]),
        (FormVerdict.DROPPED, False, [DROPPED_FILE, FORM_FILE]),
        (FormVerdict.DROPPED, True, [ANEW_FILE, FORM_FILE, REFUSED_FILE]),
        (FormVerdict.REFUSED, False, [FORM_FILE, REFUSED_FILE]),
    ],
)
def test_verdicts_leave_their_marks(
    tmp_path: Path, verdict: FormVerdict, anew: bool, left: list[str]
) -> None:
    (tmp_path / NAME).mkdir()
    for name in (FORM_FILE, *([ANEW_FILE] if anew else [])):
        (tmp_path / NAME / name).touch()
    version = replace(fake(), digest=DIGEST, forms=str(tmp_path))
    mark_form(Load(2, version), FormJudged(1, 2, NAME, verdict, "why"))
    assert sorted(os.listdir(tmp_path / NAME)) == left


def test_a_form_that_is_not_there_is_not_marked(tmp_path: Path) -> None:
    version = replace(fake(), digest=DIGEST, forms=str(tmp_path))
    mark_form(Load(2, version), FormJudged(1, 2, NAME, FormVerdict.REFUSED, "why"))
    assert os.listdir(tmp_path) == []


def built_in(forms: Path, *files: str) -> ModelVersion:
    """A version, with these files where its form is built."""
    site = Path(make_site(str(forms), NAME))
    for name in files:
        (site / name).write_bytes(b"123")
    return replace(fake(), digest=DIGEST, forms=str(forms))


def test_what_was_built_gets_its_name_and_what_was_not_goes(tmp_path: Path) -> None:
    version = built_in(tmp_path, FORM_FILE, GRAPH_FILE)
    built = FormBuilt(1, 2, NAME, 9, 1, None)
    for _ in range(2):
        assert take_up_form(version, built) == built._replace(nbytes=6)
        assert os.listdir(tmp_path) == [NAME]
        make_site(str(tmp_path), NAME)
    for said in (FormBuilt(1, 2, "", 0, 1, "no"), None):
        built_in(tmp_path, FORM_FILE)
        assert take_up_form(version, said) == said
        assert os.listdir(tmp_path) == [NAME]


@pytest.mark.parametrize("engine_ns", [90, 290])
def test_an_engine_that_is_slower_is_never_one_that_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine_ns: int
) -> None:
    """The daemon may end before the engine is refused."""
    sealed: list[str] = []
    monkeypatch.setattr(
        "appliance.workers.daemon.forms_on_disk.seal_form", lambda version, name: sealed.append(name)
    )
    version = built_in(tmp_path, FORM_FILE, GRAPH_FILE)
    compared = (SideBySide(1, 41, engine_ns, 100, engine_ns / 100),)
    built = FormBuilt(1, 2, NAME, 9, 1, None, compared=compared)
    assert take_up_form(version, built) == built._replace(nbytes=6)
    assert os.listdir(tmp_path) == [NAME]
    assert sealed == ([NAME] if engine_ns == 90 else [])


def test_a_form_that_was_only_said_to_be_built_is_none(tmp_path: Path) -> None:
    version = built_in(tmp_path)
    said = take_up_form(version, FormBuilt(1, 2, NAME, 9, 1, None))
    assert said is not None
    assert (said.name, said.nbytes) == ("", 0)
    assert "could not be put into its place" in str(said.failure)
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "what", ["another file", "a link", "too much", "a long document", "more than may be kept"]
)
def test_what_no_builder_leaves_is_no_form(tmp_path: Path, what: str) -> None:
    version = built_in(tmp_path, FORM_FILE, GRAPH_FILE, *(["more"] if what == "another file" else []))
    site = tmp_path / f".building-{NAME}"
    if what == "a link":
        (site / WEIGHTS_FILE).symlink_to("/etc/hostname")
    elif what == "too much":
        os.truncate(site / GRAPH_FILE, longest_file(version) + FORM_BYTES_MAX - 2)
    elif what == "a long document":
        os.truncate(site / FORM_FILE, document_bytes_max(longest_file(version)) + 1)
    elif what == "more than may be kept":
        (site / KEPT_FILE).touch()
        os.truncate(site / KEPT_FILE, KEPT_BYTES_MAX + 1)
    said = take_up_form(version, FormBuilt(1, 2, NAME, 9, 1, None))
    assert said is not None
    assert "other files, or larger ones" in str(said.failure)
    assert os.listdir(tmp_path) == []


def test_what_was_learned_counts_apart_from_the_longest_form(tmp_path: Path) -> None:
    version = built_in(tmp_path, FORM_FILE, GRAPH_FILE, KEPT_FILE)
    site = tmp_path / f".building-{NAME}"
    for name, size in ((GRAPH_FILE, longest_file(version)), (KEPT_FILE, KEPT_BYTES_MAX)):
        os.truncate(site / name, size)
    said = take_up_form(version, FormBuilt(1, 2, NAME, 9, 1, None))
    assert said is not None
    assert said.failure is None
    assert os.listdir(tmp_path) == [NAME]


def test_the_longest_honest_document_is_read_and_one_longer_than_its_weights_allow_is_not(
    tmp_path: Path,
) -> None:
    weights = 400 << 30
    pieces = tuple(digest_of(str(each).encode()) for each in range(piece_count(weights)))
    document = FormDocument(
        format=1,
        graph_bytes=1 << 40,
        graph_digest="a" * 64,
        weights_bytes=weights,
        weights_digest="b" * 64,
        pieces=pieces,
        tie="a GPU by its name and its UUID, " * 100,
        kept_digest="c" * 64,
    )
    data = encode_document(document)
    assert len(data) <= document_bytes_max(weights)
    (tmp_path / FORM_FILE).write_bytes(data)
    with open(tmp_path / WEIGHTS_FILE, "wb") as file:
        os.truncate(file.fileno(), weights)
    assert read_document(str(tmp_path / FORM_FILE)) == (document, digest_of(data))
    os.truncate(tmp_path / WEIGHTS_FILE, weights // 2)
    with pytest.raises(ArtefactError, match="at most"):
        read_document(str(tmp_path / FORM_FILE))


def linked(forms: Path, files: tuple[str, ...]) -> Path:
    """A directory elsewhere, with a link to it in the place of a form."""
    elsewhere = forms.parent / "elsewhere"
    elsewhere.mkdir()
    for name in files:
        (elsewhere / name).write_bytes(b"mine")
    forms.mkdir()
    (forms / NAME).symlink_to(elsewhere)
    return elsewhere


@pytest.mark.parametrize("verdict", list(FormVerdict))
def test_a_link_in_the_place_of_a_form_leads_no_verdict_elsewhere(
    tmp_path: Path, verdict: FormVerdict
) -> None:
    files = (ANEW_FILE, FORM_FILE, GRAPH_FILE, WEIGHTS_FILE, ENGINE_FILE, SEAL_FILE)
    elsewhere = linked(tmp_path / "forms", files)
    version = replace(fake(), digest=DIGEST, forms=str(tmp_path / "forms"))
    mark_form(Load(2, version), FormJudged(1, 2, NAME, verdict, "why"))
    assert not refuse_forms(version.forms, DIGEST, "why")
    assert not refuse_form(str(tmp_path / "forms" / NAME), "why")
    assert sorted(os.listdir(elsewhere)) == sorted(files)


def test_a_link_in_the_place_of_a_form_is_none_and_makes_way_for_one(tmp_path: Path) -> None:
    forms = tmp_path / "forms"
    elsewhere = linked(forms, (REFUSED_FILE,))
    assert find_form(str(forms), NAME) is None
    assert form_bytes(str(forms)) == {}
    version = built_in(forms, FORM_FILE, GRAPH_FILE)
    assert str(forms / NAME) not in access_to(version).reads
    taken = take_up_form(version, FormBuilt(1, 2, NAME, 9, 1, None))
    assert taken is not None
    assert taken.failure is None
    assert sorted(os.listdir(forms / NAME)) == [FORM_FILE, GRAPH_FILE]
    assert os.listdir(elsewhere) == [REFUSED_FILE]


def test_a_link_in_the_place_of_a_form_leaves_with_the_version(tmp_path: Path) -> None:
    elsewhere = linked(tmp_path / "forms", (REFUSED_FILE,))
    remove_forms(str(tmp_path / "forms"), [], [DIGEST], building=False)
    assert os.listdir(tmp_path / "forms") == []
    assert os.listdir(elsewhere) == [REFUSED_FILE]


def test_a_mark_is_written_through_no_link(tmp_path: Path) -> None:
    form, other = tmp_path / "forms" / NAME, tmp_path / "other"
    form.mkdir(parents=True)
    other.write_bytes(b"mine")
    (form / DROPPED_FILE).symlink_to(other)
    version = replace(fake(), digest=DIGEST, forms=str(form.parent))
    mark_form(Load(2, version), FormJudged(1, 2, NAME, FormVerdict.DROPPED, "why"))
    assert other.read_bytes() == b"mine"
    assert (form / DROPPED_FILE).read_bytes() == b"why"
    assert not (form / DROPPED_FILE).is_symlink()


def test_a_mark_that_is_no_file_refuses_all_the_same_and_holds_nobody_up(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    os.mkfifo(tmp_path / NAME / REFUSED_FILE)
    assert in_time(lambda: refusal(str(tmp_path), NAME)) == "refused"
    os.unlink(tmp_path / NAME / REFUSED_FILE)
    (tmp_path / NAME / REFUSED_FILE).symlink_to("nowhere")
    assert refusal(str(tmp_path), NAME) == "refused"


def test_a_document_that_is_no_file_holds_nobody_up(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / FORM_FILE)

    def problem() -> str:
        with pytest.raises(ArtefactError) as found:
            read_document(str(tmp_path / FORM_FILE))
        return str(found.value)

    assert "is not a file" in in_time(problem)


def test_a_document_that_may_not_be_read_still_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What loads forms tells by this one that is not its own from one that rotted."""

    def refused(*arguments: object) -> int:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    with pytest.raises(ArtefactError) as found:
        read_document(str(tmp_path / FORM_FILE))
    assert isinstance(found.value.__cause__, PermissionError)


@pytest.fixture
def heard(tmp_path: Path) -> Iterator[Callable[[list[str], FormVerdict], list[PoolEvent]]]:
    """What a pool tells of a verdict on the form of model "b", from a worker that loaded and lost models of the other
    names before."""
    (tmp_path / NAME).mkdir()
    version = replace(fake(), name="b", digest=DIGEST, forms=str(tmp_path))
    loop, arena, sockets = asyncio.new_event_loop(), Arena(SMALL_ARENA), socket_pair()
    events: list[PoolEvent] = []
    pool = WorkerPool(arena, WorkersConfig(), loop, events.append)

    def hear(before: list[str], verdict: FormVerdict) -> list[PoolEvent]:
        state = WorkerProcess(1, DaemonLane(sockets[0]), None)
        for model, name in enumerate(before, 10):
            state.owe_load(Load(model, replace(version, name=name)), 100, 200)
            state.pending.settle(ModelLoaded(1, model, (), 5, 6))
            state.forget_model(model)
        state.owe_load(Load(2, version), 100, 200)
        pool._settle(state, FormJudged(1, 2, NAME, verdict, "why"))
        return events

    yield hear
    for each in sockets:
        each.close()
    arena.close()
    loop.close()


@pytest.mark.parametrize(
    ("before", "verdict", "mark"),
    [
        ([], FormVerdict.REFUSED, REFUSED_FILE),
        (["b"], FormVerdict.REFUSED, REFUSED_FILE),
        (["a"], FormVerdict.DROPPED, DROPPED_FILE),
    ],
)
def test_a_worker_that_had_another_model_refuses_no_form_for_good(
    tmp_path: Path,
    heard: Callable[[list[str], FormVerdict], list[PoolEvent]],
    before: list[str],
    verdict: FormVerdict,
    mark: str,
) -> None:
    assert heard(before, FormVerdict.REFUSED) == [FormJudged(1, 2, NAME, verdict, "why")]
    assert os.listdir(tmp_path / NAME) == [mark]


def test_nor_by_dropping_it_again_before_it_was_loaded(
    tmp_path: Path, heard: Callable[[list[str], FormVerdict], list[PoolEvent]]
) -> None:
    (tmp_path / NAME / ANEW_FILE).touch()
    heard(["a"], FormVerdict.DROPPED)
    assert sorted(os.listdir(tmp_path / NAME)) == [ANEW_FILE, DROPPED_FILE]
