"""Seals of packed forms that whoever reads them would believe: engines, which are programs.

The daemon seals the document of such a form when it puts the form into its place: with a key of this box, over the
form's name, which has the version's digest in it, and the document, which says what the form is tied to and has the
digests of its files. The daemon looks at the seals again when it has a version loaded or built, and tells the worker
which documents hold; the worker takes no others, and verifies the files by the document. So no worker ever has the key,
and a form of another box, or one that was changed, is not read by anything.

Where the form of another version may be made from it, the daemon seals as well whose it is: of which model, and who
vouches for that. Nothing of this is what a builder says.

What an engine is tied to is asked of the driver once, when the daemon starts. Once that driver is known to be another
one, nothing is sealed, built or opened any more, for what is known of it holds no longer.

The key lies beside the directory of forms, for its owner alone. It is made when it is first needed; one that others may
have read, or that is cut short, is thrown away, and with it whatever it has sealed.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import stat
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Final

from appliance.domain.digest import digest_of
from appliance.domain.errors import ArtefactError
from appliance.domain.model import ENGINE_RUNTIMES, ModelVersion
from appliance.domain.regular_file import opened, read_file
from appliance.store.layout import FORMS_KEY
from appliance.workers.forms import (
    FAMILY_FILE,
    FORM_FILE,
    SEAL_FILE,
    SEALED_BYTES_MAX,
    is_directory,
    parse_document,
)
from appliance.workers.jail.support import kernel_support

KEY_BYTES: Final = 32
SEAL_BYTES: Final = hashlib.sha256().digest_size
KIN_MAX: Final = 8
_driver_changed: Final = threading.Event()
"""Set once in the life of the process, by the event loop's thread; read from whatever thread."""


def driver_changed() -> None:
    """Have no engine be built, sealed or opened from now on, until the daemon starts anew: the driver is another."""
    _driver_changed.set()


def seal_problem(runtime: str) -> str:
    """Why engines of ``runtime`` are neither built nor opened here, for people; "" for one that has none, and where
    nothing speaks against it."""
    if runtime not in ENGINE_RUNTIMES:
        return ""
    if not _keeps_key():
        return (
            "this kernel has no Landlock, or it is switched off, "
            "so that workers could read the key that seals engines"
        )
    if _driver_changed.is_set():
        return "the driver was changed under the appliance, and an engine is for one driver; start the appliance anew"
    return ""


def _keeps_key() -> bool:
    """Whether workers can be kept from the key."""
    return kernel_support().landlock > 0


def seal_form(version: ModelVersion, name: str) -> None:
    """Seal the form ``name`` of a version, which is in its place and which no builder can change any more, if it is
    tied to something and the key is kept from workers. Raises OSError."""
    if not _keeps_key() or _driver_changed.is_set():
        return
    forms = version.forms
    path = os.path.join(forms, name)
    try:
        document = read_file(os.path.join(path, FORM_FILE), SEALED_BYTES_MAX, follow=False)
        parsed = parse_document(document, path)
        if not parsed.tie:
            return
    except ArtefactError:
        return  # whoever loads it finds out
    key = _key(forms) or _make_key(forms)
    _write_new(os.path.join(path, SEAL_FILE), _seal(key, name, document))
    if parsed.like:
        _write_new(os.path.join(path, FAMILY_FILE), _family(key, name, document, version))


def kin_of(version: ModelVersion) -> tuple[str, ...]:
    """The names of forms of other versions of the same model, for whom the same vouches, from which one of ``version``
    may be made: this box has sealed them, and that they are such."""
    if not (version.forms and version.digest and _keeps_key()):
        return ()
    found = []
    key = _key(version.forms)
    with suppress(OSError):
        for name in sorted(os.listdir(version.forms)):
            form = os.path.join(version.forms, name)
            if not key or name.startswith(f"{version.digest}-") or not is_directory(form):
                continue
            with suppress(ArtefactError):  # it is of no family, or may be removed meanwhile
                family = read_file(os.path.join(form, FAMILY_FILE), SEAL_BYTES, follow=False)
                document = read_file(os.path.join(form, FORM_FILE), SEALED_BYTES_MAX, follow=False)
                if hmac.compare_digest(family, _family(key, name, document, version)):
                    found.append(name)
    return tuple(found[:KIN_MAX])


def sealed_documents(version: ModelVersion) -> tuple[str, ...]:
    """The digests of the documents of those of the version's forms, and of its kin, that this box has sealed; none
    where workers could have read the key."""
    return tuple(_holding(version)) if version.forms and version.digest and _keeps_key() else ()


def _holding(version: ModelVersion) -> Iterator[str]:
    with suppress(OSError):
        for name in os.listdir(version.forms):
            form = os.path.join(version.forms, name)
            if not (name.startswith(f"{version.digest}-") or name in version.kin) or not is_directory(form):
                continue
            with suppress(ArtefactError):  # it has none, or may be removed meanwhile
                seal = read_file(os.path.join(form, SEAL_FILE), SEAL_BYTES, follow=False)
                document = read_file(os.path.join(form, FORM_FILE), SEALED_BYTES_MAX, follow=False)
                key = _key(version.forms)
                if key and hmac.compare_digest(seal, _seal(key, name, document)):
                    yield digest_of(document)


def _seal(key: bytes, name: str, document: bytes) -> bytes:
    return hmac.digest(key, b"\n".join((b"packed form", name.encode(), document)), "sha256")


def _family(key: bytes, name: str, document: bytes, version: ModelVersion) -> bytes:
    """Over a form, the model that it is of, and who vouches for that."""
    whose = f"{len(version.name)} {version.name} {version.trust}".encode()
    return hmac.digest(
        key, b"\n".join((b"family of a packed form", name.encode(), whose, document)), "sha256"
    )


def _key_path(forms: str) -> str:
    return os.path.join(os.path.dirname(forms), FORMS_KEY)


def _key(forms: str) -> bytes:
    """The key; b"" where there is none that only this user can have read."""
    with suppress(ArtefactError, OSError), opened(_key_path(forms), follow=False) as descriptor:
        found = os.fstat(descriptor)
        ours = found.st_uid == os.geteuid() and stat.S_IMODE(found.st_mode) == 0o600
        key = os.pread(descriptor, KEY_BYTES + 1, 0)
        if ours and len(key) == KEY_BYTES:
            return key
    return b""


def _make_key(forms: str) -> bytes:
    """A new key in the place of what may be there."""
    path, key = _key_path(forms), secrets.token_bytes(KEY_BYTES)
    making = f"{path}.new"
    with suppress(FileNotFoundError):
        os.unlink(making)
    _write_new(making, key)
    os.rename(making, path)
    return key


def _write_new(path: str, data: bytes) -> None:
    """Write a file that is not there, for its owner alone, so that it survives a power cut."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(path, flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
