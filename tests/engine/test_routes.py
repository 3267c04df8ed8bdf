"""Routes: which version answers for a name, and with which words when none does."""

from __future__ import annotations

from typing import cast

import pytest

from appliance.core.rollout.catalog import CatalogProblem
from appliance.core.rollout.phase import Phase
from appliance.domain.errors import InvalidRequest, NotReady, UnknownModel
from appliance.engine.versions.routes import Routes
from appliance.engine.versions.served import Served, TrafficSplit
from appliance.engine.versions.wording import Said
from appliance.telemetry.meter import VersionMeter
from tests.domain.sample import make_version
from tests.engine.versions import make_served


def served(version: int, phase: Phase = Phase.LIVE, name: str = "m") -> Served:
    return make_served(
        id=version,
        model=make_version(name, version),
        fingerprint="",
        meter=VersionMeter(name, version),
        phase=phase,
    )


def routes(*entries: Served) -> Routes:
    table = Routes()
    for entry in entries:
        table.put(entry)
    return table


def problem(name: str, reason: str) -> CatalogProblem:
    return CatalogProblem(name=name, version="", reason=reason)


def slots(moved: list[Served]) -> list[tuple[str, int]]:
    return [(each.model.name, each.model.version) for each in moved]


def test_without_a_version_the_latest_ready_one_serves() -> None:
    table = routes(served(1), served(2), served(3, Phase.LOADING))
    assert table.resolve("m", "").model.version == 2
    assert table.resolve("m", "1").model.version == 1


def test_a_version_on_trial_answers_those_that_name_it_where_it_answers_clients_at_all() -> None:
    canary, shadow = served(2, Phase.CANARY), served(3, Phase.SHADOW)
    table = routes(served(1), canary, shadow)
    assert table.resolve("m", "").model.version == 1
    assert table.resolve("m", "2") is canary
    with pytest.raises(NotReady, match="version 3 is not at ready state"):
        table.resolve("m", "3")
    said = {each.id: Said() for each in table.all()}
    assert [(each.version, each.state.value) for each in table.index(ready_only=False, said=said)] == [
        ("1", "READY"),
        ("2", "READY"),
        ("3", "LOADING"),
    ]
    assert [each.version for each in table.index(ready_only=True, said=said)] == ["1", "2"]
    canary.version.phase = Phase.FAILED
    assert slots(table.touch()) == [("m", 1), ("m", 2)], "what front ends know of it is forgotten"


def test_a_version_that_fails_later_falls_back_to_the_older_one() -> None:
    newest = served(2)
    table = routes(served(1), newest)
    generation = table.generation
    newest.version.phase = Phase.FAILED
    table.touch()
    assert table.resolve("m", "").model.version == 1
    assert table.generation > generation


def test_only_those_are_told_of_whose_requests_go_elsewhere() -> None:
    table = Routes()
    one, other = served(1), served(7, name="other")
    told = [slots(table.put(each)) for each in (one, other)]
    assert told == [[("m", 1)], [("other", 7)]]
    two = served(2, Phase.LOADING)
    told.append(slots(table.put(two)))
    told.append(slots(table.set_problems([problem("broken", "not ONNX")])))
    one.version.retiring = True
    told.append(slots(table.touch()))
    assert told[2:] == [[], [], []], "it loads; another is broken; it serves as long as nothing else does"
    two.version.phase = Phase.LIVE
    told.append(slots(table.touch()))
    assert told[5:] == [[("m", 1), ("m", 2)]]
    two.trial.split = cast(TrafficSplit, object())
    told.append(slots(table.touch()))
    told.append(slots(table.remove(two)))
    told.append(slots(table.touch()))
    assert told[6:] == [[("m", 1), ("m", 2)], [("m", 1), ("m", 2)], []]


def test_a_retiring_version_serves_only_until_another_can() -> None:
    old = served(2)
    old.version.retiring = True
    assert routes(old).resolve("m", "").model.version == 2
    assert routes(served(1), old).resolve("m", "").model.version == 1


@pytest.mark.parametrize(
    ("name", "version", "error", "text"),
    [
        ("x", "", UnknownModel, "Request for unknown model: 'x' is not found"),
        ("x", "1", UnknownModel, "Request for unknown model: 'x' is not found"),
        ("m", "9", UnknownModel, "'m' version 9 is not found"),
        ("m", "3", NotReady, "'m' version 3 is not at ready state"),
        ("m", "one", InvalidRequest, "failed to get model version from specified version string"),
        ("m", "-1", InvalidRequest, "failed to get model version from specified version string"),
        ("m", "9" * 5000, InvalidRequest, "failed to get model version from specified version string"),
        ("loading", "", NotReady, "'loading' has no available versions"),
        ("broken", "", NotReady, "'broken' has no available versions; the repository index says why"),
        ("broken", "1", NotReady, "'broken' version 1 is not at ready state; the repository index says why"),
        (
            "failed",
            "",
            NotReady,
            "'failed' has no available versions; version 2 failed, and the repository index says why",
        ),
        (
            "failed",
            "2",
            NotReady,
            "'failed' version 2 is not at ready state; it failed, and the repository index says why",
        ),
    ],
)
def test_what_cannot_be_resolved_is_told_apart(
    name: str, version: str, error: type[Exception], text: str
) -> None:
    table = routes(served(1), served(3, Phase.LOADING), served(1, Phase.LOADING, "loading"))
    for number in (1, 2):
        table.put(served(number, Phase.FAILED, "failed"))
    table.set_problems([problem("broken", "no versions")])
    with pytest.raises(error) as caught:
        table.resolve(name, version)
    assert str(caught.value).startswith(text) or str(caught.value).endswith(text)


def test_the_index_lists_versions_and_problems_in_order() -> None:
    table = routes(served(10), served(2, Phase.LOADING))
    table.set_problems([problem("a", "nothing here")])
    said = {each.id: Said(each.reason) for each in table.all()}
    index = [
        (entry.name, entry.version, entry.state.value, entry.reason) for entry in table.index(False, said)
    ]
    assert index == [
        ("a", "", "UNAVAILABLE", "nothing here"), ("m", "2", "LOADING", ""), ("m", "10", "READY", ""),
    ]  # fmt: skip
    assert [entry.version for entry in table.index(True, said)] == ["10"]
