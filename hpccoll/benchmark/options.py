"""What a benchmark run measures: sizes, types, operations, candidates, and how long."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpccoll.algorithms import AUTO, COLLECTIVES, REGISTRY, Collective
from hpccoll.ops import OPERATIONS, check_type
from hpccoll.pattern import ALLREDUCE, NO_OPERATION, Pattern
from hpccoll.selection import NCCL, NCCL_COLLECTIVES

NATIVE = "mpi"
"""The candidate that is the MPI library's own call; the others are compared with it."""

METHODS = {
    "allreduce": "Allreduce",
    "reduce_scatter": "Reduce_scatter_block",
    "allgather": "Allgather",
    "reduce": "Reduce",
    "broadcast": "Bcast",
    "barrier": "Barrier",
}
"""By collective, mpi4py's name of the call that is measured."""

DEVICES = ("host", "cuda")
"""Where vectors can be. On a device, the MPI library is called by hand: copy, call, copy back."""

NONE = NO_OPERATION
"""What stands for an operation, a type or a place where a collective has none."""

PLACES = {"broadcast": ("in",), "barrier": (NONE,)}
"""Places of the collectives that leave no choice: a broadcast has one array."""

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
    pattern : Pattern
        The collective and its root.
    """

    type: str
    op: str
    place: str
    count: int
    nbytes: int
    fresh: bool
    pattern: Pattern = ALLREDUCE

    def __str__(self) -> str:
        """Return what is done to what: "sum on float32"."""
        words = [self.op, "on", self.type] if self.pattern.reduces else [self.type]
        return " ".join(word for word in words if word != NONE) or self.pattern.collective


@dataclass(frozen=True, slots=True)
class Options:
    """What to measure; equal on all ranks.

    What the collective does not have (operations, places, and for a barrier elements) is replaced
    by what stands for that.

    Attributes
    ----------
    sizes : tuple of int
        Bytes of the whole vector, of which ranks may have chunks; rounded down to whole elements,
        or to equal chunks for all ranks, at least one element each.
    types, ops, algorithms, places : tuple of str
        Names; every combination is measured. No algorithms stand for all of them. `NATIVE` is
        always among them.
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
    collective : str
        What is measured.
    root : int
        The root of a rooted collective.
    device : str
        Where the vectors are, one of `DEVICES`.
    """

    sizes: tuple[int, ...]
    types: tuple[str, ...] = ("float32",)
    ops: tuple[str, ...] = ("sum",)
    algorithms: tuple[str, ...] = ()
    places: tuple[str, ...] = ("out",)
    iterations: int | None = None
    seconds: float = SECONDS
    warmup: int = 3
    check: bool = True
    segment_bytes: int | None = None
    warm: bool = False
    collective: str = "allreduce"
    root: int = 0
    device: str = DEVICES[0]

    def __post_init__(self) -> None:
        """Replace what the collective does not have."""
        settled: dict[str, Any] = {"places": PLACES.get(self.collective, self.places)}
        if not self.algorithms:
            settled["algorithms"] = candidates(self.collective, self.device)
        if not self._of.reduces:
            settled["ops"] = (NONE,)
        if not has_elements(self.collective):
            settled |= {"sizes": (0,), "types": (NONE,), "check": False, "warm": True}
        for name, value in settled.items():
            object.__setattr__(self, name, value)

    @property
    def _of(self) -> Collective:
        return COLLECTIVES[self.collective]

    @property
    def candidates(self) -> tuple[str, ...]:
        """The algorithms, in the order of the table, the MPI library's first."""
        known = candidates(self.collective, self.device)
        return tuple(name for name in known if name == NATIVE or name in self.algorithms)

    def pairs(self) -> dict[tuple[str, str], str]:
        """Return, for each type and operation, why they do not go together; empty where they do."""
        return {(name, op): _why_not(name, op) for name in self.types for op in self.ops}

    def cases(self, ranks: int) -> Iterator[Case]:
        """Yield the cases on that many ranks in the order of the table."""
        pattern = Pattern(self.collective, self.root if self._of.rooted else 0)
        unit = ranks if self._of.split else 1
        for (type_name, op), reason in self.pairs().items():
            if reason:
                continue
            itemsize = dtype_of(type_name).itemsize
            counts = [max(1, nbytes // (unit * itemsize)) * unit for nbytes in self.sizes]
            for place in self.places:
                for count in dict.fromkeys(counts if has_elements(self.collective) else [0]):
                    nbytes = count * itemsize
                    fresh = nbytes >= FRESH_BYTES and not self.warm
                    yield Case(type_name, op, place, count, nbytes, fresh, pattern)


def candidates(collective: str, device: str = DEVICES[0]) -> tuple[str, ...]:
    """Return all candidates for a collective, in the order of the table."""
    nccl = (NCCL,) if device == "cuda" and collective in NCCL_COLLECTIVES else ()
    return (NATIVE, *REGISTRY[collective], *nccl, AUTO)


def has_elements(collective: str) -> bool:
    """Whether elements are moved; a barrier has none."""
    return collective != "barrier"


def _why_not(type_name: str, op: str) -> str:
    """Return why an operation cannot run on a type, or nothing."""
    try:
        dtype = dtype_of(type_name)
        if op != NONE:
            check_type(OPERATIONS[op], dtype)
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
    if name == NONE:
        return np.dtype(np.uint8)
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
