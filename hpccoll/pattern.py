"""The pattern of a call: who brings which elements of the vector, and who wants which of them."""

from typing import NamedTuple

from hpccoll.algorithms.collective import COLLECTIVES, Share
from hpccoll.chunks import Range, cut

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
        Elements of each rank's chunk; None for as equal ones as can be.
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
        return cut(count, size, self.counts)

    def brings(self, rank: int, size: int, count: int) -> Range:
        """Return the elements that a rank contributes."""
        return self._share(COLLECTIVES[self.collective].brings, rank, size, count)

    def wants(self, rank: int, size: int, count: int) -> Range:
        """Return the elements that a rank ends with; the root of a broadcast has them already."""
        if self.collective == "broadcast" and rank == self.root:
            return Range(0, 0)
        return self._share(COLLECTIVES[self.collective].ends, rank, size, count)

    def _share(self, share: Share, rank: int, size: int, count: int) -> Range:
        if share is Share.CHUNK:
            return self.chunks(size, count)[rank]
        return Range(0, 0 if share is Share.ROOT and rank != self.root else count)


ALLREDUCE = Pattern()
