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
    ranges of the vector.

Cost
    With L = ceil(log2 p): 2L alpha + 2(p-1)/p n beta + (p-1)/p n gamma

Restrictions
    Commutative operations only.

Scratch
    floor(p/2) chunks: n/2, or a little less.

Order and bits
    Operands are reordered, and where p is no power of two an element's bits depend on the chunk
    it lies in. Each chunk is worked out once and then copied, so all ranks end with the same
    bits.

Source
    Traeff, "Optimal, non-pipelined reduce-scatter and allreduce algorithms", arXiv:2410.14234.
"""

from hpccoll.chunks import Range, chunks
from hpccoll.schedule import Action, Schedule, ScheduleBuilder


def schedule(rank: int, size: int, count: int) -> Schedule:
    """Return what `rank` of `size` ranks does to all-reduce `count` elements."""
    chunk = chunks(count, size)
    steps = ScheduleBuilder(rank, size, count)

    def relative(first: int, stop: int) -> list[Range]:
        """Chunks `first` to ``stop - 1``, counted from this rank's own; two ranges if they wrap."""
        start, stop = (rank + first) % size, (rank + first) % size + stop - first
        if stop <= size:
            return [Range(chunk[start].start, chunk[stop - 1].stop)]
        return [Range(chunk[start].start, count), Range(0, chunk[stop - size - 1].stop)]

    skips = [size]
    while skips[-1] > 1:
        skips.append((skips[-1] + 1) // 2)
    hops = list(zip(skips[1:], skips, strict=False))
    for skip, wider in hops:
        to, source = (rank + skip) % size, (rank - skip) % size
        far, near = relative(skip, wider), relative(0, wider - skip)
        steps.exchange(to, far, source, near, Action.REDUCE_LEFT)
    for skip, wider in reversed(hops):
        to, source = (rank - skip) % size, (rank + skip) % size
        near, far = relative(0, wider - skip), relative(skip, wider)
        steps.exchange(to, near, source, far, Action.COPY)
    return steps.finish()
