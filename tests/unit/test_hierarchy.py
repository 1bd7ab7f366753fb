"""Hierarchical schedules on nodes of all kinds: proved, run as programs, and run by the engine."""

from dataclasses import replace

import numpy as np
import pytest
from clusters import full_nodes, in_pieces, in_turns, nodes_of
from inputs import contribution, expected
from local_ranks import run

from hpccoll.algorithms import find, levels, multi_leader
from hpccoll.algorithms.flat import FLAT
from hpccoll.algorithms.hierarchical import HIERARCHICAL
from hpccoll.chunks import Range, chunks
from hpccoll.prover import ProofError, prove
from hpccoll.schedule import Action, ScheduleBuilder
from hpccoll.simulator import simulate
from hpccoll.topology import Topology

UNEVEN = [(3, 1), (1, 4, 2), (5, 3), (2, 6, 9, 1), (4, 5, 7)]


def counts(size):
    return (0, 1, size // 2, size - 1, size, 2 * size + 1, 101)


# The proofs.


@pytest.mark.parametrize("each", [1, 2, 3, 4, 5, 8])
@pytest.mark.parametrize("name", HIERARCHICAL)
def test_full_nodes_and_a_last_one_that_may_not_be(name, each):
    for size in range(1, 34):
        for count in (size // 2, size + 1) if size % 4 else counts(size):
            prove(name, size, count, full_nodes(size, each))


@pytest.mark.parametrize("network", ["", *(f":{name}" for name in FLAT)])
@pytest.mark.parametrize("name", HIERARCHICAL)
def test_any_network_algorithm_on_nodes_of_all_kinds(name, network):
    dealt = [in_turns(8, 2), in_turns(7, 3), in_turns(13, 5), Topology.of_labels("abacbbcda")]
    for topology in [*(nodes_of(*uneven) for uneven in UNEVEN), *dealt]:
        for count in counts(topology.size):
            prove(name + network, topology.size, count, topology)


def test_one_node_and_nodes_of_one_rank_are_the_flat_schedules():
    for size in (1, 2, 5, 8):
        for rank in range(size):
            alone = full_nodes(size, 1)
            for name in HIERARCHICAL:
                entry = find(name)
                assert entry.schedule(rank, size, 20) == entry.on(Topology.one_node(size)).schedule(
                    rank, size, 20
                )
                ring = find(f"{name}:ring").on(alone).schedule(rank, size, 20)
                assert ring == FLAT["ring"].schedule(rank, size, 20)


def test_a_topology_of_another_size_is_refused():
    with pytest.raises(ValueError, match="that of 3 ranks, and there are 4"):
        prove("multi_leader", 4, 8, nodes_of(2, 1))


def test_a_proof_names_the_nodes():
    entry = find("two_level").on(nodes_of(2, 2))
    mutant = replace(entry, schedule=lambda *of: replace(entry.schedule(*of), steps=()))
    with pytest.raises(
        ProofError, match=r"^two_level, size 4 on 2 nodes of 2 ranks, count 8: rank 0"
    ):
        prove(mutant, 4, 8)


# Bits.


@pytest.mark.parametrize("inner", ["recursive_doubling", "rabenseifner"])
@pytest.mark.parametrize("name", HIERARCHICAL)
def test_aligned_nodes_give_the_bits_of_recursive_doubling(name, inner):
    for nodes, each in ((1, 8), (2, 4), (4, 2), (3, 4), (5, 2), (8, 1), (7, 8)):
        size = nodes * each
        proof = prove(f"{name}:{inner}", size, 3 * size + 1, nodes_of(*[each] * nodes))
        assert proof.trees == 1
        if nodes & (nodes - 1) == 0:
            assert proof.expression(0) == prove("recursive_doubling", size, 1).expression(0)
    other = prove(f"{name}:{inner}", 6, 7, nodes_of(3, 3)).expression(0)
    assert other == "((x0 + x1) + x2) + ((x3 + x4) + x5)"


def test_rank_order_is_promised_and_kept_where_nodes_are_consecutive():
    for topology in (nodes_of(3, 1), nodes_of(5, 3), nodes_of(2, 2, 2)):
        for name in HIERARCHICAL:
            assert find(f"{name}:rabenseifner").on(topology).ordered  # and `prove` checks it
            assert not find(f"{name}:ring").on(topology).ordered
    assert not find("multi_leader:rabenseifner").on(in_turns(4, 2)).ordered


# Leaders and slices.


def test_the_smallest_node_says_how_many_leaders_there_are():
    sizes = {(8,): 8, (7, 9): 4, (3, 3): 2, (5, 1): 1, (4, 4, 4): 4, (16, 6): 4}
    for counts_of_ranks, leaders in sizes.items():
        topology = nodes_of(*counts_of_ranks)
        assert levels.most_leaders(topology) == leaders
        for node in range(topology.node_count):
            ranks = [levels.leader(topology, node, number) for number in range(leaders)]
            assert ranks == sorted(set(ranks))
            assert [levels.slice_of(rank, topology, leaders) for rank in ranks] == [*range(leaders)]
            others = set(topology.members(node)) - set(ranks)
            assert {levels.slice_of(rank, topology, leaders) for rank in others} <= {None}


def test_the_steps_between_nodes_are_those_of_between():
    topology = Topology.of_labels("aababbb")
    count, leaders = 103, 2
    for network in ("", "ring"):
        for rank in range(7):
            whole = multi_leader.schedule(rank, 7, count, topology, network).steps
            crossing = [
                step for step in whole if topology.nodes[peer_of(step)] != topology.nodes[rank]
            ]
            number = levels.slice_of(rank, topology, leaders)
            part = chunks(count, leaders)[number or 0]
            alone = levels.between(rank, topology, part.count, network)
            shifted = ScheduleBuilder(rank, 7, count)
            for step in alone.steps:
                shifted.add(step, part)
            assert crossing == list(shifted.finish().steps)
            assert bool(crossing) == (number is not None)


def peer_of(step):
    return step.receive_from if step.send_to is None else step.send_to


# Pieces.


@pytest.mark.parametrize("pieces", [2, 3, 5])
@pytest.mark.parametrize("network", FLAT)
def test_pieces_are_right_for_any_network_algorithm(network, pieces):
    # The prover finds circles of ranks that wait, and messages received in another order than sent.
    for nodes in (2, 3, 4, 5, 7, 8):
        equal, uneven = full_nodes(2 * nodes, 2), in_turns(2 * nodes + nodes // 2, nodes)
        for topology in (equal, uneven):
            size = topology.size
            for count in (1, size, size * pieces + 3):
                most = proof_of_pieces(in_pieces(network, topology, pieces), size, count)
            if topology is equal:  # the last count leaves no piece with fewer elements than nodes
                assert most == 2 + pieces * FLAT[network].steps(nodes)


def proof_of_pieces(algorithm, size, count):
    """Prove what does not depend on the number of pieces; return the most steps of a rank."""
    plans = [algorithm.schedule(rank, size, count).steps for rank in range(size)]
    most = max(map(len, plans))
    scratch = max(
        (
            sum(part.count for part in step.receive)
            for steps in plans
            for step in steps
            if step.action.reduces
        ),
        default=0,
    )
    seen = {"steps": lambda size: most, "scratch": lambda size, count: scratch}
    prove(replace(algorithm, **seen), size, count)
    return most


def test_pieces_start_one_after_the_other():
    # Two nodes of one rank, and three pieces of two halving steps: where each step's piece lies.
    plan = levels.between(0, full_nodes(2, 1), 12, "rabenseifner", 3)
    order = [step.receive[0].start // 4 for step in plan.steps]
    kinds = [step.action.reduces for step in plan.steps]
    assert order == [0, 0, 1, 1, 2, 2]
    assert kinds == [True, False, True, False, True, False]
    plan = levels.between(0, full_nodes(4, 1), 24, "ring", 2)
    pieces = [step.send[0].start // 12 for step in plan.steps]
    assert pieces == [0, 0, 1, 0, 1, 0, 1, 0, 1, 0, 1, 1]


def test_an_extra_rank_hands_over_a_piece_before_it_waits_for_the_one_before():
    plan = levels.between(1, full_nodes(3, 1), 9, "recursive_doubling", 3)
    sends = [step.send_to is not None for step in plan.steps]
    assert sends == [True, True, False, True, False, False]


@pytest.mark.parametrize("network", ["naive_root", "rabenseifner"])
def test_a_skew_by_step_numbers_would_not_do(network, monkeypatch):
    def by_number(name, nodes):
        return [range(len(FLAT[name].schedule(node, nodes, nodes).steps)) for node in range(nodes)]

    monkeypatch.setattr(levels, "_slots", by_number)
    with pytest.raises(ProofError, match="deadlock"):
        prove(in_pieces(network, full_nodes(3, 1), 3), 3, 100)


# The other readers.


@pytest.mark.parametrize("name", [*HIERARCHICAL, "multi_leader:ring"])
def test_the_simulator_counts_what_the_prover_sees(name):
    for topology in (nodes_of(1, 4, 2), in_turns(8, 3)):
        for count in (1, 5, 77):
            proof = prove(name, topology.size, count, topology)
            simulation = simulate(name, size=topology.size, count=count, nodes=topology.nodes)
            assert simulation.algorithm == name
            assert simulation.total_bytes == 4 * proof.sent
            assert simulation.steps == proof.steps


@pytest.mark.parametrize("name", [*HIERARCHICAL, "multi_leader:ring"])
def test_the_engine_runs_them(name):
    for topology in (nodes_of(3, 1), in_turns(5, 2), nodes_of(2, 2, 2)):
        size = topology.size

        def job(rank, topology=topology, size=size):
            for count, segment_bytes in ((1, None), (700, None), (5003, 1000)):
                x = contribution(rank.rank, count, "float64", "sum", size)
                out = np.empty_like(x)
                plan = rank.allreduce(name, "sum", x, out, segment_bytes, topology=topology)
                assert out.tobytes() == expected(count, "float64", "sum", size).tobytes()
                told = simulate(name, size=size, count=count, itemsize=8, nodes=topology.nodes)
                assert plan.bytes_sent == told.ranks[rank.rank].bytes_sent
                assert plan.info.steps == told.ranks[rank.rank].steps

        run(size, job)


def test_a_step_of_another_schedule_is_cut_shifted_and_renamed():
    inner = ScheduleBuilder(0, 2, 10)
    inner.exchange(1, [Range(0, 4), Range(8, 10)], 1, [Range(4, 8)], Action.REDUCE_LEFT)
    (step,) = inner.finish().steps
    outer = ScheduleBuilder(5, 8, 100)
    outer.add(step, Range(50, 55), [5, 7])
    outer.add(step, Range(60, 61))
    first, second = outer.finish().steps
    assert (first.send_to, first.send) == (7, (Range(50, 54),))
    assert (first.receive_from, first.receive) == (7, (Range(54, 55),))
    assert (second.send_to, second.send, second.receive_from) == (1, (Range(60, 61),), None)
