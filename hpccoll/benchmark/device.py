"""Vectors in GPU memory, and what they are compared with: a copy to the host, MPI, and a copy back.

The host has its own of each, in pinned memory, from which the device gets its data and in which
results are looked at.
"""

from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.benchmark.data import Array, Vectors
from hpccoll.benchmark.measure import Contestant
from hpccoll.benchmark.options import Case
from hpccoll.cuda.copies import copy_bytes
from hpccoll.cuda.cuda_array import CudaArray, empty
from hpccoll.cuda.driver import get_device, get_driver
from hpccoll.cuda.memory import pinned_bytes
from hpccoll.cuda.streams import LEGACY, wait_for


def device_of_rank(comm: MPI.Intracomm) -> int:
    """Return the number of the device of this rank: the ranks of a host take turns. Collective."""
    node = comm.Split_type(MPI.COMM_TYPE_SHARED)
    local = node.rank
    node.Free()
    return local % get_driver().device_count()


class DeviceVectors(Vectors):
    """What one rank holds for one case, on a device.

    Parameters
    ----------
    case, rank, size
        As of `Vectors`.
    device : int
        Number of the device.
    """

    def __init__(self, case: Case, rank: int, size: int, device: int) -> None:
        self._device = device
        self._ready = False

        def pinned(count: int, dtype: np.dtype[Any]) -> Array:
            nbytes = count * dtype.itemsize
            return pinned_bytes(get_device(device), nbytes, 0)[:nbytes].view(dtype)

        super().__init__(case, rank, size, pinned)
        dtype = self.out.dtype
        self._out = empty(self.out.size, dtype, device)
        if self.in_place:
            first = (self.x.ctypes.data - self.out.ctypes.data) // dtype.itemsize
            self._x = self._out[first : first + self.x.size]
        else:
            self._x = empty(self.x.size, dtype, device)
        self._ready = True
        self.restore()

    @property
    def send(self) -> CudaArray:
        """What a call is given as input."""
        return self._x

    @property
    def receive(self) -> CudaArray:
        """What a call is given as output."""
        return self._out

    def wait(self) -> None:
        """Wait until all is done that was submitted on the stream of the vectors."""
        wait_for(self._device, LEGACY, nap=0)  # to sleep takes longer than a small call

    def upload(self, *, only_input: bool = False) -> None:
        """Copy what the host has to the device."""
        self._copy(self._x, self.x, to_device=True)
        if not only_input:
            self._copy(self._out, self.out, to_device=True)
        self.wait()

    def download(self) -> None:
        """Copy what the device has as output to the host."""
        self._copy(self._out, self.out, to_device=False)
        self.wait()

    def _copy(self, array: CudaArray, host: Array, *, to_device: bool) -> None:
        ends = (array.array.ctypes.data, host.ctypes.data)
        out, source = ends if to_device else ends[::-1]
        if host.nbytes:
            copy_bytes(self._device, out, source, host.nbytes, LEGACY)

    def restore(self) -> None:
        """Make what a call must not touch as it was."""
        super().restore()
        if self._ready:
            self.upload()

    def rewrite(self) -> None:
        """Write the input anew."""
        super().rewrite()
        self.upload(only_input=True)

    def settle(self) -> None:
        """Make ready for calls back to back."""
        super().settle()
        self.upload()

    def spoil(self) -> None:
        """Make the result wrong, so that an old one is not taken for a new one."""
        super().spoil()
        self.upload()

    def spoil_some(self) -> None:
        """Do so with some elements."""
        super().spoil_some()
        self.upload()

    def count_wrong(self) -> int:
        """Return how many elements are not exactly what they must be."""
        self.download()
        return super().count_wrong()

    def complete(self, call: Contestant) -> Contestant:
        """Return a call and a wait for its result."""

        def run() -> None:
            call()
            self.wait()

        return run

    def by_hand(self, call: Contestant) -> Contestant:
        """Return a call on the host's vectors, with the copies that it takes.

        Parameters
        ----------
        call : callable
            Of the MPI library, on `x` and `out`.
        """

        def run() -> None:
            self._copy(self._x, self.x, to_device=False)
            self.wait()
            call()
            self._copy_result()
            self.wait()

        return run

    def _copy_result(self) -> None:
        first = (self.result.ctypes.data - self.out.ctypes.data) // self.out.dtype.itemsize
        self._copy(self._out[first : first + self.result.size], self.result, to_device=True)
