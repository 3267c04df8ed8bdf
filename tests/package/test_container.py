"""The container: one form, read back whole, and everything else refused with a reason."""

from __future__ import annotations

import io
import os
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from blake3 import blake3
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from appliance.domain.digest import PIECE_BYTES, digest_of, piece_count
from appliance.domain.errors import PackageInvalid
from appliance.domain.manifest import FileEntry, Manifest
from appliance.domain.manifest_codec import encode
from appliance.package.container import (
    END,
    Stream,
    announced_size,
    container_bytes,
    header,
    replacing,
    write_package,
)
from appliance.package.reader import PackageReader, open_package
from tests.domain.manifests import file_entry, manifest_of
from tests.package.archives import CONTENTS, Member, archive, member, members_of, packed, read_all

MANIFEST, PACKAGE = packed()
SIGNED = packed(signatures=b'{"any":"thing"}')[1]


def test_what_is_written_is_read() -> None:
    reader = PackageReader(io.BytesIO(SIGNED))
    assert reader.manifest == MANIFEST
    assert reader.manifest_bytes == encode(MANIFEST)
    assert reader.digest == digest_of(reader.manifest_bytes)
    assert reader.signatures == b'{"any":"thing"}'
    assert reader.total_bytes == len(SIGNED)
    read = {blob.digest: (blob.size, blob.stream.read()) for blob in reader.blobs()}
    assert read == {entry.digest: (entry.size, CONTENTS[entry.path]) for entry in MANIFEST.files}


def test_any_tar_program_can_unpack_it() -> None:
    with tarfile.open(fileobj=io.BytesIO(PACKAGE)) as tar:
        assert tar.getnames() == ["manifest.json", *(f"blobs/{entry.digest}" for entry in MANIFEST.blobs)]
        assert all(info.isfile() and info.mode == 0o444 and info.mtime == 0 for info in tar)


def test_the_same_contents_give_the_same_bytes() -> None:
    """Pinned: what is signed today has this form on every machine and Python."""
    assert packed()[1] == PACKAGE
    assert digest_of(header("blobs/" + "0" * 64, 123)) == (
        "f8fc1ccbb5f01a167b1e979716e9fd1ded957be67950e6648859ae8368f76eea"
    )
    assert digest_of(header("blobs/" + "0" * 64, 9 << 30)) == (
        "2b1ca4fe55dce6c3623210df849cffa5f42c0b53fc3aa537fde7e641d91a34b7"
    )


def test_equal_contents_are_there_once() -> None:
    contents = {"1/a": b"same", "1/b": b"same", "1/c": b"other"}
    manifest, package = packed(contents)
    assert len(read_all(package)) == 2
    assert len(package) == container_bytes(manifest, len(encode(manifest)), None)


def test_contents_that_are_not_read_are_checked_all_the_same() -> None:
    wrong = PACKAGE.replace(b"graphgraph", b"graphgrapf", 1)
    assert list(PackageReader(io.BytesIO(PACKAGE)).blobs())
    with pytest.raises(PackageInvalid, match=r"1/graph\.onnx"):
        list(PackageReader(io.BytesIO(wrong)).blobs())


@given(st.data())
def test_every_changed_byte_is_found(data: st.DataObject) -> None:
    """Within the manifest it may make another one, which has another name; signatures are judged elsewhere."""
    at = data.draw(st.integers(0, len(SIGNED) - 1))
    wrong = bytearray(SIGNED)
    wrong[at] ^= data.draw(st.integers(1, 255))
    signature = SIGNED.index(b'{"any')
    try:
        reader = PackageReader(io.BytesIO(bytes(wrong)))
        list(reader.blobs())
    except PackageInvalid:
        return
    assert reader.digest != digest_of(encode(MANIFEST)) or reader.signatures != b'{"any":"thing"}'
    assert at < signature + len(b'{"any":"thing"}')


@pytest.mark.parametrize("package", [PACKAGE, SIGNED], ids=["unsigned", "signed"])
def test_every_shorter_file_is_refused(package: bytes) -> None:
    for size in [*range(0, len(package), 97), len(package) - 1]:
        with pytest.raises(PackageInvalid):
            read_all(package[:size])


def test_nothing_may_follow() -> None:
    for more in (b"\0", bytes(512), b"x", PACKAGE):
        with pytest.raises(PackageInvalid, match="goes on after its end"):
            read_all(PACKAGE + more)


@given(st.binary(max_size=3000))
def test_no_bytes_raise_anything_else(junk: bytes) -> None:
    with pytest.raises(PackageInvalid):
        read_all(junk)


class Drops:
    """A stream that gives what it has in small pieces, as sockets do."""

    def __init__(self, data: bytes) -> None:
        self._data = io.BytesIO(data)

    def read(self, size: int, /) -> bytes:
        return self._data.read(min(size, 77))


def test_short_reads_change_nothing() -> None:
    stream: Stream = Drops(SIGNED)
    reader = PackageReader(stream)
    assert [blob.stream.read() for blob in reader.blobs()] == [CONTENTS[each.path] for each in MANIFEST.blobs]


def a_link(kind: bytes) -> Callable[[list[Member]], None]:
    def change(members: list[Member]) -> None:
        info, _ = members[1]
        info.type, info.linkname, info.size = kind, "/etc/passwd", 0
        members[1] = info, b""

    return change


def renamed(name: str) -> Callable[[list[Member]], None]:
    def change(members: list[Member]) -> None:
        members[1][0].name = name

    return change


def sparse(members: list[Member]) -> None:
    info, content = members[1]
    info.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.realsize": "1" + "0" * 12,
    }
    members[1] = info, content


def dated(members: list[Member]) -> None:
    members[1][0].mtime = 1


def owned(members: list[Member]) -> None:
    members[1][0].uname = "root"


def set_user_id(members: list[Member]) -> None:
    members[1][0].mode = 0o4755


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (a_link(tarfile.SYMTYPE), "a symbolic link"),
        (a_link(tarfile.LNKTYPE), "a hard link"),
        (a_link(tarfile.CHRTYPE), "a device"),
        (a_link(tarfile.FIFOTYPE), "a named pipe"),
        (a_link(tarfile.DIRTYPE), "a directory"),
        (renamed("../../etc/passwd"), "'../../etc/passwd'"),
        (renamed("/etc/passwd"), "'/etc/passwd'"),
        (renamed("blobs/" + "0" * 64), "manifest demands"),
        (renamed("x" * 300), "an extended header"),
        (sparse, "an extended header"),
        (dated, "manifest demands"),
        (owned, "manifest demands"),
        (set_user_id, "manifest demands"),
        (lambda members: members.insert(1, members[1]), "manifest demands"),
        (lambda members: members.pop(1), "manifest demands"),
        (lambda members: members.reverse(), "does not begin with manifest.json"),
        (lambda members: members.insert(2, members[0]), "'manifest.json'"),
        (lambda members: members.append(member("more", b"x")), "'more' after all"),
        (lambda members: members.insert(0, member("a", b"x")), "does not begin with manifest.json"),
        (lambda members: members.insert(1, member("signature.json", b"x" * (13 << 20))), "signature.json"),
        (lambda members: members.__delitem__(slice(2, None)), "the end of the archive"),
        (
            lambda members: members.__setitem__(1, (members[1][0], members[1][1][:100])),
            "manifest demands|damaged",
        ),
    ],
)
def test_members_that_should_not_be(change: Callable[[list[Member]], None], says: str) -> None:
    members = members_of(MANIFEST, CONTENTS)
    assert archive(members) == PACKAGE
    change(members)
    with pytest.raises(PackageInvalid, match=says):
        read_all(archive(members))


@pytest.mark.parametrize("size", [4999, 5001, 1 << 36])
def test_a_size_that_lies(size: int) -> None:
    manifest = manifest_of(dict(CONTENTS))
    entry = manifest.files[1]
    pieces = ("0" * 64,) * piece_count(size) if size > PIECE_BYTES else entry.pieces
    files = (manifest.files[0], replace(entry, size=size, pieces=pieces), *manifest.files[2:])
    members = members_of(manifest, CONTENTS)
    members[0] = member("manifest.json", encode(replace(manifest, files=files)))
    with pytest.raises(PackageInvalid, match=f"manifest demands a plain file .* of {size} bytes"):
        read_all(archive(members))


def test_a_manifest_that_lies_about_pieces_is_found_when_they_are_checked() -> None:
    content = bytes(PIECE_BYTES) + b"x"
    entry = file_entry("1/w", content)
    lie = FileEntry(path="1/w", size=entry.size, digest=entry.digest, pieces=("0" * 64, entry.pieces[1]))
    manifest = manifest_of({"1/w": content})
    changed = replace(manifest, files=(lie,))
    data = archive(members_of(changed, {"1/w": content}))
    with pytest.raises(PackageInvalid, match="between bytes 0 and 4194304"):
        read_all(data)


def test_damage_is_found_at_its_piece_and_nothing_is_given_after_it() -> None:
    content = bytes(2 * PIECE_BYTES + 5)
    _, data = packed({"1/w": content})
    wrong = bytearray(data)
    wrong[-3000] ^= 1
    reader = PackageReader(io.BytesIO(bytes(wrong)))
    blob = next(reader.blobs())
    given: list[bytes] = []
    with pytest.raises(PackageInvalid, match="between bytes 4194304 and 8388608"):
        given.extend(iter(lambda: blob.stream.read(1 << 20), b""))
    assert PIECE_BYTES <= sum(map(len, given)) < 2 * PIECE_BYTES
    with pytest.raises(PackageInvalid):
        blob.stream.read(1)


def test_the_size_of_a_header_is_read_as_it_is_written() -> None:
    for size in (0, 1, 511, 8 << 20):
        assert announced_size(header("manifest.json", size), "manifest.json", 8 << 20) == size
    assert announced_size(header("manifest.json", 5), "manifest.json", 4) is None
    assert announced_size(header("other", 5), "manifest.json", 9) is None
    assert announced_size(b"", "manifest.json", 9) is None


def test_a_content_that_changes_while_it_is_packed_fails(tmp_path: Path) -> None:
    for content in (b"longer than it was", b"", b"Graph"):
        manifest = manifest_of({"1/a": b"graph"})
        with pytest.raises(PackageInvalid, match="changed while"), replacing(tmp_path / "out") as out:
            write_package(out, manifest, None, lambda entry, content=content: io.BytesIO(content))  # type: ignore[misc]
        assert list(tmp_path.iterdir()) == []


def test_the_file_appears_when_it_is_whole(tmp_path: Path) -> None:
    target = tmp_path / "sample-1.model"
    with replacing(target) as out:
        out.write(PACKAGE)
        assert not target.exists()
    with open_package(target) as reader:
        assert len(list(reader.blobs())) == 4
    assert [path.name for path in tmp_path.iterdir()] == [target.name]


def test_only_regular_files_of_the_right_size_are_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, says in ((pipe, "not a regular file"), (tmp_path / "longer", "its manifest demands")):
        if path != pipe:
            path.write_bytes(PACKAGE + b"\0")
        with pytest.raises((PackageInvalid, OSError), match=says), open_package(path):
            pass
    with pytest.raises(IsADirectoryError), open_package(tmp_path):
        pass


SIZES = tuple(limit + more for limit in (2 << 30, 4 << 30) for more in (-1, 0, 1))


@pytest.fixture(scope="module")
def zeros() -> dict[int, FileEntry]:
    """Entries of files of zeros, of sizes around those that integers of 31 and 32 bits can say."""
    block = bytes(PIECE_BYTES)
    whole, piece, done = blake3(), digest_of(block), 0
    entries: dict[int, FileEntry] = {}
    for size in SIZES:
        while done + PIECE_BYTES <= size:
            whole.update(block)
            done += PIECE_BYTES
        rest = size - done
        last = whole.copy()
        last.update(block[:rest])
        entries[size] = FileEntry(
            path="1/weights.bin",
            size=size,
            digest=last.hexdigest(),
            pieces=(piece,) * (size // PIECE_BYTES) + ((digest_of(block[:rest]),) if rest else ()),
        )
    return entries


class Archive:
    """A package whose one content is zeros, made while it is read."""

    def __init__(self, begin: bytes, size: int) -> None:
        self._begin = io.BytesIO(begin)
        self._left = size + -size % 512 + len(END)

    def read(self, size: int, /) -> bytes:
        if data := self._begin.read(size):
            return data
        size = min(size, self._left, len(ZEROS))
        self._left -= size
        return ZEROS[:size]


ZEROS = bytes(1 << 20)


def archive_of_zeros(entry: FileEntry) -> tuple[Manifest, bytes]:
    """The manifest of such a package, and its bytes before the content."""
    manifest = replace(manifest_of({"1/weights.bin": b""}), files=(entry,))
    wire = encode(manifest)
    begin = header("manifest.json", len(wire)) + wire + bytes(-len(wire) % 512)
    return manifest, begin + header(f"blobs/{entry.digest}", entry.size)


@pytest.mark.parametrize("size", SIZES)
def test_sizes_around_integers(size: int, zeros: dict[int, FileEntry]) -> None:
    manifest, begin = archive_of_zeros(zeros[size])
    reader = PackageReader(Archive(begin, size))
    assert [blob.size for blob in reader.blobs()] == [size]
    assert reader.total_bytes == len(begin) + size + -size % 512 + len(END)
    assert manifest.total_bytes == size


@pytest.mark.parametrize("size", SIZES)
def test_files_around_integers(size: int, zeros: dict[int, FileEntry], tmp_path: Path) -> None:
    """One byte more or less is noticed before any content is read."""
    _, begin = archive_of_zeros(zeros[size])
    path = tmp_path / "zeros.model"
    whole = len(begin) + size + -size % 512 + len(END)
    for wrong in (-1, 1, 0, -(1 << 31), -(1 << 32) + 4096):
        if whole + wrong < len(begin):
            continue
        path.write_bytes(begin)
        os.truncate(path, whole + wrong)
        if wrong:
            with pytest.raises(PackageInvalid, match="its manifest demands"), open_package(path):
                pass
        else:
            with open_package(path) as reader:
                assert reader.total_bytes == whole


def test_a_wrong_bit_behind_what_integers_say(zeros: dict[int, FileEntry]) -> None:
    """The last byte of more than 2 GiB, after pieces that are all right."""
    size = SIZES[2]
    entry = zeros[size]
    lie = replace(entry, pieces=(*entry.pieces[:-1], digest_of(b"\1")))
    _, begin = archive_of_zeros(lie)
    with pytest.raises(PackageInvalid, match="between bytes 2147483648 and 2147483649"):
        list(PackageReader(Archive(begin, size)).blobs())


def test_sizes_that_headers_cannot_say_in_digits(tmp_path: Path) -> None:
    """From 8 GiB on a header of its own carries the size; any tar program reads it."""
    size = (8 << 30) + 1
    name = "blobs/" + "0" * 64
    wire = header(name, size)
    assert len(wire) == 3 * 512
    path = tmp_path / "big.tar"
    with open(path, "wb") as file:
        file.write(wire)
        file.truncate(len(wire) + size + -size % 512 + 1024)
    with tarfile.open(path) as tar:
        assert [(info.name, info.size) for info in tar] == [(name, size)]
    entry = FileEntry(path="1/w", size=size, digest="0" * 64, pieces=("0" * 64,) * piece_count(size))
    manifest = manifest_of({"1/w": b""})
    manifest = replace(manifest, files=(entry,))
    text = encode(manifest)
    begin = header("manifest.json", len(text)) + text + bytes(-len(text) % 512)
    blobs = PackageReader(io.BytesIO(begin + wire + b"content")).blobs()
    assert next(blobs).size == size
    cut = PackageReader(io.BytesIO(begin + wire[:1024])).blobs()
    with pytest.raises(PackageInvalid, match="manifest demands"):
        next(cut)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(st.dictionaries(st.sampled_from(["1/a", "1/b", "c", "d"]), st.binary(max_size=1500), min_size=1))
def test_any_contents_come_back(contents: dict[str, bytes]) -> None:
    contents = {"1/z": b"", **contents}
    manifest, package = packed(contents)
    read = read_all(package)
    assert {entry.path: read[entry.digest] for entry in manifest.files} == contents
