"""Problems of a file as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from appliance.cli.failure import printable
from appliance.domain.errors import Problem


def print_problems(problems: Sequence[Problem]) -> None:
    """Print one row for each: where it is, and what is wrong there."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table()
    table.add_column("place", overflow="fold")
    table.add_column("problem", overflow="fold", ratio=2)
    for problem in problems:
        place = f"{problem.file}: {problem.key}" if problem.key else problem.file
        table.add_row(Text(printable(place)), Text(printable(problem.text)))
    Console().print(table)
