"""docs/API.md is true: its examples give what it says, its RPCs end so, its statuses are those that there are."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

import grpc
import pytest

from appliance.frontend.grpc.wire_pb import inference_pb2 as pb
from appliance.frontend.statuses import STATUSES, Code
from tests.appliance_process import ApplianceProcess
from tests.conformance.grpc.stub import Stub
from tests.conftest import Serve
from tests.frontend.http.documented import DOCS, code_words, table_rows

DIGITS: Final = Path(__file__).parents[2] / "models" / "digits"
TEXT: Final = (DOCS / "API.md").read_text("utf-8")
SOCKET: Final = "/run/appliance/control"
MAIN: Final = "import sys; from appliance.cli.main import main; sys.exit(main())"
TIMEOUT_S: Final = 60
ANSWERED: Final = "answered"


@pytest.fixture
def server(serve: Serve, tmp_path: Path) -> ApplianceProcess:
    shutil.copytree(DIGITS, tmp_path / "models" / "digits")
    return serve(tmp_path / "models", {"control": {"socket": str(tmp_path / "control")}})


def _examples() -> list[tuple[str, str]]:
    """Commands, and what they print; "..." stands for anything."""
    blocks = re.findall(r"^```\n\$ (.*?)^```$", TEXT, re.MULTILINE | re.DOTALL)
    found = []
    for block in blocks:
        command, said = [], block.splitlines()
        while said:
            command.append(said.pop(0))
            line = "\n".join(command)
            if not line.endswith("\\") and line.count("'") % 2 == 0:
                break
        found.append(("\n".join(command), "\n".join(said)))
    return found


def _for(server: ApplianceProcess, tmp_path: Path, text: str) -> str:
    text = text.replace("127.0.0.1:8000", server.http).replace("127.0.0.1:8001", server.grpc)
    return text.replace(SOCKET, str(tmp_path / "control"))


@pytest.mark.every_front_end
def test_the_examples_give_what_they_say(server: ApplianceProcess, tmp_path: Path) -> None:
    examples = _examples()
    assert len(examples) == TEXT.count("\n```\n$ ") > 5
    tools = f'appliance() {{ {sys.executable} -c "{MAIN}" "$@"; }}\n'
    for command, said in examples:
        run = subprocess.run(
            ["bash", "-c", tools + _for(server, tmp_path, command)],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        pattern = re.escape(said.strip()).replace(re.escape("..."), ".*")
        assert re.fullmatch(pattern, run.stdout.strip(), re.DOTALL), (command, run.stdout, run.stderr)
    for code in re.findall(r"^```python\n(.*?)^```$", TEXT, re.MULTILINE | re.DOTALL):
        run = subprocess.run(
            [sys.executable, "-c", _for(server, tmp_path, code)],
            capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
        )  # fmt: skip
        assert run.stdout.split("\n")[:-1] == re.findall(r"  # (.*)$", code, re.MULTILINE), run.stderr


@pytest.mark.every_front_end
def test_each_rpc_is_as_it_says(server: ApplianceProcess) -> None:
    said = {row[0].strip("`"): row[1] for row in table_rows("API.md", "## gRPC") if row[0][1].isupper()}
    methods = pb.DESCRIPTOR.services_by_name["GRPCInferenceService"].methods
    rpcs = {name: is_ for name, is_ in said.items() if not name.isupper()}
    assert set(rpcs) == {method.name for method in methods}
    with Stub(server.grpc) as stub:
        for method in methods:
            if method.client_streaming:
                continue
            request = getattr(pb, method.input_type.name)()
            if method.input_type.fields_by_name.get("name"):
                request.name = "digits" if method.name.startswith("Model") else ""
            try:
                stub.call(method.name, request)
                ended = ANSWERED
            except grpc.RpcError as error:
                ended = error.code().name
            if method.name == "ModelInfer":  # an empty one is of a model without a name
                assert (rpcs[method.name], ended) == (ANSWERED, Code.NOT_FOUND.name)
            else:
                assert ended == rpcs[method.name], method.name


def test_every_pair_of_statuses_is_there_and_no_other() -> None:
    rows = re.findall(r"^\| [^|]+ \| `([A-Z_]+)` \| (\d+)", TEXT, re.MULTILINE)
    assert {(code, int(status)) for code, status in rows} == {
        (each.grpc.name, int(each.http)) for each in STATUSES.values()
    }


def test_every_parameter_that_is_read_is_there() -> None:
    """Names of parameters are literals of the modules that read them."""
    said = set().union(*(code_words(row[0]) for row in table_rows("API.md", "### Inference")))
    read = set()
    for module in ("domain/protocol.py", "frontend/http/infer_request.py"):
        source = (DOCS.parent / "appliance" / module).read_text("utf-8")
        read |= set(re.findall(r'(?:pop|get|_natural|_flag)\([^()]*?"(\w+)"', source))
        read |= set(re.findall(r'"(shared_memory_\w+|sequence_\w+|triton_enable\w+)"', source))
    assert read - said <= {"id", "data", "datatype", "shape", "parameters", "inputs", "outputs"}
    assert len(read & said) > 8
