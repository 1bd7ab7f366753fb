"""Ranks that pass different counts: everyone is told, nobody hangs, and the next call is right."""

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("odd_one", ["first", "last"])
@pytest.mark.parametrize(
    "counts",
    [
        (100, 50),
        (50, 100),
        (100, 99),
        (100, 0),  # empty messages
        (100, 1),  # empty chunks
        (1, 3),
        (3, 2),
        (2, 3),
        (30000, 15000),  # too long for MPI to buffer
        (15000, 30000),
        (300000, 150000),  # another number of segments
        (1 << 18, 1 << 17),  # all segments full
    ],
)
def test_a_rank_with_another_count(algorithm: str, odd_one: str, counts: tuple[int, int]) -> None:
    comm = hpccoll.Comm(MPI.COMM_WORLD, algorithm=algorithm)
    odd_rank = 0 if odd_one == "first" else comm.size - 1
    count = counts[1] if comm.rank == odd_rank else counts[0]
    x = np.full(count, comm.rank, np.float32)
    with pytest.raises(ValueError, match=r"Allreduce: expected \d+ bytes from rank \d+, got") as e:
        comm.Allreduce(x, np.empty_like(x))
    assert f"(rank {comm.rank} of {comm.size}, sum of {count} elements of float32 here)" in str(
        e.value
    )
    np.testing.assert_array_equal(x, np.full(count, comm.rank))
    # Somebody saw both numbers; a rank that was only told so says that.
    texts = comm.allgather(str(e.value))
    assert any("has given up" not in text for text in texts)

    y = np.full(counts[0], comm.rank + 1, np.float32)
    comm.Allreduce(MPI.IN_PLACE, y)
    assert (y == comm.size * (comm.size + 1) // 2).all()


def test_the_text_names_both_sizes() -> None:
    comm = MPI.COMM_WORLD.Split(MPI.COMM_WORLD.rank // 2)
    if comm.size == 2:
        x = np.zeros(100 - 50 * comm.rank, np.float32)
        wanted = "expected 400 bytes from rank 1, got 200"
        if comm.rank == 1:
            wanted = "expected 200 bytes from rank 0, got 400"
        with pytest.raises(ValueError, match=f"allreduce: {wanted} "):
            hpccoll.allreduce(x, comm=comm, algorithm="recursive_doubling")
    comm.Free()


@pytest.mark.parametrize("algorithm", ALGORITHMS)
@pytest.mark.parametrize("what", ["type", "operation"])
def test_messages_of_the_same_size(algorithm: str, what: str) -> None:
    comm = MPI.COMM_WORLD
    for count in (100, 30000):
        odd = comm.rank == comm.size - 1
        x = np.ones(count, np.int32 if odd and what == "type" else np.float32)
        op = "max" if odd and what == "operation" else "sum"
        with pytest.raises(ValueError, match=r"of another type or for another operation|given up"):
            hpccoll.allreduce(x, op, comm=comm, algorithm=algorithm)
        y = np.full(count, comm.rank + 1.0)
        hpccoll.allreduce(y, out=y, comm=comm, algorithm=algorithm)
        assert (y == comm.size * (comm.size + 1) // 2).all()


def test_types_of_another_size() -> None:
    comm = MPI.COMM_WORLD
    x = np.zeros(100, np.float32 if comm.rank else np.float64)
    with pytest.raises(ValueError, match=r"(expected|different calls)"):
        hpccoll.allreduce(x, comm=comm)
