"""Build the packed form of a version inside a worker that does nothing else, in the background.

A form is used only if it gave the right answers here: those of the golden set or, where there is none, those that the
version itself gives to requests of seeded values. Whatever goes wrong leaves no form behind. An engine is run in turns
with the version's session besides; which of them is to serve is not decided here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple

from appliance.domain.digest import digest_of, digests_of_file
from appliance.domain.errors import (
    ApplianceError,
    ArtefactError,
    FormHasNoRoom,
    LoadFailed,
    is_of_full_device,
)
from appliance.domain.free_sizes import largest
from appliance.domain.model import ModelVersion, WeightsFile
from appliance.domain.side_by_side import SideBySide
from appliance.runtimes import reshape
from appliance.runtimes.runtime import (
    KEPT_FILE,
    LIKE_BYTES_MAX,
    LIKE_FILE,
    Donor,
    Packer,
    Runtime,
    RuntimeSettings,
    check_signature,
    form_file,
    is_sealed,
    left_beside,
)
from appliance.runtimes.weights import read_ahead
from appliance.store.layout import BLOBS
from appliance.workers.child.comparison import compare
from appliance.workers.child.execution import LoadedModel
from appliance.workers.child.proof import (
    check_provable,
    compare_answers,
    golden_sizes,
    open_golden,
    run_golden,
)
from appliance.workers.forms import (
    ANEW_FILE,
    BUILDING,
    FORM_FILE,
    FORMAT,
    WEIGHTS_FILE,
    FormDocument,
    PackedForm,
    encode_document,
    find_form,
    find_kept,
    form_bytes,
    form_name,
    make_site,
    refusal,
    was_dropped,
)
from appliance.workers.jail.access import FORM_FACTOR, FormSite
from appliance.workers.port import FormVerdict

Judge = Callable[[str, FormVerdict, str], None]
"""Takes the name of a form, what is to become of it, and why."""
ROOM_FACTOR: Final = 5
"""It is written twice."""


class Built(NamedTuple):
    """The name of a form, how many bytes it has, and what an engine showed beside the version's session."""

    name: str
    nbytes: int
    compared: tuple[SideBySide, ...]


def prepare_site(site: FormSite, runtimes: Mapping[str, Runtime]) -> str:
    """Make the directory in which a worker will build, before it enters its jail; "" where it will not. Raises
    OSError."""
    runtime: object = runtimes.get(site.runtime)
    if not isinstance(runtime, Packer):
        return ""
    name = form_name(site.digest, runtime.identity)
    return "" if refusal(site.forms, name) else make_site(site.forms, name)


def build_form(version: ModelVersion, runtime: Runtime, settings: RuntimeSettings, judge: Judge) -> Built:
    """Build the form of ``version`` where the daemon takes it up. One that is there already is left as it is, and was
    compared when it was built. Raises FormHasNoRoom, LoadFailed, OSError."""
    if not isinstance(runtime, Packer):
        raise LoadFailed(f"{version.key}: runtime '{version.runtime}' has no packed forms")
    if not version.forms or not version.digest:
        raise LoadFailed(
            f"{version.key}: a packed form needs a directory of forms and a version with a digest"
        )
    name = form_name(version.digest, runtime.identity)
    if reason := refusal(version.forms, name):
        raise LoadFailed(f"{version.key}: its packed form was refused before: {reason}")
    path, site = os.path.join(version.forms, name), os.path.join(version.forms, f"{BUILDING}{name}")
    try:
        form = find_form(version.forms, name, form_file(runtime))
        if form is not None:
            check_seal(version, runtime, form)
    except ArtefactError as problem:
        judge(name, FormVerdict.DROPPED, str(problem))
        form = None
    if form is not None:
        return Built(name, _bytes_in(path), ())
    if not os.path.isdir(site) or os.listdir(site):  # as is the rest of a builder that died
        make_site(version.forms, name)
    try:
        _check_room(version)
        if was_dropped(path):
            Path(site, ANEW_FILE).write_bytes(b"")
        golden = open_golden(version)
        check_provable(version, golden)  # before it takes minutes
        kept = find_kept(version.forms, version.digest, version.sealed)
        donors = tuple(_donors(version, runtime))
        held = replace(version, free_sizes=largest(version.free_sizes, golden_sizes(version, golden)))
        compared = _build(held, runtime, replace(settings, kept=kept, donors=donors), site)
        _check_quota(version, 0)  # what was installed meanwhile comes first
    except BaseException:
        for entry in os.scandir(site):  # the daemon removes it
            with suppress(OSError):
                os.unlink(entry)
        raise
    return Built(name, _bytes_in(site), compared)


def _donors(version: ModelVersion, runtime: Packer) -> Iterator[Donor]:
    """Forms of other versions from which this one's may be made, whose seals hold."""
    for name in version.kin:
        with suppress(ArtefactError):
            form = find_form(version.forms, name, form_file(runtime))
            if form is not None and form.like and is_sealed(runtime):
                check_seal(version, runtime, form)
                yield Donor(form.graph, form.graph_digest, form.like)


def _bytes_in(path: str) -> int:
    return sum(entry.stat().st_size for entry in os.scandir(path))


def _build(
    version: ModelVersion, runtime: Runtime, settings: RuntimeSettings, directory: str
) -> tuple[SideBySide, ...]:
    """Write the form into ``directory``; what it showed beside the session."""
    assert isinstance(runtime, Packer)
    graph, weights = os.path.join(directory, form_file(runtime)), os.path.join(directory, WEIGHTS_FILE)
    if version.weights is not None:
        # A form of weights that rotted would be as wrong, and proven by them.
        read_ahead(version.weights, verify=True)
    runtime.pack(version, settings, graph, weights)
    if not os.path.exists(weights):
        Path(weights).write_bytes(b"")
    kept, like = Path(directory, KEPT_FILE), _take_like(directory)
    digests = digests_of_file(weights)
    file = WeightsFile(path=weights, size=digests.size, digest=digests.digest, pieces=digests.pieces)
    graph_digest = digest_of(Path(graph).read_bytes())
    form = PackedForm(path=directory, graph=graph, graph_digest=graph_digest, weights=file)
    try:
        compared = _prove(version, form, runtime, settings)
    except ApplianceError as problem:
        refitted = any(like and donor.like == like for donor in settings.donors)
        if not refitted or is_of_full_device(problem):
            raise
        # It may be what was taken from another version that is wrong: some weights are more than weights.
        print(f"{version.key}: what it has of another version proved wrong: {problem}", file=sys.stderr)
        for path in (graph, weights, kept):
            Path(path).unlink(missing_ok=True)
        return _build(version, runtime, replace(settings, donors=()), directory)
    document = FormDocument(
        format=FORMAT,
        graph_bytes=os.path.getsize(graph),
        graph_digest=graph_digest,
        weights_bytes=digests.size,
        weights_digest=digests.digest,
        pieces=digests.pieces,
        tie=runtime.identity if is_sealed(runtime) else "",
        kept_digest=digest_of(kept.read_bytes()) if kept.exists() else "",
        like=like,
    )
    with open(os.path.join(directory, FORM_FILE), "xb") as target:
        target.write(encode_document(document))
    for each in os.scandir(directory):
        _sync(each.path)
    _sync(directory)
    return compared


def _take_like(directory: str) -> str:
    """What the runtime left in LIKE_FILE, which is no part of the form."""
    path = Path(directory, LIKE_FILE)
    if not path.exists():
        return ""
    like = path.read_text()[:LIKE_BYTES_MAX]
    path.unlink()
    return like


def check_seal(version: ModelVersion, runtime: Packer, form: PackedForm) -> None:
    """Raise ArtefactError where the runtime wants its forms sealed, and this one is not, or for something else."""
    if not is_sealed(runtime):
        return
    name = os.path.basename(form.path)
    if form.document not in version.sealed:
        raise ArtefactError(
            f"packed form {name}: this box has not sealed it, or it was changed since; it is not read, and built anew"
        )
    if form.tie != runtime.identity:
        raise ArtefactError(
            f"packed form {name}: it was built for {form.tie}, and this is {runtime.identity}"
        )


def _prove(
    version: ModelVersion, form: PackedForm, runtime: Runtime, settings: RuntimeSettings
) -> tuple[SideBySide, ...]:
    """Raise LoadFailed unless the form gives the right answers; gives what an engine shows beside the session. Forms of
    weights are not there to run faster, and are not compared so: they load faster, and run the same kernels."""
    session = reshape.load(runtime, form.version_of(version), replace(settings, packed=True))
    try:
        check_signature(version, session)
        packed = LoadedModel(version=version, session=session)
        golden = open_golden(version)
        proven, is_engine = golden is not None and bool(golden.set.cases), version.has_engine
        if golden is not None and proven:
            run_golden(packed, golden)
        if proven and not is_engine:
            return ()
        left = left_beside(settings, session)
        try:
            original = reshape.load(runtime, version, left)
        except LoadFailed as problem:
            if not proven:
                raise
            # As where the device has no room for both. It is compared with what the session showed when it was loaded.
            print(f"{version.key}: its engine is not run beside its session: {problem}", file=sys.stderr)
            return ()
        try:
            reference = LoadedModel(version=version, session=original)
            if not proven:
                compare_answers(packed, reference)
            if not is_engine:
                return ()
            return compare(packed, reference, golden, left_beside(left, original).room_bytes)
        finally:
            original.close()
    finally:
        session.close()


def _check_room(version: ModelVersion) -> None:
    """Raise FormHasNoRoom where the form would take what is to be left free, or more than the quota."""
    room, found = version.form_room, os.statvfs(version.forms)
    free, needed = found.f_bavail * found.f_frsize, ROOM_FACTOR * version.file_bytes
    if free - room.free_floor_bytes < needed:
        raise FormHasNoRoom(
            f"{version.key}: a packed form needs {needed} free bytes while it is built, {version.forms} has {free}, "
            f"of which store.free_floor_bytes ({room.free_floor_bytes}) stay free"
        )
    _check_quota(version, int(FORM_FACTOR * version.file_bytes))


def _check_quota(version: ModelVersion, size: int) -> None:
    """Raise FormHasNoRoom where ``size`` more bytes would be more than the quota."""
    room = version.form_room
    if not room.quota_bytes:
        return
    taken = _taken(version)
    if taken + size > room.quota_bytes:
        raise FormHasNoRoom(
            f"{version.key}: blobs and packed forms take {taken} bytes; with {size} more for this form that "
            f"is more than store.quota_bytes ({room.quota_bytes})"
        )


def _taken(version: ModelVersion) -> int:
    """Bytes of all blobs and forms."""
    blobs = 0
    for group in os.scandir(os.path.join(version.form_room.state, BLOBS)):
        with suppress(OSError):  # it may be removed meanwhile
            blobs += sum(blob.stat(follow_symlinks=False).st_size for blob in os.scandir(group))
    return blobs + sum(form_bytes(version.forms).values())


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
