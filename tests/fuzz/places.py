"""Memory for the arrays of a call, and what must stand in all of it afterwards.

Everything that a call may touch lies in the middle of known bytes, so one comparison tells whether
results are right, and whether anything beside them changed: inputs, gaps of views, what follows.
"""

import contextlib
from typing import Any

import numpy as np
from layouts import FILLER, LAYOUTS

import hpccoll
from fuzz.data import Array, Shape

NAMES = tuple(LAYOUTS)


def place(layout: str, shape: Shape, dtype: Any, shared: bool) -> "Room":
    """Return memory with one array of that layout in it, which is not filled."""
    context = hpccoll.shared_arrays(min_bytes=0) if shared else contextlib.nullcontext()
    with context:
        placed = LAYOUTS[layout](shape, dtype)
    return Room(placed.memory, placed.array)


def turned(layout: str, steps: int) -> str:
    """Return the layout that comes so many steps later."""
    return NAMES[(NAMES.index(layout) + steps) % len(NAMES)] if steps else layout


class Room:
    """Memory, and an array in it.

    Attributes
    ----------
    memory : numpy.ndarray
        Its bytes.
    array : numpy.ndarray
        All of the elements that may be used.
    """

    def __init__(self, memory: Array, array: Array) -> None:
        self.memory = memory
        self.array = array
        self._wanted = memory

    def clear(self) -> None:
        """Fill the memory with rubbish."""
        self.memory[...] = FILLER

    def note(self) -> None:
        """Take what stands here now for what must stand here afterwards."""
        self._wanted = self.memory.copy()

    def expect(self, part: Array, values: Array) -> None:
        """Let a part of the array hold these values afterwards."""
        if not part.size:
            return
        start = part.__array_interface__["data"][0] - self.memory.__array_interface__["data"][0]
        there = np.ndarray(part.shape, part.dtype, self._wanted, start, part.strides)
        there[...] = values

    def complaint(self) -> str:
        """Say what is wrong; empty if all is well."""
        if self.memory.tobytes() == self._wanted.tobytes():
            return ""
        wrong = np.flatnonzero(self.memory != self._wanted)
        start = self.memory.__array_interface__["data"][0]
        low, high = _bounds(self.array)
        where = f"byte {wrong[0]} of {self.memory.size}, the array is in {low - start} to "
        return (
            f"{wrong.size} bytes differ, the first is {where}{high - start}: "
            f"{self.memory[wrong[:8]].tolist()} instead of {self._wanted[wrong[:8]].tolist()}"
        )


def _bounds(array: Array) -> tuple[int, int]:
    """Return the addresses between which the elements of an array lie."""
    start = array.__array_interface__["data"][0]
    if not array.size:
        return start, start
    reach = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    low = start + sum(step for step in reach if step < 0)
    return low, start + sum(step for step in reach if step > 0) + array.itemsize
