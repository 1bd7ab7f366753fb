"""Scratch memory of one communicator."""

from collections.abc import Callable
from typing import Any

import numpy as np

Bytes = np.ndarray[Any, np.dtype[np.uint8]]

ALIGNMENT = 64


class Memory:
    """Scratch memory of one communicator. Plans run one at a time, so all of them share it.

    Parameters
    ----------
    empty : callable, optional
        Returns an array of so many bytes.
    """

    def __init__(self, empty: Callable[[int], Bytes] | None = None) -> None:
        self._empty = empty or (lambda nbytes: np.empty(nbytes, np.uint8))
        self._blocks: dict[tuple[str, int], Bytes] = {}

    def block(self, purpose: str, nbytes: int) -> Bytes:
        """Return memory of at least `nbytes` bytes, at an address that a cache line starts at."""
        # A power of two, so that vectors of similar sizes share a block.
        wanted = 1 << max(nbytes - 1, 4095).bit_length()
        found = self._blocks.get((purpose, wanted))
        if found is None:
            raw = self._empty(wanted + ALIGNMENT)
            start = -raw.ctypes.data % ALIGNMENT
            found = raw[start : start + wanted]
            self._blocks[purpose, wanted] = found
        return found

    def fresh(self, nbytes: int) -> Bytes:
        """Return memory that nobody else gets."""
        return self._empty(nbytes)

    @property
    def nbytes(self) -> int:
        """Bytes held."""
        return sum(block.nbytes for block in self._blocks.values())

    def clear(self) -> None:
        """Let go of all blocks; plans keep theirs."""
        self._blocks.clear()
