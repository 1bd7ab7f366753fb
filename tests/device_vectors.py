"""Vectors in the memory of fake devices, for tests under mpiexec."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
from fake_arrays import FakeArray
from fake_cuda import FakeCuda
from host_kernels import HostCompiler
from inputs import contribution, expected
from mpi4py import MPI

import hpccoll
from hpccoll.channel import channel_of
from hpccoll.cuda import compilation
from hpccoll.cuda.peers import SMALL_BYTES
from hpccoll.cuda.site import Site

GUARD = 37
"""Elements before and behind a vector, in the same allocation."""

SMALL, LARGE = 1001, SMALL_BYTES // 4 + 1001
"""Elements of float32: through blocks, and not."""


@contextmanager
def fake_devices(monkeypatch: pytest.MonkeyPatch, devices: int = 2) -> Iterator[FakeCuda]:
    """Give this rank a driver with some devices, which messages cannot reach by themselves."""
    monkeypatch.setattr(compilation, "NvrtcCompiler", HostCompiler)
    monkeypatch.setenv("HPCCOLL_CUDA", "staged")
    monkeypatch.delenv("HPCCOLL_CUDA_IPC", raising=False)
    with FakeCuda(devices=devices, seed=MPI.COMM_WORLD.rank) as fake:
        yield fake


class Guarded:
    """A vector on a device, in the middle of an allocation."""

    def __init__(
        self, fake: FakeCuda, values: Any, *, stream: int | None = None, device: int = 0
    ) -> None:
        values = np.asarray(values)
        self.stream = fake.new_stream(device) if stream is None else stream
        self.dtype = values.dtype
        whole = FakeArray(values.size + 2 * GUARD, values.dtype, device, self.stream)
        self.before = np.zeros(whole.shape, values.dtype)
        self.before.view(np.uint8)[:] = np.arange(self.before.nbytes) % 251
        self.before[GUARD : GUARD + values.size] = values.reshape(-1)
        self.whole = whole.fill(self.before)
        self.array = whole[GUARD : GUARD + values.size]

    def check(self, wanted: Any) -> None:
        """Compare the vector with what it must be, and what is beside it with what it was."""
        whole = self.before.copy()
        whole[GUARD : GUARD + np.size(wanted)] = wanted
        assert self.whole.numpy().tobytes() == whole.tobytes()


def nothing(count: int, dtype: Any) -> Any:
    return np.zeros(count, dtype)


def site_of(comm: MPI.Intracomm) -> Site:
    (site,) = channel_of(comm).sites.values()
    return site


def last(comm: hpccoll.Comm) -> tuple[str, str]:
    return comm.last_call.path, comm.last_call.algorithm


def way(nbytes: int) -> tuple[str, str]:
    return "mapped", "one_shot" if nbytes <= SMALL_BYTES else "direct"


def all_reduce(fake: FakeCuda, comm: hpccoll.Comm, count: int = SMALL, op: str = "sum") -> None:
    """Make a call that is right."""
    x = Guarded(fake, contribution(comm.rank, count, np.float32, op, comm.size))
    hpccoll.allreduce(x.array, op, out=x.array, comm=comm)
    x.check(expected(count, np.float32, op, comm.size))
