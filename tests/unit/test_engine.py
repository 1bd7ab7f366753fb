"""The engine, with ranks that are threads: results, traffic, memory, and repeated calls."""

import ctypes
import functools

import ml_dtypes
import numpy as np
import pytest
from inputs import contribution, digest, expected, guarded
from local_ranks import run

import hpccoll
from hpccoll import transport
from hpccoll._plans import Loops
from hpccoll.algorithms import ALGORITHMS
from hpccoll.reduction import Reduction
from hpccoll.task import SEGMENT_BYTES, STAGE_BYTES

NAMES = tuple(ALGORITHMS)
SIZES = tuple(range(1, 10))

# (type, operation, elements, segment_bytes): below, at and above what is staged; fewer elements
# than ranks; counts that no number divides; segments of one element, and a short one at the end.
CASES = (
    ("float32", "sum", 0, None),
    ("float64", "sum", 1, None),
    ("int16", "prod", 7, 2),
    ("float16", "mean", 101, 24),
    ("bool", "lxor", 301, 64),
    ("complex64", "mean", STAGE_BYTES // 8, None),
    ("float64", "mean", STAGE_BYTES // 8 + 1, 520),
    (ml_dtypes.bfloat16, "sum", 2503, 2000),
    ("uint64", "bxor", 1009, 1000),
    ("float32", "fmax", 1999, 512),
    ("float16", "min", 3001, 4096),
    ("int8", "sum", 20011, None),
)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_every_rank_gets_the_exact_result(name, size):
    def job(rank):
        for dtype, op, count, segment_bytes in CASES:
            for in_place in (False, True):
                mine = contribution(rank.rank, count, dtype, op, size)
                wanted = expected(count, dtype, op, size).tobytes()
                out = guarded(count, dtype)
                x = out if in_place else guarded(count, dtype)
                x.array[:] = mine
                rank.allreduce(name, op, x.array, out.array, segment_bytes)
                case = (str(np.dtype(dtype)), op, count, segment_bytes, in_place)
                assert out.array.tobytes() == wanted, case
                assert in_place or x.array.tobytes() == mine.tobytes(), case
                out.check()
                x.check()

    run(size, job)


@pytest.mark.parametrize("size", [3, 8])
@pytest.mark.parametrize("name", NAMES)
def test_rounded_results_are_the_same_bytes_on_all_ranks(name, size):
    def job(rank):
        digests = []
        for dtype, segment_bytes in (("float32", 100), ("float16", None), ("complex128", 4096)):
            random = np.random.default_rng(rank.rank)
            x = (random.standard_normal(2000) * 10.0 ** random.integers(-3, 3, 2000)).astype(dtype)
            out = np.empty_like(x)
            for op in ("sum", "mean", "prod"):
                rank.allreduce(name, op, x, out, segment_bytes)
                assert np.isfinite(out).all() or op == "prod"
                digests.append(digest(out))
        return digests

    assert len({tuple(digests) for digests in run(size, job)}) == 1


LOW, HALF = np.uint64(2**32 - 1), np.uint64(32)


def compose(left, right):
    """Combine maps x -> a x + b; an element holds a in its upper half and b in its lower one.

    This is associative and does not commute.
    """
    a, b = left >> HALF, left & LOW
    c, d = right >> HALF, right & LOW
    return (a * c & LOW) << HALF | (a * d + b & LOW)


def compose_at(out, left, right, count):
    """Do so at addresses, as the executor calls a loop."""
    memory = (ctypes.c_uint64 * count).from_address
    np.asarray(memory(out))[...] = compose(np.asarray(memory(left)), np.asarray(memory(right)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [name for name, entry in ALGORITHMS.items() if entry.ordered])
def test_operands_keep_rank_order(name, size):
    dtype = np.dtype("u8")
    reduction = Reduction(dtype, dtype, Loops(compose_at), "test", finishes=False)
    parts = np.random.default_rng(size).integers(0, 2**64, (size, 700), dtype)
    wanted = functools.reduce(compose, parts)
    if size > 1:
        assert not (wanted == functools.reduce(compose, parts[::-1])).any()  # the order shows

    def job(rank):
        for segment_bytes in (None, 264):
            for in_place in (False, True):
                x = parts[rank.rank].copy()
                out = x if in_place else np.empty_like(x)
                rank.allreduce(name, "sum", x, out, segment_bytes, reduction)
                assert out.tolist() == wanted.tolist()

    run(size, job)


@pytest.mark.parametrize("name", NAMES)
def test_nan_wins_and_nan_is_ignored_whichever_rank_holds_it(name):
    size = 5
    for holder in range(size):

        def job(rank, holder=holder):
            x = np.full(1200, rank.rank + 1.0)
            if rank.rank == holder:
                x[::2] = np.nan
            out = np.empty_like(x)
            for op, rest in (("min", 1.0), ("max", 5.0)):
                rank.allreduce(name, op, x, out)
                assert np.isnan(out[::2]).all()
                assert (out[1::2] == rest).all()
            for op, with_holder_away in (("fmin", 1 + (holder == 0)), ("fmax", 5 - (holder == 4))):
                rank.allreduce(name, op, x, out)
                assert (out[::2] == with_holder_away).all()

        run(size, job)


@pytest.mark.parametrize("name", NAMES)
def test_half_types_are_divided_before_they_are_narrowed(name):
    def job(rank):
        for dtype, value in (("float16", 60000), (ml_dtypes.bfloat16, 3e38), ("float16", 2**-24)):
            for count in (10, 5000):
                x = np.full(count, value, dtype)
                out = np.empty_like(x)
                if value != 3e38:  # four times that is no float32 either
                    rank.allreduce(name, "mean", x, out)
                    assert (out == x).all()
                rank.allreduce(name, "max", x, out)
                assert (out == x).all()

    run(4, job)


@pytest.mark.parametrize("name", NAMES)
def test_types_without_compiled_loops_run_by_numpy(name):
    size = 3

    def job(rank):
        for dtype, op, combined in (
            ("longdouble", "sum", [6, 60]),
            ("longdouble", "mean", [2, 20]),
            ("clongdouble", "prod", [6, 6000]),
            ("m8[s]", "sum", [6, 60]),
            ("M8[D]", "max", [3, 30]),
            ("m8[s]", "min", [1, 10]),
        ):
            count = 1000
            values = (np.arange(count) % 2 * 9 + 1) * (rank.rank + 1)
            x = values.astype("i8").astype(dtype)
            out = np.empty_like(x)
            rank.allreduce(name, op, x, out, 640)
            wanted = np.resize(combined, count).astype("i8").astype(dtype)
            assert (out == wanted).all(), (dtype, op, out[:2])

    run(size, job)


# Traffic and memory.


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", NAMES)
def test_what_travels_is_what_the_simulator_says(name, size):
    cases = [
        (dtype, count, segment_bytes)
        for dtype in ("float32", "float16")
        for count, segment_bytes in ((0, None), (1, None), (size - 1, 2), (997, None), (997, 300))
    ]

    def job(rank):
        for dtype, count, segment_bytes in cases:
            x = np.ones(count, dtype)
            plan = rank.allreduce(name, "sum", x, np.empty_like(x), segment_bytes)
            yield plan.bytes_sent, plan.bytes_received, plan.bytes_reduced, plan.info.steps

    counted = run(size, lambda rank: list(job(rank)))
    for number, (dtype, count, segment_bytes) in enumerate(cases):
        itemsize = np.dtype(dtype).itemsize
        predicted = hpccoll.simulate(
            name, size=size, count=count, itemsize=itemsize, partial_itemsize=max(itemsize, 4)
        )
        for rank in predicted.ranks:
            assert counted[rank.rank][number] == (
                rank.bytes_sent,
                rank.bytes_received,
                rank.bytes_reduced,
                rank.steps,
            ), (dtype, count, segment_bytes, rank.rank)


@pytest.mark.parametrize("size", [1, 2, 3, 8])
@pytest.mark.parametrize("name", NAMES)
def test_messages_are_counted_and_no_larger_than_a_segment(name, size):
    def job(rank):
        totals = []
        for dtype, count, segment_bytes in (
            ("float32", 503, 100),
            ("float16", 503, 101),
            ("float64", 51, 3),
        ):
            x = np.ones(count, dtype)
            made = len(rank.transport.sends), len(rank.transport.receives)
            plan = rank.allreduce(name, "sum", x, np.empty_like(x), segment_bytes)
            sends = rank.transport.sends[made[0] :]
            receives = rank.transport.receives[made[1] :]
            assert plan.messages_sent == len(sends)
            assert plan.messages_received == len(receives)
            assert plan.bytes_sent == sum(sends)
            # A segment holds an element, however small it is to be.
            assert max([*sends, *receives], default=0) <= max(segment_bytes, 8)
            totals.append(
                (
                    (plan.messages_sent, plan.bytes_sent),
                    (plan.messages_received, plan.bytes_received),
                )
            )
        return totals

    totals = np.array(run(size, job)).sum(axis=0)
    assert totals[:, 0].tolist() == totals[:, 1].tolist()


@pytest.mark.parametrize("name", NAMES)
def test_messages_are_split_below_the_limit_of_mpi(name, monkeypatch):
    monkeypatch.setattr(transport, "MESSAGE_LIMIT", 64)
    size, count = 3, 600

    def job(rank):
        for segment_bytes in (None, 1 << 20, 40):
            x = contribution(rank.rank, count, "float64", "sum", size)
            out = np.empty_like(x)
            rank.allreduce(name, "sum", x, out, segment_bytes)
            assert out.tobytes() == expected(count, "float64", "sum", size).tobytes()
        assert max(rank.transport.sends) == max(rank.transport.receives) == 64

    run(size, job)


@pytest.mark.parametrize("size", [2, 3, 8])
@pytest.mark.parametrize(("name", "share"), [("ring", lambda p: p), ("circulant", lambda p: 2)])
def test_scratch_memory_is_a_part_of_the_vector_or_two_segments(name, share, size):
    count = 126_000
    nbytes = 4 * count

    def job(rank):
        x = np.ones(count, "float32")
        out = np.empty_like(x)
        for segment_bytes in (8192, 100_000, None, 1 << 30):
            plan = rank.plan(name, "sum", x, out, segment_bytes)
            # One segment arrives while another is reduced.
            largest = min(nbytes // share(size), segment_bytes or SEGMENT_BYTES)
            assert plan.info.scratch_bytes <= 2 * max(largest, SEGMENT_BYTES)
            if segment_bytes and segment_bytes < SEGMENT_BYTES:
                assert plan.info.scratch_bytes <= 2 * segment_bytes

    run(size, job)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_only_half_types_need_memory_for_partial_results(size):
    def job(rank):
        scratch = 2 * 64 if size > 1 else 0
        for dtype, work in (("float32", 0), ("float16", 4000), (ml_dtypes.bfloat16, 4000)):
            x = np.ones(1000, dtype)
            plan = rank.allreduce("ring", "sum", x, np.empty_like(x), 64)
            assert plan.info.scratch_bytes == work + scratch

    run(size, job)
