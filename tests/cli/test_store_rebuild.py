"""``appliance store check --rebuild``: a lost catalog is made anew, and what that leaves out is told."""

from __future__ import annotations

import json
import os
from pathlib import Path

from appliance.cli.failure import Exit
from appliance.core.rollout.records import Change, Ending
from appliance.domain.digest import digest_of
from appliance.domain.manifest_codec import encode
from appliance.engine.versions.history import encoded
from appliance.package.keys import make_key, open_signer, public_pem
from appliance.package.trust import sign
from appliance.store.layout import CATALOG, INCUMBENTS, blob_path
from appliance.store.running import RunningRecord, RunningVersion
from tests.cli.conftest import FilesOf, Pack, Run
from tests.cli.test_store_commands import catalog_in
from tests.domain.manifests import manifest_of_mlp
from tests.store.arrivals import assert_served, contents_of


def test_a_lost_catalog_is_refused_everywhere_and_made_anew(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", str(pack()), str(pack(2)))
    before = catalog_in(state)
    (state / CATALOG).unlink()
    for words in (
        ("model", "install", str(pack(3))),
        ("model", "rollback", "digits"),
        ("store", "gc"),
        ("store", "usage"),
        ("store", "check"),
    ):
        status, _, err = appliance(*words)
        assert (status, "store check --rebuild --state-dir" in err) == (Exit.USAGE, True), words
    running = RunningRecord(state)
    versions = [each for _, each in before.installed()]
    running.publish(
        RunningVersion(name="digits", version=each.version, digest=each.digest) for each in versions
    )
    change = Change(at_ms=1, name="digits", version=1, identity="i", ending=Ending.LIVE, after=1)
    (state / "serve" / "history.jsonl").write_bytes(encoded(change))
    status, out, err = appliance("store", "check", "--rebuild")
    assert (status, err) == (Exit.OK, "")
    assert "digits/1: wanted, unsigned\ndigits/2: not wanted, unsigned\n" in out
    assert "no damage" in out
    running.close()
    assert catalog_in(state).models[0].wanted == 1, "what was served last, though another one ran beside it"
    assert appliance("model", "want", "digits/2")[0] == Exit.OK
    assert_served(state, catalog_in(state))
    status, _, err = appliance("store", "check", "--rebuild")
    assert (status, "nothing to make anew" in err) == (Exit.REFUSED, True)


def test_what_was_proven_last_is_wanted_where_nothing_says_what_ran(
    appliance: Run, pack: Pack, state: Path
) -> None:
    appliance("model", "install", str(pack()), str(pack(2)))
    one = next(version for _, version in catalog_in(state).installed())
    (state / CATALOG).unlink()
    (state / "serve").mkdir()
    proven = {"format": 1, "models": {"digits": f"digits/1@{one.digest}"}}
    (state / INCUMBENTS).write_text(json.dumps(proven))
    assert "digits/1: wanted" in appliance("store", "check", "--rebuild")[1]


def test_who_signed_is_judged_anew_when_the_catalog_is(
    appliance: Run, pack: Pack, state: Path, config: Path, tmp_path: Path, files_of: FilesOf
) -> None:
    private, public = make_key("ed25519")
    (tmp_path / "k.pem").write_bytes(private)
    (tmp_path / "k.pub").write_bytes(public_pem(public))
    manifest = encode(manifest_of_mlp(files_of(1), name="digits", version=1))
    signed = sign(manifest, [open_signer(str(tmp_path / "k.pem"), lambda what: "")])
    appliance("model", "install", str(pack(1, signed)))
    appliance("model", "install", str(pack(2)))
    (state / CATALOG).unlink()
    with config.open("a") as file:
        file.write(f'trusted_keys = ["{tmp_path / "k.pub"}"]\n')
    assert appliance("store", "check", "--rebuild")[0] == Exit.OK
    trust = {version.version: version.trust for _, version in catalog_in(state).installed()}
    assert trust == {1: f"key {public.keyid}", 2: "unsigned"}
    assert {model.wanted for model in catalog_in(state).models} == {0}, "nobody knows what was served"


def test_what_is_left_out_of_a_catalog_that_is_made_anew_is_no_success(
    appliance: Run, pack: Pack, state: Path
) -> None:
    appliance("model", "install", str(pack()), str(pack(2)))
    two = catalog_in(state).models[0].versions[1]
    blob = state / blob_path(digest_of(contents_of(2)["2/weights.bin"]))
    os.chmod(blob, 0o644)
    with blob.open("r+b") as file:
        file.write(b"W")
    (state / CATALOG).unlink()
    status, out, _ = appliance("store", "check", "--rebuild", "--json")
    told = json.loads(out)
    assert (status, told["findings"]) == (Exit.REFUSED, [])
    one = {"name": "digits", "version": 1, "wanted": False, "trust": "unsigned"}
    assert told["rebuilt"]["installed"] == [one]
    (left,) = told["rebuilt"]["left_out"]
    assert (left["view"], "digits/2 needs blob" in left["reason"]) == (two.digest, True)
    assert json.loads(appliance("store", "check", "--json")[1])["rebuilt"] is None
    (state / CATALOG).unlink()
    status, out, _ = appliance("store", "check", "--rebuild")
    assert (status, "left out: view" in out, "no damage" in out) == (Exit.REFUSED, True, True)
    assert appliance("store", "check")[0] == Exit.OK, "what is left out is not installed"
