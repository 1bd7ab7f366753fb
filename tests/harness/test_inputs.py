"""The test data does what it is for: exact in any order, and no single mistake goes unseen."""

import itertools
import random

import inputs
import numpy as np
import pytest

SIZES = (1, 2, 3, 5, 7, 8)
CASES = [
    pytest.param(dtype, op, id=f"{op}-{dtype}")
    for op in inputs.OPS
    for dtype in inputs.DTYPES
    if inputs.supports(dtype, op)
]
IDEMPOTENT = (*inputs.ORDER, "land", "lor", "band", "bor")
"""Operations for which a contribution that counts twice is no mistake."""

COUNT = 128
"""Elements; enough for the few bits of a bool to differ somewhere."""


def contributions(dtype, op, size, count=COUNT):
    return [inputs.contribution(rank, count, dtype, op, size, seed=3) for rank in range(size)]


def mistakes(parts, op):
    """Yield what a wrong collective would combine, with a name."""
    size = len(parts)
    for rank, other in itertools.permutations(range(size), 2):
        wrong = list(parts)
        wrong[rank] = parts[other]
        yield f"rank {other} in place of rank {rank}", wrong
    for rank in range(size):
        before, part, after = parts[:rank], parts[rank], parts[rank + 1 :]
        yield f"rank {rank} shifted", [*before, np.roll(part, 1), *after]
        if size > 1 and op == "mean":  # lost, but divided by all the same
            yield f"rank {rank} lost", [*before, np.zeros_like(part), *after]
        elif size > 1:
            yield f"rank {rank} lost", [*before, *after]
        if op not in IDEMPOTENT and op != "mean":
            yield f"rank {rank} twice", [*before, part, part, *after]
    yield "all shifted", [np.roll(part, 1) for part in parts]


@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_no_mistake_goes_unseen(dtype, op):
    for size in SIZES:
        right = inputs.expected(COUNT, dtype, op, size, seed=3)
        for name, wrong in mistakes(contributions(dtype, op, size), op):
            with np.errstate(over="ignore"):  # a wrong product of half precision may be infinite
                differ = np.count_nonzero(inputs.combine(wrong, op) != right)
            assert differ, f"{name} of {size} makes no difference"


SUMS = [case for case in CASES if case.values[1] in ("sum", "mean")]


@pytest.mark.parametrize(("dtype", "op"), SUMS)
def test_mistakes_in_sums_show_at_every_element(dtype, op):
    for size in SIZES:
        right = inputs.expected(COUNT, dtype, op, size, seed=3)
        for name, wrong in mistakes(contributions(dtype, op, size), op):
            same = inputs.combine(wrong, op)[1:] == right[1:]  # np.roll wraps round at element 0
            assert not same.any(), f"{name} of {size} makes no difference at {np.flatnonzero(same)}"


@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_exact_in_any_order_and_grouping(dtype, op):
    """Partial results may be of the type itself, or of float32 for half types."""
    shuffle = random.Random(1)
    for size in SIZES:
        right = inputs.expected(COUNT, dtype, op, size, seed=3)
        for _ in range(5):
            parts = contributions(dtype, op, size)
            if dtype in inputs.HALF:
                parts = [part.astype(np.float32) for part in parts]
            while len(parts) > 1:
                left, right_operand = (parts.pop(shuffle.randrange(len(parts))) for _ in range(2))
                combined = inputs._TWO_BY_TWO[op](left, right_operand)
                parts.append(combined.astype(left.dtype))
            result = inputs._divided(parts[0], size) if op == "mean" else parts[0]
            assert inputs.digest(result.astype(dtype)) == inputs.digest(right)


@pytest.mark.parametrize(("dtype", "op"), CASES)
def test_values_are_ordinary(dtype, op):
    """Finite results at every size that is offered; NaN only where fmin and fmax ignore it."""
    for size in (*SIZES, 17, inputs.MOST_RANKS):
        result = inputs.expected(COUNT, dtype, op, size).astype(complex)
        assert np.isfinite(result).all()
        if op in inputs.ARITHMETIC and dtype not in inputs.INTEGERS:
            assert np.count_nonzero(result.real) == COUNT  # a zero would have a sign
        for part in contributions(dtype, op, size):
            assert op in ("fmin", "fmax") or np.isfinite(part.astype(complex)).all()


def test_half_types_reach_their_whole_significand():
    eight = inputs.expected(COUNT, inputs.BFLOAT16, "sum", 8).astype(float)
    assert {int(value) for value in np.frexp(np.abs(eight))[0] * 256} == {255}


def test_counts_and_seeds():
    for count in (0, 1, 2, 7):
        assert inputs.contribution(1, count, "int32", "sum", 3).shape == (count,)
        assert inputs.expected(count, "bfloat16", "max", 3).dtype == inputs.BFLOAT16
    first, second = (inputs.expected(COUNT, "float32", "sum", 3, seed=s) for s in (0, 1))
    assert (first != second).mean() > 0.9


@pytest.mark.parametrize(
    ("dtype", "op", "size"),
    [
        ("bool", "sum", 2),
        ("int32", "mean", 2),
        ("complex64", "max", 2),
        ("float32", "land", 2),
        ("float32", "sum", 0),
        ("float32", "average", 2),
        ("datetime64[s]", "max", 2),
    ],
)
def test_refuses_what_has_no_meaning(dtype, op, size):
    with pytest.raises(ValueError, match="no test data"):
        inputs.contribution(0, 4, dtype, op, size)


@pytest.mark.parametrize("shape", [0, 5, (2, 3), ()])
@pytest.mark.parametrize("dtype", ["int8", "float64", inputs.BFLOAT16], ids=str)
def test_guarded_array(shape, dtype):
    array, check = inputs.guarded(shape, dtype)
    assert array.shape == np.empty(shape).shape
    array[...] = 1
    check()


@pytest.mark.parametrize("at", [-1, 12])
def test_guard_notices_a_write_beside_the_array(at):
    array, check = inputs.guarded((2, 3), "int16", order="F")
    assert array.flags.f_contiguous
    start = array.__array_interface__["data"][0]
    import ctypes

    ctypes.memset(start + at, 0, 1)
    with pytest.raises(AssertionError, match="1 bytes written beside the array"):
        check()


def test_digest_tells_bits_apart():
    zero = np.zeros(3)
    assert inputs.digest(zero) == inputs.digest(zero.copy())
    assert inputs.digest(zero) != inputs.digest(-zero)
    fortran = np.asfortranarray(np.arange(6).reshape(2, 3))
    assert inputs.digest(fortran) == inputs.digest(fortran.copy(order="C"))
