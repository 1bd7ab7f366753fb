"""What hierarchical algorithms are put together from: up within nodes, between them, down again.

The vector is cut into one slice per leader. The leaders of a node are its ranks with the new
numbers 0, 1, 2, ... after `Fold` of the node's ranks, and leader l ends the way up with slice l,
reduced over its node. Then leader l of each node and leader l of every other node all-reduce
slice l by a flat algorithm, the network algorithm. The way down is the way up, backwards.

Up
    Extra ranks hand the whole vector to their proxies. Then partners at distance 1, 2, 4, ... (in
    new numbers, nearest first, as in `rabenseifner`) share out what they hold: slice l goes to
    the one whose number has the same next bit as l. After k exchanges a rank holds the slices whose
    numbers end in the k bits that its own ends in, and in the end only leader l holds slice l.
"""

import functools
from collections import defaultdict
from collections.abc import Iterator

from hpccoll.algorithms.flat import FLAT, by_count
from hpccoll.chunks import Range, chunks
from hpccoll.schedule import Action, Fold, Schedule, ScheduleBuilder, Step
from hpccoll.topology import Topology


def most_leaders(topology: Topology) -> int:
    """Return how many leaders every node can have: a power of two, so that slices can be shared."""
    return Fold(topology.smallest).power


def leader(topology: Topology, node: int, slice_number: int) -> int:
    """Return the rank of a node that leads a slice."""
    members = topology.members(node)
    return members[Fold(len(members)).rank(slice_number)]


def slice_of(rank: int, topology: Topology, leaders: int) -> int | None:
    """Return the slice that a rank leads; None where it is no leader."""
    fold, local = Fold(len(topology.peers(rank))), topology.local(rank)
    number = fold.number(local)
    return None if fold.is_extra(local) or number >= leaders else number


def schedule(
    rank: int, topology: Topology, count: int, leaders: int, network: str = "", pieces: int = 1
) -> Schedule:
    """Return what `rank` does to all-reduce `count` elements over a topology.

    Parameters
    ----------
    rank, count : int
        Which rank, and elements of the vector.
    topology : Topology
        Of all ranks.
    leaders : int
        Leaders per node: a power of two, up to `most_leaders`.
    network, pieces
        As in `between`.
    """
    peers, local = topology.peers(rank), topology.local(rank)
    fold = Fold(len(peers))
    whole = Range(0, count)
    steps = ScheduleBuilder(rank, topology.size, count)
    if fold.is_extra(local):
        proxy = peers[local - 1]
        steps.send(proxy, [whole], Action.REDUCE_RIGHT)
        steps.receive(proxy, [whole], Action.COPY)
        return steps.finish()
    if fold.is_proxy(local):
        steps.receive(peers[local + 1], [whole], Action.REDUCE_RIGHT)
    slices = chunks(count, leaders)
    shared = []
    for level, partner in enumerate(fold.partners(local)):
        keep, give = _shares(fold.number(local), level, slices)
        side = Action.REDUCE_LEFT if partner < local else Action.REDUCE_RIGHT
        steps.exchange(peers[partner], give, peers[partner], keep, side)
        shared.append((peers[partner], keep, give))
    number = slice_of(rank, topology, leaders)
    if number is not None:
        _add_between(steps, topology, number, slices[number], network, pieces)
    for peer, kept, given in reversed(shared):
        steps.exchange(peer, kept, peer, given, Action.COPY)
    if fold.is_proxy(local):
        steps.send(peers[local + 1], [whole], Action.COPY)
    return steps.finish()


def _shares(
    number: int, level: int, slices: tuple[Range, ...]
) -> tuple[tuple[Range, ...], tuple[Range, ...]]:
    """Return what the rank with that new number keeps at a level, and what it gives away."""
    distance = 1 << level
    held = slices[number % distance :: distance]
    return (held[1::2], held[::2]) if number & distance else (held[::2], held[1::2])


def placed(topology: Topology | None, size: int) -> Topology:
    """Return the topology of `size` ranks: the one that is given, or else one node.

    Raises
    ------
    ValueError
        If it is that of another number of ranks.
    """
    if topology is None:
        return Topology.one_node(size)
    if topology.size != size:
        raise ValueError(f"the topology is that of {topology.size} ranks, and there are {size}")
    return topology


def between(
    rank: int,
    topology: Topology,
    count: int,
    network: str = "",
    pieces: int = 1,
    *,
    leaders: int | None = None,
) -> Schedule:
    """Return what `rank` does between nodes, to all-reduce the slice that it leads.

    The slice is cut into pieces, each of which is all-reduced by itself. The pieces start one slot
    after the other, so that while the first steps of one are on the wire, later ones of another
    are reduced.

    Parameters
    ----------
    rank : int
        Which rank. One that leads no slice has nothing to do.
    topology : Topology
        Of all ranks; the peers in the result are ranks of it.
    count : int
        Elements of the slice; ranges in the result count from its start.
    network : str
        Name of the flat algorithm in which nodes stand for ranks. Empty for the usual one:
        "rabenseifner" for a power of two of nodes, "circulant" for other numbers, and
        "recursive_doubling" where there are fewer elements than nodes.
    pieces : int
        Number of pieces.
    leaders : int, optional
        Leaders per node; by default as many as there can be.
    """
    if leaders is None:
        leaders = most_leaders(topology)
    number = slice_of(rank, topology, leaders)
    steps = ScheduleBuilder(rank, topology.size, count)
    if number is not None:
        _add_between(steps, topology, number, Range(0, count), network, pieces)
    return steps.finish()


def _add_between(
    steps: ScheduleBuilder,
    topology: Topology,
    number: int,
    part: Range,
    network: str,
    pieces: int,
) -> None:
    """Add what the leader of a slice does between nodes; the slice is a part of the vector."""
    nodes, node = topology.node_count, topology.nodes[steps.rank]
    if nodes == 1:
        return
    name = network or by_count(nodes, part.count)
    ranks = [leader(topology, peer, number) for peer in range(nodes)]
    slots = _slots(name, nodes)[node] if pieces > 1 else None
    windows = [
        Range(part.start + start, part.start + stop) for start, stop in chunks(part.count, pieces)
    ]
    plan: list[tuple[int, int, Step]] = []
    for piece, window in enumerate(windows):
        # A piece of fewer elements than nodes is a part of one that has enough: so its steps are
        # the same ones, up to those without elements.
        inner = FLAT[name].schedule(node, nodes, max(window.count, nodes)).steps
        plan += (
            (piece + (slots[position] if slots else position), piece, step)
            for position, step in enumerate(inner)
        )
    for _, piece, step in sorted(plan, key=lambda entry: entry[:2]):
        steps.add(step, windows[piece], ranks)


@functools.lru_cache(maxsize=64)
def _slots(network: str, nodes: int) -> tuple[tuple[int, ...], ...]:
    """Return, for each node, the slot of each of its steps: equal at both ends of a message.

    The number of a step will not do: the extra rank of a fold has two steps, and receives in its
    second one what its proxy sends in its last. Pieces skewed by that number would have it wait
    for the end of one piece before it sends the next, which its proxy waits for. Where both ends
    have a message in the same slot, and go through pieces in the same order in each slot, every
    rank goes through its steps in one common order; so none waits for another in a circle, and
    messages are received in the order in which they were sent.
    """
    schedules = [FLAT[network].schedule(node, nodes, nodes).steps for node in range(nodes)]
    slots = [list(range(len(steps))) for steps in schedules]
    matches = list(_matches(schedules))
    moved = True
    while moved:
        moved = False
        for (one, i), (other, j) in matches:
            latest = max(slots[one][i], slots[other][j])
            for node, position in ((one, i), (other, j)):
                if slots[node][position] < latest:
                    moved = True
                    # What stands behind moves along as far as it is pushed.
                    for k in range(position, len(slots[node])):
                        if slots[node][k] >= latest + k - position:
                            break
                        slots[node][k] = latest + k - position
    return tuple(map(tuple, slots))


_End = tuple[int, int]
"""A step, as one end of a message: its rank, and its place among the steps of that rank."""


def _matches(schedules: list[tuple[Step, ...]]) -> Iterator[tuple[_End, _End]]:
    """Yield both ends of each message."""
    sends: dict[tuple[int, int], list[_End]] = defaultdict(list)
    receives: dict[tuple[int, int], list[_End]] = defaultdict(list)
    for rank, steps in enumerate(schedules):
        for position, step in enumerate(steps):
            if step.send_to is not None:
                sends[rank, step.send_to].append((rank, position))
            if step.receive_from is not None:
                receives[step.receive_from, rank].append((rank, position))
    for route, ends in sends.items():
        yield from zip(ends, receives[route], strict=True)
