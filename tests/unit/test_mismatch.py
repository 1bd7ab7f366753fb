"""Ranks that pass different counts: every rank comes back, and says what was wrong."""

import numpy as np
import pytest
from local_ranks import outcomes

from hpccoll import transport
from hpccoll.algorithms import ALGORITHMS
from hpccoll.errors import MismatchError

NAMES = tuple(ALGORITHMS)
TIME_LIMIT = 2.0
"""Seconds after which a rank that waits counts as one that hangs."""


def call(counts, name, dtypes=None, segment_bytes=None):
    """Let each rank pass its count; return what each gets, None for a call that went well."""

    def job(rank):
        x = np.ones(counts[rank.rank], (dtypes or ["float32"] * rank.size)[rank.rank])
        rank.allreduce(name, "sum", x, np.empty_like(x), segment_bytes)

    return outcomes(len(counts), job, TIME_LIMIT)


def check(errors):
    """Check that no rank hangs, and that those that fail say it as they should."""
    hanging = [str(error) for error in errors if isinstance(error, TimeoutError)]
    assert not hanging
    assert any(errors)
    for rank, error in enumerate(errors):
        if error is not None:
            assert type(error) is MismatchError
            assert str(error).startswith("allreduce: expected ")
            assert f"(rank {rank} of {len(errors)}" in str(error)
            assert "different counts" in str(error)


def test_the_error_names_both_sizes_and_both_ranks():
    zero, one = call([100, 50], "recursive_doubling")
    assert "expected 400 bytes from rank 1, got 200 (rank 0 of 2, sum of 100 elements" in str(zero)
    assert "expected 200 bytes from rank 0, got 400 (rank 1 of 2, sum of 50 elements" in str(one)


@pytest.mark.parametrize("odd", ["first", "second", "last"])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("name", NAMES)
def test_no_rank_hangs_where_one_has_another_count(name, size, odd):
    number = {"first": 0, "second": 1, "last": size - 1}[odd]
    for usual, other in ((100, 50), (100, 99), (100, 200), (3000, 2000)):
        counts = [usual] * size
        counts[number] = other
        check(call(counts, name))


@pytest.mark.parametrize("name", NAMES)
def test_no_rank_hangs_where_all_have_other_counts(name):
    check(call([100, 90, 80, 70, 60], name))


@pytest.mark.parametrize("name", NAMES)
def test_no_rank_hangs_where_types_differ(name):
    check(call([100] * 3, name, ["float32", "float64", "float32"]))


@pytest.mark.parametrize("name", NAMES)
def test_all_ranks_can_go_on_where_only_finished_values_differ_in_size(name, monkeypatch):
    # Partial sums of float16 are float32: some ranks may be done before another one notices.
    monkeypatch.setattr(transport, "PATIENCE", 0.5)

    def job(rank):
        x = np.ones(100, "float16" if rank.rank == 1 else "float32")
        try:
            rank.allreduce(name, "sum", x, np.empty_like(x))
            failed = False
        except ValueError:
            failed = True
        for _ in range(2):
            x = np.full(100, rank.rank + 1, "float32")
            out = np.empty_like(x)
            rank.allreduce(name, "sum", x, out)
            assert (out == 6).all()
        return failed

    assert True in outcomes(3, job, TIME_LIMIT)
    errors = [error for error in outcomes(3, job, TIME_LIMIT) if isinstance(error, Exception)]
    assert not errors


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_no_rank_hangs_where_one_has_no_elements(name, size):
    check(call([100] * (size - 1) + [0], name))


@pytest.mark.parametrize("size", [3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_no_rank_hangs_where_one_has_fewer_elements_than_ranks(name, size):
    check(call([100] * (size - 1) + [2], name))


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_no_rank_hangs_where_one_has_fewer_segments(name, size):
    check(call([1000] * (size - 1) + [500], name, segment_bytes=400))


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_a_mismatched_call_is_left_for_the_next_one(name, size):
    def job(rank):
        x = np.ones(100 + 10 * (rank.rank == 1), "float32")
        try:
            rank.allreduce(name, "sum", x, np.empty_like(x))
            failed = False
        except ValueError:
            failed = True
        for value in (2.0, 3.0):
            x = np.full(100, value + rank.rank, "float32")
            out = np.empty_like(x)
            rank.allreduce(name, "sum", x, out)
            assert (out == size * value + size * (size - 1) // 2).all()
        return failed

    assert True in outcomes(size, job, TIME_LIMIT)
    errors = [error for error in outcomes(size, job, TIME_LIMIT) if isinstance(error, Exception)]
    assert not errors
