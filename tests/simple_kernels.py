"""A few kernels on float32 and float64, for tests of what launches them.

They stand in for those of kernels/cuda where it does not matter what is computed. The code of the
module is ``CODE``.
"""

import ctypes
import struct

import numpy as np

CODE = b"simple kernels"

PAIR = struct.Struct("<QQQQ")
FINISH = struct.Struct("<QQQd")


def at(address: int, n: int, dtype: str) -> np.ndarray:
    return np.frombuffer(
        (ctypes.c_char * (n * np.dtype(dtype).itemsize)).from_address(address), dtype
    )


def has(code: bytes, name: str) -> bool:
    return code == CODE and name in ("add", "divide", "widen", "narrow")


def argument_bytes(name: str) -> int:
    return PAIR.size if name == "add" else FINISH.size


def types_of(name: str) -> tuple[str, str]:
    """Return the type that a kernel reads, and the one that it stores."""
    return {"widen": ("f4", "f8"), "narrow": ("f8", "f4")}.get(name, ("f4", "f4"))


def ranges(name: str, arguments: bytes) -> tuple[list[tuple[int, int]], list[tuple[int, int]]]:
    """Return what a kernel reads, and what it stores to: addresses and bytes."""
    if name == "add":
        out, left, right, n = PAIR.unpack(arguments)
        return [(left, 4 * n), (right, 4 * n)], [(out, 4 * n)]
    out, source, n, _ = FINISH.unpack(arguments)
    reads, stores = (np.dtype(one).itemsize for one in types_of(name))
    return [(source, reads * n)], [(out, stores * n)]


def run(code: bytes, name: str, arguments: bytes, grid: int, block: int) -> None:
    if name == "add":
        out, left, right, n = PAIR.unpack(arguments)
        at(out, n, "f4")[:] = at(left, n, "f4") + at(right, n, "f4")
        return
    out, source, n, divisor = FINISH.unpack(arguments)
    reads, stores = types_of(name)
    at(out, n, stores)[:] = at(source, n, reads) / (divisor or 1)
