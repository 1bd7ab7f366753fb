"""Arrays of every layout, in memory that tells afterwards whether anything beside them changed."""

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

FILLER = 0xA5

Array = np.ndarray[Any, Any]


class Placed(NamedTuple):
    """An array in the middle of memory that is full of `FILLER`."""

    array: Array
    memory: Array

    def check_gaps(self) -> None:
        """Check that no byte beside the elements has changed. Destroys the elements."""
        self.array[...] = np.frombuffer(bytes([FILLER]) * self.array.itemsize, self.array.dtype)[0]
        changed = np.flatnonzero(self.memory != FILLER)
        assert not changed.size, f"{changed.size} bytes beside the array changed, at {changed[:5]}"


def _filled(
    shape: tuple[int, ...], dtype: Any, order: Any = "C", odd: int = 0
) -> tuple[Array, Array]:
    dtype = np.dtype(dtype)
    nbytes = math.prod(shape) * dtype.itemsize
    memory = np.full(nbytes + 192, FILLER, np.uint8)
    start = 64 - memory.ctypes.data % 64 + odd
    return np.ndarray(shape, dtype, memory.data, start, order=order), memory


def _c(shape: Any, dtype: Any) -> Placed:
    return Placed(*_filled(shape, dtype))


def _fortran(shape: Any, dtype: Any) -> Placed:
    return Placed(*_filled(shape, dtype, "F"))


def _gaps(shape: Any, dtype: Any) -> Placed:
    base, memory = _filled(tuple(3 * n + 2 for n in shape), dtype)
    return Placed(base[(..., *(slice(1, 3 * n + 1, 3) for n in shape))], memory)


def _last_axis_gaps(shape: Any, dtype: Any) -> Placed:
    base, memory = _filled((*shape[:-1], 2 * shape[-1]) if shape else (), dtype)
    return Placed(base[..., ::2] if shape else base, memory)


def _block(shape: Any, dtype: Any) -> Placed:
    base, memory = _filled(tuple(n + 3 for n in shape), dtype)
    return Placed(base[(..., *(slice(1, n + 1) for n in shape))], memory)


def _reversed(shape: Any, dtype: Any) -> Placed:
    base, memory = _filled(shape, dtype)
    return Placed(base[(..., *(slice(None, None, -1) for _ in shape))], memory)


def _turned(shape: Any, dtype: Any) -> Placed:
    axes = (*range(1, len(shape)), 0) if shape else ()
    back = np.argsort(axes)
    base, memory = _filled(tuple(shape[axis] for axis in back), dtype)
    return Placed(base.transpose(axes), memory)


def _foreign(shape: Any, dtype: Any) -> Placed:
    return Placed(*_filled(shape, np.dtype(dtype).newbyteorder("S")))


def _foreign_gaps(shape: Any, dtype: Any) -> Placed:
    return _gaps(shape, np.dtype(dtype).newbyteorder("S"))


def _misaligned(shape: Any, dtype: Any) -> Placed:
    return Placed(*_filled(shape, dtype, odd=1))


def _field(shape: Any, dtype: Any) -> Placed:
    record = np.dtype({"names": ["x"], "formats": [dtype], "offsets": [3], "itemsize": 19})
    base, memory = _filled(shape, record)
    return Placed(base["x"], memory)


LAYOUTS: dict[str, Callable[[Any, Any], Placed]] = {
    "C order": _c,
    "Fortran order": _fortran,
    "gaps in all axes": _gaps,
    "gaps in the last axis": _last_axis_gaps,
    "a block of a larger array": _block,
    "reversed": _reversed,
    "axes turned": _turned,
    "foreign byte order": _foreign,
    "foreign byte order with gaps": _foreign_gaps,
    "misaligned": _misaligned,
    "a field of records": _field,
}


def place(layout: str, values: Array) -> Placed:
    """Return an array of that layout that holds `values`."""
    placed = LAYOUTS[layout](values.shape, values.dtype)
    placed.array[...] = values
    return placed
