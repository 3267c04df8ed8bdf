"""What a device of CUDA does, the real one and the simulated one: subclass with a ``cuda`` fixture."""

from __future__ import annotations

import os
import threading
from typing import Any

import pytest

from appliance.devices.cuda import CudaFailed


class CudaConformance:
    """The suite."""

    def test_bytes_come_back_from_the_device(self, cuda: Any) -> None:
        sent, got, stream = cuda.pin(1 << 20), cuda.pin(1 << 20), cuda.stream()
        sent.view[:] = os.urandom(1 << 20)
        address = cuda.allocate(1 << 20)
        cuda.copy_in(address, sent.address, 1 << 20, stream)
        cuda.copy_out(got.address, address, 1 << 20, stream)
        cuda.finish(stream)
        assert got.view == sent.view
        cuda.free(address)
        cuda.end_stream(stream)

    def test_pinned_memory_is_there_in_another_thread(self, cuda: Any) -> None:
        stream, pinned = cuda.stream(), cuda.pin(64)
        address = cuda.allocate(64)

        def copy() -> None:
            cuda.enter()
            pinned.view[:] = b"x" * 64
            cuda.copy_in(address, pinned.address, 64, stream)
            cuda.finish(stream)

        thread = threading.Thread(target=copy)
        thread.start()
        thread.join()
        back = cuda.pin(64)
        cuda.copy_out(back.address, address, 64, stream)
        cuda.finish(stream)
        assert bytes(back.view) == b"x" * 64
        cuda.free(address)
        cuda.end_stream(stream)

    def test_memory_of_the_device_is_filled_in_the_order_of_the_stream(self, cuda: Any) -> None:
        sent, got, stream = cuda.pin(64), cuda.pin(64), cuda.stream()
        sent.view[:] = b"x" * 64
        address = cuda.allocate(64)
        cuda.copy_in(address, sent.address, 64, stream)
        cuda.fill(address + 16, 0xA5, 8, stream)
        cuda.copy_out(got.address, address, 64, stream)
        cuda.finish(stream)
        assert bytes(got.view) == b"x" * 16 + b"\xa5" * 8 + b"x" * 40
        cuda.free(address)
        cuda.end_stream(stream)

    def test_an_event_has_happened_when_what_was_begun_before_it_is_done(self, cuda: Any) -> None:
        sent, got, stream = cuda.pin(8 << 20), cuda.pin(8 << 20), cuda.stream()
        sent.view[:8] = b"12345678"
        address, event = cuda.allocate(8 << 20), cuda.event()
        for _ in range(2):
            cuda.copy_in(address, sent.address, 8 << 20, stream)
            cuda.copy_out(got.address, address, 8 << 20, stream)
            cuda.record(event, stream)
            while not cuda.happened(event):
                pass
            assert bytes(got.view[:8]) == bytes(sent.view[:8])
            sent.view[:8] = b"abcdefgh"
        cuda.copy_in(address, sent.address, 8 << 20, stream)
        cuda.record(event, stream)
        cuda.await_event(event)
        assert cuda.happened(event)
        cuda.end_event(event)
        cuda.free(address)
        cuda.end_stream(stream)

    def test_what_is_free_is_part_of_all(self, cuda: Any) -> None:
        free, total = cuda.memory()
        assert 0 < free <= total
        address = cuda.allocate(256 << 20)
        assert cuda.memory()[0] < free
        cuda.free(address)

    def test_more_than_there_is_is_refused_and_leaves_the_device_alive(self, cuda: Any) -> None:
        with pytest.raises(CudaFailed, match="out of memory"):
            cuda.allocate(cuda.memory()[1] * 2)
        assert cuda.alive()
        cuda.free(cuda.allocate(64))

    def test_nothing_is_pinned_and_allocated_as_well(self, cuda: Any) -> None:
        assert len(cuda.pin(0).view) == 0
        cuda.free(cuda.allocate(0))

    def test_what_is_captured_is_done_when_it_is_launched_and_not_before(self, cuda: Any) -> None:
        sent, got, stream = cuda.pin(64), cuda.pin(64), cuda.stream()
        address = cuda.allocate(64)

        def begin() -> None:
            cuda.copy_in(address, sent.address, 64, stream)
            cuda.copy_out(got.address, address, 64, stream)

        sent.view[:], got.view[:] = b"a" * 64, b"-" * 64
        graph = cuda.capture(stream, begin)
        cuda.finish(stream)
        assert bytes(got.view) == b"-" * 64
        for letter in (b"b", b"c"):
            sent.view[:] = letter * 64
            cuda.launch(graph, stream)
            cuda.finish(stream)
            assert bytes(got.view) == letter * 64
        cuda.end_graph(graph)
        cuda.free(address)
        cuda.end_stream(stream)

    def test_a_capture_that_fails_leaves_the_stream_as_it_was(self, cuda: Any) -> None:
        sent, stream = cuda.pin(64), cuda.stream()
        address = cuda.allocate(64)
        for refuse in (self._give_up, lambda: cuda.finish(stream)):
            with pytest.raises((ZeroDivisionError, CudaFailed)):
                cuda.capture(stream, refuse)
            assert cuda.alive()
            cuda.copy_in(address, sent.address, 64, stream)
            cuda.finish(stream)
        graph = cuda.capture(stream, lambda: cuda.copy_in(address, sent.address, 64, stream))
        cuda.launch(graph, stream)
        cuda.finish(stream)
        cuda.end_graph(graph)
        cuda.free(address)
        cuda.end_stream(stream)

    def _give_up(self) -> None:
        raise ZeroDivisionError
