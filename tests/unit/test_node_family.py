"""All collectives of the node path, with ranks that are threads: every design is right."""

import threading
import time

import numpy as np
import pytest
from inputs import contribution, expected, guarded
from local_node import LIMITS, LocalNode, run

from hpccoll import _node
from hpccoll.errors import CollectiveTimeoutError
from hpccoll.selection import NodeLimits

SIZES = (1, 2, 3, 4, 5, 8)
COUNTS = (0, 1, 7, 30, 300, 5000)
"""Around what fits into a header, a segment (1 KiB), and several of them."""

REDUCING = ("allreduce", "reduce_scatter", "reduce")
MOVING = ("allgather", "broadcast", "gather", "scatter")

MIXED = NodeLimits(500, 4000, 2000, 512)
"""Limits under which all designs run, by size and by where vectors are."""


def even(count, size):
    return [count * rank // size for rank in range(size + 1)]


def uneven(count, size, seed=0):
    """Return starts of chunks among which are empty and long ones."""
    cuts = np.random.default_rng([count, size, seed]).integers(0, count + 1, size - 1)
    cuts[seed % 2 :: 3] = 0
    return [0, *sorted(cuts.tolist()), count]


class Case:
    """One collective: what the ranks give, and what they are to have in the end."""

    def __init__(self, collective, count, size, *, starts, root=0, dtype="f4", op="sum", seed=0):
        self.collective, self.count, self.size, self.root = collective, count, size, root
        self.dtype, self.op, self.seed = np.dtype(dtype), op, seed
        self.starts = starts if collective in _node.CHUNKED else ()

    def chunk(self, rank):
        return slice(self.starts[rank], self.starts[rank + 1])

    def vector(self, rank):
        if self.collective in REDUCING:
            return contribution(rank, self.count, self.dtype, self.op, self.size, self.seed)
        # Different at every rank and index.
        nbytes = self.count * self.dtype.itemsize
        noise = np.random.default_rng([rank, self.seed]).integers(0, 256, nbytes, "u1")
        return noise.view(self.dtype)

    def source(self, rank):
        """Return what a rank gives; None for nothing."""
        if self.collective in ("allgather", "gather"):
            return self.vector(rank)[self.chunk(rank)]
        if self.collective in REDUCING or (self.collective != "barrier" and rank == self.root):
            return self.vector(rank)
        return None

    def result(self, rank):
        """Return what it is to have; None for nothing."""
        if self.collective == "barrier":
            return None
        if self.collective in ("reduce", "gather") and rank != self.root:
            return None
        if self.collective in REDUCING:
            whole = expected(self.count, self.dtype, self.op, self.size, self.seed)
        elif self.starts and self.collective != "scatter":
            whole = np.concatenate([self.source(k) for k in range(self.size)])
        else:
            whole = self.vector(self.root)
        scatters = self.collective in ("reduce_scatter", "scatter")
        return whole[self.chunk(rank)] if scatters else whole

    def may_be_in_place(self, rank):
        """Tell whether input and output are the same elements, or one is a part of the other."""
        have, want = self.source(rank), self.result(rank)
        if have is None or want is None:
            return False
        return self.collective != "reduce_scatter" or self.size == 1

    def run(self, rank, *, shared=False, in_place=False):
        """Run it, check that all is as it should be, and return the plan."""
        arrays, checks = [], []
        values = [self.source(rank.rank), self.result(rank.rank)]
        for which, value in enumerate(values):
            if value is None:
                # What a rank neither gives nor wants is not looked at.
                arrays.append(None)
                continue
            if shared:
                arrays.append(rank.shared(value.size, self.dtype, which))
            else:
                array, check = guarded(value.size, self.dtype)
                arrays.append(array)
                checks.append(check)
        if in_place and self.may_be_in_place(rank.rank):
            part = self.chunk(rank.rank) if self.starts else slice(None)
            if values[0].size <= values[1].size:
                arrays[0] = arrays[1][part]
            else:
                arrays[1] = arrays[0][part]
        else:
            in_place = False
        if arrays[0] is not None:
            arrays[0][...] = values[0]
        plan = rank.run(
            self.collective,
            *arrays,
            count=self.count,
            op=self.op,
            root=self.root,
            starts=self.starts,
        )
        if arrays[1] is not None:
            assert arrays[1].tobytes() == values[1].tobytes(), (self.collective, plan.design)
        if arrays[0] is not None and not in_place:
            assert arrays[0].tobytes() == values[0].tobytes()
        for check in checks:
            check()
        # Nobody may still be reading here.
        for array in arrays:
            if array is not None:
                array.view("u1")[...] = 0x11
        return plan

    def design(self, wanted):
        """Return the one that runs where limits ask for another one, or the same."""
        longest = self.count
        if self.collective in ("allgather", "gather"):
            longest = int(np.diff(self.starts).max())
        if longest * self.dtype.itemsize <= 40:
            return "in_line"
        return "slotted" if wanted == "gathered" and self.collective in MOVING else wanted


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("design", LIMITS)
@pytest.mark.parametrize("collective", [*REDUCING[1:], *MOVING])
def test_every_collective_design_and_size(collective, design, size):
    def job(rank):
        seed = 0
        for count in COUNTS:
            for starts in (even(count, size), uneven(count, size), uneven(count, size, 1)):
                for root in sorted({0, size - 1} if collective in _node.ROOTED else {0}):
                    for in_place in (False, True):
                        seed += 1
                        case = Case(collective, count, size, starts=starts, root=root, seed=seed)
                        plan = case.run(rank, shared=design == "shared", in_place=in_place)
                        assert plan.design == case.design(design)

    run(size, LIMITS[design], job)


@pytest.mark.parametrize("size", SIZES)
def test_a_barrier_returns_when_all_ranks_have_begun_it(size):
    begun = [0] * size

    def job(rank):
        for turn in range(1, 30):
            time.sleep(1e-4 * ((turn + rank.rank) % 3))
            begun[rank.rank] = turn
            assert Case("barrier", 0, size, starts=()).run(rank).design == "in_line"
            assert min(begun) >= turn

    run(size, LIMITS["slotted"], job)


@pytest.mark.parametrize("op", ["sum", "mean", "max"])
@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "int8", "complex128"])
@pytest.mark.parametrize("design", LIMITS)
@pytest.mark.parametrize("collective", ["reduce_scatter", "reduce"])
def test_types_that_widen_and_operations_that_divide(collective, design, dtype, op):
    if dtype == "bfloat16":
        pytest.importorskip("ml_dtypes")
    if (dtype, op) in (("int8", "mean"), ("complex128", "max")):
        pytest.skip("makes no sense")

    def job(rank):
        for count in (2, 700):
            case = Case(collective, count, 5, starts=uneven(count, 5), root=3, dtype=dtype, op=op)
            case.run(rank, shared=design == "shared")

    run(5, LIMITS[design], job)


@pytest.mark.parametrize("size", [2, 3, 5, 6, 8])
def test_reductions_have_the_bits_of_an_allreduce(size):
    count, starts = 2500, uneven(2500, size)
    data = (np.random.default_rng(size).standard_normal((size, count)) * 100).astype("f4")

    def bits(rank, shared):
        def empty(count, which=0):
            return rank.shared(count, "f4", which) if shared else np.empty(count, "f4")

        x = empty(count)
        x[...] = data[rank.rank]
        whole = empty(count, 1)
        rank.allreduce("sum", x, whole)
        want = whole.copy()
        rank.run("reduce", x, whole, count=count, root=size - 1)
        assert rank.rank != size - 1 or whole.tobytes() == want.tobytes()
        mine = whole[: starts[rank.rank + 1] - starts[rank.rank]]
        rank.run("reduce_scatter", x, mine, count=count, starts=starts)
        assert mine.tobytes() == want[starts[rank.rank] : starts[rank.rank + 1]].tobytes()
        return want.tobytes()

    found = set()
    for design, limits in LIMITS.items():
        found |= set(run(size, limits, lambda rank, d=design: bits(rank, d == "shared")))
    assert len(found) == 1


def test_long_chunks_are_read_from_peers_in_pieces():
    """Of 128 KiB; other tests have vectors of one piece."""

    def job(rank):
        for collective in (*REDUCING, *MOVING):
            Case(collective, 100_001, 3, starts=[0, 70_000, 70_000, 100_001], root=1).run(rank)

    run(3, LIMITS["read_from_peers"], job)
    run(3, LIMITS["read_from_peers"], job, segment_bytes=256 << 10)


@pytest.mark.parametrize("size", [9, 20])
def test_more_ranks_than_a_segment_has_room_for(size):
    """One of 64 bytes has no room for a part of every chunk, or rooms for few elements."""

    def job(rank):
        for count in (40, 300):
            for starts in (even(count, size), uneven(count, size)):
                Case("reduce_scatter", count, size, starts=starts).run(rank)

    run(size, LIMITS["slotted"], job, segment_bytes=64)
    run(size, LIMITS["slotted"], job, segment_bytes=128)


def test_elements_may_be_larger_than_a_segment():
    def job(rank):
        for collective in MOVING:
            Case(collective, 9, 3, starts=[0, 2, 2, 9], root=1, dtype="S300").run(rank)

    run(3, LIMITS["slotted"], job, segment_bytes=128)


def random_calls(size, seed, calls, longest_sleep=0.0):
    """Return a job that makes calls of all kinds, the same on all ranks; returns designs."""

    def job(rank):
        random = np.random.default_rng(seed)  # the same on all ranks
        own = np.random.default_rng([seed, rank.rank])
        seen = set()
        for number in range(calls):
            collective = str(random.choice(_node.COLLECTIVES))
            count = int(random.choice([1, 7, 30, 120, 130, 400, 900, 1200, 2500]))
            count = 0 if collective == "barrier" else count
            dtype = str(random.choice(["float32", "int16", "float64"]))
            starts = even(count, size) if random.integers(2) else uneven(count, size, int(number))
            case = Case(
                collective,
                count,
                size,
                starts=starts,
                root=int(random.integers(size)),
                dtype=dtype,
                seed=number,
            )
            # Whose vectors are shared: everyone's, nobody's, or those of some.
            shared = random.choice([np.ones(size), np.zeros(size), random.integers(0, 2, size)])
            in_place = bool(random.integers(2))
            plan = case.run(rank, shared=bool(shared[rank.rank]), in_place=in_place)
            seen.add((collective, plan.design))
            if longest_sleep and own.integers(4) == 0:
                time.sleep(own.random() * longest_sleep)
        return seen

    return job


@pytest.mark.parametrize("sleep", [0.0, 2e-4], ids=["at once", "late"])
@pytest.mark.parametrize("size", [2, 3, 4, 5])
def test_all_collectives_follow_each_other_in_one_memory(size, sleep):
    """Buffers and counters are used by all in turn, and none finds them as it left them."""
    seen = run(size, MIXED, random_calls(size, 1, 200, sleep), segment_bytes=512)
    assert all(found == seen[0] for found in seen)
    assert {collective for collective, _ in seen[0]} == set(_node.COLLECTIVES)
    assert {design for _, design in seen[0]} == set(_node.DESIGNS) - {"none"}


@pytest.mark.parametrize("count", [7, 100, 3000])
@pytest.mark.parametrize("what", ["count", "type", "root", "collective"])
def test_ranks_that_differ_are_told_and_go_on(what, count):
    def job(rank):
        odd = rank.rank == 1
        x, out = np.ones(count, "i4"), np.zeros(count, "i4")
        x = x.view("f4") if what == "type" and odd else x
        with pytest.raises(ValueError, match=r"expected \d+ bytes from rank"):
            rank.run(
                "reduce" if what == "collective" and odd else "broadcast",
                x,
                out,
                count=count - (what == "count" and odd),
                root=int(what == "root" and odd),
            )
        assert (x.view("i4") == 1).all()
        assert (out == 0).all()
        for seed, collective in enumerate(_node.COLLECTIVES):
            for right in (5, 200, 2000):
                right = 0 if collective == "barrier" else right
                Case(collective, right, 3, starts=even(right, 3), root=2, seed=seed).run(rank)

    for design in ("slotted", "read_from_peers"):
        run(3, LIMITS[design], job)


@pytest.mark.parametrize("collective", _node.COLLECTIVES)
@pytest.mark.parametrize("design", LIMITS)
def test_the_rank_that_left_is_named_and_not_the_one_that_is_waited_for(design, collective):
    """Rank 0 waits for rank 1, which is late, when rank 2 is interrupted."""
    gone = threading.Event()

    def watch(late):
        if threading.current_thread().name == "rank 2":
            raise KeyboardInterrupt

    def job(rank):
        if rank.rank == 1:
            gone.wait()
        count = 0 if collective == "barrier" else 2000
        case = Case(collective, count, 3, starts=even(count, 3), root=1)
        try:
            case.run(rank, shared=design == "shared")
        except (KeyboardInterrupt, RuntimeError) as error:
            return repr(error)
        finally:
            if rank.rank == 0:
                gone.set()
            # Nothing more can be done here.
            with pytest.raises(RuntimeError, match="left"):
                case.run(rank, shared=design == "shared")
        return ""

    zero, one, two = LocalNode(3, watch=watch).outcomes(LIMITS[design], job)
    assert "rank 20 has left" in zero
    # All have begun a barrier, and that is all it is for.
    assert ("has left" in one) == (collective != "barrier")
    assert "KeyboardInterrupt" in two


@pytest.mark.parametrize("collective", [*REDUCING, *MOVING])
def test_no_rank_returns_before_all_are_done_with_its_memory(collective):
    """Rank 2 can neither read the others' nor write it: all see that it has left, also those who
    had no wish."""

    def job(rank):
        case = Case(collective, 3000, 3, starts=even(3000, 3))
        with pytest.raises((RuntimeError, CollectiveTimeoutError)) as caught:
            case.run(rank)
        return str(caught.value)

    zero, one, two = LocalNode(3, blind=2).outcomes(LIMITS["read_from_peers"], job)
    assert "has given up the call" in zero
    assert "has given up the call" in one
    assert "memory of another rank could not be read" in two


@pytest.mark.parametrize(
    "arguments",
    [
        {"collective": "scatter", "starts": [0, 5]},
        {"collective": "scatter", "starts": [0, 5, 9]},
        {"collective": "scatter", "starts": [0, 11, 10]},
        {"collective": "allgather", "starts": [1, 5, 10]},
        {"collective": "allgather"},
        {"collective": "broadcast", "root": 2},
        {"collective": "reduce", "root": -1},
        {"collective": "all"},
    ],
)
def test_what_makes_no_sense_is_refused(arguments):
    def job(rank):
        with pytest.raises(ValueError, match=r"wanted|not in"):
            rank.run(x=np.ones(10), out=np.ones(10), count=10, **arguments)

    run(2, LIMITS["slotted"], job)
