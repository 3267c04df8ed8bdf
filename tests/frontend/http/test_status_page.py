"""The status page: right without script, fresh with it, and nothing in it comes from anywhere else."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
import threading
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from appliance.frontend.http.status_page import PageParts, model_rows, page_text, spoken_bytes, spoken_time
from appliance.telemetry.snapshot import EngineStatus, ResidencyFigures, Snapshot
from appliance.telemetry.status_document import status_document
from models.generate import write_model
from tests.appliance_process import ApplianceProcess
from tests.frontend.http.engine_figures import AWKWARD_NAME, NO_HTTP, PYTHON_FRONT_END, made_up_status

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


def _status() -> EngineStatus:
    memory = ResidencyFigures(budget_bytes=3 << 30, used_bytes=812 << 20, problems=("pins name <no> model",))
    return replace(made_up_status(), residency=memory)


def _made_up_page() -> str:
    status = _status()
    workers = {worker.worker: worker for worker in status.workers}
    return page_text(
        status, "".join(model_rows(version, workers) for version in status.versions), PageParts.load()
    )


def test_every_version_has_a_row_with_its_figures_and_its_reason() -> None:
    head, busy, idle, broken, reason = _Cells(_made_up_page()).rows
    shown = dict(zip(head, busy, strict=True))
    assert (shown["Model"], shown["Version"], shown["State"], shown["Answered"]) == (
        "busy",
        "3",
        "READY",
        "3",
    )
    assert (shown["p50"], shown["p99"]) == ("875 \u00b5s", "10.00 s")
    assert (shown["Queued"], shown["Running"], shown["Batch"]) == ("5", "2", "3.00")
    assert shown["Worker (memory)"] == "4711 (30 MiB), 0 (0 B)"
    assert idle[:3] == ["idle", "1", "LOADING"]
    assert broken[:3] == [AWKWARD_NAME, "1", "UNAVAILABLE"]
    assert reason == ["no <script> here; next try at 2027-01-15 08:00:00Z"]


def _spoken(text: str) -> tuple[str, ...]:
    """What the page says of the memory that models take."""
    return tuple(re.findall(r'id="(?:residency|problems)">([^<]*)<', text))


def test_the_memory_of_models_is_told_and_what_cannot_be_as_it_is_configured() -> None:
    assert _spoken(_made_up_page()) == ("pins name &lt;no&gt; model", "812 MiB of 3.0 GiB")
    unbound = replace(made_up_status(), residency=ResidencyFigures(budget_bytes=1 << 62, used_bytes=1 << 20))
    assert _spoken(page_text(unbound, "", PageParts.load())) == ("", "1.0 MiB")


def test_names_and_reasons_are_text_and_never_markup() -> None:
    text = _made_up_page()
    assert "<b>" not in text
    assert text.count("<script>") == 1
    assert AWKWARD_NAME in {row[0] for row in _Cells(text).rows}


def test_the_page_loads_nothing_from_anywhere() -> None:
    text = _made_up_page()
    for tag, attributes in _Cells(text).tags:
        assert tag not in ("iframe", "img", "object", "embed", "base", "form")
        for key in ("src", "href", "action"):
            value = attributes.get(key) or ""
            assert value == "data:," or not re.match(r"[a-z]+:|//", value), (tag, value)
    assert "http://" not in text
    assert "https://" not in text


def test_the_policy_admits_exactly_this_style_and_this_script() -> None:
    text = _made_up_page()
    policy = PageParts.load().content_security_policy()
    for tag in ("style", "script"):
        inside = text.split(f"<{tag}>", 1)[1].split(f"</{tag}>", 1)[0]
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{tag}-src 'sha256-{digest}';" in policy
    assert policy.startswith("default-src 'none';")
    assert "unsafe" not in policy


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (30 << 20, "30 MiB"), (5 << 50, "5120 TiB")],
)
def test_bytes_for_people(count: int, text: str) -> None:
    assert spoken_bytes(count) == text


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
    assert [row[0] for row in rows[1:3]] == ["mlp", "not_onnx"]
    assert "not an ONNX model" in rows[3][0]


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


@pytest.fixture
def made_up() -> Iterator[str]:
    """The address of a page that was made up, with its document."""
    snapshot = Snapshot(engine=_status(), front_end=PYTHON_FRONT_END, http=NO_HTTP)
    document = json.dumps(status_document(snapshot)).encode()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(document if self.path == "/status.json" else _made_up_page().encode())

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}/"
        server.shutdown()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium found; install it to look at the status page")
def test_a_browser_tells_reasons_as_the_page_did(made_up: str, tmp_path: Path) -> None:
    text, _ = _dom(made_up, tmp_path)
    assert re.search(r'id="fresh">refreshed \d', text)
    assert _spoken(text) == _spoken(_made_up_page())
    reason = _Cells(text).rows[-1]
    assert (
        reason == ["no <script> here; next try at 2027-01-15 08:00:00Z"] == _Cells(_made_up_page()).rows[-1]
    )


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium found; install it to look at the status page")
def test_a_browser_keeps_the_page_fresh(server: ApplianceProcess, tmp_path: Path) -> None:
    text, complaints = _dom(f"http://{server.http}/", tmp_path)
    assert re.search(r'id="fresh">refreshed \d', text)
    head, mlp, broken, reason = _Cells(text).rows
    assert mlp[:3] == ["mlp", "1", "READY"]
    assert mlp[head.index("Rate")] == "0.0/s"
    assert mlp[head.index("Answered")] == "1"
    assert re.fullmatch(r"[\d.]+ (\u00b5s|ms|s)", mlp[head.index("p50")])
    assert str(server.status()["workers"][0]["pid"]) in mlp[head.index("Worker (memory)")]
    assert broken[:3] == ["not_onnx", "1", "UNAVAILABLE"]
    assert "not an ONNX model" in reason[0]
    assert "Refused to" not in complaints
    assert "Content Security Policy" not in complaints
