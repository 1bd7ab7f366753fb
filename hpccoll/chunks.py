"""How a vector is cut: one chunk per rank, and segments, the unit of pipelining, in each chunk."""

import functools
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple


class Range(NamedTuple):
    """Elements ``start`` to ``stop - 1`` of the vector."""

    start: int
    stop: int

    @property
    def count(self) -> int:  # type: ignore[override]
        """Number of elements."""
        return self.stop - self.start

    def overlaps(self, other: "Range") -> bool:
        """Whether the two ranges share an element."""
        return self.start < other.stop and other.start < self.stop


@functools.lru_cache(maxsize=64)
def chunks(count: int, parts: int) -> tuple[Range, ...]:
    """Cut `count` elements into `parts` consecutive chunks.

    The first ``count % parts`` chunks hold one element more than the others; chunks are empty
    where there are fewer elements than parts.

    Examples
    --------
    >>> [chunk.count for chunk in chunks(11, 4)]
    [3, 3, 3, 2]
    """
    base, longer = divmod(count, parts)
    starts = [part * base + min(part, longer) for part in range(parts + 1)]
    return tuple(Range(start, stop) for start, stop in pairwise(starts))


@functools.lru_cache(maxsize=64)
def chunks_of(counts: tuple[int, ...]) -> tuple[Range, ...]:
    """Cut a vector into consecutive chunks of these numbers of elements.

    Examples
    --------
    >>> chunks_of((3, 0, 2))
    (Range(start=0, stop=3), Range(start=3, stop=3), Range(start=3, stop=5))
    """
    return tuple(Range(start, stop) for start, stop in pairwise(accumulate(counts, initial=0)))


def cut(count: int, parts: int, counts: tuple[int, ...] | None = None) -> tuple[Range, ...]:
    """Cut a vector into chunks of `counts` elements, or into as equal ones as can be for None."""
    return chunks(count, parts) if counts is None else chunks_of(counts)


def around(chunk: Sequence[Range], start: int, stop: int) -> list[Range]:
    """Return chunks `start` to ``stop - 1``, counted modulo their number: two ranges if they wrap.

    Examples
    --------
    >>> around(chunks(10, 5), 3, 6)
    [Range(start=6, stop=10), Range(start=0, stop=2)]
    """
    size = len(chunk)
    first, last = start % size, start % size + stop - start
    if last <= size:
        return [Range(chunk[first].start, chunk[last - 1].stop)]
    return [
        Range(chunk[first].start, chunk[-1].stop),
        Range(chunk[0].start, chunk[last - size - 1].stop),
    ]


def joined(ranges: Iterable[Range]) -> list[Range]:
    """Return the ranges in the same order, as one where the next begins where the last one ends.

    Examples
    --------
    >>> joined([Range(0, 2), Range(2, 5), Range(7, 8)])
    [Range(start=0, stop=5), Range(start=7, stop=8)]
    """
    result: list[Range] = []
    for part in ranges:
        if not part.count:
            continue
        if result and result[-1].stop == part.start:
            result[-1] = Range(result[-1].start, part.stop)
        else:
            result.append(part)
    return result


def segments(chunk: Range, limit: int) -> Iterator[Range]:
    """Cut a range into segments of at most `limit` elements, in order; an empty range has none.

    Examples
    --------
    >>> list(segments(Range(10, 17), 3))
    [Range(start=10, stop=13), Range(start=13, stop=16), Range(start=16, stop=17)]
    """
    for start in range(chunk.start, chunk.stop, limit):
        yield Range(start, min(start + limit, chunk.stop))


class RangeSet:
    """A set of elements, held as ranges in ascending order that neither touch nor overlap."""

    def __init__(self, *ranges: Range) -> None:
        self._ranges: list[Range] = []
        for part in ranges:
            self.add(part)

    def __iter__(self) -> Iterator[Range]:
        """Yield the ranges in ascending order."""
        return iter(self._ranges)

    def add(self, new: Range) -> None:
        """Put the elements of `new` into the set."""
        if not new.count:
            return
        kept = []
        start, stop = new
        for old in self._ranges:
            if old.stop < start or stop < old.start:
                kept.append(old)
            else:
                start, stop = min(start, old.start), max(stop, old.stop)
        self._ranges = sorted([*kept, Range(start, stop)])

    def remove(self, gone: Range) -> None:
        """Take the elements of `gone` out of the set."""
        self._ranges = [piece for old in self._ranges for piece in _outside(old, gone)]

    def inside(self, window: Range) -> list[Range]:
        """Return the elements of the set that lie in `window`, in order."""
        pieces = (
            Range(max(old.start, window.start), min(old.stop, window.stop)) for old in self._ranges
        )
        return [piece for piece in pieces if piece.start < piece.stop]

    def outside(self, window: Range) -> list[Range]:
        """Return the elements of `window` that the set does not hold, in order."""
        gaps = [window] if window.count else []
        for old in self.inside(window):
            gaps = [piece for gap in gaps for piece in _outside(gap, old)]
        return gaps


def _outside(kept: Range, gone: Range) -> list[Range]:
    pieces = (
        Range(kept.start, min(kept.stop, gone.start)),
        Range(max(kept.start, gone.stop), kept.stop),
    )
    return [piece for piece in pieces if piece.start < piece.stop]
