"""Plans: they run again without new requests, and not at all after they were freed."""

import tracemalloc

import numpy as np
import pytest
from inputs import contribution, expected
from local_ranks import run

from hpccoll import plan_info
from hpccoll._executor import OPCODES
from hpccoll._node import GIVEN_UP_TAG
from hpccoll._plans import Loops
from hpccoll.algorithms import ALGORITHMS
from hpccoll.program import Opcode
from hpccoll.reduction import Reduction

NAMES = tuple(ALGORITHMS)


def test_the_executor_and_the_package_mean_the_same_by_a_number():
    assert {opcode.name: opcode.value for opcode in Opcode} == OPCODES
    assert plan_info.GIVEN_UP == GIVEN_UP_TAG


@pytest.mark.parametrize("count", [10, 50_000])
@pytest.mark.parametrize("name", NAMES)
def test_a_plan_runs_again_with_the_same_requests_and_other_data(name, count):
    size = 5

    def job(rank):
        x, out = np.empty(count), np.empty(count)
        plan = rank.plan(name, "sum", x, out, 4000)
        made = len(rank.transport.sends), len(rank.transport.receives)
        held = rank.memory.nbytes
        traffic = set()
        for seed in range(4):
            x[:] = contribution(rank.rank, count, "float64", "sum", size, seed)
            out[:] = -1
            plan.run(x.ctypes.data, out.ctypes.data)
            assert out.tobytes() == expected(count, "float64", "sum", size, seed).tobytes()
            traffic.add((plan.messages_sent, plan.bytes_sent, plan.bytes_reduced))
        assert len(traffic) == 1
        assert (len(rank.transport.sends), len(rank.transport.receives)) == made
        assert rank.memory.nbytes == held

    run(size, job)


def test_plans_of_one_rank_share_scratch_memory():
    def job(rank):
        x, out = np.ones(20_000), np.empty(20_000)
        for name in NAMES:
            rank.allreduce(name, "sum", x, out)
        held = rank.memory.nbytes
        for name in NAMES:
            for op in ("sum", "max", "prod"):
                rank.allreduce(name, op, x, out)
        assert rank.memory.nbytes == held

    run(4, job)


def test_a_small_vector_s_plan_serves_arrays_at_any_address():
    def job(rank):
        x, out = np.empty(8), np.empty(8)
        plan = rank.plan("ring", "sum", x, out)
        for k in range(3):
            x, out = np.full(8, float(rank.rank + k)), np.empty(8)
            plan.run(x.ctypes.data, out.ctypes.data)
            assert (out == 3 + 3 * k).all()
            plan.run(x.ctypes.data, x.ctypes.data)
            assert (x == 3 + 3 * k).all()

    run(3, job)


@pytest.mark.parametrize("op", ["sum", "mean"])
@pytest.mark.parametrize("dtype", ["float64", "float16", "int32", "longdouble"])
def test_a_repeated_call_allocates_nothing(dtype, op):
    if (dtype, op) == ("int32", "mean"):
        op = "max"

    def job(rank):
        x, out = np.ones(100_000, dtype), np.empty(100_000, dtype)
        plan = rank.plan("ring", op, x, out, 1 << 14)
        where = x.ctypes.data, out.ctypes.data
        plan.run(*where)
        tracemalloc.start()
        try:
            plan.run(*where)
            before = tracemalloc.get_traced_memory()[0]
            tracemalloc.reset_peak()
            for _ in range(20):
                plan.run(*where)
            after, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        return before, after, peak

    [(before, after, peak)] = run(1, job)
    assert after - before < 500
    # A view or two for a loop of NumPy's, but no copy of the data: it has 200 kB and more.
    assert peak - before < 5000


# Plans that must not run.


def test_a_plan_that_was_freed_does_not_run():
    def job(rank):
        x = np.ones(10)
        plan = rank.allreduce("ring", "sum", x, x)
        plan.free()
        plan.free()
        with pytest.raises(RuntimeError, match="freed"):
            plan.run(x.ctypes.data, x.ctypes.data)

    run(2, job)


@pytest.mark.parametrize("size", [2, 3, 5])
@pytest.mark.parametrize("name", [name for name in NAMES if name != "recursive_doubling"])
def test_a_loop_that_fails_on_one_rank_ends_the_call_on_all(name, size):
    # But for recursive doubling, where a rank may have all that it needs before another one fails.
    def broken(out, left, right, count):
        raise ZeroDivisionError("a loop failed")

    dtype = np.dtype("f8")
    reduction = Reduction(dtype, dtype, Loops(broken), "test", finishes=False)

    def job(rank):
        x, out = np.full(2000, rank.rank + 1.0), np.empty(2000)
        with pytest.raises((ZeroDivisionError, ValueError)) as caught:
            rank.allreduce(name, "sum", x, out, reduction=None if rank.rank else reduction)
        rank.allreduce(name, "sum", x, out)
        assert (out == size * (size + 1) // 2).all()
        return str(caught.value)

    first, *others = run(size, job)
    assert first == "a loop failed"
    for text in others:
        assert "given up" in text
