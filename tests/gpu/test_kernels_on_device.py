"""Kernels on vectors that fill a device, launched as collectives launch them.

What tests/unit/test_cuda_kernels.py runs on a device is small: special values, odd lengths, any
alignment.
"""

import numpy as np
import pytest
from kernel_checks import assert_converted, assert_many, assert_pair, vectors
from operands import FLOATS, HALVES, REAL, operations_of, random_bits

from hpccoll import _kernels
from hpccoll.cuda.kernels import launch_shape

COUNT = 500_009


def shape_of(dtype):
    return launch_shape(COUNT, dtype.itemsize)


@pytest.mark.parametrize("name", _kernels.TYPES)
def test_pairs(name):
    left, right = (random_bits(name, COUNT, [seed, 7]) for seed in range(2))
    size = left.itemsize
    for op in operations_of(name):
        assert_pair(op, left, right, "left", grid=shape_of(left.dtype))
    assert_pair(op, left, right, "apart", (size, 0, size), grid=shape_of(left.dtype))


@pytest.mark.parametrize("name", _kernels.TYPES)
@pytest.mark.parametrize("count", [2, 5])
def test_many(name, count):
    sources = vectors(name, count, COUNT)
    for op in operations_of(name)[:2]:
        assert_many(op, sources, targets=2, in_place=True, grid=shape_of(sources[0].dtype))


@pytest.mark.parametrize("name", [*FLOATS, *REAL])
def test_finish(name):
    x = vectors(name, 1, COUNT)[0]
    wanted = x.copy()
    _kernels.divide_by(wanted, 3.0)
    kernel = f"finish_{name}_{name}"
    assert_converted(kernel, x, x.dtype, wanted, 3.0, ((0, 0),), (), shape_of(x.dtype))


@pytest.mark.parametrize("name", HALVES)
def test_widen_and_narrow(name):
    half = random_bits(name, COUNT, 1)
    wide = np.zeros(COUNT, np.float32)
    _kernels.widen(wide, half)
    kernel, shape = f"finish_{name}_float32", shape_of(half.dtype)
    assert_converted(kernel, half, wide.dtype, wide, 0.0, ((0, 0),), (), shape)
    x = random_bits("float32", COUNT, 2)
    wanted = np.zeros(COUNT, half.dtype)
    _kernels.narrow(wanted, x)
    kernel = f"finish_float32_{name}"
    assert_converted(kernel, x, half.dtype, wanted, 0.0, ((0, 0),), (), shape)
