"""The pages for people: right without script, fresh with it, and nothing in them comes from anywhere else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import replace
from html import escape
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from appliance.core.rollout.records import Change, Ending
from appliance.core.rollout.version import Artifact
from appliance.fleet.membership import Membership
from appliance.frontend.http.model_page import model_main
from appliance.frontend.http.page import PageParts, framed
from appliance.frontend.http.spoken import spoken_time
from appliance.frontend.http.status_page import TITLE, model_rows, overview
from appliance.telemetry.meter import Result
from appliance.telemetry.notices import notices
from appliance.telemetry.recent import RecentFigures
from appliance.telemetry.snapshot import EngineStatus, ResidencyFigures, Snapshot
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.frontend.http.engine_figures import (
    AWKWARD_NAME,
    NO_HTTP,
    PYTHON_FRONT_END,
    busy_meter,
    made_up_status,
    made_up_store,
)

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


class _Cells(HTMLParser):
    """Text of the table cells, row by row, and every tag with its attributes."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._open = False
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self._open = True

    def handle_endtag(self, tag: str) -> None:
        if tag in ("td", "th"):
            self._open = False

    def handle_data(self, data: str) -> None:
        if self._open:
            self.rows[-1][-1] += data


def _snapshot(status: EngineStatus | None = None) -> Snapshot:
    memory = ResidencyFigures(budget_bytes=3 << 30, used_bytes=812 << 20, problems=("pins name <no> model",))
    engine = replace(made_up_status(), residency=memory) if status is None else status
    return Snapshot(engine=engine, front_end=PYTHON_FRONT_END, http=NO_HTTP)


def _page(snapshot: Snapshot | None = None, recent: RecentFigures | None = None) -> str:
    snapshot = snapshot or _snapshot()
    workers = {worker.worker: worker for worker in snapshot.engine.workers}
    rows = [model_rows(each, workers, recent or RecentFigures()) for each in snapshot.engine.versions]
    return framed(snapshot, PageParts.load(), TITLE, overview(snapshot, "".join(rows)))


CHANGE = Change(
    at_ms=0, name="busy", version=3, identity="busy/3", ending=Ending.ROLLED_BACK, before=1, after=1, took_ms=1_500,
    reason="no <b>, it fails " + "and why that is so " * 5, artifact=Artifact.PACKED,
)  # fmt: skip


def _model_page(snapshot: Snapshot, name: str, recent: RecentFigures, history: Sequence[Change] = ()) -> str:
    return framed(snapshot, PageParts.load(), name, model_main(snapshot, name, recent, history), "../")


def _busy_hour() -> tuple[EngineStatus, RecentFigures]:
    """Three looks at a version: five requests answered and two refused in ten seconds, then nothing."""
    recent, meter = RecentFigures(), busy_meter()
    status = made_up_status()
    for second, more in ((0, 0), (10, 5), (20, 0)):
        for _ in range(more):
            meter.succeeded(1, 1_000, (1_000, 700_000, 1_000), 800_000, 0)
        meter.ended_many(Result.REFUSED, 2 * (more > 0))
        busy = replace(status.versions[0], statistics=meter.frozen())
        status = replace(status, now_ns=(95 + second) * 10**9, versions=(busy, *status.versions[1:]))
        recent.take(status)
    return status, recent


def test_every_version_has_a_row_with_its_figures_its_trial_and_its_reason() -> None:
    head, busy, trial, idle, broken, reason = _Cells(_page()).rows
    shown = dict(zip(head, busy, strict=True))
    assert (shown["Model"], shown["State"], shown["Answered"]) == ("busy/3", "CANARY", "3")
    assert (shown["Refused"], shown["Failed"]) == ("3", "1")
    assert (shown["p50"], shown["p99"]) == ("875 \u00b5s", "10.00 s")
    assert (shown["Queued"], shown["Running"], shown["Batch"]) == ("5", "2", "3.00")
    assert shown["Worker (memory)"] == "4711 (30.0 MiB), starting"
    assert trial == [
        "On trial (canary): gets 10 % of the requests; 34 answered, 0 failed; held against version 1"
    ]
    assert idle[:2] == ["idle/1", "LOADING"]
    assert broken[:2] == [f"{AWKWARD_NAME}/1", "UNAVAILABLE"]
    assert reason == ["no <script> here; next try at 2027-01-15 08:00:00Z"]


def test_a_page_says_which_site_the_box_is_where_it_belongs_to_a_fleet() -> None:
    assert 'class="site"' not in _page()
    assert f"<title>{TITLE}</title>" in _page()
    north = Membership(device="north", url="https://c:1", group="sites")
    here = replace(_snapshot(), membership=north)
    for text, title in ((_page(here), TITLE), (_model_page(here, "busy", RecentFigures()), "busy")):
        assert '<span class="site">north, group sites</span>' in text
        assert f"<title>north: {title}</title>" in text
        assert f"<h1>{title}</h1>" in text
    alone = replace(_snapshot(), membership=Membership(device="north", url="https://c:1"))
    assert '<span class="site">north</span>' in _page(alone)


def test_every_cell_says_its_column_where_there_are_no_columns() -> None:
    found = _Cells(_page())
    labels = [attributes.get("data-label") for tag, attributes in found.tags if tag == "td"]
    heads = found.rows[0]
    assert labels[: len(heads)] == heads


def test_the_last_seconds_are_told_and_the_hour_is_drawn() -> None:
    status, recent = _busy_hour()
    head, busy, *_ = _Cells(_page(_snapshot(status), recent)).rows
    shown = dict(zip(head, busy, strict=True))
    assert shown["Rate"] == "0/s"
    assert recent.of("busy", 3)[0].answered == 0.5
    assert recent.of("busy", 3)[0].p50_us == 875
    assert _page(_snapshot(status), recent).count("<svg") == 1


def test_a_model_has_a_page_with_plots_of_every_version() -> None:
    status, recent = _busy_hour()
    text = _model_page(_snapshot(status), "busy", recent)
    assert "Version 3" in text
    assert 'href="../status.json"' in text
    labels = re.findall(r'aria-label="([^"]*)"', text)
    assert labels[0] == "Answered since 5 min 0 s ago: rate 0/s now; at most 0.5/s"
    assert [label.split(" since")[0] for label in labels] == [
        "Answered", "Latency", "Not answered", "Queued", "Batch",
    ]  # fmt: skip
    assert text.count('<path class="line') == 7


def test_a_version_without_plots_says_whether_it_was_asked() -> None:
    shown = {name: _model_page(_snapshot(), name, RecentFigures()) for name in ("busy", "idle")}
    assert "Nothing was asked" in shown["idle"]
    assert "Nothing was asked" not in shown["busy"]
    assert "Its first figures are drawn within 20 s." in shown["busy"]


def test_a_model_has_its_memory_golden_result_artefacts_and_history() -> None:
    history = [replace(CHANGE, at_ms=number * 1_000) for number in range(30)]
    store = made_up_store()
    text = _model_page(replace(_snapshot(), store=store), "busy", RecentFigures(), history)
    assert "<dd>30.0 MiB, of that weights 20.0 MiB</dd>" in text
    assert "<dd>5 cases: all as promised</dd>" in text
    assert "<dt>Packed form since</dt><dd>2023-11-14 22:28:20Z</dd>" in text
    assert "<dd>died 2</dd>" in text
    head, *rows = _Cells(text).rows
    assert head == ["When", "Version", "Ended", "Serving", "Took", "Why"]
    assert len(rows) == 20
    last = [
        "1970-01-01 00:00:29Z",
        "3 (packed form)",
        "rolled back",
        "1 \u2192 1",
        "1.50 s",
        CHANGE.reason,
    ]
    assert rows[0] == last
    assert "History" not in _model_page(_snapshot(), "busy", RecentFigures())


def test_a_version_that_clients_cannot_talk_to_shows_what_differs() -> None:
    text = _model_page(_snapshot(), AWKWARD_NAME, RecentFigures())
    assert _Cells(text).rows == [["Changed", "Was", "Is"], ["input 'x<y>'", "FP32 [-1, 64]", "not there"]]
    assert 'id="interface-1"' in text
    assert 'aria-labelledby="interface-1"' in text


def test_what_is_near_is_told() -> None:
    store = replace(made_up_store(), free_bytes=1 << 29, taken_bytes=1 << 30)
    near = replace(_snapshot(), store=store, wall_s=1_800_000_000.0)
    ends = {"grpc": 1_800_000_000 + 29 * 86_400, "http": 1_799_999_999, "far": 1_900_000_000}
    told = list(notices(replace(near, certificates=ends)))
    assert [each[:42] for each in told] == [
        "The certificate of grpc ends in 29 days, o",
        "The certificate of http ended on 2027-01-1",
        "The store's disk has 0.5 GiB left, and ins",
        "The store takes 1.0 GiB of the 1.0 GiB tha",
    ]
    text = _page(replace(near, certificates=ends))
    assert all(escape(each) in text for each in told)
    assert "<dt>Store</dt><dd>1.0 GiB of 1.0 GiB</dd>" in text
    assert not list(notices(_snapshot()))


def test_draining_and_what_is_wrong_stand_above_all() -> None:
    text = _page(_snapshot(replace(made_up_status(), accepting=False)))
    assert 'class="alert" role="status">draining: new requests belong elsewhere<' in text
    assert "pins name &lt;no&gt; model" in _page()


def test_the_memory_of_models_is_told() -> None:
    assert "<dd>812.0 MiB of 3.0 GiB</dd>" in _page()
    unbound = replace(made_up_status(), residency=ResidencyFigures(budget_bytes=1 << 62, used_bytes=1 << 20))
    assert "<dd>1.0 MiB</dd>" in _page(_snapshot(unbound))


def test_names_and_reasons_are_text_and_never_markup() -> None:
    text = _page()
    assert "back<b>" not in text
    assert text.count("<script>") == 1
    assert f"{AWKWARD_NAME}/1" in {row[0] for row in _Cells(text).rows}
    assert 'href="models/quo%22te%5Cback%3Cb%3E"' in text


def test_the_page_loads_nothing_from_anywhere() -> None:
    text = _page()
    for tag, attributes in _Cells(text).tags:
        assert tag not in ("iframe", "img", "object", "embed", "base", "form")
        for key in ("src", "href", "action", "style"):
            value = attributes.get(key) or ""
            assert key != "style" or not value, "the policy admits none"
            assert value == "data:," or not re.match(r"[a-z]+:|//", value), (tag, value)
    assert "http://" not in text
    assert "https://" not in text


def test_the_policy_admits_exactly_this_style_and_this_script() -> None:
    text = _page()
    policy = PageParts.load().content_security_policy()
    for tag in ("style", "script"):
        inside = text.split(f"<{tag}>", 1)[1].split(f"</{tag}>", 1)[0]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    ("seconds", "text"), [(9, "9 s"), (192, "3 min 12 s"), (7260, "2 h 1 min"), (352_800, "4 d 2 h")]
)
def test_time_for_people(seconds: int, text: str) -> None:
    assert spoken_time(seconds) == text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApplianceProcess]:
    root = tmp_path_factory.mktemp("models")
    for name in ("mlp", "not_onnx"):
        write_model(name, root)
    with ApplianceProcess(root) as process:
        process.wait_ready()
        tensor = {"name": "x", "shape": [1, 64], "datatype": "FP32", "data": [0.5] * 64}
        request = urllib.request.Request(
            f"http://{process.http}/v2/models/mlp/infer", json.dumps({"inputs": [tensor]}).encode()
        )
        with urllib.request.urlopen(request, timeout=20) as reply:
            assert reply.status == 200
        yield process


def test_the_daemon_serves_the_page_with_its_policy(server: ApplianceProcess) -> None:
    with urllib.request.urlopen(f"http://{server.http}/", timeout=20) as reply:
        assert reply.headers["Content-Security-Policy"] == PageParts.load().content_security_policy()
        assert reply.headers["Content-Type"] == "text/html; charset=utf-8"
        assert reply.headers["Cache-Control"] == "no-store"
        rows = _Cells(reply.read().decode()).rows
    assert [row[0] for row in rows[1:3]] == ["mlp/1", "not_onnx/1"]
    assert "not an ONNX model" in rows[3][0]


def test_the_daemon_serves_a_page_of_each_model(server: ApplianceProcess) -> None:
    with urllib.request.urlopen(f"http://{server.http}/models/not_onnx", timeout=20) as reply:
        text = reply.read().decode()
    assert "<h1>not_onnx</h1>" in text
    assert "not an ONNX model" in text
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(f"http://{server.http}/models/nope", timeout=20)
    with refused.value:
        assert refused.value.code == 404


def _dom(url: str, folder: Path) -> tuple[str, str]:
    """What a real browser made of ``url`` after a few seconds of its time, and what it complained about."""
    assert CHROMIUM is not None
    done = subprocess.run(
        [
            CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            "--enable-logging=stderr", "--virtual-time-budget=7000", f"--user-data-dir={folder}", "--dump-dom", url,
        ],
        capture_output=True,
        timeout=50,
        check=True,
    )  # fmt: skip
    return done.stdout.decode(), done.stderr.decode()


FRAME = """<!DOCTYPE html><iframe src="PLACE" width="WIDTH" height="800"></iframe><p id="told"></p><script>
onload = () => {
  const page = document.querySelector("iframe").contentDocument;
  const beyond = (each) => each.getBoundingClientRect().right > WIDTH + 0.5 && !each.closest("thead");
  const wide = [...page.querySelectorAll("td, th, dd, p, h1")].filter(beyond);
  const notes = [...page.querySelectorAll("tr.note div")];
  const split = [...page.querySelectorAll(".badge")].filter((each) => each.getBoundingClientRect().height > 32);
  const labels = [...page.querySelectorAll("td[data-label]")].filter((each) => {
    const label = page.defaultView.getComputedStyle(each, "::before");
    return parseFloat(label.height) > 2.5 * parseFloat(label.fontSize);
  });
  told.textContent = `${page.documentElement.scrollWidth} ${wide.length} wide, ${split.length + labels.length} broken`
    + `, ${notes.filter(beyond).length} of ${notes.length} notes`;
};
</script>"""


class _MadeUp(ThreadingHTTPServer):
    """Serves a page that was made up, as often as it is to; then it is broken."""

    def __init__(self, answers: int) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.left = answers


class _Handler(BaseHTTPRequestHandler):
    server: _MadeUp

    def do_GET(self) -> None:
        framing = re.match(r"/frame(\d+)", self.path)
        page = _model_page(_snapshot(), "busy", RecentFigures(), [CHANGE]) if "busy" in self.path else _page()
        self.server.left -= framing is None
        well = self.server.left >= 0
        self.send_response(200 if well else 503)
        self.end_headers()
        if framing:
            page = FRAME.replace("PLACE", self.path[framing.end() :]).replace("WIDTH", framing[1])
        self.wfile.write((page if well else "broken").encode())

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def made_up(request: pytest.FixtureRequest) -> Iterator[str]:
    """The address of a page that was made up, which is answered so often."""
    with _MadeUp(getattr(request, "param", 1_000)) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium found; install it to look at the pages")
@pytest.mark.parametrize("place", ["/", "/models/busy"])
def test_a_browser_shows_all_on_a_phone(made_up: str, tmp_path: Path, place: str) -> None:
    text, _ = _dom(f"{made_up}frame360{place}", tmp_path)
    told = re.search(r'id="told">(\d+) 0 wide, 0 broken, 0 of \d notes<', text)
    assert told is not None, text[-300:]
    assert int(told[1]) <= 360


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium found; install it to look at the pages")
def test_a_browser_shows_all_of_a_reason_beside_a_table_that_is_wider(made_up: str, tmp_path: Path) -> None:
    text, _ = _dom(f"{made_up}frame760/", tmp_path)
    told = re.search(r'id="told">\d+ (\d+) wide, 0 broken, 0 of 2 notes<', text)
    assert told is not None, text[-300:]
    assert int(told[1]) > 0, "the table fits"


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium found; install it to look at the pages")
@pytest.mark.parametrize("made_up", [1], indirect=True)
def test_a_browser_keeps_the_last_picture_and_says_that_it_is_old(made_up: str, tmp_path: Path) -> None:
    text, _ = _dom(made_up, tmp_path)
    assert '<body class="old">' in text
    told = re.search(r'id="stale" role="alert">([^<]*)<', text)
    assert told is not None
    assert re.fullmatch(r"The appliance answers with 503 .*\. This is what it showed \d+ s ago\.", told[1]), (
        told[1]
    )
    assert _Cells(text).rows == _Cells(_page()).rows


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium found; install it to look at the pages")
def test_a_browser_keeps_the_page_fresh(server: ApplianceProcess, tmp_path: Path) -> None:
    text, complaints = _dom(f"http://{server.http}/", tmp_path)
    assert re.search(r'id="fresh">refreshed \d', text)
    assert '<body class="old">' not in text
    head, mlp, broken, reason = _Cells(text).rows
    assert mlp[:2] == ["mlp/1", "READY"]
    assert mlp[head.index("Answered")] == "1"
    assert re.fullmatch(r"[\d.]+ (\u00b5s|ms|s)", mlp[head.index("p50")])
    assert str(server.status()["workers"][0]["pid"]) in mlp[head.index("Worker (memory)")]
    assert broken[:2] == ["not_onnx/1", "UNAVAILABLE"]
    assert "not an ONNX model" in reason[0]
    assert "Refused to" not in complaints
    assert "Content Security Policy" not in complaints
