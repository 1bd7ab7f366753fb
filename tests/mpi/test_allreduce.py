"""All-reduce across ranks: every algorithm, type and operation, exact to the bit."""

import itertools

import numpy as np
import pytest
from inputs import DTYPES, OPS, contribution, digest, expected, guarded, supports
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.algorithms.flat import FLAT

pytestmark = pytest.mark.mpi

NAMES = [*ALGORITHMS, "auto"]


@pytest.fixture(name="comm")
def world() -> MPI.Intracomm:
    return MPI.COMM_WORLD


def counts_for(size: int) -> list[int]:
    return sorted({0, 1, size - 1, size, size + 1, 2 * size + 1, 5 * size + 3, 257})


def check(
    comm: MPI.Intracomm, count: int, dtype: np.dtype, op: str, *, in_place: bool, **settings: object
) -> None:
    """Run one call on guarded arrays and compare every byte, on every rank."""
    mine = contribution(comm.rank, count, dtype, op, comm.size)
    wanted = expected(count, dtype, op, comm.size)
    out = guarded(count, dtype)
    case = (op, str(dtype), count, settings, "in place" if in_place else "out of place")
    if in_place:
        out.array[:] = mine
        result = hpccoll.allreduce(out.array, op, out=out.array, comm=comm, **settings)
    else:
        x = guarded(count, dtype)
        x.array[:] = mine
        result = hpccoll.allreduce(x.array, op, out=out.array, comm=comm, **settings)
        assert x.array.tobytes() == mine.tobytes(), ("the input was changed", case)
        x.check()
    out.check()
    assert result is out.array
    assert result.tobytes() == wanted.tobytes(), case


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("algorithm", NAMES)
def test_types_and_operations(comm: MPI.Intracomm, algorithm: str, dtype: np.dtype) -> None:
    ops = [op for op in OPS if supports(dtype, op)]
    size = comm.size
    for op in ops:
        for count, in_place in ((size + 1, True), (5 * size + 3, False)):
            check(comm, count, dtype, op, in_place=in_place, algorithm=algorithm)
    for count, in_place in itertools.product(counts_for(size), (False, True)):
        check(comm, count, dtype, ops[0], in_place=in_place, algorithm=algorithm)


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex128", "int16"])
@pytest.mark.parametrize("algorithm", NAMES)
def test_segments(comm: MPI.Intracomm, algorithm: str, dtype: str) -> None:
    # More segments than are in flight at once, the last one short; beyond the staged sizes, too.
    for count, segment_bytes in ((1000, 64), (20011, 4096), (70001, 65536), (70001, None)):
        for in_place in (False, True):
            check(
                comm,
                count,
                np.dtype(dtype),
                "sum",
                in_place=in_place,
                algorithm=algorithm,
                segment_bytes=segment_bytes,
            )


@pytest.mark.parametrize("algorithm", NAMES)
def test_two_calls_in_a_row(comm: MPI.Intracomm, algorithm: str) -> None:
    # The second finds the plan, the requests and the scratch memory of the first, and other data.
    for count in (5, 3000):
        x, y = np.empty(count), np.empty(count)
        for seed in range(3):
            x[:] = contribution(comm.rank, count, x.dtype, "sum", comm.size, seed)
            hpccoll.allreduce(x, out=y, comm=comm, algorithm=algorithm)
            np.testing.assert_array_equal(y, expected(count, x.dtype, "sum", comm.size, seed))


@pytest.mark.parametrize("algorithm", NAMES)
@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
def test_rounded_results_are_the_same_bytes_on_all_ranks(
    comm: MPI.Intracomm, algorithm: str, dtype: str
) -> None:
    rng = np.random.default_rng(comm.rank)
    for count in (1, 100, 12345):
        x = rng.standard_normal(count).astype(dtype)
        if np.dtype(dtype).kind == "c":
            x += 1j * rng.standard_normal(count).astype("f4")
        for op in ("sum", "mean", "prod"):
            y = hpccoll.allreduce(x, op, comm=comm, algorithm=algorithm)
            digests = comm.allgather(digest(y))
            assert len(set(digests)) == 1
        every = np.array(comm.allgather(x)).astype("c16" if np.dtype(dtype).kind == "c" else "f8")
        error = np.abs(hpccoll.allreduce(x, comm=comm, algorithm=algorithm) - every.sum(axis=0))
        # p - 1 additions, each with a relative error of eps of a partial sum, and one narrowing.
        eps = max(np.finfo(dtype).eps, np.finfo("f4").eps)
        assert (error <= comm.size * eps * np.abs(every).sum(axis=0)).all()


@pytest.mark.parametrize("algorithm", NAMES)
def test_nan_and_signed_zeros(comm: MPI.Intracomm, algorithm: str) -> None:
    size = comm.size
    # Index i belongs to rank i % size, which alone holds the special value.
    index = np.arange(3 * size + 1)
    mine = index % size == comm.rank
    for dtype in ("float16", "float32", "float64"):
        x = np.where(mine, np.nan, 1.0).astype(dtype)
        for op in ("min", "max", "sum"):
            assert np.isnan(hpccoll.allreduce(x, op, comm=comm, algorithm=algorithm)).all()
        ignoring = hpccoll.allreduce(x, "fmax", comm=comm, algorithm=algorithm)
        assert (np.isnan(ignoring) if size == 1 else ignoring == 1).all()
        zeros = hpccoll.allreduce(
            np.where(mine, -0.0, 0.0).astype(dtype), "min", comm=comm, algorithm=algorithm
        )
        assert len(set(comm.allgather(digest(zeros)))) == 1
        inf = np.where(mine, -np.inf, 3).astype(dtype)
        assert np.isneginf(hpccoll.allreduce(inf, "sum", comm=comm, algorithm=algorithm)).all()


@pytest.mark.parametrize("algorithm", NAMES)
def test_half_types_are_rounded_once(comm: MPI.Intracomm, algorithm: str) -> None:
    x = np.full(10, 60000, np.float16)
    mean = hpccoll.allreduce(x, "mean", comm=comm, algorithm=algorithm)
    np.testing.assert_array_equal(mean, x)
    # 2048 + 1 + ... + 1: each addition in float16 would lose the 1.
    x = np.full(10, 2048 if comm.rank == 0 else 1, np.float16)
    wanted = np.float16(2048 + comm.size - 1)
    assert (hpccoll.allreduce(x, comm=comm, algorithm=algorithm) == wanted).all()


@pytest.mark.parametrize("algorithm", NAMES)
def test_other_types_are_right_by_a_slower_path(comm: MPI.Intracomm, algorithm: str) -> None:
    size = comm.size
    x = (np.arange(50) + comm.rank).astype(np.longdouble)
    total = np.arange(50) * size + size * (size - 1) // 2
    np.testing.assert_array_equal(
        hpccoll.allreduce(x, comm=comm, algorithm=algorithm), total.astype(np.longdouble)
    )
    mean = hpccoll.allreduce(x.astype(np.clongdouble), "mean", comm=comm, algorithm=algorithm)
    np.testing.assert_array_equal(mean, total.astype(np.clongdouble) / size)
    dates = np.arange(50).astype("M8[s]") + comm.rank
    latest = hpccoll.allreduce(dates, "max", comm=comm, algorithm=algorithm)
    np.testing.assert_array_equal(latest, np.arange(50).astype("M8[s]") + size - 1)


@pytest.mark.parametrize("algorithm", NAMES)
def test_sub_communicators(comm: MPI.Intracomm, algorithm: str) -> None:
    # Odd and even ranks, in reverse order, at the same time.
    part = comm.Split(comm.rank % 2, -comm.rank)
    for dtype, op in (("float64", "sum"), ("int32", "max")):
        for count in counts_for(part.size):
            check(part, count, np.dtype(dtype), op, in_place=False, algorithm=algorithm)
    part.Free()


@pytest.mark.parametrize("algorithm", FLAT)
def test_bytes_that_travel_are_those_simulated(comm: MPI.Intracomm, algorithm: str) -> None:
    wrapped = hpccoll.Comm(comm, algorithm=algorithm, segment_bytes=1000)
    for dtype, partial in (("float32", 4), ("float16", 4), ("complex128", 16)):
        for count in counts_for(comm.size):
            x = contribution(comm.rank, count, np.dtype(dtype), "sum", comm.size)
            wrapped.Allreduce(MPI.IN_PLACE, x)
            did = wrapped.last_call
            itemsize = np.dtype(dtype).itemsize
            simulation = hpccoll.simulate(
                algorithm, size=comm.size, count=count, itemsize=itemsize, partial_itemsize=partial
            )
            predicted = simulation.ranks[comm.rank]
            assert did.algorithm == algorithm
            assert did.bytes_sent == predicted.bytes_sent
            assert did.bytes_received == predicted.bytes_received
            assert did.bytes_reduced == predicted.bytes_reduced
            assert did.steps == predicted.steps


@pytest.mark.mpi(min_size=2)
def test_family_b_gives_one_set_of_bits(comm: MPI.Intracomm) -> None:
    # recursive_doubling and rabenseifner evaluate one tree: to switch by size changes nothing.
    x = np.random.default_rng(comm.rank).standard_normal(1001)
    one = hpccoll.allreduce(x, comm=comm, algorithm="recursive_doubling")
    other = hpccoll.allreduce(x, comm=comm, algorithm="rabenseifner")
    assert one.tobytes() == other.tobytes()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_messages_are_split_at_the_limit(
    comm: MPI.Intracomm, algorithm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from hpccoll import transport

    monkeypatch.setattr(transport, "MESSAGE_LIMIT", 1024)
    wrapped = hpccoll.Comm(comm, algorithm=algorithm, segment_bytes=1 << 40)
    count = 2003
    x = contribution(comm.rank, count, np.dtype("f8"), "sum", comm.size)
    wrapped.Allreduce(MPI.IN_PLACE, x)
    np.testing.assert_array_equal(x, expected(count, np.dtype("f8"), "sum", comm.size))
    did = wrapped.last_call
    assert did.segment_bytes <= 1024
    assert did.messages_sent * 1024 >= did.bytes_sent
