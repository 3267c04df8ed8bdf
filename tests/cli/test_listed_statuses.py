"""The exit statuses that the help of a command lists are those that it gives: each is brought about, here or, as 4 and
5 of ``fleet want``, ``rollouts`` and ``compare``, in the tests of its package. That none gives another one,
``tests/conftest.py`` has every test see to."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from appliance.cli.endpoint import ENVIRONMENT
from appliance.cli.failure import ALWAYS, Exit
from appliance.cli.fleet.session import PROFILE, Profile, write_profile
from appliance.cli.main import TABLE, main
from appliance.controller.home import Settings, make_home
from appliance.daemon.daemon import EXIT_SOFTWARE
from appliance.durable import WriterLock
from appliance.store.layout import CATALOG, FLEET
from appliance.sync.identity import CONTROLLER, LOCK
from appliance.sync.trust_file import FIRST_ROOT
from tests.cli.test_exit_statuses import commands
from tests.conftest import Serve
from tests.controller.api.desk import START_MS, Desk

REFUSED: dict[str, str] = {
    "infer": "none --zeros",
    "status": "none",
    "top": "none --once",
    "trace": "--file empty",
    "config": "check broken",
    "model pack": "broken",
    "model verify": "broken",
    "model inspect": "broken",
    "model import": "broken --name m",
    "model sign": "broken --key key",
    "model install": "broken --state-dir made --allow-unsigned",
    "model uninstall": "none --state-dir damaged",
    "model want": "none/1 --state-dir damaged",
    "model list": "none",
    "model history": "none --state-dir other",
    "model rollback": "none --state-dir damaged",
    "model trial": "none/1 --canary 10 --state-dir damaged",
    "model load": "none --socket control",
    "model unload": "none --socket control",
    "model pin": "none/1 --state-dir damaged",
    "model unpin": "none/1 --state-dir damaged",
    "model resume": "none --state-dir damaged",
    "model golden": "broken",
    "model bench": "broken",
    "model optimise": "broken --out variants",
    "store check": "--state-dir damaged",
    "store gc": "--state-dir damaged",
    "store usage": "--state-dir damaged",
    "store scrub": "--state-dir damaged",
    "runtime check": "onnx --model other",
    "fleet root keys": "keys",
    "fleet root make": "--key key.pub --threshold 2 --online keys",
    "fleet root sign": "broken --key key",
    "fleet root show": "broken",
    "fleet root publish": "broken --controller controller",
    "sync": "--state-dir member",
    "sync enrol": "TOKEN --state-dir member",
    "sync once": "--state-dir member",
    "sync status": "--state-dir member",
    "sync explain": "none --state-dir member",
    "bundle export": "out --controller controller",
    "bundle import": "broken --controller controller",
    "bundle inspect": "broken",
    "image status": "",
    "image update": "none",
    "image rollback": "",
    "image factory-reset": "",
    "image check": "--within 1 --url 127.0.0.1:1",
    "image configure": "broken",
    "image settle": "",
}
FLEET_WORDS: dict[str, str] = {
    "fleet devices": "",
    "fleet facts": "",
    "fleet compare": "m",
    "fleet groups": "",
    "fleet releases": "",
    "fleet release": "broken",
    "fleet want": "m=1 --group g",
    "fleet rollout": "m=1 --wave g",
    "fleet rollouts": "",
    "fleet setting": "a=1 --group g",
    "fleet logs": "",
    "fleet drift": "",
    "fleet token": "",
    "fleet group": "d g",
    "fleet revoke": "d",
    "fleet resume": "",
    "fleet audit": "",
    "fleet tokens": "",
    "fleet audit-check": "",
}
"""Each is refused where who asks is not known, and nobody answers where no controller is."""


NOBODY_THERE: dict[str, str] = {
    "infer": "m --zeros --url 127.0.0.1:1",
    "status": "--url 127.0.0.1:1",
    "top": "--url 127.0.0.1:1",
    "model install": "broken --state-dir damaged --wait --url 127.0.0.1:1",
    "model want": "m/1 --state-dir damaged --wait --url 127.0.0.1:1",
    "model list": "--url 127.0.0.1:1",
    "model rollback": "m --state-dir damaged --wait --url 127.0.0.1:1",
    "model trial": "m/1 --canary 10 --state-dir damaged --wait --url 127.0.0.1:1",
    "model load": "m --socket none",
    "model unload": "m --socket none",
    "fleet login": "https://127.0.0.1:1",
    "sync enrol": "TOKEN --state-dir fresh",
    **FLEET_WORDS,
}
ELSEWHERE: dict[str, set[int]] = {
    "fleet compare": {Exit.STOPPED, Exit.OVERDUE},
    "fleet want": {Exit.STOPPED, Exit.OVERDUE},
    "fleet rollouts": {Exit.STOPPED, Exit.OVERDUE},
    "serve": {Exit.BROKEN},
    "sync once": {Exit.UNREACHABLE},
}
"""What other tests bring about."""


def statuses_of(words: str, capsys: pytest.CaptureFixture[str]) -> set[int]:
    """Those that the help of a command lists, besides what any may give."""
    with pytest.raises(SystemExit):
        main([*words.split(), "--help"])
    listed = capsys.readouterr().out.partition("exit status:")[2]
    return set(map(int, re.findall(r"^  (\d+) ", listed, re.MULTILINE))) - ALWAYS


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    with Desk(tmp_path / "desk") as found:
        found.now_ms = START_MS
        yield found


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Path:
    """A directory to work in: files and stores with which something is wrong."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv(ENVIRONMENT, raising=False)
    monkeypatch.setenv(PROFILE, str(tmp_path / "profile.json"))
    monkeypatch.setattr("sys.stdin", io.StringIO("a:b\n"))
    Path("broken").write_bytes(b"broken")
    Path("empty").touch()
    for name in ("other/1/model.onnx", f"damaged/{CATALOG}", f"member/{CATALOG}"):
        Path(name).parent.mkdir(parents=True)
        Path(name).write_bytes(b"{")
    (Path("member") / FLEET).mkdir()
    (Path("member") / FLEET / CONTROLLER).write_text('{"device": "d", "url": "https://127.0.0.1:1"}')
    assert main(["model", "keygen", "key"]) == Exit.OK
    assert main(["fleet", "root", "keys", "keys"]) == Exit.OK
    make_home(Path("controller"), Settings(url="https://127.0.0.1:1", address="127.0.0.1:0"), (), (), 0)
    get = ["fleet", "root", "get", "--controller", "controller", "-o", f"member/{FLEET}/{FIRST_ROOT}"]
    assert main(get) == Exit.OK
    capsys.readouterr()
    return tmp_path


def test_the_help_of_each_command_lists_what_is_brought_about(capsys: pytest.CaptureFixture[str]) -> None:
    known = {" ".join(words) for words in commands()} | {"sync"}
    for words in known:
        given = {Exit.REFUSED} if words in {**REFUSED, **FLEET_WORDS, "fleet login": ""} else set()
        given |= {Exit.UNREACHABLE} if words in NOBODY_THERE else set()
        assert statuses_of(words, capsys) == given | ELSEWHERE.get(words, set()), words
    assert {*REFUSED, *NOBODY_THERE, *ELSEWHERE} <= known
    assert TABLE.statuses() == set(Exit) - ALWAYS, (
        "the help of the table lists what any of its commands gives"
    )
    assert Exit.BROKEN == EXIT_SOFTWARE


ASKS_AN_APPLIANCE = ("infer", "status", "top", "model list", "model load", "model unload")


@pytest.mark.parametrize("words", [each for each in REFUSED if each not in ASKS_AN_APPLIANCE])
def test_what_is_refused(words: str, place: Path, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    agent = WriterLock(place / "member" / FLEET / LOCK)  # as if one worked there
    rest = REFUSED[words].replace("TOKEN", desk.enrolment_token(group="g"))
    try:
        assert main([*words.split(), *rest.split()]) == Exit.REFUSED, capsys.readouterr().err
    finally:
        agent.release()


def test_what_an_appliance_refuses(
    serve: Serve, model_directory: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    daemon = serve(model_directory("mlp"), {"control": {"socket": str(tmp_path / "control")}})
    monkeypatch.setenv(ENVIRONMENT, daemon.http)
    for words in ASKS_AN_APPLIANCE:
        assert main([*words.split(), *REFUSED[words].split()]) == Exit.REFUSED, words


def test_what_a_controller_refuses(place: Path, desk: Desk, capsys: pytest.CaptureFixture[str]) -> None:
    url, authority = f"https://127.0.0.1:{desk.port}", desk.home.authority.pem
    Path("authority.pem").write_text(authority)
    assert main(["fleet", "login", url, "--authority", "authority.pem"]) == Exit.REFUSED
    write_profile(Profile(url=url, token="nobody:x", authority=authority))
    for words, rest in FLEET_WORDS.items():
        assert main([*words.split(), *rest.split()]) == Exit.REFUSED, words
        assert "this token is not known here" in capsys.readouterr().err


@pytest.mark.parametrize("words", NOBODY_THERE)
def test_where_nobody_answers(
    words: str, place: Path, desk: Desk, capsys: pytest.CaptureFixture[str]
) -> None:
    write_profile(Profile(url="https://127.0.0.1:1", token="a:b", authority=""))
    rest = NOBODY_THERE[words].replace("TOKEN", desk.enrolment_token(group="g"))
    assert main([*words.split(), *rest.split()]) == Exit.UNREACHABLE, capsys.readouterr().err
