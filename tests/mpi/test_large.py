"""One real vector of more than 2^31 elements and bytes, at 2 ranks (12 GiB of memory together)."""

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
        x = np.empty(COUNT, np.uint8)
        period = 251 if comm.rank == 0 else 241
        pattern = np.arange(period, dtype=np.uint8)
        for start in range(0, COUNT, period << 20):
            stop = min(start + (period << 20), COUNT)
            x[start:stop] = np.resize(pattern, stop - start)
        wrapped.Allreduce(MPI.IN_PLACE, x)
        assert wrapped.last_call.path == "point-to-point"
        assert wrapped.last_call.bytes_sent >= COUNT
        for start in range(0, COUNT, 1 << 26):
            index = np.arange(start, min(start + (1 << 26), COUNT))
            wanted = (index % 251).astype(np.uint8) + (index % 241).astype(np.uint8)
            assert np.array_equal(x[start : start + (1 << 26)], wanted)
    comm.Free()
