"""Names and other short texts of an ONNX file: bounded each and in all, so that no file makes a reader keep much."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

from appliance.repository.protobuf_walk import Malformed, Source

TEXT_BYTES_MAX: Final = 1 << 20
ALL_BYTES_MAX: Final = 64 << 20


class TextReader:
    """Reads texts and tells of names above ``name_bytes_max``. One owner: whoever reads one file."""

    def __init__(self, name_bytes_max: int, report: Callable[[str], None]) -> None:
        self._name_bytes_max = name_bytes_max
        self._report = report
        self._left = ALL_BYTES_MAX

    def read(self, source: Source, start: int, end: int) -> str:
        """A name, for comparing and showing; bytes that are not UTF-8 are replaced."""
        return self.name(source, start, end).decode(errors="replace")

    def name(self, source: Source, start: int, end: int) -> bytes:
        """The bytes of a name."""
        data = self.raw(source, start, end)
        if len(data) > self._name_bytes_max:
            self._report(
                f"has a name of {len(data)} bytes; at most {self._name_bytes_max} are allowed "
                "(repository.firewall.max_name_bytes)"
            )
        return data

    def path(self, source: Source, start: int, end: int) -> str:
        """What may be a file name: bytes that are not UTF-8 stay what they are."""
        return os.fsdecode(self.raw(source, start, end))

    def raw(self, source: Source, start: int, end: int) -> bytes:
        """The bytes; raises Malformed when they are more than any text here has, or when there is too much in all."""
        if end - start > TEXT_BYTES_MAX:
            raise Malformed(
                f"the text at byte {start} has {end - start} bytes; at most {TEXT_BYTES_MAX} are read"
            )
        self._left -= end - start
        if self._left < 0:
            raise Malformed(f"has more than {ALL_BYTES_MAX} bytes of names; at most that many are read")
        return source.read(start, end)
