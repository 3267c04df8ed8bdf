"""``appliance model bench --variants`` as a person uses it, with the real runtime."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from appliance.cli.main import main
from appliance.config.repository import RepositoryConfig
from appliance.domain.golden import Tolerance, read_golden, read_tensors, write_golden
from appliance.tools.commands import precision
from appliance.tools.evaluation.jobs import ConvertJob, Trial, TrialJob
from appliance.tools.evaluation.process import convert, try_precision
from tests.package.onnx_models import save_outside
from tests.repository.scanning import scan
from tests.tools.models import noisy_model, picture_model, wide_model, write

QUICK = ("--rows", "1,4", "--budget-ms", "5")


def loosen(home: Path, absolute: float) -> None:
    """Allow answers of version 2 to be so far off."""
    path = home / "2" / "golden" / "set.json"
    golden = read_golden(str(path))
    tensors = bytes(read_tensors(str(path), golden))
    wide = replace(golden, tolerances={"probabilities": Tolerance(absolute=absolute)})
    write_golden(str(path.parent), wide, tensors)


def bench(*words: object) -> int:
    return main(["model", "bench", *map(str, words), *QUICK])


def variants(said: str) -> dict[str, Any]:
    found = json.loads(said, parse_constant=pytest.fail)
    return {each["precision"]: each for each in found["variants"]}


def test_what_leaves_the_golden_sets_tolerances_is_refused(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    keep = tmp_path / "keep"
    words = ("--variants", "int4,fp8,fp32,fp16,int8", "--keep", keep, "--json")
    assert bench(digits, *words) == 1
    said = capsys.readouterr().out
    found = variants(said)
    assert list(found) == ["fp32", "fp16", "int8", "fp8", "int4"]
    assert {name: each["verdict"] for name, each in found.items()} == {
        "fp32": "holds",
        "fp16": "holds",
        "int8": "refused",
        "fp8": "no figures",
        "int4": "refused",
    }
    assert "float8e4m3fn" in found["fp8"]["problem"]
    assert found["fp8"]["problem"].startswith(
        "ONNX Runtime's kernels for the processor do not take FP8: digits/2: "
    )
    (accuracy,) = found["int8"]["accuracy"]
    assert accuracy["output"] == found["int8"]["worst_output"] == "probabilities"
    assert accuracy["of_limit"] > 1
    assert (accuracy["same_top"], accuracy["tops"]) == (12, 12)
    assert (accuracy["allowed_absolute"], accuracy["allowed_relative"]) == (1e-5, 1e-3)
    one, right = map(float, accuracy["reason"].rpartition(": ")[2].split(" instead of "))
    assert accuracy["off_by"] == pytest.approx(abs(one - right), rel=1e-6)
    assert accuracy["of_limit"] == pytest.approx(accuracy["off_by"] / (1e-5 + 1e-3 * right), rel=1e-6)
    assert accuracy["off_by"] < accuracy["absolute"], "the largest distance is allowed more, where it is"
    assert "instead of" in accuracy["reason"]
    assert 0 < found["fp16"]["accuracy"][0]["of_limit"] <= 1
    for name in ("fp32", "fp16", "int8", "int4"):
        assert [each["rows"] for each in found[name]["batches"]] == [1, 4]
        assert all(0 < each["p50_ns"] <= each["p99_ns"] for each in found[name]["batches"])
        assert all(each["rows_per_s"] > 0 and each["times_fp32"] > 0 for each in found[name]["batches"])
        assert found[name]["memory_bytes"] >= 0
        assert "device_bytes" not in found[name]
    assert found["int4"]["file_bytes"] < found["fp32"]["file_bytes"]
    assert sorted(each["rank"] for each in found.values() if "rank" in each) == [1, 2]
    assert set(json.loads(said)["fastest"]) <= {"fp32", "fp16"}
    assert json.loads(said)["fastest"]
    assert sorted(each.name for each in keep.iterdir()) == ["fp16"]


def test_why_the_processor_takes_no_fp8_is_told_without_a_list_of_kernels(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = wide_model()
    model.opset_import[0].version = 21  # whose QLinearMatMul knows the type, so that kernels are looked for
    assert bench(write(tmp_path / "wide.onnx", model), "--variants", "fp8", "--json") == 1
    (told,) = variants(capsys.readouterr().out).values()
    assert told["problem"].startswith("ONNX Runtime's kernels for the processor do not take FP8: wide/1: ")
    assert "Failed to find kernel for QLinear" in told["problem"]
    assert told["problem"].endswith("kernel is not supported in CPUExecutionProvider.")


def test_what_holds_is_kept_as_a_version_that_packs_and_serves(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    loosen(digits, 0.5)
    keep = tmp_path / "keep"
    for number in (3, 4):
        assert bench(digits, "--variants", "fp32,int8,int4", "--keep", keep) == 0
        shown = capsys.readouterr().out
        assert "Fastest of those that hold: " in shown
        assert "written to" in shown
        for name in ("int8", "int4"):
            assert (keep / name / "digits" / str(number) / "model.onnx").is_file()
    assert not (keep / "fp32").exists(), "that is the original"
    for name in ("int8", "int4"):
        model = scan(keep / name, RepositoryConfig()).servable[-1].model
        golden = read_golden(model.golden)
        assert golden.variant is not None
        assert (golden.variant.of, golden.variant.method) == ("digits/2", name)
        assert model.version == 4, "above the original, beside which it is installed"
        package = tmp_path / f"{name}.model"
        assert main(["model", "pack", str(keep / name / "digits"), "-o", str(package)]) == 0
        assert package.is_file()


def test_what_a_person_is_told(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = try_precision

    def uncounted(job: TrialJob, progress: Any) -> Trial:
        """On a machine that counts as well."""
        found = real(job, progress)
        return replace(
            found, meter="", batches=tuple(replace(each, row_joules=None) for each in found.batches)
        )

    monkeypatch.setattr(precision, "try_precision", uncounted)
    keep, drawn = tmp_path / "keep", tmp_path / "p.SVG"
    assert bench(digits, "--variants", "Fp32,INT8", "--keep", keep, "--plot", drawn) == 1
    lines = capsys.readouterr().out.splitlines()
    assert "limit of 'probabilities': 1e-05 + 0.001 x |right|" in lines
    assert [each for each in lines if each.startswith("│ int8 ") and " 12/12 " in each]
    assert "No joules: nothing here counts energy that this user may read." in lines
    assert f"plot:writtento{drawn}" in "".join("".join(lines).split())
    assert drawn.is_file()
    assert lines[-2] in [
        f"Fastest of those that hold: fp32, at {size}." for size in ("one row", "batches of 4")
    ]
    assert lines[-1] == "Nothing was kept: no variant that was made holds."
    assert "golden SOURCE --force --tolerance probabilities=ABSOLUTE,RELATIVE" in " ".join(
        " ".join(lines).split()
    )
    loosen(digits, 0.5)
    assert bench(digits, "--variants", "all", "--json") == 0
    found = variants(capsys.readouterr().out)
    assert list(found) == ["fp32", "fp16", "int8", "fp8", "int4"]
    assert found["int8"]["energy_method"] is None


def test_values_that_have_to_be_the_same_are_off_by_nothing_that_a_number_tells(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A class is no better for being near the right one."""
    model = wide_model()
    model.graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.INT64
    del model.graph.output[0].type.tensor_type.shape.dim[1]
    model.graph.node[-1].output[0] = "z"
    model.graph.node.append(onnx.helper.make_node("ArgMax", ["z"], ["y"], axis=1, keepdims=0))
    home = tmp_path / "best"
    (home / "1").mkdir(parents=True)
    write(home / "1" / "model.onnx", model)
    assert main(["model", "golden", str(home)]) == 0
    model.graph.node[-1].op_type = "ArgMin"
    write(home / "1" / "model.onnx", model)
    capsys.readouterr()
    assert bench(home, "--variants", "fp32") == 1
    said = capsys.readouterr().out
    (row,) = (each for each in said.splitlines() if each.startswith("│ fp32 ") and " refused " in each)
    assert [each.strip() for each in row.split("│")[-4:-1]] == ["-", "not equal", "refused"]
    told = " ".join(said.split())
    assert "fp32: output 'y' has to be the same and is not: case 'random-1' has 1 of 1 values" in told
    assert "times what its tolerance allows" not in told
    assert main(["model", "optimise", str(home), "--method", "fp16", "--dry-run"]) == 1
    assert "does not hold its own golden set" in capsys.readouterr().err


def test_two_that_are_alike_are_both_the_fastest(
    digits: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = try_precision

    def alike(job: TrialJob, progress: Any) -> Trial:
        found = real(job, progress)
        speed = replace(found.batches[-1].speed, p50_ns={"fp16": 10_000, "fp32": 10_300}[job.precision])
        return replace(found, batches=(replace(found.batches[-1], speed=speed),))

    monkeypatch.setattr(precision, "try_precision", alike)
    assert bench(digits, "--variants", "fp32,fp16") == 0
    told = "Fastest of those that hold: fp16 and fp32, at batches of 4, within 5 %."
    assert told in " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize("width", [45, 60, 80])
def test_tables_keep_their_columns_on_a_narrow_screen(
    width: int, digits: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    assert bench(digits, "--variants", "fp32,int8") == 1
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= width
    heads = [line for line in lines if "of limit┃" in line.replace(" ┃", "┃") or "times fp32" in line]
    assert len(heads) == 2
    assert "off by" in heads[0]
    assert any("memory" in line for line in lines if line.startswith("┃")) == (width > 45), (
        "without loading and memory, for which there is no room"
    )
    assert not [line for line in lines if "┳┳" in line or "…" in line]
    assert [line for line in lines if line.startswith("│") and "116" in line and "refused" in line]


def test_without_a_golden_set_nothing_is_proven_and_that_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path / "net.onnx", picture_model())
    assert bench(path, "--variants", "fp32,int8,int4") == 0
    shown = capsys.readouterr().out
    assert "net/1 on cpu, 8 random inputs, without a golden set" in shown
    assert "Nothing is proven: there is no golden set" in shown
    assert shown.count("not proven") == 3
    assert bench(path, "--variants", "int4", "--json") == 0
    (each,) = variants(capsys.readouterr().out).values()
    (accuracy,) = each["accuracy"]
    assert accuracy.keys() == {"output", "values", "absolute", "relative"}
    assert accuracy["absolute"] > 0
    assert "times_fp32" not in each["batches"][0]
    assert bench(path, "--variants", "int4", "--keep", tmp_path / "keep") == 2
    assert "nothing says which variants may be kept" in capsys.readouterr().err
    assert not (tmp_path / "keep").exists()


def test_the_device_of_the_command_goes_before_that_of_the_configuration(
    digits: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    config = digits / "config.pbtxt"
    config.write_text(f"{config.read_text()}\ninstance_group [ {{ kind: KIND_GPU }} ]\n")
    elsewhere = "A box runs it on cuda, as config.pbtxt says, where figures and verdicts may be others"
    assert bench(digits, "--variants", "fp32") == 0
    assert f"{elsewhere}: --device cuda tries it there." in " ".join(capsys.readouterr().out.split())
    assert bench(digits, "--variants", "fp32", "--device", "cuda") == 1
    assert elsewhere not in " ".join(capsys.readouterr().out.split())
    shutil.rmtree(digits / "2" / "golden")
    assert bench(digits, "--variants", "fp32", "--json") == 0
    assert "golden" in capsys.readouterr().out


def test_weights_in_a_second_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "outside.onnx"
    save_outside(picture_model(), str(source))
    assert bench(source, "--variants", "fp32,fp16,int4", "--json") == 0
    found = variants(capsys.readouterr().out)
    assert found["int4"]["file_bytes"] < found["fp16"]["file_bytes"] < found["fp32"]["file_bytes"]
    (tmp_path / "model.bin").unlink()
    assert bench(source, "--variants", "fp32") == 1
    assert "model.bin" in capsys.readouterr().err


def test_variants_of_a_model_for_tensorrt_are_such_that_it_builds_engines_of_them(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = digits / "config.pbtxt"
    text = config.read_text().replace('"onnxruntime"', '"tensorrt"')
    config.write_text(f"{text}\ninstance_group [ {{ kind: KIND_GPU }} ]\n")
    box = tmp_path / "box.toml"
    box.write_text('[repository]\nruntimes = ["onnx", "tensorrt"]\n')
    loosen(digits, 0.5)
    keep = tmp_path / "keep"
    assert bench(digits, "--config", box, "--variants", "int8,int4", "--keep", keep) == 0
    told = " ".join(capsys.readouterr().out.split())
    assert (
        "All figures are of ONNX Runtime's session; an engine of TensorRT is built on the box alone." in told
    )
    for name in ("int8", "int4"):
        graph = onnx.load(keep / name / "digits" / "3" / "model.onnx").graph
        assert {node.domain for node in graph.node} == {""}
        tensors = {each.name: onnx.numpy_helper.to_array(each) for each in graph.initializer}
        unpacking = [node for node in graph.node if node.op_type == "DequantizeLinear"]
        assert unpacking
        assert not any(tensors[name].any() for node in unpacking for name in node.input[2:])


def test_all_unknown_names_are_told_at_once(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench(digits, "--variants", "fp32,fp17,int8,int3,")
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "no such precision: 'fp17', 'int3', ''; there are fp32, fp16, int8, fp8, int4, all" in said


@pytest.mark.parametrize("option", [("--keep", "d"), ("--plot", "f.svg")])
def test_what_is_for_precisions_is_not_taken_without_them(
    option: tuple[str, str], digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        bench(digits, *option)
    assert ended.value.code == 2
    assert f"{option[0]} is for --variants" in capsys.readouterr().err


def test_a_model_of_integers_or_without_weights_or_quantised_is_refused_before_anything_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wide, quantised = write(tmp_path / "wide.onnx", wide_model()), tmp_path / "quantised.onnx"
    convert(ConvertJob(source=str(wide), method="int8-dynamic", target=str(quantised)), lambda *_: None)
    integers = wide_model()
    for each in integers.graph.initializer:
        whole = onnx.numpy_helper.from_array(np.ones(tuple(each.dims), np.int32), each.name)
        each.CopyFrom(whole)
    for port in (*integers.graph.input, *integers.graph.output):
        port.type.tensor_type.elem_type = onnx.TensorProto.INT32
    write(tmp_path / "integers.onnx", integers)
    write(tmp_path / "noisy.onnx", noisy_model())
    monkeypatch.setattr(precision, "make_golden", pytest.fail)
    monkeypatch.setattr(precision, "try_precision", pytest.fail)
    for name, text in (
        ("quantised", "it is quantised already"),
        ("integers", "it has no FP32 weights, but such of INT32"),
        ("noisy", "it has no weights"),
    ):
        assert bench(tmp_path / f"{name}.onnx", "--variants", "fp32,int8,fp16") == 1
        assert f"no variant can be made of {name}/1: {text}" in capsys.readouterr().err


def test_a_golden_set_that_does_not_fit_is_refused(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = digits / "2" / "golden" / "set.json"
    golden = read_golden(str(path))
    tensors = bytes(read_tensors(str(path), golden))
    first = golden.cases[0]
    other = replace(first, inputs=tuple(replace(each, name="picture") for each in first.inputs))
    write_golden(str(path.parent), replace(golden, cases=(other, *golden.cases[1:])), tensors)
    assert bench(digits, "--variants", "fp16") == 1
    said = capsys.readouterr().err
    assert "the model cannot be used" in said
    assert "case '0-0000' gives nothing for the input 'image'" in said
    assert "has the input 'picture', which the model does not have" in said


def test_the_shape_of_random_values_has_no_use_beside_a_golden_set(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(digits, "--variants", "fp16", "--shape", "image=8,8") == 2
    assert "--shape is for random values; digits/2 has a golden set" in capsys.readouterr().err


def test_batches_that_the_model_does_not_take_are_told(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(precision, "try_precision", pytest.fail)
    words = ["model", "bench", str(digits), "--variants", "fp32", "--rows", "64"]
    assert main(words) == 1
    assert "digits/2 takes batches of 1 to 32 rows" in capsys.readouterr().err
    single = wide_model()
    for port in (*single.graph.input, *single.graph.output):
        port.type.tensor_type.shape.dim[0].dim_value = 1
    wide = write(tmp_path / "wide.onnx", single)
    assert bench(wide, "--variants", "fp32,fp16") == 1
    assert capsys.readouterr().err == "appliance model bench: wide/1 takes no batches; leave --rows out\n"


@pytest.mark.parametrize("option", ["--keep", "--plot"])
def test_a_place_that_cannot_be_written_is_told_before_anything_is_tried(
    option: str,
    digits: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr(precision, "try_precision", pytest.fail)
    (tmp_path / "file").write_text("")
    for place in ("/proc/self/kept.svg", tmp_path / "file" / "kept.svg"):
        assert bench(digits, "--variants", "fp16", option, place) == 2
        assert f"'{place}' cannot be written: " in capsys.readouterr().err
    if option == "--plot":
        (tmp_path / "d.svg").mkdir()
        assert bench(digits, "--variants", "fp16", option, tmp_path / "d.svg") == 2
        assert "it is a directory" in capsys.readouterr().err


def test_a_picture_is_svg(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        bench(digits, "--variants", "fp16", "--plot", "p.png")
    assert ended.value.code == 2
    assert "--plot draws an SVG picture; 'p.png' does not end in .svg" in capsys.readouterr().err


def test_figures_of_variants_are_not_taken_for_a_cost(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert bench(digits, "--variants", "fp32", "--json") == 0
    cost = tmp_path / "cost.json"
    cost.write_text(capsys.readouterr().out)
    words = ["model", "pack", str(digits), "-o", str(tmp_path / "d.model"), "--measured", str(cost)]
    assert main(words) == 2
    assert "this is the output of bench --variants; run bench without it" in capsys.readouterr().err


def test_a_device_that_is_not_here_gives_no_figures(
    digits: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")  # on a machine that has one as well
    assert bench(digits, "--variants", "fp32,fp16", "--device", "cuda", "--json") == 1
    said = capsys.readouterr().out
    assert json.loads(said)["on"] is None, "nothing ran anywhere"
    for each in variants(said).values():
        assert each["verdict"] == "no figures"
        assert "cuda" in each["problem"].lower()
        assert each["problem"].endswith("; --device cpu tries it on the processor")
    keep = digits.parent / "keep"
    assert bench(digits, "--variants", "fp32,fp16", "--device", "cuda", "--keep", keep) == 1
    told = " ".join(capsys.readouterr().out.split())
    assert told.startswith("digits/2 on cuda, 12 golden cases fp32, fp16: digits/2: ")
    assert told.endswith(
        "Nothing could be measured on cuda. Nothing was kept: no variant that was made holds."
    )
    assert "┃" not in told
    assert "joules" not in told
    assert "--tolerance" not in told, "nothing was refused"


def test_a_variant_that_cannot_be_loaded_is_told_and_the_others_go_on(
    digits: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    real = try_precision

    def broken(job: TrialJob, progress: Any) -> Trial:
        """Has the child of one find a file that is no model."""
        if job.precision == "int8":
            Path(job.file).write_bytes(b"\x08\x08")
        return real(job, progress)

    monkeypatch.setattr(precision, "try_precision", broken)
    assert bench(digits, "--variants", "fp32,fp16,int8", "--json") == 0
    found = variants(capsys.readouterr().out)
    assert [each["verdict"] for each in found.values()] == ["holds", "holds", "no figures"]
    assert "holds no graph" in found["int8"]["problem"]
