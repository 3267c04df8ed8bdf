"""What is to be tried: an ONNX file, the directory of a version, or that of a model, read as the server reads it."""

from __future__ import annotations

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Final

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ArtefactError, ModelInvalid
from appliance.domain.golden import GOLDEN_DIRECTORY, SET_FILE, read_golden
from appliance.domain.model import ModelVersion
from appliance.repository.agreement import agree
from appliance.repository.findings import Findings, Place
from appliance.repository.model_config import ONNX, no_config
from appliance.repository.model_directory import CONFIG_FILE, read_model_directory
from appliance.repository.model_files import ModelHome
from appliance.repository.onnx.firewall import graph_flaws, graph_limits, graph_size
from appliance.repository.onnx.graph import read_graph
from appliance.repository.version_files import external_files, golden_files
from appliance.runtimes.runtime import READ_ONNX

FIRST_VERSION: Final = 1
VERSION_NUMBER: Final = re.compile(r"[1-9][0-9]{0,18}")


class SubjectAbsent(ArtefactError):
    """There is nothing to try where it was said to be: the command is wrong, not a model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """A version that could be served. ``home`` is its model's directory, "" for a file alone; ``folder`` is where its
    model file lies and its own golden set belongs; ``golden_of``: the file that the set there was made of, where that
    is another, so that it is not taken."""

    version: ModelVersion
    home: str
    folder: str
    golden_of: str = ""

    @property
    def source(self) -> str:
        """Where exactly this is found again, whatever other versions come."""
        return self.folder if self.home else self.version.path

    @property
    def golden_folder(self) -> str:
        """Where a golden set of this version alone goes."""
        return os.path.join(self.folder, GOLDEN_DIRECTORY)


def find_subject(path: Path, settings: RepositoryConfig | None = None, number: int | None = None) -> Subject:
    """What is at ``path``; of a model's directory the version ``number``, or the highest. Raises ModelInvalid with all
    that is wrong, SubjectAbsent when there is nothing there, ArtefactError when it cannot be tried."""
    settings = settings or RepositoryConfig()
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError as error:
        raise SubjectAbsent(f"'{path}' cannot be read: {error.strerror}") from error
    if not real.is_dir():
        _check_no_choice(path, number)
        return _in_home(real.parent, settings, real.name) or _alone(real, settings)
    if VERSION_NUMBER.fullmatch(real.name):
        found = _in_home(real, settings)
        if found is not None:
            _check_no_choice(path, number)
            return found
    numbers = [int(entry.name) for entry in real.iterdir() if VERSION_NUMBER.fullmatch(entry.name)]
    if not numbers:
        raise SubjectAbsent(
            f"'{path}' holds neither a model nor a version; give an ONNX file or such a directory"
        )
    if number and number not in numbers:
        had = ", ".join(map(str, sorted(numbers)))
        raise SubjectAbsent(f"'{path}' has no version {number}; it has {had}")
    return _version(real, number or max(numbers), settings)


def golden_of_another(file: Path) -> str:
    """The model file that the golden set beside ``file`` was made of, where it names another one; else "". In the
    directory of a version there is no other, whatever the file was called elsewhere."""
    there = file.parent / SET_FILE
    if VERSION_NUMBER.fullmatch(file.parent.name) or not os.path.lexists(there):
        return ""
    with suppress(ArtefactError):  # told where it is read
        made_of = read_golden(str(there)).file
        return made_of if made_of != plain_text(file.name) else ""
    return ""


def plain_text(name: str) -> str:
    """The name of a file as a text that can be written into one: bytes that are no UTF-8 are replaced."""
    return name.encode(errors="replace").decode()


def _check_no_choice(path: Path, number: int | None) -> None:
    if number:
        raise SubjectAbsent(f"'{path}' is one version already; --version chooses in a model's directory")


def _in_home(folder: Path, settings: RepositoryConfig, file: str = "") -> Subject | None:
    """The version whose directory is ``folder``; None when it is no version's, or ``file`` is not its model file."""
    home = folder.parent
    if not VERSION_NUMBER.fullmatch(folder.name):
        return None
    if not (home / CONFIG_FILE).is_file() and not (folder / "model.onnx").is_file():
        return None
    found = _version(home, int(folder.name), settings)
    return found if file in ("", found.version.model_file) else None


def _version(home: Path, number: int, settings: RepositoryConfig) -> Subject:
    reading = read_model_directory(str(home.parent), home.name, settings, only=number)
    if reading is None:
        raise SubjectAbsent(f"'{home}' is not a model's directory")
    if not reading.servable:
        raise ModelInvalid(problem for broken in reading.broken for problem in broken.problems)
    version = reading.servable[0].model
    if version.runtime not in READ_ONNX:
        raise ArtefactError(
            f"'{home}' is a model of the runtime '{version.runtime}'; only ONNX models can be tried"
        )
    version = replace(version, runtime=ONNX.runtime)  # whatever serves it
    return Subject(version=version, home=str(home), folder=str(home / str(number)))


def _alone(path: Path, settings: RepositoryConfig) -> Subject:
    """A file without a configuration; its external data and its golden set may lie beside it."""
    home = ModelHome(path=str(path.parent))
    findings = Findings()
    place = Place(file=path.name)
    here = PurePosixPath()
    file = home.file(PurePosixPath(path.name))
    try:
        with file.open() as descriptor:
            graph = read_graph(descriptor, graph_limits(settings))
    except ArtefactError as error:
        raise ModelInvalid([place.problem(str(error))]) from error
    for flaw in graph_flaws(graph, graph_limits(settings)):
        findings.problem(place, str(flaw))
    outside = external_files(graph, home, here, place, findings)
    agreement = agree(no_config(CONFIG_FILE), graph, place, settings.default_max_batch_size, findings)
    golden_of = golden_of_another(path)
    golden = () if golden_of else golden_files(home, here, "", agreement, findings)
    if findings.problems:
        raise ModelInvalid(findings.problems)
    version = ModelVersion(
        name=path.stem,
        version=FIRST_VERSION,
        platform=ONNX.platform,
        backend=ONNX.backend,
        runtime=ONNX.runtime,
        path=file.path,
        file_bytes=file.size + sum(each.size for each in outside),
        graph=graph_size(graph),
        inputs=agreement.inputs,
        outputs=agreement.outputs,
        max_batch_size=agreement.max_batch_size,
        batching=agreement.batching,
        rows_assumed=agreement.rows_assumed,
        model_file=path.name,
        golden=golden[0].path if golden else "",
    )
    return Subject(version=version, home="", folder=str(path.parent), golden_of=golden_of)
