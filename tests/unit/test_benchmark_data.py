"""The benchmark's vectors: one right result, and no wrong one that passes for it."""

import numpy as np
import pytest

from hpccoll import _kernels
from hpccoll.benchmark import data
from hpccoll.benchmark.options import NONE, Case, Options, dtype_of
from hpccoll.ops import OPERATIONS
from hpccoll.pattern import Pattern

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


# The other collectives.

SIZE = 3
PLACES = [
    (name, place)
    for name in ("allreduce", "reduce_scatter", "allgather", "reduce")
    for place in ("out", "in")
]
PLACES += [("broadcast", "in"), ("barrier", NONE)]


def of_all_ranks(name, place, type_name="int32", op="sum", count=6000):
    pattern = Pattern(name, 1 if name in ("reduce", "broadcast") else 0)
    op = op if pattern.reduces else NONE
    count = 0 if name == "barrier" else count
    case = Case(type_name, op, place, count, 0, True, pattern)
    return [data.Vectors(case, rank, SIZE) for rank in range(SIZE)]


def act(name, ranks):
    """Do what the collective does."""
    if name in ("allgather", "broadcast"):
        whole = np.concatenate([vectors.x for vectors in ranks])
    else:
        whole = sum(vectors.x for vectors in ranks)
    start = 0
    for rank, vectors in enumerate(ranks):
        if name == "reduce_scatter":
            start = rank * (whole.size // SIZE)
        vectors.result[...] = whole[start : start + vectors.result.size]


@pytest.mark.parametrize(("name", "place"), PLACES)
def test_the_right_result_and_no_other_is_right(name, place):
    ranks = of_all_ranks(name, place)
    for vectors in ranks:
        vectors.spoil()
        vectors.rewrite()
    inputs = [vectors.x.copy() for vectors in ranks]
    old = [vectors.count_wrong() for vectors in ranks]
    act(name, ranks)
    assert [vectors.count_wrong() for vectors in ranks] == [0] * SIZE
    # Before the call what is to be received is wrong: in an all-gather in place all but the own
    # chunk, in other places all but what is right by chance.
    receives = [vectors.result.size for vectors in ranks]
    if (name, place) == ("allgather", "in"):
        receives = [4000] * SIZE
    assert all(0.9 * many <= wrong <= many for many, wrong in zip(receives, old, strict=True))
    for vectors, before in zip(ranks, inputs, strict=True):
        if vectors.x.size:
            assert vectors.in_place == np.shares_memory(vectors.x, vectors.out)
        if not vectors.in_place:
            assert np.array_equal(vectors.x, before)


def test_chunks_differ_and_are_where_they_belong():
    ranks = of_all_ranks("allgather", "out", count=3 * data.PERIOD + 3)
    for vectors in ranks:
        vectors.rewrite()
    first, second, third = ranks
    assert not np.array_equal(first.x[:100], second.x[:100])
    whole = data.contribution(0, 1, "int32", NONE)
    assert np.array_equal(second.x[:100], whole[1:101])
    assert np.array_equal(third.x[:100], whole[2:102])


def test_what_must_not_be_touched_counts():
    first, root, _ = of_all_ranks("reduce", "out")
    assert (first.result.size, first.out.size, root.result.size) == (0, 6000, 6000)
    first.out[[0, 17, 5999]] += 1
    assert first.count_wrong() == 3
    assert first.count_wrong() == 0
    _, root, last = of_all_ranks("broadcast", "in")
    root.out[5] += 1
    assert root.count_wrong() == 1
    last.out[...] = root.out
    assert last.count_wrong() == 0
    last.spoil_some()
    assert last.count_wrong() == 6
    root.spoil()
    root.spoil_some()
    assert root.count_wrong() == 0


@pytest.mark.parametrize("type_name", _kernels.TYPES)
def test_what_only_moves_can_be_compared(type_name):
    block = data.contribution(0, 1, type_name, NONE)
    assert block.dtype == dtype_of(type_name)
    assert data.count_wrong(block.copy(), block) == 0  # no NaN
    assert len(np.unique(block.astype(complex))) > (1 if type_name == "bool" else 100)


@pytest.mark.parametrize("place", ["out", "in"])
def test_settled_vectors_stay_as_they_are(place):
    ranks = of_all_ranks("reduce", place, "float32")
    for vectors in ranks:
        vectors.settle()
    for _ in range(300):
        act("reduce", ranks)
    assert np.isfinite(ranks[1].result).all()
    assert place == "out" or not ranks[1].result.any()
