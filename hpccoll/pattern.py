"""The pattern of a call: who brings which elements of the vector, and who wants which of them."""

import zlib
from itertools import accumulate, pairwise
from typing import NamedTuple

from hpccoll.algorithms.collective import COLLECTIVES
from hpccoll.chunks import Range, chunks

NO_OPERATION = "none"
"""Name of the operation of a collective that only moves elements."""


class Pattern(NamedTuple):
    """What must be equal on all ranks beside the operation, the type and the number of elements.

    All collectives are seen as one on a whole vector, of which a rank may bring, and may want, all,
    its own chunk, or nothing.

    Attributes
    ----------
    collective : str
        A name of `hpccoll.algorithms.collective.COLLECTIVES`.
    root : int
        The root of a rooted collective; else 0.
    counts : tuple of int or None
        Elements of each rank's chunk; None for those that `hpccoll.chunks.chunks` cuts.
    """

    collective: str = "allreduce"
    root: int = 0
    counts: tuple[int, ...] | None = None

    @property
    def reduces(self) -> bool:
        """Whether elements are combined; else they only move."""
        return COLLECTIVES[self.collective].reduces

    def chunks(self, size: int, count: int) -> tuple[Range, ...]:
        """Return the chunk of each rank."""
        if self.counts is None:
            return chunks(count, size)
        return tuple(Range(*ends) for ends in pairwise(accumulate(self.counts, initial=0)))

    def brings(self, rank: int, size: int, count: int) -> Range:
        """Return the elements that a rank contributes."""
        if self.collective == "allgather":
            return self.chunks(size, count)[rank]
        if self.collective == "broadcast" and rank != self.root:
            return Range(0, 0)
        return Range(0, count)

    def wants(self, rank: int, size: int, count: int) -> Range:
        """Return the elements that a rank ends with; the root of a broadcast has them already."""
        if self.collective == "reduce_scatter":
            return self.chunks(size, count)[rank]
        if (self.collective, rank == self.root) in {("reduce", False), ("broadcast", True)}:
            return Range(0, 0)
        return Range(0, count)

    def text(self) -> str:
        """Return what tells the pattern from others, in a few characters; empty for all-reduce."""
        if self == ALLREDUCE:
            return ""
        counts = zlib.crc32(repr(self.counts).encode()) if self.counts else ""
        return f"{self.collective} {self.root} {counts} "


ALLREDUCE = Pattern()
