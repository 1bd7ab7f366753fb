"""The benchmark's vectors: one right result, and no wrong one that passes for it."""

import numpy as np
import pytest

from hpccoll import _kernels
from hpccoll.benchmark import data
from hpccoll.benchmark.options import Case, Options, dtype_of
from hpccoll.ops import OPERATIONS

PAIRS = [
    pair
    for pair, reason in Options((8,), types=_kernels.TYPES, ops=tuple(OPERATIONS)).pairs().items()
    if not reason
]


@pytest.fixture
def short_period(monkeypatch):
    """Make blocks short, for tests that go through all types and operations."""
    monkeypatch.setattr(data, "PERIOD", 1009)
    data.contribution.cache_clear()
    data.expected.cache_clear()
    yield
    data.contribution.cache_clear()
    data.expected.cache_clear()


def combined(size, type_name, op, ranks):
    """Combine contributions in the order of `ranks`, as kernels would: halves in float32."""
    dtype = dtype_of(type_name)
    partial = np.dtype("float32") if type_name in data.NARROW else dtype
    ufunc = getattr(np, OPERATIONS[op].ufunc)
    parts = [data.contribution(rank, size, type_name, op).astype(partial) for rank in ranks]
    result = parts[0]
    for part in parts[1:]:
        result = ufunc(result, part).astype(partial)
    return result


@pytest.mark.usefixtures("short_period")
@pytest.mark.parametrize(
    ("size", "pairs"),
    [
        *((size, PAIRS) for size in (1, 3, 8, 20)),
        (300, [("bfloat16", "sum"), ("float16", "mean"), ("float16", "prod"), ("float32", "sum")]),
    ],
    ids=lambda value: str(value) if isinstance(value, int) else "",
)
def test_the_exact_result_does_not_depend_on_the_order(size, pairs):
    ranks = list(range(size))
    for type_name, op in pairs:
        expected = data.expected(size, type_name, op)
        assert expected.dtype == dtype_of(type_name)
        for order in (ranks[::-1], ranks[1::2] + ranks[::2]):
            result = combined(size, type_name, op, order)
            if op == "mean":
                part = result.real.dtype
                result = (result.view(part) / part.type(size)).view(result.dtype)
            assert np.array_equal(result.astype(expected.dtype), expected), (type_name, op)


@pytest.mark.usefixtures("short_period")
@pytest.mark.parametrize(("type_name", "op"), PAIRS)
def test_a_lost_contribution_shows(type_name, op):
    size = 4
    for lost in range(size):
        others = [rank for rank in range(size) if rank != lost]
        result = combined(size, type_name, op, others)
        if op == "mean":
            result = result / result.dtype.type(size)
        wrong = np.mean(result.astype(dtype_of(type_name)) != data.expected(size, type_name, op))
        # "and" and "or" are decided by one rank; so are many a minimum and maximum.
        assert wrong > (0.4 if op in ("sum", "mean", "prod") or op.endswith("xor") else 0.02)


def test_ranks_and_indices_differ():
    blocks = [data.contribution(rank, 4, "float64", "sum") for rank in range(4)]
    assert len(np.unique(np.concatenate(blocks))) == 4 * data.PERIOD


@pytest.mark.parametrize("count", [0, 1, data.PERIOD - 1, data.PERIOD, 2 * data.PERIOD + 7])
def test_wrong_elements_are_counted(count):
    block = data.contribution(1, 3, "int32", "sum")
    array = np.empty(count, np.int32)
    data.fill(array, block)
    assert data.count_wrong(array, block) == 0
    planted = sorted({0, count // 2, count - 1} - {-1})[:count]
    array[planted] += 1
    assert data.count_wrong(array, block) == len(planted)


@pytest.mark.usefixtures("short_period")
@pytest.mark.parametrize(("type_name", "op"), PAIRS)
def test_an_old_result_counts_as_wrong(type_name, op):
    vectors = data.Vectors(Case(type_name, op, "out", 5000, 0, True), 0, 2)
    vectors.spoil()
    assert vectors.count_wrong() == 5000
    data.fill(vectors.out, data.expected(2, type_name, op))
    assert vectors.count_wrong() == 0
    vectors.spoil_some()
    assert vectors.count_wrong() == len(range(0, 5000, data.SPARSE))


def test_nan_is_wrong():
    vectors = data.Vectors(Case("float32", "sum", "out", 3, 12, False), 0, 1)
    vectors.out[...] = np.nan
    assert vectors.count_wrong() == 3
