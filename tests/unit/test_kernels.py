"""The compiled loops against NumPy twins, byte by byte, on every CPU target that runs here.

All targets are held to the same expected bytes, so they agree with each other as well.
"""

import ctypes
import operator
import os
import subprocess
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from hpccoll import _kernels

LENGTHS = range(71)
GUARD = 64

LOGICAL = ("land", "lor", "lxor")
BITWISE = ("band", "bor", "bxor")
ORDER = ("min", "max", "fmin", "fmax")
ARITHMETIC = ("sum", "prod")

HALVES = ("float16", "bfloat16")
FLOATS = (*HALVES, "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")


def dtype_of(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


def operations_of(name):
    if name == "bool":
        return (*ORDER, *LOGICAL, *BITWISE)
    if name in INTEGERS:
        return (*ARITHMETIC, *ORDER, *LOGICAL, *BITWISE)
    if name in FLOATS:
        return (*ARITHMETIC, *ORDER, *LOGICAL)
    return (*ARITHMETIC, *LOGICAL)


@pytest.fixture(params=_kernels.targets())
def target(request):
    before = _kernels.target()
    _kernels.set_target(request.param)
    yield request.param
    _kernels.set_target(before)


# --- operands -------------------------------------------------------------------------------------


def bits_dtype(dtype):
    return np.dtype(f"u{dtype.itemsize}")


def special_floats(dtype):
    """Zeros, subnormals, extremes, infinities and NaN of both signs, quiet and signalling."""
    info = ml_dtypes.finfo(dtype)
    quiet = 1 << (info.nmant - 1)
    exponent = np.array(np.inf, dtype).view(bits_dtype(dtype)).item()
    positive = [0, 1, quiet, exponent // 2, exponent - 1, exponent, exponent + 1]
    positive += [exponent + quiet, exponent + quiet + 2]
    sign = 1 << (8 * dtype.itemsize - 1)
    return np.array(positive + [sign + bits for bits in positive], bits_dtype(dtype)).view(dtype)


def operands(name, count=150):
    """Two arrays: every special value meets every other, then numbers unique per index."""
    dtype = dtype_of(name)
    random = np.random.default_rng(len(name) * 100 + dtype.itemsize)
    if name == "bool":
        special = np.array([0, 1, 2, 128, 255], np.uint8).view(bool)
        more = random.integers(0, 256, 2 * count, np.uint8).view(bool)
    elif name in INTEGERS:
        info = np.iinfo(dtype)
        special = np.array([info.min, info.min + 1, 0, 1, 3, info.max // 2, info.max], dtype)
        more = random.integers(info.min, info.max, 2 * count, dtype, endpoint=True)
    else:
        real = dtype_of({"complex64": "float32", "complex128": "float64"}.get(name, name))
        special = special_floats(real)
        more = random.permutation(np.arange(1, 4 * count + 1) * 0.37 - count).astype(real)
        if name in COMPLEX:
            special = special[[0, 1, 4, 5, 8, 9, 14]]
            special = np.repeat(special, 7) + 1j * 0 if False else pairs_of(special).view(dtype)
            more = more.view(dtype)
    left, right = np.repeat(special, len(special)), np.tile(special, len(special))
    return np.append(left, more[:count]), np.append(right, more[count : 2 * count])


def pairs_of(values):
    return np.stack([np.repeat(values, len(values)), np.tile(values, len(values))], axis=1).ravel()


# --- twins ----------------------------------------------------------------------------------------


def quieted(x):
    nmant = ml_dtypes.finfo(x.dtype).nmant
    bits = x.view(bits_dtype(x.dtype)) | bits_dtype(x.dtype).type(1 << (nmant - 1))
    return bits.view(x.dtype)


def twin_arithmetic(ufunc, left, right):
    """Of NaN operands the left one remains, quiet; a NaN that arises is the processor's."""
    wide = np.float32 if left.dtype.itemsize == 2 else left.dtype
    result = ufunc(left.astype(wide), right.astype(wide)).astype(left.dtype)
    if left.dtype == ml_dtypes.bfloat16:  # ml_dtypes' conversion drops what a NaN carries
        arises = np.isnan(result) & ~np.isnan(left) & ~np.isnan(right)
        assert np.isin(result[arises].view(np.uint16), [0x7FC0, 0xFFC0]).all()
    result = np.where(np.isnan(right), quieted(right), result)
    return np.where(np.isnan(left), quieted(left), result)


def twin_order(op, left, right):
    """NaN wins in min and max, loses in fmin and fmax; -0 is less than +0; NaN is np.nan."""
    nan = np.array(np.nan, left.dtype)
    if op in ("fmin", "fmax"):
        left, right = np.where(np.isnan(left), right, left), np.where(np.isnan(right), left, right)
    if op.endswith("min"):
        first = (left < right) | ((left == right) & np.signbit(left))
    else:
        first = (left > right) | ((left == right) & ~np.signbit(left))
    return np.where(np.isnan(left) | np.isnan(right), nan, np.where(first, left, right))


def twin(op, left, right):
    dtype = left.dtype
    name = dtype.name
    if op in LOGICAL:
        combine = {"land": operator.and_, "lor": operator.or_, "lxor": operator.xor}[op]
        return combine(left != 0, right != 0).astype(dtype)
    if name == "bool":
        left, right = left.view(np.uint8) != 0, right.view(np.uint8) != 0
        combine = {"b": None, "m": operator.and_, "f": operator.and_}[op[0]]
        if op in BITWISE:
            combine = {"band": operator.and_, "bor": operator.or_, "bxor": operator.xor}[op]
        elif op.endswith("max"):
            combine = operator.or_
        return combine(left, right)
    if op in BITWISE:
        combine = {"band": operator.and_, "bor": operator.or_, "bxor": operator.xor}[op]
        return combine(left, right)
    if name in INTEGERS:
        ufunc = {"sum": np.add, "prod": np.multiply}.get(op)
        return (ufunc or getattr(np, op.removeprefix("f") + "imum"))(left, right)
    if op in ORDER:
        return twin_order(op, left, right)
    ufunc = {"sum": np.add, "prod": np.multiply}[op]
    if name in FLOATS:
        return twin_arithmetic(ufunc, left, right)
    real = left.real.dtype
    if op == "sum":
        return twin_arithmetic(ufunc, left.view(real), right.view(real)).view(dtype)
    parts = [left.real * right.real - left.imag * right.imag]
    parts += [left.real * right.imag + left.imag * right.real]
    result = np.stack(parts, axis=1)
    return np.where(np.isnan(result), np.array(np.nan, real), result).view(dtype).ravel()
