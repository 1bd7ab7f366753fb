"""Two level: one leader per node speaks for its ranks.

Idea
    The ranks of a node reduce their vectors to the node's leader, its lowest rank, by a tree. The
    leaders all-reduce what they have, and the trees hand out the result.

Picture, 5 ranks
    Ranks 0, 1, 2 share a node, and ranks 3, 4 another. Rank 1 is an extra rank and rank 0 its
    proxy. The vector is ab, and rabenseifner runs between the nodes::

        fold         0 <-- 1             0: x0 + x1
        within       0 <-- 2   3 <-- 4   0: (x0 + x1) + x2      3: x3 + x4
        between      0 <-> 3             0: a   3: b
        between      0 <-> 3             0, 3: ab
        within       0 --> 2   3 --> 4   2, 4: ab
        unfold       0 --> 1

Steps and bytes
    N nodes of g ranks each; h = floor(log2 g), K = ceil(log2 N), E = 1 where g is no power of
    two, else 0. 2h + 2E + 2K steps at a leader. Between nodes it sends 2(N-1)/N n, the least that
    a node can; within nodes up to (h + E) n, as may other ranks.

Cost
    (2h + 2E + 2K) alpha + (2h + 2E + 2(N-1)/N) n beta + (h + E + (N-1)/N) n gamma

Restrictions
    Commutative operations only.

Scratch
    n.

Order and bits
    Within a node, rank order and one balanced expression, as in recursive_doubling. Between nodes,
    what the network algorithm does: usually rabenseifner, and circulant, which reorders operands,
    where the number of nodes is no power of two. Where ranks are dealt out to nodes in turn,
    operands leave rank order. Each element of the result is worked out once per leader, by one
    expression, so all ranks end with the same bits.

Source
    Kielmann, Hofman, Bal, Plaat and Bhoedjang, "MagPIe: MPI's collective communication operations
    for clustered wide area systems", PPoPP 1999, doi:10.1145/301104.301116.
"""

from hpccoll.algorithms import levels
from hpccoll.schedule import Schedule
from hpccoll.topology import Topology


def schedule(
    rank: int,
    size: int,
    count: int,
    topology: Topology | None = None,
    network: str = "",
) -> Schedule:
    """Return what `rank` of `size` ranks does to all-reduce `count` elements.

    See `levels.schedule`. Without a topology, all ranks share one node.
    """
    topology = levels.placed(topology, size)
    return levels.schedule(rank, topology, count, 1, network)
