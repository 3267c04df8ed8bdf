"""The catalog as the bytes of its file: canonical JSON in an envelope with a format number and a checksum.

Pure. Reading is strict and tells everything that is wrong at once. A flipped bit is told by the checksum; a format
newer than this program is refused, an older one is brought up to date step by step.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, Final

from appliance.domain.digest import digest_of
from appliance.domain.errors import CatalogInvalid, CatalogNewer, Problem
from appliance.store.catalog import (
    Catalog,
    CatalogModel,
    Floor,
    HandAct,
    Hold,
    InstalledVersion,
    StoredFile,
    Trial,
    TrialMode,
    catalog_problems,
)

FORMAT: Final = 1
FLAGS: Final = ("interface_change", "managed", "order")
"""Of a model: there where they are true."""
CATALOG_BYTES_MAX: Final = 256 << 20
"""Largest catalog that is read."""

Step = Callable[[Any], Any]
STEPS: Final[Mapping[int, Step]] = MappingProxyType({})
"""From a format to the next: a function from document to document. None is needed yet."""

_REMEDY: Final = "restore the file, or have it made anew with 'appliance store check --rebuild'"


def encode(catalog: Catalog) -> bytes:
    """The bytes of the catalog's file. Raises CatalogInvalid for a catalog that no reader would believe."""
    if wrong := [Problem(file="catalog", key=key, text=text) for key, text in catalog_problems(catalog)]:
        raise CatalogInvalid(wrong)
    body = _document(catalog)
    return _canonical({"catalog": body, "checksum": digest_of(_canonical(body)), "format": FORMAT}) + b"\n"


def decode(data: bytes, file: str, *, steps: Mapping[int, Step] = STEPS, newest: int = FORMAT) -> Catalog:
    """The catalog in ``data``; ``file`` is named in problems. Raises CatalogInvalid with all of them."""
    reader = _Reader(file)
    document = reader.table(_parsed(data, reader), "")
    body = _body(document, reader, steps, newest)
    catalog = reader.catalog(body)
    if not reader.problems:
        for key, text in catalog_problems(catalog):
            reader.note(key, text)
    reader.end()
    return catalog


def _parsed(data: bytes, reader: _Reader) -> Any:
    try:
        return json.loads(data.decode("utf-8"), object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        reader.note("", f"is not JSON: {error}; {_REMEDY}")
        reader.end()
        raise AssertionError from error


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    table = dict(pairs)
    if len(table) != len(pairs):
        raise ValueError("a key appears twice in one object")
    return table


def _body(
    document: Mapping[str, Any], reader: _Reader, steps: Mapping[int, Step], newest: int
) -> Mapping[str, Any]:
    """The catalog's own table in the newest format; raises CatalogInvalid where going on makes no sense."""
    number = reader.whole(document, "format", "")
    if number > newest:
        text = f"is {number}, this program reads up to {newest}; update the appliance to use this state directory"
        reader.note("format", text)
        raise CatalogNewer(reader.problems)
    if number < 1:
        reader.note("format", f"is {number}; formats begin at 1; {_REMEDY}")
    reader.only(document, {"catalog", "checksum", "format"}, "")
    reader.end()
    body = reader.table(document.get("catalog"), "catalog")
    if digest_of(_canonical(body)) != document.get("checksum"):
        reader.note("checksum", f"does not fit: the file was changed or the disk lost bits; {_REMEDY}")
        reader.end()
    for each in range(number, newest):
        body = steps[each](body)
    return body


def _canonical(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":")).encode(
        errors="surrogatepass"
    )


def _document(catalog: Catalog) -> dict[str, object]:
    models = {
        model.name: {
            "pins": model.pins,
            "trial": _trial_document(model.trial),
            "versions": {str(each.version): _version_document(each) for each in model.versions},
            "wanted": model.wanted,
            "wanted_before": model.wanted_before,
            **{flag: True for flag in FLAGS if getattr(model, flag)},  # else earlier releases can read it
        }
        for model in catalog.models
    }
    floors = {each.name: {"minimum": each.minimum, "newest": each.newest} for each in catalog.floors}
    holds = {
        each.name: {
            "since_ms": each.since_ms, "version": each.version, "what": each.what.value, "who": each.who,
        }
        for each in catalog.holds
    }  # fmt: skip
    rare = {key: table for key, table in (("floors", floors), ("holds", holds)) if table}
    return {"generation": catalog.generation, "models": models, **rare}


def _trial_document(trial: Trial | None) -> dict[str, object] | None:
    if trial is None:
        return None
    return {
        "header": trial.header,
        "mode": trial.mode.value,
        "percent": trial.percent,
        "version": trial.version,
    }


def _version_document(version: InstalledVersion) -> dict[str, object]:
    return {
        "digest": version.digest,
        "fetch_ms": version.fetch_ms,
        "files": {file.path: {"digest": file.digest, "size": file.size} for file in version.files},
        "installed_at_ms": version.installed_at_ms,
        "last_wanted_ms": version.last_wanted_ms,
        "trust": version.trust,
    }


class _Reader:
    """Typed reading of a document; notes what is wrong and goes on with a harmless value."""

    def __init__(self, file: str) -> None:
        self._file = file
        self.problems: list[Problem] = []

    def note(self, key: str, text: str) -> None:
        """One more problem."""
        self.problems.append(Problem(file=self._file, key=key, text=text))

    def end(self) -> None:
        """Raise what was noted."""
        if self.problems:
            raise CatalogInvalid(self.problems)

    def catalog(self, body: Mapping[str, Any]) -> Catalog:
        """The whole."""
        self.only(body, {"floors", "generation", "holds", "models"}, "")
        models = self.table(body.get("models"), "models")
        floors = self.table(body.get("floors", {}), "floors")
        holds = self.table(body.get("holds", {}), "holds")
        return Catalog(
            generation=self.whole(body, "generation", ""),
            models=tuple(self._model(name, models[name]) for name in sorted(models)),
            floors=tuple(self._floor(name, floors[name]) for name in sorted(floors)),
            holds=tuple(self._hold(name, holds[name]) for name in sorted(holds)),
        )

    def _floor(self, name: str, value: Any) -> Floor:
        key = f"floors.{name}"
        table = self.table(value, key)
        self.only(table, {"minimum", "newest"}, key)
        minimum, newest = (self.whole(table, each, key) for each in ("minimum", "newest"))
        return Floor(name=name, newest=newest, minimum=minimum)

    def _hold(self, name: str, value: Any) -> Hold:
        key = f"holds.{name}"
        table = self.table(value, key)
        self.only(table, {"since_ms", "version", "what", "who"}, key)
        what = self.text(table, "what", key)
        if what not in list(HandAct):
            self.note(f"{key}.what", f"is not one of {', '.join(HandAct)}")
            what = HandAct.WANT
        version, since_ms = (self.whole(table, each, key) for each in ("version", "since_ms"))
        who = self.text(table, "who", key)
        return Hold(name=name, what=HandAct(what), version=version, who=who, since_ms=since_ms)

    def _model(self, name: str, value: Any) -> CatalogModel:
        key = f"models.{name}"
        table = self.table(value, key)
        self.only(table, {*FLAGS, "pins", "trial", "versions", "wanted", "wanted_before"}, key)
        versions = self.table(table.get("versions"), f"{key}.versions")
        read = (self._version(number, versions[number], f"{key}.versions.{number}") for number in versions)
        return CatalogModel(
            name=name,
            versions=tuple(sorted(read, key=lambda each: each.version)),
            wanted=self.whole(table, "wanted", key),
            wanted_before=self._wholes(table, "wanted_before", key),
            pins=self._wholes(table, "pins", key),
            trial=self._trial(table.get("trial"), f"{key}.trial"),
            **{flag: self._flag(table, flag, key) for flag in FLAGS},
        )

    def _version(self, number: str, value: Any, key: str) -> InstalledVersion:
        table = self.table(value, key)
        self.only(table, {"digest", "fetch_ms", "files", "installed_at_ms", "last_wanted_ms", "trust"}, key)
        files = self.table(table.get("files"), f"{key}.files")
        plain = number.isascii() and number.isdecimal() and str(int(number[:20])) == number
        if not plain:
            self.note(key, "is not a version's number")
        return InstalledVersion(
            version=int(number) if plain else 0,
            digest=self.text(table, "digest", key),
            trust=self.text(table, "trust", key),
            files=tuple(self._file_of(path, files[path], f"{key}.files.{path}") for path in files),
            installed_at_ms=self.whole(table, "installed_at_ms", key),
            last_wanted_ms=self.whole(table, "last_wanted_ms", key),
            fetch_ms=self.whole(table, "fetch_ms", key),
        )

    def _file_of(self, path: str, value: Any, key: str) -> StoredFile:
        table = self.table(value, key)
        self.only(table, {"digest", "size"}, key)
        return StoredFile(
            path=path, size=self.whole(table, "size", key), digest=self.text(table, "digest", key)
        )

    def _trial(self, value: Any, key: str) -> Trial | None:
        if value is None:
            return None
        table = self.table(value, key)
        self.only(table, {"header", "mode", "percent", "version"}, key)
        mode = self.text(table, "mode", key)
        if mode not in list(TrialMode):
            self.note(f"{key}.mode", f"is not one of {', '.join(TrialMode)}")
            return None
        return Trial(
            version=self.whole(table, "version", key),
            mode=TrialMode(mode),
            percent=self.whole(table, "percent", key),
            header=self.text(table, "header", key),
        )

    def table(self, value: Any, key: str) -> Mapping[str, Any]:
        """``value``, which must be an object."""
        if isinstance(value, dict):
            return value
        self.note(key, "is not an object")
        return {}

    def only(self, table: Mapping[str, Any], known: set[str], key: str) -> None:
        """Note keys that are not known here."""
        for unknown in sorted(table.keys() - known):
            self.note(f"{key}.{unknown}" if key else unknown, "is not a known key")

    def whole(self, table: Mapping[str, Any], name: str, key: str) -> int:
        """A whole number at ``name``."""
        value = table.get(name)
        if type(value) is int:
            return value
        self.note(f"{key}.{name}" if key else name, "is not a whole number")
        return 0

    def text(self, table: Mapping[str, Any], name: str, key: str) -> str:
        """A text at ``name``."""
        value = table.get(name)
        if isinstance(value, str):
            return value
        self.note(f"{key}.{name}", "is not a text")
        return ""

    def _flag(self, table: Mapping[str, Any], name: str, key: str) -> bool:
        """Whether ``name`` is true; it may be left out."""
        value = table.get(name, False)
        if type(value) is not bool:
            self.note(f"{key}.{name}", "is not true or false")
        return value is True

    def _wholes(self, table: Mapping[str, Any], name: str, key: str) -> tuple[int, ...]:
        value = table.get(name)
        if isinstance(value, list) and all(type(each) is int for each in value):
            return tuple(value)
        self.note(f"{key}.{name}", "is not a list of whole numbers")
        return ()
