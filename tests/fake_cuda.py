"""A CUDA driver over the host's memory, which finds what is not ordered.

    with FakeCuda(devices=2) as fake:
        ...                            # hpccoll.cuda sees two devices

At the end all that was done wrong is raised as one AssertionError: conflicts that nothing orders,
memory used after it was freed, pageable memory in a copy, a call without a context, a context that
stays current. Streams run late, in an order drawn from a seed (fake_cuda_order.py). Kernels are run
by ``kernels``, which is the module host_kernels unless something else is given.
"""

import ctypes
import functools
import re
import threading
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from fake_cuda_functions import DEINITIALIZED, UNKNOWN, FakeFunctions, Refused
from fake_cuda_order import HostAccess, Piece

from hpccoll.cuda import driver as cuda_driver
from hpccoll.cuda import driver_api as api

CONTEXT_FREE = {
    *("cuInit", "cuDriverGetVersion", "cuGetErrorName", "cuGetErrorString", "cuDeviceGetCount"),
    *("cuDeviceGet", "cuDeviceGetName", "cuDeviceGetAttribute", "cuDeviceGetUuid"),
    *("cuDeviceCanAccessPeer", "cuDevicePrimaryCtxRetain", "cuCtxPushCurrent"),
    *("cuCtxPopCurrent", "cuPointerGetAttribute"),
}
"""Functions that need no current context."""


def method_name(function: str) -> str:
    """Return the name of the method: "mem_alloc" for "cuMemAlloc"."""
    return re.sub(r"(?<!^)([A-Z])", r"_\1", function[2:]).lower()


class FakeCuda(FakeFunctions):
    """A driver, and what tests see of it.

    Attributes
    ----------
    driver : Driver
        To call; installed in the body of a ``with`` statement.
    calls : Counter
        How often each function was called.
    violations : list of str
        What was done that must not be.
    """

    def __init__(self, devices: int = 1, kernels: Any = None, seed: int = 0) -> None:
        if kernels is None:
            import host_kernels as kernels
        super().__init__(devices, kernels, seed)
        self.calls: Counter[str] = Counter()
        self._failures: dict[str, list[int]] = {}
        self._closed = False
        self.lock = threading.RLock()
        self._former: cuda_driver.Driver | None = None
        self._callbacks = {
            name: api.PROTOTYPES[name](self._guarded(name)) for name in api.SIGNATURES
        }
        addresses = {
            name: ctypes.cast(callback, ctypes.c_void_p).value or 0
            for name, callback in self._callbacks.items()
        }
        self.driver = cuda_driver.Driver(addresses)
        self.driver.fake = self  # type: ignore[attr-defined]  # callbacks live as long as it

    def _guarded(self, name: str) -> Callable[..., int]:
        method = getattr(self, method_name(name))

        def function(*arguments: Any) -> int:
            # An exception cannot leave a function that C calls.
            try:
                with self.lock:
                    return self._call(name, method, arguments)
            except BaseException:
                self.violation(f"{name}: {traceback.format_exc()}")
                return UNKNOWN

        return function

    def _call(self, name: str, method: Callable[..., None], arguments: tuple[Any, ...]) -> int:
        if self._closed and not name.startswith("cuGetError"):
            return DEINITIALIZED
        self.calls[name] += 1
        if self._failures.get(name):
            code = self._failures[name].pop(0)
            if code:
                return code
        if name not in CONTEXT_FREE and not self.stack:
            self.violation(f"{name} was called, and no context was current")
            return api.INVALID_CONTEXT
        try:
            method(*arguments)
        except Refused as refusal:
            return refusal.code
        return 0

    def __enter__(self) -> "FakeCuda":
        self._former = cuda_driver.install(self.driver)
        return self

    def __exit__(self, kind: type[BaseException] | None, *exception: object) -> None:
        cuda_driver.install(self._former)
        try:
            if kind is None:
                self.check()
        finally:
            self.close()

    def close(self) -> None:
        """Give all memory back. Functions fail from now on."""
        with self.lock:
            self._closed = True
            self.memory.close()

    def check(self) -> None:
        """Raise AssertionError where something was done that must not be."""
        with self.lock:
            left = [stack for stack in self._stacks.values() if stack]
            found = [*self.violations, *(["a context stayed current"] if left else [])]
        assert not found, "\n".join(found)

    def fail(self, function: str, code: int, times: int = 1, after: int = 0) -> None:
        """Let a function fail: the next `times` calls, or those after so many that work."""
        assert function in api.SIGNATURES
        self._failures[function] = [*[0] * after, *[code] * times]

    # Streams of the user

    def new_stream(self, device: int = 0, *, blocking: bool = False) -> int:
        """Return a stream such as a user makes."""
        with self.lock:
            return self.add_stream(device, blocking=blocking)

    def hold(self, stream: int, device: int = 0) -> None:
        """Let a stream go on no more, until `release`."""
        with self.lock:
            self.stream_of(stream, device).held = True

    def release(self, stream: int, device: int = 0) -> None:
        """Undo `hold`."""
        with self.lock:
            self.stream_of(stream, device).held = False

    def enqueue(
        self,
        stream: int,
        text: str,
        action: Callable[[], None] | None = None,
        reads: Iterable[tuple[int, int]] = (),
        writes: Iterable[tuple[int, int]] = (),
        device: int = 0,
    ) -> None:
        """Submit what a user's library would; ranges are pairs of address and bytes."""
        with self.lock:
            pieces = [self.piece(text, *one, writes=False) for one in reads]
            pieces += [self.piece(text, *one, writes=True) for one in writes]
            known = [piece for piece in pieces if piece is not None]
            self.order.submit(self.stream_of(stream, device), text, action, known)

    def recycle(self, address: int, stream: int, device: int = 0) -> None:
        """Free memory in the order of a stream, as a library's pool does with its arrays.

        Whoever else has used it must be done before what comes next in that stream.
        """
        with self.lock:
            block = self.memory.find(address)
            if self._closed or block is None:
                return
            region = block.region
            piece = Piece(region, 0, region.nbytes, True)
            text = "the caller's allocator, with other plans for the memory,"
            free = functools.partial(self.memory.free, region)
            self.order.submit(self.stream_of(stream, device), text, free, [piece])
            region.freed = True

    def finish(self, stream: int, device: int = 0) -> None:
        """Wait for all that is in a stream, as cuStreamSynchronize does."""
        with self.lock:
            self.order.finish(self.stream_of(stream, device))

    # The host, and MPI, which uses memory behind the driver's back

    def host_begins(
        self, address: int, nbytes: int, *, writes: bool, text: str = "the host"
    ) -> list[HostAccess]:
        """Note that the host begins to use memory; returns what `host_ends` takes.

        Meanwhile no operation may touch it, but for two that read. Memory that the driver does not
        know needs no order.
        """
        with self.lock:
            block = self.memory.find(address)
            if nbytes == 0 or block is None:
                return []
            if block.region.freed and block.region.device is None:
                return []  # the host's again
            if block.region.freed:
                self.violation(f"{text} uses {block.region} after it was given back")
                return []
            start = address - block.base
            piece = Piece(block.region, start, start + nbytes, writes)
            return [self.order.host_begins(piece, text)]

    def host_ends(self, accesses: list[HostAccess]) -> None:
        """Note that the host is done with memory."""
        with self.lock:
            for block in self.memory.blocks():
                held = [one for one in block.region.host if one not in accesses]
                block.region.host = held

    def host_reads(self, address: int, nbytes: int, text: str = "the host") -> None:
        """Note that the host reads memory, now."""
        self.host_ends(self.host_begins(address, nbytes, writes=False, text=text))

    def host_writes(self, address: int, nbytes: int, text: str = "the host") -> None:
        """Note that the host writes to memory, now."""
        self.host_ends(self.host_begins(address, nbytes, writes=True, text=text))
