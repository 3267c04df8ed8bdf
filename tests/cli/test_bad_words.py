"""What a person mistypes after an option is told on one line, before anything is done: of every command, each option
that takes a number or a path."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import pytest

from appliance.cli.command_table import CommandTable, Entry
from appliance.cli.failure import Exit, printable
from appliance.cli.main import TABLE, main
from appliance.cli.parser import Parser

Words = tuple[str, ...]
HUGE = "9" * 30
BOUNDLESS = ("--absolute", "--relative")
"""Tolerances: a model may be held to none."""
NO_NUMBERS = (
    "",
    "many",
    "1\n2",
    "1_0",
    "\N{ARABIC-INDIC DIGIT ONE}",
    "nan",
    "-1",
    HUGE,
    "9" * 5000,
    "1e999",
)
TEXTS = frozenset({"_shape", "_tolerance", "_device", "_variants"})
"""Types of options that take more than a number; they have a test of their own."""


def entries(table: CommandTable = TABLE, above: Words = ()) -> Iterator[tuple[Words, Entry]]:
    if table.alone is not None:
        yield above, table.alone
    for name, entry in table.commands.items():
        if isinstance(entry.place, CommandTable):
            yield from entries(entry.place, (*above, name))
        else:
            yield (*above, name), entry


def parsers(words: Words, entry: Entry) -> Iterator[tuple[Words, argparse.ArgumentParser]]:
    """The parser of a command, or those of what it can be told to do."""
    parser = Parser()
    entry.load().add_arguments(parser)
    below = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
    for each in below:
        yield from (((*words, name), found) for name, found in each.choices.items())
    if not below:
        yield words, parser


def options(numbers: bool) -> list[tuple[Words, str]]:
    """Each option of each command that takes a number, or a path."""
    found = []
    for words, entry in entries():
        for own, parser in parsers(words, entry):
            for action in parser._actions:
                is_path = action.type is Path
                is_text = action.type is None or getattr(action.type, "__name__", "") in TEXTS
                if action.option_strings and action.nargs != 0 and not is_text and is_path is not numbers:
                    found.append((own, action.option_strings[-1]))
    return found


def told(words: Words, option: str, value: str, capsys: pytest.CaptureFixture[str]) -> str:
    """The line that tells what is wrong with the value, and that there is no other."""
    with pytest.raises(SystemExit) as ended:
        main([*words, f"{option}={value}"])
    assert ended.value.code == Exit.USAGE
    said = capsys.readouterr()
    assert not said.out
    usage, mark, line = said.err.partition(f"appliance {' '.join(words)}: error: argument ")
    assert usage.startswith("usage: ")
    assert mark
    assert line.count("\n") == 1
    assert option in line.partition(":")[0]
    assert line == f"{printable(line.rstrip())}\n"
    return line.partition(": ")[2]


NUMBERS, PATHS = options(numbers=True), options(numbers=False)


def _name(value: Words | str) -> str:
    return value if isinstance(value, str) else " ".join(value)


@pytest.mark.parametrize(("words", "option"), NUMBERS, ids=_name)
def test_what_is_no_number_or_out_of_bounds_is_told_in_words(
    words: Words, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    refused = [each for each in NO_NUMBERS if option not in BOUNDLESS or each != HUGE]
    for number in refused:
        line = told(words, option, number, capsys)
        assert len(line) < 150
        assert any(each in line for each in ("must be ", " is no ")), line


@pytest.mark.parametrize(("words", "option"), PATHS, ids=_name)
def test_what_can_be_no_path_is_told_before_anything_is_done(
    words: Words, option: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(words, option, "", capsys) == "is empty; give a path\n"
    for long in ("x" * 256, "x/" * 2048):
        assert told(words, option, long, capsys).endswith("...' is longer than a path may be\n")


def test_a_share_is_one_of_a_hundred(capsys: pytest.CaptureFixture[str]) -> None:
    for option in ("--canary", "--shadow"):
        for percent in ("0", "101"):
            assert told(("model", "trial"), option, percent, capsys) == "must be from 1 to 100\n"


@pytest.mark.parametrize(
    ("option", "value", "said"),
    [
        ("--tolerance", "y", "give OUTPUT=ABSOLUTE[,RELATIVE]"),
        ("--tolerance", "y=much", "'much' is no number"),
        ("--tolerance", "y=nan", "'nan' is no number"),
        ("--tolerance", "y=0,-1", "must be 0 or more"),
        ("--shape", "x", "'x' is no shape such as INPUT=3,224,224"),
        ("--shape", "x=1,", "'' is no whole number"),
        ("--shape", f"x={HUGE}", "must be at most 2147483647"),
        ("--device", "moon", "'moon' is no device"),
    ],
)
def test_what_an_option_takes_besides_numbers_is_told_as_well(
    option: str, value: str, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert told(("model", "golden"), option, value, capsys).startswith(said)


@pytest.mark.parametrize(
    "words",
    ["model load", "model unload", "infer", "fleet devices", "model pin", "trace", "model trial --header"],
)
def test_what_is_no_text_is_told_before_anybody_is_asked(
    words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*words.split(), "m\udcff"])
    assert ended.value.code == Exit.USAGE
    assert "'m\\udcff' is no text: it is not UTF-8\n" in capsys.readouterr().err


def test_a_file_may_be_called_what_is_no_text() -> None:
    parser = Parser()
    parser.add_argument("--input")
    for said in ("@\udcff.npy", "x=@\udcff.npy"):
        assert parser.parse_args(["--input", said]).input == said


def test_every_command_is_asked() -> None:
    """The tables above would pass as well if they were empty."""
    assert {("controller", "token"), ("model", "trial"), ("top",)} <= {
        words for words, _ in options(numbers=True)
    }
    assert {("trace",), ("config", "check"), ("sync",)} <= {words for words, _ in PATHS}
