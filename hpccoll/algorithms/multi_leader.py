"""Multi leader: several ranks of each node speak for it, each for its own slice of the vector.

Idea
    The vector is cut into one slice per leader. The ranks of a node reduce-scatter the slices to
    their leaders. The leaders of a slice, one on each node, all-reduce it; then the ranks of each
    node all-gather. So all of them have a share in the work, on the way between nodes too.

Picture, 5 ranks
    Ranks 0, 1, 2 share a node, and ranks 3, 4 another; so there are two leaders per node. Rank 1
    is an extra rank and rank 0 its proxy. The vector is abcd, its slices are ab and cd, and
    rabenseifner runs between the nodes::

        fold         0 <-- 1             0: x0 + x1
        within       0 <-> 2   3 <-> 4   0, 3 keep ab      2, 4 keep cd
        between      0 <-> 3   2 <-> 4   0: a   3: b       2: c   4: d
        between      0 <-> 3   2 <-> 4   0, 3: ab          2, 4: cd
        within       0 <-> 2   3 <-> 4   0, 2, 3, 4: abcd
        unfold       0 --> 1

Steps and bytes
    N nodes of g ranks each; h = floor(log2 g), g' = 2^h, K = ceil(log2 N), E = 1 where g is no
    power of two, else 0. 2h + 2E + 2K steps at a leader. Between nodes each of the g' leaders
    sends 2(N-1)/N n/g', together 2(N-1)/N n, the least that a node can; within nodes 2(g'-1)/g' n,
    a proxy n more, an extra rank n. Where nodes differ in size, the smallest says how many
    leaders each has: the largest power of two that is not above its number of ranks.

Cost
    (2h + 2E + 2K) alpha + (2(g'-1)/g' + 2E + 2(N-1)/N/g') n beta +
    ((g'-1)/g' + E + (N-1)/N/g') n gamma

Restrictions
    Commutative operations only.

Scratch
    n/2; n at a proxy, or where a node has one rank only.

Order and bits
    Within a node, rank order and one balanced expression, as in recursive_doubling. Between nodes,
    what the network algorithm does: usually rabenseifner, and circulant, which reorders operands,
    where the number of nodes is no power of two. Where ranks are dealt out to nodes in turn,
    operands leave rank order. Each element of the result has one expression, so all ranks end
    with the same bits. Where rabenseifner or recursive_doubling runs between nodes of equally many
    consecutive ranks, a power of two, the expression is that of recursive_doubling on all ranks.

Source
    Bayatpour, Chakraborty, Subramoni, Lu and Panda, "Scalable reduction collectives with data
    partitioning-based multi-leader design", SC 2017, doi:10.1145/3126908.3126954.
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
    pieces: int = 1,
) -> Schedule:
    """Return what `rank` of `size` ranks does to all-reduce `count` elements.

    See `levels.schedule`. Without a topology, all ranks share one node.
    """
    topology = levels.placed(topology, size)
    leaders = levels.most_leaders(topology)
    return levels.schedule(rank, topology, count, leaders, network, pieces)
