"""Reduce-scatter, gather: each rank works out one chunk, and the root collects the chunks.

Idea
    The reduce-scatter phase of `circulant` leaves every rank with its own chunk of the sum. Then a
    binomial tree brings the chunks to the root: ranks count from the root on, and each sends, at
    once, all that it has collected.

Picture, 5 ranks
    The root is rank 1. What is sent after the reduce-scatter phase of `circulant`::

        from   to   chunks
           2    1   2
           4    3   4
           3    1   3 4
           0    1   0

Steps and bytes
    With L = ceil(log2 p): 2L steps at the root. In the first phase each rank sends and receives
    (p-1)/p n, in the second the root receives (p-1)/p n, and another rank sends up to n/2, in one
    message of at most two ranges.

Cost
    2L alpha + 2(p-1)/p n beta + (p-1)/p n gamma

Restrictions
    Commutative operations only.

Scratch
    floor(p/2) chunks: n/2, or a little less.

Order and bits
    Those of `circulant`, whichever rank is the root: operands are reordered, and where p is no
    power of two an element's bits depend on the chunk it lies in.

Source
    Reduce-scatter and gather for reduce: Rabenseifner, "Optimization of collective reduction
    operations", ICCS 2004, LNCS 3036, doi:10.1007/978-3-540-24685-5_1; the reduce-scatter phase:
    see `circulant`.
"""

from hpccoll.algorithms import binomial, circulant
from hpccoll.chunks import around, chunks
from hpccoll.schedule import Schedule, ScheduleBuilder


def reduce(rank: int, size: int, count: int, root: int = 0) -> Schedule:
    """Return what `rank` of `size` ranks does so that `root` ends with the sum."""
    chunk = chunks(count, size)
    steps = ScheduleBuilder(rank, size, count)
    circulant.add_reduce_scatter(steps, chunk)
    binomial.add_gather(
        steps,
        binomial.from_root(size, root),
        lambda start, stop: around(chunk, root + start, root + stop),
    )
    return steps.finish()
