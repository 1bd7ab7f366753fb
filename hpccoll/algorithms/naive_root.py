"""Naive root: one rank collects all vectors, reduces them, and hands out the result.

Idea
    Rank 0 receives the whole vector of each other rank, in rank order, and adds it to its own.
    Then it sends the result to each of them, one after the other.

Picture, 5 ranks
    ::

        collect                                      hand out
        0 <-- 1   x0 + x1                            0 --> 1
        0 <-- 2   (x0 + x1) + x2                     0 --> 2
        0 <-- 3   ((x0 + x1) + x2) + x3              0 --> 3
        0 <-- 4   (((x0 + x1) + x2) + x3) + x4       0 --> 4

Steps and bytes
    2(p-1) steps at the root, 2 elsewhere. The root receives (p-1) n and sends (p-1) n, so
    2(p-1) n pass through it; every other rank sends n and receives n. To collect alone is an
    algorithm for reduce, to hand out alone one for broadcast; there any rank may be the root.

Cost
    2(p-1) alpha + 2(p-1) n beta + (p-1) n gamma

    Reduce: (p-1) alpha + (p-1) n beta + (p-1) n gamma
    Broadcast: (p-1) alpha + (p-1) n beta

Restrictions
    None. It is here to be compared with: its time grows with p times n.

Scratch
    n, at the root. To hand out needs none.

Order and bits
    Rank order, x0 + x1 + x2 + ..., from left to right. One expression for all elements, worked out
    once, so all ranks end with the same bits.

    A root r that is not rank 0 collects from r-1 down to 0, with what comes in as the left operand,
    and then from r+1 up: x0 + (x1 + x2) + x3 for root 2. That is rank order too, but each root has
    its own expression.

Source
    The linear algorithm in Pjesivac-Grbovic et al., "Performance analysis of MPI collective
    operations", Cluster Computing 10 (2007), doi:10.1007/s10586-007-0012-0.
"""

from hpccoll.chunks import Range
from hpccoll.schedule import Action, Schedule, ScheduleBuilder


def schedule(rank: int, size: int, count: int) -> Schedule:
    """Return what `rank` of `size` ranks does to all-reduce `count` elements."""
    steps = ScheduleBuilder(rank, size, count)
    _add_collect(steps, 0)
    _add_hand_out(steps, 0)
    return steps.finish()


def reduce(rank: int, size: int, count: int, root: int = 0) -> Schedule:
    """Return what `rank` of `size` ranks does so that `root` ends with the sum."""
    steps = ScheduleBuilder(rank, size, count)
    _add_collect(steps, root)
    return steps.finish()


def broadcast(rank: int, size: int, count: int, root: int = 0) -> Schedule:
    """Return what `rank` of `size` ranks does so that all end with what `root` has."""
    steps = ScheduleBuilder(rank, size, count)
    _add_hand_out(steps, root)
    return steps.finish()


def _add_collect(steps: ScheduleBuilder, root: int) -> None:
    whole = [Range(0, steps.count)]
    if steps.rank < root:
        steps.send(root, whole, Action.REDUCE_LEFT)
    elif steps.rank > root:
        steps.send(root, whole, Action.REDUCE_RIGHT)
    else:
        for peer in reversed(range(root)):
            steps.receive(peer, whole, Action.REDUCE_LEFT)
        for peer in range(root + 1, steps.size):
            steps.receive(peer, whole, Action.REDUCE_RIGHT)


def _add_hand_out(steps: ScheduleBuilder, root: int) -> None:
    whole = [Range(0, steps.count)]
    if steps.rank != root:
        steps.receive(root, whole, Action.COPY)
        return
    for peer in range(steps.size):
        if peer != root:
            steps.send(peer, whole, Action.COPY)
