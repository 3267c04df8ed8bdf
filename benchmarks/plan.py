"""What a case may look at: how thorough to be, which servers to run, where to write a model directory."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from benchmarks.clients import LoadFailed
from benchmarks.models import lay_out
from benchmarks.payload import RequestWriter
from benchmarks.samples import Samples
from benchmarks.servers import SERVERS, Running, Server, ServerFailed, running, wait_models_ready

READY_TIMEOUT_S = 90.0
SMOKE_SECONDS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Settings and tools of one run of the kit. `subject` is the server the targets are about; with `smoke`, long parts
    are cut short, to see that everything runs."""

    rounds: int
    seconds: float
    smoke: bool
    subject: str
    only: tuple[str, ...]
    writer: RequestWriter
    console: Console

    def available(self, names: tuple[str, ...], samples: Samples) -> list[Server]:
        """The servers among `names` that can run here; the others are noted with the reason."""
        chosen: list[Server] = []
        for name in names:
            reason = SERVERS[name].missing()
            if self.only and name not in self.only:
                reason = f"{name} was not asked for"
            if reason:
                samples.note(f"left out: {reason}")
                continue
            chosen.append(SERVERS[name])
        return chosen

    def in_turns(
        self, names: tuple[str, ...], samples: Samples, measure: Callable[[Server, int], None]
    ) -> None:
        """Have each of the servers that can run here measured once a round. ``measure`` gets the round's number too."""
        for number in range(self.rounds):
            for server in self.available(names, samples):
                self.say(f"round {number + 1} of {self.rounds}: {server.name}")
                with collecting_failures(server.name, samples):
                    measure(server, number)

    def at_length(self, seconds: float) -> float:
        """The length of a part that has to be longer than the others."""
        return min(seconds, SMOKE_SECONDS) if self.smoke else seconds

    def say(self, text: str) -> None:
        """A line of progress."""
        self.console.print(f"  [dim]{text}[/]")


@contextmanager
def collecting_failures(name: str, samples: Samples) -> Iterator[None]:
    """Turn a server's or a generator's failure into an error of the case."""
    try:
        yield
    except (ServerFailed, LoadFailed, OSError) as problem:
        samples.errors.append(f"{name}: {problem}")


@contextmanager
def model_directory(names: tuple[str, ...], *, copies: int = 1) -> Iterator[tuple[Path, tuple[str, ...]]]:
    """A temporary model directory and the names served from it."""
    with tempfile.TemporaryDirectory(prefix="bench-models-") as folder:
        yield Path(folder), lay_out(Path(folder), names, copies=copies)


@contextmanager
def ready_server(bench: Bench, server: Server, models: Path, names: tuple[str, ...]) -> Iterator[Running]:
    """A started server whose models are ready."""
    with running(server, models) as instance:
        wait_models_ready(instance, bench.writer, names, READY_TIMEOUT_S)
        yield instance
