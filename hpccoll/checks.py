"""What arguments must be: checks that several doors make, and that jobs make for all of them."""

from operator import index
from typing import Any

import numpy as np

from hpccoll import buffers
from hpccoll.buffers import Array
from hpccoll.cuda.device_array import DeviceArray
from hpccoll.ops import Operation
from hpccoll.reduction import find_reduction


def check_device_loops(operation: Operation, dtype: np.dtype[Any], size: int) -> None:
    """Raise where the device has no loops for an operation on a type; the host would use NumPy."""
    if not find_reduction(operation, dtype, size).loops.compiled:
        message = f"op {operation.name!r} has no loops for {dtype} in GPU memory; copy to the host"
        raise TypeError(message)


def check_output(out: Array, name: str) -> None:
    """Raise where a result cannot be stored."""
    if buffers.overlaps_itself(out):
        message = (
            f"{name} has elements that overlap (shape {out.shape}, strides {out.strides}); "
            "wanted an array with a place for each element"
        )
        raise ValueError(message)
    if not out.flags.writeable:
        message = f"{name} is read-only; wanted a writable array"
        raise BufferError(message)
    if isinstance(out, DeviceArray):
        from hpccoll.cuda.copies import check_layout

        check_layout(name, out)


def check_root(root: object, size: int) -> None:
    """Raise where `root` is no rank."""
    if isinstance(root, bool) or not isinstance(root, (int, np.integer)):
        message = f"root is {root!r} of type {type(root).__name__}; wanted a rank"
        raise TypeError(message)
    if not 0 <= root < size:
        message = f"root is {root}; wanted a rank from 0 to {size - 1}"
        raise ValueError(message)


def check_counts(name: str, counts: Any, size: int) -> tuple[int, ...]:
    """Return one count per rank, or raise."""
    try:
        numbers = tuple(index(count) for count in counts)
    except TypeError:
        message = f"{name} is {counts!r}; wanted a sequence of {size} ints"
        raise TypeError(message) from None
    if len(numbers) != size or any(number < 0 for number in numbers):
        message = f"{name} is {list(numbers)}; wanted {size} numbers, none below 0"
        raise ValueError(message)
    return numbers
