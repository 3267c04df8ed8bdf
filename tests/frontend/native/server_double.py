"""The native front end's side of calls, for tests of what answers them: notes what is said to it, in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class ServerDouble:
    """Takes what the real front end takes; ``known`` are the calls that have not ended."""

    known: set[int] = field(default_factory=set)
    replies: dict[int, bytes] = field(default_factory=dict)
    ends: dict[int, tuple[int, str, tuple[tuple[str, str], ...]]] = field(default_factory=dict)
    reads: list[int] = field(default_factory=list)
    sent: list[bytes] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)

    def reply(self, call: int, message: bytes | Sequence[bytes | memoryview]) -> bool:
        """Ends a unary call well."""
        if call not in self.known:
            return False
        self.known.discard(call)
        self.replies[call] = message if isinstance(message, bytes) else b"".join(message)
        return True

    def finish(self, call: int, code: int, text: str = "", metadata: Sequence[tuple[str, str]] = ()) -> bool:
        """Ends a call with a status."""
        if call not in self.known:
            return False
        text.encode()  # raises UnicodeEncodeError where the real front end does
        self.known.discard(call)
        self.ends[call] = (int(code), text, tuple(metadata))
        return True

    def read(self, call: int) -> bool:
        """Asks for a message."""
        self.reads.append(call)
        return call in self.known

    def stop_reading(self, call: int) -> bool:
        """Reads no more from the client."""
        self.stopped.append(call)
        return call in self.known

    def send(self, call: int, message: bytes | Sequence[bytes | memoryview]) -> bool:
        """Writes a message."""
        self.sent.append(message if isinstance(message, bytes) else b"".join(message))
        return call in self.known
