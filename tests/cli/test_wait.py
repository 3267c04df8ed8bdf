"""Waiting until what was asked for serves: what is made of an appliance's status, and the bar."""

from __future__ import annotations

import io
import json
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from appliance.cli.failure import Exit
from appliance.cli.going_live import STEPS, Arrived, OnItsWay, Stranded, whereabouts
from appliance.cli.main import main
from appliance.engine.trial import TRYING
from appliance.http.status_document import status_document
from appliance.workers.port import LoadStage
from tests.cli.conftest import Pack, Run
from tests.http.engine_figures import made_up_status, made_up_store

Document = dict[str, Any]
TRIAL = {
    "stage": "loading",
    "before": 1,
    "percent": 0.0,
    "answered": 0,
    "failed": 0,
    "compared": 0,
    "differing": 0,
}


def document(*, generation: int = 1, **fields: Any) -> Document:
    """A status of one version, digits/1, which is loading unless ``fields`` say otherwise."""
    plain: Document = json.loads(json.dumps(status_document(made_up_status(), made_up_store())))
    entry = {**plain["models"][1], "name": "digits", "version": 1, "trial": TRIAL, **fields}
    plain["store"]["generation"] = generation
    return {**plain, "models": [entry]}


def loading(stage: str, done: int = 0, total: int = 0) -> Mapping[str, Any]:
    return {"stage": stage, "done_bytes": done, "total_bytes": total}


def at(found: Document, *, trial: bool = False) -> Any:
    return whereabouts(found, "digits", 1, 1, trial=trial)


def test_every_stage_has_its_place_in_order() -> None:
    assert list(STEPS) == [
        "waiting",
        *(s.value for s in LoadStage),
        *sorted((s.value for s in TRYING), reverse=True),
    ]
    shares = [share for share, _ in STEPS.values()]
    assert shares == sorted(set(shares))
    assert at(document()) == OnItsWay(share=0.0, text="waits for its turn")
    half = at(document(loading=loading("reading", 5 << 20, 10 << 20)))
    assert half.text == "reads the weights: 5.0 MiB of 10.0 MiB"
    assert at(document(loading=loading("reading"))).share < half.share < STEPS["session"][0]
    assert at(document(loading=loading("golden"))) == OnItsWay(share=STEPS["golden"][0], text="golden set")


def test_a_trial_is_the_end_for_whoever_asked_for_it_alone() -> None:
    found = document(trial={**TRIAL, "stage": "canary", "percent": 10.0, "answered": 34})
    text = "canary: 10 % of the requests, 34 answered, 0 failed"
    assert at(found) == OnItsWay(share=STEPS["canary"][0], text=text)
    assert at(found, trial=True) == Arrived(text=f"is on trial, {text}")
    shadow = document(trial={**TRIAL, "stage": "shadow", "percent": 5.0, "compared": 3, "differing": 1})
    assert at(shadow).text == "shadow: 5 % of the requests, 3 answers compared, 1 different"


def test_how_it_ends() -> None:
    assert at(document(state="READY", trial=None)) == Arrived(text="is live")
    assert at(document(state="UNAVAILABLE", reason="too slow")) == Stranded(reason="too slow")
    assert at(document(state="UNLOADING", reason="")) == Stranded(reason="it is unloading")
    assert "another change" in at(document(name="other")).reason
    assert "a directory, not a store" in at({**document(), "store": None}).reason


def test_what_was_before_the_catalog_was_seen_does_not_count() -> None:
    old = document(generation=0, state="UNAVAILABLE", reason="it failed last week")
    assert isinstance(at(old), OnItsWay)
    old["store"]["trouble"] = "the disk is gone"
    assert at(old).text.endswith("the disk is gone")


@pytest.fixture
def answering() -> Iterator[Callable[[Sequence[Document]], str]]:
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


def test_the_command_ends_when_it_is_live(appliance: Run, pack: Pack, answering: Answering) -> None:
    url = answering([document(), document(loading=loading("session")), document(state="READY")])
    status, out, err = appliance("model", "install", str(pack()), "--wait", "--url", url)
    assert (status, err) == (Exit.OK, "")
    assert out.splitlines()[1].startswith("digits/1 is live after ")


def test_the_command_fails_with_the_reason(appliance: Run, pack: Pack, answering: Answering) -> None:
    appliance("model", "install", str(pack()))
    url = answering(
        [document(generation=2), document(generation=2, state="UNAVAILABLE", reason="golden case 'a'")]
    )
    status, out, err = appliance("model", "want", "digits/1", "--wait", "--url", url)
    assert (status, out) == (Exit.REFUSED, "digits/1 is wanted already; nothing was changed\n")
    assert "digits/1 does not go live: golden case 'a'" in err
    url = answering([document(generation=2)])
    status, _, err = appliance("model", "want", "digits/1", "--wait", "--url", url, "--timeout", "0.05")
    assert status == Exit.REFUSED
    assert "digits/1 is not live after 0.05 s: waits for its turn; it stays asked for" in err


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
    url = answering([document(loading=loading("reading", 5 << 20, 10 << 20))] * 3 + [document(state="READY")])
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
