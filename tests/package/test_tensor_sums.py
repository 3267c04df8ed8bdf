"""Sums of tensors while their file goes by: each byte is summed once, however many tensors are said to lie there."""

from __future__ import annotations

import pytest

from appliance.domain.digest import Digester, digest_of
from appliance.domain.manifest import TensorEntry
from appliance.package import reader
from appliance.package.reader import TensorSums

FILE = bytes(range(256)) * 8
NAMES = 1_000


def _tensor(name: str, offset: int, length: int, digest: str = "") -> TensorEntry:
    return TensorEntry(
        name=name,
        datatype="UINT8",
        shape=(length,),
        file="1/weights.bin",
        offset=offset,
        length=length,
        digest=digest or digest_of(FILE[offset : offset + length]),
    )


def _wrong(entries: list[TensorEntry], piece: int = 100) -> list[str]:
    sums = TensorSums(entries)
    for start in range(0, len(FILE), piece):
        sums.update(FILE[start : start + piece])
    return [problem.text.split("'")[1] for problem in sums.problems()]


@pytest.mark.parametrize("piece", [1, 100, 4_096])
def test_each_tensor_is_held_to_its_digest(piece: int) -> None:
    right = [_tensor("a", 0, 300), _tensor("b", 300, 0), _tensor("c", 300, 700), _tensor("d", 2_048, 0)]
    assert _wrong(right, piece) == []
    lies = [
        _tensor("l1", 1_000, 10, "0" * 64),
        _tensor("l2", 1_010, 0, "0" * 64),
        _tensor("l3", 2_048, 0, "0" * 64),
    ]
    assert sorted(_wrong([*right, *lies], piece)) == ["l1", "l2", "l3"]


def test_what_many_tensors_share_is_summed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    summed = [0]

    class Counting(Digester):
        def update(self, data: bytes | bytearray | memoryview) -> None:
            summed[0] += len(data)
            super().update(data)

    monkeypatch.setattr(reader, "Digester", Counting)
    assert _wrong([_tensor(f"n{number}", 0, len(FILE)) for number in range(NAMES)]) == []
    assert summed == [len(FILE)]
    lies = [_tensor(f"n{number}", 0, len(FILE), "0" * 64) for number in range(NAMES)]
    assert len(_wrong(lies)) == NAMES
