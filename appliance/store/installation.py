"""An install of a package: what is asked, how far it is, and what came of it. The writer carries it out."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from appliance.domain.errors import ApplianceError, PackageInvalid, Problem
from appliance.store.blobs import Progress, unnoticed
from appliance.store.eviction import Leaving
from appliance.store.incoming import IncomingPackage


@dataclass(frozen=True, slots=True, kw_only=True)
class InstallRequest:
    """Have the version of ``package`` installed, and wanted if ``want``. One that is older than what was ever wanted of
    its model takes a ``downgrade``, one along with which clients change an ``interface_change``; one below the minimum
    of a signed package is not made wanted at all. ``accept`` is given the manifest's digest when the view is there and
    the catalog does not name it yet; what it raises is raised on, and the package is garbage."""

    package: IncomingPackage
    want: bool
    now_ms: int
    downgrade: bool = False
    interface_change: bool = False
    progress: Progress = unnoticed
    accept: Callable[[str], None] = lambda digest: None


@dataclass(slots=True)
class InstallAttempt:
    """How far the install of ``key`` is: what it evicted, whether what it brought has to go if it fails (``tidy``), and
    whether the catalog names the version (``done``); ``needed_bytes`` are what is missing of it. One that fails does
    not keep to itself what is changed."""

    key: str
    evicted: list[str] = field(default_factory=list)
    evicted_forms: list[str] = field(default_factory=list)
    tidy: bool = False
    done: bool = False
    needed_bytes: int = 0

    @property
    def doing(self) -> str:
        """What goes on, for an error that ends it."""
        return f"make room for {self.key}" if self.done else f"install {self.key}"

    def note(self, leaving: Leaving) -> None:
        """Versions have left the catalog."""
        self.evicted += (f"{each.name}/{each.version}" for each in leaving.versions)

    def own_up(self, error: ApplianceError) -> None:
        """Have ``error`` tell what is changed, too; among problems of a package as one of its own."""
        words = [f"{self.key} is installed"] if self.done else []
        if said := "; ".join((*words, *eviction_words(self.evicted, self.evicted_forms))):
            error.args = (f"{error}; {said}", *error.args[1:])
            if isinstance(error, PackageInvalid):
                error.problems = (*error.problems, Problem(file=self.key, key="", text=said))


@dataclass(frozen=True, slots=True, kw_only=True)
class Installed:
    """What an install came to. ``changed`` is False when everything was there and right already. Packed forms that
    were ``evicted_forms`` are named by their versions, "" where that is not installed."""

    name: str
    version: int
    digest: str
    changed: bool
    written_bytes: int
    evicted: tuple[str, ...] = ()
    evicted_forms: tuple[str, ...] = ()


def eviction_words(versions: Collection[str], forms: Collection[str]) -> tuple[str, ...]:
    """What left to make room, for people: versions, and packed forms by the versions that they are of ("": of none
    here); nothing where nothing did."""
    words = []
    if versions:
        words.append(f"evicted to make room: {', '.join(versions)}")
    if forms:
        of = sorted({key for key in forms if key}) or ["what is not installed any more"]
        words.append(f"packed forms removed to make room: those of {', '.join(of)}")
    return tuple(words)
