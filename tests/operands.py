"""Operands for every operation and type: special values, and arrays between guards."""

import operator

import ml_dtypes
import numpy as np

GUARD = 64
"""Bytes before and behind an array that must stay as they are."""

LOGICAL = {"land": operator.and_, "lor": operator.or_, "lxor": operator.xor}
BITWISE = {"band": operator.and_, "bor": operator.or_, "bxor": operator.xor}
ARITHMETIC = {"sum": np.add, "prod": np.multiply}
ORDER = {"min": np.minimum, "max": np.maximum, "fmin": np.fmin, "fmax": np.fmax}

INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
REAL = {"complex64": "float32", "complex128": "float64"}


def operations_of(name):
    if name == "bool":
        return (*ORDER, *LOGICAL, *BITWISE)
    if name in INTEGERS:
        return (*ARITHMETIC, *ORDER, *LOGICAL, *BITWISE)
    if name in FLOATS:
        return (*ARITHMETIC, *ORDER, *LOGICAL)
    return (*ARITHMETIC, *LOGICAL)


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def bits(array):
    return array.view(f"u{array.dtype.itemsize}")


def special_values(name):
    dtype = dtype_of(name)
    if name == "bool":
        return np.array([0, 1, 2, 128, 255], np.uint8).view(bool)
    if name in INTEGERS:
        info = np.iinfo(dtype)
        return np.array([info.min, info.min + 1, 0, 1, 3, info.max // 2, info.max], dtype)
    # Zero, subnormals, the extremes, infinity, NaN: signalling, quiet, and with other bits; +, -.
    quiet = 1 << (ml_dtypes.finfo(dtype).nmant - 1)
    infinity = bits(np.array([np.inf], dtype)).item()
    patterns = [0, 1, quiet, infinity // 2, infinity - 1, infinity]
    patterns += [infinity + 1, infinity + quiet, infinity + quiet + 2]
    sign = 1 << (8 * dtype.itemsize - 1)
    return np.array([*patterns, *(sign + p for p in patterns)], f"u{dtype.itemsize}").view(dtype)


def every_pair(values):
    return np.repeat(values, len(values)), np.tile(values, len(values))


def operands(name, count=200):
    """Two arrays: every special value meets every other, then numbers unique per index."""
    dtype = dtype_of(name)
    random = np.random.default_rng(dtype.itemsize)
    if name in REAL:
        special = special_values(REAL[name])[[0, 3, 5, 7, 8, 9, 12]]
        special = np.stack(every_pair(special), axis=1).view(dtype).ravel()
    else:
        special = special_values(name)
    if name in INTEGERS or name == "bool":
        more = random.bytes(2 * count * dtype.itemsize)
        more = np.frombuffer(more, dtype)
    else:
        more = random.permutation(4 * count) * 0.37 - count
        more = more.astype(dtype_of(REAL.get(name, name))).view(dtype)
    left, right = every_pair(special)
    return np.append(left, more[:count]), np.append(right, more[count : 2 * count])


def random_bits(name, count, seed):
    dtype = dtype_of(name)
    return np.frombuffer(np.random.default_rng(seed).bytes(count * dtype.itemsize), dtype)


BYTES = (np.arange(251) * 7 % 251).astype(np.uint8)
"""What memory around an array repeats."""


class Guarded:
    """An array at a given offset, between bytes that must stay as they are."""

    def __init__(self, values, offset=0):
        nbytes = values.nbytes
        self.memory = np.resize(BYTES, nbytes + 2 * GUARD + offset)
        start = GUARD + offset
        self.memory[start : start + nbytes] = np.ascontiguousarray(values).view(np.uint8)
        self.array = np.ndarray(values.shape, values.dtype, self.memory, start)

    def bytes(self):
        return self.memory.tobytes()


def first_difference(got, wanted):
    index = np.flatnonzero(got.memory != wanted.memory)[0]
    return f"byte {index}: {got.array} instead of {wanted.array}"
