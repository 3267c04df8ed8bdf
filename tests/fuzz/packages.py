"""Package files: checked, looked into and installed, or refused with all that is wrong, and the store stays whole."""

from __future__ import annotations

import io
import json
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import onnx
from hypothesis import strategies as st
from rich.console import Console

from appliance.cli.failure import CommandFailed
from appliance.cli.model.inspect import as_json as shown_json
from appliance.cli.model.inspect import view
from appliance.cli.model.install import _install
from appliance.config.store import Unsigned
from appliance.domain.digest import digest_of
from appliance.domain.errors import PackageInvalid
from appliance.domain.manifest import Manifest
from appliance.domain.manifest_codec import encode
from appliance.package.container import MANIFEST_NAME, SIGNATURE_NAME, write_package
from appliance.package.keys import make_key, open_signer
from appliance.package.trust import sign
from appliance.package.verification import Policy, inspect_package, verify_package
from appliance.store.writer import StoreWriter, open_store
from appliance.tools.packaging.packing import Labels, lay_out
from appliance.tools.packaging.source import find_source
from tests.fuzz.boundary import Boundary, Judge, RuleBroken, check_shown, check_text
from tests.fuzz.model_configurations import UNFORESEEN
from tests.fuzz.mutations import as_json, changed, changed_bytes
from tests.package.archives import archive, member
from tests.package.onnx_models import model, tensor, values
from tests.store.stores import NO_FLOOR


def _laid_out() -> tuple[Manifest, dict[str, bytes]]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        folder = Path(name)
        nodes = [onnx.helper.make_node("MatMul", ["x", "w"], ["y"])]
        onnx.save(model(nodes, [tensor("w", values(64, 64))]), folder / "small.onnx")
        manifest = lay_out(
            find_source(folder / "small.onnx", None),
            Labels(name="small", version=1),
            folder / "out",
            lambda _: None,
        )
        home = folder / "out" / "small"
        return manifest, {entry.path: (home / entry.path).read_bytes() for entry in manifest.files}


def _signed(manifest: Manifest) -> tuple[bytes, Policy]:
    with tempfile.TemporaryDirectory(prefix="fuzz-") as name:
        private, public = make_key("ed25519")
        (Path(name) / "key").write_bytes(private)
        signer = open_signer(str(Path(name) / "key"), lambda _: "")
        return sign(encode(manifest), [signer]), Policy(keys=[public], unsigned=Unsigned.ALLOW)


MANIFEST, CONTENTS = _laid_out()
SIGNATURES, POLICY = _signed(MANIFEST)
TREE = json.loads(encode(MANIFEST))


def _package() -> bytes:
    out = io.BytesIO()
    write_package(out, MANIFEST, SIGNATURES, lambda entry: io.BytesIO(CONTENTS[entry.path]))
    return out.getvalue()


PACKAGE = _package()


def _archive(manifest: bytes, signatures: bytes | None, contents: Mapping[str, bytes]) -> bytes:
    """A container that is well made, of anything."""
    papers = [member(MANIFEST_NAME, manifest)]
    papers += [member(SIGNATURE_NAME, signatures)] if signatures is not None else []
    return archive([*papers, *(member(f"blobs/{digest_of(each)}", each) for each in contents.values())])


def _canonical(tree: Any) -> bytes:
    return json.dumps(tree, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode(
        errors="surrogatepass"
    )


def _of_tree(tree: Any) -> bytes:
    try:
        manifest = _canonical(json.loads(as_json(tree)))
    except (ValueError, RecursionError):
        manifest = as_json(tree)
    return _archive(manifest, None, CONTENTS)


@st.composite
def contents(draw: st.DrawFn) -> bytes:
    """One file is another one, and the manifest says so."""
    path = draw(st.sampled_from(sorted(CONTENTS)))
    data = draw(changed_bytes([CONTENTS[path]]))
    changed_contents = {**CONTENTS, path: data}
    tree = json.loads(encode(MANIFEST))
    for entry in tree["files"]:
        if entry["path"] == path:
            entry.update(digest=digest_of(data), size=len(data))
    return _archive(_canonical(tree), None, changed_contents)


CASES = st.one_of(
    changed([TREE]).map(_of_tree),
    contents(),
    changed([json.loads(SIGNATURES)]).map(lambda tree: _archive(encode(MANIFEST), as_json(tree), CONTENTS)),
    changed_bytes([PACKAGE]),
)


def asked(state: Path) -> Namespace:
    """What the command line says to have the version wanted, whatever was before."""
    return Namespace(state_dir=state, no_want=False, downgrade=True, allow_interface_change=True)


def _judge(case: bytes, folder: Path, store: StoreWriter) -> None:
    path = folder / "case.model"
    path.write_bytes(case)
    with tempfile.TemporaryDirectory(dir=folder) as work:
        found = verify_package(path, POLICY, Path(work), lambda total: lambda count: None)
    for problem in found.problems:
        _check(str(problem))
    try:
        seen = inspect_package(path, POLICY)
    except PackageInvalid as error:
        _check(str(error))
    else:
        json.dumps(shown_json(seen))
        console = Console(file=io.StringIO(), width=120, color_system=None)
        console.print(view(seen, 10))
        assert isinstance(console.file, io.StringIO)
        check_shown(console.file.getvalue())
    try:
        told = _install(store, path, POLICY, asked(folder / "state"))
    except (CommandFailed, PackageInvalid) as error:
        _check(str(error))
    else:
        if found.problems:
            raise RuleBroken(f"installed what verifying refuses: {found.problems[0]}")
        store.uninstall(told.name, told.version)
        store.collect()
    if {each.name for each in folder.iterdir()} != {"case.model", "state"}:
        raise RuleBroken("something was written beside the store")


def _check(text: str) -> None:
    check_text(text)
    if UNFORESEEN in text:
        raise RuleBroken(text)


@contextmanager
def opened() -> Iterator[Judge]:
    """A judge of package files, with a store of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="fuzz-", dir=memory()) as name,
        open_store(Path(name) / "state", NO_FLOOR) as store,
    ):
        yield lambda case: _judge(case, Path(name), store)


def memory() -> str | None:
    """A directory in memory, where a machine has one: nothing here is about disks."""
    return "/dev/shm" if Path("/dev/shm").is_dir() else None


BOUNDARY = Boundary(kept="packages", cases=CASES, opened=opened, examples=120)
