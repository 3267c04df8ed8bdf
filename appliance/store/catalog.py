"""What the store holds and what shall be served: values only. One writer replaces them as a whole.

A version's files are named relative to its view (``layout.view_path``): the manifest, perhaps its signature, and the
model's home below the model's name. So the store needs no manifest to know what belongs to a version.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from appliance.domain.digest import is_digest
from appliance.domain.manifest import INT64_MAX, NAME_RULE, is_name, path_problem
from appliance.store.layout import MANIFEST, SIGNATURE

WANTED_BEFORE_MAX: Final = 16
"""How many steps back a rollback can go."""
WHO_MAX: Final = 256
"""Characters of who holds a model."""

_TRUST: Final = re.compile(r"unsigned|key [0-9A-Za-z:._-]{1,128}")


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFile:
    """A file of a version: where it is in the view, how many bytes it has, which blob it is."""

    path: str
    size: int
    digest: str


@dataclass(frozen=True, slots=True, kw_only=True)
class InstalledVersion:
    """A version whose blobs are all in the store. ``trust`` is "key KEYID" or "unsigned". Times are of the wall clock
    and only for people and estimates: ``last_wanted_ms`` is when it last became or stopped being wanted, 0: never, or
    was asked for again, of which a daemon is told by any change of it;
    ``fetch_ms`` is how long it took to come here, 0: not known."""

    version: int
    digest: str
    trust: str
    files: tuple[StoredFile, ...]
    installed_at_ms: int
    last_wanted_ms: int = 0
    fetch_ms: int = 0

    @property
    def bytes(self) -> int:
        """What its blobs hold, those that it shares with others included."""
        return sum({file.digest: file.size for file in self.files}.values())


def identity_of(name: str, version: InstalledVersion) -> str:
    """What the daemon's records call an installed version of model ``name``."""
    return f"{name}/{version.version}@{version.digest}"


class TrialMode(StrEnum):
    """What a candidate's answers are for."""

    CANARY = "canary"
    SHADOW = "shadow"


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A version that shall first prove itself on real requests: ``percent`` of them, or those of clients that send
    ``header`` ("NAME: VALUE", "" for none). A shadow's answers are compared and thrown away."""

    version: int
    mode: TrialMode
    percent: int = 0
    header: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogModel:
    """A model: its versions ascending, the one to serve (0: none), those wanted before it (the latest first), pins
    (never evicted) and a trial that is asked for. ``order``: an operator wants the one to serve whatever serves now;
    else it is proposed. ``interface_change``: clients change along with it. ``managed``: its fleet brought it."""

    name: str
    versions: tuple[InstalledVersion, ...]
    wanted: int = 0
    wanted_before: tuple[int, ...] = ()
    pins: tuple[int, ...] = ()
    trial: Trial | None = None
    order: bool = False
    interface_change: bool = False
    managed: bool = False

    def version(self, number: int) -> InstalledVersion | None:
        """The version of that number."""
        return next((each for each in self.versions if each.version == number), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Floor:
    """What is known of the model ``name`` beyond its versions, installed or not, and only grows: the ``newest`` version
    that was ever wanted, and the ``minimum`` that a package with a trusted signature allows; 0: none."""

    name: str
    newest: int = 0
    minimum: int = 0


class HandAct(StrEnum):
    """What a person did with a model on the box itself."""

    INSTALL = "install"
    WANT = "want"
    ROLLBACK = "rollback"
    TRIAL = "trial"
    TRIAL_STOP = "trial-stop"
    PIN = "pin"
    UNPIN = "unpin"
    UNINSTALL = "uninstall"


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """The model ``name`` is as a person left it, installed or not: the box's fleet leaves it alone until that is
    lifted. Which ``version`` it was done to, 0: all of them; ``who`` it was and since when, for people."""

    name: str
    what: HandAct
    version: int = 0
    who: str = ""
    since_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalog:
    """Everything that is installed, by model name. ``generation`` grows by one with each change. ``floors`` are those
    of which the models do not tell by themselves."""

    generation: int = 0
    models: tuple[CatalogModel, ...] = ()
    floors: tuple[Floor, ...] = ()
    holds: tuple[Hold, ...] = ()

    def model(self, name: str) -> CatalogModel | None:
        """The model of that name."""
        return next((each for each in self.models if each.name == name), None)

    def hold(self, name: str) -> Hold | None:
        """What holds the model of that name."""
        return next((each for each in self.holds if each.name == name), None)

    def floor(self, name: str) -> Floor:
        """The floor of the model of that name."""
        found = next((each for each in self.floors if each.name == name), Floor(name=name))
        model = self.model(name)
        wanted = (model.wanted, *model.wanted_before) if model else ()
        return replace(found, newest=max(found.newest, *wanted, 0))

    def installed(self) -> Iterator[tuple[CatalogModel, InstalledVersion]]:
        """Every version with its model."""
        return ((model, version) for model in self.models for version in model.versions)

    def wanted(self) -> Iterator[tuple[CatalogModel, InstalledVersion]]:
        """Every version that shall be served."""
        return ((model, version) for model, version in self.installed() if version.version == model.wanted)


def is_version(number: int) -> bool:
    """Whether ``number`` may be a model's version."""
    return 1 <= number <= INT64_MAX


def catalog_problems(catalog: Catalog) -> Iterator[tuple[str, str]]:
    """What cannot be true of a catalog: key and reason, all of it."""
    if catalog.generation < 0:
        yield "generation", "is below zero"
    names = [model.name for model in catalog.models]
    if names != sorted(set(names)):
        yield "models", "are not in the order of their names, or one is there twice"
    for model in catalog.models:
        key = f"models.{model.name}"
        if not is_name(model.name):
            yield key, f"is not {NAME_RULE}"
        yield from ((f"{key}.{inner}", text) for inner, text in _model_problems(model))
    if (floors := [each.name for each in catalog.floors]) != sorted(set(floors)):
        yield "floors", "are not in the order of their names, or one is there twice"
    for floor in catalog.floors:
        if not (
            is_name(floor.name) and all(0 <= each <= INT64_MAX for each in (floor.newest, floor.minimum))
        ):
            yield f"floors.{floor.name}", f"is no model's name, or its versions are not 0 to {INT64_MAX}"
    if (holds := [each.name for each in catalog.holds]) != sorted(set(holds)):
        yield "holds", "are not in the order of their names, or one is there twice"
    for hold in catalog.holds:
        if not (is_name(hold.name) and all(0 <= each <= INT64_MAX for each in (hold.version, hold.since_ms))):
            yield f"holds.{hold.name}", f"is no model's name, or its numbers are not 0 to {INT64_MAX}"
        if len(hold.who) > WHO_MAX or not _is_text(hold.who):
            yield f"holds.{hold.name}.who", f"is over {WHO_MAX} characters, or has half a one"


def _model_problems(model: CatalogModel) -> Iterator[tuple[str, str]]:
    numbers = [each.version for each in model.versions]
    if numbers != sorted(set(numbers)) or not numbers:
        yield "versions", "are none, not ascending, or one is there twice"
    said: Mapping[str, Sequence[int]] = {
        "wanted": [model.wanted] if model.wanted else [],
        "wanted_before": model.wanted_before,
        "pins": model.pins,
        "trial": [model.trial.version] if model.trial else [],
    }
    for key, values in said.items():
        for value in values:
            if value not in numbers:
                yield key, f"names version {value}, which is not installed"
        if len(set(values)) != len(values):
            yield key, "names a version twice"
    for key in ("order", "interface_change"):
        if getattr(model, key) and not model.wanted:
            yield key, "is for no version: none is wanted"
    if len(model.wanted_before) > WANTED_BEFORE_MAX:
        yield "wanted_before", f"names more than {WANTED_BEFORE_MAX} versions"
    if model.trial and not 0 <= model.trial.percent <= 100:
        yield "trial.percent", "is not 0 to 100"
    if model.trial and not _is_text(model.trial.header):
        yield "trial.header", "has half a character"
    for version in model.versions:
        for inner, text in version_problems(model.name, version):
            yield f"versions.{version.version}{'.' * bool(inner)}{inner}", text


def version_problems(name: str, version: InstalledVersion) -> Iterator[tuple[str, str]]:
    """What cannot be true of a version of model ``name``: key and reason, all of it."""
    if not is_version(version.version):
        yield "", f"is not a version: they are 1 to {INT64_MAX}"
    if not is_digest(version.digest):
        yield "digest", "is not a digest"
    if not _TRUST.fullmatch(version.trust):
        yield "trust", "is neither 'unsigned' nor 'key KEYID'"
    for key in ("installed_at_ms", "last_wanted_ms", "fetch_ms"):
        if not 0 <= getattr(version, key) <= INT64_MAX:
            yield key, "is below zero or beyond all times"
    yield from (("files", text) for text in _misplaced([file.path for file in version.files]))
    if MANIFEST not in {file.path for file in version.files if file.digest == version.digest}:
        yield "files", f"have no {MANIFEST} of the version's digest"
    sizes: dict[str, int] = {}
    for file in version.files:
        yield from ((f"files.{file.path}", text) for text in _file_problems(name, file))
        if sizes.setdefault(file.digest, file.size) != file.size:
            yield f"files.{file.path}", "has the digest of a file of another size"


def _is_text(text: str) -> bool:
    """Whether it can be written: bytes of a command line that are no UTF-8 come as halves of characters."""
    return not any("\ud800" <= sign <= "\udfff" for sign in text)


def _misplaced(paths: Sequence[str]) -> Iterator[str]:
    """What keeps ``paths`` from being those of a version: out of order, twice, a file where another has a directory."""
    if list(paths) != sorted(set(paths)):
        yield "are not in the order of their paths, or one is there twice"
    above = {path[:at] for path in paths for at, sign in enumerate(path) if sign == "/"}
    yield from (f"have '{path}' as a file and as a directory" for path in paths if path in above)


def _file_problems(name: str, file: StoredFile) -> Iterator[str]:
    home, _, inner = file.path.partition("/")
    if file.path not in (MANIFEST, SIGNATURE):
        if home != name:
            yield f"is not in the model's home '{name}/'"
        elif wrong := path_problem(inner):
            yield wrong
    if not is_digest(file.digest):
        yield "has no digest"
    if not 0 <= file.size <= INT64_MAX:
        yield f"has a size that is not 0 to {INT64_MAX}"
