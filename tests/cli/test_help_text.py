"""Help is set for the screen that it is read on."""

from __future__ import annotations

import fcntl
import io
import os
import pty
import struct
import termios
from collections.abc import Iterator

import pytest

from appliance.cli.command_table import Command, CommandTable, Entry
from appliance.cli.failure import CommandFailed
from appliance.cli.help_text import WIDTH_MAX, filled, folded
from appliance.cli.main import TABLE, main
from appliance.cli.terminal import print_text
from appliance.config.tree import ApplianceConfig
from tests.cli.test_bad_words import entries, parsers
from tests.config.texts import parse

TEXT = """\
Do this and that, and what else
is to be done with 'it'.

commands:
  one    do the first thing of all
  two-x  do another
    deep and of many words
A further paragraph."""


def pages(table: CommandTable, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Words before ``--help``, of tables and of commands."""
    yield words
    for name, entry in table.commands.items():
        below = (*words, name)
        yield from pages(entry.place, below) if isinstance(entry.place, CommandTable) else (below,)


@pytest.mark.parametrize("width", [80, 100])
@pytest.mark.parametrize("words", list(pages(TABLE)), ids=" ".join)
def test_no_line_of_a_help_page_is_wider_than_the_screen(
    words: tuple[str, ...],
    width: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    with pytest.raises(SystemExit) as ended:
        main([*words, "--help"])
    assert not ended.value.code
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    assert not any("``" in line for line in lines)


def test_paragraphs_are_filled_and_items_go_on_below_their_text() -> None:
    assert filled(TEXT, 24).splitlines() == [
        "Do this and that, and",
        "what else is to be done",
        "with 'it'.",
        "",
        "commands:",
        "  one    do the first",
        "         thing of all",
        "  two-x  do another",
        "    deep and of many",
        "    words",
        "A further paragraph.",
    ]
    wide = filled(TEXT, WIDTH_MAX)
    assert wide.startswith(
        "Do this and that, and what else is to be done with 'it'.\n\ncommands:\n  one    do the"
    )
    assert filled("a word-that-is-long goes", 8).splitlines() == ["a", "word-that-is-long", "goes"]


class Screen(io.StringIO):
    """A terminal, as far as it says."""

    def isatty(self) -> bool:
        return True


def test_lines_are_set_by_themselves_and_go_on_below_their_text() -> None:
    assert folded("model: no problems\n  signed by  abcdef: not trusted", 22).splitlines() == [
        "model: no problems",
        "  signed by  abcdef:",
        "             not",
        "             trusted",
    ]
    assert folded("  a/b: the service is not there  and more", 24).splitlines() == [
        "  a/b: the service is",
        "  not there  and more",
    ]
    assert folded("# bytes over the link; 0: no bound", 20, "# ").splitlines() == [
        "# bytes over the",
        "# link; 0: no bound",
    ]


def test_texts_are_set_for_terminals_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "20")
    screen, pipe = Screen(), io.StringIO()
    for stream in (screen, pipe):
        print_text("the command TOKEN enrols it", stream)
    assert screen.getvalue() == "the command TOKEN\nenrols it\n"
    assert pipe.getvalue() == "the command TOKEN enrols it\n"


def test_texts_are_set_for_the_terminal_that_they_are_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Standard output goes to a file, as that of a command whose failures somebody sees."""
    monkeypatch.delenv("COLUMNS", raising=False)
    master, end = pty.openpty()
    fcntl.ioctl(end, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 20, 0, 0))
    with open(end, "w") as screen:
        print_text("the command TOKEN enrols it", screen)
    expected, shown = b"the command TOKEN\r\nenrols it\r\n", b""
    while len(shown) < len(expected):  # the kernel may hand it on in parts
        shown += os.read(master, 100)
    assert shown == expected
    os.close(master)


def test_a_failure_and_the_configuration_are_set_for_the_screen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    told, shown = Screen(), Screen()
    monkeypatch.setattr("sys.stderr", told)
    assert main(["config", "check"]) == 2
    assert main(["status", "--url", "http://127.0.0.1:1", "none"]) == 3
    assert len(told.getvalue().splitlines()) > 2
    monkeypatch.setattr("sys.stdout", shown)
    assert main(["config", "show"]) == 0
    lines = shown.getvalue().splitlines()
    assert max(len(line) for line in (*told.getvalue().splitlines(), *lines) if " = " not in line) <= 60
    assert parse(shown.getvalue()) == ApplianceConfig()


def test_a_list_below_a_failure_is_set_in_where_a_line_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(arguments: object) -> int:
        raise CommandFailed("these are not there:", lines=["one: not heard from since", "two: held"])

    told = Screen()
    monkeypatch.setenv("COLUMNS", "20")
    monkeypatch.setattr("sys.stderr", told)
    monkeypatch.setattr(
        Entry, "load", lambda entry: Command(about="", add_arguments=lambda parser: None, run=fail)
    )
    CommandTable(program="x", about="", commands={"y": Entry("", "z")}).run(["y"])
    assert told.getvalue().splitlines() == [
        "x y: these are not",
        "  there:",
        "one: not heard from",
        "  since",
        "two: held",
    ]


def test_every_argument_of_every_command_is_explained() -> None:
    for words, entry in entries():
        for own, parser in parsers(words, entry):
            bare = [each.dest for each in parser._actions if not each.help]
            assert not bare, f"the help of 'appliance {' '.join(own)}' says nothing of these"
