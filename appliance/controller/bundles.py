"""Bundles at the controller: what is written for boxes that no link reaches, and what comes back from them.

A box's bundle is believed as far as its certificate goes: issued by this controller, not revoked, and the key of it
signed the index. Expiry is told and stands in the way of nothing, as on the link, where such a box could still renew.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Protocol

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.x509.oid import NameOID
from securesystemslib.exceptions import Error as SignatureError
from securesystemslib.signer import Signature, SSlibKey
from zstandard import ZstdDecompressor, ZstdError

from appliance.controller.signing import DeviceMetadata
from appliance.domain.errors import Problem
from appliance.domain.manifest import INT64_MAX
from appliance.durable import Bytes
from appliance.fleet.bundle import FROM_BOX, INDEX, SIGNED_PREFIX, BundleInvalid, Member, SignedIndex
from appliance.fleet.documents import decode as decode_document
from appliance.fleet.messages import (
    TELEMETRY_UNPACKED_MAX,
    Acknowledged,
    Batch,
    MessageInvalid,
    Report,
    decode,
)
from appliance.transfer.bundle_reader import BundleReader, Progress
from appliance.transfer.bundle_writer import Part, part_of

_WRONG = (ValueError, InvalidSignature, UnsupportedAlgorithm, SignatureError, TypeError)


class Blobs(Protocol):
    """Where streams and their indexes lie, by digest."""

    def size(self, digest: str) -> int | None:
        """Its bytes; None: it is not there."""

    def chunks(self, digest: str) -> Iterable[Bytes]:
        """Its contents. Raises OSError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """What one box gets: its metadata with the document, and what the controller has of its telemetry."""

    metadata: DeviceMetadata
    acknowledged: tuple[Acknowledged, ...] = ()


class Batches:
    """The batches in ``members``, which were checked, of a bundle that is open: each is read when it is its turn, since
    all that a box can pack is more than memory holds. Raises BundleInvalid where the bundle is another one by then."""

    def __init__(self, bundle: BundleReader, members: Sequence[Member]) -> None:
        self._bundle = bundle
        self._members = members

    def __len__(self) -> int:
        return len(self._members)

    def __iter__(self) -> Iterator[Batch]:
        return (batch_in(self._bundle.read(each)) for each in self._members)


@dataclass(frozen=True, slots=True, kw_only=True)
class Received:
    """What a box's bundle holds, all of it checked; nothing is kept yet. ``records`` are in all batches together."""

    device: str
    report: Report | None
    report_bytes: bytes
    batches: Batches
    records: int


def parts_for(
    roots: Sequence[bytes], devices: Mapping[str, Export], blobs: Blobs
) -> tuple[list[Part], tuple[str, ...]]:
    """The files of a bundle for ``devices``, with every stream that one of them may need, and the digests of those that
    are not there."""
    parts = [part_of(f"roots/{number}.json", root) for number, root in enumerate(roots, 1)]
    pieces: dict[str, str] = {}
    for device, export in sorted(devices.items()):
        metadata, here = export.metadata, f"devices/{device}"
        parts += [
            part_of(f"{here}/timestamp.json", metadata.timestamp),
            part_of(f"{here}/snapshot.json", metadata.snapshot),
            part_of(f"{here}/targets.json", metadata.targets),
            part_of(f"{here}/desired.msgpack", metadata.document),
        ]
        if export.acknowledged:
            parts.append(part_of(f"{here}/acknowledged.msgpack", msgspec.msgpack.encode(export.acknowledged)))
        pieces |= pieces_of(metadata.document)
    missing = []
    for digest, path in sorted(pieces.items(), key=lambda each: each[1]):
        size = blobs.size(digest)
        if size is None:
            missing.append(digest)
        else:
            parts.append(Part(member=Member(path, size, digest), open=partial(blobs.chunks, digest)))
    return parts, tuple(missing)


def pieces_of(document: bytes) -> dict[str, str]:
    """The blobs that a device with the document may ask for, by their digests, and where each lies in a bundle."""
    found: dict[str, str] = {}
    for model in decode_document(document).models:
        for version in model.versions():
            for transfer in version.transfers:
                found[transfer.index] = f"indexes/{transfer.index}"
                found[transfer.stream] = f"streams/{transfer.stream}"
    return found


def receive(
    bundle: BundleReader,
    authorities: Sequence[x509.Certificate],
    is_revoked: Callable[[x509.Certificate], bool],
    progress: Progress = lambda count: None,
) -> Received:
    """What a box's ``bundle`` holds. Raises BundleInvalid with everything that is wrong with it."""
    if bundle.index.kind != FROM_BOX:
        text = f"is for {', '.join(bundle.index.devices[:8]) or 'boxes'}; a box imports it"
        raise BundleInvalid([Problem(file=str(bundle.path), key="", text=text)])
    certificate = certificate_of(bundle.signed, authorities)
    device = device_of(certificate)
    problems: list[Problem] = []
    if is_revoked(certificate):
        problems.append(Problem(file=INDEX, key="", text=f"the certificate of '{device}' was revoked"))
    telemetry: list[Member] = []
    report, report_bytes, records = None, b"", 0
    for member in bundle.index.members:
        if member.device != device:
            text = f"is of '{member.device}', and the bundle was signed by '{device}'"
            problems.append(Problem(file=member.path, key="", text=text))
            continue
        try:
            data = bundle.read(member)
            progress(len(data))
            if member.kind == "telemetry":
                records += len(batch_in(data).records)
                telemetry.append(member)
            else:
                report, report_bytes = decode(data, Report), data
        except BundleInvalid as error:
            problems += error.problems
        except MessageInvalid as error:
            problems.append(Problem(file=member.path, key="", text=str(error)))
    if report is not None and report.device != device:
        problems.append(
            Problem(
                file="reports", key="device", text="names another device than the one that signed the bundle"
            )
        )
    if problems:
        raise BundleInvalid(problems)
    batches = Batches(bundle, telemetry)
    return Received(device=device, report=report, report_bytes=report_bytes, batches=batches, records=records)


def certificate_of(signed: SignedIndex, authorities: Sequence[x509.Certificate]) -> x509.Certificate:
    """The certificate that signed the index, if one of ``authorities`` issued it. Raises BundleInvalid."""
    try:
        certificate = x509.load_pem_x509_certificate(signed.certificate.encode())
        key = SSlibKey.from_crypto(certificate.public_key())
        key.verify_signature(Signature(key.keyid, signed.signature.hex()), SIGNED_PREFIX + signed.index)
    except _WRONG as error:
        raise BundleInvalid([Problem(file=INDEX, key="", text="is not signed by a box")]) from error
    for each in authorities:
        try:
            certificate.verify_directly_issued_by(each)
        except _WRONG:
            continue
        return certificate
    raise BundleInvalid([Problem(file=INDEX, key="", text="is signed by a box of another controller")])


def device_of(certificate: x509.Certificate) -> str:
    """The device that the certificate was issued to."""
    names = certificate.subject.get_attributes_for_oid(NameOID.COMMON_NAME)
    return str(names[0].value) if names else ""


def batch_in(data: bytes) -> Batch:
    """The batch as it was sent or carried. Raises MessageInvalid."""
    batch = decode(unpacked(data), Batch)
    if max([batch.first + len(batch.records), *(each.last for each in batch.lost)]) >= INT64_MAX:
        raise MessageInvalid("a record has a number beyond all numbers")
    return batch


def unpacked(data: bytes) -> bytes:
    """The bytes of a batch as it was before it was compressed. Raises MessageInvalid, also for too many, which are not
    unpacked, whatever size the compressed bytes say they have."""
    try:
        with ZstdDecompressor(max_window_size=TELEMETRY_UNPACKED_MAX).stream_reader(data) as reader:
            found = reader.read(TELEMETRY_UNPACKED_MAX + 1)
    except ZstdError as error:
        raise MessageInvalid("is not compressed as telemetry is") from error
    if len(found) > TELEMETRY_UNPACKED_MAX:
        raise MessageInvalid(f"unpacks to more than {TELEMETRY_UNPACKED_MAX} bytes")
    return found
