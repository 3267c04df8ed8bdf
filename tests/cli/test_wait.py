"""Waiting until what was asked for serves: what is made of an appliance's status, and the bar."""

from __future__ import annotations

import io
import json
import os
import socketserver
import sys
import threading
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from http.server import BaseHTTPRequestHandler, HTTPServer
from itertools import count
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from appliance.cli.failure import CommandFailed, Exit
from appliance.cli.main import main
from appliance.cli.model import wait
from appliance.cli.rollout_progress import STEPS, Done, Failed, InProgress, progress_of
from appliance.cli.snapshot import parse, understood
from appliance.core.rollout.phase import ON_TRIAL
from appliance.core.rollout.reasons import Outlook
from appliance.engine.port import NEVER
from appliance.engine.versions.wording import STILL_PREVIOUS
from appliance.store.catalog_file import read_catalog
from appliance.store.running import RunningRecord
from appliance.telemetry.snapshot import TrialStatus
from appliance.workers.port import LoadStage
from tests.cli.conftest import Pack, Run
from tests.frontend.http.engine_figures import made_up_snapshot, status_document

Document = dict[str, Any]
FULL = (
    "waits for memory: it needs about 753.2 MB, and what could leave memory is in use and will not do so soon"
)
TRIAL = TrialStatus("loading", 1, 0.0, "", 0, 0, 0, 0)._asdict()


def document(*, generation: int = 1, **fields: Any) -> Document:
    """A status of one version, digits/1, which is loading unless ``fields`` say otherwise."""
    plain: Document = status_document(made_up_snapshot())
    entry = {**plain["models"][1], "name": "digits", "version": 1, "trial": TRIAL, **fields}
    plain["store"]["generation"] = generation
    return {**plain, "models": [entry]}


def loading(stage: str, done: int = 0, total: int = 0) -> Mapping[str, Any]:
    return {"stage": stage, "done_bytes": done, "total_bytes": total}


def at(found: Document, *, trial: bool = False) -> Any:
    return progress_of(found, "digits", 1, 1, trial=trial)


def test_every_stage_has_its_place_in_order() -> None:
    assert list(STEPS) == [
        "waiting",
        *(s.value for s in LoadStage if s is not LoadStage.BUILDING),  # of a packed form, beside what serves
        *sorted((phase.value for phase in ON_TRIAL), reverse=True),
    ]
    shares = [share for share, _ in STEPS.values()]
    assert shares == sorted(set(shares))
    assert at(document()) == InProgress(share=0.0, text="waits for its turn")
    half = at(document(loading=loading("reading", 5 << 20, 10 << 20)))
    assert half.text == "reads the weights: 5.0 MiB of 10.0 MiB"
    assert at(document(loading=loading("reading"))).share < half.share < STEPS["session"][0]
    assert at(document(loading=loading("golden"))) == InProgress(share=STEPS["golden"][0], text="golden set")


def test_who_waits_is_told_that_the_configured_trial_was_left_out() -> None:
    why = "its inputs are not those of version 1"
    found = at(document(state="READY", reason="", untried=why))
    assert found == Done(text="is live", remark=f"went live without the configured trial: {why}")
    assert at(document(state="READY", reason="")) == Done(text="is live")


def test_a_trial_is_the_end_for_whoever_asked_for_it_alone() -> None:
    found = document(state="READY", trial={**TRIAL, "stage": "canary", "percent": 10.0, "answered": 34})
    text = "canary: 10 % of the requests, 34 answered, 0 failed"
    assert at(found) == InProgress(share=STEPS["canary"][0], text=text)
    assert at(found, trial=True) == Done(text=f"is on trial ({text})")
    shadow = document(trial={**TRIAL, "stage": "shadow", "percent": 5.0, "compared": 3, "differing": 1})
    assert at(shadow).text == "shadow: 5 % of the requests, 3 answers compared, 1 different"


@pytest.mark.parametrize(
    ("header", "text"),
    [
        ("", "100 % of the requests"),
        ("x-c", "100 % of the clients by x-c"),
        ("x-c: yes", "requests with x-c: yes"),
    ],
)
def test_status_and_the_end_of_waiting_say_the_same_of_a_trial(header: str, text: str) -> None:
    found = document(
        trial={**TRIAL, "stage": "canary", "before": 7, "percent": 100.0, "header": header, "failed": 2}
    )
    said = f"{text}, 0 answered, 2 failed"
    assert at(found, trial=True) == Done(text=f"is on trial (canary: {said})")
    assert parse(json.dumps(found).encode(), "there").models[0].trial == f"canary, after version 7, {said}"


def test_how_it_ends() -> None:
    assert at(document(state="READY", trial=None)) == Done(text="is live")
    assert at(document(state="UNAVAILABLE", reason="too slow")) == Failed(reason="too slow")
    assert at(document(state="UNLOADING", reason="")) == Failed(reason="it is unloading")
    assert "another change" in at(document(name="other")).reason


def test_whoever_waits_is_told_for_what() -> None:
    assert at(document(reason=FULL)) == InProgress(share=0.0, text=FULL)
    assert at(document(reason="waits", loading=loading("golden"))).text == "golden set"


def test_whoever_waits_for_what_can_never_be_is_told_at_once() -> None:
    never = "can never fit into memory: it needs about 101.7 MB, and residency.budget_bytes is 30.0 MB"
    assert at(document(reason=never, waiting=NEVER)) == Failed(reason=never)


def test_the_previous_file_is_not_what_was_asked_for() -> None:
    still = STILL_PREVIOUS
    waits = f"{still} waits for memory: another version is tried above the budget"
    waiting: dict[str, Any] = {"state": "READY", "reason": waits, "outlook": Outlook.SUCCESSOR_WAITS}
    assert at(document(**waiting, waiting="memory")) == InProgress(share=0.0, text=waits)
    assert at(document(**waiting, waiting=NEVER)) == Failed(reason=waits)
    for end in ("failed: golden case 'a'", "was rolled back: it crashed"):
        reason = f"{still} {end}"
        found = at(document(state="READY", reason=reason, outlook=Outlook.SUCCESSOR_FAILED))
        assert found == Failed(reason=reason)


def test_what_was_before_the_catalog_was_seen_does_not_count() -> None:
    old = document(generation=0, state="UNAVAILABLE", reason="it failed last week")
    assert isinstance(at(old), InProgress)
    old["store"]["trouble"] = "the disk is gone"
    assert at(old).text.endswith("the disk is gone")


@pytest.fixture
def serving(state: Path) -> Iterator[RunningRecord]:
    """Hold the store as a daemon does that serves from it."""
    state.mkdir(exist_ok=True)
    with closing(RunningRecord(state)) as record:
        record.publish([])
        yield record


@pytest.fixture
def answering_anyhow() -> Iterator[Callable[[Sequence[Document]], str]]:
    """Serve these documents one after the other, the last one for ever; gives the address."""
    servers: list[HTTPServer] = []

    def start(documents: Sequence[Document]) -> str:
        left = list(documents)

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                found = left.pop(0) if len(left) > 1 else left[0]
                self.send_response(200)
                self.end_headers()
                self.wfile.write(json.dumps(found).encode())

            def log_message(self, *_: object) -> None:
                pass

        server = HTTPServer(("127.0.0.1", 0), Handler)
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        return f"127.0.0.1:{server.server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


Answering = Callable[[Sequence[Document]], str]


@pytest.fixture
def answering(answering_anyhow: Answering, serving: RunningRecord) -> Answering:
    """As an appliance that serves from the store."""
    return answering_anyhow


def test_the_command_ends_when_it_is_live(appliance: Run, pack: Pack, answering: Answering) -> None:
    url = answering([document(), document(loading=loading("session")), document(state="READY")])
    status, out, err = appliance("model", "install", str(pack()), "--wait", "--url", url)
    assert (status, err) == (Exit.OK, "")
    assert out.splitlines()[1].startswith("digits/1 is live after ")


def test_where_to_ask_is_what_the_configuration_says(
    appliance: Run, pack: Pack, answering: Answering, config: Path
) -> None:
    port = answering([document(state="READY")]).rpartition(":")[2]
    with config.open("a") as file:
        file.write(f'[http]\naddresses = ["unix:/x", "0.0.0.0:{port}"]\n')
    status, out, err = appliance("model", "install", str(pack()), "--wait")
    assert (status, "digits/1 is live after" in out) == (Exit.OK, True), err


def test_an_appliance_may_answer_on_a_unix_socket(
    appliance: Run, pack: Pack, config: Path, tmp_path: Path, serving: RunningRecord
) -> None:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(document(state="READY")).encode())

        def log_message(self, *_: object) -> None:
            pass

    path = tmp_path / "http"
    with config.open("a") as file:
        file.write(f'[http]\naddresses = ["unix:{path}"]\n')
    with socketserver.UnixStreamServer(str(path), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        try:
            status, out, err = appliance("model", "install", str(pack()), "--wait")
            assert (status, "digits/1 is live after" in out) == (Exit.OK, True), err
            status, out, err = appliance("model", "list", "--json")
            assert (status, json.loads(out)["answering"]) == (Exit.OK, True), err
        finally:
            server.shutdown()
    status, _, err = appliance("model", "install", str(pack(2)), "--wait")
    assert status == Exit.UNREACHABLE
    assert f"no server answers at unix:{path}" in err


def test_the_command_fails_with_the_reason(appliance: Run, pack: Pack, answering: Answering) -> None:
    appliance("model", "install", str(pack()))
    url = answering(
        [document(generation=2), document(generation=2, state="UNAVAILABLE", reason="golden case 'a'")]
    )
    status, out, err = appliance("model", "want", "digits/1", "--wait", "--url", url)
    assert (status, out) == (Exit.REFUSED, "digits/1 is wanted already; nothing was changed\n")
    assert "digits/1 does not go live: golden case 'a'" in err
    for reason, said in (("", "waits for its turn"), ("waits for memory", "waits for memory")):
        url = answering([document(generation=2, reason=reason)])
        words = ("model", "want", "digits/1", "--wait", "--url", url, "--timeout", "0.05")
        status, _, err = appliance(*words)
        assert status == Exit.REFUSED
        assert f"digits/1 is not live after 0.05 s: {said}; it stays asked for" in err


def of_another_process(**fields: Any) -> Document:
    found = document(**fields)
    return {**found, "server": {**found["server"], "pid": os.getpid() + 1}}


@pytest.mark.parametrize("other", [of_another_process(state="READY"), {**document(), "store": None}])
def test_nothing_is_changed_and_nothing_listed_by_the_word_of_another_appliance(
    appliance: Run, pack: Pack, state: Path, answering: Answering, other: Document
) -> None:
    appliance("model", "install", str(pack()))
    url = answering([other])
    status, out, err = appliance("model", "install", str(pack(2)), "--wait", "--url", url)
    assert (status, out) == (Exit.UNREACHABLE, "")
    assert f"is not the 'serve' that has the store in '{state}'" in err
    status, out, _ = appliance("model", "list", "--json", "--url", url)
    told = json.loads(out)
    assert (status, told["answering"]) == (Exit.OK, False)
    assert [(each["version"], each["state"]) for each in told["versions"]] == [(1, "")]
    assert "States are unknown" in appliance("model", "list", "--url", url)[1]


def test_a_store_that_nobody_serves_from_has_no_figures(
    appliance: Run, pack: Pack, answering_anyhow: Answering, state: Path
) -> None:
    appliance("model", "install", str(pack()))
    url = answering_anyhow([document(state="READY")])
    told = appliance("model", "list", "--url", url)[1]
    assert f"no 'serve' has the store in '{state}'" in told
    assert "resident" not in told


def test_what_is_not_known_is_not_told_as_a_failure(appliance: Run, pack: Pack, answering: Answering) -> None:
    appliance("model", "install", str(pack()), str(pack(2)))
    url = answering([document(generation=9), of_another_process(name="other")])
    status, out, err = appliance("model", "rollback", "digits", "--wait", "--url", url)
    assert (status, "digits/1 is wanted again" in out) == (Exit.UNREACHABLE, True)
    assert "whether digits/1 goes live is not known" in err
    assert "does not go live" not in err


def test_a_trial_that_does_not_begin_is_told_as_that(
    appliance: Run, pack: Pack, answering: Answering
) -> None:
    appliance("model", "install", str(pack(2)))
    appliance("model", "install", "--no-want", "--downgrade", str(pack()))
    words = ("model", "trial", "digits/1", "--canary", "5", "--timeout", "0.05", "--wait", "--url")
    status, out, err = appliance(*words, answering([document(generation=9)]))
    assert (status, out) == (Exit.REFUSED, "digits/1 is to be on trial\n")
    assert "digits/1 is not on trial after 0.05 s: waits for its turn" in err
    failed = document(generation=9, state="UNAVAILABLE", reason="golden case 'a'")
    status, _, err = appliance(*words, answering([failed]))
    assert (status, "digits/1 does not go on trial: golden case 'a'" in err) == (Exit.REFUSED, True)


def test_the_time_is_for_all_that_is_installed(
    state: Path, answering: Answering, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a clock of which each look takes a second."""
    ticks = count()
    monkeypatch.setattr(wait, "time", SimpleNamespace(monotonic=lambda: next(ticks), sleep=lambda _: None))
    slow = [document(), document(), document(), document(state="READY"), document(name="other")]
    tls = {"ca": None, "cert": None, "key": None, "server_name": ""}
    arguments = Namespace(wait=True, url=answering(slow), timeout=6.0, state_dir=state, config=None, **tls)
    with pytest.raises(CommandFailed, match="other/1 is not live after 6 s"):
        wait.wait_for(arguments, {"digits": 1, "other": 1}, 1)
    assert next(ticks) < 12


@pytest.mark.parametrize("text", [b"hello", b"[]", b"{}", b'{"format": 1}', b'{"format": 1, "store": 5}'])
def test_whoever_else_answers_is_no_appliance(text: bytes) -> None:
    with pytest.raises(CommandFailed, match="is not the HTTP port of an appliance") as failure:
        understood(text, "there", lambda found: progress_of(found, "digits", 1, 1, trial=False))
    assert failure.value.status == Exit.UNREACHABLE


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("ten", "'ten' is no number of seconds"),
        ("0", "must be from"),
        ("nan", "'nan' is no number of seconds"),
    ],
)
@pytest.mark.parametrize(
    "words", [["model", "want", "m/1", "--state-dir", "s", "--timeout"], ["top", "--interval"]]
)
def test_what_is_no_time_is_told_readably(
    words: list[str], text: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, text])
    assert ended.value.code == Exit.USAGE
    told = capsys.readouterr().err
    assert (said in told, "_seconds" in told) == (True, False)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["infer", "m", "--timeout-ms"], "'x' is no number of milliseconds"),
        (["infer", "m", "--classes"], "'x' is no whole number"),
        (["model", "golden", "m", "--promise"], "'x' is no whole number"),
        (["model", "bench", "m", "--rows"], "'x' is no whole number"),
        (["model", "history", "--after"], "'x' is no whole number"),
        (["model", "golden", "m", "--absolute"], "'x' is no number"),
        (["controller", "token", "d", "--hours"], "'x' is no whole number"),
        (["fleet", "logs", "--most"], "'x' is no whole number"),
        (
            ["fleet", "want", "m=1", "--group", "g", "--prefetch"],
            "'x' is no version; give 1 to 9223372036854775807",
        ),
    ],
)
def test_what_is_no_number_is_told_readably(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words, "x"])
    assert ended.value.code == Exit.USAGE
    assert capsys.readouterr().err.endswith(f"{words[-1]}: {said}\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["logs", "--most", "0"], "--most: must be at least 1"),
        (["token", "--hours", "8785"], "--hours: must be from 1 to 8784"),
        (
            ["want", "m=1", "--group", "g", "--trial", "2", "--percent", "101"],
            "--percent: must be from 0 to 100",
        ),
    ],
)
def test_what_a_controller_would_refuse_is_told_before_it_is_asked(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["fleet", *words])
    assert ended.value.code == Exit.USAGE
    assert capsys.readouterr().err.endswith(f"{said}\n")


def test_how_long_to_wait_without_waiting_is_refused(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", str(pack()), str(pack(2)))
    before = read_catalog(state)
    for words in (
        ("want", "digits/1"),
        ("rollback", "digits"),
        ("trial", "digits/1", "--canary", "5"),
        ("install", str(pack(3))),
    ):
        status, _, err = appliance("model", *words, "--timeout", "600")
        assert (status, "--timeout is for --wait: give --wait as well" in err) == (Exit.USAGE, True), words
    assert read_catalog(state) == before


def test_the_end_of_a_trial_is_not_waited_for(appliance: Run, pack: Pack, state: Path) -> None:
    appliance("model", "install", str(pack()))
    status, _, err = appliance("model", "trial", "digits", "--stop", "--wait")
    assert (status, "leave out --stop" in err) == (Exit.USAGE, True)


def test_nothing_is_changed_where_nobody_answers(appliance: Run, pack: Pack, state: Path) -> None:
    words = ("model", "install", str(pack()), "--wait", "--url", "127.0.0.1:1")
    assert appliance(*words)[0] == Exit.UNREACHABLE
    assert not state.exists()
    status, _, err = appliance("model", "install", str(pack()), "--wait", "--no-want")
    assert (status, "leave out --no-want" in err) == (Exit.USAGE, True)


class Screen(io.StringIO):
    """A terminal that remembers all that was written."""

    def isatty(self) -> bool:
        return True


def test_who_watches_sees_a_bar(
    appliance: Run,
    pack: Pack,
    state: Path,
    config: Path,
    answering: Answering,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    appliance("model", "install", str(pack()))
    reading = document(generation=9, loading=loading("reading", 5 << 20, 10 << 20))
    full, ready = document(generation=9, reason=FULL), document(generation=9, state="READY")
    url = answering([reading] * 3 + [full] * 3 + [ready])
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    monkeypatch.setattr(sys, "stderr", screen)
    words = [
        "model",
        "want",
        "digits/1",
        "--state-dir",
        str(state),
        "--config",
        str(config),
        "--wait",
        "--url",
        url,
    ]
    assert main(words) == Exit.OK
    shown = screen.getvalue()
    assert "digits/1" in shown
    assert "reads the weights: 5.0 MiB of 10.0 MiB" in shown
    lines = [line for line in shown.splitlines() if "waits for memory" in line]
    assert lines
    assert all("digits/1" in line for line in lines)
    assert all(word in shown for word in FULL.split()), "what does not fit goes on in the next line"
