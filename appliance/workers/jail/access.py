"""What of the file system a worker is given: values only, made by the daemon and read by the process that forks it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from typing import Final, NamedTuple

from appliance.domain.model import ModelVersion
from appliance.store.layout import BLOBS

FORM_FACTOR: Final = 2.25
"""A form is twice as large as its version, with gaps of an eighth at most."""
FORM_BYTES_MIN: Final = 64 << 20


class FormSite(NamedTuple):
    """Where a worker builds a packed form: of the version with ``digest`` for ``runtime``, below ``forms``; what it
    writes there is no longer than ``file_bytes_max`` a file. It may list ``counted`` to see what is taken."""

    forms: str
    digest: str
    runtime: str
    counted: str
    file_bytes_max: int


class FileAccess(NamedTuple):
    """``reads`` are files and directories, with all beneath them and what links in there lead to below ``home``, the
    directory of the model; ``roots`` are directories of models, in which links lead nowhere else. ``devices``: the
    runtime drives those of the machine by calls that nobody can list; such a worker is kept from those that are known
    to lead outwards."""

    reads: tuple[str, ...] = ()
    roots: tuple[str, ...] = ()
    site: FormSite | None = None
    devices: bool = False
    home: str = ""

    def covers(self, version: ModelVersion) -> bool:
        """Whether the version's files lie below the roots."""
        return all(
            any(path == root or path.startswith(root.rstrip("/") + "/") for root in self.roots)
            for path in _files(version)
        )


def access_to(version: ModelVersion) -> FileAccess:
    """Give what a worker needs that serves this one version: its files and its packed forms."""
    home = os.path.realpath(os.path.dirname(_directory(version))) if version.path else ""
    return FileAccess(reads=tuple(dict.fromkeys(_files(version))), devices=not version.on_cpu, home=home)


def access_to_build(version: ModelVersion) -> FileAccess:
    """Give what a worker needs that builds the packed form of ``version``, from others that are its kin where it can;
    without a place for that, what it reads."""
    access = access_to(version)
    if not version.forms or not version.digest:
        return access
    counted = os.path.join(version.form_room.state, BLOBS)
    site = FormSite(version.forms, version.digest, version.runtime, counted, longest_file(version))
    kin = (os.path.join(version.forms, name) for name in version.kin)
    return access._replace(site=site, reads=(*access.reads, *kin))


def longest_file(version: ModelVersion) -> int:
    """Give how many bytes a file of the version's packed form may have, which are more than any of its own has."""
    return max(int(FORM_FACTOR * version.file_bytes), FORM_BYTES_MIN)


def _directory(version: ModelVersion) -> str:
    return os.path.dirname(version.path) if os.path.isfile(version.path) else version.path


def _files(version: ModelVersion) -> Iterator[str]:
    if version.path:
        yield _directory(version)
    files = [each.file for warmup in version.warmups for each in warmup.inputs]
    if version.weights is not None:
        files.append(version.weights.path)
    yield from (os.path.dirname(file) for file in (*files, version.golden) if file)
    if version.forms and version.digest:
        with suppress(OSError):
            for name in os.listdir(version.forms):
                form = os.path.join(version.forms, name)
                if name.startswith(f"{version.digest}-") and not os.path.islink(form):
                    yield form
