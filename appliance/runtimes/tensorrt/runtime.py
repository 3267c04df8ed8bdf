"""The ``tensorrt`` runtime: a version runs from the engine that this box has built of it, and until there is one from
the CUDA session that the ``onnx`` runtime makes.

Engines are packed forms: built beside serving, proven and compared before they serve, sealed, and dropped when what
they are tied to is another. None comes from outside: a model is an ONNX file. A version whose graph TensorRT does not
take stays with its CUDA session, and the log says which node is to blame.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Final, Protocol

from appliance import __version__
from appliance.devices.cuda import Cuda
from appliance.domain.errors import ArtefactError, DeviceHasNoRoom, LoadFailed
from appliance.domain.flag import is_true
from appliance.domain.model import ModelVersion
from appliance.domain.regular_file import read_file
from appliance.domain.session_options import ENGINE_REFIT, ENGINE_WEIGHTS_MAX
from appliance.runtimes.device_graphs import tell_without_graphs
from appliance.runtimes.device_limit import BESIDE_BYTES, full_text, is_full
from appliance.runtimes.onnx import GRAPH_BYTES_MAX, MODEL_FILE, OnnxRuntime, bring_libraries
from appliance.runtimes.runtime import (
    ENGINE_FILE,
    KEPT_BYTES_MAX,
    KEPT_FILE,
    LIKE_FILE,
    Donor,
    Runtime,
    RuntimeSettings,
    Session,
    lacking,
    left_beside,
)
from appliance.runtimes.tensorrt.contexts import Engine
from appliance.runtimes.tensorrt.likeness import likeness
from appliance.runtimes.tensorrt.profiles import Profile, profiles_of
from appliance.runtimes.tensorrt.session import EngineSession
from appliance.runtimes.tensorrt.standby import EngineWithStandby
from appliance.runtimes.tensorrt.tie import Driver, find_driver, tie_of
from appliance.runtimes.tensorrt.vendor import Built, import_tensorrt

ENGINE_BYTES_MAX: Final = 64 << 30
NONE_ELSEWHERE: Final = f"those that TensorRT can have elsewhere are no more than {ENGINE_WEIGHTS_MAX}"
NONE_STREAMED: Final = "TensorRT has none of runs to which weights come from elsewhere than the device"
CACHE_LEFT: Final = (
    "TensorRT does not take what was learned by an earlier build, so this one measures all anew"
)
TOO_LONG: Final = (
    f"what TensorRT learned has {{}} bytes, of which no more than {KEPT_BYTES_MAX} are kept: the next build measures "
    f"all anew"
)
FREE_PARTS: Final = 2
"""A builder works with one part of so many of what is free on the device: serving goes on beside it."""


class OpenedEngine(Engine, Protocol):
    """An engine before it has contexts."""

    def limit_weights(self, most: int) -> int: ...


class Library(Protocol):
    """TensorRT; see ``vendor``."""

    release: str

    def build(
        self,
        graph: bytes,
        path: str,
        profiles: tuple[Profile, ...],
        *,
        workspace_bytes: int,
        cache: bytes,
        streams: bool,
        refits: bool,
        progress: Callable[[int, int], None],
    ) -> Built: ...
    def refit(self, engine: bytes, graph: bytes, path: str) -> bytes: ...
    def open(self, engine: bytes) -> OpenedEngine: ...


class TensorrtRuntime:
    """Runs versions on a CUDA device. What it needs of the machine can be exchanged for tests."""

    name = "tensorrt"
    form_file = ENGINE_FILE
    sealed = True

    def __init__(
        self,
        library: Callable[[], Library] = import_tensorrt,
        driver: Callable[[], Driver] = find_driver,
        device: Callable[[int], Cuda] | None = None,
        plain: Runtime | None = None,
    ) -> None:
        """Import TensorRT, and ask the driver, in another process. Raises ImportError."""
        self._library = library()
        self._driver = driver()
        self._device = device or _opened
        self._plain = plain or OnnxRuntime()

    @property
    def lacking(self) -> str:
        """Its versions begin with the session of another runtime."""
        return lacking(self._plain)

    @property
    def identity(self) -> str:
        """Release, driver and devices."""
        return tie_of(self._makers, self._driver)

    @property
    def _makers(self) -> str:
        """Who has a hand in an engine: what one of them did wrong is not taken over by the release that mends it."""
        plain = getattr(self._plain, "identity", self._plain.name)
        return f"{self._library.release}, {plain}, appliance {__version__}"

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        """The engine, where it is the version's form that is to be loaded; else the CUDA session."""
        if version.on_cpu:
            raise LoadFailed(
                f"{version.key}: TensorRT runs on a GPU alone; say instance_group [ {{ kind: KIND_GPU }} ] in "
                f"config.pbtxt, or leave backend out to run it on the processor"
            )
        if not settings.packed:
            return self._plain.load(replace(version, runtime=self._plain.name), settings)
        device, data = self._ready(version, settings), self._engine_of(version)
        engine = self._library.open(data)
        most = _weights_max(version)
        elsewhere = engine.limit_weights(most) if most else 0
        if not elsewhere and 0 < most < version.file_bytes:
            print(f"{version.key} keeps all its weights on the device: {NONE_ELSEWHERE}", file=sys.stderr)
        if elsewhere and version.cuda_graphs:
            tell_without_graphs(version.key, NONE_STREAMED)
        room_bytes = settings.room_bytes + BESIDE_BYTES if settings.room_bytes else 0
        session = EngineSession(
            engine,
            len(data) - elsewhere,
            version,
            device,
            graphs=version.cuda_graphs and not elsewhere,
            room_bytes=room_bytes,
        )
        return (
            session if settings.original is None else self._with_standby(session, settings.original, settings)
        )

    def _with_standby(
        self, session: EngineSession, original: ModelVersion, settings: RuntimeSettings
    ) -> Session:
        """The engine with the CUDA session beside it, in what room it leaves. Raises LoadFailed."""
        beside = replace(left_beside(settings, session), packed=False, original=None)
        try:
            standby = self._plain.load(replace(original, runtime=self._plain.name), beside)
        except BaseException:
            session.close()
            raise
        return EngineWithStandby(session, standby)

    def pack(self, version: ModelVersion, settings: RuntimeSettings, graph: str, weights: str) -> None:
        """Build the engine into ``graph``, and keep what TensorRT learned beside it; or make it of another version's
        that differs in weights alone. It has no file of weights."""
        device, profiles = self._ready(version, settings), profiles_of(version)
        data, path = _graph_of(version)
        like = _likeness(version, data, profiles)
        engine, cache = self._refitted(version, settings.donors, like, data, path), b""
        if not engine:
            free_bytes, _ = device.memory()
            try:
                built = self._library.build(
                    data,
                    path,
                    profiles,
                    workspace_bytes=_workspace_bytes(free_bytes, settings.room_bytes),
                    cache=unwrapped(settings.kept, self._makers),
                    streams=_weights_max(version) > 0,
                    refits=bool(like),
                    progress=settings.progress,
                )
            except LoadFailed as problem:
                raise LoadFailed(f"{version.key}: {problem}") from problem
            engine, cache = built.engine, built.cache
            if built.anew:
                print(f"{version.key}: {CACHE_LEFT}", file=sys.stderr)
        Path(graph).write_bytes(engine)
        learned = wrapped(cache, self._makers)
        if len(learned) > KEPT_BYTES_MAX:
            print(f"{version.key}: {TOO_LONG.format(len(learned))}", file=sys.stderr)
        elif cache:
            Path(graph).with_name(KEPT_FILE).write_bytes(learned)
        if like:
            Path(graph).with_name(LIKE_FILE).write_text(like)

    def _refitted(
        self, version: ModelVersion, donors: tuple[Donor, ...], like: str, data: bytes, path: str
    ) -> bytes:
        """The engine of another version with the weights of this one; b"" where there is none that takes them."""
        for donor in donors:
            if not like or donor.like != like:
                continue
            name = os.path.basename(os.path.dirname(donor.path))
            try:
                engine = read_file(donor.path, ENGINE_BYTES_MAX, donor.digest, name, follow=False)
                refitted = self._library.refit(engine, data, path)
            except (ArtefactError, LoadFailed) as problem:
                print(f"{version.key}: {name} takes no other weights: {problem}", file=sys.stderr)
                continue
            print(f"{version.key}: its engine is {name} with other weights", file=sys.stderr)
            return refitted
        return b""

    def _ready(self, version: ModelVersion, settings: RuntimeSettings) -> Cuda:
        """The device. TensorRT takes the process with it where no driver answers: nothing of it is touched then. Raises
        LoadFailed, DeviceHasNoRoom where there is none for a context."""
        if not self._driver.devices:
            raise LoadFailed(f"{version.key}: TensorRT has no device: {self._driver.problem}")
        try:
            return self._device(settings.device.index)
        except OSError as problem:
            if is_full(str(problem)):
                raise DeviceHasNoRoom(f"{version.key}: {full_text(str(problem))}") from problem
            raise LoadFailed(f"{version.key}: TensorRT cannot open {settings.device}: {problem}") from problem

    def _engine_of(self, version: ModelVersion) -> bytes:
        """The engine's bytes, which are those that were sealed. Raises LoadFailed for what nobody has vouched for."""
        digest = version.digests.get(version.path)
        if digest is None:
            raise LoadFailed(f"{version.key}: an engine whose digest is not known is never read")
        return read_file(
            version.path, ENGINE_BYTES_MAX, digest, f"{version.key}: {os.path.basename(version.path)}"
        )


def _opened(index: int) -> Cuda:
    """The device. Where engines come first, no session has brought CUDA's libraries into the process, and TensorRT has
    those that it needs within itself. Raises CudaFailed."""
    bring_libraries()
    return Cuda(index)


def _workspace_bytes(free_bytes: int, room_bytes: int) -> int:
    """What a builder may work with where so much is free on the device, and so much of that is no version's (0: that is
    not known)."""
    half = free_bytes // FREE_PARTS
    return min(half, room_bytes) if room_bytes else half


def _weights_max(version: ModelVersion) -> int:
    """How many bytes of weights its engine keeps on the device; 0: all."""
    return int(version.parameters.get(ENGINE_WEIGHTS_MAX, "0"))


def _likeness(version: ModelVersion, data: bytes, profiles: tuple[Profile, ...]) -> str:
    """What engines have in common that can take each other's weights; "" where the model does not ask for that."""
    if not is_true(version.parameters.get(ENGINE_REFIT, "")):
        return ""
    return likeness(data, *(profile.text for profile in profiles), str(_weights_max(version) > 0))


def _graph_of(version: ModelVersion) -> tuple[bytes, str]:
    """The model's bytes, and where they lie."""
    path = os.path.join(version.path, MODEL_FILE) if os.path.isdir(version.path) else version.path
    called = f"{version.key}: {os.path.basename(path)}"
    return read_file(path, GRAPH_BYTES_MAX, version.digests.get(path, ""), called), path


def wrapped(cache: bytes, release: str) -> bytes:
    """A timing cache with the releases that made it in front."""
    return f"{release}\n".encode() + cache


def unwrapped(kept: bytes, release: str) -> bytes:
    """The timing cache that was kept; b"" where another release made it."""
    made_by, _, cache = kept.partition(b"\n")
    return cache if made_by.decode(errors="replace") == release else b""
