"""Manifests to test with: one that is plain, and a hypothesis strategy for any that keeps the rules."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import strategies as st

from appliance.domain.digest import Digester
from appliance.domain.manifest import (
    ELEMENT_BITS,
    INT64_MAX,
    FileEntry,
    LatencyPromise,
    Manifest,
    Measured,
    Opset,
    RuntimeNeed,
    TensorEntry,
    Variant,
)
from appliance.domain.tensor import Datatype, TensorSpec


def file_entry(path: str, content: bytes) -> FileEntry:
    """The entry of a file with ``content``."""
    digester = Digester()
    digester.update(content)
    found = digester.finish()
    return FileEntry(path=path, size=found.size, digest=found.digest, pieces=found.pieces)


def manifest_of(contents: dict[str, bytes], *, name: str = "sample", version: int = 1) -> Manifest:
    """A manifest of files by path, without tensors."""
    return Manifest(
        name=name,
        version=version,
        runtime=RuntimeNeed(name="onnxruntime", minimum="1.20", opsets=(Opset(domain="", version=17),)),
        files=tuple(file_entry(path, contents[path]) for path in sorted(contents)),
        inputs=(TensorSpec(name="x", datatype=Datatype.FP32, shape=(4,)),),
        outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=(2,)),),
        max_batch_size=8,
        licence="Apache-2.0",
        provenance="made by a test",
    )


def manifest_of_mlp(contents: dict[str, bytes], *, name: str, version: int) -> Manifest:
    """A manifest that is true of files of which the graph is that of the sample model "mlp"."""
    return replace(
        manifest_of(contents, name=name, version=version),
        inputs=(TensorSpec(name="x", datatype=Datatype.FP32, shape=(64,)),),
        outputs=(TensorSpec(name="y", datatype=Datatype.FP32, shape=(10,)),),
        max_batch_size=32,
    )


PARTS = st.from_regex(r"[a-z0-9_-][a-z0-9._-]{0,20}", fullmatch=True)
NAMES = st.text(st.characters(codec="utf-8"), min_size=1, max_size=12)
RELEASES = st.from_regex(r"[0-9]{1,3}(\.[0-9]{1,3}){0,3}", fullmatch=True)
WHOLE = st.integers(0, INT64_MAX)
COUNTS = st.integers(1, INT64_MAX)
PORTS = st.lists(
    st.builds(
        TensorSpec,
        name=NAMES,
        datatype=st.sampled_from(Datatype),
        shape=st.lists(st.integers(-1, INT64_MAX), max_size=4).map(tuple),
        optional=st.booleans(),
    ),
    max_size=3,
    unique_by=lambda port: port.name,
).map(tuple)


@st.composite
def manifests(draw: st.DrawFn) -> Manifest:
    """Any manifest that keeps the rules; its files have contents of a few bytes."""
    version = draw(COUNTS)
    weights = draw(st.binary(min_size=64, max_size=200))
    contents = {f"{version}/weights.bin": weights}
    for part in draw(st.lists(PARTS.filter(lambda text: not text.isdigit()), max_size=3, unique=True)):
        contents[part] = draw(st.binary(max_size=20))
    return Manifest(
        name=draw(PARTS),
        version=version,
        runtime=draw(needs()),
        files=tuple(file_entry(path, contents[path]) for path in sorted(contents)),
        tensors=draw(tensors(f"{version}/weights.bin", weights)),
        inputs=draw(PORTS),
        outputs=draw(PORTS.filter(bool)),
        max_batch_size=draw(st.integers(0, (1 << 31) - 1)),
        licence=draw(NAMES),
        provenance=draw(NAMES),
        promise=draw(st.none() | st.builds(LatencyPromise, rows=COUNTS, p99_us=COUNTS)),
        measured=draw(
            st.none()
            | st.builds(
                Measured, on=NAMES, memory_bytes=WHOLE, load_ns=WHOLE, rows=COUNTS, p50_ns=WHOLE, p99_ns=WHOLE
            )
        ),
        variant_of=draw(st.none() | st.builds(Variant, kind=PARTS, name=PARTS, version=COUNTS)),
    )


@st.composite
def needs(draw: st.DrawFn) -> RuntimeNeed:
    """A runtime with sets of operators."""
    domains = sorted(draw(st.sets(NAMES, max_size=3)))
    opsets = tuple(Opset(domain=domain, version=draw(COUNTS)) for domain in domains)
    return RuntimeNeed(name=draw(PARTS), minimum=draw(RELEASES), opsets=opsets)


@st.composite
def tensors(draw: st.DrawFn, file: str, weights: bytes) -> tuple[TensorEntry, ...]:
    """Tensors one after the other in ``weights``."""
    found: list[TensorEntry] = []
    offset = 0
    for name in draw(st.lists(NAMES, max_size=3, unique=True)):
        datatype = draw(st.sampled_from(sorted(ELEMENT_BITS)))
        count = draw(st.integers(1, 2))
        length = -(-count * ELEMENT_BITS[datatype] // 8)
        if offset + length > len(weights):
            break
        digester = Digester()
        digester.update(weights[offset : offset + length])
        found.append(
            TensorEntry(
                name=name,
                datatype=datatype,
                shape=(count,),
                file=file,
                offset=offset,
                length=length,
                digest=digester.finish().digest,
            )
        )
        offset += length
    return tuple(found)
