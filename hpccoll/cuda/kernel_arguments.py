"""What the GPU kernels are called with, as in ``kernels/cuda/arguments.h``.

A kernel takes one of these structs by value, as its only parameter. Addresses are of device memory
that the kernel's device can reach; counts are of elements, strides in bytes.
"""

import ctypes
from collections.abc import Sequence

MOST_ARRAYS = 32
"""Sources, and targets, of a `ManyArguments`."""

MOST_DIMENSIONS = 8
"""Of a `ViewArguments`."""

_Addresses = ctypes.c_void_p * MOST_ARRAYS
_Strides = ctypes.c_int64 * MOST_DIMENSIONS


class PairArguments(ctypes.Structure):
    """``out = left op right``; `out` may be `left`, or `right`, or apart from both."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("left", ctypes.c_void_p),
        ("right", ctypes.c_void_p),
        ("n", ctypes.c_uint64),
    )


class FinishArguments(ctypes.Structure):
    """``out = source / divisor``, converted; a divisor of 0 for no division.

    `out` may be `source` where both are of one type. Otherwise they are apart.
    """

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("n", ctypes.c_uint64),
        ("divisor", ctypes.c_double),
    )


class ManyArguments(ctypes.Structure):
    """All sources reduced, divided, and stored to all targets; of copies, one source."""

    _fields_ = (
        ("sources", _Addresses),
        ("targets", _Addresses),
        ("n", ctypes.c_uint64),
        ("divisor", ctypes.c_double),
        ("source_count", ctypes.c_uint32),
        ("target_count", ctypes.c_uint32),
    )

    @classmethod
    def of(
        cls, sources: Sequence[int], targets: Sequence[int], n: int, divisor: float = 0.0
    ) -> "ManyArguments":
        """Return the arguments for these arrays.

        Parameters
        ----------
        sources, targets : sequence of int
            Addresses, 1 to `MOST_ARRAYS` of each. A target may be a source.
        n : int
            Elements of each; of copies, bytes.
        divisor : float
            0 for no division.

        Raises
        ------
        ValueError
            Too many arrays, or none.
        """
        for what, arrays in (("sources", sources), ("targets", targets)):
            if not 1 <= len(arrays) <= MOST_ARRAYS:
                raise ValueError(f"{len(arrays)} {what}; wanted 1 to {MOST_ARRAYS}")
        return cls(
            _Addresses(*sources), _Addresses(*targets), n, divisor, len(sources), len(targets)
        )


class ViewArguments(ctypes.Structure):
    """Elements of an array of any strides, copied to another of its shape."""

    _fields_ = (
        ("out", ctypes.c_void_p),
        ("source", ctypes.c_void_p),
        ("n", ctypes.c_uint64),
        ("shape", _Strides),
        ("out_strides", _Strides),
        ("source_strides", _Strides),
        ("dimensions", ctypes.c_uint32),
        ("swap", ctypes.c_uint32),
    )

    @classmethod
    def of(
        cls,
        out: int,
        source: int,
        shape: Sequence[int],
        out_strides: Sequence[int],
        source_strides: Sequence[int],
        swap: int = 0,
    ) -> "ViewArguments":
        """Return the arguments for these arrays.

        Parameters
        ----------
        out, source : int
            Addresses of the first elements. The arrays do not overlap.
        shape : sequence of int
            Of both, `MOST_DIMENSIONS` at most.
        out_strides, source_strides : sequence of int
            Bytes between neighbours of each dimension; negative ones and, of the source, zeros are
            allowed.
        swap : int
            Bytes of each number whose order is to be reversed (2, 4 or 8; a complex number has
            two); 0 or 1 for none.

        Raises
        ------
        ValueError
            Too many dimensions, or numbers of another size.
        """
        if len(shape) > MOST_DIMENSIONS:
            raise ValueError(f"{len(shape)} dimensions; wanted {MOST_DIMENSIONS} at most")
        if swap not in (0, 1, 2, 4, 8):
            raise ValueError(f"numbers of {swap} bytes in foreign byte order; wanted 2, 4 or 8")
        n = 1
        for length in shape:
            n *= length
        return cls(
            out,
            source,
            n,
            _Strides(*shape),
            _Strides(*out_strides),
            _Strides(*source_strides),
            len(shape),
            swap,
        )
