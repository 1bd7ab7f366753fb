"""What a rank brings to a collective and gets from it, for the tests on threads."""

import functools

import numpy as np
from inputs import contribution, expected, guarded

kept_contribution = functools.lru_cache(maxsize=1024)(contribution)
kept_expected = functools.lru_cache(maxsize=256)(expected)


class Ends:
    """What one rank brings and gets, in memory with guards."""

    def __init__(self, pattern, kind, rank, size, count, *, in_place):
        dtype, self.op = kind.split()
        self.pattern, self.dtype, self.count = pattern, np.dtype(dtype), count
        self.rank, self.size = rank, size
        self.brings = slice(*pattern.brings(rank, size, count))
        self.wants = slice(*pattern.wants(rank, size, count))
        brings, wants = (part.stop - part.start for part in (self.brings, self.wants))
        # Only who wants what it brings can have it there.
        holds = pattern.collective == "allgather" or (
            pattern.collective == "reduce" and rank == pattern.root
        )
        sends, receives = True, True
        if pattern.collective == "broadcast":
            sends = rank == pattern.root
            receives = not sends
        elif pattern.collective == "reduce":
            receives = rank == pattern.root
        self.x = guarded(brings, dtype) if sends and not (in_place and holds) else None
        self.out = guarded(wants, dtype) if receives else None

    def fill(self, seed):
        """Put in what this rank brings, and rubbish where the result goes."""
        whole = self.contribution(seed)
        if self.out is not None:
            self.out.array.view(np.uint8)[:] = 0x5A
        if self.x is not None:
            self.x.array[:] = whole[self.brings]
        elif self.out is not None and self.brings != slice(0, 0):
            start = self.brings.start - self.wants.start
            stop = self.brings.stop - self.wants.start
            self.out.array[start:stop] = whole[self.brings]

    def contribution(self, seed):
        number = self.rank if self.pattern.reduces else 0
        return kept_contribution(number, self.count, self.dtype, self.op, self.size, seed)

    def check(self, seed):
        """Compare every byte."""
        if self.out is not None:
            wanted = self.contribution(seed)
            if self.pattern.reduces:
                wanted = kept_expected(self.count, self.dtype, self.op, self.size, seed)
            assert self.out.array.tobytes() == wanted[self.wants].tobytes()
            self.out.check()
        if self.x is not None:
            assert self.x.array.tobytes() == self.contribution(seed)[self.brings].tobytes()
            self.x.check()
