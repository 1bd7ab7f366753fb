"""Rabenseifner: pairs exchange halves of halves, and then put them together again.

Idea
    In the reduce-scatter phase partners at distance 1, 2, 4, ... halve what they share: each keeps
    one half, reduces it, and gives the other away. The all-gather phase walks back, and partners
    copy each other's finished part. Where p is no power of two, each extra rank first hands its
    vector to the rank before it, its proxy, and gets the result at the end.

Picture, 5 ranks
    Rank 1 is an extra rank and rank 0 its proxy. The vector is abcd, four quarters::

        fold         0 <-- 1             0: x0 + x1
        distance 1   0 <-> 2   3 <-> 4   0, 3 keep ab      2, 4 keep cd
        distance 2   0 <-> 3   2 <-> 4   0: a   3: b       2: c   4: d
        distance 2   0 <-> 3   2 <-> 4   0, 3: ab          2, 4: cd
        distance 1   0 <-> 2   3 <-> 4   0, 2, 3, 4: abcd
        unfold       0 --> 1

Steps and bytes
    With m = floor(log2 p), p' = 2^m and F = 1 where p is no power of two, else 0: 2m + 2F steps at
    a proxy, 2m at the other ranks that remain, 2 at an extra rank. Each sends and receives
    2(p'-1)/p' n, a proxy n more, an extra rank n.

Cost
    (2m + 2F) alpha + (2(p'-1)/p' + 2F) n beta + ((p'-1)/p' + F) n gamma

Restrictions
    None.

Scratch
    n/2, and n at a proxy.

Order and bits
    Rank order: what comes from the lower rank is the left operand. One balanced expression for
    all elements, each worked out once and then copied. It is also the expression of
    recursive_doubling: the two give the same bits.

    Distance doubling, the nearest partner first, is what makes this so; it also gives the largest
    messages to neighbours, which often share a node. (Distance halving, the farthest first, would
    reorder operands.) Extra ranks hand over whole vectors, which takes one step less than
    exchanging halves first, and costs n/2 gamma more.

Source
    Rabenseifner, "Optimization of collective reduction operations", ICCS 2004, LNCS 3036,
    doi:10.1007/978-3-540-24685-5_1.
"""

from hpccoll.chunks import Range
from hpccoll.schedule import Action, Fold, Schedule, ScheduleBuilder


def schedule(rank: int, size: int, count: int) -> Schedule:
    """Return what `rank` of `size` ranks does to all-reduce `count` elements."""
    window = Range(0, count)
    fold = Fold(size)
    steps = ScheduleBuilder(rank, size, count)
    if fold.is_extra(rank):
        steps.send(rank - 1, [window], Action.REDUCE_RIGHT)
        steps.receive(rank - 1, [window], Action.COPY)
        return steps.finish()
    if fold.is_proxy(rank):
        steps.receive(rank + 1, [window], Action.REDUCE_RIGHT)
    halvings = []
    for partner in fold.partners(rank):
        middle = (window.start + window.stop) // 2
        keep, give = Range(window.start, middle), Range(middle, window.stop)
        side = Action.REDUCE_RIGHT
        if partner < rank:
            keep, give = give, keep
            side = Action.REDUCE_LEFT
        steps.exchange(partner, [give], partner, [keep], side)
        halvings.append((partner, keep, give))
        window = keep
    for partner, kept, given in reversed(halvings):
        steps.exchange(partner, [kept], partner, [given], Action.COPY)
    if fold.is_proxy(rank):
        steps.send(rank + 1, [Range(0, count)], Action.COPY)
    return steps.finish()
