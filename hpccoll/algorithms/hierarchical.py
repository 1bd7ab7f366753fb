"""The hierarchical algorithms, whose schedules follow nodes, with their formulas."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType

from hpccoll.algorithms import levels, multi_leader, two_level
from hpccoll.algorithms.entry import COMMUTATIVE_ONLY, Algorithm, for_any_count
from hpccoll.algorithms.flat import FLAT, by_count
from hpccoll.chunks import chunks
from hpccoll.schedule import Fold, Schedule
from hpccoll.topology import Topology

Leaders = Callable[[Topology], int]
"""How many leaders the nodes of a topology have."""


def _between(topology: Topology, network: str) -> Algorithm:
    """Return the algorithm that runs between nodes. No slice has fewer elements than nodes."""
    nodes = topology.node_count
    return FLAT[network or by_count(nodes, nodes)]


def _steps(topology: Topology, network: str) -> int:
    """Each node's first leader has most steps: it is there at every level, and a proxy if any is.

    Where nodes differ in size, the one with most steps within may not be the one with most
    between, so they are counted node by node.
    """
    nodes = topology.node_count
    inner = _between(topology, network)
    return max(
        len(inner.schedule(node, nodes, nodes).steps) + 2 * (fold.levels + (fold.extras > 0))
        for node in range(nodes)
        for fold in [Fold(len(topology.members(node)))]
    )


def _sent(topology: Topology, count: int, network: str) -> int:
    """On its way up and down each element goes to or from all ranks of a node but one.

    What the network algorithms send is in proportion to the elements, so that slices do not matter.
    """
    up = (topology.size - topology.node_count) * count
    return 2 * up + _between(topology, network).sent(topology.node_count, count)


def _reduced(topology: Topology, count: int, network: str) -> int:
    up = (topology.size - topology.node_count) * count
    return up + _between(topology, network).reduced(topology.node_count, count)


def _scratch(topology: Topology, count: int, network: str, leaders: int) -> int:
    """Within nodes the first message is the longest: every second slice, or the whole vector."""
    sizes = {len(topology.members(node)) for node in range(topology.node_count)}
    if sizes == {1}:
        return _between(topology, network).scratch(topology.size, count)
    if leaders == 1 or any(Fold(size).extras for size in sizes):
        return count
    slices = chunks(max(count, topology.size), leaders)
    return sum(max(0, min(part.stop, count) - part.start) for part in slices[::2])


def _place(
    schedule: Callable[..., Schedule],
    leaders: Leaders,
    algorithm: Algorithm,
    topology: Topology | None,
    root: int,
    counts: tuple[int, ...] | None,
) -> Algorithm:
    """Return a hierarchical algorithm as it runs on a topology; all-reduce has no more to place."""
    if topology is None:
        return algorithm
    network, inner = algorithm.network, _between(topology, algorithm.network)
    flat = topology.is_one_node
    return replace(
        algorithm,
        topology=topology,
        schedule=for_any_count(functools.partial(schedule, topology=topology, network=network)),
        ordered=topology.in_rank_order and (flat or inner.ordered),
        one_tree=flat or inner.one_tree,
        steps=lambda size: _steps(levels.placed(topology, size), network),
        sent=lambda size, count: _sent(levels.placed(topology, size), count, network),
        reduced=lambda size, count: _reduced(levels.placed(topology, size), count, network),
        scratch=lambda size, count: _scratch(
            levels.placed(topology, size), count, network, leaders(topology)
        ),
    )


def _entry(
    name: str,
    schedule: Callable[..., Schedule],
    leaders: Leaders,
    *,
    purpose: str,
    cost: str,
    sent_formula: str,
    scratch_formula: str,
    source: str,
) -> Algorithm:
    """Return an entry that stands for any number of ranks on one node until it is placed."""
    one_node = Topology.one_node
    return Algorithm(
        name=name,
        schedule=for_any_count(schedule),
        purpose=purpose,
        restrictions=COMMUTATIVE_ONLY,
        ordered=False,  # on some topologies
        one_tree=False,
        cost=cost,
        steps_formula="2h + 2E + 2K",
        sent_formula=sent_formula,
        scratch_formula=scratch_formula,
        steps=lambda size: _steps(one_node(size), ""),
        sent=lambda size, count: _sent(one_node(size), count, ""),
        reduced=lambda size, count: _reduced(one_node(size), count, ""),
        scratch=lambda size, count: _scratch(one_node(size), count, "", leaders(one_node(size))),
        source=source,
        hierarchical=True,
        place=functools.partial(_place, schedule, leaders),
        leaders=leaders,
    )


_ENTRIES = (
    _entry(
        "two_level",
        two_level.schedule,
        lambda topology: 1,
        purpose="clusters: one rank of each node on the network",
        cost="(2h + 2E + 2K) alpha + (2h + 2E + 2(N-1)/N) n beta + (h + E + (N-1)/N) n gamma",
        sent_formula="up to (h + E) n, and 2(N-1)/N n at a leader",
        scratch_formula="n",
        source="Kielmann et al. 1999, doi:10.1145/301104.301116",
    ),
    _entry(
        "multi_leader",
        multi_leader.schedule,
        levels.most_leaders,
        purpose="clusters whose links one rank does not fill: several ranks of each node",
        cost="(2h + 2E + 2K) alpha + (2(g'-1)/g' + 2E + 2(N-1)/N/g') n beta + "
        "((g'-1)/g' + E + (N-1)/N/g') n gamma",
        sent_formula="(2(g'-1) + 2(N-1)/N)/g' n, and E n at a proxy",
        scratch_formula="n/2, or n if E",
        source="Bayatpour et al. 2017, doi:10.1145/3126908.3126954",
    ),
)

HIERARCHICAL: Mapping[str, Algorithm] = MappingProxyType({entry.name: entry for entry in _ENTRIES})
"""The hierarchical algorithms by name, in teaching order."""


def with_network(algorithm: Algorithm, network: Algorithm) -> Algorithm:
    """Return a hierarchical algorithm that runs a given flat one between nodes."""
    return replace(
        algorithm,
        name=f"{algorithm.name}:{network.name}",
        network=network.name,
        one_tree=network.one_tree,
    )
