"""The store as a source: what its catalog wants is read, whatever changes there is seen at once."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from appliance.config.repository import RepositoryConfig
from appliance.config.store import StoreConfig
from appliance.domain.errors import OperatorError, StoreBusy
from appliance.domain.manifest_codec import decode
from appliance.domain.model import FormRoom, ModelVersion
from appliance.reconciler.wanted import trial_wish
from appliance.repository.directory import ServableVersion
from appliance.sources import store as store_source
from appliance.sources.source import Look
from appliance.sources.store import StoreSource
from appliance.store.catalog import Catalog, Trial, TrialMode
from appliance.store.catalog_file import read_catalog
from appliance.store.layout import FORMS, view_root
from appliance.store.running import RunningVersion, read_running
from appliance.store.writer import StoreWriter, open_store
from appliance.workers.forms import REFUSED_FILE
from tests.repository.onnx_files import external_tensor, model_of, plain_model, port
from tests.store.arrivals import arrival
from tests.store.stores import install

CONFIG = b'default_model_filename: "graph.onnx"'


def contents(version: int) -> dict[str, bytes]:
    return {"config.pbtxt": CONFIG, f"{version}/graph.onnx": plain_model().SerializeToString()}


def install_plain(store: StoreWriter, name: str, version: int, files: dict[str, bytes] | None = None) -> str:
    return install(
        store, arrival(name, version, files or contents(version)), want=True, now_ms=version
    ).digest


def run(name: str, version: int, digest: str) -> RunningVersion:
    return RunningVersion(name=name, version=version, digest=digest)


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def store(state: Path) -> Iterator[StoreWriter]:
    with open_store(state, StoreConfig(free_floor_bytes=0)) as store:
        yield store


@pytest.fixture
def held() -> list[RunningVersion]:
    """What the engine is said to have."""
    return []


@pytest.fixture
def source(state: Path, store: StoreWriter, held: list[RunningVersion]) -> Iterator[StoreSource]:
    source = StoreSource(state, RepositoryConfig(), lambda: held)
    yield source
    source.close()


def models(look: Look) -> Sequence[ModelVersion]:
    assert look.scan is not None
    assert not look.scan.problems
    return [entry.model for entry in look.scan.servable]


def test_an_empty_store_serves_nothing(source: StoreSource) -> None:
    assert source.read().servable == ()
    assert source.look() == Look()


def test_what_is_wanted_is_seen_at_once_and_rolled_back_as_well(
    source: StoreSource, store: StoreWriter
) -> None:
    source.read()
    digest = install_plain(store, "digits", 1)
    (first,) = models(source.look())
    assert (first.key, first.digest) == ("digits/1", digest)
    assert source.look() == Look()
    install_plain(store, "digits", 2)
    assert [model.key for model in models(source.look())] == ["digits/2"]
    store.roll_back("digits", 3)
    assert [model.key for model in models(source.look())] == ["digits/1"]
    store.uninstall("digits")
    assert models(source.look()) == []


def test_each_time_that_a_version_is_asked_for_is_news(source: StoreSource, store: StoreWriter) -> None:
    install_plain(store, "digits", 7)
    assert source.read().asked_ms == {("digits", 7): 7}
    for now_ms, asked_ms in ((9, 9), (2, 10)):
        store.ask_again("digits", 7, now_ms)
        scan = source.look().scan
        assert scan is not None
        assert scan.asked_ms == {("digits", 7): asked_ms}, "whatever the clock does"


def spoil(file: Path) -> None:
    """Change one bit in place, as a disk does, or a hand."""
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.chmod(0o600)
    file.write_bytes(data)


WHOLE = {
    "config.pbtxt": CONFIG + b' output { name: "y" label_filename: "labels.txt" }',
    "labels.txt": b"one\ntwo\n",
    "1/graph.onnx": plain_model().SerializeToString(),
}


@pytest.mark.parametrize("path", ["MANIFEST.json", *(f"digits/{path}" for path in WHOLE)])
@pytest.mark.parametrize("harm", [spoil, Path.unlink])
def test_what_is_not_as_it_was_signed_is_refused_until_its_package_is_installed_again(
    source: StoreSource, store: StoreWriter, state: Path, path: str, harm: Callable[[Path], None]
) -> None:
    digest = install_plain(store, "digits", 1, WHOLE)
    harm(view_root(state, digest) / path)
    scan = source.read()
    assert not scan.servable
    (problem,) = scan.problems
    assert "install its package again" in problem.text
    if harm is spoil:
        assert "its digest differs" in problem.text
    install_plain(store, "digits", 1, WHOLE)
    assert [model.key for model in models(source.look())] == ["digits/1"]


def test_a_file_that_the_package_did_not_bring_is_not_taken(
    source: StoreSource, store: StoreWriter, state: Path
) -> None:
    files = {"1/model.onnx": plain_model().SerializeToString()}
    digest = install_plain(store, "digits", 1, files)
    (view_root(state, digest) / "digits" / "config.pbtxt").write_bytes(b"max_batch_size: 4")
    (problem,) = source.read().problems
    assert "its package has none such" in problem.text


def test_a_whole_package_of_other_files_is_not_the_one_that_the_catalog_names(
    source: StoreSource, store: StoreWriter, state: Path
) -> None:
    """Manifest and files fit one another, but not the digest that was installed."""
    digest = install_plain(store, "digits", 1)
    files = {
        **contents(1),
        "1/graph.onnx": model_of([port("x", (4,))], [port("y", (4,))]).SerializeToString(),
    }
    other = arrival("digits", 1, files)
    for path, data in {
        "MANIFEST.json": other.manifest_bytes,
        **{f"digits/{p}": d for p, d in files.items()},
    }.items():
        (view_root(state, digest) / path).unlink()
        (view_root(state, digest) / path).write_bytes(data)
    (problem,) = source.read().problems
    assert problem.text.startswith("MANIFEST.json is not what it was when it was stored")


def test_weights_carry_the_digests_of_their_manifest(source: StoreSource, store: StoreWriter) -> None:
    graph = model_of(
        [port("x", ("batch", 4))],
        [port("y", ("batch", 4))],
        tensors=[external_tensor("w", "weights.bin", offset=0, length=4)],
    )
    files = {
        "config.pbtxt": CONFIG,
        "1/graph.onnx": graph.SerializeToString(),
        "1/weights.bin": bytes(4096),
    }
    install_plain(store, "digits", 1, files)
    (model,) = [entry.model for entry in source.read().servable]
    assert model.weights is not None
    assert (model.weights.size, len(model.weights.digest), len(model.weights.pieces)) == (4096, 64, 1)


def test_the_writer_is_told_what_is_used_before_it_is_read_and_until_the_engine_lets_go(
    source: StoreSource, store: StoreWriter, state: Path, held: list[RunningVersion]
) -> None:
    held.append(run("digits", 1, install_plain(store, "digits", 1)))
    source.read()
    second = run("digits", 2, install_plain(store, "digits", 2))
    source.look()
    assert [each.version for each in read_running(state)] == [1, 2]
    held[:] = [second]
    source.look()
    assert [each.version for each in read_running(state)] == [2]


def test_another_package_under_the_number_of_one_that_runs_takes_nothing_from_it(
    source: StoreSource, store: StoreWriter, state: Path, held: list[RunningVersion]
) -> None:
    """What both are called is the same, so only their digests tell them apart."""
    held.append(run("m", 1, install_plain(store, "m", 1)))
    source.read()
    store.uninstall("m")
    other = install_plain(store, "m", 1, {**contents(1), "1/labels.txt": b"cat"})
    assert [model.digest for model in models(source.look())] == [other]
    assert {each.digest for each in read_running(state)} == {held[0].digest, other}
    store.collect()
    assert (view_root(state, held[0].digest) / "m" / "1" / "graph.onnx").exists(), "it serves still"
    held[:] = [run("m", 1, other)]
    source.look()
    assert [each.digest for each in read_running(state)] == [other]
    assert len(store.collect().views) == 1, "the one that has ended"


def test_a_file_that_was_replaced_by_a_whole_one_changes_the_fingerprint_and_not_the_version(
    source: StoreSource, store: StoreWriter, state: Path
) -> None:
    digest = install_plain(store, "m", 1)
    source.read()

    def entry(look: Look) -> ServableVersion:
        assert look.scan is not None
        return next(each for each in look.scan.servable if each.model.name == "m")

    first = entry(Look(scan=source.scan()))
    install_plain(store, "other", 1)
    assert entry(source.look()) == first
    graph = view_root(state, digest) / "m" / "1" / "graph.onnx"
    graph.chmod(0o644)
    graph.write_bytes(b"rot")
    install_plain(store, "another", 1, {"config.pbtxt": CONFIG, "1/graph.onnx": b"not this one"})
    assert entry(source.look()) == first, "the rot was not looked for"
    install_plain(store, "m", 1)
    repaired = entry(source.look())
    assert repaired.model == first.model
    assert repaired.fingerprint != first.fingerprint
    install_plain(store, "m", 1)
    assert source.look().scan is None, "nothing had to be repaired"


def test_a_damaged_version_is_told_and_hides_no_other(
    source: StoreSource, store: StoreWriter, state: Path
) -> None:
    install_plain(store, "good", 1)
    shutil.rmtree(view_root(state, install_plain(store, "lost", 1)))
    scan = source.read()
    assert [entry.model.key for entry in scan.servable] == ["good/1"]
    assert [(broken.name, broken.version) for broken in scan.broken] == [("lost", "1")]


def test_a_catalog_that_is_gone_is_a_lost_disk_not_an_empty_store(
    source: StoreSource, store: StoreWriter, state: Path
) -> None:
    install_plain(store, "digits", 1)
    source.read()
    (state / "catalog.json").rename(state / "elsewhere")
    with pytest.raises(OperatorError, match="store check --rebuild"):
        source.look()
    for name in ("blobs", "views"):
        (state / name).rename(state / f"no {name}")
    with pytest.raises(OperatorError, match="mounted"):
        source.look()
    for name in ("blobs", "views"):
        (state / f"no {name}").rename(state / name)
    (state / "elsewhere").rename(state / "catalog.json")
    assert source.look() == Look()


def test_a_disk_that_goes_between_two_looks_at_it_is_no_empty_store(
    source: StoreSource, store: StoreWriter, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plain(store, "digits", 1)
    source.read()
    install_plain(store, "digits", 2)

    def read_when_gone(place: Path) -> Catalog | None:
        for name in ("catalog.json", "blobs", "views"):
            (state / name).rename(state / f"no {name}")
        return read_catalog(place)

    with monkeypatch.context() as patch:
        patch.setattr("appliance.sources.store.read_catalog", read_when_gone)
        with pytest.raises(OperatorError, match="mounted"):
            source.look()
    for name in ("catalog.json", "blobs", "views"):
        (state / f"no {name}").rename(state / name)
    assert [model.key for model in models(source.look())] == ["digits/2"]


def test_two_daemons_do_not_serve_from_one_store(source: StoreSource, state: Path) -> None:
    with pytest.raises(StoreBusy):
        StoreSource(state, RepositoryConfig(), list)


def test_a_version_is_read_with_another_configuration(source: StoreSource, store: StoreWriter) -> None:
    install_plain(store, "digits", 1)
    source.read()
    reading = source.model("digits", CONFIG + b" max_batch_size: 3")
    assert reading is not None
    assert [entry.model.max_batch_size for entry in reading.servable] == [3]
    assert source.model("none") is None


def test_a_version_on_trial_is_read_beside_the_one_that_is_wanted(
    source: StoreSource, store: StoreWriter
) -> None:
    install_plain(store, "digits", 1)
    install(store, arrival("digits", 2, contents(2)), want=False, now_ms=2)
    source.read()
    trial = Trial(version=2, mode=TrialMode.CANARY, percent=10, header="X-Site: lab")
    store.try_out("digits", trial)
    assert [model.key for model in models(source.look())] == ["digits/1", "digits/2"]
    assert source.trials() == {("digits", 2): trial}
    wish = trial_wish(trial)
    assert (wish.canary_percent, wish.shadow_percent, wish.header, wish.value, wish.hold) == (
        10, 0, "x-site", "lab", True,
    )  # fmt: skip
    store.try_out("digits", None)
    assert [model.key for model in models(source.look())] == ["digits/1"]
    assert source.trials() == {}


def test_what_was_proven_last_stands_in_for_what_is_wanted_now(
    state: Path, store: StoreWriter, held: list[RunningVersion]
) -> None:
    first = install_plain(store, "m", 1)
    second = install_plain(store, "m", 2)
    alone = install_plain(store, "n", 1)
    source = StoreSource(state, RepositoryConfig(), lambda: held)
    source.read()
    stands = source.standing_in({"m": f"m/1@{first}", "n": f"n/1@{alone}", "gone": "gone/1@x"})
    assert {name: [each.model.version for each in reading.servable] for name, reading in stands.items()} == {
        "m": [1]
    }
    assert {(each.name, each.version) for each in read_running(state)} == {
        ("m", 1),
        ("m", 2),
        ("n", 1),
    }
    held.extend([run("m", 1, first), run("m", 2, second), run("n", 1, alone)])
    source.look()
    assert ("m", 1) in {(each.name, each.version) for each in read_running(state)}, "the engine has it"
    held.remove(run("m", 1, first))
    source.look()
    assert ("m", 1) not in {(each.name, each.version) for each in read_running(state)}
    assert source.standing_in({"m": "m/1@another package"}) == {}, "what is installed as 1 was never proven"
    source.close()


def forms_in(state: Path) -> set[str]:
    return {path.name for path in (state / FORMS).iterdir()}


def write_form(state: Path, name: str) -> str:
    (state / FORMS / name).mkdir(parents=True)
    (state / FORMS / name / "weights.bin").write_bytes(b"12345")
    return name


def test_packed_forms_of_what_is_not_installed_are_removed_at_the_start(
    state: Path, store: StoreWriter
) -> None:
    there = write_form(state, f"{install_plain(store, 'a', 1)}-{'1' * 16}")
    write_form(state, f"{'f' * 64}-{'1' * 16}")
    write_form(state, f".building-{there}")
    source = StoreSource(state, RepositoryConfig(), list)
    source.read()
    assert forms_in(state) == {there}
    source.close()


def test_packed_forms_leave_with_their_version_when_nobody_runs_it_any_more(
    state: Path, store: StoreWriter, source: StoreSource, held: list[RunningVersion]
) -> None:
    first = write_form(state, f"{install_plain(store, 'a', 1)}-{'1' * 16}")
    digest = install_plain(store, "a", 2)
    second = write_form(state, f"{digest}-{'1' * 16}")
    source.read()
    held.append(run("a", 2, digest))
    store.want("a", 1, 3)
    source.look()
    store.uninstall("a", 2)
    source.look()
    assert forms_in(state) == {first, second}, "it runs"
    building = write_form(state, f".building-{first}")
    held.clear()
    source.look()
    assert forms_in(state) == {first, building}


def test_packed_forms_from_which_others_are_about_to_be_made_stay(
    state: Path, store: StoreWriter, held: list[RunningVersion]
) -> None:
    spared: set[str] = set()
    source = StoreSource(state, RepositoryConfig(), lambda: held, spared=lambda: spared)
    first = write_form(state, f"{install_plain(store, 'a', 1)}-{'1' * 16}")
    source.read()
    install_plain(store, "a", 2)
    source.look()
    write_form(state, first)
    spared.add(first)
    source.look()
    assert forms_in(state) == {first}
    spared.clear()
    source.look()
    assert forms_in(state) == set()
    source.close()


def test_versions_say_what_packed_forms_may_take(state: Path, store: StoreWriter) -> None:
    install_plain(store, "a", 1)
    limits = StoreConfig(quota_bytes=7, free_floor_bytes=5)
    source = StoreSource(state, RepositoryConfig(), list, store=limits)
    (entry,) = source.read().servable
    assert entry.model.form_room == FormRoom(state=str(state), quota_bytes=7, free_floor_bytes=5)
    source.close()


def test_packed_forms_of_what_is_only_installed_leave_when_nobody_may_go_back_to_it(
    state: Path, store: StoreWriter, source: StoreSource, held: list[RunningVersion]
) -> None:
    replaced = install_plain(store, "a", 1)
    first = write_form(state, f"{replaced}-{'1' * 16}")
    refused = write_form(state, f"{replaced}-{'2' * 16}")
    (state / FORMS / refused / REFUSED_FILE).write_text("it crashed")
    wanted = install_plain(store, "a", 2)
    second = write_form(state, f"{wanted}-{'1' * 16}")
    source.read()
    assert forms_in(state) == {first, refused, second}, "it may have to stand in"
    source.standing_in({"a": f"a/1@{replaced}"})
    held.extend([run("a", 1, replaced), run("a", 2, wanted)])
    source.look()
    assert forms_in(state) == {first, refused, second}, "it is kept to go back to"
    held.remove(run("a", 1, replaced))
    source.look()
    assert forms_in(state) == {refused, second}, "the mark stays"
    write_form(state, first)
    source.look()
    assert forms_in(state) == {refused, second}, "a builder that was late"
    store.uninstall("a", 1)
    source.look()
    assert forms_in(state) == {second}


def test_a_version_that_trips_its_reader_is_told_and_hides_no_other(
    source: StoreSource, store: StoreWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def trip(manifest: bytes) -> object:
        if b'"odd"' in manifest:
            raise ZeroDivisionError("nobody thought of this")
        return decode(manifest)

    monkeypatch.setattr(store_source, "decode", trip)
    install_plain(store, "good", 1)
    install_plain(store, "odd", 1)
    scan = source.read()
    assert [entry.model.key for entry in scan.servable] == ["good/1"]
    assert ["ZeroDivisionError" in each.reason for each in scan.broken] == [True]
