"""Test data that a wrong collective cannot get past, and the exact result, computed without MPI.

``contribution(rank, count, dtype, op, size)`` is the vector that a rank puts in;
``expected(count, dtype, op, size)`` is what every rank must end with, bit for bit, in whatever
order and grouping the contributions are combined. Three ideas make a wrong element show:

*Digits.* At index i, rank r plays the digit ``(r + i + seed) % size``, so that all ranks play
different digits, and each rank plays every digit within `size` consecutive indices.

* sum: the contribution is ``k(i) * B ** digit``: the sum is a number of `size` digits 1 in base
  B. A contribution that is lost, counted twice or taken for another one changes a digit. B is 16,
  4 or 2, as many bits as the type has for `size` digits.
* mean: `size` times as much, so that the exact mean is that of the sum and no division rounds.
* prod: floating types take powers of two whose exponents -1, 1, -2, 2, ... are the digits;
  integers take 3 + 2 * digit, which has an inverse even where the product wraps around.
* min, max, fmin, fmax: ``size * k(i) + digit``: the result is the value of one rank, and each rank
  has its turn. For fmin and fmax the rank that would win holds a NaN at a third of the indices.
* band, bor, land, lor: at each index each bit belongs to one rank, which alone clears it (and) or
  sets it (or), or to none; bxor, lxor: any bits, but at least one is set.

*Index.* ``k(i)`` is pseudo-random and never the same at i and i + 1, so that data from another
place shows although ranks and digits agree there.

*Exactness.* ``k(i) * (B ** 0 + B ** 1 + ...)`` fits in the significand, so no partial sum in any
order is ever rounded: 24 and 53 bits for single and double precision, 11 for half precision.
bfloat16 has 8, all of which eight ranks need for their digits; its ``k(i)`` is a power of 256, for
of exponents it has plenty. Integers may wrap around, which is exact too.

All this holds up to 8 ranks for every type. With more ranks than a narrow type has digits, ranks
share digits: `expected` is still the exact result, rounded once, and single errors show at most
indices, not at all of them.
"""

import functools
import hashlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np

BFLOAT16 = np.dtype(ml_dtypes.bfloat16)
INTEGERS = tuple(np.dtype(f"{sign}int{bits}") for sign in ("", "u") for bits in (8, 16, 32, 64))
HALF = (np.dtype("float16"), BFLOAT16)
REAL = (*HALF, np.dtype("float32"), np.dtype("float64"))
COMPLEX = (np.dtype("complex64"), np.dtype("complex128"))
DTYPES = (np.dtype("bool"), *INTEGERS, *REAL, *COMPLEX)

ARITHMETIC = ("sum", "mean", "prod")
ORDER = ("min", "max", "fmin", "fmax")
LOGICAL = ("land", "lor", "lxor")
BITWISE = ("band", "bor", "bxor")
OPS = ARITHMETIC + ORDER + LOGICAL + BITWISE

MOST_RANKS = 24
"""Beyond this, products and means of half precision would overflow."""

SMALL = 1024
"""Vectors up to this count are kept when they have been made."""

Array = np.ndarray[Any, Any]

SIGNIFICAND = {BFLOAT16: 8, **{np.dtype(f"float{n}"): b for n, b in ((16, 11), (32, 24), (64, 53))}}


def supports(dtype: Any, op: str) -> bool:
    """Whether the operation has a meaning for the type, in NumPy and in MPI."""
    dtype = np.dtype(dtype)
    if dtype == np.bool_:
        return op not in ARITHMETIC
    if dtype in INTEGERS:
        return op != "mean"
    return op in ARITHMETIC or (op in ORDER and dtype in REAL)


def contribution(rank: int, count: int, dtype: Any, op: str, size: int, seed: int = 0) -> Array:
    """Return the vector of one rank, `count` elements; the caller's to change."""
    make = _contribution if count > SMALL else _kept_contribution
    return make(rank, count, _checked(dtype, op, size), op, size, seed).copy()


def expected(count: int, dtype: Any, op: str, size: int, seed: int = 0) -> Array:
    """Return the combination of the contributions of all ranks: exact, then rounded once.

    Read-only: it is kept, since a test of several algorithms asks for the same one again.
    """
    make = _large_expected if count > SMALL else _kept_expected
    return make(count, _checked(dtype, op, size), op, size, seed)


def _contribution(
    rank: int, count: int, dtype: np.dtype[Any], op: str, size: int, seed: int
) -> Array:
    digit = (rank + np.arange(count) + seed) % size
    if op in ARITHMETIC:
        if dtype in COMPLEX:
            return _complex(digit, dtype, op, size, seed)
        if dtype in INTEGERS:
            return _integer(digit, dtype, op, size, seed)
        return _real(digit, dtype, op, size, seed).astype(dtype)
    if op in ORDER:
        return _ordered(digit, dtype, op, size, seed)
    return _bits(digit, rank, dtype, op, size, seed)


def _expected(count: int, dtype: np.dtype[Any], op: str, size: int, seed: int) -> Array:
    parts = [contribution(rank, count, dtype, op, size, seed) for rank in range(size)]
    result = combine(parts, op)
    result.flags.writeable = False
    return result


_kept_contribution = functools.lru_cache(maxsize=4096)(_contribution)
_kept_expected = functools.lru_cache(maxsize=4096)(_expected)
_large_expected = functools.lru_cache(maxsize=4)(_expected)


def combine(parts: list[Array], op: str) -> Array:
    """Combine vectors in a type wide enough to be exact, and round once to their own type."""
    dtype = parts[0].dtype
    wide: Any = np.complex128 if dtype in COMPLEX else np.float64 if dtype in REAL else dtype
    result = parts[0].astype(wide)
    for part in parts[1:]:
        result = _TWO_BY_TWO[op](result, part.astype(wide))
    return (_divided(result, len(parts)) if op == "mean" else result).astype(dtype)


_TWO_BY_TWO: dict[str, Callable[..., Any]] = {
    "sum": np.add,
    "mean": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "fmin": np.fmin,
    "fmax": np.fmax,
    "land": np.logical_and,
    "lor": np.logical_or,
    "lxor": np.logical_xor,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}


def _divided(array: Array, size: int) -> Array:
    """Divide by a number of ranks; part by part if complex, as NumPy's own division is inexact."""
    part = array.real.dtype
    return (array.view(part) / part.type(size)).view(array.dtype)


def _checked(dtype: Any, op: str, size: int) -> np.dtype[Any]:
    dtype = np.dtype(dtype)
    known = dtype in DTYPES and op in OPS and supports(dtype, op)
    if not known or not 1 <= size <= MOST_RANKS:
        raise ValueError(f"no test data for op {op!r}, dtype {dtype} and {size} ranks")
    return dtype


def _noise(count: int, *seeds: int) -> Array:
    """Return 64 well-mixed bits per index (splitmix64)."""
    state = np.arange(count, dtype=np.uint64)
    for seed in seeds:
        state += np.uint64((seed * 0xD1342543DE82EF95 + 0x9E3779B97F4A7C15) % 2**64)
        state = (state ^ (state >> 30)) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> 27)) * np.uint64(0x94D049BB133111EB)
        state ^= state >> 31
    return state


def _levels(count: int, levels: int, seed: int) -> Array:
    """Return numbers from 0 to levels - 1, pseudo-random and never the same at i and i + 1."""
    if levels < 2:
        return np.zeros(count, dtype=np.int64)
    noise = _noise(count, seed, levels) % np.uint64(levels // 2)
    return 2 * noise.astype(np.int64) + (np.arange(count) + seed) % 2


def _digit_bits(bits: int, size: int) -> int:
    """Return how many bits a digit gets where `size` digits and some room for k(i) must fit."""
    return next((each for each in (4, 2) if each * size + 3 <= bits), 1)


def _real(digit: Array, dtype: np.dtype[Any], op: str, size: int, seed: int) -> Array:
    bits = SIGNIFICAND[dtype]
    count = len(digit)
    sign = 1.0 - 2.0 * (_noise(count, seed, 1) % np.uint64(2))
    if op == "prod":
        # The factor k(i), with a sign, is that of the rank with digit 0; it comes in once.
        odd = 2 * _levels(count, 2 ** min(bits - 2, 20), seed) + 1
        exponent = np.where(digit % 2 == 0, -(digit // 2 + 1), digit // 2 + 1)
        return np.ldexp(np.where(digit == 0, sign * odd, 1.0), exponent)
    # For a mean, `size` comes in as a factor. Powers of two cost no bits, its odd part does: in the
    # sum, that is; the sums of half types, which are of single precision, have bits to spare.
    factor = (size // math.gcd(size, 2**bits) - 1).bit_length() if op == "mean" else 0
    if dtype not in HALF:
        bits -= factor
    each = _digit_bits(bits, size)
    room = bits - each * min(size, bits // each)  # bits that the digits leave for k(i)
    if dtype in HALF:
        room = min(room, bits - factor)
    odd = 2 * _levels(count, 2 ** max(room - 1, 0), seed) + 1
    power = 8 * (_levels(count, 10, seed) - 5) if dtype == BFLOAT16 else 0
    value = np.ldexp(sign * odd, each * (digit % (bits // each)) + power)
    return value * size if op == "mean" else value


def _complex(digit: Array, dtype: np.dtype[Any], op: str, size: int, seed: int) -> Array:
    part = np.dtype("float32" if dtype == np.complex64 else "float64")
    real = _real(digit, part, op, size, seed)
    if op == "prod":
        # Powers of i turn the factors: numbers with two parts would outgrow the significand. One
        # of them, k(i), has two, so that no part of the product is a zero, which may have a sign.
        turn = np.array([1, 1j, -1, -1j])[digit % 4]
        return (real * np.where(digit == 0, 1 + 2j, turn)).astype(dtype)
    imaginary = _real((digit + 1) % size, part, op, size, seed + 1)
    return (real + 1j * imaginary).astype(dtype)


def _integer(digit: Array, dtype: np.dtype[Any], op: str, size: int, seed: int) -> Array:
    bits = 8 * dtype.itemsize
    count = len(digit)
    unsigned = np.dtype(f"uint{bits}")
    odd = (2 * _levels(count, 2 ** min(bits - 1, 60), seed) + 1).astype(np.uint64)
    if op == "prod":
        value = np.where(digit == 0, odd, np.uint64(1)) * (3 + 2 * digit).astype(np.uint64)
    else:
        each = _digit_bits(bits, size)
        value = odd << (each * (digit % (bits // each))).astype(np.uint64)
    return value.astype(unsigned).view(dtype)


def _ordered(digit: Array, dtype: np.dtype[Any], op: str, size: int, seed: int) -> Array:
    count = len(digit)
    if dtype == np.bool_:
        # The rank with digit 0 alone holds what decides, or no rank does.
        decides = (digit == 0) & (_noise(count, seed, 2) % np.uint64(2) == 0)
        return ~decides if op.endswith("min") else decides
    bits = min(SIGNIFICAND.get(dtype, 8 * dtype.itemsize), 24)
    levels = max(2**bits // size, 2)
    value = size * _levels(count, levels, seed) + digit
    if dtype.kind != "u":
        value -= 2 ** (bits - 1)
    result: Array = value.astype(dtype)
    if op in ("fmin", "fmax") and dtype in REAL and size > 1:
        winner = digit == (0 if op == "fmin" else size - 1)
        result[winner & (_noise(count, seed, 6) % np.uint64(3) == 0)] = np.nan
    return result


def _bits(digit: Array, rank: int, dtype: np.dtype[Any], op: str, size: int, seed: int) -> Array:
    count = len(digit)
    bits = 1 if op in LOGICAL or dtype == np.bool_ else 8 * dtype.itemsize
    if op.endswith("xor"):
        word = _noise(count, seed, rank, 3) >> np.uint64(64 - bits)
        word |= np.uint64(bits > 1)
    else:
        word = _owned(rank, count, size, seed)
        # Bit 0 goes round the ranks; where it is the only one, it is nobody's at half the indices.
        turn = digit == 0
        if bits == 1:
            turn &= _noise(count, seed, 2) % np.uint64(2) == 0
        word = (word & np.uint64(2**bits - 2)) | turn
        if op.endswith("and"):
            word ^= np.uint64(2**bits - 1)
    if op in LOGICAL and dtype != np.bool_:
        # True is any number but zero: different bits for different digits, so that an "and" of
        # the bits is not the "and" of the truths.
        word = word << (digit % 7).astype(np.uint64)
    if dtype == np.bool_:
        return word.astype(np.bool_)
    return word.astype(np.dtype(f"uint{8 * dtype.itemsize}")).view(dtype)


def _owned(rank: int, count: int, size: int, seed: int) -> Array:
    """Return words in which those bits are set that belong to a rank; half of all are nobody's."""
    word = _noise(count, seed, 4)
    for bit in range((size - 1).bit_length()):
        choice = _noise(count, seed, bit, 5)
        word &= choice if rank >> bit & 1 else ~choice
    return word


# Memory -------------------------------------------------------------------------------------------

GUARD = 64
"""Bytes before and after a guarded array."""


class Guarded(NamedTuple):
    """An array in the middle of memory that nobody may write to."""

    array: Array
    check: Callable[[], None]
    """Raises AssertionError if a byte before or after the array has changed."""


def guarded(shape: Any, dtype: Any, order: Any = "C") -> Guarded:
    """Return an array, full of rubbish, and a check that nothing was written beside it."""
    dtype = np.dtype(dtype)
    nbytes = math.prod(np.atleast_1d(shape).tolist()) * dtype.itemsize
    memory = np.full(nbytes + 2 * GUARD, 0xA5, dtype=np.uint8)
    array = np.ndarray(shape, dtype, memory.data, GUARD, order=order)

    def check() -> None:
        wrong = np.flatnonzero(memory != 0xA5) - GUARD
        wrong = wrong[(wrong < 0) | (wrong >= nbytes)]
        assert not wrong.size, f"{wrong.size} bytes written beside the array, at {wrong[:5]}"

    return Guarded(array, check)


def digest(array: Any) -> str:
    """Return a hash of the elements' bytes, in C order: equal on two ranks if all bits are."""
    return hashlib.blake2b(np.asarray(array).tobytes(), digest_size=16).hexdigest()
