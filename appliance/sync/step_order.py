"""A step for a process of its own, and what came of it: values and their bytes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final

import msgspec
from msgspec import Struct

from appliance.config.repository import RepositoryConfig
from appliance.config.store import StoreConfig, Unsigned
from appliance.package.keys import PublicKey
from appliance.sync.plan import Install, StartTrial, StopTrial, Uninstall, Want
from appliance.sync.signed_metadata import Key

StoreStep = Install | Want | StartTrial | StopTrial | Uninstall
KINDS: Final[dict[str, type[StoreStep]]] = {
    each.__name__: each for each in (Install, Want, StartTrial, StopTrial, Uninstall)
}
HELD: Final = "held"


class TrustedKey(Struct, frozen=True):
    """A key that packages may be signed with."""

    keyid: str
    scheme: str
    label: str
    key: dict[str, Any]


class StepOrder(Struct, frozen=True, kw_only=True):
    """What to do in the store of ``state``, whose packages are trusted by ``keys`` and as ``unsigned`` says."""

    kind: str
    body: msgspec.Raw
    state: str
    store: StoreConfig
    repository: RepositoryConfig
    keys: tuple[TrustedKey, ...]
    unsigned: Unsigned
    now_ms: int

    @property
    def step(self) -> StoreStep:
        """The step itself."""
        return msgspec.json.decode(self.body, type=KINDS[self.kind])

    def trusted(self) -> list[PublicKey]:
        """The keys."""
        return [
            PublicKey(
                keyid=each.keyid,
                scheme=each.scheme,
                label=each.label,
                key=Key.from_dict(each.keyid, each.key),
            )
            for each in self.keys
        ]


class Outcome(Struct, frozen=True, kw_only=True):
    """What kept it from being done ("": nothing; HELD: a person's hold), in words, and in how many seconds it may go
    (None: not as things are). ``died``: its process did, whatever of."""

    reason: str = ""
    text: str = ""
    again_s: float | None = None
    died: bool = False


def body_of(step: StoreStep) -> msgspec.Raw:
    """The step, for a StepOrder."""
    return msgspec.Raw(msgspec.json.encode(step))


def keys_of(keys: Iterable[PublicKey]) -> tuple[TrustedKey, ...]:
    """The keys, for a StepOrder."""
    return tuple(TrustedKey(each.keyid, each.scheme, each.label, dict(each.key.to_dict())) for each in keys)


def encode(value: Struct) -> bytes:
    """Its bytes."""
    return msgspec.json.encode(value)


def decode(data: bytes) -> StepOrder:
    """What is to be done. Raises msgspec.ValidationError."""
    return msgspec.json.decode(data, type=StepOrder)


def outcome_of(data: bytes, status: int) -> Outcome:
    """What came of it, by what the process said and how it ended."""
    try:
        return msgspec.json.decode(data, type=Outcome)
    except msgspec.MsgspecError:
        return Outcome(reason="disk", text=f"the process that was to do it ended with {status}", died=True)
