"""Run benchmark cases: `python -m benchmarks.run [CASE ...]`. See benchmarks/README.md.

Exit status: 0 when everything ran, 1 when a case could not run as it should, 2 when `--strict` and a target is not met
or could not be measured.
"""

import argparse
import datetime
import signal
from pathlib import Path
from types import FrameType

from rich.console import Console

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
from benchmarks.table import for_terminal


def run_case(name: str, case: Case, bench: Bench, date: str) -> CaseResult:
    """Measure one case."""
    bench.console.rule(f"{name}: {case.title}")
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
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"of {', '.join(CASES)} (default: all)")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one closed-loop measurement")
    parser.add_argument(
        "--subject", default="appliance", choices=list(SERVERS), help="the server the targets are about"
    )
    parser.add_argument("--servers", default="", help="run only these, comma-separated")
    parser.add_argument("--json", type=Path, default=cache_directory() / "results.json", help="results file")
    parser.add_argument(
        "--document", type=Path, help=f"also write the results section, as into {DOCUMENT.name}"
    )
    parser.add_argument("--date", default=datetime.datetime.now(datetime.UTC).date().isoformat())
    parser.add_argument("--fresh-models", action="store_true", help="make and calibrate the models anew")
    parser.add_argument(
        "--smoke", action="store_true", help="one short round: see that it runs; the figures mean nothing"
    )
    parser.add_argument("--strict", action="store_true", help="status 2 when a target is not met")
    return parser


def _terminate(signum: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt  # so that the blocks that own servers end them


def main() -> int:
    """Command line entry."""
    parser = _parser()
    arguments = parser.parse_args()
    unknown = sorted(set(arguments.cases) - set(CASES))
    if unknown:
        parser.error(f"no case is called {', '.join(unknown)}; there are {', '.join(CASES)}")
    signal.signal(signal.SIGTERM, _terminate)
    console = Console()
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
    bench.console.print(f"results are in {arguments.json}")
    if arguments.document:
        write_report(kept, arguments.document)
    return exit_status(fresh, strict=arguments.strict)


if __name__ == "__main__":
    raise SystemExit(main())
