"""``appliance model golden`` and plain ``bench`` on another device than the configuration says. No GPU is here: the
names of devices come from a simulated driver."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pynvml
import pytest

from appliance.cli.main import main
from appliance.domain.device_wish import ON_CPU, ON_CUDA, parse_wish
from appliance.domain.golden import read_golden
from appliance.tools.evaluation.cost_file import benched, read_cost, to_json
from appliance.tools.evaluation.jobs import Measurement, Speed
from appliance.tools.evaluation.meter import accelerator_of
from appliance.tools.subject import find_subject
from models.make_digits import HOME
from tests.devices.simulated_nvml import Board, SimulatedNvml

UNPROVEN = "; --device cpu proves it on the processor, --no-proof packs it without being run"
ELSEWHERE = "on the processor, as --device says; a box tries it where config.pbtxt does (cuda)"
AS_AUTO = "on the processor; a box with a GPU that it can use tries it there (KIND_AUTO)"
CASES = len(read_golden(str(HOME / "2" / "golden" / "set.json")).cases)
BENCH = ("--rows", "1", "--budget-ms", "5")


@pytest.fixture
def digits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The digits, to run on a GPU, on a machine whose GPUs are hidden if there are any."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    home = tmp_path / "digits"
    shutil.copytree(HOME, home, ignore=shutil.ignore_patterns("1", "*.png", "golden.json"))
    place(home, "KIND_GPU")
    return home


def place(home: Path, kind: str) -> None:
    config = home / "config.pbtxt"
    written = config.read_text() if config.exists() else ""
    kept = [line for line in written.splitlines() if "instance_group" not in line]
    config.write_text("\n".join([*kept, f"instance_group {{ kind: {kind} }}", ""]))


def run(*words: object) -> int:
    return main(["model", *map(str, words)])


def spoken(capsys: pytest.CaptureFixture[str]) -> str:
    return " ".join(capsys.readouterr().out.split())


def test_a_model_for_a_gpu_is_measured_on_the_processor(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("bench", digits, *BENCH) == 1
    assert "asks for device 'cuda'" in capsys.readouterr().err
    assert run("bench", digits, *BENCH, "--device", "cpu", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["speeds"]
    assert "accelerator" not in found


def test_a_golden_set_of_a_model_for_a_gpu_is_made_on_the_processor(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "set"
    words = ("golden", digits, "--random", "2", "--out", out)
    assert run(*words) == 1
    assert "asks for device 'cuda'" in capsys.readouterr().err
    assert run(*words, "--device", "cpu") == 0
    elsewhere = (
        "on the processor, as --device says; a box runs it on cuda, as config.pbtxt does, where answers"
    )
    assert f"{elsewhere} are others in the last bits, which the tolerances have to allow" in spoken(capsys)
    assert len(read_golden(str(out / "set.json")).cases) == 2
    promise = ("--promise", "measured", "--force")
    assert run("golden", digits, "--out", out, *promise) == 1
    assert run("golden", digits, "--out", out, *promise, "--device", "cpu") == 0
    said = spoken(capsys)
    assert "2 cases kept" in said
    assert f"{elsewhere} and times are others" in said
    assert run("golden", digits, "--out", out, "--force", "--absolute", "0.1", "--device", "cpu") == 0
    assert elsewhere not in spoken(capsys), "nothing was run"
    place(digits, "KIND_CPU")
    assert run(*words, "--force", "--device", "cpu") == 0
    assert elsewhere not in spoken(capsys)


def test_a_package_of_a_model_for_a_gpu_says_all_of_why_it_is_not_proven(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("pack", digits, "--name", "digits", "--version", "2", "-o", tmp_path / "digits.model") == 1
    said = capsys.readouterr().err
    assert "asks for device 'cuda', but the installed onnxruntime has no CUDAExecutionProvider" in said
    assert said.endswith(f"on a GPU where there is one){UNPROVEN}\n")


def test_a_package_of_a_model_for_a_gpu_is_proven_on_the_processor_and_says_so(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("pack", digits, "--name", "digits", "--version", "2", "-o", tmp_path / "digits.model", "--force")
    assert run(*words) == 1
    assert capsys.readouterr().err.endswith(f"{UNPROVEN}\n")
    assert run(*words, "--device", "cpu") == 0
    said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert said["proof"].endswith(f"bit for bit, {ELSEWHERE}")
    assert said["golden"].endswith(f"{CASES} cases of it held here, {ELSEWHERE}")
    assert run(*words, "--device", "cpu", "--json") == 0
    told = json.loads(capsys.readouterr().out)
    assert (told["proven_on"], told["proven_cases"]) == ("cpu", CASES)
    place(digits, "KIND_CPU")
    assert run(*words) == 0
    assert ELSEWHERE not in capsys.readouterr().out


def test_a_package_that_any_box_decides_for_says_where_it_was_proven_and_what_a_gpu_does(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place(digits, "KIND_AUTO")
    words = ("pack", digits, "--name", "digits", "--version", "2", "-o", tmp_path / "digits.model", "--force")
    for device in ((), ("--device", "cpu")):
        assert run(*words, *device) == 0
        said = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
        assert said["proof"].endswith(f"bit for bit, {AS_AUTO}")
        assert said["golden"].endswith(f"{CASES} cases of it held here, {AS_AUTO}")


def test_what_proves_nothing_proves_it_nowhere(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("pack", digits, "--name", "digits", "--version", "2", "-o", tmp_path / "digits.model")
    assert run(*words, "--no-proof", "--device", "cpu") == 2
    assert "--device says where it is proven, and --no-proof does not prove it" in capsys.readouterr().err
    assert run(*words, "--no-proof", "--json") == 0
    assert json.loads(capsys.readouterr().out)["proven_on"] == ""


def test_a_model_of_the_processor_is_refused_on_a_gpu_that_is_not_here(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place(digits, "KIND_CPU")
    for words in (("bench", digits, *BENCH), ("golden", digits, "--random", "1", "--out", tmp_path / "s")):
        for device in ("cuda", "cuda:1"):
            assert run(*words, "--device", device) == 1
            said = capsys.readouterr().err
            assert f"asks for device '{device}'" in said
            assert said.endswith("on a GPU where there is one); --device cpu tries it on the processor\n")
        assert run(*words) == 0


def test_what_is_asked_of_a_gpu_keeps_no_tool_from_a_machine_without_one(
    digits: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    place(digits, "KIND_AUTO")
    with (digits / "config.pbtxt").open("a") as config:
        config.write('parameters { key: "min_compute_capability" value { string_value: "8.9" } }\n')
        config.write('parameters { key: "gpu_uuids" value { string_value: "GPU-5,MIG-6" } }\n')
    assert run("bench", digits, *BENCH) == 0
    assert run("golden", digits, "--random", "1", "--out", tmp_path / "set") == 0
    pack = ("pack", digits, "--name", "digits", "--version", "2", "-o", tmp_path / "digits.model")
    assert run(*pack) == 0
    place(digits, "KIND_GPU")
    assert run("bench", digits, *BENCH) == 1
    said = capsys.readouterr().err
    assert "asks for compute capability 8.9 or more" in said
    assert said.endswith("; --device cpu tries it on the processor\n")
    assert run("bench", digits, *BENCH, "--device", "CPU") == 0
    assert run(*pack, "--force") == 1
    said = capsys.readouterr().err
    assert said.endswith(f"{UNPROVEN}\n")
    assert run(*pack, "--force", "--device", "cpu") == 0


def test_optimise_says_that_a_model_for_a_gpu_does_not_run_here_and_what_tries_its_variants(
    digits: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("optimise", digits) == 1
    said = capsys.readouterr().err
    assert said.startswith(
        "appliance model optimise: the original does not run: digits/2: asks for device 'cuda', but"
    )
    assert said.endswith(
        "on a GPU where there is one); 'appliance model bench --variants' tries it on the processor\n"
    )


def test_what_is_no_device_is_refused(digits: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("bench", "golden", "pack"):
        with pytest.raises(SystemExit) as ended:
            run(command, digits, "--device", "gpu")
        assert ended.value.code == 2
        said = capsys.readouterr().err
        assert (
            "argument --device: 'gpu' is no device; expected one of cpu, cuda, cuda:0, cuda:1 and so on"
            in said
        )


def test_the_device_of_a_measurement_is_in_what_it_was_measured_on(tmp_path: Path) -> None:
    speed = Speed(rows=1, runs=5, best_ns=1, p50_ns=2, p99_ns=3)
    found = Measurement(
        load_ns=1,
        first_answer_ns=2,
        memory_bytes=3,
        inputs="random values",
        speeds=(speed,),
        accelerator="NVIDIA T",
    )
    file = tmp_path / "cost.json"
    file.write_text(to_json(benched(find_subject(HOME).version, found, 2)))
    assert ", 2 threads, NVIDIA T, onnxruntime" in read_cost(file).on


def test_a_device_is_named_by_the_driver_if_it_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(Board(name="NVIDIA T")))
    assert accelerator_of(ON_CUDA) == "NVIDIA T"
    assert accelerator_of(ON_CPU) == ""
    missing = Board(errors={"*": pynvml.NVML_ERROR_DRIVER_NOT_LOADED})
    monkeypatch.setattr(pynvml, "nvmlLib", SimulatedNvml(missing))
    monkeypatch.setattr(pynvml, "_nvmlGetFunctionPointer_cache", {})
    assert accelerator_of(ON_CUDA) == "cuda"
    assert accelerator_of(parse_wish("cuda:1")) == "cuda:1"
