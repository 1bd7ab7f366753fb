"""The compiled loops against NumPy twins, byte by byte, on every CPU target that runs here.

All targets are held to the same expected bytes, so they agree with each other as well.
"""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from operands import (
    ARITHMETIC,
    BITWISE,
    FLOATS,
    HALVES,
    INTEGERS,
    LOGICAL,
    ORDER,
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

LENGTHS = range(71)

# --- twins ----------------------------------------------------------------------------------------


def quieted(x):
    return (bits(x) | bits(x).dtype.type(1 << (ml_dtypes.finfo(x.dtype).nmant - 1))).view(x.dtype)


def one_nan(x):
    """NaN is always NumPy's."""
    return np.where(np.isnan(x), np.array(np.nan, x.dtype), x)


def arithmetic(op, left, right):
    wide = np.float32 if left.dtype.itemsize == 2 else left.dtype
    return one_nan(ARITHMETIC[op](left.astype(wide), right.astype(wide)).astype(left.dtype))


def order(op, left, right):
    """Compare as NumPy does, and -0 as less than +0."""
    negative = np.signbit(left), np.signbit(right)
    negative = np.logical_or(*negative) if op.endswith("min") else np.logical_and(*negative)
    zero = np.where(negative, -0.0, 0.0).astype(left.dtype)
    return one_nan(np.where((left == 0) & (right == 0), zero, ORDER[op](left, right)))


def twin(op, left, right):
    """What the loops are to give, computed by NumPy."""
    dtype = left.dtype
    if op in LOGICAL:
        return LOGICAL[op](left != 0, right != 0).astype(dtype)
    if dtype.name == "bool":
        left, right = (x.view(np.uint8) != 0 for x in (left, right))
    if op in BITWISE:
        return BITWISE[op](left, right)
    if dtype.name in REAL and op == "prod":
        re = left.real * right.real - left.imag * right.imag
        im = left.real * right.imag + left.imag * right.real
        return one_nan(np.stack([re, im], axis=1)).view(dtype).ravel()
    if dtype.name in REAL:
        return arithmetic(op, left.view(left.real.dtype), right.view(left.real.dtype)).view(dtype)
    if dtype.name in FLOATS:
        return (arithmetic if op in ARITHMETIC else order)(op, left, right)
    return ({**ARITHMETIC, **ORDER}[op])(left, right)


# --- reductions -----------------------------------------------------------------------------------


def reduce_left(left, right, op, offset, other):
    acc = Guarded(right, offset)
    _kernels.reduce_into(acc.array, Guarded(left, other).array, op)
    return acc


def reduce_right(left, right, op, offset, other):
    acc = Guarded(left, offset)
    _kernels.reduce_into(acc.array, Guarded(right, other).array, op, "right")
    return acc


def combine(left, right, op, offset, other):
    out = Guarded(np.zeros_like(left), offset)
    _kernels.combine(out.array, Guarded(left, other).array, Guarded(right, 2).array, op)
    return out


FORMS = (reduce_left, reduce_right, combine)


@pytest.mark.parametrize("name", _kernels.TYPES)
def test_reductions(target, name):
    all_left, all_right = operands(name)
    itemsize = all_left.dtype.itemsize
    for op in operations_of(name):
        with np.errstate(all="ignore"):
            all_wanted = twin(op, all_left, all_right)
        for n in LENGTHS:
            # Another place for each length: special values meet vector bodies and remainders.
            start = n * 29 % (len(all_left) - n)
            left, right, wanted = (x[start : start + n] for x in (all_left, all_right, all_wanted))
            for form in FORMS:
                offset, other = ((0, 1), (1, itemsize), (itemsize, 0))[n % 3]
                got, expected = form(left, right, op, offset, other), Guarded(wanted, offset)
                assert got.bytes() == expected.bytes(), (op, n, first_difference(got, expected))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", _kernels.TYPES)
def test_reductions_of_long_arrays(target, name, form):
    left, right = operands(name, 1300)
    for op in operations_of(name):
        for offset in (0, 1, left.itemsize):
            with np.errstate(all="ignore"):
                expected = Guarded(twin(op, left, right), offset)
            got = form(left, right, op, offset, 1)
            assert got.bytes() == expected.bytes(), (op, offset, first_difference(got, expected))


@settings(max_examples=25)
@given(st.data())
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", _kernels.TYPES)
def test_reductions_of_any_bits_at_any_address(name, form, data):
    op = data.draw(st.sampled_from(operations_of(name)))
    n = data.draw(st.one_of(st.integers(0, 100), st.integers(0, 3000)))
    offset, other = data.draw(st.tuples(st.integers(0, 63), st.integers(0, 63)))
    seed = data.draw(st.integers(0, 1000))
    left, right = random_bits(name, n, [seed, 1]), random_bits(name, n, [seed, 2])
    with np.errstate(all="ignore"):
        expected = Guarded(twin(op, left, right), offset)
    before = _kernels.target()
    for target in _kernels.targets():
        _kernels.set_target(target)
        got = form(left, right, op, offset, other)
        _kernels.set_target(before)
        assert got.bytes() == expected.bytes(), (target, first_difference(got, expected))


@pytest.mark.parametrize("name", _kernels.TYPES)
def test_targets_agree_on_random_bits(name):
    left, right = random_bits(name, 3001, 1), random_bits(name, 3001, 2)
    before = _kernels.target()
    for op in operations_of(name):
        results = []
        for target in _kernels.targets():
            _kernels.set_target(target)
            out = np.zeros_like(left)
            _kernels.combine(out, left, right, op)
            results.append(out.tobytes())
        _kernels.set_target(before)
        assert len(set(results)) == 1, op


@pytest.mark.parametrize("name", [*FLOATS, *REAL])
def test_no_operation_depends_on_the_side(target, name):
    left, right = operands(name)
    for op in operations_of(name):
        one, other = np.zeros_like(left), np.zeros_like(left)
        _kernels.combine(one, left, right, op)
        _kernels.combine(other, right, left, op)
        assert one.tobytes() == other.tobytes(), op


@pytest.mark.parametrize("name", FLOATS)
@pytest.mark.parametrize("op", ARITHMETIC)
def test_nan_among_many_numbers(target, name, op):
    """A NaN in each place of a long array, which may be reduced in groups."""
    ones = np.ones(150, dtype_of(name))
    for index in range(len(ones)):
        acc = ones.copy()
        acc[index] = np.nan
        _kernels.reduce_into(acc, ones, op)
        np.testing.assert_array_equal(np.flatnonzero(np.isnan(acc)), [index])


def test_an_operand_may_be_both(target):
    x = np.arange(100, dtype=np.float32)
    _kernels.reduce_into(x, x, "sum")
    _kernels.combine(x, x, x, "sum")
    np.testing.assert_array_equal(x, 4 * np.arange(100))


def test_arrays_of_more_dimensions(target):
    acc = np.arange(24).reshape(2, 3, 4)
    _kernels.reduce_into(acc, np.full((2, 3, 4), 10), "sum")
    np.testing.assert_array_equal(acc.ravel(), np.arange(24) + 10)
    scalar = np.array(5.0)
    _kernels.reduce_into(scalar, np.array(2.0), "prod")
    assert scalar == 10


# --- division, conversion, copies -----------------------------------------------------------------


@pytest.mark.parametrize("name", [*FLOATS, *REAL])
@pytest.mark.parametrize("divisor", [3, 7.5, 0.1, 0, -2, float("nan")])
def test_divide(target, name, divisor):
    x = operands(name, 1300)[0]
    real = x.view(dtype_of(REAL.get(name, name)))
    with np.errstate(all="ignore"):
        wide = real.astype(np.float32) if name in HALVES else real
        wanted = one_nan((wide / wide.dtype.type(divisor)).astype(real.dtype)).view(x.dtype)
    for n in (*LENGTHS, len(x)):
        for offset in (0, 1):
            got, expected = Guarded(x[:n], offset), Guarded(wanted[:n], offset)
            _kernels.divide_by(got.array, divisor)
            assert got.bytes() == expected.bytes(), (n, first_difference(got, expected))


def converted(call, x, dtype, n, offset):
    """The first `n` elements, converted, after a look at the bytes round them."""
    out = Guarded(np.zeros(n, dtype), offset)
    call(out.array, Guarded(x[:n], 1 - offset).array)
    result = out.array.copy()
    assert out.bytes() == Guarded(result, offset).bytes()
    return result


@pytest.mark.parametrize("name", HALVES)
def test_widen_every_half(target, name):
    half = np.arange(1 << 16, dtype=np.uint16).view(dtype_of(name))
    wanted = half.astype(np.float32)
    if name == "float16":
        wanted = np.where(np.isnan(wanted), quieted(wanted), wanted)
    for n in (*LENGTHS, len(half)):
        got = converted(_kernels.widen, half, np.float32, n, n % 2)
        np.testing.assert_array_equal(bits(got), bits(wanted[:n]))


@pytest.mark.parametrize("name", HALVES)
def test_narrow(target, name):
    dtype = dtype_of(name)
    half = np.arange(1 << 16, dtype=np.uint16).view(dtype)
    # Every half, every tie between neighbours (the last is where overflow begins), and what lies
    # next to them; then numbers of all sizes, and NaN.
    exact = half.astype(np.float32)
    exact = exact[np.isfinite(exact)]
    following = np.append(exact[1:], exact[-1])
    ties = (exact.astype(np.float64) / 2 + following.astype(np.float64) / 2).astype(np.float32)
    top = np.float32(ml_dtypes.finfo(dtype).max)
    ties = np.append(ties, [top * (1 + 2.0 ** -(ml_dtypes.finfo(dtype).nmant + 2)), -top])
    x = np.concatenate(
        [
            special_values("float32"),
            exact,
            ties,
            np.nextafter(ties, np.float32(np.inf)),
            np.nextafter(ties, np.float32(-np.inf)),
            random_bits("float32", 1 << 17, 4),
        ]
    )
    with np.errstate(all="ignore"):
        wanted = x.astype(dtype)
    nan = np.isnan(x)
    for n in (*LENGTHS, len(x)):
        got = converted(_kernels.narrow, x, dtype, n, n % 2)
        kept = ~nan[:n]
        np.testing.assert_array_equal(bits(got)[kept], bits(wanted[:n])[kept])
        nans = got[~kept]
        np.testing.assert_array_equal(bits(nans), bits(quieted(nans)))
        np.testing.assert_array_equal(np.signbit(nans), np.signbit(x[:n][~kept]))
        assert np.isnan(nans.astype(np.float32)).all()


@pytest.mark.parametrize("name", HALVES)
def test_targets_agree_on_conversions_and_division(name):
    single, half = random_bits("float32", 5003, 5), random_bits(name, 5003, 6)
    before = _kernels.target()
    results = []
    for target in _kernels.targets():
        _kernels.set_target(target)
        wide, narrow, quotient = np.zeros_like(single), np.zeros_like(half), half.copy()
        _kernels.widen(wide, half)
        _kernels.narrow(narrow, single)
        _kernels.divide_by(quotient, 3)
        results.append(wide.tobytes() + narrow.tobytes() + quotient.tobytes())
    _kernels.set_target(before)
    assert len(set(results)) == 1


@pytest.mark.parametrize("name", _kernels.TYPES)
def test_copy(name):
    x = operands(name)[0]
    for offset in (0, 1):
        out = Guarded(np.zeros_like(x), offset)
        _kernels.copy(out.array, x)
        assert out.bytes() == Guarded(x, offset).bytes()
        _kernels.copy(out.array, out.array)
        assert out.bytes() == Guarded(x, offset).bytes()


# --- what there is --------------------------------------------------------------------------------


def test_supports_what_makes_sense():
    assert (*ARITHMETIC, *ORDER, *LOGICAL, *BITWISE) == _kernels.OPERATIONS
    assert ("bool", *INTEGERS, *FLOATS, *REAL) == _kernels.TYPES
    for name in _kernels.TYPES:
        for op in _kernels.OPERATIONS:
            supported = op in operations_of(name)
            assert _kernels.supports(op, name) == supported
            assert (_kernels.reduce_address(op, name) != 0) == supported
        assert (_kernels.divide_address(name) != 0) == (name in (*FLOATS, *REAL))
        assert (_kernels.widen_address(name) != 0) == (name in HALVES)
        assert (_kernels.narrow_address(name) != 0) == (name in HALVES)
    assert not _kernels.supports("mean", "float32")
    assert not _kernels.supports("sum", "float128")
    assert _kernels.divide_address("float128") == 0
