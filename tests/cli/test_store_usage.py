"""``appliance store usage|gc``: what takes how much, and what goes because nobody needs it."""

from __future__ import annotations

import json
from pathlib import Path

from appliance.cli.failure import Exit
from appliance.config.store import StoreConfig
from appliance.domain.digest import digest_of
from appliance.store.catalog_file import read_catalog
from appliance.store.layout import INCOMING, blob_path
from appliance.store.running import RunningRecord, RunningVersion
from appliance.store.writer import open_store
from tests.cli.conftest import FilesOf, Pack, Run


def test_usage_tells_what_takes_how_much(appliance: Run, pack: Pack, state: Path, files_of: FilesOf) -> None:
    appliance("model", "install", str(pack()), str(pack(2)))
    appliance("model", "pin", "digits/1")
    catalog = read_catalog(state)
    assert catalog is not None
    second = catalog.models[0].versions[1]
    record = RunningRecord(state)
    record.publish([RunningVersion(name="digits", version=2, digest=second.digest)])
    usage = json.loads(appliance("store", "usage", "--json")[1])
    one, two = usage["versions"]
    assert (one["wanted"], one["pinned"], one["in_use"]) == (False, True, False)
    assert (two["wanted"], two["pinned"], two["in_use"]) == (True, False, True)
    assert two["bytes"] == second.bytes
    assert two["bytes"] - two["own_bytes"] == len(files_of(2)["2/model.onnx"])
    assert usage["bytes"] == one["own_bytes"] + two["bytes"]
    status, out, _ = appliance("store", "usage")
    assert status == Exit.OK
    assert "wanted, in use" in out
    assert "running" not in out, "whether it serves is not known here"
    assert "quota none" in out
    record.close()


def test_uninstalling_what_is_in_use_says_when_the_rest_goes(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", str(pack()), str(pack(2)))
    catalog = read_catalog(state)
    assert catalog is not None
    second = catalog.models[0].versions[1]
    record = RunningRecord(state)
    record.publish([RunningVersion(name="digits", version=2, digest=second.digest)])
    assert "in use" not in appliance("model", "uninstall", "digits/1")[1]
    status, out, _ = appliance("model", "uninstall", "digits")
    assert status == Exit.OK
    assert out.startswith("digits uninstalled: 0 B freed; digits/2 is in use, and ")
    assert "'appliance store gc'" in out
    record.close()


def test_gc_removes_what_nobody_needs(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", str(pack()))
    orphan = digest_of(b"orphan")
    place = state / blob_path(orphan)
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(b"orphan")
    assert appliance("store", "gc", "--dry-run")[1] == "1 blobs and 0 views would be removed: 6 B\n"
    assert place.exists()
    assert json.loads(appliance("store", "gc", "--json")[1])["blobs"] == [{"digest": orphan, "bytes": 6}]
    assert not place.exists()
    assert appliance("store", "gc")[1] == "0 blobs and 0 views removed: 0 B\n"


def test_gc_looks_while_another_process_writes(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", str(pack()))
    with open_store(state, StoreConfig(free_floor_bytes=0)):
        (state / INCOMING / "begun").write_bytes(b"half")
        status, out, _ = appliance("store", "gc", "--dry-run")
        assert (status, out.splitlines()[0]) == (Exit.OK, "0 blobs and 0 views would be removed: 0 B")
        assert "another process writes" in out
        assert json.loads(appliance("store", "gc", "--dry-run", "--json")[1])["writing"]
        assert appliance("store", "gc")[0] == Exit.REFUSED
        assert (state / INCOMING / "begun").exists(), "who only looks tidies nothing"
    assert "another" not in appliance("store", "gc", "--dry-run")[1]


def test_gc_says_whether_there_is_room_now(appliance: Run, pack: Pack, state: Path, config: Path) -> None:
    appliance("model", "install", str(pack()), str(pack(2)))
    assert appliance("store", "gc") == (Exit.OK, "0 blobs and 0 views removed: 0 B\n", "")
    config.write_text(f"[store]\nfree_floor_bytes = {1 << 60}\n")
    status, out, _ = appliance("store", "gc")
    assert status == Exit.OK
    assert "nothing can be installed. Uninstall versions" in out
    told = json.loads(appliance("store", "gc", "--json")[1])
    assert told["free_bytes"] < told["free_floor_bytes"] == 1 << 60


def test_usage_is_told_also_where_a_daemon_does_not_say_what_it_runs(
    appliance: Run, pack: Pack, state: Path
) -> None:
    """The disk was full when it started; this is the command that says what to uninstall."""
    appliance("model", "install", str(pack()))
    record = RunningRecord(state)
    usage = json.loads(appliance("store", "usage", "--json")[1])
    assert [each["in_use"] for each in usage["versions"]] == [None]
    assert "does not tell what the daemon runs" in usage["unsaid"]
    status, out, _ = appliance("store", "usage")
    assert status == Exit.OK
    assert "wanted, in use: not known" in out
    assert "does not tell what the daemon runs" in out
    record.publish([])
    usage = json.loads(appliance("store", "usage", "--json")[1])
    assert ([each["in_use"] for each in usage["versions"]], usage["unsaid"]) == ([False], "")
    record.close()
