"""``appliance model install`` and its kin, and ``appliance store``: on real packages and a real store."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import STORE, main
from appliance.core.rollout.records import Change, Ending
from appliance.core.rollout.version import Artifact
from appliance.domain.digest import digest_of
from appliance.domain.manifest import Opset, RuntimeNeed
from appliance.domain.manifest_codec import encode
from appliance.durable import WriterLock
from appliance.engine.versions.history import encoded
from appliance.package.container import write_package
from appliance.package.keys import make_key, open_signer, public_pem
from appliance.package.trust import sign
from appliance.store.catalog import Catalog
from appliance.store.catalog_file import read_catalog
from appliance.store.layout import CATALOG, LOCK, SCRUB, SCRUB_LOCK, blob_path
from appliance.store.scrub import Damage, ScrubRecord, read_record
from appliance.store.scrub import encode as encode_record
from tests.cli.conftest import FilesOf, Pack, Run
from tests.domain.manifests import manifest_of_mlp
from tests.store.arrivals import assert_served, contents_of

OPSETS = (Opset(domain="", version=17),)


def catalog_in(state: Path) -> Catalog:
    catalog = read_catalog(state)
    assert catalog is not None
    return catalog


def test_a_package_is_installed_and_wanted(appliance: Run, pack: Pack, state: Path) -> None:
    status, out, _ = appliance("model", "install", str(pack()), str(pack(2)))
    assert status == Exit.OK
    first, second = out.splitlines()
    assert first.startswith("digits/1 installed and wanted: ")
    assert second.startswith("digits/2 installed and wanted: ")
    catalog = read_catalog(state)
    assert catalog is not None
    assert catalog.models[0].wanted == 2
    assert_served(state, catalog)
    status, out, _ = appliance("model", "install", str(pack(2)))
    assert (status, out) == (
        Exit.OK, "digits/2 is installed already, whole and as it should be; nothing was changed\n",
    )  # fmt: skip
    assert read_catalog(state) == catalog


@pytest.mark.parametrize("header", ["x-site: Köln", "x-site: a\nb"])
def test_a_trial_for_a_header_that_cannot_be_is_refused_and_the_catalog_is_as_it_was(
    appliance: Run, pack: Pack, state: Path, header: str
) -> None:
    appliance("model", "install", str(pack()), "--no-want")
    before = catalog_in(state)
    status, _, err = appliance("model", "trial", "digits/1", "--canary", "5", "--header", header)
    assert status == Exit.REFUSED
    assert "a header is sent as printable ASCII" in err
    assert catalog_in(state) == before


def test_a_version_that_is_not_wanted_waits(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", str(pack()))
    status, out, _ = appliance("model", "install", "--no-want", str(pack(2)))
    assert (status, out.partition(":")[0]) == (Exit.OK, "digits/2 installed")
    assert catalog_in(state).models[0].wanted == 1
    assert appliance("model", "want", "digits/2")[1] == "digits/2 is wanted\n"
    assert appliance("model", "want", "digits/2")[1] == "digits/2 is wanted already; nothing was changed\n"
    assert appliance("model", "pin", "digits/1")[1] == "digits/1 is pinned\n"
    status, _, err = appliance("model", "uninstall", "digits/1")
    assert (status, err) == (Exit.REFUSED, "appliance model uninstall: digits/1 is pinned; unpin it first\n")
    assert appliance("model", "unpin", "digits/1")[1] == "digits/1 is not pinned any more\n"
    status, out, _ = appliance("model", "uninstall", "digits/1")
    assert status == Exit.OK
    assert out.startswith("digits/1 uninstalled: ")
    assert appliance("model", "uninstall", "digits")[0] == Exit.OK
    assert catalog_in(state).models == ()


def test_what_failed_here_is_asked_for_again_by_each_command_that_asks_for_it(
    appliance: Run, pack: Pack, state: Path
) -> None:
    appliance("model", "install", str(pack()), str(pack(2)))
    changes = [
        Change(at_ms=1, name="digits", version=version, identity="i", ending=Ending.REFUSED)
        for version in (1, 2)
    ]
    (state / "serve").mkdir(exist_ok=True)
    (state / "serve" / "history.jsonl").write_bytes(b"".join(map(encoded, changes)))

    def asked(*words: str) -> str:
        before = {version.version: version.last_wanted_ms for _, version in catalog_in(state).installed()}
        status, out, _ = appliance("model", *words)
        assert status == Exit.OK
        after = {version.version: version.last_wanted_ms for _, version in catalog_in(state).installed()}
        number = 1 if words[0] == "trial" else 2
        assert after[number] > before[number], words
        return out

    again = "digits/2 is wanted already; it failed here and is to be tried again\n"
    assert asked("want", "digits/2") == again
    assert "it failed here and is to be tried again" in asked("install", str(pack(2)))
    for _ in range(2):
        asked("trial", "digits/1", "--shadow", "5")
    before = catalog_in(state)
    appliance("model", "install", "--no-want", str(pack(2)))
    assert catalog_in(state) == before


def test_who_signed_a_package_is_asked_before_anything_is_written(
    appliance: Run, pack: Pack, state: Path, config: Path, tmp_path: Path
) -> None:
    config.write_text("[store]\nfree_floor_bytes = 0\n")
    status, _, err = appliance("model", "install", str(pack()))
    assert status == Exit.REFUSED
    assert "digits-1.model: is not signed; sign it with a trusted key" in err
    assert read_catalog(state) is None
    assert appliance("model", "install", "--allow-unsigned", str(pack(2)))[0] == Exit.OK
    catalog = read_catalog(state)
    assert catalog is not None
    assert catalog.models[0].versions[0].trust == "unsigned"


def test_the_key_that_signed_is_remembered(
    appliance: Run, pack: Pack, state: Path, config: Path, tmp_path: Path, files_of: FilesOf
) -> None:
    private, public = make_key("ecdsa")
    (tmp_path / "key").write_bytes(private)
    (tmp_path / "key.pub").write_bytes(public_pem(public))
    config.write_text(
        f'[store]\nfree_floor_bytes = 0\n[packages]\ntrusted_keys = ["{tmp_path / "key.pub"}"]\n'
    )
    manifest = encode(manifest_of_mlp(files_of(1), name="digits", version=1))
    envelope = sign(manifest, [open_signer(str(tmp_path / "key"), lambda _: "")])
    status, _, err = appliance("model", "install", str(pack(1, signatures=envelope)))
    assert (status, err) == (Exit.OK, "")
    assert catalog_in(state).models[0].versions[0].trust == f"key {public.keyid}"


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"max_batch_size": 5}, "max_batch_size: are not those of the graph"),
        ({"inputs": ()}, "inputs: are not those of the graph"),
        (
            {"runtime": RuntimeNeed(name="onnxruntime", minimum="1.20", opsets=())},
            "runtime.opsets: are not those",
        ),
        (
            {"runtime": RuntimeNeed(name="tensorrt", minimum="1.20", opsets=OPSETS)},
            "runtime.name: is 'tensorrt'",
        ),
        (
            {"runtime": RuntimeNeed(name="onnxruntime", minimum="99", opsets=OPSETS)},
            "runtime.minimum: is 99; onnxruntime is 1.",
        ),
    ],
)
def test_a_manifest_that_is_not_true_here_is_not_installed(
    changed: dict[str, Any], says: str, appliance: Run, files_of: FilesOf, tmp_path: Path, state: Path
) -> None:
    files = files_of(1)
    contents = {digest_of(content): content for content in files.values()}
    path = tmp_path / "digits-1.model"
    with path.open("wb") as out:
        manifest = replace(manifest_of_mlp(files, name="digits", version=1), **changed)
        write_package(out, manifest, None, lambda entry: io.BytesIO(contents[entry.digest]))
    status, _, err = appliance("model", "install", str(path))
    assert (status, says in err) == (Exit.REFUSED, True), err
    assert catalog_in(state).models == ()
    assert not list((state / "views").iterdir())


def test_packages_that_are_none_or_not_there_are_told_in_one_sentence(
    appliance: Run, tmp_path: Path, pack: Pack
) -> None:
    (tmp_path / "nonsense").write_bytes(b"nonsense" * 200)
    status, _, err = appliance("model", "install", str(tmp_path / "nonsense"))
    assert status == Exit.REFUSED
    assert err.startswith("appliance model install: the package is refused:\nnonsense: ")
    status, _, err = appliance("model", "install", str(tmp_path / "none"))
    assert (status, err.endswith("cannot be read: No such file or directory\n")) == (Exit.USAGE, True)
    torn = pack()
    torn.write_bytes(torn.read_bytes()[:-2000])
    status, _, err = appliance("model", "install", str(torn))
    assert status == Exit.REFUSED
    assert "its manifest demands" in err


def test_a_changed_package_is_refused_and_leaves_the_store_as_it_was(
    appliance: Run, pack: Pack, state: Path
) -> None:
    appliance("model", "install", str(pack()))
    before = read_catalog(state)
    path = pack(2)
    data = bytearray(path.read_bytes())
    data[data.rindex(b"weights 2")] ^= 1
    path.write_bytes(data)
    status, _, err = appliance("model", "install", str(path))
    assert status == Exit.REFUSED
    assert "digits-2.model: " in err
    assert read_catalog(state) == before
    assert appliance("store", "check")[0] == Exit.OK


def test_what_could_not_be_served_is_not_installed(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", str(pack()))
    before = catalog_in(state)
    files = {"2/model.onnx": b"no graph", "config.pbtxt": b"nonsense: 7"}
    status, _, err = appliance("model", "install", str(pack(2, files=files)))
    assert status == Exit.REFUSED
    assert "digits/config.pbtxt" in err
    assert catalog_in(state) == before
    assert appliance("store", "gc")[1] == "0 blobs and 0 views removed: 0 B\n", "nothing of it is left"
    status, _, err = appliance("model", "install", str(pack(2, files={"2/nothing": b""})))
    assert status == Exit.REFUSED
    assert "digits/2/model.onnx: is missing" in err


def test_a_second_writer_is_told_who_the_first_is(appliance: Run, pack: Pack, state: Path) -> None:
    state.mkdir()
    lock = WriterLock(state / LOCK)
    status, _, err = appliance("model", "install", str(pack()))
    lock.release()
    assert status == Exit.REFUSED
    assert f"process {os.getpid()} is writing to '{state}'" in err


def test_the_configuration_says_where_the_store_is(
    appliance: Run, pack: Pack, state: Path, config: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    said = ["--config", str(config)]
    assert appliance("model", "install", str(pack()))[0] == Exit.OK
    with pytest.raises(SystemExit) as ended:
        main(["store", "usage", *said])
    assert ended.value.code == Exit.USAGE
    assert "--state-dir is required, or a --config that says state_dir" in capsys.readouterr().err
    config.write_text(f'state_dir = "{state}"\n{config.read_text()}')
    for words in (["store", "usage"], ["model", "want", "digits/1"], ["model", "list"], ["model", "history"]):
        assert main([*words, *said]) == Exit.OK, words


@pytest.mark.parametrize(
    "words", [("want", "digits"), ("want", "digits/x"), ("pin", "/1"), ("uninstall", "a/-1"), ("pin", "a=2")]
)
def test_references_that_are_none(appliance: Run, words: tuple[str, ...]) -> None:
    status, _, err = appliance("model", *words)
    assert status == Exit.USAGE
    assert ("here it is a/2" if "a=2" in words else "VERSION") in err


@pytest.mark.parametrize(
    "words",
    [
        *(("store", command) for command in STORE.commands),
        ("model", "rollback", "digits"),
        ("model", "want", "digits/1"),
        ("model", "pin", "digits/1"),
        ("model", "unpin", "digits/1"),
        ("model", "uninstall", "digits"),
        ("model", "trial", "digits/1", "--canary", "5"),
    ],
    ids=" ".join,
)
def test_no_store_is_no_empty_store(appliance: Run, state: Path, words: tuple[str, ...]) -> None:
    """Nor does a directory that is misspelt become one."""
    status, _, err = appliance(*words)
    assert status == Exit.USAGE
    assert f"there is no '{state}'" in err
    assert not state.exists()
    state.mkdir()
    status, _, err = appliance(*words)
    assert status == Exit.USAGE
    assert f"'{state}' holds no store" in err
    assert list(state.iterdir()) == []


def test_check_and_scrub_find_a_flipped_bit(appliance: Run, pack: Pack, state: Path) -> None:
    package = pack()
    appliance("model", "install", str(package))
    assert "no damage (every byte compared)" in appliance("store", "check")[1]
    digest = digest_of(contents_of(1)["1/weights.bin"])
    blob = state / blob_path(digest)
    os.chmod(blob, 0o644)
    with blob.open("r+b") as file:
        file.write(b"W")
    assert appliance("store", "check", "--quick")[0] == Exit.OK
    status, out, _ = appliance("store", "check", "--json")
    assert status == Exit.REFUSED
    assert json.loads(out)["findings"] == [
        {
            "what": "blob",
            "place": digest,
            "text": "has other bytes than its name says",
            "versions": ["digits/1"],
        }
    ]
    status, out, _ = appliance("store", "check")
    assert (status, digest in out) == (Exit.REFUSED, True)
    status, out, _ = appliance("model", "install", str(package))
    assert "installed and wanted" in out
    assert appliance("store", "check")[0] == Exit.OK
    blob = state / blob_path(digest)
    blob.unlink()
    status, out, _ = appliance("store", "check", "--quick", "--json")
    assert {each["what"] for each in json.loads(out)["findings"]} == {"blob", "view"}


def test_what_an_install_repaired_is_not_damaged_any_more(appliance: Run, pack: Pack, state: Path) -> None:
    package = pack()
    appliance("model", "install", str(package))
    digest = digest_of(contents_of(1)["1/weights.bin"])
    found = tuple(Damage(digest=each, text="has other bytes", found_ms=3) for each in (digest, "0" * 64))
    (state / SCRUB).write_bytes(encode_record(ScrubRecord(finished_ms=5, damaged=found)))
    scrub = WriterLock(state / SCRUB_LOCK)
    assert appliance("model", "install", str(package))[0] == Exit.OK
    assert read_record(state).damaged == found, "the record is that of the scrub which is at work"
    scrub.release()
    assert appliance("model", "install", str(package))[0] == Exit.OK
    assert read_record(state) == ScrubRecord(finished_ms=5, damaged=found[1:])
    WriterLock(state / SCRUB_LOCK).release()


def test_a_catalog_that_cannot_be_believed_stops_every_command(
    appliance: Run, pack: Pack, state: Path
) -> None:
    appliance("model", "install", str(pack()))
    data = (state / CATALOG).read_bytes()
    (state / CATALOG).write_bytes(data.replace(b'"wanted":1', b'"wanted":7'))
    for words in (
        ("store", "check"),
        ("store", "gc"),
        ("store", "usage"),
        ("model", "install", str(pack(2))),
    ):
        status, _, err = appliance(*words)
        assert status == Exit.REFUSED, words
        assert "checksum: does not fit" in err


def test_a_wrong_configuration_is_told(appliance: Run, config: Path) -> None:
    config.write_text("[store]\nquota = 5\n")
    status, _, err = appliance("store", "usage")
    assert status == Exit.USAGE
    assert "store.quota: is not a known key; did you mean 'quota_bytes'?" in err


def test_scrub_runs_at_the_lowest_classes(appliance: Run, pack: Pack, state: Path, config: Path) -> None:
    """In a process of its own, which cannot come back from there."""
    appliance("model", "install", str(pack()))
    program = (
        "import os, sys; from appliance.cli.main import main; from tests.process.io_class import io_class\n"
        "status = main(sys.argv[1:]); print(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK, io_class() >> 13)\n"
        "sys.exit(status)"
    )
    command = [
        sys.executable,
        "-c",
        program,
        "store",
        "scrub",
        "--state-dir",
        str(state),
        "--config",
        str(config),
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (Exit.OK, "")
    told, classes = done.stdout.splitlines()
    assert told.startswith("3 blobs, ")
    assert told.endswith(" read: no damage")
    assert classes == f"{os.SCHED_IDLE} 3"
    (state / blob_path(digest_of(contents_of(1)["1/weights.bin"]))).unlink()
    done = subprocess.run([*command, "--json"], capture_output=True, text=True, check=False)
    assert done.returncode == Exit.REFUSED
    assert "is missing" in done.stdout


def test_rolling_back_goes_one_step_at_a_time_and_says_when_there_is_none(
    appliance: Run, pack: Pack, state: Path
) -> None:
    appliance("model", "install", str(pack()), str(pack(2)), str(pack(3)))
    out = appliance("model", "rollback", "digits")[1]
    assert out == "digits/2 is wanted again, in the place of version 3\n"
    assert appliance("model", "rollback", "digits")[0] == Exit.OK
    assert catalog_in(state).models[0].wanted == 1
    status, _, err = appliance("model", "rollback", "digits")
    assert status == Exit.REFUSED
    assert "digits has nothing to go back to: nothing was wanted before version 1;" in err
    assert "'appliance model want digits/VERSION' asks for another that is installed: 2, 3" in err


def test_a_trial_is_asked_for_and_ended(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", str(pack()))
    appliance("model", "install", "--no-want", str(pack(2)))
    for mode in ("--shadow", "--canary"):
        appliance("model", "trial", "digits/2", mode, "5")
        assert "ended: digits/1 stays" in appliance("model", "trial", "digits", "--stop")[1]
    wish = ("--canary", "10", "--header", "x-site: test")
    assert appliance("model", "trial", "digits/2", *wish)[1] == "digits/2 is on trial\n"
    trial = catalog_in(state).models[0].trial
    assert trial is not None
    assert (trial.version, trial.mode.value, trial.percent, trial.header) == (2, "canary", 10, "x-site: test")
    assert appliance("model", "trial", "digits/1", "--stop") == (
        Exit.REFUSED,
        "",
        "appliance model trial: digits/1 is not on trial, digits/2 is\n",
    )
    ended = "the trial of digits/2 is ended: digits/1 stays, digits/2 answers no more\n"
    assert appliance("model", "trial", "digits", "--stop")[1] == ended
    assert catalog_in(state).models[0].order, "what stays is ordered"
    none = (
        "no trial of digits was asked for: digits/1 stays; where it is tried as configured, or watched, "
        "'appliance model rollback digits' goes back\n"
    )
    before = catalog_in(state)
    assert appliance("model", "trial", "digits", "--stop")[1] == none
    assert catalog_in(state) == before
    assert catalog_in(state).models[0].trial is None
    assert "nothing to compare it with" in appliance("model", "trial", "digits/1", "--shadow", "5")[2]
    assert (
        "--header is for --canary"
        in appliance("model", "trial", "digits/2", "--shadow", "5", "--header", "x")[2]
    )


def test_the_list_says_what_is_installed_when_nobody_answers(
    appliance: Run, pack: Pack, state: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    appliance("model", "install", str(pack()), str(pack(2)))
    appliance("model", "pin", "digits/1")
    assert main(["model", "list", "--state-dir", str(state), "--url", "127.0.0.1:1"]) == Exit.OK
    out = capsys.readouterr().out
    assert "digits/1" in out
    assert "pinned" in out
    assert "States are unknown" in out
    assert main(["model", "list", "--state-dir", str(state), "--url", "127.0.0.1:1", "--json"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert [(each["version"], each["wish"]) for each in told["versions"]] == [(1, "pinned"), (2, "wanted")]
    assert not told["answering"]
    assert main(["model", "list", "--url", "127.0.0.1:1"]) == Exit.UNREACHABLE


def test_nothing_of_the_list_is_cut_on_a_narrow_screen(
    appliance: Run,
    pack: Pack,
    state: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    appliance("model", "install", str(pack()), str(pack(2)))
    main(["model", "list", "--state-dir", str(state), "--url", "127.0.0.1:1"])
    out = capsys.readouterr().out
    assert "digits" in out
    assert "\N{HORIZONTAL ELLIPSIS}" not in out.partition("States are")[0]


def test_the_history_is_told_with_its_reasons(state: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "history", "--state-dir", str(state)]) == Exit.USAGE
    assert "is no directory" in capsys.readouterr().err
    (state / "serve").mkdir(parents=True)
    assert main(["model", "history", "--state-dir", str(state)]) == Exit.OK
    assert capsys.readouterr().out == "Nothing happened to any model here yet.\n"
    change = Change(at_ms=0, name="digits", version=2, identity="x", ending=Ending.ROLLED_BACK, before=1, after=1,
                    stage="canary", reason="12 % of its requests failed", took_ms=1234)  # fmt: skip
    packed = replace(change, identity="x", artifact=Artifact.PACKED)
    (state / "serve" / "history.jsonl").write_bytes(encoded(change) + encoded(packed) + b'{"torn')
    assert main(["model", "history", "digits", "--state-dir", str(state)]) == Exit.OK
    out = capsys.readouterr().out
    for word in (
        "1970-01-01",
        "digits/2",
        "rolled back",
        "1 -> 1",
        "canary",
        "1,234 ms",
        "12 % of its requests",
    ):
        assert word in out
    assert out.count("packed form") == 1
    assert main(["model", "history", "--state-dir", str(state), "--json"]) == Exit.OK
    assert json.loads(capsys.readouterr().out)[0]["ending"] == "rolled back"
