"""What ranks bring, and what they must end with: exact, computed without MPI, and kept."""

import functools
import math
from typing import Any

import inputs
import numpy as np

from hpccoll.ops import OPERATIONS

Array = np.ndarray[Any, np.dtype[Any]]

PERIOD = 4099
"""Longer vectors repeat after so many elements: a prime, so that no chunk looks like another."""

COMMON = tuple(dtype.name for dtype in inputs.DTYPES)
RARE = ("longdouble", "timedelta64[s]", "datetime64[s]")
"""Types without compiled loops."""

WITH_PADDING = ("longdouble",)
"""Types of which some bytes mean nothing."""

FLOATING = tuple(dtype.name for dtype in (*inputs.REAL, *inputs.COMPLEX))

Shape = tuple[int, ...]


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the type of that name."""
    return inputs.BFLOAT16 if name == "bfloat16" else np.dtype(name)


@functools.cache
def operations_of(name: str) -> tuple[str, ...]:
    """Return the operations that make sense on a type."""
    if name == "timedelta64[s]":
        return ("sum", *inputs.ORDER)
    if name == "datetime64[s]":
        return inputs.ORDER
    if name == "longdouble":
        return (*inputs.ARITHMETIC, *inputs.ORDER, *inputs.LOGICAL)
    dtype = dtype_of(name)
    logical = inputs.LOGICAL if dtype in (*inputs.REAL, *inputs.COMPLEX) else ()
    return (*(op for op in OPERATIONS if inputs.supports(dtype, op)), *logical)


def brought(shape: Shape, dtype: str, op: str, rank: int, size: int, seed: int) -> Array:
    """Return what a rank contributes to a reduction; not to be changed."""
    count = math.prod(shape)
    return _long(_part(min(count, PERIOD), dtype, op, rank, size, seed), count).reshape(shape)


def combined(shape: Shape, dtype: str, op: str, size: int, seed: int) -> Array:
    """Return the combination of all contributions; not to be changed."""
    count = math.prod(shape)
    return _long(_whole(min(count, PERIOD), dtype, op, size, seed), count).reshape(shape)


def moved(shape: Shape, dtype: str, rank: int, seed: int) -> Array:
    """Return what a rank has where elements only move: any bits; not to be changed."""
    count = math.prod(shape)
    return _long(_bits(min(count, PERIOD), dtype, rank, seed), count).reshape(shape)


def rounded(shape: Shape, dtype: str, op: str, rank: int, seed: int) -> Array:
    """Return numbers whose sums and products are rounded; not to be changed."""
    count = math.prod(shape)
    return _long(_numbers(min(count, PERIOD), dtype, op, rank, seed), count).reshape(shape)


def is_near(
    result: Array, count: int, start: int, dtype: str, op: str, size: int, seed: int
) -> bool:
    """Whether a result is that of `count` rounded numbers, from element `start` of them on."""
    if not result.size:
        return True
    own = slice(start, start + result.size)
    parts = [rounded((count,), dtype, op, rank, seed)[own] for rank in range(size)]
    wide: Any = np.complex128 if result.dtype.kind == "c" else np.float64
    terms = np.stack([part.astype(wide) for part in parts])
    if op == "prod":
        exact, most = terms.prod(axis=0), np.abs(terms).prod(axis=0)
    else:
        exact, most = terms.sum(axis=0), np.abs(terms).sum(axis=0)
    if op == "mean":
        exact, most = exact / size, most / size
    import ml_dtypes

    epsilon = float(ml_dtypes.finfo(dtype_of(dtype)).eps)
    error = np.abs(result.reshape(-1).astype(wide) - exact)
    return bool((error <= 4 * (size + 1) * epsilon * most).all())


def _long(values: Array, count: int) -> Array:
    return values if len(values) == count else np.resize(values, count)


@functools.lru_cache(maxsize=1024)
def _part(count: int, dtype: str, op: str, rank: int, size: int, seed: int) -> Array:
    base = _base(dtype, op)
    values = inputs.contribution(rank, count, base, op, size, seed)
    return _kept(_converted(values, dtype, op, rank))


@functools.lru_cache(maxsize=512)
def _whole(count: int, dtype: str, op: str, size: int, seed: int) -> Array:
    if dtype.endswith("64[s]"):  # wider than what they are made of, so that nothing wraps around
        parts = [_part(count, dtype, op, rank, size, seed) for rank in range(size)]
        return _kept(inputs.combine(parts, op))
    base = _base(dtype, op)
    return _kept(_converted(inputs.expected(count, base, op, size, seed), dtype, op))


def _base(dtype: str, op: str) -> Any:
    """Return the type for which `inputs` has data that can be converted without a loss."""
    if dtype in ("timedelta64[s]", "datetime64[s]"):
        return "int32"
    if op in inputs.LOGICAL and dtype in (*FLOATING, "longdouble"):
        return "int8"
    return "float64" if dtype == "longdouble" else dtype_of(dtype)


def _converted(values: Array, dtype: str, op: str, rank: int | None = None) -> Array:
    if dtype.endswith("64[s]"):
        return values.astype("int64").view(dtype)
    result = values.astype(dtype_of(dtype))
    if rank is not None and op in inputs.LOGICAL and result.dtype.kind == "c":
        return (result * (1j if rank % 2 else 1)).astype(result.dtype)  # true by either part
    return result


@functools.lru_cache(maxsize=1024)
def _bits(count: int, dtype: str, rank: int, seed: int) -> Array:
    kind = dtype_of(dtype)
    random = np.random.default_rng([seed, rank, 1])
    if dtype == "bool":
        return _kept(random.integers(0, 2, count).astype(bool))
    if dtype in WITH_PADDING:
        return _kept(random.normal(size=count).astype(kind))
    return _kept(np.frombuffer(random.bytes(count * kind.itemsize), kind))


@functools.lru_cache(maxsize=256)
def _numbers(count: int, dtype: str, op: str, rank: int, seed: int) -> Array:
    kind = dtype_of(dtype)
    random = np.random.default_rng([seed, rank, 2])
    # Products of numbers near 1 neither vanish nor overflow.
    values = random.uniform(0.6, 1.7, count) if op == "prod" else random.normal(size=count)
    if kind.kind == "c":
        return _kept((values * np.exp(1j * random.normal(size=count))).astype(kind))
    return _kept((values * random.choice((-1, 1), count)).astype(kind))


def _kept(values: Array) -> Array:
    values.flags.writeable = False
    return values
