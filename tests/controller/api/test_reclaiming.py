"""What becomes unnamed at a controller that serves: who is at it, who names it anew meanwhile, what is withdrawn."""

from __future__ import annotations

import http.client
import os
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from appliance.cli.bundle import desk as bundle_desk
from appliance.cli.bundle import written as bundle_written
from appliance.cli.failure import Exit
from appliance.cli.fleet.session import PROFILE, Profile, write_profile
from appliance.cli.main import main
from appliance.controller import tables
from appliance.controller.blobs import DirectoryBlobs, Reclaimed, is_intact, write_blob
from appliance.controller.leftovers import Leftovers
from appliance.controller.releases import NoRelease, Releases
from appliance.controller.withdrawal import withdraw
from appliance.domain.digest import digest_of
from appliance.domain.errors import OperatorError
from appliance.domain.manifest import INT64_MAX
from appliance.fleet import messages
from appliance.fleet.messages import ModelReport, Refusal
from tests.controller.api.desk import Box, Desk
from tests.controller.api.test_people_api import packages, released
from tests.controller.api.test_signed_anew import Signed, keys, signed, wish_of

__all__ = ["keys", "packages", "signed"]

NewBox = Callable[..., Box]
MOST = 64 << 20


@pytest.fixture
def desk(tmp_path: Path, keys: Path) -> Iterator[Desk]:
    with Desk(tmp_path / "controller", [keys / "maker.key.pub", keys / "second.key.pub"]) as found:
        yield found


def there(desk: Desk) -> set[str]:
    return {path.name for path in (desk.folder / "blobs").glob("[0-9a-f][0-9a-f]/*")}


def named(desk: Desk) -> set[str]:
    """What rows of releases and of ways name."""
    with desk.home.store.transaction() as rows:
        found = {row.package for row in rows.all(tables.releases)} - {""}
        for row in rows.all(tables.transfers):
            found |= {row.stream, row.index_digest}
    return found


def leftovers_of(desk: Desk) -> Leftovers:
    return Leftovers(desk.home.store, desk.home.blobs)


def looked(desk: Desk) -> Reclaimed:
    """What two looks freed."""
    leftovers = leftovers_of(desk)
    assert leftovers.look(desk.now_ms) == Reclaimed()
    return leftovers.look(desk.now_ms)


def wanted(desk: Desk, version: int) -> None:
    desk.person().post("/want", {"model": "m", "group": "site", "wish": {"version": version}})


def test_what_was_signed_anew_goes_when_each_box_was_told(
    desk: Desk, new_box: NewBox, signed: Signed
) -> None:
    box = new_box("box-1", group="site")
    released(desk, signed("maker"))
    wanted(desk, 1)
    old = wish_of(box)
    before = there(desk)
    released(desk, signed("maker", "second"))
    streams = {each for way in old.transfers for each in (way.stream, way.index)}
    package = digest_of(signed("maker").read_bytes())
    assert streams | {package} == before
    found = looked(desk)
    assert (found.blobs, found.error) == (1, ""), "the package; the box may be at the streams"
    assert found.bytes == signed("maker").stat().st_size
    assert there(desk) == named(desk) | streams
    new = wish_of(box)
    assert looked(desk).blobs == 2
    assert there(desk) == named(desk)
    for way in old.transfers:
        refusal = box.raw("GET", f"{messages.STREAMS}{way.stream}", b"", bytes, Range="bytes=0-")
        assert (box.status, refusal) == (404, Refusal("not-there", "there is no such stream", 0))
    for way in new.transfers:
        stream = box.raw("GET", f"{messages.STREAMS}{way.stream}", b"", bytes, Range="bytes=0-")
        assert digest_of(stream) == way.stream
    assert [each["what"] for each in desk.person().get("/audit")].count("reclaimed") == 2


def test_a_box_that_is_at_a_blob_gets_the_rest_of_it(desk: Desk, new_box: NewBox, tmp_path: Path) -> None:
    box = new_box("box-1")
    data = os.urandom(MOST)
    digest = write_blob(desk.home.blobs, lambda path: path.write_bytes(data))
    identity = tmp_path / "identity.pem"
    key = box.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    identity.write_bytes(key + box.pem.encode())
    context = ssl.create_default_context(cadata=desk.home.authority.pem)
    context.load_cert_chain(str(identity))
    link = http.client.HTTPSConnection("127.0.0.1", desk.port, timeout=60, context=context)
    try:
        link.request("GET", f"{messages.STREAMS}{digest}", headers={"Range": f"bytes=0-{MOST - 1}"})
        answer = link.getresponse()
        begin = answer.read(1 << 16)
        assert looked(desk) == Reclaimed(blobs=1, bytes=MOST)
        assert digest_of(begin + answer.read()) == digest
    finally:
        link.close()


def test_a_blob_that_goes_just_before_it_is_opened_is_not_there(
    desk: Desk, new_box: NewBox, monkeypatch: pytest.MonkeyPatch
) -> None:
    box, blobs = new_box("box-1"), desk.home.blobs
    digest = write_blob(blobs, lambda path: path.write_bytes(b"x"))
    size = blobs.size

    def and_gone(wanted: str) -> int | None:
        found = size(wanted)
        monkeypatch.undo()
        assert looked(desk).blobs == 1
        return found

    monkeypatch.setattr(DirectoryBlobs, "size", lambda _, wanted: and_gone(wanted))
    with suppress(messages.MessageInvalid):  # the status alone tells, as that of any other server
        box.raw("GET", f"{messages.STREAMS}{digest}", b"", bytes, Range="bytes=0-")
    assert box.status == 404


def test_a_release_that_names_a_leftover_again_keeps_it(
    desk: Desk, signed: Signed, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was due already; its removal is tried at each moment between the package's taking and its naming."""
    leftovers, blobs = leftovers_of(desk), desk.home.blobs
    for version in (1, 2):
        released(desk, signed("maker", version=version))
    kept = there(desk)
    for version in (1, 2):
        assert desk.person().post(f"/releases/m/{version}/withdraw")["version"] == version
    leftovers.look(1)
    tried: list[Reclaimed] = []
    take = DirectoryBlobs.take

    def between(self: DirectoryBlobs, draft: Path) -> str:
        tried.append(leftovers.look(2))
        found = take(self, draft)
        tried.append(leftovers.look(3))
        return found

    monkeypatch.setattr(DirectoryBlobs, "take", between)
    released(desk, signed("maker"))
    assert tried == [Reclaimed()] * 6, "package, stream and index, before and after each"
    monkeypatch.undo()
    assert len(kept) == 6
    assert leftovers.look(4).blobs == 3, "those of the other one"
    assert there(desk) == named(desk)
    assert all(is_intact(blobs, each) for each in named(desk))


def test_releases_and_withdrawals_at_once_with_looks_lose_nothing(
    desk: Desk, packages: dict[int, Path], signed: Signed
) -> None:
    """Real threads: the same digests are named and unnamed all the while, and removed whenever that may be."""
    home, ends = desk.home, threading.Event()
    releases = Releases(home.store, home.blobs, home.package_keys)
    whole = {digest_of(signed("maker", version=each).read_bytes()): each for each in (1, 2)}

    def again(version: int) -> int:
        rounds = 0
        while rounds < 12:
            draft = home.blobs.draft()
            shutil.copy(signed("maker", version=version), draft)
            releases.upload(draft, "me", 1)
            with suppress(NoRelease):
                releases.prepare("m", version, (1, 2))
            with home.store.transaction() as rows:
                package = rows.one(tables.releases, model="m", version=version).package  # type: ignore[union-attr]
            assert whole[package] == version
            assert is_intact(home.blobs, package)
            withdraw(home.store, home.blobs, "m", version, "me", 1)
            rounds += 1
        return rounds

    def look() -> int:
        leftovers, freed = leftovers_of(desk), 0
        while not ends.is_set():
            found = leftovers.look(1)
            assert found.error == ""
            freed += found.blobs
            with home.blobs.kept():
                assert named(desk) <= there(desk)
        return freed

    for version in (1, 2):
        signed("maker", version=version)
    with ThreadPoolExecutor(3) as pool:
        looks = pool.submit(look)
        try:
            assert sum(pool.map(again, (1, 2), timeout=120)) == 24
        finally:
            ends.set()
        assert looks.result(60) > 0, "else nothing was tried"
    looked(desk)
    assert there(desk) == named(desk) == set()


def test_a_bundle_is_written_whole_although_its_streams_become_unnamed(
    desk: Desk, new_box: NewBox, signed: Signed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new_box("box-1", group="site")
    released(desk, signed("maker"))
    wanted(desk, 1)
    freed: list[Reclaimed] = []

    def meanwhile(*words: Any, **more: Any) -> Any:
        released(desk, signed("maker", "second"))
        with desk.home.store.transaction() as rows:
            rows.change(tables.devices, {"name": "box-1"}, document=b"")
        leftovers = leftovers_of(desk)
        freed.extend(leftovers.look(1) for _ in range(3))
        return bundle_written.write(*words, **more)

    monkeypatch.setattr(bundle_desk, "write", meanwhile)
    place = tmp_path / "stick.tar"
    assert main(["bundle", "export", str(place), "--controller", str(desk.folder)]) == Exit.OK
    assert freed == [Reclaimed()] * 3
    assert main(["bundle", "inspect", str(place)]) == Exit.OK
    assert looked(desk).blobs == 3


# --- a release is withdrawn


def test_a_release_that_nobody_needs_is_withdrawn_and_may_come_again(
    desk: Desk, new_box: NewBox, signed: Signed, packages: dict[int, Path]
) -> None:
    person, box = desk.person(), new_box("box-1", group="site")
    for version in (1, 2):
        released(desk, signed("maker", version=version))
    box.tell(models=(ModelReport(name="m", installed=(1,)),))
    wanted(desk, 2)
    base, whole = wish_of(box).transfers
    assert base.base
    box.tell(models=(ModelReport(name="m", installed=(1, 2), serving=2, wanted=2),))
    own = {digest_of(signed("maker").read_bytes())}
    before = there(desk)
    found = person.post("/releases/m/1/withdraw")
    assert (person.status, found["model"], found["version"]) == (200, "m", 1)
    assert [each["version"] for each in person.get("/releases")] == [2]
    assert person.get("/audit")[-1]["what"] == "withdrawn"
    gone = before - named(desk)
    assert own < gone
    assert sum(desk.home.blobs.size(each) or 0 for each in gone) == found["bytes"]
    assert looked(desk) == Reclaimed(blobs=3, bytes=found["bytes"])
    assert wish_of(box).transfers == (base, whole), "who has it gets the next one from it"
    refused = person.post("/want", {"model": "m", "group": "x", "wish": {"version": 1}})
    assert (person.status, refused["code"]) == (404, "not-there")
    assert "m/1 was withdrawn from the controller; hand the same package over again" in refused["error"]
    unknown = person.post("/want", {"model": "m", "group": "x", "wish": {"version": 9}})["error"]
    assert "m/9 was not released; there is version 2" in unknown
    refused = person.post("/releases/m/1/withdraw")
    assert (person.status, refused["code"]) == (404, "not-there")
    other = released(desk, packages[1])
    assert (other["version"], other["trust"]) == (1, "unsigned"), "what it is counts, not who signed it"
    assert [each["version"] for each in person.get("/releases")] == [1, 2]


def test_the_number_of_a_withdrawn_release_means_what_it_meant(
    desk: Desk, packages: dict[int, Path], tmp_path: Path
) -> None:
    released(desk, packages[1])
    assert desk.person().post("/releases/m/1/withdraw")["bytes"] > 0
    source, other = packages[2].parent / "m-2.onnx", tmp_path / "other.model"
    words = ["model", "pack", str(source), "--name", "m", "--version", "1", "-o", str(other), "--no-proof"]
    assert main(words) == Exit.OK
    found = released(desk, other)
    assert "what a version is never changes; give the new one another number" in found["error"]


@pytest.mark.parametrize(
    ("standing", "says"),
    [
        ({"serving": 1, "installed": (1,)}, "box-1 serves it"),
        ({"wanted": 1}, "box-1 was to run it"),
        ({"installed": (1,)}, "box-1 gets m/2 from it"),
    ],
)
def test_a_release_that_a_box_needs_is_not_withdrawn(
    desk: Desk, new_box: NewBox, packages: dict[int, Path], standing: dict[str, Any], says: str
) -> None:
    person, box = desk.person(), new_box("box-1", group="site")
    for version in (1, 2):
        released(desk, packages[version])
    box.tell(models=(ModelReport(name="n", serving=1), ModelReport(name="m", installed=(1,))))
    wanted(desk, 2)
    box.tell(models=(ModelReport(name="m", **standing),))
    before = there(desk), person.get("/releases")
    found = person.post("/releases/m/1/withdraw")
    assert (person.status, found["code"]) == (422, "refused")
    assert f"m/1 is needed: {says}" in found["error"]
    assert (there(desk), person.get("/releases")) == before
    person.post("/devices/box-1/revoke")
    assert person.post("/releases/m/1/withdraw")["model"] == "m", "a box that was shut out needs nothing"


@pytest.mark.parametrize(
    "wish",
    [
        {"version": 1},
        {"version": 2, "prefetch": [1]},
        {"version": 2, "trial": {"version": 1, "mode": "shadow"}},
    ],
)
def test_a_release_that_somebody_wishes_for_is_not_withdrawn(
    desk: Desk, new_box: NewBox, packages: dict[int, Path], wish: dict[str, Any]
) -> None:
    person = desk.person()
    new_box("box-1")
    for version in (1, 2):
        released(desk, packages[version])
    for where in ({"group": "site"}, {"device": "box-1"}):
        person.post("/want", {"model": "m", "wish": wish, **where})
        assert person.status == 200
    found = person.post("/releases/m/1/withdraw")
    assert "m/1 is needed: device box-1 wishes for it, group site wishes for it" in found["error"]
    for where in ({"group": "site"}, {"device": "box-1"}):
        person.post("/want", {"model": "m", **where})
    assert person.post("/releases/m/1/withdraw")["model"] == "m"


def test_not_all_are_named_who_need_a_release(desk: Desk, new_box: NewBox, packages: dict[int, Path]) -> None:
    released(desk, packages[1])
    for number in range(11):
        desk.person().post("/want", {"model": "m", "group": f"g-{number:02}", "wish": {"version": 1}})
    found = desk.person().post("/releases/m/1/withdraw")
    assert "group g-07 wishes for it (no device is in it), and 3 more; wish for another" in found["error"]


def test_who_mistyped_a_group_finds_the_wish_and_how_to_take_it_back(
    desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    """It was refused for a group that nobody knew of, and revoking boxes was all the advice."""
    person = desk.person()
    new_box("box-1", group="site")
    released(desk, packages[1])
    for group in ("site", "stie"):
        person.post("/want", {"model": "m", "group": group, "wish": {"version": 1}})
    found = person.post("/releases/m/1/withdraw")
    assert "group site wishes for it, group stie wishes for it (no device is in it); " in found["error"]
    assert "'appliance fleet want m --withdraw --group NAME'" in found["error"]
    person.post("/devices/box-1/revoke")
    assert "group site wishes for it (no device is in it), " in person.post("/releases/m/1/withdraw")["error"]


def test_a_box_that_says_it_often_hides_nobody(
    desk: Desk, new_box: NewBox, packages: dict[int, Path]
) -> None:
    released(desk, packages[1])
    for name, times in (("box-1", 1000), ("box-2", 1)):
        new_box(name).tell(models=(ModelReport(name="m", serving=1),) * times)
    found = desk.person().post("/releases/m/1/withdraw")
    assert "m/1 is needed: box-1 serves it, box-2 serves it; wish for another version" in found["error"]


def test_a_wish_for_a_release_that_is_withdrawn_meanwhile_is_refused(
    desk: Desk, new_box: NewBox, packages: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    box, person = new_box("box-1", group="site"), desk.person()
    released(desk, packages[1])
    prepare = Releases.prepare

    def and_withdrawn(self: Releases, model: str, version: int, bases: Any) -> None:
        prepare(self, model, version, bases)
        withdraw(desk.home.store, desk.home.blobs, model, version, "another", 1)

    monkeypatch.setattr(Releases, "prepare", and_withdrawn)
    wanted(desk, 1)
    monkeypatch.undo()
    (group,) = person.get("/groups")
    assert (group["name"], group["devices"], group["wishes"], group["settings"]) == ("site", 1, {}, {})
    assert box.polled().document, "and boxes go on"


def test_the_base_of_a_way_may_be_withdrawn_while_the_way_is_built(
    desk: Desk, packages: dict[int, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = desk.home
    for version in (1, 2):
        released(desk, packages[version])
    releases, built, leftovers = Releases(home.store, home.blobs, ()), Releases._built, leftovers_of(desk)

    def beside(self: Releases, target: Path, base: Path | None) -> Any:
        withdraw(home.store, home.blobs, "m", 1, "another", 1)
        assert [leftovers.look(each) for each in range(3)] == [Reclaimed()] * 3
        return built(self, target, base)

    monkeypatch.setattr(Releases, "_built", beside)
    releases.prepare("m", 2, (1,))
    monkeypatch.undo()
    (listed,) = desk.person().get("/releases")
    assert len(listed["deltas"]) == 1
    looked(desk)
    assert there(desk) == named(desk)
    with pytest.raises(OperatorError, match="was withdrawn"):
        releases.prepare("m", 1, (2,))


def test_the_command_withdraws_a_release(
    desk: Desk, packages: dict[int, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.setenv(PROFILE, str(tmp_path / "profile.json"))
    url = f"https://127.0.0.1:{desk.port}"
    write_profile(Profile(url=url, token=desk.admin, authority=desk.home.authority.pem))
    released(desk, packages[1])
    for words in ((), (str(packages[1]), "--withdraw", "m/1")):
        assert main(["fleet", "release", *words]) == Exit.USAGE
        assert "give packages to release, or --withdraw MODEL/VERSION, one of them" in capsys.readouterr().err
    for wrong in ("m", "m/x", "m/", "../1", "m/1/2"):
        assert main(["fleet", "release", "--withdraw", wrong]) == Exit.USAGE
        assert f"'{wrong}' is no MODEL/VERSION" in capsys.readouterr().err
    desk.person().post("/want", {"model": "m", "group": "site", "wish": {"version": 1}})
    assert main(["fleet", "release", "--withdraw", "m/1"]) == Exit.REFUSED
    assert "m/1 is needed: group site wishes for it" in capsys.readouterr().err
    desk.person().post("/want", {"model": "m", "group": "site"})
    assert main(["fleet", "release", "--withdraw", "m/1"]) == Exit.OK
    out = capsys.readouterr().out
    assert out.startswith("m/1 is withdrawn; ")
    assert "become free at the controller within half an hour" in out
    released(desk, packages[1])
    assert main(["fleet", "release", "--withdraw", "m/1", "--json"]) == Exit.OK
    assert '"version": 1' in capsys.readouterr().out


def test_each_number_that_a_version_can_have_can_be_withdrawn(desk: Desk, packages: dict[int, Path]) -> None:
    (digest,) = (write_blob(desk.home.blobs, lambda path: path.write_bytes(b"package")),)
    numbers = (1, 10**15, INT64_MAX)
    with desk.home.store.transaction() as rows:
        for number in numbers:
            rows.put(
                tables.releases, model="m", version=number, manifest=f"{number:064}", package=digest,
                total_bytes=1, trust="unsigned", by_whom="me", at_ms=1,
            )  # fmt: skip
    person = desk.person()
    for number in numbers:
        assert person.post(f"/releases/m/{number}/withdraw")["version"] == number
        assert (person.post(f"/releases/m/{number}/withdraw")["code"], person.status) == ("not-there", 404)
    for path, status in (
        ("m/0", 404), ("m/2", 404), ("m%00/1", 404), ("%1b%5b2J/1", 404), ("%ff/1", 404), ("m'--/1", 404),
        (f"m/{INT64_MAX + 1}", 400), ("m/" + "9" * 5000, 400), ("m/-1", 400), ("m/1_0", 400), ("m/%D9%A3", 400),
        ("m/%201", 400),
    ):  # fmt: skip
        assert person.post(f"/releases/{path}/withdraw")["code"] in ("not-there", "bad-request")
        assert person.status == status, path
