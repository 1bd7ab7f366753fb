"""One real vector of more than 2^31 elements and bytes, at 2 ranks (5 GiB of memory together)."""

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll

COUNT = (1 << 31) + 7


@pytest.mark.slow
@pytest.mark.limit(600)
@pytest.mark.mpi(min_size=2)
def test_more_than_2_to_the_31_elements() -> None:
    comm = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank < 2)
    if MPI.COMM_WORLD.rank < 2:
        wrapped = hpccoll.Comm(comm)
        # Two patterns with periods that are prime to each other; the sum repeats after both.
        periods = (251, 241)
        block = 1024 * periods[0] * periods[1]
        index = np.arange(periods[0] * periods[1])
        patterns = [(index % period).astype(np.uint8) for period in periods]
        x = np.empty(COUNT, np.uint8)
        mine = np.tile(patterns[comm.rank], 1024)
        wanted = np.tile(patterns[0] + patterns[1], 1024)
        for start in range(0, COUNT, block):
            part = x[start : start + block]
            part[:] = mine[: part.size]
        wrapped.Allreduce(MPI.IN_PLACE, x)
        assert wrapped.last_call.path != "native"
        assert wrapped.last_call.bytes_sent >= COUNT - 1
        for start in range(0, COUNT, block):
            part = x[start : start + block]
            assert np.array_equal(part, wanted[: part.size])
    comm.Free()
