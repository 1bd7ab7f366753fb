"""The hierarchical algorithms of the other collectives, with their formulas."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from types import MappingProxyType

from hpccoll.algorithms import (
    binomial,
    circulant,
    dissemination,
    naive_root,
    reduce_scatter_gather,
    ring,
    scatter_allgather,
    two_level_rooted,
    two_level_split,
)
from hpccoll.algorithms.collective import COLLECTIVES
from hpccoll.algorithms.entry import COMMUTATIVE_ONLY, Algorithm, for_any_count
from hpccoll.algorithms.family import (
    FAMILY,
    levels,
    sent_by_scatter_allgather,
    sent_through_tree,
    tree_sent,
)
from hpccoll.algorithms.levels import placed
from hpccoll.chunks import cut
from hpccoll.schedule import Schedule
from hpccoll.topology import Topology

_BETWEEN: Mapping[str, Mapping[str, Callable[..., Schedule]]] = {
    "reduce_scatter": {"ring": ring.reduce_scatter, "circulant": circulant.reduce_scatter},
    "allgather": {"ring": ring.allgather, "circulant": circulant.allgather},
    "reduce": {
        "naive_root": naive_root.reduce,
        "binomial": binomial.reduce,
        "reduce_scatter_gather": reduce_scatter_gather.reduce,
    },
    "broadcast": {
        "naive_root": naive_root.broadcast,
        "binomial": binomial.broadcast,
        "scatter_allgather": scatter_allgather.broadcast,
    },
    "barrier": {"dissemination": dissemination.barrier},
}
"""What can run between nodes, by collective and name. The last one is the usual one."""


@dataclass(frozen=True)
class _Placed:
    """A two-level algorithm on a topology: its schedule, and its formulas.

    Without a topology it is for any number of ranks that share one node.
    """

    collective: str
    schedule_on: Callable[..., Schedule]
    network: str = ""
    topology: Topology | None = None
    root: int = 0
    counts: tuple[int, ...] | None = None

    @property
    def rooted(self) -> bool:
        """Whether there is a root, so that the trees within nodes go one way only."""
        return COLLECTIVES[self.collective].rooted

    @property
    def inner(self) -> Algorithm:
        """What runs between nodes."""
        return FAMILY[self.collective][self.network or [*_BETWEEN[self.collective]][-1]]

    def schedule(self, rank: int, size: int, count: int) -> Schedule:
        """Return what `rank` does."""
        given: dict[str, object] = {"root": self.root} if self.rooted else {}
        if self.counts is not None:
            given["counts"] = self.counts
        return self.schedule_on(
            rank,
            size,
            count,
            topology=self.topology,
            between=_BETWEEN[self.collective][self.inner.name],
            **given,
        )

    def steps(self, size: int) -> int:
        """Each node's leader has most steps, unless the root has fewer hops than its node's tree.

        Where nodes differ in size, the one with most steps within may not be the one with most
        between, so they are counted node by node.
        """
        topology = placed(self.topology, size)
        nodes, most = topology.node_count, 0
        leader = two_level_rooted.leaders(topology, self.root)
        inner = self.inner.on(root=topology.nodes[self.root])
        for node in range(nodes):
            peers = topology.members(node)
            between = len(inner.schedule(node, nodes, nodes).steps)
            height = levels(len(peers))
            if self.rooted:
                head = peers.index(leader[node])
                hops = len(binomial.hops(head, len(peers), head))
                most = max(most, height, hops + between)
            else:
                most = max(most, 2 * height + between)
        return most

    def sent(self, size: int, count: int) -> int:
        """Whole vectors to or from all ranks but leaders, chunks, and what goes between nodes."""
        topology = placed(self.topology, size)
        nodes = topology.node_count
        within = (size - nodes) * count
        head = topology.nodes[self.root]
        if self.inner.name == "reduce_scatter_gather":
            return within + sent_through_tree(nodes, count, head, least=size)
        if self.inner.name == "scatter_allgather":
            return within + sent_by_scatter_allgather(nodes, count, head, least=size)
        if not self.rooted:
            chunk = cut(count, size, self.counts)
            for node in range(nodes):
                within += tree_sent([chunk[rank].count for rank in topology.members(node)])
        return within + (nodes - 1) * count

    def reduced(self, size: int, count: int) -> int:
        """Each element is reduced p - 1 times: no sum is worked out twice."""
        return (size - 1) * count if COLLECTIVES[self.collective].reduces else 0

    def scratch(self, size: int, count: int) -> int:
        """One vector where a node has several ranks, else what is needed between nodes."""
        if not COLLECTIVES[self.collective].reduces:
            return 0
        if placed(self.topology, size).largest > 1:
            return count
        return self.inner.on(counts=self.counts).scratch(size, count)


def _place(
    schedule: Callable[..., Schedule],
    algorithm: Algorithm,
    topology: Topology | None,
    root: int,
    counts: tuple[int, ...] | None,
) -> Algorithm:
    """Return a two-level algorithm on a topology, for a root or for chunk sizes."""
    here = _Placed(algorithm.collective, schedule, algorithm.network, topology, root, counts)
    reduces = COLLECTIVES[algorithm.collective].reduces
    flat = topology is None or topology.is_one_node
    in_order = topology is None or topology.in_rank_order
    return replace(
        algorithm,
        topology=topology,
        root=root,
        counts=counts,
        schedule=here.schedule if counts is not None else for_any_count(here.schedule),
        ordered=not reduces or (in_order and (flat or here.inner.ordered)),
        one_tree=not reduces or flat or here.inner.one_tree,
        steps=here.steps,
        sent=here.sent,
        reduced=here.reduced,
        scratch=here.scratch,
    )


def _entry(
    collective: str,
    schedule: Callable[..., Schedule],
    *,
    cost: str,
    steps_formula: str,
    sent_formula: str,
    scratch_formula: str = "none",
) -> Algorithm:
    """Return an entry that stands for any number of ranks on one node until it is placed."""
    one_node = _Placed(collective, schedule)
    reduces = COLLECTIVES[collective].reduces
    return Algorithm(
        name="two_level",
        collective=collective,
        schedule=for_any_count(one_node.schedule),
        purpose="clusters: one rank of each node on the network",
        restrictions=COMMUTATIVE_ONLY if reduces else "none",
        ordered=not reduces,  # else on some topologies
        one_tree=not reduces,
        cost=cost,
        steps_formula=steps_formula,
        sent_formula=sent_formula,
        scratch_formula=scratch_formula,
        steps=one_node.steps,
        sent=one_node.sent,
        reduced=one_node.reduced,
        scratch=one_node.scratch,
        source="Kielmann et al. 1999, doi:10.1145/301104.301116",
        hierarchical=True,
        place=functools.partial(_place, schedule),
        leaders=lambda topology: 1,
    )


_ENTRIES = (
    _entry(
        "reduce_scatter",
        two_level_split.reduce_scatter,
        cost="(2G + K) alpha + (G + (N-1)/N + (g-1)/p) n beta + (G + (N-1)/N) n gamma",
        steps_formula="2G + K",
        sent_formula="up to n + n/(2N), or ((N-1)/N + (g-1)/p) n at a leader",
        scratch_formula="n",
    ),
    _entry(
        "allgather",
        two_level_split.allgather,
        cost="(2G + K) alpha + (G + (N-1)/N + (g-1)/p) n beta",
        steps_formula="2G + K",
        sent_formula="up to G n, and (N-1)/N n at a leader",
    ),
    _entry(
        "reduce",
        two_level_rooted.reduce,
        cost="(G + 2K) alpha + (G + 2(N-1)/N) n beta + (G + (N-1)/N) n gamma",
        steps_formula="G + 2K",
        sent_formula="n, or up to 2(N-1)/N n at a leader",
        scratch_formula="n",
    ),
    _entry(
        "broadcast",
        two_level_rooted.broadcast,
        cost="(G + 2K) alpha + (G + 2(N-1)/N) n beta",
        steps_formula="G + 2K",
        sent_formula="up to G n, and 2(N-1)/N n at a leader",
    ),
    _entry(
        "barrier",
        two_level_split.barrier,
        cost="(2G + K) alpha",
        steps_formula="2G + K",
        sent_formula="none",
    ),
)

NODES: Mapping[str, Mapping[str, Algorithm]] = MappingProxyType(
    {entry.collective: MappingProxyType({entry.name: entry}) for entry in _ENTRIES}
)
"""The hierarchical algorithms by collective and name."""
