"""The GPU kernels against the loops of the CPU, byte by byte.

They are compiled for the CPU, or run on the first GPU with ``HPCCOLL_TEST_GPU=1``. What a GPU does
otherwise is to convert float16, by its own instructions (kernels/cuda/elements.h).
"""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from kernel_checks import (
    address,
    assert_converted,
    assert_many,
    assert_pair,
    launch,
    vectors,
)
from kernel_requests import conversions
from operands import (
    FLOATS,
    HALVES,
    REAL,
    Guarded,
    bits,
    dtype_of,
    first_difference,
    operands,
    operations_of,
    random_bits,
    special_values,
)

from hpccoll import _kernels
from hpccoll.cuda.kernel_arguments import (
    MOST_ARRAYS,
    FinishArguments,
)
from hpccoll.cuda.kernels import PACKET_BYTES

ARRANGEMENTS = ("apart", "left", "right", "both")
"""Where the result of a pair goes: a place of its own, or that of an operand."""


# --- pairs ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", _kernels.TYPES)
def test_pairs_of_special_values(name):
    left, right = operands(name)
    offset = left.itemsize
    for op, arrangement in itertools.product(operations_of(name), ARRANGEMENTS):
        # All alike; in packets behind a head; element by element; at no address of an element.
        for offsets in ((0, 0, 0), (offset, offset, offset), (0, offset, 0), (1, 1, 1), (0, 1, 3)):
            assert_pair(op, left, right, arrangement, offsets)


@pytest.mark.parametrize("name", _kernels.TYPES)
def test_pairs_of_every_length(name):
    left, right = operands(name)
    ops = operations_of(name)
    for n in range(71):
        # Another place for each length: special values meet packets and what is beside them.
        start = n * 29 % (len(left) - n)
        a, b = left[start : start + n], right[start : start + n]
        offsets = 3 * (n * left.itemsize % PACKET_BYTES,)
        assert_pair(ops[n % len(ops)], a, b, ARRANGEMENTS[n % 3], offsets, grid=(n % 3 + 1, 8))


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("name", _kernels.TYPES)
def test_pairs_of_any_bits_anywhere(name, data):
    op = data.draw(st.sampled_from(operations_of(name)))
    n = data.draw(st.integers(0, 1000))
    seed = data.draw(st.integers(0, 1000))
    left, right = random_bits(name, n, [seed, 1]), random_bits(name, n, [seed, 2])
    offset = st.integers(0, 63)
    offsets = data.draw(st.one_of(offset.map(lambda x: (x, x, x)), st.tuples(*3 * [offset])))
    grid = data.draw(st.tuples(st.integers(1, 4), st.integers(1, 64)))
    assert_pair(op, left, right, data.draw(st.sampled_from(ARRANGEMENTS)), offsets, grid)


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("op", ["sum", "min", "fmax", "lor"])
def test_pairs_of_every_half(name, op):
    half = np.arange(1 << 16, dtype=np.uint16).view(dtype_of(name))
    others = special_values(name)
    assert_pair(op, half, np.resize(others, half.size))
    assert_pair(op, half, half[::-1].copy())


# --- division and conversions ---------------------------------------------------------------------


@pytest.mark.parametrize("name", [*FLOATS, *REAL])
@pytest.mark.parametrize("divisor", [3, 7.5, 0.1, -2, float("nan")])
def test_finish_divides(name, divisor):
    x = operands(name)[0]
    wanted = x.copy()
    _kernels.divide_by(wanted, divisor)
    assert_converted(f"finish_{name}_{name}", x, x.dtype, wanted, divisor)
    for offset in (0, 1, x.itemsize):
        got, expected = Guarded(x, offset), Guarded(wanted, offset)
        place = address(got.array)
        arguments = FinishArguments(place, place, x.size, divisor)
        launch(f"finish_{name}_{name}", arguments, [got.memory], conversions)
        assert got.bytes() == expected.bytes(), first_difference(got, expected)


@pytest.mark.parametrize("name", HALVES)
@pytest.mark.parametrize("divisor", [0, 3])
def test_finish_narrows(name, divisor):
    half = np.arange(1 << 16, dtype=np.uint16).view(dtype_of(name))
    wide = np.zeros(half.size, np.float32)
    _kernels.widen(wide, half)
    # What lies at and next to halves, and between them.
    near = (
        bits(wide)[:, np.newaxis] + np.array([0, 1, 0xFFFFFFFF, 1 << 12, 1 << 15], np.uint32)
    ).ravel()
    x = np.concatenate([special_values("float32"), near.view(np.float32)])
    x = np.append(x, random_bits("float32", 1 << 14, 3))
    quotient, wanted = x.copy(), np.zeros(x.size, half.dtype)
    if divisor:
        _kernels.divide_by(quotient, divisor)
    _kernels.narrow(wanted, quotient)
    assert_converted(f"finish_float32_{name}", x, half.dtype, wanted, divisor)


@pytest.mark.parametrize("name", HALVES)
def test_widen_every_half(name):
    half = np.arange(1 << 16, dtype=np.uint16).view(dtype_of(name))
    wanted = np.zeros(half.size, np.float32)
    _kernels.widen(wanted, half)
    offsets = ((0, 0), (4, 2), (1, 2), (4, 4))
    assert_converted(f"finish_{name}_float32", half, np.float32, wanted, offsets=offsets)


# --- many -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", _kernels.TYPES)
def test_many_are_reduced_as_on_a_node(name):
    ops = operations_of(name)
    for count in range(1, MOST_ARRAYS + 1):
        sources = vectors(name, count, 41)
        # Two operations for each count; sums, whose order matters, for all.
        for op in {ops[0], ops[count % len(ops)]}:
            assert_many(op, sources)


@pytest.mark.parametrize("name", _kernels.TYPES)
def test_many_by_every_operation(name):
    sources = vectors(name, 7, 301)
    size = sources[0].itemsize
    for op in operations_of(name):
        for offsets in ((0, 0), (size, size), (0, size), (1, 1)):
            assert_many(op, sources, offsets=offsets, targets=3)
        assert_many(op, sources, targets=2, in_place=True)


@pytest.mark.parametrize("name", [*FLOATS, *REAL])
@pytest.mark.parametrize("op", ["sum", "prod"])
def test_many_are_divided(name, op):
    for count in (1, 3, 4, 11):
        sources = vectors(name, count, 67)
        for divisor in (0.0, float(count)):
            assert_many(op, sources, divisor)
            if name in HALVES:
                for offsets in ((0, 0), (2, 4), (14, 12), (2, 0), (1, 1)):
                    assert_many(op, sources, divisor, partial=True, offsets=offsets)


@settings(max_examples=15)
@given(st.data())
@pytest.mark.parametrize("name", ["int8", "bfloat16", "float32", "complex128"])
def test_many_of_any_bits_anywhere(name, data):
    count = data.draw(st.integers(1, MOST_ARRAYS))
    n = data.draw(st.integers(0, 300))
    sources = [random_bits(name, n, [count, n, k]) for k in range(count)]
    op = data.draw(st.sampled_from(operations_of(name)))
    targets = data.draw(st.integers(1, 4))
    offsets = data.draw(st.tuples(st.integers(0, 31), st.integers(0, 31)))
    assert_many(op, sources, targets=targets, offsets=offsets)
