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
from appliance.domain.digest import digest_of, piece_count
from appliance.domain.errors import ArtefactError, ConfigInvalid
from appliance.domain.model import ModelVersion, WeightsFile
from appliance.domain.regular_file import opened, read_file
from appliance.runtimes.runtime import ENGINE_FILE, GRAPH_FILE, KEPT_BYTES_MAX, KEPT_FILE
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
"""What a builder may leave. SEAL_FILE is not among them."""
BUILDING: Final = BUILDING_FORM
SEAL_FILE: Final = "seal"
FAMILY_FILE: Final = "family"
"""The seal over whose form it is, where others may be made from it."""
FORM_BYTES_MAX: Final = 16 << 20
DOCUMENT_BYTES_MIN: Final = 4096
DOCUMENT_BYTES_A_PIECE: Final = 80
"""A digest, its quotes and what parts it from the next."""
SEALED_BYTES_MAX: Final = 64 << 10
"""Of a document that can be sealed: the daemon itself reads it."""
REASON_BYTES_MAX: Final = 4096
IDENTITY_CHARACTERS: Final = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedForm:
    """A form on disk: its directory, graph and weights. ``tie`` is the identity that it was built for where it has to
    be sealed, "" else, ``document`` the digest of its document, ``like`` what it has in common with those that can be
    made from it."""

    path: str
    graph: str
    graph_digest: str
    weights: WeightsFile
    tie: str = ""
    document: str = ""
    like: str = ""

    def version_of(self, version: ModelVersion) -> ModelVersion:
        """The version with the form's files in the place of its own."""
        digests = {**version.digests, self.graph: self.graph_digest}
        return replace(version, path=self.graph, weights=self.weights, digests=digests)


@dataclass(frozen=True, slots=True, kw_only=True)
class FormDocument:
    """The document of ``form.json``. ``tie``, ``kept_digest`` and ``like`` are left out where they are ""."""

    format: int = field(metadata={"choices": (FORMAT,)})
    graph_bytes: int = field(metadata={"min": 1, "unit": "bytes"})
    graph_digest: str
    weights_bytes: int = field(metadata={"min": 0, "unit": "bytes"})
    weights_digest: str
    pieces: tuple[str, ...]
    tie: str = ""
    kept_digest: str = ""
    like: str = ""


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
    if not _is_usable(path):
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
        like=document.like,
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
    for path in filter(is_directory, _of_version(forms, digest)):
        with suppress(ArtefactError):
            document, its_digest = read_document(os.path.join(path, FORM_FILE))
            if document.kept_digest and its_digest in sealed:
                kept = os.path.join(path, KEPT_FILE)
                return read_file(kept, KEPT_BYTES_MAX, document.kept_digest, follow=False)
    return b""


def encode_document(document: FormDocument) -> bytes:
    """The bytes of ``form.json``."""
    plain = {name: value for name, value in asdict(document).items() if value != ""}
    return (json.dumps(plain, indent=1) + "\n").encode()


def refuse_form(path: str, reason: str) -> bool:
    """Mark the form in the directory ``path`` as one that proved wrong, and drop its files; True when that was done. A
    disk that refuses leaves it as it is."""
    return _strip(path, REFUSED_FILE, reason)


def drop_form(path: str, reason: str, *, for_good: bool = True) -> bool:
    """The form in the directory ``path`` could not be read: drop it, so that it is built anew; refuse it where that was
    done before and has not helped, if it may go ``for_good``. Several processes may say so of the same form. True when
    that was done: a disk that refuses leaves it."""
    again = for_good and os.path.exists(os.path.join(path, ANEW_FILE))
    return _strip(path, REFUSED_FILE if again else DROPPED_FILE, reason)


def make_site(forms: str, name: str) -> str:
    """Make an empty directory in which the form ``name`` can be built, and remove what is superseded by it. Raises
    OSError."""
    Path(forms).mkdir(mode=0o700, exist_ok=True)  # and nothing above it: its disk may not be mounted
    site = os.path.join(forms, f"{BUILDING}{name}")
    _remove(site)
    _strip_superseded(forms, form_digest(name), name)
    os.mkdir(site, 0o700)
    return site


def place_form(forms: str, name: str, file_max: int) -> int:
    """Give the form that was built for ``name``, whose files have ``file_max`` bytes at most, its name; nothing was
    where one was there already. Gives how many bytes it has. Raises OSError, and ArtefactError for what no builder
    leaves: other files, or larger ones, or a longer document."""
    path, site = os.path.join(forms, name), os.path.join(forms, f"{BUILDING}{name}")
    document_max = document_bytes_max(file_max)
    if not is_directory(site) or not os.path.isfile(os.path.join(site, FORM_FILE)):
        _remove(site)
        return sum(entry.stat().st_size for entry in os.scandir(path))
    nbytes = kept = 0
    with os.scandir(site) as entries:
        for entry in entries:
            size = entry.stat(follow_symlinks=False).st_size
            nbytes += size
            kept += size if entry.name == KEPT_FILE else 0
            other = entry.name not in FILES or not entry.is_file(follow_symlinks=False)
            longer = nbytes - kept > file_max + FORM_BYTES_MAX or kept > KEPT_BYTES_MAX
            if other or longer or (entry.name == FORM_FILE and size > document_max):
                raise ArtefactError("its builder left other files, or larger ones, than a form has")
    _remove(path)
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
        path = os.path.join(forms, name)
        if known == digest and name.startswith(BUILDING) and is_directory(path):
            with suppress(OSError), os.scandir(path) as entries:  # it may be removed meanwhile
                for entry in entries:
                    files, nbytes = files + 1, nbytes + entry.stat(follow_symlinks=False).st_blocks * 512
    return files, nbytes


def discard_site(forms: str, digest: str) -> None:
    """Remove what was being built for a version, and was not."""
    if forms and digest:
        for name, known in _all(forms):
            if known == digest and name.startswith(BUILDING):
                _remove(os.path.join(forms, name))


def prove_form(path: str) -> None:
    """The form in the directory ``path`` was loaded: what was there before it does not count any more."""
    with suppress(OSError):
        os.unlink(os.path.join(path, ANEW_FILE))


def is_directory(path: str) -> bool:
    """Whether there is a directory at ``path``; a link to one is none."""
    try:
        return stat.S_ISDIR(os.lstat(path).st_mode)
    except OSError:
        return False


def document_bytes_max(weights_bytes: int) -> int:
    """How long the document of a form can be whose weights have so many bytes at most: it has a digest of each piece
    of them."""
    return min(DOCUMENT_BYTES_MIN + DOCUMENT_BYTES_A_PIECE * piece_count(weights_bytes), FORM_BYTES_MAX)


def _remove(path: str) -> None:
    """Remove what is at ``path``, and of a link the link alone. A disk that refuses leaves it."""
    if is_directory(path):
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):
            os.unlink(path)


def _strip(path: str, mark: str, reason: str) -> bool:
    """Leave ``mark`` in the place of a form's files; False when the disk does not let it, or where a link is in the
    place of the directory. What is refused has its seal taken: it would be believed again, were its mark removed."""
    try:
        form = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        _write_mark(form, mark, reason.encode(errors="replace")[:REASON_BYTES_MAX])
        sealed = (SEAL_FILE, FAMILY_FILE) if mark == REFUSED_FILE else ()
        for name in (*sealed, WEIGHTS_FILE, GRAPH_FILE, ENGINE_FILE):
            with suppress(OSError):
                os.unlink(name, dir_fd=form)
    except OSError:
        return False
    finally:
        os.close(form)
    return True


def _write_mark(form: int, mark: str, text: bytes) -> None:
    """Write a file into the directory that is open at ``form``, through no link that is in its place. Raises
    OSError."""
    with suppress(FileNotFoundError):
        os.unlink(mark, dir_fd=form)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(mark, flags, 0o644, dir_fd=form), "wb") as file:
        file.write(text)


def refuse_forms(forms: str, digest: str, reason: str, *, known: bool = True) -> bool:
    """Mark all forms of a version, as when a worker died of one; True when there were some that could be used. Where it
    is not ``known`` to have been that, they are dropped, to be built anew."""
    usable = [path for path in _of_version(forms, digest) if _is_usable(path)]
    if known:
        return sum(refuse_form(path, reason) for path in usable) > 0
    return sum(drop_form(path, reason, for_good=False) for path in usable) > 0


def remove_forms(forms: str, kept: Collection[str], marked: Collection[str], *, building: bool) -> None:
    """Remove the forms of all versions but those with the digests ``kept``, and what a builder left that ended before
    it was done unless one is ``building`` now. The mark of a form that proved wrong stays for versions ``marked``, too.
    A disk that refuses leaves them as they are."""
    for name, digest in _all(forms):
        path = os.path.join(forms, name)
        stays = digest in kept or (digest in marked and _is_refused(path))
        if not stays or (name.startswith(BUILDING) and not building):
            _remove(path)


def remove_superseded(forms: str, digest: str, name: str) -> None:
    """Remove the forms of a version for other runtimes and processors than that called ``name`` is for: they were built
    before this box was changed. Marks of forms that proved wrong stay."""
    for path in _of_version(forms, digest):
        if os.path.basename(path) != name and not _is_refused(path):
            _remove(path)


def _strip_superseded(forms: str, digest: str, name: str) -> None:
    """As ``remove_superseded``, but for what was kept for the form that is built now."""
    for path in _of_version(forms, digest):
        keeps = is_directory(path) and os.path.exists(os.path.join(path, KEPT_FILE))
        if os.path.basename(path) != name and keeps:
            _strip(path, DROPPED_FILE, "another one is built in its place")
        elif os.path.basename(path) != name and not _is_refused(path):
            _remove(path)


def form_bytes(forms: str) -> dict[str, int]:
    """What forms take on the disk, by the digest of their version."""
    sizes: Counter[str] = Counter()
    for name, digest in _all(forms):
        path = os.path.join(forms, name)
        with suppress(OSError):  # it may be removed meanwhile
            if is_directory(path):
                sizes[digest] += sum(file.stat(follow_symlinks=False).st_size for file in os.scandir(path))
    return sizes


def _all(forms: str) -> Iterator[tuple[str, str]]:
    """Names of forms, and of those that are built, with the digests of their versions."""
    with suppress(OSError):
        for name in os.listdir(forms):
            if digest := form_digest(name):
                yield name, digest


def refusal(forms: str, name: str) -> str:
    """Why the form ``name`` was refused, "" when it was not."""
    path = os.path.join(forms, name)
    try:
        with opened(os.path.join(path, REFUSED_FILE), follow=False) as descriptor:
            return os.pread(descriptor, REASON_BYTES_MAX, 0).decode(errors="replace") or "refused"
    except (ArtefactError, OSError):
        return "refused" if _is_refused(path) else ""


def was_dropped(path: str) -> bool:
    """Whether the form in the directory ``path`` could not be read, or the one before it, in whose place it was built
    and not loaded yet."""
    return any(os.path.exists(os.path.join(path, mark)) for mark in (DROPPED_FILE, ANEW_FILE))


def _is_refused(path: str) -> bool:
    return is_directory(path) and os.path.lexists(os.path.join(path, REFUSED_FILE))


def _is_usable(path: str) -> bool:
    return is_directory(path) and not any(
        os.path.lexists(os.path.join(path, mark)) for mark in (REFUSED_FILE, DROPPED_FILE)
    )


def _of_version(forms: str, digest: str) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(forms):
            if name.startswith(f"{digest}-"):
                yield os.path.join(forms, name)


def read_document(path: str) -> tuple[FormDocument, str]:
    """A ``form.json`` and its digest; it is not longer than the weights beside it, or a seal, allow. Raises
    ArtefactError."""
    weights = os.path.join(os.path.dirname(path), WEIGHTS_FILE)
    try:
        size = os.stat(weights, follow_symlinks=False).st_size
    except OSError:
        size = 0
    try:
        data = read_file(path, max(document_bytes_max(size), SEALED_BYTES_MAX), follow=False)
    except ArtefactError as problem:
        raise ArtefactError(f"packed form: {path} cannot be used: {problem}") from (
            problem.__cause__ or problem
        )
    return parse_document(data, path), digest_of(data)


def parse_document(data: bytes, path: str) -> FormDocument:
    """What the bytes of the ``form.json`` at ``path`` say. Raises ArtefactError."""
    try:
        plain: Any = json.loads(data)
        if not isinstance(plain, Mapping):
            raise ValueError("it is not the document of a form")
        return bind(FormDocument, plain, path)
    except (ValueError, RecursionError, ConfigInvalid) as problem:
        raise ArtefactError(f"packed form: {path} cannot be used: {problem}") from problem
