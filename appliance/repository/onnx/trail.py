"""The way to what is being read of an ONNX file, and what was found wrong there."""

from __future__ import annotations

from typing import Final, NamedTuple

from appliance.repository.onnx.summary import Flaw

FLAWS_MAX: Final = 100
SHOWN_NAME_CHARACTERS: Final = 40
SHOWN_STEPS_MAX: Final = 12


class Step(NamedTuple):
    """One step of the way to what is being read; put into words only when it is needed."""

    kind: str
    number: int = -1
    name: str = ""
    note: str = ""

    def __str__(self) -> str:
        number = f" {self.number}" if self.number >= 0 else ""
        name = f" '{self.name[:SHOWN_NAME_CHARACTERS]}'" if self.name else ""
        return f"{self.kind}{number}{name}{f' ({self.note[:SHOWN_NAME_CHARACTERS]})' if self.note else ''}"


class Trail:
    """What is wrong in a file, and where: the way to what is being read. Knows nothing of its reader, so that a reader
    goes with its last reference and waits for no collection of cycles."""

    def __init__(self) -> None:
        self.steps: list[Step] = []
        self.flaws: list[Flaw] = []

    def where(self) -> str:
        """The way; of a long one the beginning and the end."""
        half = SHOWN_STEPS_MAX // 2
        if len(self.steps) <= SHOWN_STEPS_MAX:
            return " > ".join(map(str, self.steps))
        return " > ".join([*map(str, self.steps[:half]), "...", *map(str, self.steps[-half:])])

    def report(self, text: str) -> None:
        """Something is wrong with what is being read."""
        if len(self.flaws) < FLAWS_MAX:
            self.flaws.append(Flaw(where=self.where(), text=text))
