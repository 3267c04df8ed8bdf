"""What the controller asks of one box: the desired state, as one document with a generation. Values only.

A document is the target of signed metadata (``metadata``), so what is here was vouched for as a whole; ``decode``
checks every field all the same and names everything that is wrong. It says which versions, by the digests of their
manifests; what these contain is vouched for by who signed the packages.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Final

import msgspec
from msgspec import Meta, Struct

from appliance.domain.digest import is_digest
from appliance.domain.manifest import INT64_MAX, is_name

FORMAT: Final = 1
MODELS_MAX: Final = 1024
TRANSFERS_MAX: Final = 64
SETTINGS_MAX: Final = 64
SETTING_TEXTS_MAX: Final = 1024
DOCUMENT_BYTES_MAX: Final = 4 << 20
STREAM_BYTES_MAX: Final = 2 << 40
STREAM_INDEX_BYTES_MAX: Final = 64 << 20
"""Of the digests of all pieces of such a stream; a box holds them in memory while the stream comes."""

Count = Annotated[int, Meta(ge=0, le=INT64_MAX)]
Number = Annotated[int, Meta(ge=1, le=INT64_MAX)]
Name = Annotated[str, Meta(min_length=1, max_length=64)]
Digest = Annotated[str, Meta(min_length=64, max_length=64)]
DigestOrNone = Annotated[str, Meta(max_length=64)]
Text = Annotated[str, Meta(max_length=4096)]
Setting = int | str | bool | Annotated[tuple[Text, ...], Meta(max_length=SETTING_TEXTS_MAX)]


class Transfer(Struct, frozen=True, array_like=True, kw_only=True):
    """A way to get a version: the ``stream`` of that digest and ``size`` in bytes, whose pieces have the digests that
    lie in the index of digest ``index``. It can be applied where the version with manifest ``base`` is installed; "":
    everywhere."""

    stream: Digest
    size: Number
    index: Digest
    base: DigestOrNone = ""


class WishedVersion(Struct, frozen=True, array_like=True, kw_only=True):
    """A version to have on the box: its number, its manifest's digest, the bytes of its files, how it can be had."""

    version: Number
    manifest: Digest
    total_bytes: Count
    transfers: Annotated[tuple[Transfer, ...], Meta(max_length=TRANSFERS_MAX)]


class WishedTrial(Struct, frozen=True, array_like=True, kw_only=True):
    """A version that shall prove itself on real requests: see ``appliance.store.catalog.Trial``."""

    version: WishedVersion
    mode: Annotated[str, Meta(pattern=r"^(canary|shadow)$(?!\n)")]
    percent: Annotated[int, Meta(ge=0, le=100)] = 0
    header: Text = ""


class WishedModel(Struct, frozen=True, array_like=True, kw_only=True):
    """What shall be of one model: ``wanted`` is served, ``trial`` is tried beside it, ``prefetch`` is only installed.
    ``order``: at once and whatever serves now, as a rollback; else it must prove itself. ``interface_change``,
    ``downgrade``: as the options of ``appliance model want`` and ``install``."""

    name: Name
    wanted: WishedVersion | None = None
    trial: WishedTrial | None = None
    prefetch: Annotated[tuple[WishedVersion, ...], Meta(max_length=16)] = ()
    order: bool = False
    interface_change: bool = False
    downgrade: bool = False

    def versions(self) -> Iterator[WishedVersion]:
        """Every version that shall be on the box, each number once, the most urgent first."""
        seen: set[int] = set()
        trial = (self.trial.version,) if self.trial else ()
        for each in (*((self.wanted,) if self.wanted else ()), *trial, *self.prefetch):
            if each.version not in seen:
                seen.add(each.version)
                yield each


class DesiredState(Struct, frozen=True, array_like=True, kw_only=True):
    """All that is asked of ``device``. ``generation`` grows with every change and is the version of the metadata that
    vouches for it. Models that the fleet brought and that are not named any more are uninstalled; what was brought by
    hand is left alone. ``settings`` are by the names of ``appliance.fleet.settings``."""

    format: Annotated[int, Meta(ge=1)] = FORMAT
    device: Name
    generation: Number
    models: Annotated[tuple[WishedModel, ...], Meta(max_length=MODELS_MAX)] = ()
    settings: Annotated[Mapping[Name, Setting], Meta(max_length=SETTINGS_MAX)] = {}
    issued_ms: Count = 0

    def model(self, name: str) -> WishedModel | None:
        """The model of that name."""
        return next((each for each in self.models if each.name == name), None)


_ENCODER: Final = msgspec.msgpack.Encoder(order="deterministic")
_DECODER: Final = msgspec.msgpack.Decoder(DesiredState)


class DocumentInvalid(ValueError):
    """A document that says what cannot be. ``problems`` are all of them: where, and what is wrong there."""

    def __init__(self, problems: tuple[tuple[str, str], ...]) -> None:
        super().__init__("; ".join(f"{where}: {text}" if where else text for where, text in problems))
        self.problems = problems


def encode(state: DesiredState) -> bytes:
    """The document's bytes: the same for the same state."""
    return _ENCODER.encode(state)


def decode(data: bytes) -> DesiredState:
    """The document in ``data``. Raises DocumentInvalid with everything that is wrong."""
    if len(data) > DOCUMENT_BYTES_MAX:
        raise DocumentInvalid((("", f"has {len(data)} bytes; the limit is {DOCUMENT_BYTES_MAX}"),))
    try:
        state = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        text = str(error) if isinstance(error, msgspec.ValidationError) else "is no document of this format"
        raise DocumentInvalid((("", text),)) from error
    if problems := tuple(document_problems(state)):
        raise DocumentInvalid(problems)
    return state


def document_problems(state: DesiredState) -> Iterator[tuple[str, str]]:
    """What cannot be asked of a box, whatever it is: where, and what is wrong there."""
    if state.format != FORMAT:
        yield "format", f"is {state.format}; this appliance knows format {FORMAT}"
    if not is_name(state.device):
        yield "device", "is no name"
    names = [each.name for each in state.models]
    if names != sorted(set(names)):
        yield "models", "are not in the order of their names, or one is there twice"
    for model in state.models:
        where = f"models.{model.name if is_name(model.name) else '?'}"
        if not is_name(model.name):
            yield where, "is no model's name"
        manifests: dict[int, str] = {}
        for version in (*((model.wanted,) if model.wanted else ()), *model.prefetch,
                        *((model.trial.version,) if model.trial else ())):  # fmt: skip
            yield from ((f"{where}.{version.version}", text) for text in _version_problems(version))
            if manifests.setdefault(version.version, version.manifest) != version.manifest:
                yield f"{where}.{version.version}", "has two manifests"


def _version_problems(version: WishedVersion) -> Iterator[str]:
    if not is_digest(version.manifest):
        yield "manifest is no digest"
    for each in version.transfers:
        if not (is_digest(each.stream) and is_digest(each.index) and (not each.base or is_digest(each.base))):
            yield "a transfer has no digest where one must be"
        if each.size > STREAM_BYTES_MAX:
            yield f"a transfer brings {each.size} bytes; the limit is {STREAM_BYTES_MAX}"
