"""Streams that were carried to a box are handed over once, however many ways name them."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

from appliance.durable import RealFolder
from appliance.fleet.documents import Transfer
from appliance.sync.carried import Carried


def test_a_stream_that_two_ways_name_is_handed_over_once(tmp_path: Path) -> None:
    """A version of which nothing is like its base takes the same bytes from it as from scratch."""
    stream, index = "a" * 64, "b" * 64
    scratch = Transfer(stream=stream, size=6, index=index, base="")
    ways = (scratch, Transfer(stream=stream, size=6, index=index, base="c" * 64))
    with closing(RealFolder(tmp_path)) as folder:
        carried = Carried(folder)
        carried.put(f"streams/{stream}", [b"stream"])
        carried.put(f"indexes/{index}", [b"index"])
        assert carried.hand_over(ways) == 1
    spool = {each.name: each.read_bytes() for each in (tmp_path / "spool").iterdir()}
    assert spool == {f"{stream}.stream": b"stream", f"{stream}.index": b"index"}
    assert not any((tmp_path / "carried" / "streams").iterdir())
