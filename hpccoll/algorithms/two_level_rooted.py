"""Two level, for reduce and broadcast: one leader per node speaks for its ranks.

Idea
    Each node has a leader: the root in its own node, the lowest rank in any other. To reduce, the
    ranks of a node reduce their vectors to the leader by a binomial tree, and then the leaders
    reduce theirs to the root by a flat algorithm, the network algorithm. To broadcast, the leaders
    come first, and then the trees hand out.

Picture, 5 ranks
    Ranks 0, 1, 2 share a node, and ranks 3, 4 another; the root is rank 1. Reduce::

        within    0 --> 1   3 <-- 4   1: x0 + x1      3: x3 + x4
        within    1 <-- 2             1: (x0 + x1) + x2
        between   1 <-- 3             1: ((x0 + x1) + x2) + (x3 + x4)

    `binomial` runs between the nodes. Broadcast walks back, and copies.

Steps and bytes
    N nodes of g ranks each; G = ceil(log2 g), K = ceil(log2 N). G steps within nodes, and between
    them those of the network algorithm: 2K for `reduce_scatter_gather` and `scatter_allgather`, K
    for `binomial`. Only leaders send to other nodes; within nodes each rank but the leader sends
    n to reduce, and receives n in a broadcast.

Cost
    Reduce: (G + 2K) alpha + (G + 2(N-1)/N) n beta + (G + (N-1)/N) n gamma

    Broadcast: (G + 2K) alpha + (G + 2(N-1)/N) n beta

Restrictions
    To reduce, commutative operations only.

Scratch
    n, to reduce.

Order and bits
    Within a node, rank order and the expression of `binomial`; between nodes, what the network
    algorithm does: usually `reduce_scatter_gather`, which reorders operands. With `binomial` or
    `naive_root` between nodes of consecutive ranks, rank order is kept.

Source
    Kielmann, Hofman, Bal, Plaat and Bhoedjang, "MagPIe: MPI's collective communication operations
    for clustered wide area systems", PPoPP 1999, doi:10.1145/301104.301116.
"""

from collections.abc import Callable

from hpccoll.algorithms import binomial, reduce_scatter_gather, scatter_allgather
from hpccoll.algorithms.levels import placed
from hpccoll.chunks import Range
from hpccoll.schedule import Schedule, ScheduleBuilder
from hpccoll.topology import Topology


def reduce(
    rank: int,
    size: int,
    count: int,
    root: int = 0,
    topology: Topology | None = None,
    between: Callable[..., Schedule] = reduce_scatter_gather.reduce,
) -> Schedule:
    """Return what `rank` of `size` ranks does so that `root` ends with the sum.

    `between` is the schedule of what runs between leaders. Without a topology, all ranks share one
    node.
    """
    topology = placed(topology, size)
    leader, peers = leaders(topology, root), topology.peers(rank)
    own = leader[topology.nodes[rank]]
    steps = ScheduleBuilder(rank, size, count)
    binomial.add_reduce(steps, peers, peers.index(own))
    if rank == own:
        _add_between(steps, topology, leader, root, between)
    return steps.finish()


def broadcast(
    rank: int,
    size: int,
    count: int,
    root: int = 0,
    topology: Topology | None = None,
    between: Callable[..., Schedule] = scatter_allgather.broadcast,
) -> Schedule:
    """Return what `rank` of `size` ranks does so that all end with what `root` has.

    See `reduce` for the parameters.
    """
    topology = placed(topology, size)
    leader, peers = leaders(topology, root), topology.peers(rank)
    own = leader[topology.nodes[rank]]
    steps = ScheduleBuilder(rank, size, count)
    if rank == own:
        _add_between(steps, topology, leader, root, between)
    binomial.add_broadcast(steps, peers, peers.index(own))
    return steps.finish()


def leaders(topology: Topology, root: int) -> list[int]:
    """Return the leader of each node: the root in its own, the lowest rank in any other."""
    leader = [topology.members(node)[0] for node in range(topology.node_count)]
    leader[topology.nodes[root]] = root
    return leader


def _add_between(
    steps: ScheduleBuilder,
    topology: Topology,
    leader: list[int],
    root: int,
    between: Callable[..., Schedule],
) -> None:
    node, head = topology.nodes[steps.rank], topology.nodes[root]
    inner = between(node, topology.node_count, steps.count, root=head)
    for step in inner.steps:
        steps.add(step, Range(0, steps.count), leader)
