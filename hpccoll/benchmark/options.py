"""What a benchmark run measures: sizes, types, operations, candidates, and how long."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpccoll.algorithms import ALGORITHMS, AUTO
from hpccoll.ops import OPERATIONS, check_type

NATIVE = "mpi"
"""The candidate that is the MPI library's own Allreduce; the others are compared with it."""

CANDIDATES = (NATIVE, *ALGORITHMS, AUTO)
"""All candidates, in the order of the table."""

FRESH_BYTES = 16 << 10
"""From this size on each rank rewrites its input before every timed call.

A loop of calls on the same buffers leaves the parts that a rank owns in its cache, which no program
that works on its data does.
"""

SECONDS = 0.2
"""Time per row where nothing else is asked for."""

_SIZE = re.compile(r"(\d+)\s*([KMGT]?)(?:iB|B)?", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Case:
    """One group of rows: all candidates do the same.

    Attributes
    ----------
    type, op : str
        Element type and operation, by name.
    place : str
        "in" (in place) or "out".
    count, nbytes : int
        Elements and bytes of the vector.
    fresh : bool
        Whether the input is rewritten before every timed call.
    """

    type: str
    op: str
    place: str
    count: int
    nbytes: int
    fresh: bool


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure; equal on all ranks.

    Attributes
    ----------
    sizes : tuple of int
        Bytes of the vector; rounded down to whole elements, at least one.
    types, ops, algorithms, places : tuple of str
        Names; every combination is measured. `NATIVE` is among the algorithms always.
    iterations : int or None
        Timed samples per row; None to go by `seconds`.
    seconds : float
        Time per row.
    warmup : int
        Untimed rounds before.
    check : bool
        Whether results are compared with the exact ones.
    segment_bytes : int or None
        For hpccoll's algorithms: upper limit of a message.
    warm : bool
        Never rewrite the input between timed calls.
    """

    sizes: tuple[int, ...]
    types: tuple[str, ...] = ("float32",)
    ops: tuple[str, ...] = ("sum",)
    algorithms: tuple[str, ...] = CANDIDATES
    places: tuple[str, ...] = ("out",)
    iterations: int | None = None
    seconds: float = SECONDS
    warmup: int = 3
    check: bool = True
    segment_bytes: int | None = None
    warm: bool = False

    @property
    def candidates(self) -> tuple[str, ...]:
        """The algorithms, in the order of the table, the MPI library's first."""
        return tuple(name for name in CANDIDATES if name == NATIVE or name in self.algorithms)

    def pairs(self) -> dict[tuple[str, str], str]:
        """Return, for each type and operation, why they do not go together; empty where they do."""
        return {(name, op): _why_not(name, op) for name in self.types for op in self.ops}

    def cases(self) -> Iterator[Case]:
        """Yield the cases in the order of the table."""
        for (type_name, op), reason in self.pairs().items():
            if reason:
                continue
            itemsize = dtype_of(type_name).itemsize
            counts = dict.fromkeys(max(1, nbytes // itemsize) for nbytes in self.sizes)
            for place in self.places:
                for count in counts:
                    nbytes = count * itemsize
                    fresh = nbytes >= FRESH_BYTES and not self.warm
                    yield Case(type_name, op, place, count, nbytes, fresh)


def _why_not(type_name: str, op: str) -> str:
    """Return why an operation cannot run on a type, or nothing."""
    try:
        check_type(OPERATIONS[op], dtype_of(type_name))
    except (TypeError, ImportError) as error:
        return str(error)
    return ""


def dtype_of(name: str) -> np.dtype[Any]:
    """Return the NumPy type of that name.

    Raises
    ------
    ImportError
        It is bfloat16, and ml_dtypes, which NumPy has it from, is not installed.
    """
    if name == "bfloat16":
        try:
            import ml_dtypes
        except ImportError:
            message = "bfloat16 needs ml_dtypes: pip install 'hpccoll[bfloat16]'"
            raise ImportError(message) from None
        bfloat16: np.dtype[Any] = np.dtype(ml_dtypes.bfloat16)
        return bfloat16
    return np.dtype(name)


def parse_size(text: str) -> int:
    """Read a number of bytes; K, M, G and T are powers of 1024.

    Examples
    --------
    >>> [parse_size(text) for text in ("8", "64K", "1M", "2GiB")]
    [8, 65536, 1048576, 2147483648]
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        message = f"{text!r} is no size; wanted a number of bytes such as 8, 64K, 1M or 2G"
        raise ValueError(message)
    power: int = " KMGT".index(match[2].upper() or " ")
    return int(match[1]) << 10 * power


def size_range(begin: int, end: int, factor: int) -> tuple[int, ...]:
    """Return begin, begin * factor, ..., up to end.

    Examples
    --------
    >>> size_range(8, 100, 2)
    (8, 16, 32, 64)
    """
    sizes = []
    while begin <= end:
        sizes.append(begin)
        begin *= factor
    return tuple(sizes)
