"""Ring: each rank sends one chunk to its right neighbour, again and again.

Idea
    In the reduce-scatter phase a chunk travels once around the ring and collects each rank's
    contribution on its way. In the all-gather phase the finished chunks go around once more, and
    every rank keeps a copy.

Picture, 5 ranks
    0 -> 1 -> 2 -> 3 -> 4 -> 0: the chunk that each rank sends to its right neighbour::

        step   rank 0   rank 1   rank 2   rank 3   rank 4
           0        4        0        1        2        3    reduce-scatter phase:
           1        3        4        0        1        2    the right neighbour adds its part
           2        2        3        4        0        1
           3        1        2        3        4        0
           4        0        1        2        3        4    all-gather phase: rank r now holds
           5        4        0        1        2        3    chunk r finished; the right
           6        3        4        0        1        2    neighbour copies
           7        2        3        4        0        1

Steps and bytes
    2(p-1) steps. Each rank sends and receives 2(p-1)/p n: less than 2n, however many ranks.
    Each phase is an algorithm of its own, with half of the steps and bytes: the first one
    for reduce-scatter, the second one for all-gather. Chunks may differ in size.

Cost
    2(p-1) alpha + 2(p-1)/p n beta + (p-1)/p n gamma

    Reduce-scatter: (p-1) alpha + (p-1)/p n beta + (p-1)/p n gamma
    All-gather: (p-1) alpha + (p-1)/p n beta

Restrictions
    Commutative operations only.

Scratch
    n/p: one chunk. The all-gather phase needs none.

Order and bits
    Chunk c is the sum that starts at rank c+1 and ends at rank c, so operands are rotated and an
    element's bits depend on the chunk it lies in. Each chunk is worked out once and then copied,
    so all ranks end with the same bits.

Source
    Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations",
    Journal of Parallel and Distributed Computing 69 (2009), doi:10.1016/j.jpdc.2008.09.002.
"""

from hpccoll.chunks import Range, chunks, cut
from hpccoll.schedule import Action, Schedule, ScheduleBuilder


def schedule(rank: int, size: int, count: int) -> Schedule:
    """Return what `rank` of `size` ranks does to all-reduce `count` elements."""
    chunk = chunks(count, size)
    steps = ScheduleBuilder(rank, size, count)
    add_reduce_scatter(steps, chunk)
    add_allgather(steps, chunk)
    return steps.finish()


def reduce_scatter(
    rank: int, size: int, count: int, counts: tuple[int, ...] | None = None
) -> Schedule:
    """Return what `rank` does to end with its chunk of the sum; `counts` are the chunks' sizes."""
    steps = ScheduleBuilder(rank, size, count)
    add_reduce_scatter(steps, cut(count, size, counts))
    return steps.finish()


def allgather(rank: int, size: int, count: int, counts: tuple[int, ...] | None = None) -> Schedule:
    """Return what `rank` does to end with the chunks of all; `counts` are the chunks' sizes."""
    steps = ScheduleBuilder(rank, size, count)
    add_allgather(steps, cut(count, size, counts))
    return steps.finish()


def add_reduce_scatter(steps: ScheduleBuilder, chunk: tuple[Range, ...]) -> None:
    """Add the first phase: each rank ends with its own chunk, reduced over all ranks."""
    rank, size = steps.rank, steps.size
    right, left = (rank + 1) % size, (rank - 1) % size
    parts = [(part,) for part in chunk]
    for step in range(size - 1):
        sent, received = (rank - 1 - step) % size, (rank - 2 - step) % size
        steps.exchange(right, parts[sent], left, parts[received], Action.REDUCE_LEFT)


def add_allgather(steps: ScheduleBuilder, chunk: tuple[Range, ...]) -> None:
    """Add the second phase: each rank brings its own chunk, and all end with all of them."""
    rank, size = steps.rank, steps.size
    right, left = (rank + 1) % size, (rank - 1) % size
    parts = [(part,) for part in chunk]
    for step in range(size - 1):
        sent, received = (rank - step) % size, (rank - 1 - step) % size
        steps.exchange(right, parts[sent], left, parts[received], Action.COPY)
