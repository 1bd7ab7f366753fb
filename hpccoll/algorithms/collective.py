"""The collectives: what each rank brings, and what it ends with.

There is one vector of `count` elements, cut into one chunk per rank where ranks have different
parts in it.
"""

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


class Share(enum.Enum):
    """Which elements of the vector a rank brings, or ends with."""

    EVERYTHING = "everything"
    """Every rank: all elements."""
    CHUNK = "chunk"
    """Rank r: chunk r."""
    ROOT = "root"
    """The root: all elements; the others: none."""


@dataclass(frozen=True)
class Collective:
    """A collective operation.

    Attributes
    ----------
    name : str
        What users call it.
    brings, ends : Share
        What each rank has at the start, and must have at the end.
    reduces : bool
        Whether contributions are combined by an operation.
    split : bool
        Whether the caller sees the chunks, one per rank, and may say how long they are.
    busbw_factor : callable
        ``busbw_factor(size)``: bytes that a rank must send at least, in vectors. The bandwidth of a
        call times this compares across numbers of ranks and with the speed of a link.
    purpose : str
        When to use it, in one line.
    """

    name: str
    brings: Share
    ends: Share
    reduces: bool
    split: bool
    busbw_factor: Callable[[int], float]
    purpose: str

    @property
    def rooted(self) -> bool:
        """Whether one rank, the root, has another part than the others."""
        return Share.ROOT in (self.brings, self.ends)


def _one_phase(size: int) -> float:
    return (size - 1) / size


_COLLECTIVES = (
    Collective(
        name="allreduce",
        brings=Share.EVERYTHING,
        ends=Share.EVERYTHING,
        reduces=True,
        split=False,
        busbw_factor=lambda size: 2 * (size - 1) / size,
        purpose="all ranks need the whole result",
    ),
    Collective(
        name="reduce_scatter",
        brings=Share.EVERYTHING,
        ends=Share.CHUNK,
        reduces=True,
        split=True,
        busbw_factor=_one_phase,
        purpose="each rank goes on with its own part of the result: half of an all-reduce",
    ),
    Collective(
        name="allgather",
        brings=Share.CHUNK,
        ends=Share.EVERYTHING,
        reduces=False,
        split=True,
        busbw_factor=_one_phase,
        purpose="each rank has a part, all need the whole, and there is nothing to combine",
    ),
    Collective(
        name="reduce",
        brings=Share.EVERYTHING,
        ends=Share.ROOT,
        reduces=True,
        split=False,
        busbw_factor=lambda size: 1.0,
        purpose="only one rank needs the result",
    ),
    Collective(
        name="broadcast",
        brings=Share.ROOT,
        ends=Share.EVERYTHING,
        reduces=False,
        split=False,
        busbw_factor=lambda size: 1.0,
        purpose="one rank has what all need",
    ),
    Collective(
        name="barrier",
        brings=Share.CHUNK,  # its token: word that it has come
        ends=Share.EVERYTHING,
        reduces=False,
        split=False,
        busbw_factor=lambda size: 0.0,
        purpose="nobody goes on before all have come; nothing is sent but word of that",
    ),
)

COLLECTIVES: Mapping[str, Collective] = MappingProxyType({one.name: one for one in _COLLECTIVES})
"""All collectives by name."""
