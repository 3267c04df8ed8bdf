"""``appliance model pack``, ``verify`` and ``inspect`` as a person uses them."""

from __future__ import annotations

import json
import logging
import shutil
import subprocess
import sys
import tomllib
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.domain.errors import ArtefactError
from appliance.domain.golden import GoldenSet, write_golden
from appliance.domain.manifest import LatencyPromise
from appliance.package.container import write_package
from appliance.package.reader import open_package
from appliance.tools.commands import pack
from appliance.tools.variants.conversion import make_variant
from tests.architecture.sources import ROOT
from tests.package.archives import packed
from tests.package.onnx_models import MODELS, layers

Capture = pytest.CaptureFixture[str]


def test_a_pack_that_proves_nothing_says_what_is_too_new_for_the_runtime_here(
    tmp_path: Path, capsys: Capture
) -> None:
    """Else the model is loaded, and refused for it."""
    late, package = layers(), tmp_path / "late.model"
    late.ir_version = 99
    onnx.save(late, tmp_path / "late.onnx")
    command = ["model", "pack", str(tmp_path / "late.onnx"), "-o", str(package)]
    assert main(command) == Exit.REFUSED
    assert "the model's ir_version is 99, and onnxruntime" in capsys.readouterr().err
    assert not package.exists()
    assert main([*command, "--no-proof"]) == Exit.OK
    (warning,) = capsys.readouterr().err.splitlines()
    assert warning.startswith(
        "late/1 would not load here, nor on a box with this onnxruntime: the model's ir_"
    )
    assert package.exists()


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with the digits model and a model file."""
    shutil.copytree(ROOT / "models" / "digits", tmp_path / "digits")
    onnx.save(MODELS["layers"], tmp_path / "Layers 3.onnx")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> int:
    return main(["model", *words])


def printed(capsys: Capture) -> Any:
    return json.loads(capsys.readouterr().out)


def test_from_a_directory_to_a_checked_package(here: Path, capsys: Capture) -> None:
    assert run("keygen", "signing.pem") == Exit.OK
    capsys.readouterr()
    said = [
        "--licence",
        "CC0-1.0",
        "--provenance",
        "@why.txt",
        "--promise",
        "1:8000",
        "--measured",
        "cost.json",
    ]
    (here / "why.txt").write_text("trained on\nthe digits set\n")
    cost = {"on": "a bench", "memory_bytes": 5, "load_ns": 6, "rows": 1, "p50_ns": 7, "p99_ns": 8}
    (here / "cost.json").write_text(json.dumps(cost))
    assert run("pack", "digits", "--key", "signing.pem", "--json", *said) == Exit.OK
    packed = printed(capsys)
    assert packed["file"] == "digits-2.model"
    assert packed["proven_requests"] == 3
    assert (here / "digits-2.model").stat().st_size == packed["bytes"]
    assert sorted(path.name for path in here.iterdir() if path.name.startswith(".")) == []

    assert run("verify", "digits-2.model", "--trusted-key", "signing.pem.pub", "--json") == Exit.OK
    (verified,) = printed(capsys)
    assert verified["trust"] == f"key {packed['signed_by'][0]}"
    assert verified["manifest"] == packed["manifest"]

    assert run("inspect", "digits-2.model", "--json") == Exit.OK
    shown = printed(capsys)
    assert shown["manifest"]["provenance"] == "trained on\nthe digits set\n"
    assert shown["manifest"]["promise"] == {"rows": 1, "p99_us": 8000}
    assert shown["manifest"]["measured"] == cost
    assert {"domain": "", "operator": "Conv", "count": 1} in shown["graph"]["operators"]
    assert [entry["name"] for entry in shown["manifest"]["tensors"]] == ["filters", "weight"]


def test_a_promise_takes_the_place_of_another_and_it_is_said(here: Path, capsys: Capture) -> None:
    assert run("pack", "Layers 3.onnx", "--promise", "1:9", "--no-proof", "-o", "a.model") == Exit.OK
    assert "promise    1 row in 9 us in 99 of 100 runs\n" in capsys.readouterr().out
    write_golden("golden", GoldenSet(cases=(), tolerances={}, promise=LatencyPromise(rows=2, p99_us=7)), b"")
    assert run("pack", "Layers 3.onnx", "--promise", "1:9", "--no-proof", "-o", "b.model") == Exit.OK
    said = "promise    1 row in 9 us in 99 of 100 runs, in the place of 2 rows in 7 us in 99 of 100 runs"
    assert said in capsys.readouterr().out
    assert run("verify", "a.model", "b.model") == Exit.OK


def test_a_package_with_two_promises_is_not_installed(here: Path, capsys: Capture) -> None:
    assert run("pack", "digits", "--promise", "1:1490", "--no-proof") == Exit.OK
    with open_package(here / "digits-2.model") as reader, (here / "two.model").open("wb") as out:
        two = replace(reader.manifest, promise=LatencyPromise(rows=1, p99_us=5))
        blobs = reader.blobs()
        write_package(out, two, None, lambda entry: nullcontext(next(blobs).stream))
        assert next(blobs, None) is None
    capsys.readouterr()
    for words in (("verify",), ("install", "--allow-unsigned", "--state-dir", "state")):
        assert run(*words, "two.model") == Exit.REFUSED
        told = capsys.readouterr()
        text = " ".join((told.out + told.err).replace("│", " ").split())
        assert "is 1 row in 5 us" in text
        assert "1 row in 1490 us" in text


def test_what_a_person_sees(here: Path, capsys: Capture) -> None:
    assert run("pack", "Layers 3.onnx", "--version", "4", "--name", "layers") == Exit.OK
    assert "packed     layers-4.model" in capsys.readouterr().out
    assert run("inspect", "layers-4.model", "--tensors", "2") == Exit.OK
    shown = capsys.readouterr().out
    for words in (
        "layers, version 4",
        "nobody",
        "MatMul",
        "4/weights.bin",
        "w0",
        "... 1 more",
        "[batch, 64]",
    ):
        assert words in shown
    assert run("verify", "layers-4.model") == Exit.OK
    assert "layers-4.model (layers/4): no problems" in capsys.readouterr().out


def test_the_graph_of_a_package(here: Path, capsys: Capture) -> None:
    assert run("pack", "digits", "--no-proof") == Exit.OK
    capsys.readouterr()
    assert run("inspect", "digits-2.model") == Exit.OK
    shown = [line.rstrip() for line in capsys.readouterr().out.splitlines()]
    begin = shown.index("operators (8 nodes)")
    assert shown[begin + 2].split() == ["AveragePool", "ai.onnx", "1"]
    assert run("inspect", "digits-2.model", "--json") == Exit.OK
    graph = printed(capsys)["graph"]
    assert graph["nodes"] == 8
    assert graph["operators"][0] == {"domain": "", "operator": "AveragePool", "count": 1}


def test_a_hostile_graph_is_shown_all_the_same(here: Path, capsys: Capture) -> None:
    """One whose nodes take from themselves and call operators that nobody has, under names that would move a cursor."""
    graph = onnx.load("digits/2/model.onnx")
    for node in graph.graph.node:
        node.input[0] = node.output[0] = node.op_type = "round\x1b[2J"
    content = graph.SerializeToString()
    _, data = packed({"1/graph.onnx": content})
    (here / "hostile.model").write_bytes(data)
    assert run("inspect", "hostile.model") == Exit.OK
    shown = capsys.readouterr().out
    assert "round\\x1b[2J" in shown
    assert "\x1b" not in shown


def test_a_package_that_is_cut_off_is_shown_and_said_to_be(here: Path, capsys: Capture) -> None:
    assert run("pack", "digits", "--no-proof") == Exit.OK
    whole = (here / "digits-2.model").read_bytes()
    (here / "cut.model").write_bytes(whole[:-512])
    capsys.readouterr()
    assert run("inspect", "cut.model") == Exit.REFUSED
    shown = " ".join(capsys.readouterr().out.split())
    assert "digits, version 2" in shown
    assert f"cut.model: has {len(whole) - 512} bytes; its manifest demands {len(whole)}" in shown
    assert run("inspect", "cut.model", "--json") == Exit.REFUSED
    assert [each["file"] for each in printed(capsys)["problems"]] == ["cut.model"]
    assert run("inspect", "digits-2.model", "--json") == Exit.OK
    assert printed(capsys)["problems"] == []


def test_packing_again_gives_the_same_file(here: Path) -> None:
    (here / "out").mkdir()
    for target in ("one.model", "out"):
        assert run("pack", "digits/1", "-o", target, "--no-proof") == Exit.OK
    assert (here / "one.model").read_bytes() == (here / "out" / "digits-1.model").read_bytes()


def test_problems_are_a_table_and_a_status(here: Path, capsys: Capture) -> None:
    assert run("pack", "digits", "--no-proof") == Exit.OK
    data = bytearray((here / "digits-2.model").read_bytes())
    data[len(data) // 2] ^= 1
    (here / "wrong.model").write_bytes(bytes(data) + b"more")
    capsys.readouterr()
    assert run("keygen", "key") == Exit.OK
    assert run("verify", "digits-2.model", "wrong.model", "--trusted-key", "key.pub") == Exit.REFUSED
    shown = " ".join(capsys.readouterr().out.split())
    assert "digits-2.model (digits/2): 1 problem" in shown
    assert "is not signed" in shown
    assert "is damaged" in shown


def test_a_package_that_cannot_be_read_keeps_no_other_from_its_verdict(here: Path, capsys: Capture) -> None:
    assert run("pack", "digits", "--no-proof") == Exit.OK
    (here / "wrong.model").write_bytes(b"no package")
    capsys.readouterr()
    words = ("digits-2.model", "gone.model", "wrong.model", "digits")
    assert run("verify", *words) == Exit.USAGE
    told = capsys.readouterr()
    assert "digits-2.model (digits/2): no problems" in told.out
    assert "wrong.model: 1 problem" in told.out
    assert "'gone.model' cannot be checked: No such file" in told.err
    assert "'digits' cannot be checked: Is a directory" in told.err
    assert run("verify", *words, "--json") == Exit.USAGE
    assert [each["file"] for each in printed(capsys)] == ["digits-2.model", "wrong.model"]


def test_the_configuration_may_judge(here: Path, capsys: Capture) -> None:
    assert run("keygen", "key") == Exit.OK
    assert run("pack", "digits", "--key", "key") == Exit.OK
    (here / "config.toml").write_text('[packages]\ntrusted_keys = ["key.pub"]\n')
    assert run("verify", "digits-2.model", "--config", "config.toml") == Exit.OK
    assert ": right, key.pub" in capsys.readouterr().out
    (here / "config.toml").write_text('[packages]\ntrusted_keys = ["gone", "digits", "key.pub"]\n')
    capsys.readouterr()
    for words in (("verify",), ("install", "--state-dir", "state")):
        assert run(*words, "digits-2.model", "--config", "config.toml") == Exit.USAGE
        told = capsys.readouterr().err
        assert "config.toml: packages.trusted_keys: 'gone' cannot be read: No such file" in told
        assert "config.toml: packages.trusted_keys: 'digits' cannot be read: Is a directory" in told
    assert not (here / "state").exists()


def test_trusted_keys_lie_by_the_configuration(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run("keygen", "key") == Exit.OK
    assert run("pack", "digits", "--key", "key", "--no-proof") == Exit.OK
    site = here / "site"
    site.mkdir()
    (here / "key.pub").rename(site / "key.pub")
    (site / "config.toml").write_text(
        '[packages]\ntrusted_keys = ["key.pub"]\n[store]\nfree_floor_bytes = 0\n'
    )
    assert run("verify", "digits-2.model", "--config", "site/config.toml") == Exit.OK
    monkeypatch.chdir(site)
    words = ("../digits-2.model", "--state-dir", "../state", "--config")
    assert run("install", *words, "config.toml") == Exit.OK
    monkeypatch.chdir(here / "digits")
    assert run("install", *words, "../site/config.toml") == Exit.OK
    absolute = f'[packages]\ntrusted_keys = ["{site / "key.pub"}"]\n[store]\nfree_floor_bytes = 0\n'
    (here / "config.toml").write_text(absolute)
    assert run("install", *words, "../config.toml") == Exit.OK


def test_a_cap_holds_for_all_who_read_the_model(here: Path, capsys: Capture) -> None:
    """Pack, import and the trials, in whose processes the model is read again."""
    onnx.save(layers(), here / "long.onnx")
    unsigned = "[packages]\nunsigned = 'allow'\n"
    (here / "box.toml").write_text(unsigned)
    (here / "capped.toml").write_text(f"{unsigned}[repository.firewall]\nmax_nodes = 1\n")
    commands = (
        ("import", "long.onnx", "-o", "models"),
        ("golden", "models/long", "--random", "1"),
        ("bench", "models/long", "--budget-ms", "1", "--rows", "1"),
        ("optimise", "models/long", "--budget-ms", "1", "--method", "fp16", "--tolerance", "y=1e9"),
        ("pack", "models/long", "--version", "1", "-o", "long.model"),
    )
    for words in commands:
        assert run(*words, "--config", "capped.toml") == Exit.REFUSED
        assert "max_nodes)" in capsys.readouterr().err
        assert run(*words, "--config", "box.toml") == Exit.OK
    assert run("verify", "long.model", "--config", "capped.toml") == Exit.REFUSED
    assert run("verify", "long.model", "--config", "box.toml") == Exit.OK


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["pack", "nowhere"], Exit.USAGE, "No such file"),
        (["pack", "digits", "--version", "9"], Exit.USAGE, "of which --version picks one to pack"),
        (["pack", "digits", "--name", "Two Words"], Exit.REFUSED, "is no name for a model"),
        (["pack", "digits", "--key", "nowhere"], Exit.USAGE, "cannot be read"),
        (["pack", "digits", "--promise", "fast"], Exit.USAGE, "ROWS:P99_US"),
        (["pack", "digits", "--measured", "digits"], Exit.USAGE, "cannot be read"),
        (["pack", "digits", "--licence", "@nowhere"], Exit.USAGE, "cannot be read"),
        (["pack", "digits", "--include", "nowhere"], Exit.USAGE, "nowhere: is missing"),
        (["pack", "Layers 3.onnx", "--include", "nowhere"], Exit.USAGE, "nowhere: is missing"),
        (["pack", "digits", "-o", "nowhere/x.model"], Exit.USAGE, "is not a directory"),
        (["verify", "nowhere"], Exit.USAGE, "No such file"),
        (["verify", "digits"], Exit.USAGE, "cannot be checked"),
        (["inspect", "nowhere"], Exit.USAGE, "No such file"),
        (["inspect", "Layers 3.onnx"], Exit.REFUSED, "is no package"),
    ],
)
def test_failures_are_sentences(
    words: list[str], status: Exit, says: str, here: Path, capsys: Capture
) -> None:
    assert run(*words) == status
    error = capsys.readouterr().err
    assert error.startswith(f"appliance model {words[0]}: ")
    assert says in error
    assert not list(here.glob("*.model"))


def test_a_password_comes_from_a_file(here: Path, capsys: Capture) -> None:
    assert run("keygen", "key") == Exit.OK
    line = ["openssl", "pkcs8", "-topk8", "-in", "key", "-out", "locked", "-passout", "pass:secret"]
    subprocess.run(line, check=True, capture_output=True)
    (here / "secret").write_text("secret\n")
    assert run("pack", "digits", "--key", "locked", "--secret-file", "secret", "--no-proof") == Exit.OK
    with open_package(here / "digits-2.model") as reader:
        assert reader.signatures is not None
    capsys.readouterr()
    done = subprocess.run(
        [sys.executable, "-c", "import sys; from appliance.cli.main import main; sys.exit(main(sys.argv[1:]))",
         "model", "pack", "digits", "--key", "locked"],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == Exit.USAGE
    assert "give --secret-file" in done.stderr


def test_packages_are_read_where_they_cannot_be_made(here: Path) -> None:
    """Without the package onnx and without a runtime."""
    assert run("pack", "digits", "--no-proof") == Exit.OK
    program = (
        "import sys\n"
        "for name in ('onnx', 'onnxruntime', 'numpy'): sys.modules[name] = None\n"
        "from appliance.cli.main import main\n"
        "assert main(['model', 'verify', 'digits-2.model']) == 0\n"
        "assert main(['model', 'inspect', 'digits-2.model']) == 0\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, capture_output=True)


def test_how_to_get_what_packing_needs_is_said(
    here: Path, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the release that the project asks for, and by a name that the index has."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (wanted,) = extras["models"]
    line = f"'onnx': {sys.executable} -m pip install '{wanted}'"
    monkeypatch.setitem(sys.modules, "onnx", None)
    monkeypatch.setattr(pack, "find_spec", lambda name: None)
    assert run("pack", "digits") == Exit.USAGE
    assert line in capsys.readouterr().err
    root = logging.getLogger()
    level = root.level
    with pytest.raises(ArtefactError, match="making variants") as failure:
        make_variant("digits/2/model.onnx", "fp16", "out.onnx", [])
    root.setLevel(level)
    assert line in str(failure.value)
    for document in ("README.md", "docs/PACKAGES.md"):
        assert f"pip install '{wanted}'" in (ROOT / document).read_text()


def test_a_file_that_is_there_is_replaced_only_by_force(here: Path, capsys: Capture) -> None:
    words = ("pack", "Layers 3.onnx", "--name", "layers", "--no-proof")
    assert run(*words) == Exit.OK
    (here / "layers-1.model").write_bytes(b"somebody's")
    capsys.readouterr()
    assert run(*words) == Exit.USAGE
    assert "'layers-1.model' is there already; give --force" in capsys.readouterr().err
    assert (here / "layers-1.model").read_bytes() == b"somebody's"
    assert run(*words, "--force") == Exit.OK
    assert run("verify", "layers-1.model") == Exit.OK


def test_where_a_command_writes_is_said_in_one_way(here: Path, capsys: Capture) -> None:
    for number, option in enumerate(("-o", "--output", "--out")):
        target = f"{number}.model"
        assert run("pack", "Layers 3.onnx", "--name", "layers", "--no-proof", option, target) == Exit.OK
        assert (here / target).is_file()
    for command in ("optimise", "golden", "import", "sign"):
        with pytest.raises(SystemExit):
            run(command, "--help")
        assert "-o" in (told := capsys.readouterr().out)
        assert "--output" in told
        assert "--out " in told


def test_signatures_are_added_to_a_package(here: Path, capsys: Capture) -> None:
    for key in ("old.pem", "new.pem"):
        assert run("keygen", key, "--kind", "ed25519") == Exit.OK
    assert run("pack", "digits", "--key", "old.pem") == Exit.OK
    before = (here / "digits-2.model").read_bytes()
    assert run("pack", "digits", "--key", "old.pem", "--key", "new.pem", "-o", "both.model") == Exit.OK
    capsys.readouterr()
    assert run("sign", "digits-2.model", "--key", "new.pem", "-o", "copy.model", "--json") == Exit.OK
    told = printed(capsys)
    assert len(set(told["signed_by"])) == 2
    assert (here / "digits-2.model").read_bytes() == before, "another file was asked for"
    assert (here / "copy.model").read_bytes() == (here / "both.model").read_bytes()
    assert run("sign", "digits-2.model", "--key", "new.pem") == Exit.OK
    assert "digits-2.model (digits/2) is signed by " in capsys.readouterr().out
    assert (here / "digits-2.model").read_bytes() == (here / "both.model").read_bytes()
    for key in ("old.pem.pub", "new.pem.pub"):
        assert run("verify", "digits-2.model", "--trusted-key", key) == Exit.OK
    assert run("sign", "copy.model", "--key", "new.pem") == Exit.OK
    assert (here / "copy.model").read_bytes() == (here / "both.model").read_bytes(), "signed twice is signed"
    assert run("sign", "copy.model", "--key", "new.pem", "-o", "both.model") == Exit.USAGE
    assert [path.name for path in here.iterdir() if path.name.startswith(".")] == []


def test_a_package_that_lies_about_a_tensor_is_not_installed(here: Path, capsys: Capture) -> None:
    """All its contents are what they should be; only what it says of a part of one is not so."""
    assert run("pack", "digits") == Exit.OK
    with open_package(here / "digits-2.model") as reader, (here / "lie.model").open("wb") as out:
        first, *others = reader.manifest.tensors
        lie = replace(reader.manifest, tensors=(replace(first, digest="0" * 64), *others))
        blobs = reader.blobs()
        write_package(out, lie, None, lambda entry: nullcontext(next(blobs).stream))
        assert next(blobs, None) is None
    capsys.readouterr()
    for words in (("verify",), ("install", "--allow-unsigned", "--state-dir", "state")):
        assert run(*words, "lie.model") == Exit.REFUSED
        told = capsys.readouterr()
        text = " ".join((told.out + told.err).replace("│", " ").split())
        assert f"the bytes of '{first.name}' in 2/weights.bin have another digest" in text
    assert run("install", "--allow-unsigned", "--state-dir", "state", "digits-2.model") == Exit.OK


def test_a_package_that_is_damaged_is_not_signed(here: Path, capsys: Capture) -> None:
    assert run("keygen", "key.pem") == Exit.OK
    assert run("pack", "digits") == Exit.OK
    package = here / "digits-2.model"
    data = bytearray(package.read_bytes())
    data[-2000] ^= 1
    package.write_bytes(data)
    capsys.readouterr()
    assert run("sign", "digits-2.model", "--key", "key.pem") == Exit.REFUSED
    assert "'digits-2.model' is refused:" in capsys.readouterr().err
    assert package.read_bytes() == data
    package.write_bytes(bytes(data)[:-1024])
    assert run("sign", "digits-2.model", "--key", "key.pem") == Exit.REFUSED
    assert run("sign", "nothing.model", "--key", "key.pem") == Exit.USAGE
    assert run("sign", "digits-2.model", "--key", "nothing.pem") == Exit.USAGE


@pytest.mark.parametrize("number", ["0", "-1", "9223372036854775808", "x", "1" * 5000])
def test_what_is_no_version_is_refused_as_that(here: Path, capsys: Capture, number: str) -> None:
    with pytest.raises(SystemExit) as ended:
        run("pack", "digits", f"--version={number}")
    assert ended.value.code == 2
    assert "is no version; give 1 to 9223372036854775807" in capsys.readouterr().err
    assert not list(here.glob("*.model"))
