"""A release that comes again with other signatures: what is told of it is what boxes get."""

from __future__ import annotations

import io
import json
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.failure import Exit
from appliance.cli.fleet.session import PROFILE, Profile, write_profile
from appliance.cli.main import main
from appliance.controller.by_hand import desk_of
from appliance.controller.fleet_store import DatabaseTrouble
from appliance.controller.releases import Releases
from appliance.controller.root import make_root, root_plan, sign_root
from appliance.controller.roots import newest_root, publish_root
from appliance.domain.digest import digest_of
from appliance.fleet import messages
from appliance.fleet.documents import WishedModel, WishedVersion, decode
from appliance.fleet.messages import ModelReport, Report
from appliance.package.container import write_package
from appliance.package.keys import open_signer, read_public_key
from appliance.package.reader import open_package
from appliance.package.trust import judge
from appliance.transfer.stream import read_header
from tests.controller.api.desk import Box, Desk
from tests.controller.api.test_people_api import packages, released

__all__ = ["packages"]

NewBox = Callable[..., Box]
Signed = Callable[..., Path]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with keys of two makers whom the root names, and of somebody else."""
    folder = tmp_path_factory.mktemp("keys")
    for name in ("maker", "second", "stranger"):
        assert main(["model", "keygen", str(folder / f"{name}.key")]) == Exit.OK
    return folder


@pytest.fixture
def desk(tmp_path: Path, keys: Path) -> Iterator[Desk]:
    makers = [keys / "maker.key.pub", keys / "second.key.pub"]
    with Desk(tmp_path / "controller", makers) as found:
        yield found


@pytest.fixture
def signed(packages: dict[int, Path], keys: Path, tmp_path: Path) -> Signed:
    """A package with signatures of those, each time the same; of more, the last one comes beside the others."""

    def make(*names: str, version: int = 1) -> Path:
        target = tmp_path / f"{version}-{'-'.join(names)}.model"
        if not target.exists():
            shutil.copy(make(*names[:-1], version=version) if names else packages[version], target)
            for name in names[-1:]:
                assert main(["model", "sign", str(target), "--key", str(keys / f"{name}.key")]) == Exit.OK
        return target

    return make


def keyid(keys: Path, name: str) -> str:
    return read_public_key(keys / f"{name}.key.pub").keyid


def wish_of(box: Box) -> WishedVersion:
    (model,) = decode(box.polled().document).models
    assert isinstance(model, WishedModel)
    assert model.wanted is not None
    return model.wanted


def signers_of(box: Box, wish: WishedVersion, keys: Path) -> list[set[str]]:
    """Of each of the ways of ``wish``: the makers whose right signatures it brings to the box."""
    makers = {keyid(keys, name): name for name in ("maker", "second")}
    trusted = [read_public_key(keys / f"{name}.key.pub") for name in makers.values()]
    found = []
    for way in wish.transfers:
        headers = {"Range": f"bytes=0-{way.size - 1}"}
        stream = box.raw("GET", f"{messages.STREAMS}{way.stream}", b"", bytes, **headers)
        header, _ = read_header(io.BytesIO(stream), len(stream))
        trust = judge(header.manifest, header.signatures or None, trusted)
        found.append({makers[each] for each in trust.keyids})
    return found


def test_a_better_signature_takes_the_place_of_a_worse_one_in_all_that_boxes_get(
    desk: Desk, new_box: NewBox, signed: Signed, keys: Path
) -> None:
    box, other = new_box("box-1", group="site"), new_box("box-2")
    box.tell(models=(ModelReport(name="m", installed=(1,)),))
    released(desk, signed("maker"))
    first = released(desk, signed("stranger", version=2))
    assert first["trust"] == f"untrusted {keyid(keys, 'stranger')}"
    desk.person().post("/want", {"model": "m", "group": "site", "wish": {"version": 2}})
    before, idle = box.polled(), decode(other.polled().document)
    wish = wish_of(box)
    assert [bool(way.base) for way in wish.transfers] == [True, False]
    assert signers_of(box, wish, keys) == [set(), set()]
    again = released(desk, signed("maker", version=2))
    assert again["trust"] == f"key {keyid(keys, 'maker')}"
    assert again["deltas"].keys() == first["deltas"].keys() | {wish.transfers[0].base}
    mended = wish_of(box)
    assert (mended.manifest, signers_of(box, mended, keys)) == (wish.manifest, [{"maker"}, {"maker"}])
    assert decode(box.polled().document).generation == decode(before.document).generation + 1
    assert decode(other.polled().document) == idle, "whom it does not concern, it costs nothing"
    assert desk.person().get("/audit")[-1]["what"] == "release signed anew"
    for way in wish.transfers:
        box.raw("GET", f"{messages.STREAMS}{way.stream}", b"", bytes, Range="bytes=0-")
        assert box.status == 206, "a box that is at it gets the rest of what it was told of"


def test_a_worse_signature_takes_no_place_and_is_told_why(
    desk: Desk, new_box: NewBox, signed: Signed, keys: Path
) -> None:
    box, person = new_box("box-1", group="site"), desk.person()
    released(desk, signed("maker"))
    person.post("/want", {"model": "m", "group": "site", "wish": {"version": 1}})
    before = wish_of(box)
    for names, says in (
        (("stranger",), "by none that the fleet's root names: boxes go on getting the one that is there"),
        ((), "by none that the fleet's root names"),
        (("second",), "has a signature that this package lacks, by"),
    ):
        found = person.ask("POST", "/releases", signed(*names).read_bytes())
        assert (person.status, found["code"]) == (422, "refused"), names
        assert says in found["error"]
    (listed,) = person.get("/releases")
    assert (listed["trust"], wish_of(box)) == (f"key {keyid(keys, 'maker')}", before)
    released(desk, signed("maker", "second"))
    assert signers_of(box, wish_of(box), keys) == [{"maker", "second"}]
    both = wish_of(box)
    assert released(desk, signed("maker"))["trust"].startswith("key ")
    assert wish_of(box) == both, "what is there says more"
    assert list((desk.folder / "blobs" / "drafts").iterdir()) == []


def with_garbage(package: Path, target: Path, *names: str) -> Path:
    """The package with something in the place of signatures by keys that nobody has."""
    with open_package(package) as reader:
        assert reader.signatures is not None
        document = json.loads(reader.signatures)
        document["signatures"] += [{"keyid": name, "sig": "Z2FyYmFnZQ=="} for name in names]
        blobs, envelope = reader.blobs(), json.dumps(document).encode()
        with target.open("wb") as out:
            write_package(
                out,
                reader.manifest,
                envelope,
                lambda entry: nullcontext(next(blobs).stream),
                lambda count: None,
            )
    return target


def test_names_of_keys_take_no_place_and_leave_room_for_signatures(
    desk: Desk, new_box: NewBox, signed: Signed, keys: Path, tmp_path: Path
) -> None:
    box, person = new_box("box-1", group="site"), desk.person()
    released(desk, signed("maker"))
    person.post("/want", {"model": "m", "group": "site", "wish": {"version": 1}})
    before = wish_of(box)
    for names in (["stranger"], [f"invented-{number}" for number in range(31)]):
        stuffed = with_garbage(signed("maker"), tmp_path / "stuffed.model", *names)
        found = person.ask("POST", "/releases", stuffed.read_bytes())
        assert (person.status, found["code"]) == (422, "refused")
        assert "that no key of the fleet's root shows to be right, by " + names[0][:16] in found["error"]
    assert wish_of(box) == before
    released(desk, signed("maker", "second"))
    assert signers_of(box, wish_of(box), keys) == [{"maker", "second"}]


@pytest.mark.parametrize("damage", ["lost", "cut", "rotten"])
def test_a_package_that_is_lost_is_mended_by_the_same_one(
    desk: Desk, new_box: NewBox, signed: Signed, keys: Path, damage: str
) -> None:
    box, person = new_box("box-1", group="site"), desk.person()
    package = signed("maker")
    released(desk, package)
    person.post("/want", {"model": "m", "group": "site", "wish": {"version": 1}})
    blob = desk.home.blobs.path(digest_of(package.read_bytes()))
    whole = blob.read_bytes()
    spoil(blob, damage)
    for names in (("stranger",), ()):
        found = person.ask("POST", "/releases", signed(*names).read_bytes())
        assert (person.status, found["code"]) == (422, "refused")
        assert "cannot be read at the controller any more, and was told as 'key " in found["error"]
    assert released(desk, package)["trust"] == f"key {keyid(keys, 'maker')}"
    assert (blob.read_bytes(), signers_of(box, wish_of(box), keys)) == (whole, [{"maker"}])
    assert person.get("/audit")[-1]["what"] == "release mended"


def spoil(blob: Path, damage: str) -> None:
    whole = blob.read_bytes()
    blob.unlink()
    if damage == "cut":
        blob.write_bytes(whole[: len(whole) // 2])
    elif damage == "rotten":
        blob.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))


@pytest.mark.parametrize("damage", ["lost", "rotten"])
def test_a_base_that_is_lost_stands_in_the_way_of_nothing(
    desk: Desk, new_box: NewBox, signed: Signed, keys: Path, damage: str
) -> None:
    box, person = new_box("box-1", group="site"), desk.person()
    box.tell(models=(ModelReport(name="m", installed=(1,)),))
    released(desk, signed("maker"))
    released(desk, signed("maker", version=2))
    person.post("/want", {"model": "m", "group": "site", "wish": {"version": 2}})
    assert signers_of(box, wish_of(box), keys) == [{"maker"}, {"maker"}]
    spoil(desk.home.blobs.path(digest_of(signed("maker").read_bytes())), damage)
    again = released(desk, signed("maker", "second", version=2))
    assert again["deltas"] == {}
    person.post("/want", {"model": "m", "group": "site", "wish": {"version": 2}})
    assert person.status == 200
    assert signers_of(box, wish_of(box), keys) == [{"maker", "second"}]
    released(desk, signed("maker"))
    person.post("/want", {"model": "m", "group": "site", "wish": {"version": 2}})
    assert signers_of(box, wish_of(box), keys) == [{"maker", "second"}] * 2, "mended, it is a base again"


def test_a_database_that_takes_no_words_does_not_prevent_the_start(
    tmp_path: Path, signed: Signed, keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "kept"
    with Desk(folder, [keys / "second.key.pub"]) as desk:
        admin = desk.admin
        released(desk, signed("maker"))
    with sqlite3.connect(folder / "fleet.db") as database:
        database.execute("UPDATE releases SET trust = 'unsigned'")
        database.execute("CREATE TRIGGER cut BEFORE UPDATE ON releases BEGIN SELECT RAISE(ABORT, 'cut'); END")
    with Desk(folder) as again:
        assert again.person(admin).get("/releases")[0]["trust"] == "unsigned"
    assert "who signed the releases is told as it was before this start: the database failed" in caplog.text


def test_a_power_cut_between_the_steps_leaves_the_release_as_it_was(
    desk: Desk, new_box: NewBox, signed: Signed, keys: Path
) -> None:
    box = new_box("box-1", group="site")
    released(desk, signed("stranger"))
    desk.person().post("/want", {"model": "m", "group": "site", "wish": {"version": 1}})
    before = wish_of(box)
    draft = desk.home.blobs.draft()
    shutil.copy(signed("maker"), draft)
    with sqlite3.connect(desk.folder / "fleet.db") as database:
        database.execute("CREATE TRIGGER cut BEFORE UPDATE ON releases BEGIN SELECT RAISE(ABORT, 'cut'); END")
    releases = Releases(desk.home.store, desk.home.blobs, desk.home.package_keys)
    with pytest.raises(DatabaseTrouble, match="nothing was changed"):
        releases.upload(draft, "admin", desk.now_ms)
    assert wish_of(box) == before
    assert desk.person().get("/releases")[0]["trust"].startswith("untrusted ")
    with sqlite3.connect(desk.folder / "fleet.db") as database:
        database.execute("DROP TRIGGER cut")
    released(desk, signed("maker"))
    assert signers_of(box, wish_of(box), keys) == [{"maker"}]


def test_a_way_that_is_built_while_the_release_is_signed_anew_brings_the_new_signatures(
    desk: Desk, new_box: NewBox, signed: Signed, keys: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    box = new_box("box-1", group="site")
    box.tell(models=(ModelReport(name="m", installed=(1,)),))
    released(desk, signed("maker"))
    released(desk, signed("stranger", version=2))
    releases = Releases(desk.home.store, desk.home.blobs, desk.home.package_keys)
    built, draft = Releases._built, desk.home.blobs.draft()
    shutil.copy(signed("maker", version=2), draft)

    def beside(self: Releases, target: Path, base: Path | None) -> Any:
        found = built(self, target, base)
        monkeypatch.setattr(Releases, "_built", built)
        releases.upload(draft, "another", desk.now_ms)
        return found

    monkeypatch.setattr(Releases, "_built", beside)
    desk.person().post("/want", {"model": "m", "group": "site", "wish": {"version": 2}})
    assert signers_of(box, wish_of(box), keys) == [{"maker"}, {"maker"}]


def test_who_signed_is_told_as_the_root_says_when_the_controller_starts(
    tmp_path: Path, signed: Signed, keys: Path
) -> None:
    folder = tmp_path / "kept"
    with Desk(folder, [keys / "second.key.pub"]) as desk:
        admin = desk.admin
        assert released(desk, signed("maker"))["trust"].startswith("untrusted ")
    with desk_of(folder) as by_hand:
        _, newest = newest_root(by_hand)
        plan = replace(root_plan(newest), packages=[read_public_key(keys / "maker.key.pub")])
        signer = open_signer(str(folder / "offline" / "root.pem"), lambda what: "")
        publish_root(by_hand, folder, sign_root(make_root(plan, newest), signer, newest), "me", desk.now_ms)
    with Desk(folder) as again:
        (listed,) = again.person(admin).get("/releases")
        assert listed["trust"] == f"key {keyid(keys, 'maker')}"


def test_the_commands_say_what_boxes_get(
    desk: Desk, signed: Signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(PROFILE, str(tmp_path / "profile.json"))
    url = f"https://127.0.0.1:{desk.port}"
    write_profile(Profile(url=url, token=desk.admin, authority=desk.home.authority.pem))
    assert main(["fleet", "release", str(signed("stranger"))]) == Exit.OK
    assert "m/1: no key that the fleet's root names has signed it" in capsys.readouterr().err
    main(["fleet", "releases"])
    assert "no trusted key" in capsys.readouterr().out
    assert main(["fleet", "release", str(signed("maker"))]) == Exit.OK
    assert capsys.readouterr().err == ""
    assert main(["fleet", "release", str(signed("stranger"))]) == Exit.REFUSED
    assert "boxes go on getting the one that is there" in capsys.readouterr().err
    main(["fleet", "releases"])
    assert " key " in capsys.readouterr().out


def test_converged_is_told_of_the_newest_that_concerns_a_box_and_of_nothing_before(
    desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    box, person = new_box("box-1", group="site"), desk.person()
    for version in (1, 2):
        released(desk, packages[version])

    def stands() -> tuple[int, int, bool]:
        found = person.get("/devices/box-1")
        return found["told_generation"], found["generation"], found["converged"]

    def tells(generation: int, done: int) -> None:
        said = messages.encode(Report(device="box-1", generation=done, converged=True))
        box.poll(targets=generation, report=said, report_digest="x")

    person.post("/want", {"model": "m", "group": "site", "wish": {"version": 1}})
    assert stands() == (0, 1, False)
    box.polled()
    tells(1, 1)
    assert stands() == (1, 1, True)
    person.post("/want", {"model": "m", "group": "site", "wish": {"version": 2}})
    assert stands() == (1, 2, False), "before the box was told"
    tells(1, 1)
    assert stands() == (1, 2, False), "it was told, and tells of the one before"
    tells(2, 1)
    assert stands() == (2, 2, False), "it trusts it, and has not done it"
    tells(2, 2)
    assert stands() == (2, 2, True)
    person.post("/want", {"model": "m", "group": "elsewhere", "wish": {"version": 1}})
    assert stands() == (2, 2, True), "it does not concern it"
    person.post("/settings", {"name": "fleet.poll_s", "device": "box-1", "value": 30})
    assert stands() == (2, 3, False)
    person.post("/settings", {"name": "fleet.poll_s", "device": "box-1"})
    assert stands() == (2, 2, True)
    person.post("/devices/box-1/group", {"group": ""})
    assert stands() == (2, 3, False)
