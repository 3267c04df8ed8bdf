"""One model's directory to the versions that can be served and the reasons why others cannot.

Rules kept here: a link counts as what it leads to and may not leave the repository; a problem of the
configuration breaks every version of the model, a problem of a version only that one. The fingerprint covers
the files that a worker reads by itself; whatever else was read is inside the ModelVersion.
"""

from __future__ import annotations

import hashlib
import os
import re
import traceback
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Final

from appliance.config.repository import RepositoryConfig
from appliance.domain.device_wish import ON_CPU, DeviceWish
from appliance.domain.errors import ArtefactError
from appliance.domain.manifest import FileEntry
from appliance.domain.model import GraphSize, ModelVersion, WeightsFile
from appliance.repository.agreement import Agreement, agree, from_config_alone
from appliance.repository.directory import BrokenVersion, RepositoryScan, ServableVersion
from appliance.repository.findings import PROBLEMS_MAX, Findings, Place
from appliance.repository.misplaced import SUFFIX, in_its_place, misplaced, misplaced_file
from appliance.repository.model_config import (
    MODEL_FILE,
    VERSIONS_MAX,
    ModelConfig,
    model_file_of,
    no_config,
    read_model_config,
    wanted_versions,
)
from appliance.repository.model_files import FileAbsent, ModelFile, ModelHome
from appliance.repository.onnx.firewall import GraphLimits, graph_flaws, graph_limits, graph_size
from appliance.repository.onnx.graph import read_graph
from appliance.repository.onnx.summary import GraphSummary
from appliance.repository.pbtxt import PbtxtError, parse
from appliance.repository.section import INT64_MAX
from appliance.repository.tensor_config import TensorConfig
from appliance.repository.version_files import external_files, foreign_files, golden_files, read_labels
from appliance.repository.warmup_config import plan_warmup, warmup_files

CONFIG_FILE: Final = "config.pbtxt"
CONFIG_BYTES_MAX: Final = 1 << 20
"""A config.pbtxt has some kilobytes; it is read by hand-written code in the daemon."""
LABEL_BYTES_MAX: Final = 4 << 20
"""A label file: some hundred thousand classes, which stay in memory."""

_NAME: Final = re.compile(r"[A-Za-z0-9._-]{1,128}")
NO_NAME: Final = "is not a name for a model: 1 to 128 of the characters A-Z a-z 0-9 . _ - are allowed"
_NUMBER: Final = re.compile(r"[0-9]+")
_CANONICAL_NUMBER: Final = re.compile(r"[1-9][0-9]{0,18}")


def read_model_directory(
    root: str,
    entry: str,
    settings: RepositoryConfig,
    config: bytes | None = None,
    only: int | None = None,
    stored: Mapping[str, FileEntry] | None = None,
) -> RepositoryScan | None:
    """The model in the directory ``entry`` of the repository ``root`` (absolute, free of links); None when it
    is none. ``config`` is taken in the place of its config.pbtxt, which still says how the model's file is called where
    ``config`` does not; ``only`` is the one version to read, whatever the configuration asks for. ``stored`` is what
    the model's package says of its files, by their paths in the directory: others are not taken.

    Raises nothing for what is in the directory. Hostile files look for the place where that is not true, so whatever is
    raised is told as what is wrong with the one model, and all others are served."""
    try:
        return _read(root, _home(root, entry, stored), entry, settings, config, only)
    except ArtefactError as error:
        return _broken(printable(entry), str(error))
    except Exception as error:  # noqa: BLE001  a defect ends the reading of its own model
        last = traceback.extract_tb(error.__traceback__)[-1]
        what = "".join(traceback.format_exception_only(error)).strip()
        return _broken(
            printable(entry),
            f"cannot be read, for a reason that nobody foresaw: {what[:500]} (in {last.name}, line {last.lineno})",
        )


def _read(
    root: str, home: ModelHome, entry: str, settings: RepositoryConfig, config: bytes | None, only: int | None
) -> RepositoryScan | None:
    name = printable(entry)
    if entry in ("", ".", "..") or "/" in entry or "\0" in entry:  # of no directory that is listed
        return _broken(name, NO_NAME)
    try:
        listing = os.listdir(home.path)
    except NotADirectoryError:
        return _broken(name, misplaced_file(root, name)) if entry.endswith(SUFFIX) else None
    except OSError as error:
        return _broken(name, f"cannot be read: {error.strerror}")
    numbered = [found for found in listing if _NUMBER.fullmatch(found)]
    has_config = config is not None or CONFIG_FILE in listing
    if not has_config and not numbered:
        told = misplaced(root, name, listing)
        return _broken(name, told) if told else None
    if not _NAME.fullmatch(entry):
        return _broken(name, NO_NAME)
    if len(numbered) > VERSIONS_MAX:
        return _broken(name, f"has {len(numbered)} version directories; the limit is {VERSIONS_MAX}")
    return _ModelReader(name, home, settings, config).read(has_config, numbered, only)


def printable(name: str) -> str:
    """A file name that can be shown and sent: bytes that are not UTF-8 are replaced."""
    return name.encode(errors="surrogateescape").decode(errors="replace")


def _broken(name: str, text: str) -> RepositoryScan:
    problem = Place(file=name).problem(text)
    return RepositoryScan(broken=(BrokenVersion(name=name, version="", problems=(problem,)),))


def _home(root: str, entry: str, stored: Mapping[str, FileEntry] | None) -> ModelHome:
    path = os.path.join(root, entry)
    if not os.path.islink(path):
        return ModelHome(path=path, stored=stored)
    try:
        real = os.path.realpath(path, strict=True)
    except FileNotFoundError:
        raise ArtefactError("is a symbolic link to nothing") from None
    except OSError as error:
        raise ArtefactError(f"cannot be read: {error.strerror}") from error
    if not real.startswith(root.rstrip(os.sep) + os.sep):
        raise ArtefactError(
            f"is a symbolic link to {real}, outside the repository; put the model itself there"
        )
    return ModelHome(path=real, stored=stored)


class _ModelReader:
    """Reads one model; ``home`` is its directory, ``given`` what counts as its configuration in the file's place."""

    def __init__(self, name: str, home: ModelHome, settings: RepositoryConfig, given: bytes | None) -> None:
        self._given = given
        self._name = name
        self._home = home
        self._settings = settings
        self._findings = Findings()

    def read(self, has_config: bool, numbered: Iterable[str], only: int | None = None) -> RepositoryScan:
        """All versions that the configuration asks for, or ``only`` one."""
        config = self._config() if has_config else no_config(f"{self._name}/{CONFIG_FILE}")
        if config is None:
            return self._whole(ON_CPU)
        wrong = {number: text for number in numbered if (text := _problem_of_number(number))}
        present = [int(number) for number in numbered if number not in wrong]
        misnamed = [
            BrokenVersion(
                name=self._name,
                version=number,
                problems=(Place(file=f"{self._name}/{number}").problem(text),),
                device=config.instances.device,
            )
            for number, text in wrong.items()
        ]
        wanted = wanted_versions(config.policy, present) if only is None else (only,)
        if not wanted:
            self._findings.problem(
                Place(file=self._name),
                f"has no version directory; put the model into {self._name}/1/{config.model_file}",
            )
            return self._whole(config.instances.device, misnamed)
        labels = read_labels(config.outputs or (), self._home, LABEL_BYTES_MAX, self._findings)
        warmups = warmup_files(config.warmups, self._home, self._findings)
        readings: list[ServableVersion | BrokenVersion] = []
        inherited = self._findings.problems
        notes = tuple(f"{note.key}: {note.text}" for note in self._findings.notes)
        room = PROBLEMS_MAX - len(inherited)
        for number in wanted:
            findings = Findings(inherited, room)
            version = _VersionReader(self._name, number, self._home, config, self._settings, findings, notes)
            readings.append(version.read(labels, warmups))
            room -= len(findings.problems) - len(inherited)
        return RepositoryScan(
            servable=tuple(reading for reading in readings if isinstance(reading, ServableVersion)),
            broken=(*(reading for reading in readings if isinstance(reading, BrokenVersion)), *misnamed),
            notes=self._findings.notes,
            auto=config.instances.auto,
        )

    def _config(self) -> ModelConfig | None:
        """The configuration; None when the file cannot be read as one at all."""
        place = Place(file=f"{self._name}/{CONFIG_FILE}")
        try:
            tree = parse(self._config_bytes())
        except PbtxtError as error:
            self._findings.problem(Place(file=f"{place.file}:{error.line}:{error.column}"), str(error))
            return None
        except ArtefactError as error:
            self._findings.problem(place, str(error))
            return None
        return read_model_config(
            tree,
            file=place.file,
            model_name=self._name,
            settings=self._settings,
            findings=self._findings,
            model_file=MODEL_FILE if self._given is None else self._own_model_file(),
        )

    def _own_model_file(self) -> str:
        """How the model's own config.pbtxt calls its file: who gives another configuration changes how the model is
        served, not what lies on the disk."""
        try:
            own = self._home.file(PurePosixPath(CONFIG_FILE)).read(CONFIG_BYTES_MAX)
            return model_file_of(parse(own))
        except ArtefactError:
            return MODEL_FILE

    def _config_bytes(self) -> bytes:
        if self._given is None:
            return self._home.file(PurePosixPath(CONFIG_FILE)).read(CONFIG_BYTES_MAX)
        if len(self._given) > CONFIG_BYTES_MAX:
            raise ArtefactError(f"has {len(self._given)} bytes; the limit is {CONFIG_BYTES_MAX}")
        return self._given

    def _whole(self, device: DeviceWish, misnamed: Iterable[BrokenVersion] = ()) -> RepositoryScan:
        """Nothing of the model can be served."""
        problems = self._findings.problems
        broken = BrokenVersion(name=self._name, version="", problems=problems, device=device)
        return RepositoryScan(broken=(broken, *misnamed), notes=self._findings.notes)


def _problem_of_number(number: str) -> str:
    """Why a directory of digits is no version; "" when it is one."""
    if _CANONICAL_NUMBER.fullmatch(number) and int(number) <= INT64_MAX:
        return ""
    if number.lstrip("0") != number:
        return "is not a version number: they begin at 1 and have no leading zeros; rename the directory"
    return f"is not a version number: they end at {INT64_MAX}; rename the directory"


class _VersionReader:
    """Reads one version; ``findings`` begin with the problems of the model, which are its own too, ``notes`` are the
    model's."""

    def __init__(
        self,
        name: str,
        number: int,
        home: ModelHome,
        config: ModelConfig,
        settings: RepositoryConfig,
        findings: Findings,
        notes: tuple[str, ...],
    ) -> None:
        self._notes = notes
        self._name = name
        self._number = number
        self._home = home
        self._config = config
        self._settings = settings
        self._directory = PurePosixPath(str(number))
        self._size = GraphSize()
        self._findings = findings

    def read(
        self, labels: Mapping[str, tuple[str, ...]], warmup: Mapping[str, ModelFile]
    ) -> ServableVersion | BrokenVersion:
        """The version with its labels and warm-up files."""
        files: tuple[ModelFile, ...] = ()
        foreign: tuple[ModelFile, ...] = ()
        agreement: Agreement | None = None
        if self._has_directory():
            if self._config.kind.reads_onnx:
                files, agreement = self._from_graph()
            else:
                agreement = from_config_alone(self._config, self._findings)
                foreign = foreign_files(self._home, self._directory)
        golden: tuple[ModelFile, ...] = ()
        model: ModelVersion | None = None
        if agreement:
            golden = golden_files(self._home, self._directory, self._name, agreement, self._findings)
            model = self._model(files, agreement, labels, warmup, golden)
            if foreign:
                model = replace(model, file_bytes=sum(file.size for file in foreign))
        if model is None or self._findings.problems:
            return BrokenVersion(
                name=self._name,
                version=str(self._number),
                problems=self._findings.problems,
                device=self._config.instances.device,
            )
        return ServableVersion(
            model=model, fingerprint=_fingerprint((*files, *foreign, *warmup.values(), *golden))
        )

    def _has_directory(self) -> bool:
        try:
            self._home.check_directory(str(self._number))
        except ArtefactError as error:
            self._findings.problem(Place(file=f"{self._name}/{self._number}"), str(error))
            return False
        return True

    def _from_graph(self) -> tuple[tuple[ModelFile, ...], Agreement | None]:
        """The files of the model and what its graph and configuration agree on."""
        relative = self._directory / self._config.model_file
        place = Place(file=f"{self._name}/{relative}")
        try:
            file = self._home.file(relative)
            graph = _summary(file, graph_limits(self._settings))
        except FileAbsent as error:
            beside = in_its_place(self._home, self._directory)
            self._findings.problem(place, f"{error}; {beside}" if beside else str(error))
            return (), None
        except ArtefactError as error:
            self._findings.problem(place, str(error))
            return (), None
        for flaw in graph_flaws(graph, graph_limits(self._settings)):
            self._findings.problem(place, str(flaw))
        files = (file, *external_files(graph, self._home, self._directory, place, self._findings))
        self._size = graph_size(graph)
        largest = self._settings.default_max_batch_size
        return files, agree(self._config, graph, place, largest, self._findings)

    def _model(
        self,
        files: tuple[ModelFile, ...],
        agreement: Agreement,
        labels: Mapping[str, tuple[str, ...]],
        warmup: Mapping[str, ModelFile],
        golden: tuple[ModelFile, ...],
    ) -> ModelVersion:
        config, weights = self._config, _weights(files)
        apart = "" if weights is None else weights.path
        return ModelVersion(
            name=self._name,
            version=self._number,
            platform=config.kind.platform,
            backend=config.kind.backend,
            runtime=config.kind.runtime,
            path=files[0].path if files else os.path.join(self._home.path, str(self._directory)),
            file_bytes=sum(file.size for file in files),
            inputs=agreement.inputs,
            outputs=agreement.outputs,
            max_batch_size=agreement.max_batch_size,
            batching=agreement.batching,
            rows_assumed=agreement.rows_assumed,
            instance_count=config.instances.count,
            device=config.instances.device,
            labels=labels,
            label_files={
                output.name: output.label_file for output in config.outputs or () if output.label_file
            },
            formats={tensor.name: tensor.format for tensor in config.inputs or () if tensor.format},
            noted=config.shown,
            notes=self._notes,
            graph_level=config.graph_level,
            graph=self._size,
            cuda_graphs=config.cuda_graphs,
            input_reshapes=_reshapes(config.inputs),
            output_reshapes=_reshapes(config.outputs),
            model_file=config.model_file if files else "",
            policy=config.policy,
            warmups=tuple(
                plan_warmup(one, agreement.inputs, agreement.max_batch_size, warmup, self._findings)
                for one in config.warmups
            ),
            parameters=config.parameters,
            golden=golden[0].path if golden else "",
            weights=weights,
            digests={
                file.path: file.digest
                for file in (*files, *warmup.values(), *golden)
                if file.digest and file.path != apart
            },
        )


def _reshapes(tensors: Iterable[TensorConfig] | None) -> Mapping[str, tuple[int, ...]]:
    return {tensor.name: tensor.reshape for tensor in tensors or () if tensor.reshape is not None}


def _weights(files: Sequence[ModelFile]) -> WeightsFile | None:
    """The one file beside the graph; several cannot be read back as one."""
    if len(files) != 2:
        return None
    file, pieces = files[1], files[1].entry.pieces if files[1].entry else ()
    return WeightsFile(path=file.path, size=file.size, digest=file.digest, pieces=pieces)


def _summary(file: ModelFile, limits: GraphLimits) -> GraphSummary:
    with file.open() as descriptor:
        return read_graph(descriptor, limits)


def _fingerprint(files: Iterable[ModelFile]) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for file in files:
        digest.update(
            f"{file.path}\0{file.size}\0{file.inode}\0{file.mtime_ns}\0".encode(errors="surrogateescape")
        )
    return digest.hexdigest()
