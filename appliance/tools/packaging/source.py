"""What there is to pack: an ONNX file, the directory of a version, or the directory of a model, and the files in it
that belong to the version.

Taken are the model with its external data, and what its configuration names: labels, warm-up data; the golden set; and
what is asked for by ``include``. All else stays behind. Files are found as the serving side finds them: beneath the
model's directory, links followed as far as they stay in it, regular files only. Raises ModelInvalid with all problems.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Final

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ArtefactError, ModelInvalid, Problem
from appliance.domain.golden import SET_FILE, TENSORS_NAME
from appliance.repository.directory import RepositoryScan
from appliance.repository.findings import Findings, Place
from appliance.repository.misplaced import SUFFIX, in_its_place
from appliance.repository.model_config import MODEL_FILE, ModelConfig, no_config, read_model_config
from appliance.repository.model_directory import (
    CONFIG_BYTES_MAX,
    CONFIG_FILE,
    read_model_directory,
)
from appliance.repository.model_files import FileAbsent, ModelFile, ModelHome
from appliance.repository.pbtxt import PbtxtError, parse
from appliance.repository.warmup_config import WARMUP_DIRECTORY
from appliance.tools.subject import VERSION_NUMBER, golden_of_another

_STRANGE: Final = re.compile(r"[^a-z0-9._-]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """A version to pack. ``home`` is the directory in which all its files are, ``start`` where in it the model file
    is. ``config`` is its configuration's text, None when it has none. ``others`` are the other files by their path in
    the package. ``name`` and ``version`` are what the places say, where nothing else is said. ``golden_of``: the file
    that the golden set beside a bare model file was made of, where that is another, so that it stays behind."""

    name: str
    version: int
    home: ModelHome
    start: PurePosixPath
    model: ModelFile
    config: bytes | None
    others: Mapping[str, ModelFile]
    golden_of: str = ""


class SourceAbsent(ModelInvalid):
    """There is nothing to pack where it was said to be: the command is wrong, not a model."""


def find_source(
    path: Path,
    version: int | None,
    include: Sequence[str] = (),
    settings: RepositoryConfig = RepositoryConfig(),  # noqa: B008 - frozen
) -> ModelSource:
    """What is at ``path``; of a model directory the version ``version``, else the highest one. ``settings`` bound the
    configuration that is read. Raises SourceAbsent where ``path``, or what it is to ``include``, is not there, and
    ModelInvalid."""
    try:
        real = Path(os.path.realpath(path, strict=True))
    except OSError as error:
        raise _absent(str(path), f"cannot be read: {error.strerror}") from error
    if not real.is_dir():
        return _file_source(real, version, include)
    if VERSION_NUMBER.fullmatch(real.name) and _is_of_model(real):
        return _model_source(real.parent, int(real.name), include, settings)
    numbers = sorted(int(entry.name) for entry in real.iterdir() if VERSION_NUMBER.fullmatch(entry.name))
    if numbers or (real / CONFIG_FILE).is_file():
        if not numbers:
            findings = Findings()
            *_, said = _config(ModelHome(path=str(real)), settings, findings)
            findings.problem(Place(file=str(path)), f"has no version directory; put the model into {path}/1/")
            raise ModelInvalid((*said, *findings.problems))
        if version and version not in numbers:
            had = ", ".join(map(str, numbers))
            raise _absent(
                str(path),
                f"has no version {version}; it has {had}, of which --version picks one to pack: a version keeps the "
                "number of its directory",
            )
        return _model_source(real, version or numbers[-1], include, settings)
    return _file_source(_only_model(real), version, include)


def _is_of_model(folder: Path) -> bool:
    """Whether the version's directory ``folder`` lies in a model's that has something for all versions."""
    has_set = (folder.parent / SET_FILE).is_file() and (folder / MODEL_FILE).is_file()
    return has_set or (folder.parent / CONFIG_FILE).is_file()


def judged(root: Path, name: str, settings: RepositoryConfig) -> RepositoryScan:
    """The repository's own opinion of the model directory ``root/name`` that was written. Raises ModelInvalid with all
    that it finds wrong."""
    reading = read_model_directory(os.path.realpath(root), name, settings)
    assert reading is not None, "a model directory was written"
    if reading.broken:
        raise ModelInvalid(dict.fromkeys(problem for broken in reading.broken for problem in broken.problems))
    return reading


def plain_name(text: str) -> str:
    """``text`` as the name of a model, as near as the rule for names lets it."""
    return _STRANGE.sub("-", text.lower()).strip("-.")[:64] or "model"


def _only_model(folder: Path) -> Path:
    found = sorted(entry for entry in folder.iterdir() if entry.suffix == ".onnx")
    named = [entry for entry in found if entry.name == MODEL_FILE]
    if len(found) != 1 and not named:
        raise _absent(
            str(folder), f"holds {len(found)} ONNX files and no {CONFIG_FILE}; name the file to pack"
        )
    return (named or found)[0]


def _file_source(path: Path, version: int | None, include: Sequence[str]) -> ModelSource:
    """A model file without a configuration; external data and a golden set may lie beside it. In a directory that is
    called as a version is, the places around it say what it is called."""
    home = ModelHome(path=str(path.parent))
    _check_there(home, include)
    numbered = VERSION_NUMBER.fullmatch(path.parent.name) is not None
    name = path.parent.parent.name if numbered else path.stem
    version = version or (int(path.parent.name) if numbered else 1)
    findings = Findings()
    model = _found(home, PurePosixPath(path.name), findings)
    config = no_config(CONFIG_FILE)
    golden_of = golden_of_another(path)
    others = dict(_others(home, PurePosixPath(), config, include, findings, golden=not golden_of))
    if model is None or findings.problems:
        raise ModelInvalid(findings.problems)
    return ModelSource(
        name=plain_name(name),
        version=version,
        home=home,
        start=PurePosixPath(),
        model=model,
        config=None,
        others=others,
        golden_of=golden_of,
    )


def _model_source(
    folder: Path, version: int, include: Sequence[str], settings: RepositoryConfig
) -> ModelSource:
    home = ModelHome(path=str(folder))
    _check_there(home, include)
    findings = Findings()
    text, config, said = _config(home, settings, findings)
    start = PurePosixPath(str(version))
    model = _found(home, start / config.model_file, findings)
    others = dict(_others(home, start, config, include, findings))
    if model is None:
        raise ModelInvalid((*said, *findings.problems))
    if findings.problems:
        raise ModelInvalid(findings.problems)
    return ModelSource(
        name=plain_name(folder.name),
        version=version,
        home=home,
        start=start,
        model=model,
        config=text,
        others=others,
    )


def _config(
    home: ModelHome, settings: RepositoryConfig, findings: Findings
) -> tuple[bytes | None, ModelConfig, Sequence[Problem]]:
    """The configuration's text, what it says, and what is wrong with that: told here where there is no model, else when
    the packed form is read."""
    nothing = no_config(CONFIG_FILE)
    if not os.path.lexists(os.path.join(home.path, CONFIG_FILE)):
        return None, nothing, ()
    try:
        text = home.file(PurePosixPath(CONFIG_FILE)).read(CONFIG_BYTES_MAX)
        tree = parse(text)
    except PbtxtError as error:
        findings.problem(Place(file=f"{CONFIG_FILE}:{error.line}:{error.column}"), str(error))
        return None, nothing, ()
    except ArtefactError as error:
        findings.problem(Place(file=CONFIG_FILE), str(error))
        return None, nothing, ()
    judged = Findings()
    name = os.path.basename(home.path)
    config = read_model_config(tree, file=CONFIG_FILE, model_name=name, settings=settings, findings=judged)
    return text, config, judged.problems


def _others(
    home: ModelHome,
    start: PurePosixPath,
    config: ModelConfig,
    include: Sequence[str],
    findings: Findings,
    *,
    golden: bool = True,
) -> Iterator[tuple[str, ModelFile]]:
    """The files besides model and configuration, by their path in the package."""
    wanted = {output.label_file for output in config.outputs or () if output.label_file}
    warmups = (tensor.file for warmup in config.warmups for tensor in warmup.tensors if tensor.file)
    wanted |= {str(PurePosixPath(WARMUP_DIRECTORY) / file) for file in warmups}
    wanted |= set(include)
    for there in dict.fromkeys((start / SET_FILE, PurePosixPath(SET_FILE))):
        if golden and os.path.lexists(os.path.join(home.path, there)):
            wanted |= {str(there), str(there.with_name(TENSORS_NAME))}
            break
    for relative in sorted(wanted):
        file = _found(home, PurePosixPath(relative), findings)
        if file is not None:
            yield relative, file


def _found(home: ModelHome, relative: PurePosixPath, findings: Findings) -> ModelFile | None:
    try:
        return home.file(relative)
    except FileAbsent as error:
        beside = in_its_place(home, relative.parent) if relative.suffix == SUFFIX else ""
        findings.problem(Place(file=str(relative)), f"{error}; {beside}" if beside else str(error))
        return None
    except ArtefactError as error:
        findings.problem(Place(file=str(relative)), str(error))
        return None


def _check_there(home: ModelHome, include: Sequence[str]) -> None:
    """Raise SourceAbsent where nothing is at some of these; what else is wrong with them is for the packing to say."""
    findings = Findings()
    for relative in dict.fromkeys(include):
        try:
            home.file(PurePosixPath(relative))
        except FileAbsent as error:
            findings.problem(Place(file=relative), str(error))
        except ArtefactError:
            pass
    if findings.problems:
        raise SourceAbsent(findings.problems)


def _absent(file: str, text: str) -> SourceAbsent:
    return SourceAbsent([Problem(file=file, key="", text=text)])
