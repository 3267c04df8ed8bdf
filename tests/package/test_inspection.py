"""What is shown of a package: what its digests say, or why not."""

from __future__ import annotations

import io
import re
from pathlib import Path

import pytest
from rich.console import Console, RenderableType

from appliance.cli.model.inspect import as_json, view
from appliance.config.repository import RepositoryConfig
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


@pytest.mark.parametrize(
    ("groups", "said"),
    [
        ("", "the processor"),
        ("{ kind: KIND_CPU count: 2 }", "the processor"),
        ("{ kind: KIND_GPU }", "a GPU"),
        ("{ kind: KIND_GPU gpus: [ 2, 0 ] }", "a GPU: cuda:0, cuda:2 (instance_group.gpus)"),
        ("{ count: 1 }", "a GPU, where one can be used, else the processor (KIND_AUTO)"),
        (
            "{ kind: KIND_AUTO gpus: 1 }",
            "a GPU: cuda:1 (instance_group.gpus), where one can be used, else the processor (KIND_AUTO)",
        ),
    ],
)
def test_where_it_asks_to_run_is_shown_whatever_is_here(
    laid_out: Laid, tmp_path: Path, groups: str, said: str
) -> None:
    manifest, contents = laid_out
    config = f"instance_group [ {groups} ]\n".encode() if groups else b"max_batch_size: 4\n"
    made = with_file(manifest, "config.pbtxt", config)
    for there in ("cpu", "cuda", "auto"):
        policy = Policy(repository=RepositoryConfig(auto_device=there))
        found = inspected(tmp_path, archive(members_of(made, {**contents, "config.pbtxt": config})), policy)
        assert (str(found.place), found.problems) == (said, ())


def test_what_a_gpu_must_have_is_shown(laid_out: Laid, tmp_path: Path) -> None:
    config = b"""instance_group { kind: KIND_GPU }
parameters { key: "min_compute_capability" value { string_value: "8.9" } }
parameters { key: "gpu_uuids" value { string_value: "GPU-5c" } }
"""
    manifest, contents = laid_out
    made = with_file(manifest, "config.pbtxt", config)
    found = inspected(tmp_path, archive(members_of(made, {**contents, "config.pbtxt": config})))
    assert str(found.place) == (
        "a GPU: compute capability 8.9 or more (min_compute_capability), UUID GPU-5c (gpu_uuids)"
    )
    wanted = {"kind": "cuda", "gpus": [], "min_compute_capability": "8.9", "gpu_uuids": ["GPU-5c"]}
    assert as_json(found)["device"] == wanted
    assert re.search(r"device +a GPU: compute capability 8\.9 or more", shown(view(found, 0)))


def test_a_configuration_that_cannot_be_read_is_told_and_asks_for_nothing_known(
    laid_out: Laid, tmp_path: Path
) -> None:
    manifest, contents = laid_out
    made = with_file(manifest, "config.pbtxt", b"instance_group [")
    data = archive(members_of(made, {**contents, "config.pbtxt": b"instance_group ["}))
    found = inspected(tmp_path, data)
    assert (found.place, as_json(found)["device"]) == (None, None)
    assert [each.file for each in found.problems] == ["config.pbtxt"]
    assert re.search(r"device +not known", shown(view(found, 0)))
    assert inspected(tmp_path, archive(members_of(*laid_out))).place is not None, "one without runs somewhere"


def shown(what: RenderableType) -> str:
    """As a wide screen has it."""
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(what)
    return console.export_text()
