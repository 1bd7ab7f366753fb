"""Which loops reduce a type: compiled kernels where there are some, NumPy's functions elsewhere.

Half types (float16, bfloat16) travel and are summed as float32 while they are partial, and are
rounded once, when an element is complete.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpccoll import _kernels
from hpccoll._plans import Loops
from hpccoll.ops import Operation, check_type

HALF_TYPES = ("float16", "bfloat16")
FLOAT32 = np.dtype(np.float32)


@dataclass(frozen=True, slots=True)
class Reduction:
    """How one operation runs on one type.

    Attributes
    ----------
    dtype, partial_dtype : numpy.dtype
        The caller's type, and that of partial values; they differ for half types only.
    loops : Loops
        What the executor calls.
    kernel : str
        "baseline", "avx2", "avx512", "numpy" for a type that has no compiled loop, or "none" where
        nothing is reduced.
    finishes : bool
        Complete elements are divided or narrowed.
    """

    dtype: np.dtype[Any]
    partial_dtype: np.dtype[Any]
    loops: Loops
    kernel: str
    finishes: bool

    @property
    def widens(self) -> bool:
        """Whether partial values have a wider type."""
        return self.partial_dtype is not self.dtype


def find_reduction(operation: Operation, dtype: np.dtype[Any], size: int) -> Reduction:
    """Choose the loops.

    Parameters
    ----------
    operation : Operation
        What to do.
    dtype : numpy.dtype
        The caller's type, in native byte order.
    size : int
        Number of ranks, which "mean" divides by.

    Raises
    ------
    TypeError
        The operation makes no sense on the type.
    """
    check_type(operation, dtype)
    divisor = float(size) if operation.divides else 0.0
    # Half types are summed in float32; where nothing is rounded (min, lor) they stay as they are.
    if dtype.name in HALF_TYPES and operation.kernel in ("sum", "prod"):
        loops = Loops(
            _kernels.reduce_address(operation.kernel, "float32"),
            divide=_kernels.divide_address("float32"),
            widen=_kernels.widen_address(dtype.name),
            narrow=_kernels.narrow_address(dtype.name),
            divisor=divisor,
        )
        return Reduction(dtype, FLOAT32, loops, _kernels.target(), finishes=True)
    name = kernel_type(dtype)
    if name is not None and _kernels.supports(operation.kernel, name):
        loops = Loops(
            _kernels.reduce_address(operation.kernel, name),
            divide=_kernels.divide_address(name) if divisor else None,
            divisor=divisor,
        )
        kernel = _kernels.target()
    else:
        loops = Loops(_numpy_reduce(operation, dtype), divide=_numpy_divide(dtype), divisor=divisor)
        kernel = "numpy"
    return Reduction(dtype, dtype, loops, kernel, finishes=operation.divides)


@functools.lru_cache(maxsize=64)
def without_loops(dtype: np.dtype[Any]) -> Reduction:
    """Return what stands for a reduction in a collective that only moves elements."""
    return Reduction(dtype, dtype, Loops(0), "none", finishes=False)


def kernel_type(dtype: np.dtype[Any]) -> str | None:
    """Return the name under which the kernels know a type, or None."""
    name = dtype.name
    if dtype.kind in "iu":
        # By size: C's long and long long are two NumPy types with one representation.
        name = f"{'int' if dtype.kind == 'i' else 'uint'}{8 * dtype.itemsize}"
    return name if name in _kernels.TYPES else None


class _Memory:
    """Bytes at an address, as NumPy takes them."""

    def __init__(self, address: int, nbytes: int) -> None:
        self.__array_interface__ = {
            "data": (address, False),
            "shape": (nbytes,),
            "typestr": "|u1",
            "version": 3,
        }


def _array(address: int, count: int, dtype: np.dtype[Any]) -> np.ndarray[Any, np.dtype[Any]]:
    return np.asarray(_Memory(address, count * dtype.itemsize)).view(dtype)


def _numpy_reduce(
    operation: Operation, dtype: np.dtype[Any]
) -> Callable[[int, int, int, int], None]:
    ufunc = getattr(np, operation.ufunc)

    def reduce(out: int, left: int, right: int, count: int) -> None:
        result = _array(out, count, dtype)
        with np.errstate(all="ignore"):
            ufunc(
                _array(left, count, dtype),
                _array(right, count, dtype),
                out=result,
                casting="unsafe",
            )

    return reduce


def _numpy_divide(dtype: np.dtype[Any]) -> Callable[[int, float, int], None]:
    def divide(address: int, divisor: float, count: int) -> None:
        values = _array(address, count, dtype)
        with np.errstate(all="ignore"):
            np.divide(values, divisor, out=values)

    return divide
