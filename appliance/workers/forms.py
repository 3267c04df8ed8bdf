"""Packed forms: versions as the runtime's kernels of this very box want them, built here, kept beside the store.

A form lies in a directory of its own below the directory of forms, named after the version's digest and everything that
its bytes depend on: the runtime's release and the processor. Rules kept here: a form appears whole, by renaming; it is
taken only with the sizes that it says, and its graph and its weights are verified as they load; one that cannot be read
as it was written is dropped and may be built anew, once: if the first load of the new one fails as well, or a form
answered wrongly or took its worker down, it is refused: neither used nor built again until it is removed. Values
and files only; building is in ``form_builder``, and who may read a form that has to be sealed in ``seal``.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import stat
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, Final

from appliance.domain.binding import bind
from appliance.domain.digest import digest_of
from appliance.domain.errors import ArtefactError, ConfigInvalid
from appliance.domain.model import ModelVersion, WeightsFile
from appliance.domain.regular_file import read_file
from appliance.runtimes.runtime import ENGINE_FILE, GRAPH_FILE, KEPT_FILE
from appliance.store.layout import BUILDING_FORM, REFUSED_FORM, form_digest

FORMAT: Final = 1
FORM_FILE: Final = "form.json"
WEIGHTS_FILE: Final = "weights.bin"
REFUSED_FILE: Final = REFUSED_FORM
DROPPED_FILE: Final = "dropped"
"""In the place of a form that could not be read."""
ANEW_FILE: Final = "anew"
"""In a form that was built in the place of one that was dropped, until it has been loaded."""
FILES: Final = frozenset({FORM_FILE, GRAPH_FILE, ENGINE_FILE, WEIGHTS_FILE, KEPT_FILE, ANEW_FILE})
"""What a builder may leave. A seal is not among them."""
BUILDING: Final = BUILDING_FORM
FORM_BYTES_MAX: Final = 16 << 20
KEPT_BYTES_MAX: Final = 8 << 20
REASON_BYTES_MAX: Final = 4096
IDENTITY_CHARACTERS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedForm:
    """A form on disk: its directory, graph and weights. ``tie`` is the identity that it was built for where it has to
    be sealed, "" else, ``document`` the digest of its document."""

    path: str
    graph: str
    graph_digest: str
    weights: WeightsFile
    tie: str = ""
    document: str = ""

    def version_of(self, version: ModelVersion) -> ModelVersion:
        """The version with the form's files in the place of its own."""
        digests = {**version.digests, self.graph: self.graph_digest}
        return replace(version, path=self.graph, weights=self.weights, digests=digests)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormDocument:
    """The document of ``form.json``. ``tie`` and ``kept_digest`` are left out where they are ""."""

    format: int = field(metadata={"choices": (FORMAT,)})
    graph_bytes: int = field(metadata={"min": 1, "unit": "bytes"})
    graph_digest: str
    weights_bytes: int = field(metadata={"min": 0, "unit": "bytes"})
    weights_digest: str
    pieces: tuple[str, ...]
    tie: str = ""
    kept_digest: str = ""


def form_name(digest: str, runtime: str) -> str:
    """The name of the form of a version for a runtime (its ``identity``) on this machine's processor."""
    identity = f"{FORMAT}\n{runtime}\n{processor()}".encode()
    return f"{digest}-{digest_of(identity)[:IDENTITY_CHARACTERS]}"


@cache
def processor() -> str:
    """What packed weights depend on of the processor: its architecture and what it says it can do."""
    flags: set[str] = set()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
        for line in file:
            name, _, value = line.partition(":")
            if name.strip() in ("flags", "Features"):
                flags.update(value.split())
    return " ".join([platform.machine(), *sorted(flags)])


def find_form(forms: str, name: str, graph_file: str = GRAPH_FILE) -> PackedForm | None:
    """The form called ``name`` with its graph in ``graph_file``, None when there is none that can be used. Raises
    ArtefactError saying what is wrong with one that is there."""
    path = os.path.join(forms, name)
    if not os.path.isdir(path) or not _is_usable(path):
        return None
    document, digest = read_document(os.path.join(path, FORM_FILE))
    graph, weights = os.path.join(path, graph_file), os.path.join(path, WEIGHTS_FILE)
    for file, size in ((graph, document.graph_bytes), (weights, document.weights_bytes)):
        found = os.path.getsize(file) if os.path.isfile(file) else -1
        if found != size:
            raise ArtefactError(f"packed form {name}: {os.path.basename(file)} has {found} bytes, not {size}")
    return PackedForm(
        path=path,
        graph=graph,
        graph_digest=document.graph_digest,
        weights=WeightsFile(
            path=weights, size=document.weights_bytes, digest=document.weights_digest, pieces=document.pieces
        ),
        tie=document.tie,
        document=digest,
    )


def tied_elsewhere(forms: str, digest: str, tie: str) -> Iterator[tuple[str, str]]:
    """Names of the forms of a version that could be used if they were not tied to something else than ``tie``, and what
    that is."""
    for path in _of_version(forms, digest):
        if _is_usable(path):
            with suppress(ArtefactError):
                document, _ = read_document(os.path.join(path, FORM_FILE))
                if document.tie not in ("", tie):
                    yield os.path.basename(path), document.tie


def find_kept(forms: str, digest: str, sealed: Collection[str]) -> bytes:
    """What was kept when a form of the version was built, as it was then; b"" where there is nothing that is sealed,
    which is that the digest of its document is in ``sealed``."""
    for path in _of_version(forms, digest):
        with suppress(ArtefactError, OSError):
            document, its_digest = read_document(os.path.join(path, FORM_FILE))
            if document.kept_digest and its_digest in sealed:
                return read_file(os.path.join(path, KEPT_FILE), KEPT_BYTES_MAX, document.kept_digest)
    return b""


def encode_document(document: FormDocument) -> bytes:
    """The bytes of ``form.json``."""
    plain = {name: value for name, value in asdict(document).items() if value != ""}
    return (json.dumps(plain, indent=1) + "\n").encode()


def refuse_form(path: str, reason: str) -> bool:
    """Mark the form in the directory ``path`` as one that proved wrong, and drop its files; True when that was done. A
    disk that refuses leaves it as it is."""
    return _strip(path, REFUSED_FILE, reason)


def drop_form(path: str, reason: str) -> None:
    """The form in the directory ``path`` could not be read: drop it, so that it is built anew; refuse it where that was
    done before and has not helped. Several processes may say so of the same form. A disk that refuses leaves it."""
    _strip(path, REFUSED_FILE if os.path.exists(os.path.join(path, ANEW_FILE)) else DROPPED_FILE, reason)


def make_site(forms: str, name: str) -> str:
    """Make an empty directory in which the form ``name`` can be built, and remove what is superseded by it. Raises
    OSError."""
    Path(forms).mkdir(mode=0o700, exist_ok=True)  # and nothing above it: its disk may not be mounted
    site = os.path.join(forms, f"{BUILDING}{name}")
    shutil.rmtree(site, ignore_errors=True)
    _strip_superseded(forms, form_digest(name), name)
    os.mkdir(site, 0o700)
    return site


def place_form(forms: str, name: str, bytes_max: int) -> int:
    """Give the form that was built for ``name`` its name; nothing was where one was there already. Gives how many bytes
    it has. Raises OSError, and ArtefactError for what no builder leaves: other files, or more than ``bytes_max``."""
    path, site = os.path.join(forms, name), os.path.join(forms, f"{BUILDING}{name}")
    if not os.path.isfile(os.path.join(site, FORM_FILE)):
        shutil.rmtree(site, ignore_errors=True)
        return sum(entry.stat().st_size for entry in os.scandir(path))
    nbytes = 0
    with os.scandir(site) as entries:
        for entry in entries:
            nbytes += entry.stat(follow_symlinks=False).st_size
            if entry.name not in FILES or not entry.is_file(follow_symlinks=False) or nbytes > bytes_max:
                raise ArtefactError("its builder left other files, or larger ones, than a form has")
    shutil.rmtree(path, ignore_errors=True)
    os.rename(site, path)
    remove_superseded(forms, form_digest(name), name)
    if os.geteuid() == 0:  # its builder may have been another user, to whom it belongs no longer
        for each in (path, *os.scandir(path)):
            os.chown(each, 0, 0, follow_symlinks=False)
    os.chmod(path, stat.S_IMODE(os.stat(forms).st_mode))  # who may read the state may count what forms take
    return nbytes


def site_size(forms: str, digest: str) -> tuple[int, int]:
    """How many files lie where a version's form is built, and how many bytes they take on the disk."""
    files = nbytes = 0
    for name, known in _all(forms):
        if known == digest and name.startswith(BUILDING):
            with (
                suppress(OSError),
                os.scandir(os.path.join(forms, name)) as entries,
            ):  # it may be removed meanwhile
                for entry in entries:
                    files, nbytes = files + 1, nbytes + entry.stat(follow_symlinks=False).st_blocks * 512
    return files, nbytes


def discard_site(forms: str, digest: str) -> None:
    """Remove what was being built for a version, and was not."""
    if forms and digest:
        for name, known in _all(forms):
            if known == digest and name.startswith(BUILDING):
                shutil.rmtree(os.path.join(forms, name), ignore_errors=True)


def prove_form(path: str) -> None:
    """The form in the directory ``path`` was loaded: what was there before it does not count any more."""
    with suppress(OSError):
        os.unlink(os.path.join(path, ANEW_FILE))


def _strip(path: str, mark: str, reason: str) -> bool:
    """Leave ``mark`` in the place of a form's files; False when the disk does not let it."""
    try:
        Path(path, mark).write_bytes(reason.encode(errors="replace")[:REASON_BYTES_MAX])
    except OSError:
        return False
    for name in (WEIGHTS_FILE, GRAPH_FILE, ENGINE_FILE):
        with suppress(OSError):
            os.unlink(os.path.join(path, name))
    return True


def refuse_forms(forms: str, digest: str, reason: str) -> bool:
    """Mark all forms of a version, as when a worker died of one; True when there were some that could be used."""
    usable = [path for path in _of_version(forms, digest) if _is_usable(path)]
    return sum(refuse_form(path, reason) for path in usable) > 0


def remove_forms(forms: str, kept: Collection[str], marked: Collection[str], *, building: bool) -> None:
    """Remove the forms of all versions but those with the digests ``kept``, and what a builder left that ended before
    it was done unless one is ``building`` now. The mark of a form that proved wrong stays for versions ``marked``, too.
    A disk that refuses leaves them as they are."""
    for name, digest in _all(forms):
        path = os.path.join(forms, name)
        stays = digest in kept or (digest in marked and _is_refused(path))
        if not stays or (name.startswith(BUILDING) and not building):
            shutil.rmtree(path, ignore_errors=True)


def remove_superseded(forms: str, digest: str, name: str) -> None:
    """Remove the forms of a version for other runtimes and processors than that called ``name`` is for: they were built
    before this box was changed. Marks of forms that proved wrong stay."""
    for path in _of_version(forms, digest):
        if os.path.basename(path) != name and not _is_refused(path):
            shutil.rmtree(path, ignore_errors=True)


def _strip_superseded(forms: str, digest: str, name: str) -> None:
    """As ``remove_superseded``, but for what was kept for the form that is built now."""
    for path in _of_version(forms, digest):
        if os.path.basename(path) != name and os.path.exists(os.path.join(path, KEPT_FILE)):
            _strip(path, DROPPED_FILE, "another one is built in its place")
        elif os.path.basename(path) != name and not _is_refused(path):
            shutil.rmtree(path, ignore_errors=True)


def form_bytes(forms: str) -> dict[str, int]:
    """What forms take on the disk, by the digest of their version."""
    sizes: Counter[str] = Counter()
    for name, digest in _all(forms):
        with suppress(OSError):  # it may be removed meanwhile
            sizes[digest] += sum(file.stat().st_size for file in os.scandir(os.path.join(forms, name)))
    return sizes


def _all(forms: str) -> Iterator[tuple[str, str]]:
    """Names of forms, and of those that are built, with the digests of their versions."""
    with suppress(OSError):
        for name in os.listdir(forms):
            if digest := form_digest(name):
                yield name, digest


def refusal(forms: str, name: str) -> str:
    """Why the form ``name`` was refused, "" when it was not."""
    try:
        return (
            Path(forms, name, REFUSED_FILE).read_bytes()[:REASON_BYTES_MAX].decode(errors="replace")
            or "refused"
        )
    except OSError:
        return ""


def was_dropped(path: str) -> bool:
    """Whether the form in the directory ``path`` could not be read, or the one before it, in whose place it was built
    and not loaded yet."""
    return any(os.path.exists(os.path.join(path, mark)) for mark in (DROPPED_FILE, ANEW_FILE))


def _is_refused(path: str) -> bool:
    return os.path.exists(os.path.join(path, REFUSED_FILE))


def _is_usable(path: str) -> bool:
    return not _is_refused(path) and not os.path.exists(os.path.join(path, DROPPED_FILE))


def _of_version(forms: str, digest: str) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(forms):
            if name.startswith(f"{digest}-"):
                yield os.path.join(forms, name)


def read_document(path: str) -> tuple[FormDocument, str]:
    """A ``form.json`` and its digest. Raises ArtefactError."""
    try:
        with open(path, "rb") as file:
            data = file.read(FORM_BYTES_MAX + 1)
        plain: Any = json.loads(data)
        if len(data) > FORM_BYTES_MAX or not isinstance(plain, Mapping):
            raise ValueError("it is not the document of a form")
        return bind(FormDocument, plain, path), digest_of(data)
    except (OSError, ValueError, RecursionError, ConfigInvalid) as problem:
        raise ArtefactError(f"packed form: {path} cannot be used: {problem}") from problem
