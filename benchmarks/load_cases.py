"""The cases of loading: what is measured and what it has to reach. Entries only."""

from collections.abc import Mapping

from benchmarks.case import Case
from benchmarks.weights import ColdStarts, Forks, PageIns

LOAD_CASES: Mapping[str, Case] = {
    "load_fork": Case(
        title="A worker is forked and answers: quick session of 10 MB",
        procedure=Forks(megabytes=10, fork_ms=5.0, answer_ms=30.0),
    ),
    "load_page_in_100": Case(
        title="Evicted weights come back: packed form of 100 MB", procedure=PageIns(megabytes=100)
    ),
    "load_page_in_500": Case(
        title="Evicted weights come back: packed form of 500 MB", procedure=PageIns(megabytes=500)
    ),
    "load_page_in_embedding": Case(
        title="Evicted weights come back: packed form of the embedding model of 90 MB",
        procedure=PageIns(megabytes=90, embedding=True),
    ),
    "load_cold_500": Case(
        title="Cold start: quick session of 500 MB", procedure=ColdStarts(megabytes=500, limit=1.15)
    ),
}
