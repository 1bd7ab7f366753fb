"""Stands in for NCCL, in the forms of nccl4py and of CuPy, on fake devices and over MPI."""

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from fake_cuda import FakeCuda
from inputs import BFLOAT16, combine
from mpi4py import MPI

HANDLE = 4711
"""Of a communicator of nccl4py."""

UNIQUE_ID = bytes(range(100, 228))

DTYPES = [
    *map(np.dtype, ("int8", "uint8", "int32", "uint32", "int64", "uint64")),
    *map(np.dtype, ("float16", "float32", "float64")),
    BFLOAT16,
]
"""By their numbers in nccl.h."""

OPS = ("sum", "prod", "max", "min", "mean")


class Functions:
    """What NCCL does, one call after the other, in the order of a stream."""

    def __init__(self, fake: FakeCuda, comm: MPI.Intracomm) -> None:
        self.fake, self.comm, self.device = fake, comm, comm.rank
        self.calls: list[str] = []
        self.connected = self.destroyed = 0

    def run(self, name: str, stream: int, reads: Any, writes: Any, what: Any) -> None:
        """Do it when the stream has come to it; tell the fake which memory it uses."""
        self.fake.enqueue(stream, f"NCCL's {name}", None, [reads], writes, self.device)
        self.fake.finish(stream, self.device)
        self.calls.append(name)
        what()

    def parts(self, source: int, count: int, dtype: int) -> list[Any]:
        mine = view(source, count, dtype).copy()
        return [each.view(DTYPES[dtype]) for each in self.comm.allgather(mine.view(np.uint8))]

    def all_reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        def what() -> None:
            result = combine(self.parts(source, count, dtype), OPS[op])
            view(target, count, dtype)[:] = result

        nbytes = count * DTYPES[dtype].itemsize
        self.run("all_reduce", stream, (source, nbytes), [(target, nbytes)], what)

    def reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, root: int, stream: int
    ) -> None:
        is_root = self.comm.rank == root

        def what() -> None:
            result = combine(self.parts(source, count, dtype), OPS[op])
            if is_root:
                view(target, count, dtype)[:] = result

        nbytes = count * DTYPES[dtype].itemsize
        writes = [(target, nbytes)] if is_root else []
        self.run("reduce", stream, (source, nbytes), writes, what)

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        def what() -> None:
            result = combine(self.parts(source, count * self.comm.size, dtype), OPS[op])
            start = self.comm.rank * count
            view(target, count, dtype)[:] = result[start : start + count]

        nbytes = count * DTYPES[dtype].itemsize
        reads = (source, nbytes * self.comm.size)
        self.run("reduce_scatter", stream, reads, [(target, nbytes)], what)

    def all_gather(self, source: int, target: int, count: int, dtype: int, stream: int) -> None:
        def what() -> None:
            result = np.concatenate(self.parts(source, count, dtype))
            view(target, count * self.comm.size, dtype)[:] = result

        nbytes = count * DTYPES[dtype].itemsize
        writes = [(target, nbytes * self.comm.size)]
        self.run("all_gather", stream, (source, nbytes), writes, what)

    def broadcast(
        self, source: int, target: int, count: int, dtype: int, root: int, stream: int
    ) -> None:
        def what() -> None:
            view(target, count, dtype)[:] = self.parts(source, count, dtype)[root]

        nbytes = count * DTYPES[dtype].itemsize
        self.run("broadcast", stream, (source, nbytes), [(target, nbytes)], what)

    def connect(self, size: int, rank: int, unique_id: bytes) -> "Functions":
        assert (size, rank, unique_id) == (self.comm.size, self.comm.rank, UNIQUE_ID)
        self.connected += 1
        return self

    def destroy(self) -> None:
        self.destroyed += 1


def view(address: int, count: int, dtype: int) -> Any:
    """Return the memory of a fake device as an array of the host."""
    kind = DTYPES[dtype]
    if not count:
        return np.empty(0, kind)
    memory = (ctypes.c_uint8 * (count * kind.itemsize)).from_address(address)
    return np.frombuffer(memory, np.uint8).view(kind)


def _module(monkeypatch: pytest.MonkeyPatch, name: str, **attributes: Any) -> ModuleType:
    module = ModuleType(name)
    module.__dict__.update(attributes)
    monkeypatch.setitem(sys.modules, name, module)
    return module


def nothing_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let neither be found."""
    for name in ("nccl", "nccl.core", "nccl.bindings", "nccl.bindings.nccl"):
        monkeypatch.setitem(sys.modules, name, None)
    for name in ("cupy", "cupy.cuda", "cupy.cuda.nccl"):
        monkeypatch.setitem(sys.modules, name, None)


def install_nccl4py(
    monkeypatch: pytest.MonkeyPatch, functions: Functions, *, plain_handles: bool
) -> None:
    """Let nccl4py be found, with handles of a type, or plain ones as once."""
    nothing_installed(monkeypatch)

    class UniqueId:
        def __init__(self, content: bytes) -> None:
            self.content = content

        @staticmethod
        def from_bytes(content: bytes) -> "UniqueId":
            return UniqueId(content)

        def __bytes__(self) -> bytes:
            return self.content

    class Communicator:
        ptr = HANDLE

        @classmethod
        def init(cls, nranks: int, rank: int, unique_id: UniqueId) -> "Communicator":
            functions.connect(nranks, rank, bytes(unique_id))
            return cls()

        def destroy(self) -> None:
            functions.destroy()

    class Comm:
        def __init__(self, handle: int) -> None:
            assert handle == HANDLE

    def with_handle(name: str) -> Any:
        function = getattr(functions, name)

        def call(*arguments: Any) -> None:
            *first, handle, stream = arguments
            assert handle == HANDLE if plain_handles else isinstance(handle, Comm)
            function(*first, stream)

        return call

    names = ("all_reduce", "reduce", "reduce_scatter", "all_gather", "broadcast")
    bindings = {name: with_handle(name) for name in names}
    if not plain_handles:
        bindings["Comm"] = Comm
    _module(monkeypatch, "nccl")
    _module(
        monkeypatch,
        "nccl.core",
        get_unique_id=lambda: UniqueId(UNIQUE_ID),
        UniqueId=UniqueId,
        Communicator=Communicator,
    )
    _module(monkeypatch, "nccl.bindings")
    _module(monkeypatch, "nccl.bindings.nccl", **bindings)


def install_cupy(monkeypatch: pytest.MonkeyPatch, functions: Functions) -> None:
    """Let CuPy be found, and not nccl4py."""
    nothing_installed(monkeypatch)

    def communicator(size: int, unique_id: tuple[int, ...], rank: int) -> SimpleNamespace:
        assert all(-128 <= number < 128 for number in unique_id)
        functions.connect(size, rank, bytes(number % 256 for number in unique_id))
        return SimpleNamespace(
            allReduce=functions.all_reduce,
            reduce=functions.reduce,
            reduceScatter=functions.reduce_scatter,
            allGather=functions.all_gather,
            broadcast=functions.broadcast,
            destroy=functions.destroy,
        )

    _module(monkeypatch, "cupy", ndarray=SimpleNamespace)
    _module(monkeypatch, "cupy.cuda")
    _module(
        monkeypatch,
        "cupy.cuda.nccl",
        available=True,
        get_unique_id=lambda: tuple(np.frombuffer(UNIQUE_ID, np.int8).tolist()),
        NcclCommunicator=communicator,
    )
