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
    2(p-1) n pass through it; every other rank sends n and receives n.

Cost
    2(p-1) alpha + 2(p-1) n beta + (p-1) n gamma

Restrictions
    None. It is here to be compared with: its time grows with p times n.

Scratch
    n, at the root.

Order and bits
    Rank order, x0 + x1 + x2 + ..., from left to right. One expression for all elements, worked out
    once, so all ranks end with the same bits.

Source
    The linear algorithm in Pjesivac-Grbovic et al., "Performance analysis of MPI collective
    operations", Cluster Computing 10 (2007), doi:10.1007/s10586-007-0012-0.
"""

from hpccoll.chunks import Range
from hpccoll.schedule import Action, Schedule, ScheduleBuilder

ROOT = 0


def schedule(rank: int, size: int, count: int) -> Schedule:
    """Return what `rank` of `size` ranks does to all-reduce `count` elements."""
    whole = [Range(0, count)]
    others = [peer for peer in range(size) if peer != ROOT]
    steps = ScheduleBuilder(rank, size, count)
    if rank == ROOT:
        for peer in others:
            steps.receive(peer, whole, Action.REDUCE_RIGHT)
        for peer in others:
            steps.send(peer, whole, Action.COPY)
    else:
        steps.send(ROOT, whole, Action.REDUCE_RIGHT)
        steps.receive(ROOT, whole, Action.COPY)
    return steps.finish()
