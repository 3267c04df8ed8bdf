"""A head is considered once, until the templates of its version are forgotten; there may be only so many."""

from __future__ import annotations

import pytest

from appliance.domain.model import ModelVersion
from appliance.engine.fastpath import templates
from appliance.engine.fastpath.templates import ConsideredHeads
from tests.domain.sample import make_version

ONE, TWO = make_version("m", 1), make_version("m", 2)


class Epochs:
    """How often each version was forgotten, as one number."""

    def __init__(self) -> None:
        self.forgotten = {1: 10, 2: 20}

    def epoch(self, model: ModelVersion) -> int:
        return self.forgotten.get(model.version, -1)


@pytest.fixture
def epochs() -> Epochs:
    return Epochs()


def test_a_head_is_due_once_and_again_when_its_version_was_forgotten(epochs: Epochs) -> None:
    known = ConsideredHeads(epochs)
    assert known.is_due(b"head", ONE, 1, 1)
    assert not known.is_due(b"head", ONE, 1, 1)
    assert not known.is_due(b"head", ONE, 2, 2), "other versions changed"
    epochs.forgotten[1] += 1
    assert known.is_due(b"head", ONE, 2, 2)
    assert known.is_due(b"head", TWO, 3, 3), "it means another version now"
    assert not known.is_due(b"head", TWO, 3, 3)


def test_what_was_planned_in_an_older_generation_is_not_due(epochs: Epochs) -> None:
    known = ConsideredHeads(epochs)
    assert not known.is_due(b"head", ONE, 1, 2)
    assert known.is_due(b"head", ONE, 2, 2)


def test_heads_of_versions_that_are_gone_make_room(epochs: Epochs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(templates, "HEADS_MAX", 2)
    known = ConsideredHeads(epochs)
    assert known.is_due(b"1", ONE, 1, 1)
    assert known.is_due(b"2", TWO, 1, 1)
    assert not known.is_due(b"3", TWO, 1, 1), "there is no room"
    del epochs.forgotten[1]
    assert known.is_due(b"3", TWO, 2, 2)
    assert not known.is_due(b"2", TWO, 2, 2), "it is still known"
    assert not known.is_due(b"4", TWO, 2, 2)
