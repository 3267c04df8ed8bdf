"""Help is set for the screen that it is read on."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from appliance.cli.command_table import CommandTable
from appliance.cli.help_text import WIDTH_MAX, filled
from appliance.cli.main import TABLE, main

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
