"""Vectors whose combination is known exactly, so that a wrong element shows.

What a rank contributes at an index is drawn by a hash of the rank and the index, from a range that
is narrow enough for no partial result to be rounded or to overflow, whatever the order and
grouping. So there is one right result, and a contribution that is lost, counted twice, or taken
from another place changes it. Where elements only move, all are cut from one vector of that kind.

Vectors repeat a block of `PERIOD` elements, so that large ones cost little to make and to compare.
It is a prime: no other chunk or segment looks the same.
"""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from hpccoll.benchmark.options import NONE, Case, dtype_of
from hpccoll.ops import OPERATIONS, kind_of

Array = np.ndarray[Any, np.dtype[Any]]
Words = npt.NDArray[np.uint64]
Empty = Callable[[int, np.dtype[Any]], Array]

PERIOD = 65521

SIGNIFICAND = {
    "bfloat16": 8,
    "float16": 11,
    "float32": 24,
    "float64": 53,
    "complex64": 24,
    "complex128": 53,
}
"""Bits of the integers that the type holds exactly."""

SPARSE = 1021
"""Distance of the elements that `Vectors.spoil_some` spoils; any segment of 4 KiB has some."""

NARROW = ("float16", "bfloat16")
"""Types that are summed, and divided, in float32 and rounded once."""


class Vectors:
    """What one rank holds for one case: what it brings, what it receives, and what both must be.

    In place these are parts of one array, as MPI has it: an all-gather takes the rank's own chunk
    of the result, a reduce-scatter leaves it at the start of the vector, and a reduction to one
    rank is in place there only. A broadcast is always so.

    Parameters
    ----------
    case : Case
        Collective, type, operation, count and place.
    rank, size : int
        Of the communicator.
    empty : callable
        ``empty(count, dtype)`` makes the arrays.

    Attributes
    ----------
    x : numpy.ndarray
        What this rank brings.
    result : numpy.ndarray
        What it ends with.
    out : numpy.ndarray
        What a call is given to leave the result in: more than `result` in place, and at ranks that
        receive nothing an array that must not be touched.
    in_place : bool
        Whether `x` is part of `out`, on this rank.
    """

    def __init__(self, case: Case, rank: int, size: int, empty: Empty = np.empty) -> None:
        dtype, pattern = dtype_of(case.type), case.pattern
        brings = pattern.brings(rank, size, case.count)
        ends = pattern.wants(rank, size, case.count)
        self.case = case
        broadcast = pattern.collective == "broadcast"
        idle = not broadcast and ends.count == 0 < case.count
        self.in_place = broadcast or (case.place == "in" and not idle)
        self.out: Array
        self.x: Array
        if self.in_place:
            self.out = empty(case.count, dtype)
            self.x = self.out[brings.start : brings.stop]
            first = 0 if pattern.reduces else ends.start
            self.result: Array = self.out[first : first + ends.count]
        else:
            self.x = empty(brings.count, dtype)
            self.out = empty(case.count if idle else ends.count, dtype)
            self.result = self.out[: ends.count]
        # In this order, since `expected` asks for all contributions, and few of them are kept.
        want, give = (
            (expected(size, case.type, case.op), contribution(rank, size, case.type, case.op))
            if pattern.reduces
            else (contribution(0, 1, case.type, NONE),) * 2
        )
        self._expected = np.roll(want, -ends.start)
        self._contribution = np.roll(give, -brings.start)
        # What must be as it was: a root has what it broadcasts, other ranks what they had.
        self._kept = self.x if broadcast else self.out if idle else self.out[:0]
        self._kept_block = give if broadcast else _other(want)
        self.restore()

    @property
    def send(self) -> Any:
        """What a call is given as input, where it is not in place."""
        return self.x

    @property
    def receive(self) -> Any:
        """What a call is given as output."""
        return self.out

    def complete(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return what makes a call and waits until its result is there."""
        return call

    def by_hand(self, call: Callable[[], object]) -> Callable[[], object]:
        """Return what the MPI library's call on `x` and `out` takes where vectors are elsewhere."""
        return call

    def restore(self) -> None:
        """Make what a call must not touch as it was."""
        fill(self._kept, self._kept_block)

    def rewrite(self) -> None:
        """Write the input anew."""
        fill(self.x, self._contribution)

    def settle(self) -> None:
        """Make ready for calls back to back: in place, each takes the result of the one before.

        Sums of anything but zeros would grow without bound there, and products of anything but ones
        end in numbers that CPUs are slow with.
        """
        if self.case.place == "in" and self.case.pattern.reduces:
            self.x[...] = 1 if self.case.op == "prod" else 0
        else:
            self.rewrite()

    def spoil(self) -> None:
        """Make the result wrong, so that an old one is not taken for a new one.

        Before `rewrite`: in place, the result may lie where the input is to be.
        """
        fill(self.result, _other(self._expected))

    def spoil_some(self) -> None:
        """Do so with one element in `SPARSE`, which leaves the caches almost as they are."""
        indices = np.arange(0, self.result.size, SPARSE)
        self.result[indices] = _other(self._expected)[indices % PERIOD]

    def count_wrong(self) -> int:
        """Return how many elements are not exactly what they must be.

        What should not have been touched is restored, for the next candidate.
        """
        touched = count_wrong(self._kept, self._kept_block)
        if touched:
            self.restore()
        return touched + count_wrong(self.result, self._expected)


@functools.lru_cache(maxsize=2)
def contribution(rank: int, size: int, type_name: str, op: str) -> Array:
    """Return the block that the vector of a rank repeats: `PERIOD` elements."""
    dtype = dtype_of(type_name)
    kind = kind_of(dtype)
    words = _noise(rank, 1)
    if op in ("land", "lor", "lxor") or kind == "b":
        # True is any number but zero.
        truths = _truths(rank, size, op)
        return np.where(truths, 1 + words % np.uint64(100), np.uint64(0)).astype(dtype)
    if op == "prod":
        return _factors(rank, size, dtype).astype(dtype)
    if kind in "fc" or op == "sum":
        # For a minimum or maximum, no room for sums is needed.
        return _summands(rank, dtype, size if op in ("sum", "mean") else 1).astype(dtype)
    if op in ("band", "bor"):
        words = np.where(_owner(size) == rank, _noise(0, 3), np.uint64(0))
        words = ~words if op == "band" else words
    return words.astype(f"uint{8 * dtype.itemsize}").view(dtype)


@functools.lru_cache(maxsize=2)
def expected(size: int, type_name: str, op: str) -> Array:
    """Return the block that the exact result repeats: `PERIOD` elements."""
    dtype = dtype_of(type_name)
    wide = np.dtype({"f": "float64", "c": "complex128"}.get(kind_of(dtype), dtype))
    combine = getattr(np, OPERATIONS[op].ufunc)
    result = contribution(0, size, type_name, op).astype(wide)
    for rank in range(1, size):
        result = combine(result, contribution(rank, size, type_name, op).astype(wide)).astype(wide)
    if not OPERATIONS[op].divides:
        return result.astype(dtype)
    quotient = result.astype(np.float32 if type_name in NARROW else dtype)
    part = quotient.real.dtype  # complex numbers by parts: NumPy's own division is not exact
    exact: Array = (quotient.view(part) / part.type(size)).view(quotient.dtype).astype(dtype)
    return exact


def fill(array: Array, block: Array) -> None:
    """Let a vector repeat a block."""
    whole, rest = divmod(array.size, block.size)
    array[: array.size - rest].reshape(whole, block.size)[...] = block
    array[array.size - rest :] = block[:rest]


def count_wrong(array: Array, block: Array) -> int:
    """Return how many elements of a vector are not those of the block that it is to repeat."""
    whole, rest = divmod(array.size, block.size)
    tiles = array[: array.size - rest].reshape(whole, block.size)
    wrong = np.count_nonzero(tiles != block)
    return int(wrong + np.count_nonzero(array[array.size - rest :] != block[:rest]))


def _other(block: Array) -> Array:
    return np.where(block == 0, 1, 0).astype(block.dtype)


def _noise(*seeds: int) -> Words:
    """Return 64 well-mixed bits per index (splitmix64)."""
    state: Words = np.arange(PERIOD, dtype=np.uint64)
    for seed in seeds:
        state += np.uint64((seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) % 2**64)
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
    return state


def _owner(size: int) -> Words:
    """Return the rank that alone decides an "and" or "or"; at half the indices there is none."""
    return _noise(0, 2) % np.uint64(2 * size)


def _truths(rank: int, size: int, op: str) -> Array:
    mine: Array = _owner(size) == rank
    if op.endswith("xor"):
        mine = _noise(rank, 4) % np.uint64(2) == 1
    return ~mine if op in ("land", "band", "min", "fmin") else mine


def _integers(rank: int, salt: int, dtype: np.dtype[Any], size: int) -> npt.NDArray[np.int64]:
    """Return integers of which `size` add up without rounding and without overflow.

    Positive and negative ones, unless the type has none. There is no overflow because MPI libraries
    differ in it: sums of short integers wrap in one and saturate in another.
    """
    bits = SIGNIFICAND.get(dtype.name, min(8 * dtype.itemsize - (dtype.kind == "i"), 53))
    largest = max(1, ((1 << bits) - 1) // size)
    smallest = 0 if dtype.kind == "u" else -largest
    words = _noise(rank, salt) % np.uint64(largest - smallest + 1)
    integers: npt.NDArray[np.int64] = words.astype(np.int64) + smallest
    return integers


def _summands(rank: int, dtype: np.dtype[Any], size: int) -> Array:
    real = _integers(rank, 1, dtype, size)
    return real + 1j * _integers(rank, 5, dtype, size) if dtype.kind == "c" else real


def _factors(rank: int, size: int, dtype: np.dtype[Any]) -> Array:
    """Return factors whose product neither overflows nor is rounded: few of them are not +-1."""
    words = _noise(rank, 1)
    turn = (np.arange(PERIOD) + rank) % size
    three = (words % np.uint64(3)).astype(np.int64)
    signs = 1 - 2 * (words >> np.uint64(8) & np.uint64(1)).astype(np.int64)
    if dtype.kind == "u":
        return np.where(turn < 4, 1 + three, 1)
    if dtype.kind == "i":
        return signs * np.where(turn < 4, 1 + three, 1)
    factors: Array = np.ldexp(signs.astype(np.float64), np.where(turn < 8, three - 1, 0))
    turns = np.array([1, 1j, -1, -1j])[words >> np.uint64(16) & np.uint64(3)]
    return factors * turns if dtype.kind == "c" else factors
