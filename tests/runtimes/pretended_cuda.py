"""The real ``onnx`` runtime in a process that pretends to have a GPU: the device is simulated, and ONNX Runtime runs on
the processor, in an arena of its own that is held to the limit which CUDA's would be held to.

ONNX Runtime has such an arena for a whole process, once. So it is that of the first session whose limit is small, and
that session is the only one which is in it.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as native

from appliance.domain.model import ModelVersion
from appliance.runtimes import lost_session, onnx
from appliance.runtimes.onnx import PROVIDERS, OnnxRuntime
from appliance.runtimes.onnx_cuda import GRAPH_ID, NO_GRAPH, CudaSession
from appliance.runtimes.runtime import RuntimeSettings, Session
from tests.devices.simulated_cuda import SimulatedCuda

SMALL_BYTES = 1 << 20
"""A limit from here on is none that a test wants to reach."""
IN_ARENA = "session.use_env_allocators"
LOSES = "loses"
SHORT_PAUSE_NS = 300_000_000
"""Between tries to make a session anew."""


class PretendedCuda(OnnxRuntime):
    """Found by the entry point of the distribution in ``tests/plugins``."""

    name = "pretended_cuda"

    def __init__(self) -> None:
        super().__init__()
        self._real = onnxruntime.InferenceSession
        self._cuda = SimulatedCuda()

    def load(self, version: ModelVersion, settings: RuntimeSettings) -> Session:
        """A session of the real runtime, which believes that it is on CUDA."""
        onnxruntime.InferenceSession = self._session
        onnxruntime.get_available_providers = lambda: list(PROVIDERS.values())
        onnx._cuda = lambda index: self._cuda  # type: ignore[assignment]
        onnx.CudaSession = partial(CudaSession, kind=native.OrtDevice.cpu())  # type: ignore[assignment, attr-defined]
        return super().load(version, settings)

    def _session(self, model: Any, options: Any, providers: list[Any], **_: Any) -> Any:
        (provider, said), processor = providers
        limit = int(said.get("gpu_mem_limit", SMALL_BYTES))
        if limit < SMALL_BYTES:
            kind, use = onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, onnxruntime.OrtMemType.DEFAULT
            arena = onnxruntime.OrtArenaCfg({"max_mem": limit, "arena_extend_strategy": 1})
            onnxruntime.create_and_register_allocator(onnxruntime.OrtMemoryInfo("Cpu", kind, 0, use), arena)
            options.add_session_config_entry(IN_ARENA, "1")
        session = self._real(model, options, [processor])._sess
        return SimpleNamespace(get_providers=lambda: [provider, processor], _sess=_OnCuda(session, provider))


class LosingCuda(PretendedCuda):
    """The same in the place of ``onnx``. A model that is called LOSES has no capture that comes to something, and no
    session a second time in a process."""

    name = "onnx"

    def __init__(self) -> None:
        super().__init__()
        lost_session.PAUSE_NS = lost_session.PAUSE_NS_MAX = SHORT_PAUSE_NS  # type: ignore[misc]
        self._made = 0

    def _session(self, model: Any, options: Any, providers: list[Any], **rest: Any) -> Any:
        made = super()._session(model, options, providers, **rest)
        if f"/{LOSES}/" in str(model):
            if self._made:
                raise RuntimeError("cuDNN is not there any more")
            self._made += 1
            made._sess.loses = True
        return made


class _OnCuda:
    """A session that says of all its nodes that they are on CUDA, and of its inputs and outputs that they are there."""

    def __init__(self, session: Any, provider: str) -> None:
        self._session = session
        self._provider = provider
        self.loses = False

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        """Run, unless that is to be captured and cannot be."""
        if self.loses and options.get_run_config_entry(GRAPH_ID) != str(NO_GRAPH):
            raise RuntimeError("operation not permitted when stream is capturing")
        self._session.run_with_iobinding(binding, options)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._session, name)

    @property
    def input_meminfos(self) -> list[Any]:
        """All of the device."""
        return [SimpleNamespace(name="Cuda") for _ in self._session.inputs_meta]

    @property
    def output_meminfos(self) -> list[Any]:
        """As above."""
        return [SimpleNamespace(name="Cuda") for _ in self._session.outputs_meta]

    def get_provider_graph_assignment_info(self) -> list[Any]:
        """As of the session, with another provider."""
        told = self._session.get_provider_graph_assignment_info()
        return [SimpleNamespace(ep_name=self._provider, get_nodes=part.get_nodes) for part in told]
