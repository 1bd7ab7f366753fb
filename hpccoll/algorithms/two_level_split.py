"""Two level, for reduce-scatter, all-gather and barrier: one leader per node speaks for its ranks.

Idea
    The leader of a node is its lowest rank, and the chunk of a node is what the chunks of its ranks
    are together. Reduce-scatter: the ranks of a node reduce their vectors to the leader by a
    binomial tree, the leaders reduce-scatter the chunks of the nodes by a flat algorithm, the
    network algorithm, and a binomial tree hands out the chunks of the ranks. All-gather: the
    leader collects the chunks of its ranks, the leaders all-gather the chunks of the nodes, and a
    tree hands out the whole vector. A barrier is that all-gather, of tokens.

Picture, 5 ranks
    Ranks 0, 1, 2 share a node, and ranks 3, 4 another. All-gather, with the chunks sent::

        within    0 <-- 1   3 <-- 4   1         4
        within    0 <-- 2             2
        between   0 <-> 3             3 4       0 1 2
        within    0 --> 2   3 --> 4   0 1 2 3 4   0 1 2 3 4
        within    0 --> 1             0 1 2 3 4

    Reduce-scatter walks back: whole vectors to the leaders, single chunks from them.

Steps and bytes
    N nodes of g ranks each; G = ceil(log2 g), K = ceil(log2 N). 2G + K steps at a leader. Between
    nodes it sends (N-1)/N n, the least that a node can; within nodes whole vectors go one way, and
    chunks the other. Where the ranks of a node are not consecutive, a message has several ranges.

Cost
    Reduce-scatter:
    (2G + K) alpha + (G + (N-1)/N + (g-1)/p) n beta + (G + (N-1)/N) n gamma

    All-gather: (2G + K) alpha + (G + (N-1)/N + (g-1)/p) n beta

    Barrier: (2G + K) alpha

Restrictions
    Reduce-scatter: commutative operations only.

Scratch
    n, for reduce-scatter.

Order and bits
    Within a node, rank order and the expression of `binomial`; between nodes, what the network
    algorithm does: `circulant`, or `ring`, which reorder operands.

Source
    Kielmann, Hofman, Bal, Plaat and Bhoedjang, "MagPIe: MPI's collective communication operations
    for clustered wide area systems", PPoPP 1999, doi:10.1145/301104.301116.
"""

from bisect import bisect_right
from collections.abc import Callable, Iterable
from itertools import accumulate

from hpccoll.algorithms import binomial, circulant, dissemination
from hpccoll.algorithms.levels import placed
from hpccoll.chunks import Range, cut, joined
from hpccoll.schedule import Schedule, ScheduleBuilder
from hpccoll.topology import Topology


def reduce_scatter(
    rank: int,
    size: int,
    count: int,
    counts: tuple[int, ...] | None = None,
    topology: Topology | None = None,
    between: Callable[..., Schedule] = circulant.reduce_scatter,
) -> Schedule:
    """Return what `rank` does to end with its chunk of the sum; `counts` are the chunks' sizes.

    `between` is the schedule of what runs between leaders. Without a topology, all ranks share one
    node.
    """
    topology, chunk = placed(topology, size), cut(count, size, counts)
    peers = topology.peers(rank)
    steps = ScheduleBuilder(rank, size, count)
    binomial.add_reduce(steps, peers, 0)
    if rank == peers[0]:
        _add_between(steps, topology, chunk, between)
    binomial.add_scatter(steps, peers, _chunks_of(peers, chunk))
    return steps.finish()


def allgather(
    rank: int,
    size: int,
    count: int,
    counts: tuple[int, ...] | None = None,
    topology: Topology | None = None,
    between: Callable[..., Schedule] = circulant.allgather,
) -> Schedule:
    """Return what `rank` does to end with the chunks of all. See `reduce_scatter`."""
    topology, chunk = placed(topology, size), cut(count, size, counts)
    peers = topology.peers(rank)
    steps = ScheduleBuilder(rank, size, count)
    binomial.add_gather(steps, peers, _chunks_of(peers, chunk))
    if rank == peers[0]:
        _add_between(steps, topology, chunk, between)
    binomial.add_broadcast(steps, peers, 0)
    return steps.finish()


def barrier(
    rank: int,
    size: int,
    count: int,
    topology: Topology | None = None,
    between: Callable[..., Schedule] = dissemination.barrier,
) -> Schedule:
    """Return what `rank` does to have the tokens of all: an all-gather of them."""
    return allgather(rank, size, count, None, topology, between)


def node_counts(topology: Topology, chunk: tuple[Range, ...]) -> tuple[int, ...]:
    """Return how many elements the chunk of each node has."""
    return tuple(
        sum(chunk[rank].count for rank in topology.members(node))
        for node in range(topology.node_count)
    )


def _chunks_of(
    ranks: tuple[int, ...], chunk: tuple[Range, ...]
) -> Callable[[int, int], list[Range]]:
    return lambda start, stop: joined(chunk[rank] for rank in ranks[start:stop])


def _add_between(
    steps: ScheduleBuilder,
    topology: Topology,
    chunk: tuple[Range, ...],
    between: Callable[..., Schedule],
) -> None:
    """Add what a leader does: the network algorithm's steps, on a vector sorted by node."""
    nodes, node = topology.node_count, topology.nodes[steps.rank]
    leader = [topology.members(number)[0] for number in range(nodes)]
    by_node = [chunk[rank] for number in range(nodes) for rank in topology.members(number)]
    starts = list(accumulate((part.count for part in by_node), initial=0))

    def spread(ranges: Iterable[Range]) -> list[Range]:
        """Return where elements of the sorted vector really are."""
        found = []
        for start, stop in ranges:
            place = bisect_right(starts, start) - 1
            while start < stop:
                end = min(stop, starts[place + 1])
                first = by_node[place].start + start - starts[place]
                found.append(Range(first, first + end - start))
                start, place = end, place + 1
        return joined(sorted(found))

    inner = between(node, nodes, steps.count, counts=node_counts(topology, chunk))
    for step in inner.steps:
        to, source = (
            -1 if peer is None else leader[peer] for peer in (step.send_to, step.receive_from)
        )
        steps.exchange(to, spread(step.send), source, spread(step.receive), step.action)
