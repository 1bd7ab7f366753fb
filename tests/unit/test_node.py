"""The node path, with ranks that are threads: every design is right, and gives the same bits."""

import os
import threading

import local_ranks
import numpy as np
import pytest
from inputs import DTYPES, OPS, contribution, expected, guarded, supports
from local_node import LIMITS, LocalNode, run

from hpccoll import _node
from hpccoll.selection import NodeLimits
from hpccoll.transport import Failure, Word

SIZES = (1, 2, 3, 4, 5, 7, 8, 9)
COUNTS = (0, 1, 2, 5, 11, 100, 257, 1000, 3001)
"""Around what fits into a header, a segment (1 KiB), and several of them."""

TREES = [(op, dtype.name) for op in OPS for dtype in DTYPES if supports(dtype, op)]


def check(rank, design, op, dtype, count, in_place, seed=0):
    want = expected(count, dtype, op, rank.size, seed)
    if design == "shared":
        x = rank.shared(count, dtype)
        out = x if in_place else rank.shared(count, dtype, 1)
    else:
        x, checked = guarded(count, dtype)
        out, also_checked = (x, checked) if in_place else guarded(count, dtype)
    x[...] = contribution(rank.rank, count, dtype, op, rank.size, seed)
    before = x.copy()
    plan = rank.allreduce(op, x, out)
    assert out.tobytes() == want.tobytes()
    if not in_place:
        assert x.tobytes() == before.tobytes()
    if design != "shared":
        checked()
        also_checked()
    return plan


@pytest.mark.parametrize("in_place", [False, True], ids=["out of place", "in place"])
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("design", LIMITS)
def test_sums_are_right_at_every_count(design, size, in_place):
    def job(rank):
        for seed, count in enumerate(COUNTS):
            plan = check(rank, design, "sum", "float32", count, in_place, seed)
            assert plan.design == ("in_line" if count <= 10 else design)
            assert plan.in_place == in_place or not count

    run(size, LIMITS[design], job)


@pytest.mark.parametrize(("op", "dtype"), TREES)
@pytest.mark.parametrize("design", LIMITS)
def test_every_operation_and_type(design, op, dtype):
    def job(rank):
        for count in (3, 700):
            check(rank, design, op, dtype, count, in_place=False)
            check(rank, design, op, dtype, count, in_place=True)

    run(5, LIMITS[design], job)


@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
@pytest.mark.parametrize("size", [2, 3, 4, 5, 6, 7, 8])
def test_all_designs_give_the_bits_of_recursive_doubling(size, dtype):
    count = 1500
    numbers = np.random.default_rng(size).standard_normal((size, count)) * 100
    data = numbers.astype(dtype)

    def by_messages(rank):
        out = np.empty(count, dtype)
        rank.allreduce("recursive_doubling", "sum", data[rank.rank].copy(), out)
        return out.tobytes()

    (want,) = set(local_ranks.run(size, by_messages))
    orders = [sum(data[order]) for order in (np.arange(size), np.arange(size)[::-1])]
    assert size < 3 or dtype == "float16" or any(want != order.tobytes() for order in orders)

    for design, limits in LIMITS.items():

        def in_memory(rank, design=design):
            if design == "shared":
                x, out = rank.shared(count, dtype), rank.shared(count, dtype, 1)
            else:
                x, out = np.empty(count, dtype), np.empty(count, dtype)
            x[:] = data[rank.rank]
            rank.allreduce("sum", x, out)
            # A short vector takes another way, and is reduced in the same order.
            few = out[:5].copy()
            rank.allreduce("sum", data[rank.rank, :5].copy(), few)
            assert few.tobytes() == out[:5].tobytes()
            return out.tobytes()

        assert set(run(size, limits, in_memory)) == {want}, design


def test_designs_follow_each_other_in_one_memory():
    """Buffers and counters are used by all designs in turn, and none finds them as it left them."""
    limits = NodeLimits(500, 4000, 2000, 512)

    def job(rank):
        random = np.random.default_rng(1)  # the same on all ranks
        seen = set()
        for seed in range(150):
            count = int(random.choice([1, 7, 30, 120, 400, 900, 1200, 2500]))
            shared = bool(random.integers(2))
            dtype = str(random.choice(["float32", "int16", "float64"]))
            seen.add(
                check(rank, "shared" if shared else "", "sum", dtype, count, True, seed).design
            )
        return seen

    (seen, *_) = run(4, limits, job)
    assert seen == set(_node.DESIGNS) - {"none"}


@pytest.mark.parametrize("size", [2, 3, 5])
def test_some_vectors_are_shared_and_some_are_not(size):
    def job(rank):
        for seed, count in enumerate((20, 700, 3000)):
            for owner in range(size):
                mine = rank.rank == owner
                x = rank.shared(count, "float32") if mine else np.empty(count, "float32")
                x[:] = contribution(rank.rank, count, "float32", "sum", size, seed)
                plan = rank.allreduce("sum", x, x)
                assert x.tobytes() == expected(count, "float32", "sum", size, seed).tobytes()
                assert plan.design != "shared"

    run(size, NodeLimits(500, 1 << 60, 0, 1024), job)
    run(size, NodeLimits(500, 2000, 0, 1024), job)


@pytest.mark.parametrize("count", [3, 100, 3000])
@pytest.mark.parametrize("what", ["count", "type", "operation"])
def test_ranks_that_differ_are_told_and_go_on(what, count):
    def job(rank):
        odd = rank.rank == 1
        x = np.ones(count + (what == "count" and odd), "int32" if what == "type" and odd else "f4")
        with pytest.raises(ValueError, match=r"allreduce: expected \d+ bytes from rank") as caught:
            rank.allreduce("max" if what == "operation" and odd else "sum", x, x.copy())
        assert (x == 1).all()
        for design_count in (2, 50, 2000):
            check(rank, "", "sum", "float32", design_count, in_place=False)
        return str(caught.value)

    texts = run(3, LIMITS["slotted"], job)
    wanted = 4 * count + 4 * (what == "count")
    here = "got 4 of another" if count == 1 else f"got {wanted}"
    assert all("from rank 10, " + here in texts[rank] for rank in (0, 2)), texts


def test_a_rank_that_leaves_ends_the_call_of_all_and_all_later_ones():
    """Rank 1 is interrupted while it waits for rank 0, which comes late."""

    class InterruptionError(Exception):
        pass

    def watch(late):
        assert late == [0]
        raise InterruptionError

    world = LocalNode(2, watch=watch)

    def job(rank):
        plan = rank.plan("sum", "float64", 2000)
        x, out = np.ones(2000), np.empty(2000)
        errors = []
        if rank.rank == 0:
            while not world.left:
                pass
        for _ in range(2):
            try:
                plan.run(x.ctypes.data, out.ctypes.data)
            except (InterruptionError, RuntimeError) as error:
                errors.append(error)
            world.left = True
        assert (x == 1).all()
        return errors

    world.left = False
    late, interrupted = world.outcomes(LIMITS["slotted"], job)
    assert isinstance(interrupted[0], InterruptionError)
    assert "left before its end" in str(interrupted[1])
    assert "rank 10 has left a call before its end" in str(late[0])
    assert "left before its end" in str(late[1])
    assert "Dup" in str(late[0])


@pytest.mark.parametrize("design", LIMITS)
def test_news_of_a_rank_that_came_meanwhile_is_of_its_next_call(design):
    """Rank 1 comes, and goes on to a call by messages, while rank 0 looks for a message."""
    come, gone = threading.Event(), threading.Event()

    def watch(late):
        if threading.current_thread().name == "rank 1":
            gone.set()
        elif late and not come.is_set():
            come.set()
            gone.wait(20)
            return Word(10, Failure.DISAGREES)
        return None

    def job(rank):
        x, out = np.full(2000, rank.rank + 1.0), np.empty(2000)
        if rank.rank == 1:
            come.wait(20)
        rank.allreduce("sum", x, out)
        gone.set()
        return out

    for result in LocalNode(2, watch=watch).outcomes(LIMITS[design], job):
        assert not isinstance(result, Exception), result
        assert (result == 3).all()


def test_the_rank_that_left_is_named_and_not_the_one_that_is_waited_for():
    """Rank 0 waits for rank 1, which is late, when rank 2 is interrupted."""
    gone = threading.Event()

    def watch(late):
        if threading.current_thread().name == "rank 2":
            raise KeyboardInterrupt

    def job(rank):
        x, out = np.ones(2000), np.empty(2000)
        if rank.rank == 1:
            gone.wait()
        try:
            rank.allreduce("sum", x, out)
        except (KeyboardInterrupt, RuntimeError) as error:
            return str(error)
        finally:
            if rank.rank == 0:
                gone.set()
        return ""

    for design in LIMITS:
        gone.clear()
        zero, one, _ = LocalNode(3, watch=watch).outcomes(LIMITS[design], job)
        assert "rank 20 has left" in zero
        assert "has left" in one


def test_memory_of_another_process_is_read_only_where_it_is_what_was_expected():
    here = np.arange(64, dtype=np.uint8)
    other = here + 1
    assert _node.can_read(os.getpid(), here.ctypes.data, here.ctypes.data, 64)
    assert not _node.can_read(os.getpid(), here.ctypes.data, other.ctypes.data, 64)
    assert not _node.can_read(os.getpid(), 8, here.ctypes.data, 8)
    assert not _node.can_read(2**22 + 1, here.ctypes.data, here.ctypes.data, 8)
