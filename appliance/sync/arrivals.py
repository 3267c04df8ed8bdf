"""A stream that is here, as the package that it makes of what is installed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from appliance.domain.digest import digest_of
from appliance.domain.errors import PackageInvalid, Problem
from appliance.fleet.documents import Transfer
from appliance.package.arrival import arrival_of
from appliance.package.reader import open_package
from appliance.store.incoming import IncomingPackage
from appliance.store.layout import BLOBS
from appliance.sync.carried import spool_of
from appliance.sync.streams import MAKING
from appliance.transfer.pieces import Index
from appliance.transfer.spool import Spool
from appliance.transfer.stream import REFUSED

OUTPUT_MAX: Final = 4096


@contextmanager
def arrival(
    state: Path, way: Transfer, trust: Callable[[bytes, bytes | None], str]
) -> Iterator[IncomingPackage]:
    """The package that the whole stream ``way`` makes of what the store in ``state`` has; ``trust`` gives the word
    about who signed it. Raises OSError, PackageInvalid and what ``trust`` raises."""
    place = spool_of(state)
    spool = Spool(place)
    _check_whole(spool, way)
    with TemporaryDirectory(prefix=MAKING, dir=place) as folder:
        package = Path(folder) / "package"
        _apply(spool.path(way), package, state / BLOBS)
        with open_package(package) as reader:
            yield arrival_of(reader, trust(reader.manifest_bytes, reader.signatures))


def _check_whole(spool: Spool, way: Transfer) -> None:
    """Raise OSError unless every piece of the stream is right; those that are not are cut off, and come again."""
    data = spool.index(way)
    if data is None or digest_of(data) != way.index:
        spool.path(way).unlink(missing_ok=True)
        raise OSError("the index of the stream is damaged; it comes again")
    with closing(spool.open(way, Index(data, way.size))) as found:
        if not found.is_whole:
            raise OSError("a piece of the stream is damaged; it comes again")


def _apply(stream: Path, package: Path, blobs: Path) -> None:
    """Make the package in a process of its own, whose memory is gone afterwards. Raises PackageInvalid and OSError."""
    command = [sys.executable, "-P", "-m", "appliance.transfer.apply", str(stream), str(package), str(blobs)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, check=False)
    said = done.stdout[:OUTPUT_MAX].decode(errors="replace").strip()
    if done.returncode == REFUSED:
        raise PackageInvalid([Problem(file="stream", key="", text=said)])
    if done.returncode:
        raise OSError(said or f"the process that makes a package of a stream ended with {done.returncode}")
