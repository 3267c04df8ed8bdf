"""Packed forms as the store's writer sees them: directories that take room, and that this box can build again.

The daemon builds them; the writer counts them, and removes some where an install needs their room. One that is mapped
by a worker stays whole for that one, and gives its room back when that one ends.
"""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple

from appliance.durable import Folder, remove_tree
from appliance.store.layout import FORMS, INCOMING, REFUSED_FORM, form_digest


class StoredForm(NamedTuple):
    """A form by the name of its directory, whole or being built; ``digest`` is that of its version's manifest.
    ``refused``: no more than the mark that it proved wrong."""

    name: str
    digest: str
    bytes: int
    refused: bool


class FormShelf:
    """The forms beside a store."""

    __slots__ = ("_folder",)

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def listing(self) -> tuple[StoredForm, ...]:
        """Every form, in order of their names. What else lies there is left alone. Whatever goes meanwhile counts no
        bytes."""
        above = self._folder.status(FORMS)
        names = sorted(self._folder.names(FORMS)) if above is not None and above.is_directory else ()
        return tuple(self._measured(name, digest) for name in names if (digest := form_digest(name)))

    def _measured(self, name: str, digest: str) -> StoredForm:
        home, files = f"{FORMS}/{name}", list[str]()
        with suppress(FileNotFoundError, NotADirectoryError):
            files = self._folder.names(home)
        sizes = [found.size for file in files if (found := self._folder.status(f"{home}/{file}")) is not None]
        return StoredForm(name, digest, sum(sizes), REFUSED_FORM in files)

    def remove(self, name: str) -> None:
        """Take the form away, all of it at one moment: a worker that is about to load finds it whole or not at all. The
        daemon may have been first."""
        aside = f"{INCOMING}/form-{name}"
        remove_tree(self._folder, aside)
        with suppress(FileNotFoundError):
            self._folder.rename(f"{FORMS}/{name}", aside)
            remove_tree(self._folder, aside)
