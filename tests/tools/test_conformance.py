"""``appliance runtime``: what conforms is said to, and what does not is told in words, whatever it does."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnxruntime import get_available_providers

from appliance.cli.failure import Exit
from appliance.cli.main import main
from appliance.domain.device_wish import ON_CPU, ON_CUDA, DeviceWish
from appliance.domain.errors import ArtefactError, DeviceMissing, LoadFailed
from appliance.domain.model import ModelVersion
from appliance.domain.tensor import Datatype
from appliance.runtimes.runtime import Feed, Place, Port, Produced, Region, RuntimeSettings, Session
from appliance.tools.conformance.cases import CASES, DEVICE, Case, NotConforming, Rig
from appliance.tools.conformance.child import apart, made
from appliance.tools.conformance.identity import identity_version, onnx_bytes, version_directory
from appliance.tools.conformance.jailed import jailed
from appliance.tools.conformance.outcome import Outcome
from appliance.workers.jail.support import kernel_support
from tests.runtimes.fake import FakeRuntime, FakeSession

VERSION = identity_version("fake", "")
BROKEN = replace(VERSION, parameters={"mode": "fail_at_load"})
Call = tuple[Region, tuple[Feed | None, ...], tuple[int, ...], Place]


class Wrong(FakeSession):
    """Does everything right, but for what a test puts in the place."""

    ran: Callable[[Produced, Call], Produced] = staticmethod(lambda produced, call: produced)

    def run(
        self, source: Region, feeds: tuple[Feed | None, ...], wanted: tuple[int, ...], place: Place
    ) -> Produced:
        return self.ran(super().run(source, feeds, wanted, place), (source, feeds, wanted, place))


class WrongRuntime(FakeRuntime):
    """Its sessions are ``Wrong`` with these attributes."""

    def __init__(self, **attributes: Any) -> None:
        self._attributes = attributes

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        if version is BROKEN:
            raise LoadFailed("told to refuse")
        session = Wrong(version, "identity")
        for name, value in self._attributes.items():
            setattr(session, name, value)
        return session


def rounded(produced: Produced, _: Call) -> Produced:
    """As one that computes with less than FP32 has."""
    assert produced.parts is not None
    parts = [bytearray(part) for part in produced.parts]
    for part in parts:
        part[::4] = bytes(len(part[::4]))
    return produced._replace(parts=tuple(map(memoryview, parts)))


def beyond(produced: Produced, call: Call) -> Produced:
    place = call[3]
    place.region.view[place.offset + place.capacity] = 1
    return produced


def in_its_input(produced: Produced, call: Call) -> Produced:
    copies = tuple(memoryview(bytes(part)) for part in produced.parts or ())
    feed = call[1][0]
    assert feed is not None
    call[0].view[feed.offset] ^= 1
    return produced._replace(parts=copies)


def everything(produced: Produced, call: Call) -> Produced:
    """Also what nobody asked for."""
    source, feeds, _, _ = call
    parts = tuple(source.view[feed.offset : feed.offset + feed.nbytes] for feed in feeds if feed)
    return Produced(tuple(feed.shape for feed in feeds if feed), tuple(map(len, parts)), parts)


def said_to_fit(produced: Produced, _: Call) -> Produced:
    return produced._replace(parts=None)


WRONG = [
    ("values", {"ran": rounded}, "output 0 differs from its input from byte 0 on; an identity keeps every bit"),
    ("bounds", {"ran": beyond}, "run wrote to byte 192 of the outputs' region, outside of 128 to 192"),
    ("bounds", {"ran": said_to_fit}, "128 bytes of outputs were said to be in a place of 64"),
    ("inputs", {"ran": in_its_input}, "run changed bytes of the source region"),
    ("wanted", {"ran": everything}, r"run 1 with wanted=\(1,\): shapes are \(\(2, 3\), \(1, 5\)\)"),
    ("ports", {"inputs": (Port(name="a", datatype=Datatype.FP32, shape=(-1, -1)),)}, r"inputs are \['a'\]"),
    ("ports", {"outputs": tuple(Port(name=name, datatype=Datatype.FP64, shape=None) for name in "pq")}, "FP64"),
    ("prepared", {"prepared": lambda *_: lambda: None}, "prepared run 1"),
    ("prepared-small", {"prepared": lambda *_: lambda: None}, "give None there"),
    ("close", {"memory": lambda: -1}, r"memory\(\) is -1"),
    ("close", {"measurable": None}, "measurable is None"),
]  # fmt: skip


def case(name: str) -> Case:
    return next(each for each in CASES if each.name == name)


@pytest.mark.parametrize(("name", "attributes", "told"), WRONG)
def test_what_does_not_conform_is_told(name: str, attributes: dict[str, Any], told: str) -> None:
    with pytest.raises(NotConforming, match=told):
        case(name).run(Rig(WrongRuntime(**attributes), VERSION, BROKEN))


def test_a_refusal_is_a_load_failed_with_a_reason() -> None:
    rig = Rig(FakeRuntime(), VERSION, VERSION)
    with pytest.raises(NotConforming, match="load raised nothing for a model that is not there"):
        case("refusal").run(rig)

    def raising(problem: Exception) -> Any:
        def load(*_: object) -> None:
            raise problem

        return load

    for problem, told in (
        (OSError("no such file"), r"load raised OSError \(no such file\)"),
        (LoadFailed(" "), "without a text"),
    ):
        runtime = FakeRuntime()
        runtime.load = raising(problem)  # type: ignore[method-assign]
        with pytest.raises(NotConforming, match=told):
            case("refusal").run(rig._replace(runtime=runtime))


def crash(_: Rig) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    return ""


def stray(_: Rig) -> str:
    raise ZeroDivisionError("by the vendor")


def hang(_: Rig) -> str:
    while True:
        signal.pause()


def leave(pipe: tuple[int, int], _: Rig) -> str:
    """Another process stays until nobody else has the pipe."""
    reading, writing = pipe
    if os.fork() == 0:
        os.close(writing)
        os.read(reading, 1)
        os._exit(0)
    return "left"


@pytest.mark.parametrize(
    ("run", "told"),
    [
        (crash, "its process ended by SIGKILL"),
        (stray, "ZeroDivisionError: by the vendor"),
        (lambda _: os._exit(3), "its process ended with status 3"),
    ],
)
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_case_that_ends_its_process_is_told_as_that(run: Callable[[Rig], str], told: str) -> None:
    outcome = apart(Case("any", "Any", run), Rig(FakeRuntime(), VERSION, BROKEN))
    assert (outcome.holds, outcome.text) == (False, told)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_case_without_end_is_ended() -> None:
    outcome = apart(Case("any", "Any", hang), Rig(FakeRuntime(), VERSION, BROKEN), patience_s=0)
    assert (outcome.holds, outcome.text) == (False, "did not end within 0 s")


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_process_that_a_case_leaves_behind_does_not_keep_the_others() -> None:
    pipe = os.pipe()
    try:
        outcome = apart(Case("any", "Any", partial(leave, pipe)), Rig(FakeRuntime(), VERSION, BROKEN))
    finally:
        for end in pipe:
            os.close(end)
    assert (outcome.holds, outcome.text) == (True, "left")


def test_a_name_that_is_not_the_entry_points_is_told() -> None:
    assert (
        "its name is 'fake', its entry point is called 'other'" in made(FakeRuntime(), "other", ["main"]).text
    )
    assert (
        "has 2 threads (main, stray); start threads in load"
        in made(FakeRuntime(), "fake", ["main", "stray"]).text
    )
    assert made(FakeRuntime(), "fake", ["main"]).holds


def test_what_a_worker_says_is_told() -> None:
    assert jailed(VERSION).holds
    refused = jailed(BROKEN)
    assert (refused.holds, refused.text) == (False, "the load was refused: told to refuse")
    died = jailed(replace(VERSION, parameters={"mode": "crash"}))
    assert not died.holds
    assert died.text.startswith("the worker ended: ")
    assert "signal 11" in died.text
    forbidden = jailed(replace(VERSION, parameters={"mode": "forbidden_at_load"}))
    assert "refused system call" in forbidden.text


@pytest.mark.parametrize(
    ("path", "device", "said"),
    [
        ("/dev/full", ON_CUDA, "opened"),
        ("/dev/full", ON_CPU, "Operation not permitted (its jail refused system calls: openat)"),
        ("/dev/tty", ON_CUDA, "Permission denied"),
    ],
)
def test_a_worker_for_accelerators_may_use_the_devices_that_its_runtime_names(
    path: str, device: DeviceWish, said: str
) -> None:
    if kernel_support().lacking:
        pytest.skip("this kernel cannot keep a process from all")
    version = replace(VERSION, device=device, parameters={"mode": "use_at_load", "path": path})
    assert jailed(version).text == f"the load was refused: {said}"


def test_the_command_conforms_with_the_runtime_that_is_built_in(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runtime", "check", "onnx", "--json"]) == Exit.OK
    said = json.loads(capsys.readouterr().out)
    assert said["conforms"]
    assert [each["name"] for each in said["cases"]] == ["made", *(each.name for each in CASES), "worker"]


def test_the_command_tells_what_does_not_hold(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A directory that holds no model, for one runtime that reads it and one that does not."""
    (tmp_path / "3").mkdir()
    assert main(["runtime", "check", "onnx", "--model", str(tmp_path)]) == Exit.REFUSED
    out = capsys.readouterr().out
    assert "runtime 'onnx' does not conform: 14 of 16 demands do not hold" in out
    assert "worker: the load was refused: " in out
    assert "File doesn't exist" in out
    assert main(["runtime", "check", "fake"]) == Exit.REFUSED
    out = capsys.readouterr().out
    assert "refusal: load raised nothing for a model that is not there" in out
    assert "runtime 'fake' does not conform: 1 of 16 demands do not hold" in out


@pytest.mark.skipif("CUDAExecutionProvider" in get_available_providers(), reason="it would run there")
def test_an_accelerator_that_is_not_there_was_not_tried(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runtime", "check", "onnx", "--accelerator"]) == Exit.USAGE
    out, err = capsys.readouterr()
    assert not out
    assert "runtime 'onnx' runs nothing on a device here: the installed onnxruntime has no CUDAExec" in err
    assert "install onnxruntime-gpu in its place (docs/GPU.md)" in err


class Without:
    """A runtime whose loads end so."""

    name = "without"

    def __init__(self, problem: LoadFailed) -> None:
        self.problem = problem

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        raise self.problem


def test_whether_there_is_a_device_is_asked_before_the_demands() -> None:
    """What else a load fails of is for the cases to find out."""
    rig = Rig(Without(DeviceMissing("there is none")), VERSION, VERSION)
    assert apart(DEVICE, rig) == Outcome("device", "", holds=False, text="there is none")
    assert apart(DEVICE, rig._replace(runtime=Without(LoadFailed("it is broken")))).holds


@pytest.mark.skipif("CUDAExecutionProvider" in get_available_providers(), reason="it would run there")
def test_the_list_says_what_runs_on_the_processor_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runtime", "list"]) == Exit.OK
    lines = capsys.readouterr().out.splitlines()
    (row,) = (line for line in lines if line.startswith("onnx "))
    assert "on the processor" in row
    assert ": on a GPU: the installed onnxruntime has no CUDAExec" in " ".join(map(str.strip, lines)), (
        "wrapped or not"
    )
    (row,) = (line for line in lines if line.startswith("fake "))
    assert row.split()[1] == "yes"


@pytest.mark.skipif(find_spec("tensorrt") is not None, reason="it would be tried")
def test_a_runtime_that_cannot_be_had_here_was_not_tried(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ((), ("--json",)):
        assert main(["runtime", "check", "tensorrt", *words]) == Exit.USAGE
        out, err = capsys.readouterr()
        assert not out
        assert err == (
            "appliance runtime check: runtime 'tensorrt' is not available: No module named 'tensorrt'; install "
            "TensorRT 11 with its Python bindings, for an NVIDIA GPU (docs/TENSORRT.md)\n"
        )


@pytest.mark.skipif(find_spec("tensorrt") is not None, reason="it can be had")
def test_the_list_names_a_runtime_that_cannot_be_had_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runtime", "list"]) == Exit.OK
    said = " ".join(capsys.readouterr().out.split())
    assert "tensorrt: is not available: No module named 'tensorrt'; install TensorRT 11" in said


def test_unknown_names_and_models_are_told(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runtime", "check", "nosuch"]) == Exit.USAGE
    assert (
        "no installed package offers a runtime 'nosuch'; known here: fake, hostile, onnx"
        in capsys.readouterr().err
    )
    assert main(["runtime", "check", "onnx", "--model", str(tmp_path / "away")]) == Exit.USAGE
    assert "cannot be read: No such file or directory" in capsys.readouterr().err
    assert main(["runtime", "check", "onnx", "--model", str(tmp_path)]) == Exit.USAGE
    assert "is empty; give the directory of a model" in capsys.readouterr().err


def test_the_list_says_where_each_is_from(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["runtime", "list", "--json"]) == Exit.OK
    found = {each["name"]: each for each in json.loads(capsys.readouterr().out)}
    place = "appliance.runtimes.onnx:OnnxRuntime"
    lacking = found["onnx"].pop("lacking")
    assert bool(lacking) is ("CUDAExecutionProvider" not in get_available_providers())
    assert found["onnx"] == {"name": "onnx", "place": place, "package": "", "absent": ""}
    assert found["fake"]["package"] == "fake-runtime 1"
    assert main(["runtime", "list"]) == Exit.OK
    assert "built in" in capsys.readouterr().out


def test_the_model_is_valid_onnx() -> None:
    model = onnx.load_from_string(onnx_bytes())
    onnx.checker.check_model(model, full_check=True)
    assert [port.name for port in (*model.graph.input, *model.graph.output)] == ["a", "b", "p", "q"]


def test_a_version_is_found_in_its_model(tmp_path: Path) -> None:
    for number in ("2", "10"):
        (tmp_path / number).mkdir()
    (tmp_path / "10" / "file").touch()
    assert version_directory(tmp_path).name == "10"
    assert version_directory(tmp_path / "10").name == "10"
    with pytest.raises(ArtefactError, match="is empty"):
        version_directory(tmp_path / "2")
