"""What an install evicted so far, and errors that tell of it: one that fails does not keep to itself what is gone."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from appliance.domain.errors import ApplianceError, PackageInvalid, Problem
from appliance.store.room import Leaving


@dataclass(slots=True, kw_only=True)
class Evicted:
    """What left to make room: versions, and packed forms by the versions that they are of ("": of none here). Owned by
    the install that evicts."""

    versions: list[str] = field(default_factory=list)
    forms: list[str] = field(default_factory=list)

    def note(self, leaving: Leaving) -> None:
        """Versions have left the catalog."""
        self.versions += (f"{each.name}/{each.version}" for each in leaving.versions)

    def words(self) -> tuple[str, ...]:
        """See ``eviction_words``."""
        return eviction_words(self.versions, self.forms)


def eviction_words(versions: Collection[str], forms: Collection[str]) -> tuple[str, ...]:
    """What left, for people; nothing where nothing did."""
    words = []
    if versions:
        words.append(f"evicted to make room: {', '.join(versions)}")
    if forms:
        of = sorted({key for key in forms if key}) or ["what is not installed any more"]
        words.append(f"packed forms removed to make room: those of {', '.join(of)}")
    return tuple(words)


@contextmanager
def owning_up(key: str, words: Callable[[], Collection[str]]) -> Iterator[None]:
    """An error of the appliance that comes out of here says ``words``, too; among problems of a package as one of
    ``key``."""
    try:
        yield
    except ApplianceError as error:
        if said := "; ".join(words()):
            error.args = (f"{error}; {said}", *error.args[1:])
            if isinstance(error, PackageInvalid):
                error.problems = (*error.problems, Problem(file=key, key="", text=said))
        raise
