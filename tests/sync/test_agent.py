"""The agent as a process: brings what is wanted, whatever kills it, and leaves alone what a person did."""

from __future__ import annotations

import errno
import json
import os
import random
import signal
import subprocess
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from appliance import durable
from appliance.cli.failure import Exit
from appliance.domain.manifest import INT64_MAX
from appliance.durable import RealFolder
from appliance.fleet.documents import WishedModel, WishedTrial
from appliance.fleet.messages import STREAMS, ModelReport, Refusal, encode
from appliance.image import note
from appliance.outbox.outbox import Outbox, Policy
from appliance.store.catalog import Catalog
from appliance.store.catalog_file import read_catalog
from appliance.sync import progress, trust_file
from tests.cli.conftest import Run
from tests.sync.controller_double import ControllerDouble
from tests.sync.test_link import closed_port

Pack = Callable[..., Path]
Start = Callable[[], "subprocess.Popen[str]"]


def catalog_in(state: Path) -> Catalog:
    return read_catalog(state) or Catalog()


def wanted_in(state: Path) -> int:
    model = catalog_in(state).model("digits")
    return model.wanted if model else 0


def told_of(controller: ControllerDouble) -> ModelReport | None:
    last = controller.last
    return next((each for each in last.models if each.name == "digits"), None) if last else None


def until(what: Callable[[], Any], limit_s: float = 40) -> None:
    """Until it is so: looked at again and again, because nobody tells of a catalog's change."""
    end = time.monotonic() + limit_s
    while not what():
        assert time.monotonic() < end, "it did not come to that"
        time.sleep(0.02)


def test_one_pass_brings_what_is_wanted_and_says_what_waits(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
) -> None:
    version = controller.offer(pack())
    controller.want(WishedModel(name="digits", wanted=version))
    status, out, err = appliance("sync", "once")
    assert status == 0, err
    assert out == "see digits/1 live: no daemon serves from this store\n"
    model = catalog_in(enrolled).models[0]
    assert (model.name, model.wanted, model.managed, model.order) == ("digits", 1, True, False)
    report = told_of(controller)
    assert report is not None
    assert (report.phase, report.code, report.managed) == ("prove", "serve", True)
    assert controller.last is not None
    assert (controller.last.generation, controller.last.freshness) == (1, "fresh")
    assert not list((enrolled / "fleet" / "spool").glob("making-*"))


def test_a_newer_version_comes_as_the_difference_to_what_is_here(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
) -> None:
    first, second = pack(), pack(2)
    controller.want(WishedModel(name="digits", wanted=controller.offer(first)))
    appliance("sync", "once")
    wish = controller.offer(second, first)
    assert wish.transfers[1].size < wish.transfers[0].size
    controller.sent_bytes = 0
    controller.want(WishedModel(name="digits", wanted=wish))
    assert appliance("sync", "once")[0] == 0
    assert wanted_in(enrolled) == 2
    assert controller.sent_bytes <= wish.transfers[1].size + 64
    controller.want()
    assert appliance("sync", "once")[1] == "All is as wanted.\n"
    assert catalog_in(enrolled).models == ()


def test_what_a_person_wants_stands_until_he_lifts_it(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
) -> None:
    controller.want(
        WishedModel(name="digits", wanted=controller.offer(pack()), prefetch=(controller.offer(pack(2)),))
    )
    appliance("sync", "once")
    assert appliance("model", "want", "digits/2")[1].endswith("until 'appliance model resume digits'\n")
    status, out, _ = appliance("sync", "once")
    assert (status, wanted_in(enrolled)) == (0, 2)
    assert out.startswith("leave digits alone: held by hand (want of version 2 by ")
    assert controller.last is not None
    (drift,) = controller.last.drift
    assert (drift.model, drift.what, drift.version) == ("digits", "want", 2)
    assert "(uid " in drift.who
    assert "held by hand: want by " in appliance("sync", "explain", "digits")[1]
    controller.want()
    appliance("sync", "once")
    assert wanted_in(enrolled) == 2, "what is held is not uninstalled either"
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())))
    appliance("model", "resume", "digits")
    appliance("sync", "once")
    assert wanted_in(enrolled) == 1


def test_a_trial_is_begun_and_ended(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
) -> None:
    first, second = controller.offer(pack()), controller.offer(pack(2))
    trial = WishedTrial(version=second, mode="canary", percent=7)
    controller.want(WishedModel(name="digits", wanted=first, trial=trial))
    appliance("sync", "once")
    found = catalog_in(enrolled).models[0].trial
    assert found is not None
    assert (found.version, found.mode, found.percent) == (2, "canary", 7)
    controller.want(WishedModel(name="digits", wanted=first))
    appliance("sync", "once")
    assert catalog_in(enrolled).models[0].trial is None


def test_settings_from_afar_are_taken_whole_or_not_at_all_and_stay(
    appliance: Run, enrolled: Path, controller: ControllerDouble, config: Path
) -> None:
    controller.want(settings={"fleet.poll_s": 300, "fleet.month_bytes": 7})
    assert appliance("sync", "once")[0] == 0
    controller.want(settings={"fleet.poll_s": 900, "fleet.month_bytes": -1})
    status, out, _ = appliance("sync", "once")
    assert status == 1
    assert "apply settings: fleet.month_bytes: " in out
    assert controller.last is not None
    assert controller.last.settings["fleet.poll_s"] == "300"
    assert controller.last.problems[0].startswith("settings-refused: fleet.month_bytes")
    config.write_text(config.read_text() + "[fleet]\npoll_s = 45\n")
    controller.want(settings={"fleet.poll_s": 900})
    appliance("sync", "once")
    assert controller.last.settings["fleet.poll_s"] == "45 (set on the box)"


def test_without_a_link_it_goes_on_towards_what_it_trusts(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
) -> None:
    controller.want(WishedModel(name="digits", prefetch=(controller.offer(pack()),)))
    appliance("sync", "once")
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())))
    appliance("model", "uninstall", "digits")
    appliance("sync", "once")
    appliance("model", "resume", "digits")
    files, controller.files = controller.files, {}
    controller.instead = controller._file
    status, out, err = appliance("sync", "once")
    assert (status, "the controller was not heard" in err) == (3, True)
    assert out.startswith("transfer digits/1: "), "what is wanted is known after a restart, too"
    controller.files = files
    assert appliance("sync", "once")[0] == 3
    assert wanted_in(enrolled) == 1


def test_the_link_can_be_turned_off_and_metered(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
) -> None:
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())))
    assert appliance("sync", "link")[1] == "the link is free\n"
    assert appliance("sync", "link", "metered")[1] == "the link is metered\n"
    status, out, _ = appliance("sync", "once")
    assert status == 0
    assert "the link is metered, and models do not go over such a one" in out
    assert wanted_in(enrolled) == 0
    found = json.loads(appliance("sync", "status", "--json")[1])
    assert found["models"][0]["steps"][0]["waits"]["reason"] == "link"
    appliance("sync", "link", "free")
    appliance("sync", "once")
    assert wanted_in(enrolled) == 1


def test_what_is_transferred_waits_for_its_window(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
    config: Path,
) -> None:
    config.write_text(config.read_text() + '[fleet]\nactivation_windows = ["Mon 10:00-10:01"]\n')
    controller.now_ms = lambda: 1_795_500_000_000  # a Tuesday, whatever this machine's clock shows
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())))
    status, out, _ = appliance("sync", "once")
    assert (status, wanted_in(enrolled)) == (0, 0)
    assert "have digits/1 served: the window for activation is closed; again in" in out
    assert catalog_in(enrolled).model("digits") is not None
    controller.now_ms = lambda: 1_796_032_830_000  # Monday, half a minute past ten
    appliance("sync", "once")
    assert wanted_in(enrolled) == 1


def test_what_waits_in_the_outboxes_reaches_the_controller_once_and_in_order(
    appliance: Run, enrolled: Path, controller: ControllerDouble
) -> None:
    place = enrolled / "outbox" / "serve"
    place.mkdir(parents=True)
    with Outbox(RealFolder(place), 1 << 20, Policy.DROP_OLDEST) as outbox:
        outbox.append([b"%d" % number for number in range(20_000)])
        assert appliance("sync", "once")[0] == 0
        (held,) = (each for (stream, _), each in controller.records.items() if stream == "serve")
        assert [held[number] for number in sorted(held)] == [b"%d" % number for number in range(20_000)]
        controller.records.clear()
        outbox.append([b"more"])
        appliance("sync", "once")
        assert [
            list(each.values()) for (stream, _), each in controller.records.items() if stream == "serve"
        ] == [[b"more"]]


@pytest.mark.parametrize("code", ["telemetry-full", "too-often"])
def test_a_controller_that_takes_no_telemetry_now_is_heard_all_the_same(
    enrolled: Path, controller: ControllerDouble, start: Start, code: str
) -> None:
    place = enrolled / "outbox" / "serve"
    place.mkdir(parents=True)
    with Outbox(RealFolder(place), 1 << 20, Policy.DROP_OLDEST) as outbox:
        outbox.append([b"1"])
    controller.full = Refusal(code, "not now", 3600)
    controller.want()
    start()
    controller.wait(lambda: controller.fulls > 0)
    asked = len(controller.polls)
    controller.wait(lambda: len(controller.polls) > asked + 1)
    assert controller.fulls == 1, "and it is not asked before its time"


def test_a_month_that_is_spent_stops_models_and_nothing_else_also_after_a_restart(
    appliance: Run, enrolled: Path, controller: ControllerDouble, pack: Pack, config: Path
) -> None:
    config.write_text(config.read_text() + "[fleet]\nmonth_bytes = 2000\n")
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())))
    for _ in range(2):
        status, out, _ = appliance("sync", "once")
        assert status == 0
        assert "the bytes of this billing month are spent" in out
        assert controller.last is not None
        assert controller.last.generation == 1
    assert wanted_in(enrolled) == 0
    config.write_text(config.read_text().replace("2000", "9000000"))
    appliance("sync", "once")
    assert wanted_in(enrolled) == 1
    last = controller.last
    assert last is not None
    assert 0 < last.budget_left_bytes < 9_000_000


def test_an_idle_poll_carries_no_report_and_keeps_the_connection(
    enrolled: Path, controller: ControllerDouble, start: Start
) -> None:
    controller.want()
    start()
    controller.wait(lambda: len(controller.polls) > 3)
    idle = controller.polls[-2:]
    assert [each.report for each in idle] == [b"", b""]
    assert len({each.report_digest for each in idle}) == 1
    assert len(controller.connections) == 2, "one to enrol, one for all polls"
    assert all(len(encode(each)) < 200 for each in idle)


@pytest.mark.parametrize(("file", "expected"), [("agent.json", Exit.USAGE), ("trusted", Exit.UNREACHABLE)])
def test_a_disk_that_is_full_costs_time_and_nothing_else(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
    monkeypatch: pytest.MonkeyPatch,
    file: str,
    expected: Exit,
) -> None:
    """The files of the agent cannot be written, one after the other; then they can."""
    replaced = durable.replace_file

    def full(folder: durable.Folder, path: str, temporary: str, data: bytes) -> None:
        if path == file:
            raise OSError(errno.ENOSPC, "No space left on device")
        replaced(folder, path, temporary, data)

    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())), settings={"fleet.poll_s": 9})
    with monkeypatch.context() as patched:
        for module in (progress, trust_file):
            patched.setattr(module, "replace_file", full)
        status, _, err = appliance("sync", "once")
        assert (status, "No space left on device" in err) == (expected, True), err
    assert appliance("sync", "once")[0] == 0
    assert wanted_in(enrolled) == 1
    assert controller.last is not None
    assert controller.last.settings["fleet.poll_s"] == "9"


def test_a_neighbour_gets_what_is_here_where_that_is_wished(
    enrolled: Path, controller: ControllerDouble, start: Start, pack: Pack, config: Path
) -> None:
    port = closed_port()
    config.write_text(config.read_text() + f'[fleet]\nneighbour_address = "127.0.0.1:{port}"\n')
    version = controller.offer(pack())
    controller.want(WishedModel(name="digits", wanted=version))
    start()
    until(lambda: wanted_in(enrolled) == 1)
    (way,) = version.transfers
    path = f"{STREAMS}{way.stream}"
    headers = {"Range": f"bytes=0-{way.size - 1}"}
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", headers=headers)
    with urllib.request.urlopen(request, timeout=20) as answer:
        assert answer.read() == controller.files[path]


def test_a_second_agent_is_told_who_works(
    appliance: Run, enrolled: Path, controller: ControllerDouble, start: Start
) -> None:
    first = start()
    controller.wait(lambda: controller.polls)
    status, _, err = appliance("sync", "once")
    assert status == 1
    assert f"an agent works on '{enrolled}' already: process {first.pid}" in err
    assert f"agent: process {first.pid}" in appliance("sync", "status")[1]


@pytest.mark.parametrize("form", ["auto", "json", "console"])
def test_its_log_is_in_the_format_of_the_daemons_and_a_pass_tells_a_person(
    appliance: Run, controller: ControllerDouble, enrolled: Path, start: Start, config: Path, pack: Pack, form: str,
) -> None:  # fmt: skip
    file = enrolled / "daemon.log"
    config.write_text(f'{config.read_text()}\n[log]\nformat = "{form}"\nfile = "{file}"\n')
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())))
    process = start()
    controller.wait(lambda: (told := told_of(controller)) is not None and told.wanted == 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert process.stderr is not None
    lines = process.stderr.read().splitlines()
    if form == "console":
        assert "[info     ] agent works" in lines[0]
        assert any("done" in line and "install digits/1" in line for line in lines)
    else:
        said = [json.loads(line) for line in lines]
        assert said[0]["event"] == "agent works"
        assert {"event": "done", "level": "info", "step": "install digits/1"}.items() <= next(
            each for each in said if each["event"] == "done"
        ).items()
        assert all("time" in each for each in said)
    assert not file.exists(), "that is the daemon's"
    if form == "json":
        controller.want()
        assert "done: step='uninstall digits'" in appliance("sync", "once")[2]


def test_serving_goes_before_the_agent(controller: ControllerDouble, enrolled: Path, start: Start) -> None:
    controller.want()
    agent = start()
    controller.wait(lambda: controller.polls)
    assert os.getpriority(os.PRIO_PROCESS, agent.pid) == 19


def test_it_ends_when_it_is_told_to_also_in_the_middle_of_a_transfer(
    enrolled: Path,
    controller: ControllerDouble,
    start: Start,
    pack: Pack,
) -> None:
    controller.chunk, controller.chunk_s = 100, 0.05
    controller.want(WishedModel(name="digits", wanted=controller.offer(pack())))
    process = start()
    until(lambda: controller.sent_bytes > 100)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == 0


def test_an_expired_certificate_is_renewed_with_the_old_key(
    appliance: Run, enrolled: Path, controller: ControllerDouble
) -> None:
    before = (enrolled / "fleet" / "identity.pem").read_text()
    controller.expired = True
    assert appliance("sync", "once")[0] == 0
    after = (enrolled / "fleet" / "identity.pem").read_text()
    assert controller.renewals == 1
    key, certificate = before.split("-----BEGIN CERTIFICATE", 1)
    assert after.startswith(key)
    assert certificate not in after


@pytest.mark.parametrize("now_ms", [INT64_MAX, 253_402_300_799_000, 1])
def test_a_clock_of_the_controller_that_is_on_no_calendar_ends_nothing(
    appliance: Run, enrolled: Path, controller: ControllerDouble, config: Path, now_ms: int
) -> None:
    windows = 'windows = ["Mon-Sun 00:00-23:59 Europe/Berlin"]\n'
    config.write_text(f"[fleet]\nmonth_bytes = 9000000\n{windows}activation_{windows}", "utf-8")
    controller.now_ms = lambda: now_ms
    controller.want()
    for words in (("once",), ("once",), ("status",), ("explain",)):
        status, _, err = appliance("sync", *words)
        assert status == 0, err


def test_a_controller_from_a_backup_is_noticed_and_changes_nothing(
    appliance: Run,
    enrolled: Path,
    controller: ControllerDouble,
    pack: Pack,
) -> None:
    version = controller.offer(pack())
    controller.want()
    old = controller.metadata
    controller.want(WishedModel(name="digits", wanted=version))
    appliance("sync", "once")
    controller.metadata = old
    status, _, err = appliance("sync", "once")
    assert status == 1
    assert "went-back" in err
    assert wanted_in(enrolled) == 1
    assert controller.last is not None
    assert controller.last.problems[0].startswith("generation-went-back: ")


@pytest.mark.timeout(240)
@pytest.mark.parametrize("seed", range(3))
def test_killed_again_and_again_it_comes_to_the_same(
    enrolled: Path,
    controller: ControllerDouble,
    start: Start,
    pack: Pack,
    appliance: Run,
    seed: int,
) -> None:
    """Also while a person wants something else: he is never undone."""
    chance = random.Random(seed)
    first, second = controller.offer(pack()), controller.offer(pack(2))
    controller.chunk, controller.chunk_s = 4096, 0.002
    controller.want(WishedModel(name="digits", wanted=first), settings={"fleet.poll_s": 5})
    for turn in range(12):
        process = start()
        time.sleep(chance.uniform(0.05, 1.6))
        process.kill()
        process.wait()
        if turn == 6:
            controller.want(
                WishedModel(name="digits", wanted=second, prefetch=(first,), downgrade=True),
                settings={"fleet.poll_s": 5},
            )
    process = start()
    controller.wait(
        lambda: (report := told_of(controller)) and (report.wanted, report.installed) == (2, (1, 2)),
        limit_s=180,
    )
    process.kill()
    process.wait()
    status, out, _ = appliance("store", "check")
    assert status == 0, out
    model = catalog_in(enrolled).models[0]
    assert [each.version for each in model.versions] == [1, 2]
    assert model.managed
    assert not catalog_in(enrolled).holds


def test_why_a_version_of_the_machines_image_did_not_pass_its_start_is_told(
    appliance: Run, enrolled: Path, controller: ControllerDouble
) -> None:
    controller.want()
    note.leave(enrolled, "version 1.1 of the image did not pass its start: no answer")
    appliance("sync", "once")
    assert controller.last is not None
    assert controller.last.problems == ("version 1.1 of the image did not pass its start: no answer",)
    note.remove(enrolled)
    appliance("sync", "once")
    assert not controller.last.problems
