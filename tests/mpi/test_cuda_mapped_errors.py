"""What goes wrong between ranks that reach each other's device memory, on fake devices."""

import threading

import numpy as np
import pytest
from device_vectors import LARGE, SMALL, Guarded, all_reduce, fake_devices, nothing, site_of
from inputs import contribution, expected
from mpi4py import MPI

import hpccoll
from hpccoll._device import COMPUTE
from hpccoll.cuda.mapped import Mapped
from hpccoll.cuda.mapped_call import MappedCall, abandoned
from hpccoll.errors import CudaError
from hpccoll.topology import VARIABLE

pytestmark = pytest.mark.mpi(min_size=2)

LIMIT = 0.2 * max(3, MPI.COMM_WORLD.size)
"""Seconds: longer than ranks that share a core may come apart."""

NOT_SUPPORTED = 801

SIZES = pytest.mark.parametrize("count", [SMALL, LARGE])


@pytest.fixture
def fake(monkeypatch):
    """Give each rank two devices."""
    with fake_devices(monkeypatch) as fake:
        yield fake


@pytest.fixture
def kept():
    """Forget afterwards what was kept for good."""
    yield abandoned
    abandoned.clear()


# -- ranks that disagree ---------------------------------------------------------------------------


def call(fake, comm, count, *, dtype="float32", op="sum", collective="allreduce", root=0):
    x = Guarded(fake, np.zeros(count, dtype))
    if collective == "allreduce":
        hpccoll.allreduce(x.array, op, out=x.array, comm=comm)
    elif collective == "reduce":
        hpccoll.reduce(x.array, op, root=root, out=x.array, comm=comm)
    else:
        hpccoll.broadcast(x.array, root=root, comm=comm)


@SIZES
@pytest.mark.parametrize(
    "other",
    [
        {"count": 5},
        {"count": LARGE + 1},
        {"op": "max"},
        {"dtype": "int32"},
        {"collective": "reduce"},
        {"collective": "broadcast"},
    ],
    ids=str,
)
@pytest.mark.parametrize("odd_one", [0, -1])
def test_other_calls(fake, comm, count, other, odd_one):
    is_odd = comm.rank == odd_one % comm.size
    all_reduce(fake, comm, count)
    for _ in range(2):
        arguments = {"count": count, **(other if is_odd else {})}
        with pytest.raises(hpccoll.MismatchError, match="ranks make different calls") as caught:
            call(fake, comm, **arguments)
        # All are told the same, but for the name of the call.
        texts = comm.allgather(str(caught.value).partition(": ")[2].partition(" (rank")[0])
        assert len(set(texts)) == 1
        for size in (SMALL, LARGE, SMALL, SMALL):
            all_reduce(fake, comm, size)


@SIZES
def test_other_roots(fake, comm, count):
    for collective in ("reduce", "broadcast"):
        with pytest.raises(hpccoll.MismatchError, match="ranks make different calls"):
            call(fake, comm, count, collective=collective, root=int(comm.rank > 0))
        all_reduce(fake, comm, count)


@SIZES
def test_host_and_device(fake, comm, count):
    all_reduce(fake, comm, count)
    on_device = Guarded(fake, np.zeros(count, np.float32)).array
    x = np.zeros(count, np.float32) if comm.rank == 0 else on_device
    with pytest.raises(hpccoll.MismatchError):
        hpccoll.allreduce(x, comm=comm)
    all_reduce(fake, comm, count)
    all_reduce(fake, comm, count)


def test_blocks_that_are_read_late(fake, comm, monkeypatch):
    """After calls that differed, nobody stores where a kernel of a call before has yet to load."""
    all_reduce(fake, comm)
    queue = site_of(comm).queue
    late = comm.rank == 1
    mine = contribution(comm.rank, SMALL, np.float32, "sum", comm.size)
    x = Guarded(fake, mine)

    def held(call: MappedCall) -> None:
        fake.hold(queue.streams[COMPUTE])
        original(call)

    original = MappedCall.take
    with monkeypatch.context() as patch:
        if late:
            patch.setattr(MappedCall, "take", held)
        hpccoll.allreduce(x.array, out=x.array, comm=comm)
    with pytest.raises(hpccoll.MismatchError, match="ranks make different calls"):
        call(fake, comm, LARGE if late else SMALL)
    if late:
        threading.Timer(0.3, fake.release, (queue.streams[COMPUTE],)).start()
    y = Guarded(fake, mine + 1)
    hpccoll.allreduce(y.array, out=y.array, comm=comm)
    x.check(expected(SMALL, np.float32, "sum", comm.size))


# -- a driver that refuses -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("count", "function"),
    [
        (SMALL, "cuMemcpyAsync"),
        (SMALL, "cuEventQuery"),
        (LARGE, "cuMemGetAddressRange"),
        (LARGE, "cuEventQuery"),
        (LARGE, "cuLaunchKernel"),
    ],
)
def test_what_one_rank_is_refused_all_raise(fake, comm, kept, count, function):
    odd_one = comm.size - 1
    for size in (SMALL, LARGE):
        all_reduce(fake, comm, size)
    x = Guarded(fake, contribution(comm.rank, count, np.float32, "sum", comm.size))
    if comm.rank == odd_one:
        fake.fail(function, NOT_SUPPORTED)
    with pytest.raises(CudaError, match=r"CUDA_ERROR_NOT_SUPPORTED \(801\)") as caught:
        hpccoll.allreduce(x.array, out=x.array, comm=comm)
    text = function if comm.rank == odd_one else f"rank {odd_one} could not do its part"
    assert text in str(caught.value)
    assert not kept
    for size in (SMALL, LARGE, SMALL):
        all_reduce(fake, comm, size)


def test_a_communicator_is_freed_on_all_ranks_though_a_context_is_broken(fake, comm):
    inner = comm.Dup()
    for count in (SMALL, LARGE):
        all_reduce(fake, inner, count)
    if comm.rank == 0:
        fake.fail("cuEventRecord", 700, times=20)
    inner.Free()
    comm.Barrier()


def test_memory_that_was_freed(fake, comm):
    all_reduce(fake, comm)
    x = Guarded(fake, nothing(LARGE, np.float32))
    fake.finish(x.stream)
    is_odd = comm.rank == 0
    device = site_of(comm).device
    address = device.allocate(4 * LARGE)
    interface = dict(x.array.__cuda_array_interface__, data=(address, False))
    gone = type("Gone", (), {"__cuda_array_interface__": interface})()
    hpccoll.allreduce(x.array, out=x.array, comm=comm)
    device.free(address)
    if is_odd:
        # The door sees it, and nothing is sent.
        with pytest.raises((ValueError, CudaError), match=r"freed|no address"):
            hpccoll.allreduce(gone, out=gone, comm=comm)
    all_reduce(fake, comm, LARGE)


def twice(fake, comm, count):
    """Make two calls."""
    call(fake, comm, count)
    call(fake, comm, count)


# -- ranks that do not come ------------------------------------------------------------------------


def check_broken(fake, comm):
    """Check that a communicator cannot be used any more, and that a duplicate of it can."""
    with pytest.raises(RuntimeError, match="make a new one with Dup"):
        all_reduce(fake, comm)
    fresh = comm.Dup()
    for size in (SMALL, LARGE):
        all_reduce(fake, fresh, size)
    fresh.Free()


@SIZES
def test_a_rank_that_does_not_come(fake, comm, kept, count):
    all_reduce(fake, comm, count)
    x = Guarded(fake, np.zeros(count, np.float32))
    if comm.rank == comm.size - 1:
        comm.recv(source=0)
        with pytest.raises(hpccoll.CollectiveTimeoutError, match="cannot be used any more"):
            twice(fake, comm, count)  # all that it needs may be there: then it is the next call
    else:
        with pytest.raises(hpccoll.CollectiveTimeoutError, match="cannot be used any more") as e:
            hpccoll.allreduce(x.array, out=x.array, comm=comm, timeout=LIMIT)
        assert e.value.ranks == (comm.size - 1,)
        assert not kept
        if comm.rank == 0:
            comm.send(None, comm.size - 1)
    check_broken(fake, comm)


@SIZES
def test_a_stream_that_does_not_go_on(fake, comm, kept, count):
    """One rank's caller has a kernel that runs longer than the call may take."""
    all_reduce(fake, comm, count)
    x = Guarded(fake, np.zeros(count, np.float32))
    if comm.rank == 0:
        fake.hold(x.stream)
    with pytest.raises(hpccoll.CollectiveTimeoutError, match="cannot be used any more"):
        hpccoll.allreduce(x.array, out=x.array, comm=comm, timeout=LIMIT)
    if comm.rank == 0:
        fake.release(x.stream)
    check_broken(fake, comm)


@pytest.mark.parametrize("wait", [1, 2])
def test_an_interrupt(fake, comm, kept, monkeypatch, wait):
    """Whoever leaves keeps its vectors, if others may be at work in them."""
    all_reduce(fake, comm, LARGE)
    x = Guarded(fake, np.zeros(LARGE, np.float32))
    waited = 0

    def interrupted(mapped: Mapped, what: str) -> None:
        nonlocal waited
        waited += 1
        if waited == wait:
            raise KeyboardInterrupt
        original(mapped, what)

    original = Mapped.wait
    with monkeypatch.context() as patch:
        if comm.rank == 0:
            patch.setattr(Mapped, "wait", interrupted)
        error = KeyboardInterrupt if comm.rank == 0 else hpccoll.CollectiveTimeoutError
        with pytest.raises(error):
            hpccoll.allreduce(x.array, out=x.array, comm=comm)
    # Before the first wait nobody was told that the vector is complete; the others had told so.
    assert bool(kept) == (comm.rank > 0 or wait == 2)
    check_broken(fake, comm)


@pytest.mark.mpi(min_size=3)
def test_a_rank_of_several_nodes_that_does_not_come(fake, comm, kept, monkeypatch):
    nodes = ",".join(str(rank // 2) for rank in range(comm.size))
    monkeypatch.setenv(VARIABLE, nodes)
    inner = comm.Dup()
    wrapped = hpccoll.Comm(inner, algorithm="two_level")
    all_reduce(fake, wrapped, LARGE)
    x = Guarded(fake, np.zeros(LARGE, np.float32))
    if comm.rank == 1:
        comm.recv(source=0)
        with pytest.raises(hpccoll.CollectiveTimeoutError, match="cannot be used any more"):
            hpccoll.allreduce(x.array, out=x.array, comm=wrapped)
    else:
        with pytest.raises(hpccoll.CollectiveTimeoutError, match="cannot be used any more"):
            hpccoll.allreduce(x.array, out=x.array, comm=wrapped, timeout=LIMIT)
        if comm.rank == 0:
            comm.send(None, 1)
    check_broken(fake, wrapped)
    inner.Free()
