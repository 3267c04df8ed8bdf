"""What a box gives to somebody who carries it to the controller: its telemetry that is not acknowledged yet, and how it
stands. Nothing is removed here: that does the controller's acknowledgement, whichever way it comes back.
"""

from __future__ import annotations

from collections.abc import Iterable

from cryptography.hazmat.primitives.serialization import Encoding
from msgspec import structs
from zstandard import ZstdCompressor

from appliance.fleet.bundle import FROM_BOX, SIGNED_PREFIX, Index, SignedIndex
from appliance.fleet.messages import TELEMETRY_UNPACKED_MAX, Batch, Report, encode
from appliance.fleet.settings import shown
from appliance.package.keys import Signer
from appliance.sync import reporting
from appliance.sync.box import Clock, Settings, machine_problems
from appliance.sync.freshness import freshness
from appliance.sync.identity import Identity
from appliance.sync.plan import plan
from appliance.sync.reading import read_box
from appliance.sync.reporting import Standing
from appliance.transfer.bundle_writer import Part, index_of, part_of


def parts_of(device: str, report: Report | None, batches: Iterable[Batch]) -> list[Part]:
    """The files of the bundle."""
    parts = [] if report is None else [part_of(f"reports/{device}.msgpack", encode(report))]
    compressor = ZstdCompressor(level=9)
    for number, batch in enumerate(batches, 1):
        body = encode(batch)
        assert len(body) <= TELEMETRY_UNPACKED_MAX
        parts.append(part_of(f"telemetry/{device}/{number:08d}.zst", compressor.compress(body)))
    return parts


def report_of(settings: Settings, clock: Clock) -> Report:
    """How the box stands, from its files. Raises as ``read_box``."""
    box = read_box(settings, clock)
    steps = plan(box.desired, box.observed)
    standing = Standing(
        box.device,
        box.trusted_generation,
        freshness(box.progress.contact, clock.instant()).word,
        (box.progress.problem, box.damage, *machine_problems(settings.state)),
        shown(settings.fleet, settings.said, box.progress.settings),
    )
    report = reporting.report_of(standing, box.desired, box.observed, steps)
    return structs.replace(report, wall_ms=max(clock.wall_ms(), 0), outbox_bytes=box.outbox_bytes)


def index_for(parts: list[Part], written_ms: int) -> Index:
    """The index of a box's bundle."""
    return index_of(FROM_BOX, parts, written_ms)


def signed_by_box(index: bytes, certificate: str, signer: Signer) -> SignedIndex:
    """The index with the signature of the box's own key, by which the controller knows whose telemetry it is."""
    signature = signer.sign(SIGNED_PREFIX + index)
    return SignedIndex(index=index, certificate=certificate, signature=bytes.fromhex(signature.signature))


def certificate_pem(identity: Identity) -> str:
    """The box's certificate. Raises NotEnrolled."""
    return identity.certificate.public_bytes(Encoding.PEM).decode()
