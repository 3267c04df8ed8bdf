"""Blobs that nothing names any more: what a release had before it was signed anew or withdrawn, and what was built for
one that came to nothing. They are removed while the controller serves.

A blob is named by a release, by a way to one, or by the document that a device was given last: that one is signed, and
the device may be at it. What a revoked device was given names nothing. A blob goes when two looks in a row found it
unnamed: a box that is at it has that long to hear of a newer document, and a person who put back the wrong backup of
the database to notice. What was found is kept in memory alone: after a restart the first look removes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import Row

from appliance.controller import tables
from appliance.controller.blobs import BlobStore, Reclaimed
from appliance.controller.bundles import pieces_of
from appliance.controller.desired import Parts, asked
from appliance.controller.fleet_store import DatabaseTrouble, FleetStore
from appliance.domain.errors import OperatorError
from appliance.fleet.documents import DocumentInvalid
from appliance.fleet.places import REVOKED

WHO = "controller"
"""In the audit log: nobody asked for it."""


class Unreadable(OperatorError):
    """What a device was given cannot be read here."""


def due(
    here: frozenset[str], named: frozenset[str], before: frozenset[str]
) -> tuple[frozenset[str], frozenset[str]]:
    """Of the blobs that are ``here``: those to remove now, and those to remove at the next look if nothing names them
    then. ``before`` is what the look before this one gave as the latter. Pure."""
    unnamed = here - named
    return unnamed & before, unnamed - before


def named_by(releases: Sequence[Row[Any]], ways: Sequence[Row[Any]]) -> frozenset[str]:
    """All blobs that releases and ways to them name. Pure."""
    found = {row.package for row in releases}
    for row in ways:
        found |= {row.stream, row.index_digest}
    return frozenset(found)


def told_of(devices: Sequence[Row[Any]]) -> frozenset[str]:
    """All blobs that documents of devices name. Raises Unreadable for one that cannot be read, as of a newer release:
    nobody knows then what is needed. Pure."""
    found: set[str] = set()
    read: set[Parts] = set()
    for row in devices:
        said = asked(row.document)
        if said in read:  # as of most devices of a group
            continue
        try:
            found |= pieces_of(row.document).keys()
        except DocumentInvalid as error:
            raise Unreadable(f"the document of '{row.name}' cannot be read: {error}") from error
        if said is not None:
            read.add(said)
    return frozenset(found)


class Leftovers:
    """See the module. Owner: one task; blocks: off the event loop."""

    def __init__(self, store: FleetStore, blobs: BlobStore) -> None:
        self._store = store
        self._blobs = blobs
        self._unnamed: frozenset[str] = frozenset()

    def look(self, now_ms: int) -> Reclaimed:
        """Remove what is due, and have it in the audit log. Nothing is done while blobs are kept: somebody is about to
        name some, or reads them. Raises nothing: ``error`` says what stood in the way."""
        try:
            found = self._blobs.reclaim(self._due) or Reclaimed()
        except (DatabaseTrouble, Unreadable, OSError) as error:
            return Reclaimed(error=str(error))
        try:
            if found.blobs:
                with self._store.transaction() as rows:
                    rows.note(now_ms, WHO, "reclaimed", blobs=found.blobs, bytes=found.bytes)
        except DatabaseTrouble as error:
            return replace(found, error=str(error))
        return found

    def _due(self, here: frozenset[str]) -> frozenset[str]:
        """Asked while no blob is kept, so that each which a row will name has its row already."""
        with self._store.look() as rows:
            releases, ways = rows.all(tables.releases), rows.all(tables.transfers)
            devices = rows.documents(but=REVOKED)
        named = named_by(releases, ways) | told_of(devices)
        now, self._unnamed = due(here, named, self._unnamed)
        return now
