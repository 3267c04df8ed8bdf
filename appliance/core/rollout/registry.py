"""Every version that is here: by its id, by name and number, on its way to a name, or leaving."""

from __future__ import annotations

from collections.abc import Iterator

from appliance.core.rollout.catalog import CatalogVersion
from appliance.core.rollout.phase import SERVING, UNLOADED
from appliance.core.rollout.reasons import Setback
from appliance.core.rollout.version import Version
from appliance.domain.model import ModelVersion

Slot = tuple[str, int]


class Registry:
    """``versions`` are all that have, or are about to get, a worker; ``incoming`` those among them whose name other
    files serve meanwhile, ``failed`` those that were, and were given up; ``setbacks`` say why older files serve
    although others are wanted; ``leaving`` are those that wait for their last requests. ``troubled`` says of models
    what is wrong with their files, ``unreadable`` are the names and versions that it is about, ``by_hand`` are the
    versions that were given by hand, ``uninstalled`` the digests of those that may still serve, and are not to any
    more."""

    def __init__(self) -> None:
        self.versions: dict[int, Version] = {}
        self.incoming: dict[Slot, Version] = {}
        self.failed: dict[Slot, Version] = {}
        self.setbacks: dict[Slot, Setback] = {}
        self.leaving: list[Version] = []
        self.troubled: dict[str, str] = {}
        self.unreadable: frozenset[tuple[str, str]] = frozenset()
        self.by_hand: frozenset[Slot] = frozenset()
        self.uninstalled: frozenset[str] = frozenset()
        self._names: dict[str, dict[int, Version]] = {}
        self._next_id = 1

    def take_id(self) -> int:
        """An id never used before: of a version, a group or a worker."""
        self._next_id += 1
        return self._next_id

    # --- by name

    def put(self, version: Version) -> Version | None:
        """Make ``version`` the one for its name and number; gives the one that it replaces."""
        name, number = version.slot
        numbers = self._names.setdefault(name, {})
        previous = numbers.get(number)
        numbers[number] = version
        return previous

    def remove(self, version: Version) -> None:
        """Forget ``version`` as what its name and number mean."""
        name, number = version.slot
        numbers = self._names[name]
        del numbers[number]
        if not numbers:
            del self._names[name]

    def find(self, slot: Slot) -> Version | None:
        """What a name and number mean."""
        return self._names.get(slot[0], {}).get(slot[1])

    def named(self) -> Iterator[Version]:
        """What names and numbers mean, in order."""
        for name in sorted(self._names):
            yield from self.of(name)

    def of(self, name: str) -> list[Version]:
        """What the numbers of one name mean, in order."""
        numbers = self._names.get(name, {})
        return [numbers[number] for number in sorted(numbers)]

    def current(self, name: str) -> Version | None:
        """What serves requests for ``name`` that ask for no version."""
        serving = [version for version in self.of(name) if version.phase in SERVING]
        return next(
            (each for each in reversed(serving) if not each.retiring), serving[-1] if serving else None
        )

    def is_uninstalled(self, version: Version | None) -> bool:
        """Whether ``version`` serves only for want of another: it is nothing to be compared with."""
        return version is not None and version.model.digest in self.uninstalled

    # --- what others ask

    def is_new(self, version: int) -> bool:
        """Whether the version with that id has not been open yet."""
        return version in self.versions and self.versions[version].phase in UNLOADED

    @property
    def settled(self) -> bool:
        """Whether every version that is wanted serves, is on trial, waits for memory or was given up."""
        return not any(each.phase in UNLOADED and not each.deferred for each in self.versions.values())

    def settled_of(self, name: str) -> bool:
        """Whether that holds for every version of ``name``; one that waits for memory has to say why."""
        mine = (each for each in self.versions.values() if each.model.name == name)
        return not any(each.phase in UNLOADED and each.waiting is None for each in mine)

    def held(self) -> list[ModelVersion]:
        """All that is here, seen or not: two packages that say to be the same version are two."""
        return [version.model for version in list(self.versions.values())]

    def knows(self, identity: str) -> bool:
        """Whether a version is here that is ``identity``, whatever it runs from."""
        return any(version.identity == identity for version in self.versions.values())


def is_of(version: Version, entry: CatalogVersion) -> bool:
    """Whether a version is what ``entry`` wants, whatever it runs from."""
    return version.model == entry.model and version.identity == entry.identity


def is_repaired(given_up: Version, entry: CatalogVersion) -> bool:
    """Whether the files have been replaced by the same since: what failed may have been them."""
    return given_up.spec.fingerprint != entry.fingerprint
