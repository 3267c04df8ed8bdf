"""Other people's models: what becomes of them, what is told, and that nothing is left of a failure."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import onnx
import pytest

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ModelInvalid
from appliance.domain.manifest import path_problem
from appliance.tools.packaging.config_text import changed_config
from appliance.tools.packaging.importing import DROPPED, import_model
from tests.package.onnx_models import layers, save_outside
from tests.repository.onnx_files import model_of, port
from tests.repository.scanning import scan

TRITON = """\
# from the other server
name: "Classifier-A"
backend: "onnxruntime"
max_batch_size: 8
output [ { name: "y" data_type: TYPE_FP32 dims: [ 64 ] label_filename: "Labels.TXT" } ]
optimization { execution_accelerators { gpu_execution_accelerator : [ { name : "tensorrt" # fast
  parameters { key: "precision_mode" value: "FP16" } } ] } }
response_cache { enable: true }, instance_group [ { count: 1 kind: KIND_CPU } ]  # kept
version_policy: { all { } }
"""


def an_entry(root: Path, config: str = TRITON) -> Path:
    home = root / "Classifier-A"
    for version in (1, 2):
        (home / str(version)).mkdir(parents=True)
        save_outside(layers(version), str(home / str(version) / "model.onnx"))
    (home / "config.pbtxt").write_text(config)
    (home / "Labels.TXT").write_text("\n".join(map(str, range(64))))
    return home


@pytest.fixture
def out(tmp_path: Path) -> Path:
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_a_triton_entry(tmp_path: Path, out: Path) -> None:
    made = import_model(an_entry(tmp_path), out, None, None)
    assert (made.home, made.versions) == (out / "classifier-a", (1, 2))
    text = (made.home / "config.pbtxt").read_text()
    assert 'name: "classifier-a"' in text
    assert "# from the other server" in text
    assert 'label_filename: "labels.txt"' in text
    assert "instance_group [ { count: 1 kind: KIND_CPU } ]  # kept" in text
    assert "optimization" not in text
    assert "response_cache" not in text
    assert len(made.notes) == 3
    found = scan(out, RepositoryConfig())
    assert [(each.model.name, each.model.version) for each in found.servable] == [
        ("classifier-a", 1), ("classifier-a", 2),
    ]  # fmt: skip
    assert found.servable[0].model.labels["y"][63] == "63"
    assert not found.problems


def test_what_is_too_new_for_the_runtime_here_is_imported_with_a_warning(
    tmp_path: Path, out: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The box that it is for may have a later one."""
    late = layers()
    late.ir_version = late.opset_import[0].version = 99
    onnx.save(late, tmp_path / "late.onnx")
    onnx.save(layers(), tmp_path / "plain.onnx")
    command = ["model", "import", "-o", str(out), "--json"]
    assert main([*command, str(tmp_path / "late.onnx")]) == Exit.OK
    told = capsys.readouterr()
    warnings = json.loads(told.out)["warnings"]
    assert told.err.splitlines() == warnings
    assert [each.partition(" is 99, ")[0] for each in warnings] == [
        f"late/1 would not load here, nor on a box with this onnxruntime: the model's {what}"
        for what in ("ir_version", "operator set of the domain 'ai.onnx'")
    ]
    assert "save the model with ir_version = " in warnings[0]
    assert (out / "late" / "1" / "model.onnx").is_file()
    assert main([*command, str(tmp_path / "plain.onnx")]) == Exit.OK
    told = capsys.readouterr()
    assert (json.loads(told.out)["warnings"], told.err) == ([], "")


def test_without_a_runtime_here_nothing_is_known_of_what_it_reads(
    tmp_path: Path, out: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    late = layers()
    late.ir_version = 99
    onnx.save(late, tmp_path / "late.onnx")
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    monkeypatch.delitem(sys.modules, "appliance.runtimes.onnx", raising=False)
    assert import_model(tmp_path / "late.onnx", out, None, None).warnings == ()


def test_one_version_of_a_triton_entry(tmp_path: Path, out: Path) -> None:
    assert import_model(an_entry(tmp_path), out, "other", 2).versions == (2,)
    assert sorted(path.name for path in (out / "other" / "2").iterdir()) == ["model.bin", "model.onnx"]


def test_an_onnx_file_with_data_beside_it(tmp_path: Path, out: Path) -> None:
    save_outside(layers(), str(tmp_path / "My Net.onnx"), location="weights.data")
    made = import_model(tmp_path / "My Net.onnx", out, None, 5)
    assert (made.home.name, made.versions) == ("my-net", (5,))
    assert sorted(path.name for path in (made.home / "5").iterdir()) == ["model.onnx", "weights.data"]


def test_a_folder_of_a_hub(tmp_path: Path, out: Path) -> None:
    folder = tmp_path / "Some-Encoder"
    (folder / "onnx").mkdir(parents=True)
    onnx.save(layers(), folder / "onnx" / "model.onnx")
    (folder / "config.json").write_text("{}")
    (folder / "tokenizer.json").write_text("{}")
    made = import_model(folder, out, None, None)
    assert made.home.name == "some-encoder"
    assert (made.home / "tokenizer.json").read_text() == "{}"


def test_weights_without_a_graph(tmp_path: Path, out: Path) -> None:
    folder = tmp_path / "encoder"
    folder.mkdir()
    with pytest.raises(ModelInvalid, match="holds neither"):
        import_model(folder, out, None, None)
    (folder / "model.safetensors").write_bytes(b"")
    with pytest.raises(ModelInvalid, match="optimum-cli export onnx"):
        import_model(folder, out, None, None)


def test_what_cannot_be_served_is_told_at_once_and_nothing_is_left(tmp_path: Path, out: Path) -> None:
    entry = an_entry(tmp_path, TRITON + "sequence_batching { }\nensemble_scheduling { }\n")
    with pytest.raises(
        ModelInvalid, match=r"(?s)sequence_batching.*ensemble_scheduling|ensemble_scheduling.*sequence"
    ):
        import_model(entry, out, None, None)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ('platform: "ensemble"', r"(?s)'ensemble'.*has no version directory"),
        ('backend: "python"', r"(?s)backend: 'python' is not enabled.*has no version directory"),
    ],
)
def test_a_triton_entry_of_another_kind_says_what_it_is(
    tmp_path: Path, out: Path, config: str, told: str
) -> None:
    (tmp_path / "entry").mkdir()
    (tmp_path / "entry" / "config.pbtxt").write_text(config)
    with pytest.raises(ModelInvalid, match=told):
        import_model(tmp_path / "entry", out, None, None)


def test_a_python_model_with_a_version_says_what_it_is(tmp_path: Path, out: Path) -> None:
    (tmp_path / "entry" / "1").mkdir(parents=True)
    (tmp_path / "entry" / "1" / "model.py").write_text("pass")
    (tmp_path / "entry" / "config.pbtxt").write_text('backend: "python"')
    with pytest.raises(ModelInvalid, match=r"(?s)backend: 'python' is not enabled.*model.onnx: is missing"):
        import_model(tmp_path / "entry", out, None, None)


def test_what_is_there_already_stays(tmp_path: Path, out: Path) -> None:
    (out / "classifier-a").mkdir()
    with pytest.raises(ModelInvalid, match="is there already"):
        import_model(an_entry(tmp_path), out, None, None)
    assert list((out / "classifier-a").iterdir()) == []


def test_data_outside_the_model_is_not_followed(tmp_path: Path, out: Path) -> None:
    entry = an_entry(tmp_path)
    shutil.move(entry / "1" / "model.bin", tmp_path / "secret")
    (entry / "1" / "model.bin").symlink_to(tmp_path / "secret")
    with pytest.raises(ModelInvalid, match="outside the model's directory"):
        import_model(entry, out, None, None)
    assert list(out.iterdir()) == []


def _two_outputs(root: Path, first: str, second: str, more: str = "") -> Path:
    home = root / "two"
    (home / "1").mkdir(parents=True)
    ports = [port(name, ["n", 4]) for name in ("x", "y", "z")]
    onnx.save(model_of(ports[:1], ports[1:]), home / "1" / "model.onnx")
    (home / "config.pbtxt").write_text(
        f'max_batch_size: 8 output {{ name: "y" label_filename: "{first}" }} '
        f'output {{ name: "z" label_filename: "{second}" }} {more}'
    )
    for name in (first, second):
        (home / name).parent.mkdir(exist_ok=True)
        (home / name).write_text(f"of {name}\n")
    return home


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("类别.txt", "标签.txt"),
        ("Labels.txt", "labels.txt"),
        ("labels.txt", "Labels.txt"),
        ("l" * 70 + "1.txt", "l" * 70 + "2.txt"),
        ("类别.txt", "txt"),
        ("A/labels.txt", "a/labels.txt"),
        ("A/one.txt", "a/Two.txt"),
        ("Config.pbtxt", "Tokenizer.json"),
    ],
)
def test_files_whose_names_become_one_stay_apart(first: str, second: str, tmp_path: Path, out: Path) -> None:
    home = _two_outputs(tmp_path, first, second)
    if second.lower() != "tokenizer.json":
        (home / "tokenizer.json").write_text("{}")
    made = import_model(home, out, None, None)
    (version,) = scan(out, RepositoryConfig()).servable
    assert version.model.labels == {"y": (f"of {first}",), "z": (f"of {second}",)}
    assert all(not path_problem(file) for file in version.model.label_files.values())
    assert len(set(version.model.label_files.values())) == 2
    assert len(made.notes) == sum(name != new for name, new in zip(
        (first, second), (version.model.label_files["y"], version.model.label_files["z"]), strict=True
    ))  # fmt: skip


def test_warm_up_files_whose_names_become_one_stay_apart(tmp_path: Path, out: Path) -> None:
    warm = 'inputs {{ key: "x" value {{ data_type: TYPE_FP32 dims: 4 input_data_file: "{0}" }} }}'
    more = " ".join(f'model_warmup {{ name: "{name}" {warm.format(name)} }}' for name in ("X", "x", "same"))
    home = _two_outputs(tmp_path, "a", "same", more)
    (home / "warmup").mkdir()
    for name, value in (("X", b"\1"), ("x", b"\2"), ("same", b"\3")):
        (home / "warmup" / name).write_bytes(value * 16)
    import_model(home, out, None, None)
    (version,) = scan(out, RepositoryConfig()).servable
    read = {warmup.name: Path(warmup.inputs[0].file).read_bytes()[:1] for warmup in version.model.warmups}
    assert read == {"X": b"\1", "x": b"\2", "same": b"\3"}


def test_only_names_of_files_are_changed_in_a_configuration(tmp_path: Path, out: Path) -> None:
    more = 'parameters { key: "p" value { string_value: "A.txt" } }'
    import_model(_two_outputs(tmp_path, "A.txt", "b.txt", more), out, None, None)
    (version,) = scan(out, RepositoryConfig()).servable
    assert version.model.parameters == {"p": "A.txt"}
    assert version.model.label_files == {"y": "a.txt", "z": "b.txt"}


def test_a_model_whose_weights_are_called_as_it_will_be_is_told(tmp_path: Path, out: Path) -> None:
    save_outside(layers(), str(tmp_path / "net.onnx"), location="model.onnx")
    with pytest.raises(
        ModelInvalid, match=r"net.onnx.* and .*model.onnx.* would both be called '1/model.onnx'"
    ):
        import_model(tmp_path / "net.onnx", out, None, None)
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("field", sorted(DROPPED))
def test_fields_that_are_dropped(field: str) -> None:
    for body in (
        f"{field} {{ a: [ 1, {{ b: 'x' # c }}\n }} ] }}",
        f"{field} < a: 1 >;",
        f'{field}: [ "a", "b" ],',
    ):
        text = f"max_batch_size: 4 {body} backend: 'x' # d"
        changed = changed_config(text.encode(), {}, without=DROPPED).decode()
        assert changed == "max_batch_size: 4 backend: 'x' # d"


def test_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    entry = an_entry(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert main(["model", "import", "Classifier-A", "--json"]) == Exit.OK
    told = json.loads(capsys.readouterr().out)
    assert (told["home"], told["versions"]) == ("models/classifier-a", [1, 2])
    assert main(["model", "import", str(entry), "--name", "b", "--version", "1"]) == Exit.OK
    shown = capsys.readouterr().out
    assert "models/b: version 1" in shown
    assert "'optimization' is left out: it says how Triton runs the model" in shown
    assert main(["model", "import", "nowhere"]) == Exit.USAGE
    assert main(["model", "import", str(entry), "--name", "B"]) == Exit.USAGE
    assert main(["model", "pack", "models/b", "--no-proof"]) == Exit.OK
