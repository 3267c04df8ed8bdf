"""What the agent found is told by commands that look at its files: why it waits, and how its contacts go."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from aiohttp import web

from appliance.cli.main import main
from appliance.cli.sync import status
from appliance.fleet.documents import WishedModel
from appliance.package.keys import read_public_key
from appliance.sync.identity import SITUATION
from appliance.sync.plan import Prove, Reason, Waiting
from tests.cli.conftest import Run
from tests.sync.controller_double import ControllerDouble
from tests.sync.test_agent import told_of, wanted_in

Pack = Callable[..., Path]
Start = Callable[[], "subprocess.Popen[str]"]


def test_why_a_package_was_refused_is_told_after_the_pass(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
    config: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    config.write_text(config.read_text().replace('"allow"', '"refuse"'))
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())))
    status, told, said = appliance("sync", "once")
    assert (status, told.count("install digits/1: manifest: is not signed")) == (1, 1)
    assert "is not signed" not in said, "what waits is told once"
    assert "install digits/1: manifest: is not signed" in appliance("sync", "explain", "digits")[1]
    (model,) = json.loads(appliance("sync", "status", "--json")[1])["models"]
    assert [each["waits"]["reason"] for each in model["steps"]] == ["refused"]
    assert json.loads(appliance("sync", "explain", "digits", "--json")[1])["models"] == [model]
    monkeypatch.setenv("COLUMNS", "80")
    row = next(line for line in appliance("sync", "status")[1].splitlines() if line.startswith("digits"))
    assert row.split()[:6] == ["digits", "1", "-", "-", "refused", "manifest:"], "a row is a line"
    found = json.loads(appliance("sync", "once", "--json")[1])
    assert (found["converged"], found["steps"][0]["waits"]["reason"]) == (False, "refused")


def test_what_has_a_failed_version_tried_again_is_told_where_it_is_explained(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())))
    appliance("sync", "once")
    failed = Waiting(reason=Reason.FAILED, text="golden case 'a': off")
    monkeypatch.setattr(
        status, "plan", lambda desired, observed: (Prove(name="digits", version=1, waits=failed),)
    )
    told = appliance("sync", "explain", "digits")[1]
    assert "see digits/1 live: golden case 'a': off\n" in told
    assert told.rstrip().endswith(
        "it is not tried again until another version of digits is wished, or this one with --order"
    )


def test_what_was_refused_is_tried_again_when_its_maker_is_trusted(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    start: Start,
    pack: Pack,
    config: Path,
    tmp_path: Path,
) -> None:
    config.write_text(config.read_text().replace('"allow"', '"refuse"'))
    package, key = pack(), tmp_path / "maker.key"
    commands = ("model", "keygen", str(key)), ("model", "sign", str(package), "--key", str(key))
    for words in commands:
        assert main(words) == 0
    controller.want(WishedModel(name="digits", wanted=controller.offer(package)))
    start()
    controller.wait(lambda: (told := told_of(controller)) is not None and told.phase == "refused")
    assert wanted_in(enrolled) == 0
    controller.let_sign(read_public_key(tmp_path / "maker.key.pub"))
    controller.wait(lambda: (told := told_of(controller)) is not None and told.wanted == 1)


def test_a_version_that_was_refused_is_tried_anew_as_soon_as_it_comes_with_other_signatures(
    controller: ControllerDouble, enrolled: Path, start: Start, pack: Pack, config: Path, tmp_path: Path
) -> None:
    config.write_text(config.read_text().replace('"allow"', '"refuse"'))
    package, keys = pack(), [tmp_path / f"{name}.key" for name in ("stranger", "maker")]
    for key in keys:
        assert main(("model", "keygen", str(key))) == 0
    controller.let_sign(read_public_key(tmp_path / "maker.key.pub"))
    for key in keys:
        assert main(("model", "sign", str(package), "--key", str(key))) == 0
        controller.want(WishedModel(name="digits", wanted=controller.offer(package)))
        if key is keys[0]:
            start()
            controller.wait(lambda: (told := told_of(controller)) is not None and told.phase == "refused")
            assert wanted_in(enrolled) == 0
    controller.wait(lambda: (told := told_of(controller)) is not None and told.wanted == 1)


def test_no_report_says_that_a_document_is_done_that_was_not_looked_at(
    appliance: Run, enrolled: Path, controller: ControllerDouble, pack: Pack
) -> None:
    controller.want()
    appliance("sync", "once")
    assert controller.last is not None
    assert (controller.last.generation, controller.last.converged) == (1, True)
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())))
    del controller.reports[:]
    appliance("sync", "once")
    assert {each.generation for each in controller.reports} >= {2}
    assert not any(each.converged for each in controller.reports), "no daemon serves it"


def test_status_says_why_the_controller_was_not_heard_and_that_it_was(
    appliance: Run, enrolled: Path, controller: ControllerDouble
) -> None:
    async def portal(request: web.Request) -> web.StreamResponse:
        return web.Response(text="<html>please log in</html>", content_type="text/html")

    controller.want()
    appliance("sync", "once")
    assert "problem:" not in appliance("sync", "status")[1]
    controller.instead = portal
    assert appliance("sync", "once")[0] == 3
    assert "problem: the controller was not heard: " in appliance("sync", "status")[1]
    controller.instead = None
    appliance("sync", "once")
    found = json.loads(appliance("sync", "status", "--json")[1])
    assert (found["problems"], found["outbox_bytes"]) == ([], 0), "and nothing is left to be told"


def test_what_is_left_may_be_lost_or_damaged(
    appliance: Run, enrolled: Path, controller: ControllerDouble
) -> None:
    controller.want()
    appliance("sync", "once")
    place = enrolled / "fleet" / SITUATION
    for damaged in (b"", b"{", b'{"trouble": "\xff"}', b"[" * 4000):
        place.write_bytes(damaged)
        assert appliance("sync", "status")[0] == 0
    place.unlink()
    assert appliance("sync", "status")[0] == 0


def test_a_box_that_cannot_be_looked_at_is_not_as_wanted(
    appliance: Run, enrolled: Path, controller: ControllerDouble
) -> None:
    controller.want()
    assert appliance("sync", "once")[0] == 0
    (enrolled / "catalog.json").write_bytes(b"junk")
    status, out, err = appliance("sync", "once")
    assert (status, out) == (2, "")
    assert "box cannot be looked at: " in err
