"""Write results into a document: `python -m benchmarks.report RESULTS.json [--document FILE]`.

Only what lies between the two markers is replaced; prose around them is left alone. A document without markers gets
them at its end, and one that does not exist is made.
"""

import argparse
from itertools import groupby
from pathlib import Path

from benchmarks import table
from benchmarks.cache import ROOT
from benchmarks.cases import CASES
from benchmarks.environment import Environment
from benchmarks.results import CaseResult, load

BEGIN, END = "<!-- benchmark results: begin -->", "<!-- benchmark results: end -->"
DOCUMENT = ROOT / "docs" / "BENCHMARKS.md"
HEADING = """\
# Benchmarks

How these figures are made: `benchmarks/README.md`. Every cell is a median over interleaved rounds, with the range in
brackets; latencies are in microseconds from the moment a request was due.
"""


def render(results: dict[str, CaseResult]) -> str:
    """The section between the markers."""
    ordered = [results[name] for name in CASES if name in results]
    ordered += [result for name, result in results.items() if name not in CASES]
    parts = [_environments(ordered), _summary(ordered), *map(_case, ordered)]
    return "\n\n".join(part for part in parts if part)


def _environments(results: list[CaseResult]) -> str:
    lines = []
    keyed = sorted(results, key=lambda result: (result.date, repr(result.environment)))
    for (date, _), group in groupby(keyed, key=lambda result: (result.date, repr(result.environment))):
        members = list(group)
        names = ", ".join(result.name for result in members)
        lines.append(f"- {date} ({names}): {_machine(members[0].environment)}")
    return "\n".join(lines)


def _machine(environment: Environment) -> str:
    return (
        f"{environment.cpu}, {environment.cores} cores, {environment.memory_gib:g} GiB, "
        f"Linux {environment.kernel}, Python {environment.python}; {table.packages_text(environment.packages)}"
    )


def _summary(results: list[CaseResult]) -> str:
    rows = [[result.name, *row] for result in results for row in table.verdict_rows(result.verdicts)]
    return "## Targets\n\n" + table.markdown(["case", "target", "required", "found", "verdict"], rows)


def _case(result: CaseResult) -> str:
    titles, rows = table.grid(result.measurements)
    remarks = [*result.notes, f"rounds: {result.rounds}; {table.foreign_text(result)}"]
    remarks += [f"error: {error.splitlines()[0][:200]}" for error in result.errors]
    body = table.markdown(titles, rows) if rows else "Nothing was measured."
    return f"## {result.title}\n\n{body}\n\n" + "\n".join(f"- {remark}" for remark in remarks)


def replace_section(document: str, section: str) -> str:
    """The document with the text between its markers replaced."""
    block = f"{BEGIN}\n\n{section}\n\n{END}"
    before, found, rest = document.partition(BEGIN)
    if not found:
        return f"{document.rstrip()}\n\n{block}\n"
    _, closed, after = rest.partition(END)
    if not closed:
        raise ValueError(f"the document has {BEGIN!r} but not {END!r}; put the second one back")
    return f"{before}{block}{after}"


def write_report(results: dict[str, CaseResult], document: Path) -> None:
    """Replace the results section of the document file."""
    text = document.read_text() if document.exists() else HEADING
    document.parent.mkdir(parents=True, exist_ok=True)
    document.write_text(replace_section(text, render(results)))


def main() -> None:
    """Command line entry."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.report", description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--document", type=Path, default=DOCUMENT)
    arguments = parser.parse_args()
    write_report(load(arguments.results), arguments.document)
    print(f"wrote {arguments.document}")


if __name__ == "__main__":
    main()
