"""Binomial: a tree in which what a rank has, or speaks for, doubles with each step.

Idea
    The ranks are cut in two: as many as the largest power of two that leaves a rank over, and the
    others. Each half is cut in two again, down to single ranks. Each half has a head: the root
    where it is among them, else the first rank. To reduce, halves join from small to large, and one
    head sends its vector to the other. To broadcast, the same messages go the other way, in reverse
    order, and are copied.

Picture, 5 ranks
    The root is rank 1. Reduce::

        halves of 1   0 --> 1   2 <-- 3   1: x0 + x1      2: x2 + x3
        halves of 2   1 <-- 2             1: (x0 + x1) + (x2 + x3)
        halves of 4   1 <-- 4             1: ((x0 + x1) + (x2 + x3)) + x4

    Broadcast walks back: 1 to 4, 1 to 2, and then 1 to 0 while 2 to 3.

Steps and bytes
    ceil(log2 p) steps. Each message is the whole vector: to reduce each rank but the root sends n,
    and to broadcast each rank but the root receives n, and the root sends up to ceil(log2 p) n.

Cost
    With L = ceil(log2 p). Reduce: L alpha + L n beta + L n gamma

    Broadcast: L alpha + L n beta

Restrictions
    None.

Scratch
    n, to reduce.

Order and bits
    Rank order, whichever rank is the root: where halves are cut does not depend on the root, and
    the lower half is the left operand. So there is one expression for all elements and all roots.

Source
    The binomial algorithm in Thakur, Rabenseifner and Gropp, "Optimization of collective
    communication operations in MPICH", Int. J. High Performance Computing Applications 19 (2005),
    doi:10.1177/1094342005051521. There ranks are counted from the root on, which leaves rank order.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from hpccoll.chunks import Range
from hpccoll.schedule import Action, Schedule, ScheduleBuilder


def reduce(rank: int, size: int, count: int, root: int = 0) -> Schedule:
    """Return what `rank` of `size` ranks does so that `root` ends with the sum."""
    steps = ScheduleBuilder(rank, size, count)
    add_reduce(steps, range(size), root)
    return steps.finish()


def broadcast(rank: int, size: int, count: int, root: int = 0) -> Schedule:
    """Return what `rank` of `size` ranks does so that all end with what `root` has."""
    steps = ScheduleBuilder(rank, size, count)
    add_broadcast(steps, range(size), root)
    return steps.finish()


class Hop(NamedTuple):
    """A line of the tree: its two ends, and the half that hangs on the lower end."""

    parent: int
    child: int
    start: int
    stop: int


def hops(place: int, size: int, root: int = 0) -> list[Hop]:
    """Return the lines that end at `place`, from the root down; places are 0 to ``size - 1``.

    Examples
    --------
    >>> hops(1, 5, root=1)
    [Hop(parent=1, child=4, start=4, stop=5), Hop(parent=1, child=2, start=2, stop=4),
     Hop(parent=1, child=0, start=0, stop=1)]
    """
    found = []
    start, stop = 0, size
    while stop - start > 1:
        middle = start + (1 << (stop - start - 1).bit_length() - 1)
        lower, upper = (start, middle), (middle, stop)
        parent = root if start <= root < stop else start
        child = Hop(parent, middle, *upper) if parent < middle else Hop(parent, start, *lower)
        if place in (child.parent, child.child):
            found.append(child)
        start, stop = lower if place < middle else upper
    return found


def add_reduce(steps: ScheduleBuilder, ranks: Sequence[int], root: int) -> None:
    """Reduce the vectors of `ranks` to the one at place `root` among them."""
    whole = [Range(0, steps.count)]
    here = ranks.index(steps.rank)
    for hop in reversed(hops(here, len(ranks), root)):
        side = Action.REDUCE_LEFT if hop.child < hop.parent else Action.REDUCE_RIGHT
        if here == hop.parent:
            steps.receive(ranks[hop.child], whole, side)
        else:
            steps.send(ranks[hop.parent], whole, side)


def add_broadcast(steps: ScheduleBuilder, ranks: Sequence[int], root: int) -> None:
    """Hand out the whole vector to `ranks` from the one at place `root` among them."""
    whole = [Range(0, steps.count)]
    here = ranks.index(steps.rank)
    for hop in hops(here, len(ranks), root):
        if here == hop.parent:
            steps.send(ranks[hop.child], whole, Action.COPY)
        else:
            steps.receive(ranks[hop.parent], whole, Action.COPY)


Held = Callable[[int, int], Iterable[Range]]
"""``held(start, stop)``: the elements that belong to the places ``start`` to ``stop - 1``."""


def add_gather(steps: ScheduleBuilder, ranks: Sequence[int], held: Held) -> None:
    """Bring what belongs to each of `ranks` to the first of them, who collects it half by half."""
    here = ranks.index(steps.rank)
    for hop in reversed(hops(here, len(ranks))):
        half = held(hop.start, hop.stop)
        if here == hop.parent:
            steps.receive(ranks[hop.child], half, Action.COPY)
        else:
            steps.send(ranks[hop.parent], half, Action.COPY)


def add_scatter(steps: ScheduleBuilder, ranks: Sequence[int], held: Held) -> None:
    """Bring each of `ranks` what belongs to it from the first of them: gather, backwards."""
    here = ranks.index(steps.rank)
    for hop in hops(here, len(ranks)):
        half = held(hop.start, hop.stop)
        if here == hop.parent:
            steps.send(ranks[hop.child], half, Action.COPY)
        else:
            steps.receive(ranks[hop.parent], half, Action.COPY)


def from_root(size: int, root: int) -> list[int]:
    """Return all ranks, from the root on and around: the order in which a root gathers."""
    return [*range(root, size), *range(root)]
