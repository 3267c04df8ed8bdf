"""How a version lies in a stream: which bytes of each of its contents are taken from where, then the bytes that are not
on the box yet.

    8 bytes "EASTRM01" | u32 bytes of the header | the header, msgpack in zstd | payloads of all sections in order

A stream is hostile input like any other: ``decode_header`` bounds what is made of its header, and ``header_problems``
compares all its numbers with the manifest that it carries and with its own length, before memory is taken for contents
or a base is read. What it comes to is held to the manifest by who installs it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import Annotated, BinaryIO, Final

import msgspec
import zstandard
from msgspec import Meta, Struct

from appliance.domain.digest import is_digest
from appliance.domain.errors import PackageInvalid, Problem
from appliance.domain.manifest import Manifest
from appliance.domain.manifest_codec import decode as decode_manifest
from appliance.fleet.documents import Count, Digest
from appliance.package.container import SIGNATURE_BYTES_MAX

MAGIC: Final = b"EASTRM01"
SECTION_BYTES_MAX: Final = 4 << 20
"""Of what a section comes to; but a copy, which takes no memory, may be of any length."""
HEADER_BYTES_MAX: Final = 32 << 20
HEADER_UNPACKED_MAX: Final = 128 << 20
CONTENTS_MAX: Final = 1024
SECTIONS_MAX: Final = 1 << 20
"""Of all contents together: a section of three bytes is some hundred bytes of memory."""
WINDOW_LOG_MAX: Final = 23
_LENGTH: Final = struct.Struct("<I")
REFUSED: Final = 3
"""The exit status of ``apply`` for a stream that cannot be applied; what is wrong stands on standard output."""


class StreamInvalid(PackageInvalid):
    """A stream that cannot be one."""


class Kind(IntEnum):
    """How a section's bytes come about. All payloads but RAW are zstd frames; COPY has none."""

    COPY = 0
    """Bytes of the base."""
    RAW = 1
    ZSTD = 2
    PLANES = 3
    """Byte planes of elements of ``width`` bytes."""
    SUBTRACT = 4
    """Byte planes of differences to the base's elements."""


class Section(Struct, frozen=True, array_like=True, kw_only=True):
    """``length`` bytes of a content, from ``stored`` bytes of payload; for COPY and SUBTRACT with as many bytes of the
    base's content number ``base`` from ``offset`` on."""

    kind: Kind
    length: Count
    stored: Count = 0
    base: Count = 0
    offset: Count = 0
    width: Annotated[int, Meta(ge=1, le=8)] = 1


class Content(Struct, frozen=True, array_like=True, kw_only=True):
    """A content of the version, or of the base (which has no sections)."""

    digest: Digest
    size: Count
    sections: Annotated[tuple[Section, ...], Meta(max_length=SECTIONS_MAX)] = ()


class Header(Struct, frozen=True, array_like=True, kw_only=True):
    """What a stream brings: the version's manifest, its signatures (nothing: it has none), its contents in the order of
    the manifest, and the contents of the base that are needed for them."""

    manifest: bytes
    signatures: Annotated[bytes, Meta(max_length=SIGNATURE_BYTES_MAX)]
    contents: Annotated[tuple[Content, ...], Meta(max_length=CONTENTS_MAX)]
    bases: Annotated[tuple[Content, ...], Meta(max_length=CONTENTS_MAX)] = ()

    @property
    def payload_bytes(self) -> int:
        """What follows the header."""
        return sum(section.stored for content in self.contents for section in content.sections)


class _Unread(Struct, frozen=True, array_like=True, kw_only=True):
    """A header whose contents are not read yet."""

    manifest: bytes
    signatures: Annotated[bytes, Meta(max_length=SIGNATURE_BYTES_MAX)]
    contents: Annotated[tuple[msgspec.Raw, ...], Meta(max_length=CONTENTS_MAX)]
    bases: Annotated[tuple[msgspec.Raw, ...], Meta(max_length=CONTENTS_MAX)] = ()


def encode_header(header: Header) -> bytes:
    """The stream's beginning, up to its payloads."""
    packed = zstandard.ZstdCompressor(level=9).compress(msgspec.msgpack.encode(header))
    return MAGIC + _LENGTH.pack(len(packed)) + packed


def read_header(file: BinaryIO, size: int) -> tuple[Header, Manifest]:
    """The header of the stream of ``size`` bytes in ``file``, and the manifest in it; the payloads come next. Raises
    StreamInvalid, PackageInvalid and OSError."""
    start = file.read(len(MAGIC) + _LENGTH.size)
    if len(start) < len(MAGIC) + _LENGTH.size or not start.startswith(MAGIC):
        raise invalid("is no stream of this format")
    (length,) = _LENGTH.unpack(start[len(MAGIC) :])
    if length > min(HEADER_BYTES_MAX, size):
        raise invalid(f"announces a header of {length} bytes")
    try:
        header = decode_header(unpacked(file.read(length), None, HEADER_UNPACKED_MAX))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise invalid("has a header that is none") from error
    manifest = decode_manifest(header.manifest)
    if wrong := next(header_problems(header, manifest, size - len(start) - length), ""):
        raise invalid(wrong)
    return header, manifest


def decode_header(data: bytes) -> Header:
    """The header that ``data`` is, read content by content, so that sections beyond the limit take no memory. Raises
    StreamInvalid and what msgspec raises."""
    unread = msgspec.msgpack.decode(data, type=_Unread)
    found: list[Content] = []
    left = SECTIONS_MAX
    for each in (*unread.contents, *unread.bases):
        content = msgspec.msgpack.decode(each, type=Content)
        left -= len(content.sections)
        if left < 0:
            raise invalid(f"has more than {SECTIONS_MAX} sections")
        found.append(content)
    count = len(unread.contents)
    return Header(
        manifest=unread.manifest,
        signatures=unread.signatures,
        contents=tuple(found[:count]),
        bases=tuple(found[count:]),
    )


def header_problems(header: Header, manifest: Manifest, payload_bytes: int) -> Iterator[str]:
    """What cannot be of a stream with so many bytes of payload."""
    if [(each.digest, each.size) for each in header.contents] != [
        (each.digest, each.size) for each in manifest.blobs
    ]:
        yield "does not bring the contents that its manifest names"
    if not all(is_digest(base.digest) for base in header.bases):
        yield "takes bytes of something that is no digest"
    if header.payload_bytes != payload_bytes:
        yield f"has {payload_bytes} bytes of payload and tells of {header.payload_bytes}"
    for content in header.contents:
        if sum(section.length for section in content.sections) != content.size:
            yield "has sections that do not make up a content"
        for section in content.sections:
            yield from _section_problems(section, header)


def _section_problems(section: Section, header: Header) -> Iterator[str]:
    based = section.kind in (Kind.COPY, Kind.SUBTRACT)
    if based and section.base >= len(header.bases):
        yield "takes bytes of a base that it does not name"
    elif based and section.offset + section.length > header.bases[section.base].size:
        yield "takes bytes from beyond the end of its base"
    if section.kind is not Kind.COPY and section.length > SECTION_BYTES_MAX:
        yield f"has a section of {section.length} bytes; the limit is {SECTION_BYTES_MAX}"
    if section.stored > section.length + 1024 or (section.stored == 0) != (section.kind is Kind.COPY):
        yield f"has a section with {section.stored} bytes of payload for {section.length}"
    if section.kind is Kind.RAW and section.stored != section.length:
        yield "has a section whose bytes are not as many as it says"
    if section.width not in (1, 2, 4, 8) or section.length % section.width:
        yield "has a section that is no whole number of elements"


def unpacked(data: bytes | memoryview, length: int | None, limit: int = SECTION_BYTES_MAX) -> bytes:
    """What the zstd frame ``data`` holds: ``length`` bytes, None: at most ``limit``. Raises StreamInvalid."""
    try:
        said = zstandard.frame_content_size(data)
        if not 0 <= said <= limit or length not in (None, said):
            raise invalid("has a frame of another size than it says")
        found = zstandard.ZstdDecompressor(max_window_size=1 << WINDOW_LOG_MAX).decompress(
            data, max_output_size=said, allow_extra_data=False
        )
    except zstandard.ZstdError as error:
        raise invalid("has a frame that is damaged") from error
    if len(found) != said:
        raise invalid("has a frame of another size than it says")
    return found


def invalid(text: str) -> StreamInvalid:
    """The failure that ``text`` describes."""
    return StreamInvalid([Problem(file="stream", key="", text=text)])
