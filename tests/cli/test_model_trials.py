"""``appliance model golden|bench|optimise`` as a person uses them."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from appliance.cli.main import main
from appliance.config.repository import RepositoryConfig
from appliance.domain.golden import (
    GoldenCase,
    GoldenSet,
    TensorFile,
    Tolerance,
    read_golden,
    read_tensors,
    tensor_data,
    write_golden,
)
from appliance.domain.tensor import Datatype
from appliance.tools.commands import optimise
from appliance.tools.commands.case_files import CASE_FILE_BYTES_MAX
from appliance.tools.evaluation import process
from appliance.tools.evaluation.jobs import (
    Candidate,
    CompareJob,
    Comparison,
    OutputAccuracy,
    Progress,
    Speed,
)
from models.make_digits import HOME
from tests.repository.scanning import scan
from tests.tools.models import endless_model, mlp_home, wide_model, write

DIGITS = ("0-0000.png", "7-0044.png")


@pytest.fixture
def digits(tmp_path: Path) -> Path:
    """Version 2 of the digits in a home of its own, without a golden set."""
    home = tmp_path / "digits"
    shutil.copytree(HOME, home, ignore=shutil.ignore_patterns("golden", "1"))
    return home


def test_golden_from_pictures_arrays_and_values(digits: Path, tmp_path: Path) -> None:
    picture = np.arange(64, dtype=np.float32).reshape(8, 8)
    np.savez(tmp_path / "ramp.npz", image=picture)
    (tmp_path / "ramp.json").write_text(json.dumps({"image": picture.tolist()}))
    cases = [str(HOME / "golden" / name) for name in DIGITS] + [
        str(tmp_path / f"ramp.{kind}") for kind in ("npz", "json")
    ]
    words = [word for case in cases for word in ("--case", case)]
    assert main(["model", "golden", str(digits / "2"), *words, "--input", f"image={picture.tolist()}"]) == 0
    path = str(digits / "2" / "golden" / "set.json")
    golden = read_golden(path)
    tensors = read_tensors(path, golden)
    assert [case.name for case in golden.cases] == ["0-0000", "7-0044", "ramp", "ramp", "given"]
    ramps = {bytes(tensor_data(tensors, case.inputs[0])) for case in golden.cases[2:]}
    assert ramps == {picture.tobytes()}
    best = [
        np.frombuffer(tensor_data(tensors, case.outputs[0]), np.float32).argmax() for case in golden.cases[:2]
    ]
    assert best == [0, 7]
    assert golden.tolerances == {"probabilities": Tolerance(absolute=1e-5, relative=1e-3)}
    (version,) = scan(digits.parent, RepositoryConfig()).servable
    assert version.model.golden == path


def test_golden_does_not_replace_a_set_unasked(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model", "golden", str(digits), "--random", "1", "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["cases"] == 1
    assert main(words) == 2
    assert "replace it with --force" in capsys.readouterr().err
    assert main([*words, "--force", "--tolerance", "probabilities=0.5,0.25", "--promise", "100000"]) == 0
    golden = read_golden(str(digits / "2" / "golden" / "set.json"))
    assert golden.tolerances == {"probabilities": Tolerance(absolute=0.5, relative=0.25)}
    assert golden.promise is not None
    assert (golden.promise.rows, golden.promise.p99_us) == (1, 100_000)


def test_golden_keeps_the_cases_that_are_there_where_none_are_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "digits"
    shutil.copytree(HOME, home, ignore=shutil.ignore_patterns("1"))
    path = str(home / "2" / "golden" / "set.json")
    before = read_golden(path)
    tensors = bytes(read_tensors(path, before))
    words = ["model", "golden", str(home), "--force"]
    assert main([*words, "--tolerance", "probabilities=0.01,0"]) == 0
    assert f"{path}: 12 cases kept, " in capsys.readouterr().out
    golden = read_golden(path)
    assert golden == replace(before, tolerances={"probabilities": Tolerance(absolute=0.01)})
    assert bytes(read_tensors(path, golden)) == tensors, "answers are not made anew"

    assert main([*words, "--promise", "measured", "--promise-rows", "4", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert (said["cases"], said["kept"]) == (12, 12)
    promised = read_golden(path)
    assert promised.promise is not None
    assert promised.promise.rows == 4
    assert promised == replace(golden, promise=promised.promise)
    assert main([*words, "--absolute", "0.5"]) == 0
    wider = replace(promised, tolerances={"probabilities": Tolerance(absolute=0.5, relative=1e-3)})
    assert read_golden(path) == wider

    assert main(words) == 2
    assert "nothing is given that would change" in capsys.readouterr().err
    assert read_golden(path) == wider
    assert main([*words, "--random", "1"]) == 0
    assert ": 1 case, " in capsys.readouterr().out
    assert [case.name for case in read_golden(path).cases] == ["random-1"]


def test_golden_keeps_the_cases_that_all_versions_have(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = tmp_path / "digits"
    shutil.copytree(HOME, home, ignore=shutil.ignore_patterns("1"))
    (home / "2" / "golden").rename(home / "own")
    shutil.rmtree(home / "golden")
    (home / "own").rename(home / "golden")
    assert main(["model", "golden", str(home), "--force", "--tolerance", "probabilities=0.01"]) == 0
    assert "12 cases kept" in capsys.readouterr().out
    assert len(read_golden(str(home / "2" / "golden" / "set.json")).cases) == 12


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--case", "missing.npz"], "cannot be read as a .npz file"),
        (["--case", "missing.txt"], "is neither .npz"),
        (["--random", "0"], "a golden set needs cases"),
        (["--tolerance", "nothing=1"], "the model has no output 'nothing'"),
        (["--input", "other=1"], "no input 'other'"),
    ],
)
def test_golden_says_what_is_wrong(
    digits: Path, words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "golden", str(digits), *words]) == 2
    assert text in capsys.readouterr().err
    assert not (digits / "2" / "golden").exists()


@pytest.mark.parametrize("damage", ["cut", "member", "method", "none"])
def test_a_case_that_is_no_whole_archive_is_told(
    digits: Path, tmp_path: Path, damage: str, capsys: pytest.CaptureFixture[str]
) -> None:
    case = tmp_path / "case.npz"
    np.savez_compressed(case, image=np.arange(64, dtype=np.float32))
    data = bytearray(case.read_bytes())
    if damage == "cut":
        del data[40:]
    elif damage == "member":
        data[60:80] = bytes(20)
    elif damage == "method":
        at = data.index(b"PK\1\2")
        data[8], data[at + 10] = 99, 99
    else:
        data[:] = b"no archive"
    case.write_bytes(data)
    assert main(["model", "golden", str(digits), "--case", str(case)]) == 2
    assert "cannot be read as a .npz file: " in capsys.readouterr().err


def test_a_case_is_as_large_as_it_unfolds_to(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    case = tmp_path / "case.npz"
    np.savez_compressed(case, image=np.zeros(CASE_FILE_BYTES_MAX, np.int8))
    assert case.stat().st_size < 1_000_000
    assert main(["model", "golden", str(digits), "--case", str(case)]) == 2
    assert f"is larger than {CASE_FILE_BYTES_MAX} bytes" in capsys.readouterr().err


def test_a_broken_model_is_refused_with_all_its_problems(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (digits / "2" / "model.onnx").write_bytes(b"no model")
    (digits / "digits_labels.txt").unlink()
    assert main(["model", "bench", str(digits)]) == 1
    said = capsys.readouterr().err
    assert "digits_labels.txt" in said
    assert "is not an ONNX model" in said


def test_bench(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["model", "bench", str(digits), "--rows", "1,8", "--budget-ms", "2", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["model"], found["version"]) == ("digits", 2)
    assert [each["rows"] for each in found["speeds"]] == [1, 8]
    assert main(["model", "bench", str(digits), "--budget-ms", "1"]) == 0
    shown = capsys.readouterr().out
    assert "digits version 2" in shown
    assert "p99 ms" in shown


def test_what_bench_prints_goes_into_the_package(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "bench", str(digits), "--rows", "8,1", "--budget-ms", "2", "--json"]) == 0
    printed = capsys.readouterr().out
    file, package = tmp_path / "cost.json", str(tmp_path / "d.model")
    file.write_text(printed)
    words = ["model", "pack", str(digits), "--no-proof", "-o", package, "--force", "--measured", str(file)]
    assert main(words) == 0
    capsys.readouterr()
    assert main(["model", "inspect", package, "--json"]) == 0
    found, cost = json.loads(capsys.readouterr().out)["manifest"]["measured"], json.loads(printed)
    one = cost["speeds"][1]
    assert found == {
        **{key: cost[key] for key in ("on", "memory_bytes", "load_ns")},
        **{key: one[key] for key in ("rows", "p50_ns", "p99_ns")},
    }
    assert found["rows"] == 1
    assert "1 thread, onnxruntime 1." in found["on"]
    file.write_text(json.dumps({**cost, "speeds": []}))
    assert main(words) == 2
    assert "speeds: are none" in capsys.readouterr().err


def test_optimise_writes_the_next_versions_only_when_they_hold_and_are_faster(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["model", "golden", str(digits), "--case", str(HOME / "golden" / DIGITS[0])]) == 0
    words = ["model", "optimise", str(digits), "--budget-ms", "20", "--json"]
    capsys.readouterr()
    assert main([*words, "--tolerance", "probabilities=1e-12"]) == 1
    found = json.loads(capsys.readouterr().out)
    assert [each["method"] for each in found["candidates"]] == [
        "original",
        "int8-dynamic",
        "int8-static",
        "fp16",
    ]
    assert not any(each["servable"] or each["written"] for each in found["candidates"])
    assert sorted(each.name for each in digits.iterdir() if each.is_dir()) == ["2"]
    assert main([*words, "--tolerance", "probabilities=0.5"]) == 0
    candidates = json.loads(capsys.readouterr().out)["candidates"]
    assert all(each["servable"] for each in candidates[1:])
    assert candidates[1]["accuracy"][0]["tops"] == 1
    faster = {each["method"] for each in candidates if each["faster"]}
    assert {each["method"] for each in candidates if each["written"]} == faster


def test_optimise_writes_no_slowdown_and_no_noise_and_what_gains_most_is_the_highest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = mlp_home(tmp_path)
    assert main(["model", "golden", str(home)]) == 0
    taken = {"original": (1_000, 10_000), "fp16": (990, 9_900)}

    def told(job: CompareJob, progress: Progress) -> Comparison:
        """Speeds that are made up; what holds is not asked."""
        methods = ("original", *job.files)
        return Comparison(
            cases=1, candidates=tuple(Candidate(method=each, speeds=speeds(taken[each])) for each in methods)
        )

    def speeds(p50_ns: tuple[int, int]) -> tuple[Speed, ...]:
        return tuple(
            Speed(rows=rows, runs=9, best_ns=1, p50_ns=ns, p99_ns=ns)
            for rows, ns in zip((1, 16), p50_ns, strict=True)
        )

    monkeypatch.setattr(optimise, "compare", told)
    words = ["model", "optimise", str(home)]

    taken["int8-dynamic"] = taken["int8-static"] = (1_180, 7_450)
    assert main(words) == 0, "both hold"
    said = " ".join(capsys.readouterr().out.split())
    assert "int8-static: is slower than the original at 1 row (0.85x)" in said
    assert "fp16: is as fast as the original, to within 5 %, at 1 row and at 16 rows" in said
    assert "is faster than the original at one size and slower at none." in said
    assert [each.name for each in home.iterdir() if each.is_dir()] == ["1"]

    taken.update({"int8-static": (500, 9_000), "int8-dynamic": (900, 8_000)})
    assert main([*words, "--json"]) == 0
    candidates = json.loads(capsys.readouterr().out)["candidates"]
    assert {each["method"]: (each["faster"], each["written"]) for each in candidates} == {
        "original": (False, ""),
        "int8-dynamic": (True, str(home / "2")),
        "int8-static": (True, str(home / "3")),
        "fp16": (False, ""),
    }


def test_optimise_says_who_decides_where_all_variants_left_their_tolerances(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = mlp_home(tmp_path)
    assert main(["model", "golden", str(home)]) == 0

    def told(job: CompareJob, progress: Progress) -> Comparison:
        """All are too far off, which is made up."""
        far = OutputAccuracy(output="y", values=10, outside=9, absolute=1, relative=1, reason="is far off")
        others = (Candidate(method=each, accuracy=(far,)) for each in job.files)
        return Comparison(cases=1, candidates=(Candidate(method="original"), *others))

    monkeypatch.setattr(optimise, "compare", told)
    capsys.readouterr()
    assert main(["model", "optimise", str(home)]) == 1
    shown = capsys.readouterr().out
    assert max(map(len, shown.splitlines())) <= 80
    said = " ".join(shown.split())
    assert "no variant keeps every output within its tolerance." in said
    assert "--tolerance tries another, and 'appliance model golden SOURCE --force' with it writes it" in said


def test_nothing_is_made_of_an_original_that_does_not_hold_its_golden_set(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    home = mlp_home(tmp_path)
    assert main(["model", "golden", str(home)]) == 0
    folder = home / "1" / "golden"
    golden = read_golden(str(folder / "set.json"))
    tensors = bytearray(read_tensors(str(folder / "set.json"), golden))
    (answer,) = golden.cases[0].outputs
    tensors[answer.offset : answer.offset + 4] = np.float32(1e6).tobytes()
    write_golden(str(folder), golden, bytes(tensors))
    made: list[object] = []
    monkeypatch.setattr(optimise, "convert", lambda *words: made.append(words))
    assert main(["model", "optimise", str(home)]) == 1
    assert "the original does not hold its own golden set: case 'random-1'" in capsys.readouterr().err
    assert made == []


def test_optimise_into_homes_of_their_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    home = mlp_home(tmp_path)
    assert main(["model", "golden", str(home)]) == 0
    out = tmp_path / "out"
    words = ["model", "optimise", str(home), "--out", str(out), "--budget-ms", "10"]
    assert main([*words, "--method", "fp16", "--tolerance", "y=0.1"]) == 0
    (version,) = scan(out / "fp16", RepositoryConfig()).servable
    golden = read_golden(version.model.golden)
    assert golden.variant is not None
    assert (golden.variant.of, golden.variant.method, golden.variant.servable) == ("mlp/1", "fp16", True)
    assert golden.tolerances == {"y": Tolerance(absolute=0.1)}
    assert "within" in capsys.readouterr().out

    assert main([*words, "--method", "int8-dynamic"]) == 1
    assert "outside" in capsys.readouterr().out
    found = scan(out / "int8-dynamic", RepositoryConfig())
    assert found.servable == ()
    assert "left its tolerances" in found.broken[0].reason


@pytest.mark.parametrize("command", ["bench", "golden", "optimise", "pack"])
def test_a_model_that_runs_without_end_is_stopped_and_told(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(process, "SILENCE_S", 4)
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "net.onnx", endless_model())
    if command == "optimise":
        file = TensorFile()
        inputs, outputs = ((file.add(name, Datatype.FP32, (1, 4), bytes(16)),) for name in ("x", "y"))
        case = GoldenCase(name="zeros", inputs=inputs, outputs=outputs)
        write_golden(str(tmp_path / "golden"), GoldenSet(cases=(case,), tolerances={}), file.data())
    more = {"bench": ["--budget-ms", "2000", "--rows", "1"], "optimise": ["--dry-run"]}
    assert main(["model", command, str(source), *more.get(command, [])]) == 1
    said = capsys.readouterr().err
    assert f"did not go on for {4 + {'bench': 2, 'golden': 1}.get(command, 0)} s" in said
    assert said.count("net.onnx") == 1
    assert not list(tmp_path.glob("*.model"))


def test_of_a_models_directory_any_version_is_tried(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for number in (1, 2):
        write(tmp_path / "net" / str(number) / "model.onnx", wide_model())
    home = str(tmp_path / "net")
    assert main(["model", "bench", home, "--version", "1", "--rows", "1", "--budget-ms", "1"]) == 0
    assert "net version 1" in capsys.readouterr().out
    assert main(["model", "optimise", home, "--version", "1", "--dry-run"]) == 2
    assert f"model golden {home} --version 1'" in capsys.readouterr().err
    assert main(["model", "golden", home, "--version", "1", "--random", "1"]) == 0
    assert (tmp_path / "net" / "1" / "golden" / "set.json").exists()
    assert not (tmp_path / "net" / "2" / "golden").exists()
    assert main(["model", "optimise", home, "--version", "1", "--method", "fp16", "--dry-run"]) in (0, 1)
    assert "net/1 and its variants" in capsys.readouterr().out
    assert main(["model", "bench", home, "--version", "7"]) == 2
    assert f"'{home}' has no version 7; it has 1, 2" in capsys.readouterr().err
    for one in ("1", "1/model.onnx"):
        assert main(["model", "bench", f"{home}/{one}", "--version", "2"]) == 2
        assert "is one version already" in capsys.readouterr().err


def test_what_is_beyond_all_numbers_is_null_in_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(tmp_path / "net.onnx", wide_model())
    assert main(["model", "golden", str(path), "--random", "1"]) == 0
    far = OutputAccuracy(output="y", values=4, outside=4, absolute=math.inf, relative=math.nan, reason="NaN")
    found = Comparison(
        cases=1, candidates=(Candidate(method="original"), Candidate(method="fp16", accuracy=(far,)))
    )
    monkeypatch.setattr(optimise, "compare", lambda job, progress: found)
    monkeypatch.setattr(optimise, "convert", lambda job, progress: None)
    capsys.readouterr()
    assert main(["model", "optimise", str(path), "--dry-run", "--json", "--method", "fp16"]) == 1
    half = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)["candidates"][1]
    (accuracy,) = half["accuracy"]
    assert (accuracy["absolute"], accuracy["relative"], accuracy["outside"]) == (None, None, 4)


def test_optimise_needs_a_golden_set_and_a_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path / "net.onnx", wide_model())
    assert main(["model", "optimise", str(path)]) == 2
    assert "make one with 'appliance model golden" in capsys.readouterr().err
    assert main(["model", "golden", str(path), "--random", "1"]) == 0
    capsys.readouterr()
    assert main(["model", "optimise", str(path)]) == 2
    assert "say with --out" in capsys.readouterr().err
    assert main(["model", "optimise", str(path), "--dry-run", "--classes", "z"]) == 2
    assert "no output 'z'" in capsys.readouterr().err
