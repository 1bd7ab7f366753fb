"""Ranks of a node that reach each other's device memory, on fake devices."""

import itertools
import threading

import numpy as np
import pytest
from device_vectors import (
    LARGE,
    SMALL,
    Guarded,
    all_reduce,
    fake_devices,
    last,
    nothing,
    site_of,
    way,
)
from fake_arrays import FakeArray
from inputs import DTYPES, OPS, contribution, expected, supports

import hpccoll
from hpccoll.cuda import mapping, terms
from hpccoll.cuda.awareness import Awareness
from hpccoll.cuda.peers import SMALL_BYTES

pytestmark = pytest.mark.mpi(min_size=2)

NOT_SUPPORTED = 801


@pytest.fixture
def fake(monkeypatch):
    """Give each rank two devices."""
    with fake_devices(monkeypatch) as fake:
        yield fake


# -- results ---------------------------------------------------------------------------------------

COUNTS = (0, 1, 2, 37, 255, 256, 257, 4097)
# Around the chunks of 1 to 5 ranks, and of a type of 8 bytes.
LARGE_COUNTS = (SMALL_BYTES // 8, SMALL_BYTES // 8 + 1, 160 * 256 - 1, 160 * 256, 160 * 256 + 1)


@pytest.mark.any_size
@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [*COUNTS, *LARGE_COUNTS])
def test_allreduce_of_counts(fake, comm, count, in_place):
    wrapped = hpccoll.Comm(comm)
    x = Guarded(fake, contribution(comm.rank, count, np.float64, "sum", comm.size))
    out = x if in_place else Guarded(fake, nothing(count, np.float64), stream=x.stream)
    hpccoll.allreduce(x.array, out=out.array, comm=wrapped)
    out.check(expected(count, np.float64, "sum", comm.size))
    if not in_place:
        x.check(contribution(comm.rank, count, np.float64, "sum", comm.size))
    assert last(wrapped) == way(8 * count)
    assert wrapped.last_call.memory == "cuda:0, mapped"
    assert wrapped.last_call.in_place == (in_place and count > 0)


@pytest.mark.parametrize("count", [13, 70_001])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_allreduce_of_all_types(fake, comm, dtype, count):
    wrapped = hpccoll.Comm(comm)
    for op in OPS:
        if supports(dtype, op):
            x = Guarded(fake, contribution(comm.rank, count, dtype, op, comm.size))
            hpccoll.allreduce(x.array, op, out=x.array, comm=wrapped)
            x.check(expected(count, dtype, op, comm.size))
            assert last(wrapped) == way(count * dtype.itemsize)
            if count > 13:
                break


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "complex64"])
@pytest.mark.parametrize("count", [999, 140_001])
def test_bits_are_those_of_the_host(fake, comm, dtype, count):
    dtype = next(known for known in DTYPES if known.name == dtype)
    random = np.random.default_rng(comm.rank)
    values = random.standard_normal(count) * 2.0 ** random.integers(-4, 5, count)
    values = values.astype(dtype)
    values[::17] = np.nan
    values[5::19] = np.inf
    for op in ("sum", "mean", "prod", "fmax"):
        if not supports(dtype, op):
            continue
        wanted = hpccoll.allreduce(values, op, comm=comm)
        x = Guarded(fake, values)
        hpccoll.allreduce(x.array, op, out=x.array, comm=comm)
        x.check(wanted)


def rows(kind: str, size: int, large: bool) -> tuple[int, ...]:
    """Return how many rows each rank has."""
    base = LARGE if large else 10
    return {
        "equal": (base,) * size,
        "uneven": tuple((rank % 3) * base + rank for rank in range(size)),
        "one has all": (base * size, *(0,) * (size - 1)),
    }[kind]


@pytest.mark.any_size
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", ["equal", "uneven", "one has all"])
def test_reduce_scatter(fake, comm, kind, large):
    wrapped, counts = hpccoll.Comm(comm), rows(kind, comm.size, large)
    start, stop = sum(counts[: comm.rank]), sum(counts[: comm.rank + 1])
    for dtype, op in (("float32", "sum"), ("float16", "mean"), ("int64", "max")):
        values = contribution(comm.rank, sum(counts), np.dtype(dtype), op, comm.size)
        wanted = expected(sum(counts), np.dtype(dtype), op, comm.size)[start:stop]
        x = Guarded(fake, values)
        out = Guarded(fake, nothing(stop - start, dtype), stream=x.stream)
        hpccoll.reduce_scatter(x.array, op, out=out.array, counts=counts, comm=wrapped)
        out.check(wanted)
        x.check(values)
        hpccoll.reduce_scatter(
            x.array, op, out=x.array[: stop - start], counts=counts, comm=wrapped
        )
        x.check(np.concatenate([wanted, values[stop - start :]]))
        assert last(wrapped) == way(values.nbytes)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("large", [False, True])
@pytest.mark.parametrize("kind", ["equal", "uneven", "one has all"])
def test_allgather(fake, comm, kind, large, in_place):
    wrapped, counts = hpccoll.Comm(comm), rows(kind, comm.size, large)
    start, stop = sum(counts[: comm.rank]), sum(counts[: comm.rank + 1])
    for dtype in ("float32", "uint8", "complex128"):
        wanted = np.arange(sum(counts)).astype(dtype)
        values = nothing(wanted.size, dtype)
        values[start:stop] = wanted[start:stop]
        out = Guarded(fake, values if in_place else nothing(wanted.size, dtype))
        x = Guarded(fake, wanted[start:stop], stream=out.stream)
        mine = out.array[start:stop] if in_place else x.array
        hpccoll.allgather(mine, out=out.array, counts=counts, comm=wrapped)
        out.check(wanted)
        assert last(wrapped) == way(wanted.nbytes)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("count", [0, 1, SMALL, LARGE])
def test_reduce(fake, comm, count, in_place):
    wrapped = hpccoll.Comm(comm)
    for root, op in ((0, "sum"), (comm.size - 1, "mean"), (comm.size // 2, "max")):
        values = contribution(comm.rank, count, np.float32, op, comm.size)
        x = Guarded(fake, values)
        out = x if in_place else Guarded(fake, nothing(count, np.float32), stream=x.stream)
        is_root = comm.rank == root
        hpccoll.reduce(x.array, op, root=root, out=out.array if is_root else None, comm=wrapped)
        if is_root:
            out.check(expected(count, np.float32, op, comm.size))
        if not (is_root and in_place):
            x.check(values)
        assert last(wrapped) == way(values.nbytes)


@pytest.mark.any_size
@pytest.mark.parametrize("count", [0, 1, SMALL, LARGE])
def test_broadcast(fake, comm, count):
    wrapped = hpccoll.Comm(comm)
    for root, dtype in ((0, "float32"), (comm.size - 1, "uint8"), (comm.size // 2, "complex64")):
        values = np.arange(count).astype(dtype)
        x = Guarded(fake, values if comm.rank == root else nothing(count, dtype))
        hpccoll.broadcast(x.array, root=root, comm=wrapped)
        x.check(values)
        assert last(wrapped) == way(values.nbytes)


def test_small_calls_one_after_the_other(fake, comm):
    """Blocks are used again and again, by all collectives, with nothing but the calls between."""
    wrapped = hpccoll.Comm(comm)
    stream, checks = fake.new_stream(), []
    for number in range(30):
        count, root = 1 + 97 * (number % 7), number % comm.size
        values = contribution(comm.rank, count * comm.size, np.int32, "sum", comm.size, number)
        total = expected(count * comm.size, np.int32, "sum", comm.size, number)
        part = slice(count * comm.rank, count * (comm.rank + 1))
        x = Guarded(fake, values, stream=stream)
        out = Guarded(fake, nothing(count * comm.size, np.int32), stream=stream)
        if number % 5 == 0:
            hpccoll.allreduce(x.array, out=out.array, comm=wrapped)
            checks.append((out, total))
        elif number % 5 == 1:
            hpccoll.broadcast(x.array, root=root, comm=wrapped)
            sent = contribution(root, values.size, np.int32, "sum", comm.size, number)
            checks.append((x, sent))
        elif number % 5 == 2:
            hpccoll.reduce(x.array, root=root, out=out.array, comm=wrapped)
            checks.append((out, total if comm.rank == root else nothing(total.size, np.int32)))
        elif number % 5 == 3:
            hpccoll.allgather(x.array[part], out=out.array, comm=wrapped)
            every = [
                contribution(rank, values.size, np.int32, "sum", comm.size, number)
                for rank in range(comm.size)
            ]
            parts = [every[r][count * r : count * (r + 1)] for r in range(comm.size)]
            checks.append((out, np.concatenate(parts)))
        else:
            hpccoll.reduce_scatter(x.array, out=out.array[:count], comm=wrapped)
            rest = nothing(total.size - count, np.int32)
            checks.append((out, np.concatenate([total[part], rest])))
    for array, wanted in checks:
        array.check(wanted)


@pytest.mark.parametrize("count", [SMALL, LARGE])
def test_a_late_producer(fake, comm, count):
    """What one rank brings is not there yet when the others make their call."""
    all_reduce(fake, comm, count)
    for late in range(comm.size):
        x = Guarded(fake, contribution(comm.rank, count, np.float32, "sum", comm.size))
        if comm.rank == late:
            fake.hold(x.stream)
            threading.Timer(0.1, fake.release, (x.stream,)).start()
        hpccoll.allreduce(x.array, out=x.array, comm=comm)
        x.check(expected(count, np.float32, "sum", comm.size))


def test_views_are_packed(fake, comm):
    wrapped = hpccoll.Comm(comm)
    values = contribution(comm.rank, 2 * SMALL, np.float32, "sum", comm.size)
    x = FakeArray(2 * SMALL, np.float32, stream=fake.new_stream()).fill(values)
    hpccoll.allreduce(x[::2], out=x[1::2], comm=wrapped)
    got, wanted = x.numpy(), expected(2 * SMALL, np.float32, "sum", comm.size)
    np.testing.assert_array_equal(got[1::2], wanted[::2])
    np.testing.assert_array_equal(got[::2], values[::2])
    assert wrapped.last_call.path == "mapped"


# -- memory ----------------------------------------------------------------------------------------


def test_allocations_are_exported_and_opened_once(fake, comm):
    wrapped = hpccoll.Comm(comm)
    all_reduce(fake, wrapped)
    arrays = [Guarded(fake, nothing(LARGE, np.float32)) for _ in range(3)]
    opened, exported = fake.calls["cuIpcOpenMemHandle"], fake.calls["cuIpcGetMemHandle"]
    for _ in range(4):
        for array in arrays:
            hpccoll.allreduce(array.array, out=array.array, comm=wrapped)
    assert fake.calls["cuIpcGetMemHandle"] - exported == len(arrays)
    assert fake.calls["cuIpcOpenMemHandle"] - opened == len(arrays) * (comm.size - 1)


def test_all_that_was_opened_is_closed(fake, comm):
    for _ in range(2):
        inner = comm.Dup()
        wrapped = hpccoll.Comm(inner)
        for count in (SMALL, LARGE):
            all_reduce(fake, wrapped, count)
        wrapped.Free()
    assert fake.calls["cuIpcOpenMemHandle"] > 0
    assert fake.calls["cuIpcOpenMemHandle"] == fake.calls["cuIpcCloseMemHandle"]


def test_only_so_many_stay_open(fake, comm, monkeypatch):
    monkeypatch.setattr(mapping, "MOST_ALLOCATIONS", 3)
    wrapped = hpccoll.Comm(comm)
    arrays = [
        Guarded(fake, contribution(comm.rank, LARGE, np.float32, "sum", comm.size, seed))
        for seed in range(5)
    ]
    for array in arrays:
        hpccoll.allreduce(array.array, out=array.array, comm=wrapped)
    for seed, array in enumerate(arrays):
        array.check(expected(LARGE, np.float32, "sum", comm.size, seed))
    blocks = comm.size - 1
    still_open = fake.calls["cuIpcOpenMemHandle"] - fake.calls["cuIpcCloseMemHandle"]
    assert still_open == blocks + 3 * (comm.size - 1)


def test_memory_that_cannot_be_shared(fake, comm):
    """That of pools, for example: it goes through memory of our own."""
    wrapped = hpccoll.Comm(comm)
    all_reduce(fake, wrapped)
    for in_place, odd_ranks in itertools.product((False, True), ((0,), range(comm.size))):
        values = contribution(comm.rank, LARGE, np.float32, "sum", comm.size)
        x = Guarded(fake, values)
        out = x if in_place else Guarded(fake, nothing(LARGE, np.float32), stream=x.stream)
        if comm.rank in odd_ranks:
            fake.fail("cuIpcGetMemHandle", NOT_SUPPORTED)
        for _ in range(2):
            x.whole.fill(x.before)
            hpccoll.allreduce(x.array, out=out.array, comm=wrapped)
            out.check(expected(LARGE, np.float32, "sum", comm.size))
            assert last(wrapped) == ("mapped", "direct")


@pytest.mark.parametrize("collective", ["reduce", "broadcast", "allgather", "reduce_scatter"])
def test_memory_of_one_rank_that_cannot_be_shared(fake, comm, collective):
    wrapped, size = hpccoll.Comm(comm), comm.size
    all_reduce(fake, wrapped)
    if comm.rank == size - 1:
        fake.fail("cuIpcGetMemHandle", NOT_SUPPORTED)
    values = contribution(comm.rank, LARGE * size, np.float32, "sum", size)
    total = expected(LARGE * size, np.float32, "sum", size)
    part = slice(LARGE * comm.rank, LARGE * (comm.rank + 1))
    x = Guarded(fake, values)
    out = Guarded(fake, nothing(values.size, np.float32), stream=x.stream)
    if collective == "reduce":
        hpccoll.reduce(x.array, root=size - 1, out=out.array, comm=wrapped)
        out.check(total if comm.rank == size - 1 else nothing(total.size, np.float32))
    elif collective == "broadcast":
        hpccoll.broadcast(x.array, root=0, comm=wrapped)
        x.check(contribution(0, values.size, np.float32, "sum", size))
    elif collective == "allgather":
        hpccoll.allgather(x.array[part], out=out.array, comm=wrapped)
        out.check(np.concatenate(comm.allgather(values[part])))
    else:
        hpccoll.reduce_scatter(x.array, out=out.array[:LARGE], comm=wrapped)
        rest = nothing(total.size - LARGE, np.float32)
        out.check(np.concatenate([total[part], rest]))
    assert last(wrapped) == ("mapped", "direct")


# -- where memory cannot be mapped -----------------------------------------------------------------


def test_ranks_on_two_devices(fake, comm):
    wrapped, device = hpccoll.Comm(comm), comm.rank % 2
    for count in (SMALL, LARGE):
        values = contribution(comm.rank, count, np.float32, "sum", comm.size)
        x = Guarded(fake, values, device=device)
        hpccoll.allreduce(x.array, out=x.array, comm=wrapped)
        x.check(expected(count, np.float32, "sum", comm.size))
        assert last(wrapped) == way(values.nbytes)


def test_devices_without_access_to_each_other(fake, comm):
    fake.peers = False
    wrapped, device = hpccoll.Comm(comm), comm.rank % 2
    x = Guarded(fake, contribution(comm.rank, SMALL, np.float32, "sum", comm.size), device=device)
    hpccoll.allreduce(x.array, out=x.array, comm=wrapped)
    x.check(expected(SMALL, np.float32, "sum", comm.size))
    assert wrapped.last_call.path == "host"
    assert site_of(comm).why_not == (
        "rank 0: its GPU has no access to the memory of another rank's"
    )


@pytest.mark.parametrize(
    ("function", "why"),
    [
        ("cuIpcGetMemHandle", "something went wrong there, which it tells itself"),
        ("cuIpcOpenMemHandle", "CUDA_ERROR_NOT_SUPPORTED (801)"),
        ("cuMemAlloc", "CUDA_ERROR_NOT_SUPPORTED (801)"),
    ],
)
def test_a_rank_that_cannot(fake, comm, function, why):
    wrapped, odd_one = hpccoll.Comm(comm), comm.size - 1
    x = Guarded(fake, contribution(comm.rank, SMALL, np.float32, "sum", comm.size))
    if comm.rank == odd_one:
        fake.fail(function, NOT_SUPPORTED)
    hpccoll.allreduce(x.array, out=x.array, comm=wrapped)
    x.check(expected(SMALL, np.float32, "sum", comm.size))
    assert wrapped.last_call.path == "host"
    whys = comm.allgather(site_of(comm).why_not)
    assert len(set(whys)) == 1
    assert whys[0].startswith(f"rank {odd_one}: ")
    assert why in whys[0]
    # Nothing is left open.
    assert fake.calls["cuIpcOpenMemHandle"] - fake.calls["cuIpcCloseMemHandle"] in (
        0,
        1 if comm.rank == odd_one and function == "cuIpcOpenMemHandle" else 0,
    )
    all_reduce(fake, wrapped, LARGE)


def test_memory_that_a_rank_cannot_open_later(fake, comm):
    wrapped = hpccoll.Comm(comm)
    all_reduce(fake, wrapped, SMALL)
    if comm.rank == 0:
        fake.fail("cuIpcOpenMemHandle", NOT_SUPPORTED, times=2)
    all_reduce(fake, wrapped, LARGE)
    assert wrapped.last_call.path == "host"
    whys = comm.allgather(site_of(comm).why_not)
    assert set(whys) == {"rank 0: it could not open the memory of another rank"}
    all_reduce(fake, wrapped, SMALL)
    assert wrapped.last_call.path == "host"


@pytest.mark.parametrize(("mode", "staged"), [("auto", True), ("direct", False)])
def test_the_environment_is_that_of_rank_0(fake, comm, monkeypatch, mode, staged):
    """Another rank that wants device memory sent has not shown that its MPI library can do that."""
    others = {"auto": "direct", "direct": "staged"}[mode]
    monkeypatch.setenv("HPCCOLL_CUDA", others if comm.rank else mode)
    answer = Awareness("no" if comm.rank else "yes", "it says so")
    monkeypatch.setattr(terms, "cuda_aware", lambda: answer)
    all_reduce(fake, comm)
    assert site_of(comm).staged == staged


def test_off_by_the_environment(fake, comm, monkeypatch):
    monkeypatch.setenv("HPCCOLL_CUDA_IPC", "off")
    wrapped = hpccoll.Comm(comm)
    all_reduce(fake, wrapped, LARGE)
    assert wrapped.last_call.path == "host"
    assert site_of(comm).why_not == "HPCCOLL_CUDA_IPC is off"
    assert fake.calls["cuIpcGetMemHandle"] == 0


def test_without_memory_of_the_host_that_the_node_shares(fake, comm, monkeypatch):
    monkeypatch.setenv("HPCCOLL_NODE", "off")
    wrapped = hpccoll.Comm(comm)
    for count in (SMALL, LARGE):
        all_reduce(fake, wrapped, count)
        assert wrapped.last_call.path == "mapped"
    # Nor is there a hierarchy in it.
    all_reduce(fake, hpccoll.Comm(comm, algorithm="two_level"))
