"""Topologies, and hierarchical algorithms, that tests make up."""

import functools
from dataclasses import replace

from hpccoll.algorithms import Algorithm, find, multi_leader
from hpccoll.algorithms.entry import for_any_count
from hpccoll.topology import Topology


def nodes_of(*counts: int) -> Topology:
    """Return nodes of that many consecutive ranks."""
    return Topology.of_labels(node for node, count in enumerate(counts) for _ in range(count))


def in_turns(size: int, nodes: int) -> Topology:
    """Return ranks that are dealt out to nodes one by one."""
    return Topology.of_labels(rank % nodes for rank in range(size))


def full_nodes(size: int, each: int) -> Topology:
    """Return nodes of `each` ranks, and a last one with the rest."""
    return Topology.of_labels(rank // each for rank in range(size))


def in_pieces(network: str, topology: Topology, pieces: int) -> Algorithm:
    """Return `multi_leader` whose slices are cut; its formulas do not know of it."""
    options = {"topology": topology, "network": network, "pieces": pieces}
    schedule = for_any_count(functools.partial(multi_leader.schedule, **options))
    return replace(find(f"multi_leader:{network}").on(topology), schedule=schedule)
