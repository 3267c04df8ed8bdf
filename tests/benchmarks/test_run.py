"""The names a run may be asked for are told, and those that are none refused before anything is measured."""

from __future__ import annotations

import re
import sys

import pytest

from benchmarks import run
from benchmarks.cache import ROOT
from benchmarks.cases import CASES
from benchmarks.servers import SERVERS


def asked(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["run", *arguments])
    monkeypatch.setenv("COLUMNS", "80")
    return run.main()


def test_the_list_names_every_case_and_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert asked(monkeypatch, "--list") == 0
    text = capsys.readouterr().out
    told = re.findall(r"^[│|] (\w+) +[│|]", text, re.MULTILINE)
    assert told == [*CASES, *SERVERS]
    assert (
        set(re.findall(r"\w+", " ".join(case.title for case in CASES.values())))
        - set(re.findall(r"\w+", text))
        == set()
    )


def test_names_that_are_none_are_all_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit, match="2"):
        asked(monkeypatch, "small_mpl", "sizes", "--subject", "aplliance", "--servers", "plain_aio,tritn")
    error = capsys.readouterr().err
    assert all(repr(name) in error for name in ("small_mpl", "aplliance", "tritn"))
    assert "'sizes'" not in error
    assert "'plain_aio'" not in error
    assert "--list" in error


def test_the_readme_tells_what_each_case_is() -> None:
    text = (ROOT / "benchmarks" / "README.md").read_text().partition("## Cases")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (`.*?`) \|", text, re.MULTILINE)
    assert sorted(re.findall(r"`(\w+)`", " ".join(rows))) == sorted(CASES)
