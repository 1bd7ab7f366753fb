"""Circulant: half of the chunks to a far rank, then a quarter to a nearer one, and so on.

Idea
    The skips p, ceil(p/2), ceil(p/4), ..., 1 tell how far a message goes. In the reduce-scatter
    phase a rank passes on, at each skip, the chunks that lie at least that far to its right; what
    it keeps in the end is its own chunk, finished, and the all-gather phase walks back.

Picture, 5 ranks
    The skips are 5, 3, 2, 1. What rank r sends, with ranks and chunks counted modulo 5::

        step   to    chunks
           0   r+3   r+3 r+4    reduce-scatter phase: the receiver adds its part
           1   r+2   r+2
           2   r+1   r+1
           3   r-1   r          all-gather phase: r is finished, the receiver copies
           4   r-2   r
           5   r-3   r r+1

Steps and bytes
    2 ceil(log2 p) steps, for any p. Each rank sends and receives 2(p-1)/p n, as little as can be.
    (Where p does not divide n, ranks may differ by a few elements.) A message is at most two
    ranges of the vector. Each phase is an algorithm of its own, with half of the steps and bytes:
    the first one for reduce-scatter, the second one for all-gather. Chunks may differ in size.

Cost
    With L = ceil(log2 p): 2L alpha + 2(p-1)/p n beta + (p-1)/p n gamma

    Reduce-scatter: L alpha + (p-1)/p n beta + (p-1)/p n gamma
    All-gather: L alpha + (p-1)/p n beta

Restrictions
    Commutative operations only.

Scratch
    floor(p/2) chunks: n/2, or a little less. The all-gather phase needs none.

Order and bits
    Operands are reordered, and where p is no power of two an element's bits depend on the chunk
    it lies in. Each chunk is worked out once and then copied, so all ranks end with the same
    bits.

Source
    Traeff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", arXiv:2410.14234.
"""

from hpccoll.chunks import Range, around, chunks, cut
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
    for skip, wider in _hops(size):
        far = around(chunk, rank + skip, rank + wider)
        near = around(chunk, rank, rank + wider - skip)
        to, source = (rank + skip) % size, (rank - skip) % size
        steps.exchange(to, far, source, near, Action.REDUCE_LEFT)


def add_allgather(
    steps: ScheduleBuilder, chunk: tuple[Range, ...], has_all: int | None = None
) -> None:
    """Add the second phase: each rank brings its own chunk, and all end with all of them.

    Nothing is sent to the rank that `has_all`, if there is one.
    """
    rank, size = steps.rank, steps.size
    for skip, wider in reversed(_hops(size)):
        near = around(chunk, rank, rank + wider - skip)
        far = around(chunk, rank + skip, rank + wider)
        to, source = (rank - skip) % size, (rank + skip) % size
        sent, received = [] if to == has_all else near, [] if rank == has_all else far
        steps.exchange(to, sent, source, received, Action.COPY)


def _hops(size: int) -> list[tuple[int, int]]:
    """Return each skip but the widest, with the next wider one, from wide to narrow."""
    skips = [size]
    while skips[-1] > 1:
        skips.append((skips[-1] + 1) // 2)
    return list(zip(skips[1:], skips, strict=False))
