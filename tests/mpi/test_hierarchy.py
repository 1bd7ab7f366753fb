"""Hierarchical algorithms across ranks, on nodes that a text makes up."""

import numpy as np
import pytest
from inputs import contribution, digest, expected
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms.hierarchical import HIERARCHICAL
from hpccoll.channel import channel_of
from hpccoll.placement import _lowest_with_shared_memory, discover
from hpccoll.topology import VARIABLE, Topology

WORLD = MPI.COMM_WORLD

NODES = {
    "one node": lambda rank, size: 0,
    "one rank per node": lambda rank, size: rank,
    "pairs": lambda rank, size: rank // 2,
    "threes": lambda rank, size: rank // 3,
    "in turns": lambda rank, size: rank % 2,
    "last alone": lambda rank, size: int(rank == size - 1 > 0),
}


@pytest.fixture(params=NODES)
def topology(request, monkeypatch):
    """Let the environment say which ranks share a node, before a channel is made."""
    nodes = [NODES[request.param](rank, WORLD.size) for rank in range(WORLD.size)]
    # With a 0 in front, no text of node numbers can be read as numbers of ranks.
    assert nodes[0] == 0
    monkeypatch.setenv(VARIABLE, ",".join(map(str, nodes)))
    return Topology.of_labels(nodes)


@pytest.mark.parametrize("memory", ["arena", "off"])
@pytest.mark.parametrize("name", [*HIERARCHICAL, "multi_leader:ring", "multi_leader:naive_root"])
def test_results_are_exact_and_bytes_are_those_simulated(comm, topology, name, memory, monkeypatch):
    monkeypatch.setenv("HPCCOLL_NODE", memory)
    wrapped = hpccoll.Comm(comm, algorithm=name)
    for dtype, op, count in (
        ("float64", "sum", 1),
        ("int32", "max", 37),
        ("float32", "sum", 5003),
        ("float16", "mean", 3001),
    ):
        x = contribution(comm.rank, count, dtype, op, comm.size)
        result = hpccoll.allreduce(x, op, comm=wrapped, segment_bytes=4000)
        assert result.tobytes() == expected(count, dtype, op, comm.size).tobytes()
        call = wrapped.last_call
        simulation = hpccoll.simulate(
            name,
            size=comm.size,
            count=count,
            itemsize=x.itemsize,
            partial_itemsize=4 if dtype == "float16" else None,
            nodes=topology.nodes,
        )
        assert call.algorithm == name
        if memory == "arena" and topology.largest > 1:
            # Nothing is sent within nodes. Pieces are cut up one by one, so that ranks may differ
            # by some elements, but not all of them together.
            assert call.path == "hierarchical"
            assert comm.allreduce(call.bytes_sent) == simulation.total_bytes_between
            assert comm.allreduce(call.bytes_received) == simulation.total_bytes_between
        else:
            mine = simulation.ranks[comm.rank]
            assert call.path == "point-to-point"
            assert call.steps == mine.steps
            assert (call.bytes_sent, call.bytes_received) == (mine.bytes_sent, mine.bytes_received)
    assert channel_of(wrapped).topology == topology


def test_all_ranks_get_the_same_bits(comm, topology):
    random = np.random.default_rng(comm.rank)
    x = random.standard_normal(999) * 10.0 ** random.integers(-5, 5, 999)
    for name in HIERARCHICAL:
        result = hpccoll.allreduce(x, comm=comm, algorithm=name)
        assert len(set(comm.allgather(digest(result)))) == 1


def test_parts_of_the_world_know_their_nodes(topology):
    part = WORLD.Split(WORLD.rank % 3 == 1, -WORLD.rank)
    ranks = part.allgather(WORLD.rank)
    assert discover(part) == Topology.of_labels(topology.nodes[rank] for rank in ranks)
    x = contribution(part.rank, 100, "float64", "sum", part.size)
    result = hpccoll.allreduce(x, comm=part, algorithm="multi_leader")
    np.testing.assert_array_equal(result, expected(100, "float64", "sum", part.size))
    part.Free()


def test_mpi_tells_where_the_environment_does_not(comm, monkeypatch):
    monkeypatch.delenv(VARIABLE, raising=False)
    assert discover(comm) == Topology.of_labels(comm.allgather(MPI.Get_processor_name()))


def test_ranks_that_mpi_sees_together_have_one_lowest_rank(comm):
    shared = comm.Split_type(MPI.COMM_TYPE_SHARED)
    assert _lowest_with_shared_memory(comm) == shared.allreduce(comm.rank, MPI.MIN)
    shared.Free()


@pytest.mark.parametrize("text", ["1,x", ",".join("0" * (WORLD.size + 1))])
def test_a_wrong_text_on_one_rank_is_an_error_on_all(comm, monkeypatch, text):
    monkeypatch.setenv(VARIABLE, text if comm.rank == comm.size - 1 else str(comm.size))
    x = np.ones(3)
    start = r"^allreduce: environment variable HPCCOLL_NODES is "
    for _ in range(2):
        with pytest.raises(ValueError, match=start) as e:
            hpccoll.allreduce(x, comm=comm)
        text_without_rank = str(e.value).rpartition(" (rank ")[0]
        assert f"HPCCOLL_NODES is {text!r}; wanted, for {comm.size} rank" in text_without_rank
        assert len(set(comm.allgather(text_without_rank))) == 1
    monkeypatch.setenv(VARIABLE, str(comm.size))
    assert hpccoll.allreduce(x, comm=comm).tolist() == [comm.size] * 3


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("other", ["", "one node"])
def test_ranks_that_were_told_different_things_hear_of_it(comm, monkeypatch, other):
    monkeypatch.setenv(VARIABLE, ",".join(["1"] * comm.size))
    if comm.rank == 1:
        monkeypatch.setenv(VARIABLE, str(comm.size) if other else "")
    said = repr(str(comm.size)) if other else "not set"
    with pytest.raises(ValueError, match=f"on rank 0 and {said} on rank 1; wanted the same on all"):
        hpccoll.allreduce(1, comm=comm)
