"""Recursive doubling: pairs exchange whole vectors, at distance 1, 2, 4, ...

Idea
    After the exchange at distance d a rank holds the sum over a group of 2d ranks, and so after
    log2 p exchanges the sum over all. Where p is no power of two, each extra rank first hands
    its vector to the rank before it, its proxy, and gets the result at the end.

Picture, 5 ranks
    Rank 1 is an extra rank and rank 0 its proxy; ranks 0, 2, 3, 4 remain::

        fold         0 <-- 1             0: x0 + x1
        distance 1   0 <-> 2   3 <-> 4   0, 2: (x0 + x1) + x2      3, 4: x3 + x4
        distance 2   0 <-> 3   2 <-> 4   all: ((x0 + x1) + x2) + (x3 + x4)
        unfold       0 --> 1

Steps and bytes
    With m = floor(log2 p) and F = 1 where p is no power of two, else 0: m + 2F steps at a proxy,
    m at the other ranks that remain, 2 at an extra rank. Each sends and receives m n, a proxy n
    more, an extra rank n.

Cost
    (m + 2F) alpha + (m + 2F) n beta + (m + F) n gamma

Restrictions
    None.

Scratch
    n.

Order and bits
    Rank order: the vector of the lower rank is the left operand. One balanced expression for all
    elements, the same on all ranks although each works it out itself. It is also the expression
    of rabenseifner: the two give the same bits.

Source
    Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in
    MPICH", Int. J. High Performance Computing Applications 19 (2005),
    doi:10.1177/1094342005051521.
"""

from hpccoll.chunks import Range
from hpccoll.schedule import Action, Fold, Schedule, ScheduleBuilder


def schedule(rank: int, size: int, count: int) -> Schedule:
    """Return what `rank` of `size` ranks does to all-reduce `count` elements."""
    whole = [Range(0, count)]
    fold = Fold(size)
    steps = ScheduleBuilder(rank, size, count)
    if fold.is_extra(rank):
        steps.send(rank - 1, whole, Action.REDUCE_RIGHT)
        steps.receive(rank - 1, whole, Action.COPY)
        return steps.finish()
    if fold.is_proxy(rank):
        steps.receive(rank + 1, whole, Action.REDUCE_RIGHT)
    for partner in fold.partners(rank):
        side = Action.REDUCE_LEFT if partner < rank else Action.REDUCE_RIGHT
        steps.exchange(partner, whole, partner, whole, side)
    if fold.is_proxy(rank):
        steps.send(rank + 1, whole, Action.COPY)
    return steps.finish()
