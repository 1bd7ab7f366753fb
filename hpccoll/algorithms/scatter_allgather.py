"""Scatter, all-gather: the root hands out one chunk per rank, and the ranks share their chunks.

Idea
    A binomial tree brings each rank its own chunk from the root: ranks count from the root on, and
    each passes on, half by half, what belongs to others. Then the all-gather phase of `circulant`
    gives every rank the chunks of all. So the root sends one vector instead of one per child.

Picture, 5 ranks
    The root is rank 1. What is sent before the all-gather phase of `circulant`::

        from   to   chunks
           1    0   0
           1    3   3 4
           3    4   4
           1    2   2

Steps and bytes
    With L = ceil(log2 p): 2L steps at the root. It sends (p-1)/p n, in messages of at most two
    ranges, and in the second phase each rank sends up to (p-1)/p n, and all but the root receive
    that much. Nobody writes to the root's vector; others receive some of what they have already.

Cost
    2L alpha + 2(p-1)/p n beta

Restrictions
    None: nothing is reduced.

Scratch
    None.

Order and bits
    What the root has is copied.

Source
    Scatter and all-gather for broadcast: Thakur, Rabenseifner and Gropp, "Optimization of
    collective communication operations in MPICH", Int. J. High Performance Computing Applications
    19 (2005), doi:10.1177/1094342005051521; the all-gather phase: see `circulant`.
"""

from hpccoll.algorithms import binomial, circulant
from hpccoll.chunks import around, chunks
from hpccoll.schedule import Schedule, ScheduleBuilder


def broadcast(rank: int, size: int, count: int, root: int = 0) -> Schedule:
    """Return what `rank` of `size` ranks does so that all end with what `root` has."""
    chunk = chunks(count, size)
    steps = ScheduleBuilder(rank, size, count)
    binomial.add_scatter(
        steps,
        binomial.from_root(size, root),
        lambda start, stop: around(chunk, root + start, root + stop),
    )
    circulant.add_allgather(steps, chunk, has_all=root)
    return steps.finish()
