"""All-reduce over several nodes, made up, whose ranks reach each other's device memory."""

import threading

import numpy as np
import pytest
from device_vectors import Guarded, fake_devices, nothing, site_of
from inputs import DTYPES, contribution, digest, expected
from mpi4py import MPI

import hpccoll
from hpccoll.topology import VARIABLE, Topology

WORLD = MPI.COMM_WORLD

NODES = {
    "one node": lambda rank, size: 0,
    "pairs": lambda rank, size: rank // 2,
    "in turns": lambda rank, size: rank % 2,
    "last alone": lambda rank, size: int(rank == size - 1 > 0),
}

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture(params=NODES)
def topology(request, monkeypatch):
    """Let the environment say which ranks share a node, before a channel is made."""
    nodes = [NODES[request.param](rank, WORLD.size) for rank in range(WORLD.size)]
    monkeypatch.setenv(VARIABLE, ",".join(map(str, nodes)))
    return Topology.of_labels(nodes)


@pytest.fixture
def fake(monkeypatch):
    """Give each rank two devices."""
    with fake_devices(monkeypatch) as fake:
        yield fake


CASES = (
    ("float64", "sum", 0),
    ("float64", "sum", 1),
    ("int32", "max", 37),
    ("float32", "sum", 5003),
    ("float16", "mean", 3001),
    ("bfloat16", "prod", 3001),
    ("float16", "min", 3001),
)


@pytest.mark.any_size
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ["two_level", "multi_leader", "multi_leader:ring"])
def test_results_are_exact_and_bytes_are_those_simulated(fake, comm, topology, name, in_place):
    wrapped = hpccoll.Comm(comm, algorithm=name)
    for dtype, op, count in CASES:
        dtype = next(known for known in DTYPES if known.name == dtype)
        x = Guarded(fake, contribution(comm.rank, count, dtype, op, comm.size))
        out = x if in_place else Guarded(fake, nothing(count, x.dtype), stream=x.stream)
        hpccoll.allreduce(x.array, op, out=out.array, comm=wrapped, segment_bytes=4000)
        out.check(expected(count, dtype, op, comm.size))
        call = wrapped.last_call
        assert call.algorithm == name
        if topology.largest == 1:
            assert (call.path, call.memory) == ("point-to-point", "cuda:0, staged")
            continue
        assert (call.path, call.memory) == ("hierarchical", "cuda:0, mapped, staged")
        partial = 4 if op in ("mean", "prod", "sum") and x.dtype.itemsize == 2 else None
        simulation = hpccoll.simulate(
            name,
            size=comm.size,
            count=count,
            itemsize=x.dtype.itemsize,
            partial_itemsize=partial,
            nodes=topology.nodes,
        )
        assert comm.allreduce(call.bytes_sent) == simulation.total_bytes_between


def test_bits_are_those_of_the_host(fake, comm, topology):
    random = np.random.default_rng(comm.rank)
    for dtype in ("float32", "float16"):
        values = (random.standard_normal(5000) * 2.0 ** random.integers(-4, 5, 5000)).astype(dtype)
        for name in ("two_level", "multi_leader"):
            # Pieces of the same number of elements, so that the order is the same one.
            wanted = hpccoll.allreduce(values, comm=comm, algorithm=name, segment_bytes=4096)
            x = Guarded(fake, values)
            hpccoll.allreduce(x.array, out=x.array, comm=comm, algorithm=name, segment_bytes=4096)
            x.check(wanted)
            assert len(set(comm.allgather(digest(wanted)))) == 1


def test_large_vectors_by_default(fake, comm, topology, monkeypatch):
    monkeypatch.setenv("HPCCOLL_CUDA_REDUCE", "device")
    wrapped = hpccoll.Comm(comm)
    count = 300_001
    x = Guarded(fake, contribution(comm.rank, count, np.float32, "sum", comm.size))
    for _ in range(2):
        x.whole.fill(x.before)
        hpccoll.allreduce(x.array, out=x.array, comm=wrapped)
        x.check(expected(count, np.float32, "sum", comm.size))
    path = "mapped" if topology.is_one_node else "hierarchical"
    assert wrapped.last_call.path == (path if topology.largest > 1 else "point-to-point")


def test_a_late_producer(fake, comm, topology):
    """What one rank brings is not there yet when the others make their call."""
    wrapped = hpccoll.Comm(comm, algorithm="multi_leader")
    for late in (None, *range(comm.size)):
        x = Guarded(fake, contribution(comm.rank, 5003, np.float32, "sum", comm.size))
        if comm.rank == late:
            fake.hold(x.stream)
            threading.Timer(0.1, fake.release, (x.stream,)).start()
        hpccoll.allreduce(x.array, out=x.array, comm=wrapped)
        x.check(expected(5003, np.float32, "sum", comm.size))


def test_flat_algorithms_go_by_messages(fake, comm, topology):
    wrapped = hpccoll.Comm(comm, algorithm="ring")
    x = Guarded(fake, contribution(comm.rank, 1000, np.float32, "sum", comm.size))
    hpccoll.allreduce(x.array, out=x.array, comm=wrapped)
    x.check(expected(1000, np.float32, "sum", comm.size))
    assert wrapped.last_call.path == "point-to-point"


def test_other_collectives_go_by_messages(fake, comm, topology):
    wrapped = hpccoll.Comm(comm)
    x = Guarded(fake, np.full(1000, comm.rank, np.float32))
    hpccoll.broadcast(x.array, root=comm.size - 1, comm=wrapped)
    x.check(np.full(1000, comm.size - 1, np.float32))
    assert wrapped.last_call.path == ("mapped" if topology.is_one_node else "host")


def test_memory_that_cannot_be_shared(fake, comm, topology):
    wrapped = hpccoll.Comm(comm, algorithm="two_level")
    for turn, in_place in enumerate((False, False, True)):
        x = Guarded(fake, contribution(comm.rank, 5003, np.float32, "sum", comm.size))
        out = x if in_place else Guarded(fake, nothing(5003, np.float32), stream=x.stream)
        if comm.rank == 0 and turn:  # not while ranks meet
            fake.fail("cuIpcGetMemHandle", 801)
        hpccoll.allreduce(x.array, out=out.array, comm=wrapped)
        out.check(expected(5003, np.float32, "sum", comm.size))
        assert site_of(comm).mapped.reachable == (topology.largest > 1)


@pytest.mark.parametrize("odd_one", [0, -1])
@pytest.mark.parametrize("counts", [(5003, 4001), (5003, 5002), (100, 0)])
def test_a_rank_with_another_count(fake, comm, topology, counts, odd_one):
    wrapped = hpccoll.Comm(comm, algorithm="two_level")
    count = counts[1] if comm.rank == odd_one % comm.size else counts[0]
    for _ in range(2):
        x = Guarded(fake, np.zeros(count, np.float32))
        with pytest.raises(hpccoll.MismatchError):
            hpccoll.allreduce(x.array, out=x.array, comm=wrapped)
        x = Guarded(fake, contribution(comm.rank, 5003, np.float32, "sum", comm.size))
        hpccoll.allreduce(x.array, out=x.array, comm=wrapped)
        x.check(expected(5003, np.float32, "sum", comm.size))
