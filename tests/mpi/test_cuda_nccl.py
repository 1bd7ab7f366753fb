"""Calls that NCCL runs, or what stands in for it, on fake devices."""

import nccl_stand_in
import numpy as np
import pytest
from device_vectors import Guarded, all_reduce, fake_devices, nothing
from inputs import BFLOAT16, contribution, expected
from mpi4py import MPI
from nccl_stand_in import Functions

import hpccoll

WORLD = MPI.COMM_WORLD

WAYS = {
    "nccl4py": lambda patch, made: nccl_stand_in.install_nccl4py(patch, made, plain_handles=False),
    "nccl4py with plain handles": lambda patch, made: nccl_stand_in.install_nccl4py(
        patch, made, plain_handles=True
    ),
    "cupy": nccl_stand_in.install_cupy,
}


@pytest.fixture
def fake(monkeypatch):
    """Give each rank a device of its own, and another one that nobody has."""
    with fake_devices(monkeypatch, WORLD.size + 1) as fake:
        yield fake


@pytest.fixture(params=WAYS)
def functions(request, monkeypatch, fake, comm):
    """Let NCCL be found."""
    made = Functions(fake, comm)
    WAYS[request.param](monkeypatch, made)
    return made


def vector(fake, values, stream=None):
    return Guarded(fake, values, device=WORLD.rank, stream=stream)


@pytest.mark.parametrize("in_place", [False, True])
def test_allreduce(fake, comm, functions, in_place):
    wrapped = hpccoll.Comm(comm, algorithm="nccl")
    for dtype, op, count in (
        ("float32", "sum", 1001),
        ("float16", "mean", 77),
        ("int64", "max", 5),
        ("uint8", "min", 300),
        ("float64", "prod", 0),
        (BFLOAT16, "sum", 33),
    ):
        x = vector(fake, contribution(comm.rank, count, np.dtype(dtype), op, comm.size))
        out = x if in_place else vector(fake, nothing(count, dtype), x.stream)
        hpccoll.allreduce(x.array, op, out=out.array, comm=wrapped)
        out.check(expected(count, np.dtype(dtype), op, comm.size))
        call = wrapped.last_call
        assert (call.path, call.algorithm, call.kernel) == ("nccl", "nccl", "nccl")
        assert call.memory == f"cuda:{comm.rank}, nccl"
    assert functions.connected == 1
    assert functions.calls == ["all_reduce"] * 5


def test_the_family(fake, comm, functions):
    count, size = 24, comm.size
    values = contribution(comm.rank, count * size, np.float32, "sum", size)
    total = expected(count * size, np.float32, "sum", size)
    part = slice(count * comm.rank, count * (comm.rank + 1))
    x = vector(fake, values)
    out = vector(fake, nothing(count, np.float32), x.stream)
    hpccoll.reduce_scatter(x.array, out=out.array, comm=comm, algorithm="nccl")
    out.check(total[part])
    for root in range(size):
        out = vector(fake, nothing(count * size, np.float32), x.stream)
        mine = out.array if comm.rank == root else None
        hpccoll.reduce(x.array, root=root, out=mine, comm=comm, algorithm="nccl")
        out.check(total if comm.rank == root else nothing(count * size, np.float32))
        y = vector(fake, values)
        hpccoll.broadcast(y.array, root=root, comm=comm, algorithm="nccl")
        y.check(contribution(root, count * size, np.float32, "sum", size))
    # What is only moved may be of any type.
    wanted = np.arange(count * size).astype(np.complex128)
    for in_place in (False, True):
        own = nothing(wanted.size, wanted.dtype)
        own[part] = wanted[part]
        out = vector(fake, own if in_place else nothing(wanted.size, wanted.dtype))
        y = vector(fake, wanted[part], out.stream)
        mine = out.array[part] if in_place else y.array
        hpccoll.allgather(mine, out=out.array, comm=comm, algorithm="nccl")
        out.check(wanted)
    x.check(values)


def test_by_the_environment(fake, comm, functions, monkeypatch):
    """Calls in host memory, and barriers, go their usual ways."""
    monkeypatch.setenv("HPCCOLL_ALGORITHM", "nccl")
    wrapped = hpccoll.Comm(comm)
    x = vector(fake, contribution(comm.rank, 100, np.float32, "sum", comm.size))
    hpccoll.allreduce(x.array, out=x.array, comm=wrapped)
    x.check(expected(100, np.float32, "sum", comm.size))
    assert wrapped.last_call.path == "nccl"
    assert hpccoll.allreduce(1, comm=wrapped) == comm.size
    assert wrapped.last_call.path != "nccl"
    wrapped.Barrier()


def test_the_communicator_goes(fake, comm, functions):
    inner = comm.Dup()
    x = vector(fake, np.zeros(10, np.float32))
    hpccoll.allreduce(x.array, out=x.array, comm=inner, algorithm="nccl")
    inner.Free()
    assert functions.destroyed == 1


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_goes_on_to_another_device_and_back(fake, comm, functions):
    for is_elsewhere in (False, True, False):
        mine = comm.size if is_elsewhere and comm.rank == 0 else comm.rank
        functions.device = mine
        values = contribution(comm.rank, 100, np.float32, "sum", comm.size)
        x = Guarded(fake, values, device=mine)
        hpccoll.allreduce(x.array, out=x.array, comm=comm, algorithm="nccl", timeout=10)
        x.check(expected(100, np.float32, "sum", comm.size))
    assert functions.connected == 3
    assert functions.calls == ["all_reduce"] * 3


def test_arrays_of_the_host(comm):
    for call in (hpccoll.allreduce, hpccoll.reduce, hpccoll.allgather, hpccoll.broadcast):
        with pytest.raises(ValueError, match=r"'nccl' is for arrays in GPU memory"):
            call(np.zeros(5), comm=comm, algorithm="nccl")
    hpccoll.Comm(comm, algorithm="nccl").Barrier()


def refused(fake, comm, error, match, call):
    """Check that all ranks raise, and that the next call of another kind is right."""
    with pytest.raises(error, match=match):
        call()
    x = vector(fake, contribution(comm.rank, 100, np.float32, "sum", comm.size))
    hpccoll.allreduce(x.array, out=x.array, comm=comm)
    x.check(expected(100, np.float32, "sum", comm.size))


@pytest.mark.parametrize(
    ("dtype", "op"), [("complex64", "sum"), ("int16", "max"), ("int32", "bxor"), ("bool", "lor")]
)
def test_what_nccl_does_not_have(fake, comm, functions, dtype, op):
    x = vector(fake, np.zeros(10, dtype))
    refused(
        fake, comm, TypeError, rf"NCCL has no op '{op}' on {dtype}",
        lambda: hpccoll.allreduce(x.array, op, out=x.array, comm=comm, algorithm="nccl"),
    )  # fmt: skip


@pytest.mark.mpi(min_size=2)
def test_parts_of_different_lengths(fake, comm, functions):
    rows = tuple(3 + (rank == 0) for rank in range(comm.size))
    x = vector(fake, np.zeros(rows[comm.rank], np.float32))
    out = vector(fake, np.zeros(sum(rows), np.float32), x.stream)
    refused(
        fake, comm, ValueError, "NCCL wants parts of one length; got 3 to 4 elements",
        lambda: hpccoll.allgather(
            x.array, out=out.array, counts=rows, comm=comm, algorithm="nccl"
        ),
    )  # fmt: skip


@pytest.mark.mpi(min_size=2)
def test_ranks_that_share_a_gpu(fake, comm, functions):
    x = Guarded(fake, np.zeros(10, np.float32))
    message = f'"nccl" wants a GPU for each rank, and two of {comm.size} ranks have the same one'
    for _ in range(2):
        with pytest.raises(ValueError, match=message):
            hpccoll.allreduce(x.array, out=x.array, comm=comm, algorithm="nccl")
        all_reduce(fake, comm)


def test_without_nccl(fake, comm, monkeypatch):
    nccl_stand_in.nothing_installed(monkeypatch)
    x = vector(fake, np.zeros(10, np.float32))
    refused(
        fake, comm, ImportError, r"needs NCCL by way of nccl4py or CuPy",
        lambda: hpccoll.allreduce(x.array, out=x.array, comm=comm, algorithm="nccl"),
    )  # fmt: skip


@pytest.mark.mpi(min_size=2)
def test_without_nccl_on_one_rank(fake, comm, functions, monkeypatch):
    if comm.rank == comm.size - 1:
        nccl_stand_in.nothing_installed(monkeypatch)
    x = vector(fake, np.zeros(10, np.float32))
    error = ImportError if comm.rank == comm.size - 1 else RuntimeError
    refused(
        fake, comm, error, "nccl|could not do its part",
        lambda: hpccoll.allreduce(x.array, out=x.array, comm=comm, algorithm="nccl"),
    )  # fmt: skip


@pytest.mark.mpi(min_size=2)
def test_other_counts(fake, comm, functions):
    x = vector(fake, np.zeros(10 + (comm.rank == 0), np.float32))
    refused(
        fake, comm, hpccoll.MismatchError, "ranks make different calls",
        lambda: hpccoll.allreduce(x.array, out=x.array, comm=comm, algorithm="nccl"),
    )  # fmt: skip
