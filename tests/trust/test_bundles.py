"""Bundles that somebody carried: read as they were written, and refused with all that is wrong when they lie."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from appliance.domain.digest import digest_of
from appliance.fleet.bundle import INDEX, MEMBERS_MAX, BundleInvalid, Index, Member, SignedIndex, encode
from appliance.fleet.documents import DOCUMENT_BYTES_MAX, STREAM_BYTES_MAX
from appliance.package.container import END, header, padding
from appliance.transfer.bundle_reader import BundleReader
from appliance.transfer.bundle_writer import Part, index_of, part_of, write_directory, write_file
from tests.trust.repository import unsigned

STREAM = bytes(range(256)) * 5000
PARTS = [
    part_of("roots/1.json", b"root"),
    part_of("devices/box-1/timestamp.json", b"timestamp"),
    part_of("devices/box-1/desired.msgpack", b"document"),
    part_of("devices/box-2/desired.msgpack", b"another"),
    part_of(f"streams/{digest_of(STREAM)}", STREAM),
]
FORMS: dict[str, Callable[..., None]] = {"file": write_file, "directory": write_directory}


def written(target: Path, form: str, parts: list[Part] = PARTS) -> Path:
    """A bundle of ``parts`` in that form."""
    FORMS[form](target, index_of("to-boxes", parts, 7), parts, unsigned)
    return target


@pytest.mark.parametrize("form", FORMS)
def test_a_bundle_is_read_as_it_was_written(form: str, tmp_path: Path) -> None:
    with BundleReader(written(tmp_path / "bundle", form)) as bundle:
        assert bundle.index.devices == ("box-1", "box-2")
        assert [bundle.read(each) for each in bundle.index.members] == [
            b"root", b"timestamp", b"document", b"another", STREAM,
        ]  # fmt: skip
        bundle.check(bundle.index.members)
        assert [each.path for each in bundle.index.of("document", "box-2")] == [
            "devices/box-2/desired.msgpack"
        ]
        assert [each.size for each in bundle.index.of("stream")] == [len(STREAM)]


def test_one_file_is_a_tar_that_others_read(tmp_path: Path) -> None:
    path = written(tmp_path / "bundle.tar", "file")
    with tarfile.open(path) as found:
        assert found.getnames() == [INDEX, *(each.member.path for each in PARTS)]
    again = written(tmp_path / "again.tar", "file")
    assert path.read_bytes() == again.read_bytes()


@pytest.mark.parametrize("form", FORMS)
def test_contents_that_change_while_they_are_written_leave_no_bundle(form: str, tmp_path: Path) -> None:
    lying = Part(member=PARTS[1].member, open=lambda: [b"timestamp", b"more"])
    with pytest.raises(BundleInvalid, match="timestamp"):
        written(tmp_path / "bundle", form, [PARTS[0], lying])
    assert not (tmp_path / "bundle").is_file()
    with pytest.raises((BundleInvalid, FileNotFoundError)):
        BundleReader(tmp_path / "bundle")


def test_a_directory_that_was_not_finished_is_finished_by_writing_it_again(tmp_path: Path) -> None:
    lying = Part(member=PARTS[1].member, open=lambda: [b"other"])
    with pytest.raises(BundleInvalid):
        written(tmp_path, "directory", [PARTS[0], lying])
    with pytest.raises(BundleInvalid, match="not written to its end"):
        BundleReader(tmp_path)
    with BundleReader(written(tmp_path, "directory")) as bundle:
        bundle.check(bundle.index.members)
    with pytest.raises(FileExistsError):
        written(tmp_path, "directory")


# --- lies


def tar(*members: tuple[str, bytes], index: Index, end: bytes = END) -> bytes:
    """A tar file with that index and whatever members."""
    data = encode(SignedIndex(index=encode(index)))
    out = b""
    for name, content in ((INDEX, data), *members):
        out += header(name, len(content)) + content + bytes(padding(len(content)))
    return out + end


def index(*members: Member) -> Index:
    return Index(kind="to-boxes", members=members)


GOOD = Member("roots/1.json", 4, digest_of(b"root"))
NAMES = [
    "../evil",
    "roots/../../evil",
    "/etc/passwd",
    "roots/1.json/",
    "roots/01.json",
    "devices/../desired.msgpack",
    "devices/./desired.msgpack",
    "devices/.hidden/desired.msgpack",
    "devices/Box/desired.msgpack",
    "devices/box-1/../box-2/desired.msgpack",
    "devices/box-1/desired.msgpack\n",
    "devices/box-1/desired.msgpack\0",
    f"streams/{'A' * 64}",
    "streams/../roots/1.json",
    "bundle.msgpack",
    "",
]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_no_name_leads_out_of_a_bundle(name: str, form: str, tmp_path: Path) -> None:
    said = index(Member(name, 4, digest_of(b"root")), GOOD)
    path = tmp_path / "bundle"
    if form == "file":
        path.write_bytes(tar((name.replace("\0", ""), b"root"), ("roots/1.json", b"root"), index=said))
    else:
        (path / "roots").mkdir(parents=True)
        (path / "roots" / "1.json").write_bytes(b"root")
        (path / INDEX).write_bytes(encode(SignedIndex(index=encode(said))))
    with pytest.raises(BundleInvalid, match="no file of a bundle") as caught:
        BundleReader(path)
    assert len(caught.value.problems) == 1


def test_all_that_is_wrong_with_an_index_is_told_at_once(tmp_path: Path) -> None:
    said = index(
        GOOD,
        GOOD,
        Member("../evil", 1, "a" * 64),
        Member("devices/box-1/desired.msgpack", DOCUMENT_BYTES_MAX + 1, "a" * 64),
        Member(f"streams/{'a' * 64}", 1, "b" * 64),
        Member("telemetry/box-1/00000001.zst", 1, "a" * 64),
    )
    path = tmp_path / "bundle"
    path.write_bytes(tar(index=said))
    with pytest.raises(BundleInvalid) as caught:
        BundleReader(path)
    texts = [each.text for each in caught.value.problems]
    assert len(texts) == 5
    for part in ("twice", "no file of a bundle", "the limit is", "another digest", "does not belong"):
        assert sum(part in text for text in texts) == 1, texts


def test_all_files_with_wrong_contents_are_told_at_once(tmp_path: Path) -> None:
    path = written(tmp_path / "bundle", "directory")
    for name in ("roots/1.json", "devices/box-2/desired.msgpack"):
        data = (path / name).read_bytes()
        (path / name).write_bytes(bytes(len(data)))
    with BundleReader(path) as bundle:
        with pytest.raises(BundleInvalid) as caught:
            bundle.check(bundle.index.members)
        assert [each.file for each in caught.value.problems] == [
            "roots/1.json",
            "devices/box-2/desired.msgpack",
        ]
        with pytest.raises(BundleInvalid):
            bundle.read(bundle.index.members[0])
        assert bundle.read(bundle.index.members[1]) == b"timestamp"


def test_all_files_of_a_directory_that_are_not_as_said_are_told_at_once(tmp_path: Path) -> None:
    path = written(tmp_path / "bundle", "directory")
    secret = tmp_path / "secret"
    secret.write_bytes(b"root")
    (path / "roots" / "1.json").unlink()
    (path / "roots" / "1.json").symlink_to(secret)
    (path / "devices/box-1/timestamp.json").unlink()
    (path / "devices/box-1/desired.msgpack").write_bytes(b"cut")
    (path / "devices/box-2").rename(tmp_path / "elsewhere")
    (path / "devices/box-2").symlink_to(tmp_path / "elsewhere")
    os.unlink(path / f"streams/{digest_of(STREAM)}")
    os.mkfifo(path / f"streams/{digest_of(STREAM)}")
    with pytest.raises(BundleInvalid) as caught:
        BundleReader(path)
    assert [each.text for each in caught.value.problems] == [
        "is no regular file", "is missing", "has 3 of 8 bytes", "is missing", "is no regular file",
    ]  # fmt: skip


@pytest.mark.parametrize(
    "kind", [tarfile.SYMTYPE, tarfile.LNKTYPE, tarfile.FIFOTYPE, tarfile.GNUTYPE_SPARSE, b"x"]
)
def test_a_tar_holds_nothing_but_files(kind: bytes, tmp_path: Path) -> None:
    block = tarfile.TarInfo("roots/1.json")
    block.type, block.linkname, block.size = kind, "/etc/passwd", 4
    good = tar(("roots/1.json", b"root"), index=index(GOOD))
    place = good.index(header("roots/1.json", 4))
    bad = good[:place] + block.tobuf(tarfile.USTAR_FORMAT)[:512] + good[place + 512 :]
    path = tmp_path / "bundle"
    path.write_bytes(bad)
    with pytest.raises(BundleInvalid, match="is not where it should be"):
        BundleReader(path)


@pytest.mark.parametrize(
    ("size", "said"),
    [
        (STREAM_BYTES_MAX, "is not whole"),
        (STREAM_BYTES_MAX + 1, "the limit is"),
        ((1 << 63) - 1, "the limit is"),
    ],
)
def test_huge_sizes_take_no_memory(size: int, said: str, tmp_path: Path) -> None:
    digest = "a" * 64
    listed = index(Member(f"streams/{digest}", size, digest))
    path = tmp_path / "bundle"
    path.write_bytes(tar((f"streams/{digest}", b"x"), index=listed))
    with pytest.raises(BundleInvalid, match=said):
        BundleReader(path)


def test_a_file_that_grows_while_it_is_read_takes_no_more_than_it_was_to(tmp_path: Path) -> None:
    """A share is somebody else's: it may give bytes without an end."""
    with BundleReader(written(tmp_path / "bundle", "directory")) as bundle:
        for member, extra in ((bundle.index.of("root")[0], 1 << 40), (bundle.index.of("stream")[0], 1)):
            os.truncate(tmp_path / "bundle" / member.path, member.size + extra)
            with pytest.raises(BundleInvalid, match=f"goes on after its {member.size} bytes"):
                bundle.read(member)


def test_an_index_without_an_end_takes_no_memory(tmp_path: Path) -> None:
    os.truncate(written(tmp_path / "bundle", "directory") / INDEX, 1 << 40)
    with pytest.raises(BundleInvalid, match="more than the 16777216 bytes"):
        BundleReader(tmp_path / "bundle")


def test_a_tar_that_goes_on_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    path.write_bytes(tar(("roots/1.json", b"root"), ("roots/2.json", b"root"), index=index(GOOD)))
    with pytest.raises(BundleInvalid, match="does not end"):
        BundleReader(path)


def test_an_index_has_an_end(tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    path.write_bytes(tar(index=index(*([GOOD] * (MEMBERS_MAX + 1)))))
    with pytest.raises(BundleInvalid, match="length"):
        BundleReader(path)


@pytest.mark.parametrize("content", [b"", b"\0" * 512, b"PK\3\4" + bytes(600), b"\xff" * 2000])
def test_another_file_is_no_bundle(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "bundle"
    path.write_bytes(content)
    with pytest.raises(BundleInvalid, match="is no bundle"):
        BundleReader(path)


def test_what_is_no_file_is_no_bundle(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BundleInvalid, match="neither"):
        BundleReader(tmp_path / "pipe")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(tmp_path_factory.mktemp("bundles") / "bundle", "file", PARTS[:4])


@given(at=st.integers(0, 6000), bits=st.integers(1, 255), cut=st.integers(0, 8192))
def test_every_damage_is_noticed(whole: Path, at: int, bits: int, cut: int) -> None:
    good = whole.read_bytes()
    data = bytearray(good[: cut or None])
    data[at % len(data)] ^= bits
    path = whole.with_name("damaged")
    path.write_bytes(data)
    try:
        with BundleReader(path) as bundle:
            bundle.check(bundle.index.members)
            found = [bundle.read(each) for each in bundle.index.members]
    except BundleInvalid:
        return
    assert found == [b"root", b"timestamp", b"document", b"another"], "only zeros between files were damaged"


def test_a_bundle_is_read_in_pieces(tmp_path: Path) -> None:
    with BundleReader(written(tmp_path / "bundle", "file")) as bundle:
        (stream,) = bundle.index.of("stream")
        out = io.BytesIO()
        for chunk in bundle.chunks(stream):
            assert len(chunk) <= 1 << 20
            out.write(chunk)
    assert out.getvalue() == STREAM
