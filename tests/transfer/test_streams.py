"""A stream gives back the very package that it was made of, and a bad one gives a reason and nothing else."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from appliance.domain.digest import digest_of
from appliance.domain.errors import PackageInvalid
from appliance.package.reader import open_package
from appliance.transfer.apply import apply, blobs_in
from appliance.transfer.build import Built, build
from appliance.transfer.planes import add, from_planes, planes, subtract
from appliance.transfer.stream import (
    REFUSED,
    SECTIONS_MAX,
    Header,
    Kind,
    StreamInvalid,
    decode_header,
    read_header,
)
from tests.transfer.indexes import index_of
from tests.transfer.packages import NAMES, make, random_tensors, unpack

MB = 1 << 20
Tensors = dict[str, NDArray[Any]]


def through(folder: Path, target: Path, base: Path | None) -> tuple[Built, Path]:
    """Build the stream, apply it where only the base is, and see that the package is what it was."""
    built = build(target, base, folder / "stream")
    blobs = folder / "blobs"
    if base is not None:
        unpack(base, blobs)
    apply(folder / "stream", folder / "made.model", blobs_in(blobs))
    assert (folder / "made.model").read_bytes() == target.read_bytes()
    data = (folder / "stream").read_bytes()
    assert (built.stream, built.size, built.index) == (digest_of(data), len(data), index_of(data))
    assert built.index_digest == digest_of(built.index)
    return built, folder / "stream"


def nudged(array: NDArray[Any]) -> NDArray[Any]:
    """Every second element of four bytes is another one, by a little."""
    found = array.copy()
    found.view(np.uint32)[::2] ^= 1
    return found


def sections_of(stream: Path) -> list[Kind]:
    with stream.open("rb") as file:
        header, _ = read_header(file, stream.stat().st_size)
    return [section.kind for content in header.contents for section in content.sections]


@given(st.binary(max_size=800), st.binary(max_size=800), st.sampled_from([1, 2, 4, 8]))
def test_differences_and_planes_are_undone(data: bytes, base: bytes, width: int) -> None:
    length = min(len(data), len(base)) // width * width
    data, base = data[:length], base[:length]
    assert from_planes(planes(data, width), width) == data
    assert add(subtract(data, base, width), base, width) == data


@pytest.mark.parametrize("kind", sorted(NAMES))
def test_each_type_comes_back(tmp_path: Path, kind: str) -> None:
    shapes = {"a": (kind, (100, 30)), "none": (kind, (0,)), "one": (kind, (1,)), "scalar": (kind, ())}
    old = random_tensors(1, shapes)
    new = {
        **random_tensors(2, {"a": shapes["a"]}),
        "none": old["none"],
        "one": old["one"],
        "scalar": old["scalar"],
    }
    through(tmp_path, make(tmp_path / "2.model", new, version=2), make(tmp_path / "1.model", old))


def test_a_first_version_needs_nothing(tmp_path: Path) -> None:
    package = make(
        tmp_path / "1.model", random_tensors(1, {"a": ("float32", (3 * MB // 2,))}), labels=b"one\ntwo\n"
    )
    built, stream = through(tmp_path, package, None)
    assert built.base == ""
    assert not {Kind.COPY, Kind.SUBTRACT} & set(sections_of(stream))


def test_what_is_there_is_not_sent(tmp_path: Path) -> None:
    """Not even where it is another place in the file, or a tensor went in front of it."""
    old = random_tensors(1, {"a": ("float32", (MB // 4,)), "b": ("float32", (MB // 4,))})
    new = {**random_tensors(2, {"first": ("float32", (10,))}), "b": old["b"], "a": old["a"]}
    built, stream = through(
        tmp_path, make(tmp_path / "2.model", new, version=2), make(tmp_path / "1.model", old)
    )
    assert built.size < 4096
    assert sections_of(stream).count(Kind.COPY) == 3, "two tensors and the graph"


def test_a_small_change_costs_little(tmp_path: Path) -> None:
    random = np.random.default_rng(1)
    old: Tensors = {"a": random.standard_normal(MB).astype(np.float32)}
    new: Tensors = {"a": (old["a"] * (1 + 1e-3 * random.standard_normal(MB))).astype(np.float32)}
    built, stream = through(
        tmp_path, make(tmp_path / "2.model", new, version=2), make(tmp_path / "1.model", old)
    )
    assert Kind.SUBTRACT in sections_of(stream)
    assert built.size < 0.55 * old["a"].nbytes
    whole = build(tmp_path / "2.model", None, tmp_path / "whole")
    assert whole.size > 0.8 * old["a"].nbytes


def test_what_changed_altogether_is_no_larger_than_by_itself(tmp_path: Path) -> None:
    shapes = {"a": ("float32", (MB,)), "other type": ("int8", (MB,)), "resized": ("float32", (1000,))}
    old = random_tensors(
        1, {**shapes, "other type": ("uint8", (MB,)), "resized": ("float32", (999,)), "gone": ("int8", (9,))}
    )
    new = random_tensors(2, shapes)
    built, _ = through(tmp_path, make(tmp_path / "2.model", new, version=2), make(tmp_path / "1.model", old))
    assert built.size < 5 * MB + 8192


def test_another_base_than_it_is_for_is_found_out(tmp_path: Path) -> None:
    shapes = {"a": ("float32", (1000,))}
    old, new = random_tensors(1, shapes), random_tensors(1, shapes)
    new["a"] = nudged(new["a"])
    base = make(tmp_path / "1.model", old)
    build(make(tmp_path / "2.model", new, version=2), base, tmp_path / "stream")
    blobs = unpack(base, tmp_path / "blobs")
    with (tmp_path / "stream").open("rb") as file:
        header, _ = read_header(file, (tmp_path / "stream").stat().st_size)
    victim = blobs / header.bases[0].digest[:2] / header.bases[0].digest
    kept = victim.read_bytes()
    for changed in (bytes([kept[0] ^ 1]) + kept[1:], kept[:-1]):
        victim.write_bytes(changed)
        with pytest.raises(PackageInvalid):
            apply(tmp_path / "stream", tmp_path / "made.model", blobs_in(blobs))
        assert not (tmp_path / "made.model").exists()
    victim.unlink()
    with pytest.raises(FileNotFoundError):
        apply(tmp_path / "stream", tmp_path / "made.model", blobs_in(blobs))


def test_any_byte_that_changes_is_found_out(tmp_path: Path) -> None:
    """The package is the right one, or there is none, or its manifest is another one, whose digest is not wished."""
    old = random_tensors(1, {"a": ("float32", (500,)), "b": ("int8", (500,))})
    new = {"a": nudged(old["a"]), "b": old["b"]}
    base, target = make(tmp_path / "1.model", old), make(tmp_path / "2.model", new, version=2)
    build(target, base, tmp_path / "stream")
    blobs = blobs_in(unpack(base, tmp_path / "blobs"))
    data = (tmp_path / "stream").read_bytes()
    chosen = random.Random(1)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 1 << chosen.randrange(8)
        (tmp_path / "bad").write_bytes(changed)
        try:
            apply(tmp_path / "bad", tmp_path / "made.model", blobs)
        except (PackageInvalid, FileNotFoundError):
            assert not (tmp_path / "made.model").exists()
        else:
            with open_package(tmp_path / "made.model") as made, open_package(target) as right:
                other = made.digest != right.digest
            assert other or (tmp_path / "made.model").read_bytes() == target.read_bytes()
            (tmp_path / "made.model").unlink()
    for end in range(0, len(data), 7):
        (tmp_path / "bad").write_bytes(data[:end])
        with pytest.raises(PackageInvalid):
            apply(tmp_path / "bad", tmp_path / "made.model", blobs)


def rewritten(stream: Path, change: Any) -> bytes:
    """The stream with another header."""
    data = stream.read_bytes()
    length = int.from_bytes(data[8:12], "little")
    plain = zstandard.ZstdDecompressor().decompress(data[12 : 12 + length])
    document = msgspec.msgpack.decode(plain)
    change(document)
    packed = zstandard.ZstdCompressor().compress(msgspec.msgpack.encode(document))
    return data[:8] + len(packed).to_bytes(4, "little") + packed + data[12 + length :]


def set_section(field: int, value: object, content: int = 1) -> Any:
    def change(document: list[Any]) -> None:
        document[2][content][2][0][field] = value

    return change


@pytest.mark.parametrize(
    "change",
    [
        *(
            set_section(field, value)
            for field in range(6)
            for value in (-1, 2**31, 2**63, 2**64 - 1, 1.5, "x", None)
        ),
        set_section(0, 9),
        set_section(5, 3),
        set_section(5, 8, content=0),
        lambda document: document[2].pop(),
        lambda document: document[2].append(document[2][0]),
        lambda document: document[2][1][2].append(document[2][1][2][0]),
        lambda document: document.__setitem__(0, b"{}"),
        lambda document: document.__setitem__(0, bytes(1000)),
        lambda document: document[3].__setitem__(0, ["../" * 21 + "x", 5, []]),
        lambda document: document[3].clear(),
    ],
)
def test_a_header_that_lies_is_refused(tmp_path: Path, change: Any) -> None:
    old = random_tensors(1, {"a": ("float32", (2000,))})
    base = make(tmp_path / "1.model", old)
    target = make(tmp_path / "2.model", {"a": nudged(old["a"])}, version=2)
    build(target, base, tmp_path / "stream")
    (tmp_path / "bad").write_bytes(rewritten(tmp_path / "stream", change))
    with pytest.raises(PackageInvalid):
        apply(tmp_path / "bad", tmp_path / "made.model", blobs_in(unpack(base, tmp_path / "blobs")))
    assert not (tmp_path / "made.model").exists()


def bounded(folder: Path) -> subprocess.CompletedProcess[str]:
    """The stream ``bad`` applied by a process that may take 400 MiB of memory."""
    program = (
        "import resource, sys; from pathlib import Path; from appliance.transfer.apply import main\n"
        "resource.setrlimit(resource.RLIMIT_DATA, (400 << 20, 400 << 20)); sys.exit(main(sys.argv[1:]))"
    )
    words = [sys.executable, "-c", program, str(folder / "bad"), str(folder / "made"), str(folder)]
    return subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)


def test_a_frame_that_unfolds_to_much_takes_no_memory(tmp_path: Path) -> None:
    """A header of 32 MiB could come to terabytes."""
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 30))
    (tmp_path / "bad").write_bytes(b"EASTRM01" + len(bomb).to_bytes(4, "little") + bomb)
    done = bounded(tmp_path)
    assert (done.returncode, done.stderr) == (REFUSED, "")


HEAD = b"\x94\xc4\x00\xc4\x00"
"""Of a header in msgpack: no manifest, no signatures."""
HALF = SECTIONS_MAX // 2 + 1


def content(sections: int) -> bytes:
    """A content with so many sections, of the fewest bytes that there are."""
    return (
        b"\x93\xd9\x40" + b"a" * 64 + b"\x01\xdd" + sections.to_bytes(4, "big") + b"\x92\x00\x00" * sections
    )


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (HEAD + b"\x91" + content(SECTIONS_MAX + 1) + b"\x90", "of length <= "),
        (HEAD + b"\x92" + content(HALF) * 2 + b"\x90", "has more than"),
        (HEAD + b"\x91" + content(HALF) + b"\x91" + content(HALF), "has more than"),
    ],
    ids=["of one", "of all", "of a base"],
)
def test_sections_have_an_end(header: bytes, said: str) -> None:
    with pytest.raises((msgspec.ValidationError, StreamInvalid), match=said):
        decode_header(header)


def test_a_header_of_nothing_but_sections_takes_no_memory(tmp_path: Path) -> None:
    """The 40 million of them that go into 128 MiB would take 3.7 GiB."""
    packed = zstandard.ZstdCompressor().compress(HEAD + b"\x91" + content(40_000_000) + b"\x90")
    (tmp_path / "bad").write_bytes(b"EASTRM01" + len(packed).to_bytes(4, "little") + packed)
    done = bounded(tmp_path)
    assert (done.returncode, done.stderr) == (REFUSED, "")


def test_a_package_that_the_disk_has_no_room_for_is_not_begun(tmp_path: Path) -> None:
    """A copy costs the stream nothing: a small one could fill any disk."""
    base = make(tmp_path / "1.model", random_tensors(1, {"a": ("float32", (200_000,))}))
    build(base, base, tmp_path / "stream")
    blobs = blobs_in(unpack(base, tmp_path / "blobs"))
    size = base.stat().st_size
    assert (tmp_path / "stream").stat().st_size < size // 10
    before = set(os.listdir(tmp_path))
    with pytest.raises(OSError, match=f"takes {size} bytes while it is made, and {size - 1} are free"):
        apply(tmp_path / "stream", tmp_path / "made", blobs, lambda folder: size - 1)
    assert set(os.listdir(tmp_path)) == before
    apply(tmp_path / "stream", tmp_path / "made", blobs, lambda folder: size)
    assert (tmp_path / "made").read_bytes() == base.read_bytes()


def test_the_child_says_what_is_wrong(tmp_path: Path) -> None:
    target = make(tmp_path / "1.model", random_tensors(1, {"a": ("float32", (2000,))}))
    build(target, None, tmp_path / "stream")
    words = [sys.executable, "-m", "appliance.transfer.apply"]
    good = subprocess.run(
        [*words, tmp_path / "stream", tmp_path / "made", tmp_path], capture_output=True, check=False
    )
    assert (good.returncode, good.stdout) == (0, b"")
    assert (tmp_path / "made").read_bytes() == target.read_bytes()
    bad = subprocess.run([*words, target, tmp_path / "other", tmp_path], capture_output=True, check=False)
    assert (bad.returncode, b"is no stream" in bad.stdout) == (REFUSED, True)
    assert set(os.listdir(tmp_path)) == {"1.model", "stream", "made"}


def test_what_a_header_may_be_is_bounded() -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(
            msgspec.msgpack.encode([b"", b"", [["a" * 64, 1, []]] * 1025, []]), type=Header
        )
