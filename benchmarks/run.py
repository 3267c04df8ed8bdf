"""Run benchmark cases: `python -m benchmarks.run [CASE ...]`. See benchmarks/README.md.

Exit status: 0 when everything ran, 1 when a case could not run as it should, 2 when `--strict` and a target is not met
or could not be measured.
"""

import argparse
import datetime
import signal
from pathlib import Path
from types import FrameType

from rich.console import Console, Group
from rich.text import Text

from benchmarks.cache import cache_directory
from benchmarks.case import Case
from benchmarks.cases import CASES
from benchmarks.environment import observe
from benchmarks.models import BENCHMARK_MODELS, ModelsUnavailable, model_file
from benchmarks.payload import RequestWriter
from benchmarks.plan import SMOKE_SECONDS, Bench
from benchmarks.report import DOCUMENT, write_report
from benchmarks.results import CaseResult, load, save
from benchmarks.servers import SERVERS
from benchmarks.table import for_terminal, names_table


def run_case(name: str, case: Case, bench: Bench, date: str) -> CaseResult:
    """Measure one case."""
    bench.console.rule(name)
    bench.console.print(Text(case.title))
    samples, verdicts = case.procedure.run(bench)
    return CaseResult(
        name=name,
        title=case.title,
        date=date,
        rounds=bench.rounds,
        environment=observe(),
        measurements=samples.measurements(),
        verdicts=verdicts,
        foreign_cores=tuple(samples.foreign),
        notes=tuple(samples.notes),
        errors=tuple(samples.errors),
    )


def exit_status(results: list[CaseResult], *, strict: bool) -> int:
    """What to tell the shell."""
    if any(result.errors for result in results):
        return 1
    unmet = any(not verdict.met for result in results for verdict in result.verdicts)
    return 2 if strict and unmet else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.run", description=__doc__)
    parser.add_argument("cases", nargs="*", metavar="CASE", help="of those that --list names (default: all)")
    parser.add_argument(
        "--list", action="store_true", help="name the cases and the servers, and measure nothing"
    )
    parser.add_argument(
        "--rounds", type=int, default=5, metavar="N", help="how often each server is measured (%(default)s)"
    )
    parser.add_argument(
        "--seconds",
        type=float,
        default=3.0,
        metavar="S",
        help="length of one closed-loop measurement (%(default)s)",
    )
    parser.add_argument(
        "--subject",
        default="appliance",
        metavar="NAME",
        help="the server the targets are about (%(default)s)",
    )
    parser.add_argument("--servers", default="", metavar="A,B", help="run only these")
    parser.add_argument(
        "--json", type=Path, metavar="FILE", default=cache_directory() / "results.json", help="results file"
    )
    parser.add_argument(
        "--document",
        type=Path,
        metavar="FILE",
        help=f"also write the results section, as into {DOCUMENT.name}",
    )
    today = datetime.datetime.now(datetime.UTC).date().isoformat()
    parser.add_argument("--date", default=today, metavar="YYYY-MM-DD", help="the date in the results (today)")
    parser.add_argument("--fresh-models", action="store_true", help="make and calibrate the models anew")
    parser.add_argument(
        "--smoke", action="store_true", help="one short round: see that it runs; the figures mean nothing"
    )
    parser.add_argument("--strict", action="store_true", help="status 2 when a target is not met")
    return parser


def _listing() -> Group:
    """What can be asked for, and what would be left out here."""
    cases = {name: case.title for name, case in CASES.items()}
    servers = {name: server.missing() or "can run here" for name, server in SERVERS.items()}
    return Group(names_table(("case", "what"), cases), names_table(("server", "here"), servers))


def _unknown(arguments: argparse.Namespace) -> list[str]:
    """Every name that is not one, with its kind."""
    servers = [arguments.subject, *filter(None, arguments.servers.split(","))]
    wrong = [f"no case is called {name!r}" for name in arguments.cases if name not in CASES]
    return wrong + [f"no server is called {name!r}" for name in servers if name not in SERVERS]


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # so that the blocks that own servers end them


def main() -> int:
    """Command line entry."""
    parser = _parser()
    arguments = parser.parse_args()
    if unknown := _unknown(arguments):
        parser.error(f"{', '.join(unknown)}; --list names what there is")
    console = Console()
    if arguments.list:
        console.print(_listing())
        return 0
    signal.signal(signal.SIGTERM, _terminate)
    try:
        for model in BENCHMARK_MODELS:
            model_file(model, fresh=arguments.fresh_models)
    except ModelsUnavailable as problem:
        console.print(f"[red]cannot make the models:[/] {problem}")
        return 1
    bench = Bench(
        rounds=1 if arguments.smoke else arguments.rounds,
        seconds=SMOKE_SECONDS / 4 if arguments.smoke else arguments.seconds,
        smoke=arguments.smoke,
        subject=arguments.subject,
        only=tuple(filter(None, arguments.servers.split(","))),
        writer=RequestWriter(),
        console=console,
    )
    return _run_all(arguments, bench)


def _run_all(arguments: argparse.Namespace, bench: Bench) -> int:
    kept, fresh = load(arguments.json), []
    for name in arguments.cases or CASES:
        result = run_case(name, CASES[name], bench, arguments.date)
        fresh.append(result)
        kept[name] = result
        save(arguments.json, kept)  # after each case: a later one may be interrupted
        bench.console.print(for_terminal(result))
    bench.console.print(f"results are in {arguments.json}", soft_wrap=True)
    if arguments.document:
        write_report(kept, arguments.document)
    return exit_status(fresh, strict=arguments.strict)


if __name__ == "__main__":
    raise SystemExit(main())
