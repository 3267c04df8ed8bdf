"""What is shown of a package: what its digests say, or why not."""

from __future__ import annotations

from pathlib import Path

import pytest

from appliance.domain.digest import digest_of
from appliance.domain.golden import SET_BYTES_MAX, GoldenSet, encode_golden
from appliance.domain.manifest import LatencyPromise, Manifest
from appliance.domain.manifest_codec import encode
from appliance.package import verification
from appliance.package.container import blob_places
from appliance.package.keys import make_key, open_signer
from appliance.package.trust import sign
from appliance.package.verification import Inspection, Policy, inspect_package
from tests.package.archives import archive, members_of
from tests.package.onnx_models import MODELS
from tests.package.test_verification import lay, with_file

SET = "1/golden/set.json"
Laid = tuple[Manifest, dict[str, bytes]]


@pytest.fixture
def laid_out(tmp_path: Path) -> Laid:
    """A version with a golden set that has a promise."""
    manifest, contents = lay(MODELS["layers"], tmp_path / "made")
    promise = LatencyPromise(rows=1, p99_us=9)
    content = encode_golden(
        GoldenSet(cases=(), tolerances={}, promise=promise, tensors_digest=digest_of(b""))
    )
    return with_file(manifest, SET, content), {**contents, SET: content}


def inspected(tmp_path: Path, data: bytes, policy: Policy | None = None) -> Inspection:
    path = tmp_path / "layers-1.model"
    path.write_bytes(data)
    return inspect_package(path, policy or Policy())


def texts(found: Inspection) -> list[str]:
    return [f"{problem.file}: {problem.text}" for problem in found.problems]


def test_a_whole_package_is_shown(laid_out: Laid, tmp_path: Path) -> None:
    data = archive(members_of(*laid_out))
    found = inspected(tmp_path, data)
    assert (found.problems, found.size) == ((), len(data))
    assert found.graph is not None
    assert found.golden is not None
    assert found.golden.promise == LatencyPromise(rows=1, p99_us=9)
    assert not found.trust.verdicts


def test_a_signature_moves_what_comes_after_it(laid_out: Laid, tmp_path: Path) -> None:
    manifest, contents = laid_out
    pem, key = make_key("ed25519")
    (tmp_path / "key").write_bytes(pem)
    signatures = sign(encode(manifest), [open_signer(str(tmp_path / "key"), lambda what: "")])
    found = inspected(tmp_path, archive(members_of(manifest, contents, signatures)), Policy(keys=[key]))
    assert not found.problems
    assert found.trust.keyids == (key.keyid,)


@pytest.mark.parametrize("extra", [-1, 1])
def test_a_file_of_another_size_is_not_whole(laid_out: Laid, tmp_path: Path, extra: int) -> None:
    data = archive(members_of(*laid_out))
    found = inspected(tmp_path, data[:extra] if extra < 0 else data + b"x")
    (text,) = texts(found)
    assert f"has {len(data) + extra} bytes; its manifest demands {len(data)}, so it is not whole" in text


def test_contents_that_are_damaged_or_cut_off_are_not_shown(laid_out: Laid, tmp_path: Path) -> None:
    manifest, contents = laid_out
    data = bytearray(archive(members_of(manifest, contents)))
    places = blob_places(manifest, len(encode(manifest)), None)
    for path, kept in (("1/graph.onnx", "golden"), (SET, "graph")):
        entry = manifest.file(path)
        assert entry is not None
        at = places[entry.digest]
        data[at] ^= 1
        found = inspected(tmp_path, bytes(data))
        assert texts(found) == [f"{path}: is not what its digest says; copy the package again"]
        assert getattr(found, kept) is not None
        data[at] ^= 1
        assert f"{path}: is cut off; copy the package again" in texts(
            inspected(tmp_path, bytes(data[: at + 1]))
        )


def test_a_set_that_is_larger_than_any_is_not_read(
    laid_out: Laid, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, size = archive(members_of(*laid_out)), len(laid_out[1][SET])
    for limit, says in ((size - 1, [f"{SET}: has {size} bytes; at most {size - 1} are shown"]), (size, [])):
        assert limit < SET_BYTES_MAX
        monkeypatch.setattr(verification, "SET_BYTES_MAX", limit)
        assert texts(inspected(tmp_path, data)) == says
