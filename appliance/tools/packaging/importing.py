"""Other people's models as model directories of ours: an ONNX file, an entry of a Triton repository, a folder of a hub
that holds an ONNX export.

Nothing is converted that would change an answer. Of a Triton configuration, what only says how Triton runs a model is
taken out and told (``DROPPED``); all else must be something that is served here, which the repository judges on the
finished directory before it gets its name. The source is only read.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import Final

from appliance.config.repository import RepositoryConfig
from appliance.domain.errors import ArtefactError, ModelInvalid, Problem
from appliance.domain.golden import SET_FILE, TENSORS_NAME
from appliance.repository.directory import RepositoryScan
from appliance.repository.model_directory import CONFIG_FILE
from appliance.repository.onnx.firewall import graph_limits
from appliance.repository.onnx.graph import read_graph
from appliance.repository.pbtxt import parse
from appliance.repository.warmup_config import WARMUP_DIRECTORY
from appliance.runtimes.runtime import READ_ONNX
from appliance.tools.packaging.config_text import changed_config
from appliance.tools.packaging.installed_runtime import too_new, warning_text
from appliance.tools.packaging.packing import graph_of
from appliance.tools.packaging.source import ModelSource, SourceAbsent, find_source, judged, plain_name
from appliance.tools.subject import VERSION_NUMBER

MODEL_FILE: Final = "model.onnx"
EXPORTS: Final = ("model.onnx", "onnx/model.onnx")
COMPANIONS: Final = ("tokenizer.json",)
RESERVED: Final = (CONFIG_FILE, SET_FILE, str(PurePosixPath(SET_FILE).with_name(TENSORS_NAME)), *COMPANIONS)
"""What files of a model are called that have a meaning; no other one is renamed to that."""
NAME_CHARACTERS_MAX: Final = 64

DROPPED: Final[Mapping[str, str]] = MappingProxyType(
    {
        "optimization": "says how Triton runs the model",
        "cc_model_filenames": "names other files for other devices",
        "model_repository_agents": "names plug-ins of Triton",
        "model_operations": "names libraries that Triton loads",
        "runtime": "names a library of Triton",
        "response_cache": "is for Triton's cache",
        "metric_tags": "is for Triton's metrics",
        "model_metrics": "is for Triton's metrics",
    }
)
"""Fields of a Triton configuration that change no answer, and why they are taken out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """A finished model directory; ``notes`` tell what is otherwise than in the source, ``warnings`` what would not load
    with the runtime of this machine."""

    home: Path
    versions: tuple[int, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def import_model(
    source: Path,
    parent: Path,
    name: str | None,
    version: int | None,
    settings: RepositoryConfig = RepositoryConfig(),  # noqa: B008 - frozen
) -> Imported:
    """Make the model directory ``parent/NAME`` from what is at ``source``: of a Triton entry all versions, or
    ``version`` alone; anything else becomes ``version``, or 1. ``settings`` say what may be served. Raises ModelInvalid
    with all problems, OSError."""
    found = list(_versions(source, version, settings))
    name = name or found[0].name
    target = parent / name
    if os.path.lexists(target):
        raise ModelInvalid([_problem(str(target), "is there already; remove it, or choose another --name")])
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix=".importing-", dir=parent) as folder:
        home = Path(folder) / name
        layout = _Layout(home)
        for each in found:
            _lay_out(each, layout, name, notes, settings)
        for companion in COMPANIONS:
            if (source / companion).is_file():
                layout.copy(str(source.resolve() / companion), PurePosixPath(companion))
        warnings = tuple(_warnings(judged(Path(folder), name, settings), settings))
        os.rename(home, target)
    return Imported(
        home=target,
        versions=tuple(each.version for each in found),
        notes=tuple(dict.fromkeys(notes)),
        warnings=warnings,
    )


def _warnings(reading: RepositoryScan, settings: RepositoryConfig) -> Iterator[str]:
    """What of the versions that would serve is too new for the runtime of this machine."""
    for model in (each.model for each in reading.servable if each.model.runtime in READ_ONNX):
        yield from (warning_text(model.key, each) for each in too_new(graph_of(Path(model.path), settings)))


def _versions(source: Path, version: int | None, settings: RepositoryConfig) -> Iterator[ModelSource]:
    """What there is to import, lowest version first."""
    if not source.is_dir() or VERSION_NUMBER.fullmatch(source.name):
        yield find_source(source, version, settings=settings)
        return
    numbers = sorted(int(entry.name) for entry in source.iterdir() if VERSION_NUMBER.fullmatch(entry.name))
    if numbers and version is None:
        yield from (find_source(source, number, settings=settings) for number in numbers)
        return
    if numbers or (source / CONFIG_FILE).is_file():
        yield find_source(source, version, settings=settings)
        return
    export = next((source / place for place in EXPORTS if (source / place).is_file()), None)
    if export is None:
        raise SourceAbsent([_problem(str(source), _no_export(source))])
    found = find_source(export, version, settings=settings)
    yield replace(found, name=plain_name(source.resolve().name), config=None)


def _no_export(source: Path) -> str:
    if any(source.glob("*.safetensors")) or any(source.glob("*.bin")):
        return (
            "holds weights but no graph; make an ONNX export of it first, for example with "
            f"'optimum-cli export onnx --model {source.name} OUT', and import OUT"
        )
    return f"holds neither {CONFIG_FILE}, nor versions, nor {' or '.join(EXPORTS)}"


class _Layout:
    """The model directory that is being made: what its files are called, and what each comes from."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self._sources: dict[PurePosixPath, str] = {}
        self._names: dict[str, PurePosixPath] = {}
        self._taken = {*RESERVED}

    def name(self, path: str, version: int) -> PurePosixPath:
        """What the file that the source has at ``path`` is called; different ones are called differently."""
        if path not in self._names:
            wanted = _plain(path, version)
            name, number = wanted, 1
            while str(name) != path and str(name) in self._taken:
                number += 1
                name = wanted.with_name(_numbered(wanted, number))
            self._names[path] = name
            self._taken.add(str(name))
        return self._names[path]

    def copy(self, source: str, path: PurePosixPath) -> None:
        """Copy a file, once. Raises ModelInvalid where another one lies already."""
        if self._claims(source, path):
            (self.home / path).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source, self.home / path)

    def write(self, path: PurePosixPath, data: bytes) -> None:
        """Write a file that comes from no other. Raises ModelInvalid as ``copy``."""
        if self._claims(str(path), path):
            (self.home / path).write_bytes(data)

    def _claims(self, source: str, path: PurePosixPath) -> bool:
        """Whether nothing lies there yet."""
        if path not in self._sources:
            self._sources[path] = source
            return True
        if self._sources[path] != source:
            text = f"'{self._sources[path]}' and '{source}' would both be called '{path}'; rename one of them"
            raise ModelInvalid([_problem(str(path), text)])
        return False


def _plain(path: str, version: int) -> PurePosixPath:
    parts = PurePosixPath(path).parts
    return PurePosixPath(*(part if part == str(version) else plain_name(part) for part in parts))


def _numbered(path: PurePosixPath, number: int) -> str:
    tail = f"-{number}{path.suffix[: NAME_CHARACTERS_MAX // 2]}"
    return path.stem[: NAME_CHARACTERS_MAX - len(tail)] + tail


def _lay_out(
    source: ModelSource, layout: _Layout, name: str, notes: list[str], settings: RepositoryConfig
) -> None:
    """One version, with its configuration, which is the same for all."""
    folder = PurePosixPath(str(source.version))
    config = source.config
    file_name = MODEL_FILE if config is None else PurePosixPath(source.model.path).name
    layout.copy(source.model.path, folder / file_name)
    with source.model.open() as descriptor:
        graph = read_graph(descriptor, graph_limits(settings))
    for location in sorted({reference.location for reference in graph.external}):
        try:
            outside = source.home.file(PurePosixPath(location), start=source.start)
        except ArtefactError as error:
            raise ModelInvalid([_problem(location, str(error))]) from error
        layout.copy(outside.path, PurePosixPath(os.path.normpath(folder / location)))
    inner: dict[tuple[str, str], str] = {}
    # Those that keep their names first, so that the others make way.
    for path in sorted(source.others, key=lambda path: str(_plain(path, source.version)) != path):
        plain = layout.name(path, source.version)
        if str(plain) != path:
            inner |= _named(path, plain)
            notes.append(f"'{path}' is called '{plain}' now")
        layout.copy(source.others[path].path, plain)
    if config is not None:
        layout.write(PurePosixPath(CONFIG_FILE), _our_config(config, name, inner, notes))


def _named(path: str, plain: PurePosixPath) -> Mapping[tuple[str, str], str]:
    """How a configuration names the file at ``path``, as labels or as warm-up data, and what it is to say."""
    said = {("label_filename", path): str(plain)}
    if path.startswith(f"{WARMUP_DIRECTORY}/"):
        inside = path.removeprefix(f"{WARMUP_DIRECTORY}/")
        said["input_data_file", inside] = str(plain.relative_to(WARMUP_DIRECTORY))
    return said


def _our_config(text: bytes, name: str, inner: Mapping[tuple[str, str], str], notes: list[str]) -> bytes:
    """The configuration without DROPPED and with our names."""
    said = {field.name for field in parse(text).fields}
    notes += [f"'{field}' is left out: it {why}" for field, why in DROPPED.items() if field in said]
    return changed_config(text, {"name": name}, without=DROPPED, inner=inner)


def _problem(file: str, text: str) -> Problem:
    return Problem(file=file, key="", text=text)
