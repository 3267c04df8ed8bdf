"""What a controller does with blobs, step by step, for tests that kill it: ``python -m tests.controller.releasing
DIRECTORY ONE AGAIN TWO``. It says each step that is done. ONE and AGAIN are the same version, the latter with one more
signature; TWO is the next version."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from appliance.controller.home import Home, open_home
from appliance.controller.leftovers import Leftovers
from appliance.controller.releases import NoRelease, Releases
from appliance.controller.withdrawal import withdraw
from appliance.domain.errors import StoreRefused

MARK = "/the controller begins here"
STEPS = ("released", "signed anew", "reclaimed", "next", "way", "withdrawn", "reclaimed the rest")


def steps(home: Home, one: Path, again: Path, two: Path) -> Iterator[str]:
    """Each thing in turn; a step that was done before a kill is done again, or refused."""
    releases, leftovers = (
        Releases(home.store, home.blobs, home.package_keys),
        Leftovers(home.store, home.blobs),
    )

    def upload(package: Path) -> None:
        draft = home.blobs.draft()
        shutil.copy(package, draft)
        try:
            with suppress(StoreRefused):  # of ONE, where AGAIN is there
                releases.upload(draft, "me", 1)
        finally:
            draft.unlink(missing_ok=True)

    def look() -> None:
        for _ in range(2):
            assert leftovers.look(1).error == ""

    upload(one)
    yield "released"
    upload(again)
    yield "signed anew"
    look()
    yield "reclaimed"
    upload(two)
    yield "next"
    releases.prepare("m", 2, (1,))
    yield "way"
    with suppress(NoRelease):
        withdraw(home.store, home.blobs, "m", 1, "me", 1)
    yield "withdrawn"
    look()
    yield "reclaimed the rest"


def main(folder: str, *packages: str) -> None:
    home = open_home(Path(folder))
    os.access(MARK, os.F_OK)
    for step in steps(home, *map(Path, packages)):
        print(step, flush=True)
    os.access(MARK, os.F_OK)
    home.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
