"""Reduce-scatter, all-gather, reduce, broadcast and barrier, through functions and methods."""

import itertools
import random

import numpy as np
import pytest
from inputs import DTYPES, OPS, contribution, digest, expected, guarded, supports
from layouts import LAYOUTS, place
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import algorithms

IN_PLACE = MPI.IN_PLACE


def names(collective):
    return [*(entry.name for entry in algorithms(collective)), "auto"]


ALL = [
    (collective, name)
    for collective in ("reduce_scatter", "allgather", "reduce", "broadcast")
    for name in names(collective)
]


def mine(comm, shape, dtype="float64", op="sum", seed=0):
    return contribution(
        comm.rank, int(np.prod(shape)), np.dtype(dtype), op, comm.size, seed
    ).reshape(shape)


def total(comm, shape, dtype="float64", op="sum", seed=0):
    return expected(int(np.prod(shape)), np.dtype(dtype), op, comm.size, seed).reshape(shape)


def of_rank(comm, rank, shape, dtype="float64", seed=0):
    """Return what another rank has."""
    op = "sum" if np.dtype(dtype) != np.bool_ else "lor"
    return contribution(
        rank, int(np.prod(shape)), np.dtype(dtype), op, comm.size, seed + 7
    ).reshape(shape)


def joined(comm, rows, rest=(), dtype="float64", seed=0):
    parts = [of_rank(comm, rank, (n, *rest), dtype, seed) for rank, n in enumerate(rows)]
    return np.concatenate(parts)


def splits(size):
    """List numbers of rows per rank: equal, none, those of a default, uneven, with empty ones."""
    return [
        (2,) * size,
        (0,) * size,
        tuple(1 + (rank < 1) for rank in range(size)),
        tuple(rank % 3 for rank in range(size)),
        (5, *(0,) * (size - 1)),
        tuple(200 * (size - rank) for rank in range(size)),
    ]


def slices(rows):
    ends = [0, *itertools.accumulate(rows)]
    return [slice(start, stop) for start, stop in itertools.pairwise(ends)]


def same(result, wanted, case=None):
    assert result.shape == wanted.shape, case
    assert result.dtype.newbyteorder("=") == wanted.dtype, case
    assert result.astype(wanted.dtype).tobytes() == wanted.tobytes(), case


def filled(values):
    """Return a guarded array of these values."""
    result = guarded(values.shape, values.dtype)
    result.array[...] = values
    return result


# The functions.


@pytest.mark.parametrize("name", names("reduce_scatter"))
def test_reduce_scatter(comm, name):
    size, rank = comm.size, comm.rank
    for number, dtype in enumerate(DTYPES):
        ops = [op for op in OPS if supports(dtype, op)]
        for k, rows in list(enumerate(splits(size)))[number % 2 :: 2]:
            op = ops[(number + k) % len(ops)]
            shape = (sum(rows), 3) if k % 2 else (sum(rows),)
            wanted = total(comm, shape, dtype, op)[slices(rows)[rank]]
            x = filled(mine(comm, shape, dtype, op))
            options = {"comm": comm, "algorithm": name, "counts": rows}
            if k % 3 == 0:
                options["segment_bytes"] = 40
            case = (str(dtype), op, rows)
            same(hpccoll.reduce_scatter(x.array, op, **options), wanted, case)
            out = guarded(wanted.shape, dtype)
            assert hpccoll.reduce_scatter(x.array, op, out=out.array, **options) is out.array
            same(out.array, wanted, case)
            same(x.array, mine(comm, shape, dtype, op), case)
            # In place the result goes to the first rows, and the others stay as they are.
            result = hpccoll.reduce_scatter(x.array, op, out=x.array, **options)
            assert np.shares_memory(result, x.array) or not result.size
            same(result, wanted, case)
            kept = mine(comm, shape, dtype, op)
            kept[: rows[rank]] = wanted
            same(x.array, kept, case)
            x.check()
            out.check()


def test_reduce_scatter_cuts_as_numpy_does(comm):
    for length in (0, 1, comm.size - 1, comm.size, 2 * comm.size + 1):
        shape = (length, 2)
        result = hpccoll.reduce_scatter(mine(comm, shape), comm=comm)
        same(result, np.array_split(total(comm, shape), comm.size)[comm.rank])


@pytest.mark.parametrize("name", names("allgather"))
def test_allgather(comm, name):
    for number, dtype in enumerate(DTYPES):
        for k, rows in list(enumerate(splits(comm.size)))[number % 2 :: 2]:
            rest = (3,) if k % 2 else ()
            wanted = joined(comm, rows, rest, dtype)
            x = filled(of_rank(comm, comm.rank, (rows[comm.rank], *rest), dtype))
            options = {"comm": comm, "algorithm": name}
            if k % 3 == 0:
                options["segment_bytes"] = 40
            case = (str(dtype), rows)
            for counts in (None, rows):
                same(hpccoll.allgather(x.array, counts=counts, **options), wanted, case)
                out = guarded(wanted.shape, dtype)
                result = hpccoll.allgather(x.array, counts=counts, out=out.array, **options)
                assert result is out.array
                same(out.array, wanted, case)
                # In place: x is this rank's part of out.
                part = slices(rows)[comm.rank]
                out.array.view(np.uint8)[...] = 0x5A
                out.array[part] = x.array
                hpccoll.allgather(out.array[part], counts=counts, out=out.array, **options)
                same(out.array, wanted, case)
                out.check()
            same(x.array, of_rank(comm, comm.rank, (rows[comm.rank], *rest), dtype), case)
            x.check()


@pytest.mark.parametrize("name", names("reduce"))
def test_reduce(comm, name):
    roots = itertools.cycle(range(comm.size))
    shapes = itertools.cycle([((7,), None), ((), None), ((0, 3), None), ((40, 30), 1000)])
    for number, dtype in enumerate(DTYPES):
        ops = [op for op in OPS if supports(dtype, op)]
        for op in ops[number % 3 :: 3]:
            (shape, segment), root = next(shapes), next(roots)
            x, out = filled(mine(comm, shape, dtype, op)), filled(mine(comm, shape, dtype, op, 5))
            wanted = total(comm, shape, dtype, op)
            options = {"comm": comm, "algorithm": name, "segment_bytes": segment}
            result = hpccoll.reduce(x.array, op, root, **options)
            case = (str(dtype), op, shape, root)
            if comm.rank == root:
                same(result, wanted, case)
            else:
                assert result is None
            result = hpccoll.reduce(x.array, op, np.int64(root), out=out.array, **options)
            same(x.array, mine(comm, shape, dtype, op), case)
            if comm.rank == root:
                assert result is out.array
                same(out.array, wanted, case)
            else:
                assert result is None
                same(out.array, mine(comm, shape, dtype, op, 5), case)
            hpccoll.reduce(x.array, op, root, out=x.array, **options)
            same(x.array, wanted if comm.rank == root else mine(comm, shape, dtype, op), case)
            x.check()
            out.check()


@pytest.mark.parametrize("name", names("broadcast"))
def test_broadcast(comm, name):
    roots = itertools.cycle(range(comm.size))
    for dtype in DTYPES:
        for shape, segment in (((7,), None), ((), None), ((0, 3), None), ((40, 30), 400)):
            root = next(roots)
            wanted = of_rank(comm, root, shape, dtype)
            x = filled(of_rank(comm, comm.rank, shape, dtype))
            options = {"comm": comm, "algorithm": name, "segment_bytes": segment}
            case = (str(dtype), shape, root)
            out = guarded(shape, dtype)
            assert hpccoll.broadcast(x.array, root, out=out.array, **options) is out.array
            same(out.array, wanted, case)
            same(x.array, of_rank(comm, comm.rank, shape, dtype), case)
            x.array.flags.writeable = comm.rank != root
            assert hpccoll.broadcast(x.array, root, **options) is x.array
            same(x.array, wanted, case)
            x.check()
            out.check()


def test_scalars(comm):
    size, rank = comm.size, comm.rank
    last = size - 1
    for one in (1.5, 3, 1j, np.float32(2), np.int16(3)):
        result = hpccoll.reduce(one * (rank + 1), root=last, comm=comm)
        if rank == last:
            assert type(result) is type(one * 1)
            assert result == one * (size * (size + 1) // 2)
        else:
            assert result is None
        result = hpccoll.broadcast(one * (rank + 1), last, comm=comm)
        assert type(result) is type(one * 1)
        assert result == one * size
        result = hpccoll.allgather(one * (rank + 1), comm=comm)
        assert result.tolist() == [one * (r + 1) for r in range(size)]
        assert result.dtype == np.asarray(one).dtype
    for flag in (True, np.True_):
        assert hpccoll.reduce(flag, "land", comm=comm) in (None, True)
        assert hpccoll.broadcast(flag if rank == 0 else type(flag)(False), comm=comm)


@pytest.mark.mpi(min_size=2)
def test_a_barrier_waits_for_all(comm):
    window = MPI.Win.Allocate_shared(8 if comm.rank == 0 else 0, 8, comm=comm)
    memory, _ = window.Shared_query(0)
    arrived = np.frombuffer(memory, np.int64)
    wrapped = hpccoll.Comm(comm)
    try:
        for turn, barrier in enumerate([wrapped.Barrier, lambda: hpccoll.barrier(comm)] * 10):
            if comm.rank == turn % comm.size:
                arrived[0] = turn + 1
            barrier()
            assert arrived[0] == turn + 1
            barrier()
    finally:
        window.Free()


# Layouts.


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_through_functions(comm, layout):
    kinds = list(LAYOUTS)
    other = kinds[(kinds.index(layout) + comm.rank + 1) % len(kinds)]
    size, rank, root = comm.size, comm.rank, comm.size // 2
    for rest, dtype in (((3,), "float64"), ((), "float16"), ((40, 9), "int32")):
        shape = (2 * size + 1, *rest)
        values, whole = mine(comm, shape, dtype), total(comm, shape, dtype)
        x = place(layout, values)
        chunk = np.array_split(whole, size)[rank]
        same(hpccoll.reduce_scatter(x.array, comm=comm), chunk)
        out = place(other, np.zeros_like(chunk))
        hpccoll.reduce_scatter(x.array, out=out.array, comm=comm)
        same(out.array, chunk)
        out.check_gaps()

        rows = [1 + r % 2 for r in range(size)]
        part = place(layout, of_rank(comm, rank, (rows[rank], *rest), dtype))
        every = joined(comm, rows, rest, dtype)
        same(hpccoll.allgather(part.array, comm=comm), every)
        out = place(other, np.zeros_like(every))
        hpccoll.allgather(part.array, out=out.array, comm=comm)
        same(out.array, every)
        hpccoll.allgather(out.array[slices(rows)[rank]], out=out.array, comm=comm)
        same(out.array, every)
        out.check_gaps()
        part.check_gaps()

        out = place(other, np.zeros(shape, dtype))
        hpccoll.reduce(x.array, "sum", root, out=out.array, comm=comm)
        same(out.array, whole if rank == root else np.zeros(shape, dtype))
        hpccoll.broadcast(out.array, root, comm=comm)
        same(out.array, whole)
        hpccoll.broadcast(x.array, root, out=out.array, comm=comm)
        same(
            out.array, contribution(root, values.size, np.dtype(dtype), "sum", size).reshape(shape)
        )
        same(x.array, values)
        hpccoll.reduce(x.array, "sum", root, out=x.array, comm=comm)
        same(x.array, whole if rank == root else values)
        x.array[...] = values
        hpccoll.reduce_scatter(x.array, out=x.array, comm=comm)
        values[: len(chunk)] = chunk
        same(x.array, values)
        out.check_gaps()
        x.check_gaps()


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_through_methods(comm, layout):
    comm = hpccoll.Comm(comm)
    kinds = list(LAYOUTS)
    other = kinds[(kinds.index(layout) + comm.rank + 1) % len(kinds)]
    size, rank, root = comm.size, comm.rank, comm.size - 1
    for shape, dtype in (((3, 2), "float64"), ((30, 20), "float16")):
        values = mine(comm, (size, *shape), dtype)
        whole = total(comm, (size, *shape), dtype)
        x = place(layout, values)
        for _ in range(2):
            out = place(other, np.zeros(shape, dtype))
            comm.Reduce_scatter_block(x.array, out.array)
            same(out.array, whole[rank])
            comm.Reduce_scatter(x.array, out.array)
            same(out.array, whole[rank])
            out.array[...] = 0
            comm.Reduce_scatter(x.array, out.array, [out.array.size] * size)
            same(out.array, whole[rank])
            out.check_gaps()

            every = np.stack([of_rank(comm, r, shape, dtype) for r in range(size)])
            part = place(layout, every[rank])
            for gather in (comm.Allgather, comm.Allgatherv):
                out = place(other, np.zeros_like(every))
                gather(part.array, out.array)
                same(out.array, every)
                out.array[...] = 0
                out.array[rank] = every[rank]
                gather(IN_PLACE, out.array)
                same(out.array, every)
                out.check_gaps()
            part.check_gaps()

            out = place(other, np.zeros_like(values))
            comm.Reduce(x.array, out.array, root=root)
            same(out.array, whole if rank == root else np.zeros_like(values))
            comm.Bcast(out.array, root)
            same(out.array, whole)
            out.check_gaps()
            out = place(other, values)
            comm.Reduce(IN_PLACE if rank == root else out.array, out.array, root=root)
            same(out.array, whole if rank == root else values)
            out.array[...] = values
            comm.Reduce_scatter_block(IN_PLACE, out.array)
            kept = values.reshape(-1).copy()
            kept[: whole[rank].size] = whole[rank].reshape(-1)
            same(out.array, kept.reshape(values.shape))
            out.check_gaps()
            same(x.array, values)
        assert comm.last_call.path != "native"
        x.check_gaps()


def test_results_that_overlap_the_input_are_right(comm):
    size, rank = comm.size, comm.rank
    wrapped = hpccoll.Comm(comm)
    for n in (4, 700):
        for shift in (-1, 1, n):
            for _ in range(2):
                memory = np.zeros(4 * n * size)
                x, out = memory[n : n + n * size], memory[n + shift :][: n * size]
                x[...] = mine(comm, x.shape)
                wanted = of_rank_zero(comm, x.shape)
                hpccoll.broadcast(x, out=out, comm=comm)
                same(out, wanted)
                x[...] = mine(comm, x.shape)
                wrapped.Reduce(x, out)
                if rank == 0:
                    same(out, total(comm, x.shape))
                x[...] = mine(comm, x.shape)
                wrapped.Reduce_scatter_block(x, out[:n])
                same(out[:n], total(comm, x.shape)[rank * n : rank * n + n])
                every = joined(comm, [n] * size)
                for gather in (wrapped.Allgather, wrapped.Allgatherv):
                    x[:n] = of_rank(comm, rank, n)
                    gather(x[:n], out)
                    same(out, every)
                x[:n] = of_rank(comm, rank, n)
                hpccoll.allgather(x[:n], out=out, comm=comm)
                same(out, every)


def of_rank_zero(comm, shape):
    return contribution(0, int(np.prod(shape)), np.dtype("f8"), "sum", comm.size).reshape(shape)


# The methods' forms.


FORMS = {
    "Allgather": {
        "arrays": lambda c, x, o: (x, o),
        "types": lambda c, x, o: ([x, MPI.DOUBLE], [o, MPI.DOUBLE]),
        "codes": lambda c, x, o: ((x, "d"), (o, "d")),
        "counts": lambda c, x, o: ([x, 3], [o, 3]),
        "count of a block": lambda c, x, o: ([x, 3], [o, 3, MPI.DOUBLE]),
        "displacements": lambda c, x, o: ([x, (3, 2)], [o, (3, 4)]),
        "all": lambda c, x, o: ([x, (3, 2), MPI.DOUBLE], [o, (3, 1), MPI.DOUBLE]),
        "all four": lambda c, x, o: ([x, 3, 2, MPI.DOUBLE], [o, 3, 1, MPI.DOUBLE]),
        "nothing": lambda c, x, o: ([x, 0], [o, 0]),
        "bytes": lambda c, x, o: ([x, MPI.BYTE], [o, MPI.DOUBLE]),
        "other bytes": lambda c, x, o: (x, [o.view("u1"), MPI.DOUBLE]),
        "matrix": lambda c, x, o: (x.reshape(3, 4), o.reshape(-1, 2)),
        "in place": lambda c, x, o: (IN_PLACE, o),
        "in place, none": lambda c, x, o: (None, [o, MPI.DOUBLE]),
        "in place, a count": lambda c, x, o: (IN_PLACE, [o, 3]),
        "memory": lambda c, x, o: (memoryview(x), memoryview(o)),
        "derived": lambda c, x, o: ([x, 2, PAIRS], [o, 2, PAIRS]),
        "derived on one side": lambda c, x, o: ([x, 2, PAIRS], [o, 4, MPI.DOUBLE]),
    },
    "Allgatherv": {
        "array": lambda c, x, o: (x, o),
        "type": lambda c, x, o: (x, [o, MPI.DOUBLE]),
        "counts": lambda c, x, o: ([x, own(c)], [o, counts(c)]),
        "counts, type": lambda c, x, o: ([x, own(c)], [o, counts(c), MPI.DOUBLE]),
        "counts as an array": lambda c, x, o: ([x, own(c)], [o, np.array(counts(c), "i4")]),
        "all four": lambda c, x, o: ([x, own(c)], [o, counts(c), gaps(c), MPI.DOUBLE]),
        "pair": lambda c, x, o: ([x, own(c)], [o, (counts(c), gaps(c))]),
        "pair, type": lambda c, x, o: ([x, own(c)], [o, (counts(c), gaps(c)), MPI.DOUBLE]),
        "no displacements": lambda c, x, o: ([x, own(c)], [o, counts(c), None, MPI.DOUBLE]),
        "pair, none": lambda c, x, o: ([x, own(c)], [o, (counts(c), None), MPI.DOUBLE]),
        "backwards": lambda c, x, o: ([x, own(c)], [o, (counts(c), gaps(c, -1)), MPI.DOUBLE]),
        "one count": lambda c, x, o: ([x, 3], [o, 3]),
        "one count, type": lambda c, x, o: ([x, 3], [o, 3, MPI.DOUBLE]),
        "one count and distance": lambda c, x, o: ([x, 3], [o, (3, 5), MPI.DOUBLE]),
        "counts and distance": lambda c, x, o: ([x, own(c)], [o, (counts(c), 7), MPI.DOUBLE]),
        "in place": lambda c, x, o: (IN_PLACE, [o, counts(c)]),
        "in place, gaps": lambda c, x, o: (None, [o, (counts(c), gaps(c)), MPI.DOUBLE]),
        "in place, backwards": lambda c, x, o: (IN_PLACE, [o, (counts(c), gaps(c, -1)), "d"]),
        "bytes": lambda c, x, o: ([x, own(c) * 8, MPI.BYTE], [o, (counts(c), gaps(c)), "d"]),
        "sendbuf of its own type": lambda c, x, o: ([x, own(c), "d"], [o, counts(c)]),
        "derived": lambda c, x, o: ([x, 2, PAIRS], [o, [2] * c.size, PAIRS]),
    },
    "Reduce_scatter_block": {
        "arrays": lambda c, x, o: (longer(c, x), o),
        "types": lambda c, x, o: ([longer(c, x), MPI.DOUBLE], [o[:12], MPI.DOUBLE]),
        "send count": lambda c, x, o: ([longer(c, x), 3], o[:3]),
        "counts": lambda c, x, o: ([longer(c, x), 3, MPI.DOUBLE], [o, 3, MPI.DOUBLE]),
        "recv count": lambda c, x, o: (longer(c, x), [o, 12]),
        "displacements": lambda c, x, o: ([longer(c, x), (3, 2), "d"], [o, (3, 5), "d"]),
        "in place": lambda c, x, o: (IN_PLACE, o),
        "in place, none": lambda c, x, o: (None, [o, MPI.DOUBLE]),
        "in place, count": lambda c, x, o: (IN_PLACE, [o, 3, MPI.DOUBLE]),
        "max": lambda c, x, o: (longer(c, x), o[:12], MPI.MAX),
    },
    "Reduce_scatter": {
        "arrays": lambda c, x, o: (longer(c, x), o[:12]),
        "types": lambda c, x, o: ([longer(c, x), "d"], [o[:12], MPI.DOUBLE]),
        "counts and own": lambda c, x, o: (longer(c, x)[: sum(counts(c))], [o, own(c)], counts(c)),
        "array of counts": lambda c, x, o: (
            [longer(c, x), sum(counts(c)), "d"],
            [o, own(c), "d"],
            np.array(counts(c)),
            MPI.PROD,
        ),
        "none": lambda c, x, o: ([longer(c, x), sum(counts(c))], [o, own(c)], None),
        "displacement": lambda c, x, o: (
            [longer(c, x), (sum(counts(c)), 2), "d"],
            [o, (own(c), 5), "d"],
            counts(c),
        ),
        "in place": lambda c, x, o: (IN_PLACE, [o, sum(counts(c))], counts(c)),
        "in place, none": lambda c, x, o: (None, [o, sum(counts(c)), "d"], counts(c), MPI.MIN),
    },
    "Reduce": {
        "arrays": lambda c, x, o: (x, o[:12]),
        "root": lambda c, x, o: (x, o[:12], MPI.SUM, c.size - 1),
        "numpy root": lambda c, x, o: (x, o[:12], MPI.SUM, np.int32(c.size - 1)),
        "nothing elsewhere": lambda c, x, o: (x, o[:12] if c.rank == 0 else None),
        "types": lambda c, x, o: ([x, MPI.DOUBLE], [o, 12, MPI.DOUBLE], MPI.PROD),
        "parts": lambda c, x, o: ([x, (3, 2)], [o, (3, 5)], MPI.MAX, c.size // 2),
        "in place": lambda c, x, o: (IN_PLACE, o) if c.rank == 0 else (o, None),
        "in place, none": lambda c, x, o: (None, [o, 5]) if c.rank == 0 else ([o, 5], None),
    },
    "Bcast": {
        "array": lambda c, x, o: (o,),
        "root": lambda c, x, o: (o, c.size - 1),
        "type": lambda c, x, o: ([o, MPI.DOUBLE], c.size - 1),
        "code": lambda c, x, o: ([o, "d"],),
        "count": lambda c, x, o: ([o, 5],),
        "part": lambda c, x, o: ([o, (5, 2), MPI.DOUBLE], c.size // 2),
        "part, four": lambda c, x, o: ([o, 5, 2, MPI.DOUBLE],),
        "nothing": lambda c, x, o: ([o, 0],),
        "matrix": lambda c, x, o: (o.reshape(4, -1), np.int64(0)),
        "memory": lambda c, x, o: (memoryview(o),),
        "other type": lambda c, x, o: ([o, MPI.INT],),
        "derived": lambda c, x, o: ([o, 2, PAIRS],),
    },
}
PAIRS = MPI.DOUBLE.Create_contiguous(2).Commit()


def counts(comm):
    return [1 + rank % 3 for rank in range(comm.size)]


def own(comm):
    return counts(comm)[comm.rank]


def gaps(comm, step=1):
    """Return displacements that leave gaps."""
    return [2 + 5 * rank for rank in range(comm.size)][::step]


def longer(comm, x):
    return np.tile(x, comm.size) * np.arange(1.0, 12 * comm.size + 1)


def attempt(comm, method, form):
    """Return the receive buffer after a call, or the exception."""
    x = np.arange(1.0, 13) * (comm.rank + 1)
    out = np.linspace(100, 200, 12 * comm.size).round() * (comm.rank + 1)
    if form == "arrays" and method == "Reduce_scatter_block":
        out = out[:12].copy()
    try:
        getattr(comm, method)(*FORMS[method][form](comm, x, out))
    except Exception as error:
        return error
    assert (x == np.arange(1.0, 13) * (comm.rank + 1)).all()
    return out


@pytest.mark.parametrize(
    ("method", "form"), [(method, form) for method, forms in FORMS.items() for form in forms]
)
def test_a_form_does_what_it_does_in_mpi4py(comm, method, form):
    theirs = attempt(comm, method, form)
    wrapped = hpccoll.Comm(comm)
    assert not isinstance(theirs, Exception), theirs
    for _ in range(2):
        ours = attempt(wrapped, method, form)
        assert not isinstance(ours, Exception), ours
        np.testing.assert_array_equal(ours, theirs)
    native = form.startswith("derived")
    assert (wrapped.last_call.path == "native") == native
    x = np.full(3, comm.rank + 1.0)
    wrapped.Allreduce(IN_PLACE, x)
    assert (x == comm.size * (comm.size + 1) // 2).all()


@pytest.mark.parametrize(("collective", "name"), ALL)
def test_methods_take_the_communicator_s_algorithm(comm, collective, name):
    size, rank, root = comm.size, comm.rank, comm.size - 1
    types = itertools.cycle(["float32", "float16", "complex128", "int8", "float64"])
    for count, segment in ((1, None), (5, 16), (3000, 1024)):
        wrapped = hpccoll.Comm(comm, algorithm=name, segment_bytes=segment)
        for dtype in (next(types), next(types)):
            values, whole = mine(comm, size * count, dtype), total(comm, size * count, dtype)
            chunk = slice(rank * count, (rank + 1) * count)
            x = filled(values)
            if collective == "reduce_scatter":
                out = guarded(count, dtype)
                wrapped.Reduce_scatter_block(x.array, out.array)
                same(out.array, whole[chunk])
            elif collective == "allgather":
                out = guarded(size * count, dtype)
                every = joined(comm, [count] * size, dtype=dtype)
                wrapped.Allgather(every[chunk].copy(), out.array)
                same(out.array, every)
            elif collective == "reduce":
                out = guarded(size * count, dtype)
                wrapped.Reduce(x.array, out.array if rank == root else None, root=root)
                if rank == root:
                    same(out.array, whole)
            else:
                out = filled(of_rank(comm, rank, count, dtype))
                out.array.flags.writeable = rank != root
                wrapped.Bcast(out.array, root)
                same(out.array, of_rank(comm, root, count, dtype))
            x.check()
            out.check()
            same(x.array, values)
            call = wrapped.last_call
            assert call.collective == collective
            assert name == "auto" or call.algorithm == name
            assert call.dtype == dtype
            assert call.count == (count if collective == "broadcast" else size * count)
            assert call.nbytes == call.count * np.dtype(dtype).itemsize
            assert call.op == ("sum" if collective.startswith("reduce") else "none")
            assert call.size == size
            if name != "auto":
                assert call.path == "point-to-point"
                assert not segment or call.segment_bytes <= max(segment, 16)
                sent = comm.allreduce(call.bytes_sent)
                assert sent == comm.allreduce(call.bytes_received)
                assert comm.allreduce(call.messages_sent) == comm.allreduce(call.messages_received)
                predicted = hpccoll.simulate(
                    next(a for a in algorithms(collective) if a.name == name).on(
                        root=root if collective in ("reduce", "broadcast") else 0
                    ),
                    size=size,
                    count=call.count,
                    itemsize=np.dtype(dtype).itemsize,
                    partial_itemsize=4
                    if dtype == "float16" and call.op == "sum"
                    else np.dtype(dtype).itemsize,
                ).ranks[rank]
                assert call.bytes_sent == predicted.bytes_sent
                assert call.bytes_received == predicted.bytes_received
                assert call.bytes_reduced == predicted.bytes_reduced
                assert call.steps == predicted.steps


def test_the_last_call_says_whether_it_was_in_place(comm):
    wrapped = hpccoll.Comm(comm)
    size, rank = comm.size, comm.rank
    for count in (4, 3000):
        x, whole = np.ones(count), np.ones(size * count)
        for _ in range(2):
            wrapped.Allgather(x, whole)
            assert not wrapped.last_call.in_place
            wrapped.Allgather(IN_PLACE, whole)
            assert wrapped.last_call.in_place
            hpccoll.allgather(whole[rank * count :][:count], out=whole, comm=wrapped)
            assert wrapped.last_call.in_place
            wrapped.Allgather(whole[rank * count :][:count], whole)
            assert wrapped.last_call.in_place
            wrapped.Allgatherv(whole[rank * count :][:count], whole)
            assert wrapped.last_call.in_place
            wrapped.Reduce(x, np.empty(count))
            assert not wrapped.last_call.in_place
            wrapped.Reduce(IN_PLACE if rank == 0 else x, x)
            assert wrapped.last_call.in_place == (rank == 0)
            x[:] = 1


# Repeated calls.


@pytest.fixture
def slow_calls(monkeypatch):
    """Count the calls that are no repetitions."""
    made = []
    run = hpccoll.Comm._run

    def counting(self, name, *arguments):
        made.append(name)
        return run(self, name, *arguments)

    monkeypatch.setattr(hpccoll.Comm, "_run", counting)
    return made


@pytest.mark.parametrize("dtype", ["float64", "float16"])
@pytest.mark.parametrize("count", [3, 3000])
def test_repeated_calls_take_the_short_way(comm, slow_calls, count, dtype):
    wrapped = hpccoll.Comm(comm)
    size, rank, root = comm.size, comm.rank, comm.size - 1
    x, chunk = np.empty(size * count, dtype), np.empty(count, dtype)
    whole, every = np.empty_like(x), np.empty_like(x)
    copy = np.empty(count, dtype)
    for seed in range(4):
        x[:] = mine(comm, x.size, dtype, seed=seed)
        wanted = total(comm, x.size, dtype, seed=seed)
        part = slice(rank * count, (rank + 1) * count)
        wrapped.Reduce_scatter_block(x, chunk)
        same(chunk, wanted[part])
        wrapped.Reduce(x, whole, MPI.SUM, root)
        if rank == root:
            same(whole, wanted)
        wrapped.Allreduce(x, whole)
        same(whole, wanted)
        wrapped.Allgather(chunk, every)
        same(every, wanted)
        wrapped.Bcast(copy if rank != root else chunk, root)
        same(chunk if rank == root else copy, wanted[root * count : (root + 1) * count])
        wrapped.Barrier()
        assert wrapped.last_call.collective == "barrier"
        wrapped.Allgather(IN_PLACE, every)
        same(every, wanted)
        wrapped.Reduce(IN_PLACE if rank == root else x, x, root=root)
        if rank == root:
            same(x, wanted)
        if seed == 0:
            slow_calls.clear()
    assert slow_calls == []


def test_what_moves_or_changes_is_noticed(comm):
    wrapped = hpccoll.Comm(comm)
    size, rank = comm.size, comm.rank
    rng = random.Random(3)
    for turn in range(60):
        count = rng.choice([1, 2, 2000, 3000])
        dtype = rng.choice(["float64", "int64", "float32", "float16"])
        root = rng.randrange(size)
        values, wanted = mine(comm, size * count, dtype), total(comm, size * count, dtype)
        part = slice(rank * count, (rank + 1) * count)
        chunk, whole = np.empty(count, dtype), np.empty(size * count, dtype)
        wrapped.Reduce_scatter_block(values, chunk)
        same(chunk, wanted[part], turn)
        wrapped.Allgather(chunk, whole)
        same(whole, wanted, turn)
        wrapped.Reduce(values, whole, root=root)
        wrapped.Bcast(values if rank != root else whole, root)
        same(values if rank != root else whole, wanted, turn)


def test_records_texts_and_times_are_moved(comm):
    wrapped = hpccoll.Comm(comm)
    size, rank = comm.size, comm.rank
    record = np.dtype([("a", "f8"), ("b", "i4")])
    for dtype in (np.dtype("m8[s]"), np.dtype("m8[ms]"), np.dtype("M8[D]"), np.dtype("m8[s]")):
        x = (np.arange(4) + rank).astype(dtype)
        every = np.empty(4 * size, dtype)
        for _ in range(2):
            wrapped.Allgather(x, every)
            assert (
                every == np.concatenate([np.arange(4) + r for r in range(size)]).astype(dtype)
            ).all()
            assert wrapped.last_call.dtype == dtype.name
            y = x.copy()
            wrapped.Bcast(y, size - 1)
            assert (y == (np.arange(4) + size - 1).astype(dtype)).all()
    for dtype in (record, np.dtype("S5"), np.dtype("U3"), record):
        x = np.zeros(700, dtype)
        x.view("u1")[:] = rank + 65 if dtype.kind != "U" else 0
        every = np.empty((size, 700), dtype)
        for _ in range(2):
            wrapped.Allgather(x, every)
            y = x.copy()
            wrapped.Bcast(y, size - 1)
            for r in range(size):
                first = r + 65 if dtype.kind != "U" else 0
                assert (every[r].view("u1") == first).all()
            assert y.tobytes() == every[-1].tobytes()


# What goes to the MPI library.


def test_operations_and_types_that_hpccoll_does_not_know(comm):
    wrapped = hpccoll.Comm(comm)
    size, rank = comm.size, comm.rank

    def add(x, y, datatype):
        mine = np.frombuffer(y, "f8")
        mine += np.frombuffer(x, "f8")

    op = MPI.Op.Create(add, commute=True)
    x = np.arange(2.0 * size) * (rank + 1)
    wanted = np.arange(2.0 * size) * (size * (size + 1) // 2)
    try:
        out, chunk = np.empty(2 * size), np.empty(2)
        wrapped.Reduce(x, out, op, size - 1)
        assert rank != size - 1 or (out == wanted).all()
        check_native(wrapped, "reduce", 2 * size)
        wrapped.Reduce_scatter_block(x, chunk, op)
        assert (chunk == wanted[2 * rank : 2 * rank + 2]).all()
        check_native(wrapped, "reduce_scatter", 2 * size)
        wrapped.Reduce_scatter(x, chunk, [2] * size, op)
        assert (chunk == wanted[2 * rank : 2 * rank + 2]).all()
        check_native(wrapped, "reduce_scatter", 2 * size)
    finally:
        op.Free()
    wrapped.Allgather([chunk, 1, PAIRS], [out, 1, PAIRS])
    assert (out == wanted).all()
    assert wrapped.last_call.path == "native"
    assert wrapped.last_call.collective == "allgather"
    assert wrapped.last_call.op == "none"
    wrapped.Bcast([out, 1, PAIRS])
    assert wrapped.last_call.collective == "broadcast"
    assert wrapped.last_call.path == "native"


def check_native(wrapped, collective, count):
    call = wrapped.last_call
    assert (call.path, call.algorithm, call.collective) == ("native", "native", collective)
    assert (call.op, call.dtype, call.count, call.nbytes) == ("other", "float64", count, 8 * count)
    assert call.size == wrapped.size


# Together.


def random_calls(comm, rng, turns):
    """Make calls of all kinds, the same ones on all ranks, one after another."""
    wrapped = hpccoll.Comm(comm)
    size, rank = comm.size, comm.rank
    for turn in range(turns):
        collective = rng.choice(
            ["allreduce", "reduce_scatter", "allgather", "reduce", "broadcast", "barrier"]
        )
        count = rng.choice([0, 1, 3, 100, 2500])
        root = rng.randrange(size)
        name = rng.choice(names(collective))
        options = {"comm": comm, "algorithm": name}
        seed, method, in_place = rng.randrange(3), rng.random() < 0.5, rng.random() < 0.5
        dtype = rng.choice(["float64", "float16", "int32"])
        case = (turn, collective, count, name, dtype)
        values = mine(comm, size * count, dtype, seed=seed)
        whole = total(comm, size * count, dtype, seed=seed)
        part = slice(rank * count, (rank + 1) * count)
        if collective == "allreduce":
            out = np.empty_like(values)
            if method:
                wrapped.Allreduce(values, out)
            else:
                out = hpccoll.allreduce(values, out=values if in_place else None, **options)
            same(out, whole, case)
        elif collective == "reduce_scatter":
            chunk = np.empty(count, dtype)
            if method and in_place:
                wrapped.Reduce_scatter_block(IN_PLACE, values)
                chunk = values[:count]
            elif method:
                wrapped.Reduce_scatter(values, chunk)
            else:
                chunk = hpccoll.reduce_scatter(values, **options)
            same(chunk, whole[part], case)
        elif collective == "allgather":
            every = joined(comm, [count] * size, dtype=dtype, seed=seed)
            out = every.copy() if in_place else np.empty_like(every)
            if method:
                wrapped.Allgather(IN_PLACE if in_place else every[part].copy(), out)
            else:
                out = hpccoll.allgather(every[part], **options)
            same(out, every, case)
        elif collective == "reduce":
            out = np.empty_like(values)
            if method:
                wrapped.Reduce(values, out, root=root)
            else:
                out = hpccoll.reduce(values, "sum", root, **options)
            if rank == root:
                same(out, whole, case)
        elif collective == "broadcast":
            x = of_rank(comm, rank, count, dtype, seed)
            if method:
                wrapped.Bcast(x, root)
            else:
                hpccoll.broadcast(x, root, **options)
            same(x, of_rank(comm, root, count, dtype, seed), case)
        elif method:
            wrapped.Barrier()
        else:
            hpccoll.barrier(comm)


@pytest.mark.parametrize("seed", range(3))
def test_all_of_them_one_after_another(comm, seed):
    random_calls(comm, random.Random(seed), 100)


def test_sub_communicators(comm):
    # Odd and even ranks, in reverse order, at the same time, with other calls.
    part = hpccoll.Comm(comm).Split(comm.rank % 2, -comm.rank)
    assert type(part) is hpccoll.Comm
    random_calls(part, random.Random(comm.rank % 2), 100)
    random_calls(comm, random.Random(9), 20)
    part.Free()


@pytest.mark.parametrize("name", ["ring", "circulant"])
@pytest.mark.parametrize("dtype", ["float32", "float16", "complex64"])
def test_rounding_is_that_of_the_all_reduce_of_that_name(comm, name, dtype):
    for count in (comm.size, 5 * comm.size + 3, 5000):
        x = np.random.default_rng(comm.rank).standard_normal(count).astype(dtype)
        whole = hpccoll.allreduce(x, comm=comm, algorithm=name)
        chunk = hpccoll.reduce_scatter(x, comm=comm, algorithm=name)
        same(chunk, np.array_split(whole, comm.size)[comm.rank])
        same(hpccoll.allgather(chunk, comm=comm), whole)


@pytest.mark.parametrize("name", names("reduce"))
def test_a_reduced_vector_that_is_broadcast_has_the_same_bits_on_all_ranks(comm, name):
    x = np.random.default_rng(comm.rank).standard_normal(4000).astype("float32")
    for root in {0, comm.size - 1}:
        once = hpccoll.reduce(x, "sum", root, comm=comm, algorithm=name)
        again = hpccoll.reduce(x, "sum", root, comm=comm, algorithm=name)
        if comm.rank == root:
            same(once, again)
        whole = hpccoll.broadcast(once if comm.rank == root else np.empty_like(x), root, comm=comm)
        assert len(set(comm.allgather(digest(whole)))) == 1
        close = hpccoll.allreduce(x.astype("float64"), comm=comm)
        np.testing.assert_allclose(whole, close, rtol=0, atol=1e-5 * comm.size)


# What is refused. Each case: how to call, the error, and what it says.


def read_only(count=4):
    x = np.zeros(count)
    x.flags.writeable = False
    return x


X = np.arange(4.0)

FUNCTIONS = {
    "reduce_scatter": {
        "list": (lambda f, c: f([1.0]), TypeError, "x is a list"),
        "in place": (
            lambda f, c: f(IN_PLACE),
            TypeError,
            r"in place is reduce_scatter\(x, out=x\)",
        ),
        "number": (lambda f, c: f(1.0), ValueError, "x has no dimensions; wanted an array"),
        "objects": (lambda f, c: f(np.array([None])), TypeError, "x has dtype object"),
        "sum": (
            lambda f, c: f(X, counts=[1] * (c.size - 1) + [9]),
            ValueError,
            r"counts is \[.*9\], of together \d+; x has 4 rows",
        ),
        "length": (
            lambda f, c: f(X, counts=[0] * c.size + [4]),
            ValueError,
            r"counts is \[.*4\]; wanted \d numbers, none below 0",
        ),
        "negative": (
            lambda f, c: f(X, counts=[-1] * c.size),
            ValueError,
            r"counts is \[-1.*wanted \d numbers, none below 0",
        ),
        "number of rows": (lambda f, c: f(X, counts=4), TypeError, r"counts is 4; wanted .* ints"),
        "fractions": (
            lambda f, c: f(X, counts=[1.5] * c.size),
            TypeError,
            r"counts is \[1.5.*; wanted a sequence of \d ints",
        ),
        "out shape": (
            lambda f, c: f(X, out=np.empty((9, 2))),
            ValueError,
            r"out has shape \(9, 2\)[;,] .*\(\d,\)",
        ),
        "out type": (
            lambda f, c: f(np.zeros(c.size), out=np.empty(1, "f4")),
            TypeError,
            "out has dtype float32, x has float64",
        ),
        "out read-only": (
            lambda f, c: f(np.zeros(c.size), out=read_only(1)),
            BufferError,
            "out is read-only",
        ),
        "x read-only in place": (
            lambda f, c: f(x := read_only(c.size), out=x),
            BufferError,
            "out is read-only",
        ),
        "op": (lambda f, c: f(X, "add"), ValueError, "unknown op 'add'"),
        "bool": (lambda f, c: f(X > 1), TypeError, "op 'sum' cannot run on bool"),
        "algorithm": (
            lambda f, c: f(X, algorithm="recursive_doubling"),
            ValueError,
            "unknown algorithm 'recursive_doubling'; choose from auto, ring, circulant",
        ),
        "segment": (lambda f, c: f(X, segment_bytes=0), ValueError, "segment_bytes is 0"),
    },
    "allgather": {
        "list": (lambda f, c: f([1.0]), TypeError, "x is a list"),
        "in place": (lambda f, c: f(IN_PLACE), TypeError, "in place is allgather"),
        "own count": (
            lambda f, c: f(X, counts=[3] * c.size),
            ValueError,
            "x has 4 rows; wanted 3, as counts say of this rank",
        ),
        "counts": (
            lambda f, c: f(X, counts=[4] * (c.size + 1)),
            ValueError,
            r"counts is \[4.*; wanted \d numbers",
        ),
        "out shape": (
            lambda f, c: f(X, counts=[4] * c.size, out=np.empty(3)),
            ValueError,
            r"out has shape \(3,\)[,;] .*\(\d+,\)",
        ),
        "out type": (lambda f, c: f(X, out=np.empty(4, "i8")), TypeError, "out has dtype int64"),
        "out scalar": (lambda f, c: f(1.0, out=2.0), TypeError, "out is a scalar"),
        "out read-only": (
            lambda f, c: f(X, counts=[4] * c.size, out=read_only(4 * c.size)),
            BufferError,
            "out is read-only",
        ),
        "algorithm": (
            lambda f, c: f(X, algorithm="binomial"),
            ValueError,
            "unknown algorithm 'binomial'; choose from auto, ring, circulant",
        ),
    },
    "reduce": {
        "root": (lambda f, c: f(X, "sum", c.size), ValueError, r"root is \d; wanted a rank from 0"),
        "negative root": (lambda f, c: f(X, root=-1), ValueError, "root is -1; wanted a rank"),
        "root type": (lambda f, c: f(X, root="0"), TypeError, "root is '0' of type str"),
        "root fraction": (lambda f, c: f(X, root=0.0), TypeError, "root is 0.0 of type float"),
        "no root": (lambda f, c: f(X, root=None), TypeError, "root is None"),
        "op": (lambda f, c: f(X, "add"), ValueError, "unknown op 'add'"),
        "in place": (lambda f, c: f(IN_PLACE), TypeError, r"in place is reduce\(x, out=x\)"),
        "out shape": (
            lambda f, c: f(X, root=c.rank, out=np.empty(3)),
            ValueError,
            r"out has shape \(3,\), x has \(4,\)",
        ),
        "out type": (
            lambda f, c: f(X, root=c.rank, out=np.empty(4, "f4")),
            TypeError,
            "out has dtype float32",
        ),
        "out read-only": (
            lambda f, c: f(X, root=c.rank, out=read_only()),
            BufferError,
            "out is read-only",
        ),
        "algorithm": (
            lambda f, c: f(X, algorithm="ring"),
            ValueError,
            "unknown algorithm 'ring'; choose from auto, naive_root, binomial",
        ),
    },
    "broadcast": {
        "root": (lambda f, c: f(X, c.size), ValueError, r"root is \d; wanted a rank from 0"),
        "root type": (lambda f, c: f(X, "0"), TypeError, "root is '0' of type str"),
        "list": (lambda f, c: f([1.0]), TypeError, "x is a list"),
        "in place": (lambda f, c: f(IN_PLACE), TypeError, r"in place is broadcast\(x\)"),
        "out shape": (lambda f, c: f(X, out=np.empty(3)), ValueError, r"out has shape \(3,\)"),
        "out type": (lambda f, c: f(X, out=np.empty(4, "f4")), TypeError, "out has dtype float32"),
        "out read-only": (lambda f, c: f(X, out=read_only()), BufferError, "out is read-only"),
        "algorithm": (
            lambda f, c: f(X, algorithm="ring"),
            ValueError,
            "unknown algorithm 'ring'; choose from auto, naive_root, binomial",
        ),
    },
}

METHODS = {
    "Reduce": {
        "root": (lambda f, c: f(X, X.copy(), root=c.size), ValueError, "root is .; wanted a rank"),
        "root type": (lambda f, c: f(X, X.copy(), root="0"), TypeError, "root is '0' of type str"),
        "root list": (lambda f, c: f(X, X.copy(), root=[0]), TypeError, r"root is \[0\] of type"),
        "count": (
            lambda f, c: f(X, np.empty(3), root=c.rank),
            ValueError,
            "recvbuf has 3 elements, sendbuf has 4",
        ),
        "type": (
            lambda f, c: f(X, np.empty(4, "f4"), root=c.rank),
            TypeError,
            "recvbuf has dtype float32, sendbuf has float64",
        ),
        "read-only": (
            lambda f, c: f(X, read_only(), root=c.rank),
            BufferError,
            "recvbuf is read-only",
        ),
        "op": (lambda f, c: f(X, X.copy(), "add"), ValueError, "unknown op 'add'"),
        "bool": (lambda f, c: f(X > 1, X > 1), TypeError, "cannot run on bool"),
    },
    "Reduce_scatter_block": {
        "count": (
            lambda f, c: f(X, np.empty(3)),
            ValueError,
            "sendbuf has 4 elements, recvbuf 3; wanted . times as many",
        ),
        "type": (
            lambda f, c: f(np.zeros(c.size), np.empty(1, "f4")),
            TypeError,
            "recvbuf has dtype float32, sendbuf has float64",
        ),
        "read-only": (
            lambda f, c: f(np.zeros(c.size), read_only(1)),
            BufferError,
            "recvbuf is read-only",
        ),
        "read-only in place": (
            lambda f, c: f(IN_PLACE, read_only(c.size)),
            BufferError,
            "recvbuf is read-only",
        ),
        "op": (lambda f, c: f(X, X, "add"), ValueError, "unknown op 'add'"),
    },
    "Reduce_scatter": {
        "sum": (
            lambda f, c: f(X, np.empty(9), [9] * c.size),
            ValueError,
            r"sendbuf has 4 elements; wanted \d+, as recvcounts say",
        ),
        "sum in place": (
            lambda f, c: f(IN_PLACE, X.copy(), [9] * c.size),
            ValueError,
            r"recvbuf has 4 elements; wanted \d+, as recvcounts say",
        ),
        "length": (
            lambda f, c: f(X, np.empty(9), [4] * (c.size + 1)),
            ValueError,
            r"recvcounts is \[4.*; wanted \d numbers",
        ),
        "fractions": (
            lambda f, c: f(X, np.empty(9), [0.5] * c.size),
            TypeError,
            r"recvcounts is \[0.5.*; wanted a sequence of \d ints",
        ),
        "no counts in place": (
            lambda f, c: f(IN_PLACE, X.copy()),
            ValueError,
            "recvcounts is None and sendbuf is in place; wanted a count for each rank",
        ),
        "read-only": (
            lambda f, c: f(np.zeros(c.size), read_only(1), [1] * c.size),
            BufferError,
            "recvbuf is read-only",
        ),
        "type": (
            lambda f, c: f(np.zeros(c.size), np.empty(1, "f4"), [1] * c.size),
            TypeError,
            "recvbuf has dtype float32, sendbuf has float64",
        ),
    },
    "Allgather": {
        "count": (
            lambda f, c: f(X, np.empty(3)),
            ValueError,
            "recvbuf has 3 elements, sendbuf 4; wanted . times as many",
        ),
        "type": (
            lambda f, c: f(X, np.empty(4 * c.size, "f4")),
            ValueError,
            r"recvbuf has \d+ bytes, sendbuf 32; wanted . times as many",
        ),
        "read-only": (
            lambda f, c: f(X, read_only(4 * c.size)),
            BufferError,
            "recvbuf is read-only",
        ),
        "read-only in place": (
            lambda f, c: f(IN_PLACE, read_only(4 * c.size)),
            BufferError,
            "recvbuf is read-only",
        ),
    },
    "Allgatherv": {
        "own count": (
            lambda f, c: f(X, [np.empty(9 * c.size), [3] * c.size]),
            ValueError,
            "sendbuf has 4 elements; wanted 3",
        ),
        "beyond": (
            lambda f, c: f(X, [np.empty(3), [4] * c.size]),
            ValueError,
            "recvbuf holds 3 elements of float64, and rank 0 has 4 from element 0 on",
        ),
        "displacement": (
            lambda f, c: f(X, [np.empty(4 * c.size), ([4] * c.size, [9 * c.size] * c.size)]),
            ValueError,
            r"recvbuf holds \d+ elements of float64, and rank 0 has 4 from element \d+ on",
        ),
        "length": (
            lambda f, c: f(X, [np.empty(4 * c.size), [4] * (c.size + 1)]),
            ValueError,
            r"counts of recvbuf is \[4.*; wanted \d numbers",
        ),
        "read-only": (
            lambda f, c: f(X, read_only(4 * c.size)),
            BufferError,
            "recvbuf is read-only",
        ),
        "read-only with gaps": (
            lambda f, c: f(
                X, [read_only(9 * c.size), ([4] * c.size, [5 * rank + 1 for rank in range(c.size)])]
            ),
            BufferError,
            "recvbuf is read-only",
        ),
    },
    "Bcast": {
        "root": (lambda f, c: f(X.copy(), c.size), ValueError, "root is .; wanted a rank from 0"),
        "root type": (lambda f, c: f(X.copy(), 0.5), TypeError, "root is 0.5 of type float"),
    },
}


def check_next(comm):
    """Check that collectives on the communicator are right."""
    x = mine(comm, 500)
    same(hpccoll.allreduce(x, comm=comm), total(comm, 500))
    out = np.empty(500)
    hpccoll.Comm(comm).Reduce(x, out)
    if comm.rank == 0:
        same(out, total(comm, 500))


def check_error(comm, door, case, call):
    make, error, text = case
    with pytest.raises(error, match=text) as caught:
        make(call, comm)
    assert type(caught.value) is error
    assert str(caught.value).startswith(f"{door}: ")
    assert str(caught.value).endswith(f"(rank {comm.rank} of {comm.size})")


def pairs(table):
    return [(door, name) for door, cases in table.items() for name in cases]


@pytest.mark.parametrize(("door", "name"), pairs(FUNCTIONS))
def test_a_function_refuses(comm, door, name):
    def call(*args, **options):
        return getattr(hpccoll, door)(*args, comm=comm, **options)

    for comm_has_been_used in (False, True):
        if comm.rank == 0 or not comm_has_been_used:
            check_error(comm, door, FUNCTIONS[door][name], call)
        check_next(comm)


@pytest.mark.parametrize(("door", "name"), pairs(METHODS))
def test_a_method_refuses(comm, door, name):
    wrapped = hpccoll.Comm(comm)
    for comm_has_been_used in (False, True):
        if comm.rank == 0 or not comm_has_been_used:
            check_error(wrapped, door, METHODS[door][name], getattr(wrapped, door))
            assert wrapped.last_call is None
        check_next(comm)


@pytest.mark.mpi(min_size=2)
def test_what_only_some_ranks_may_not_do(comm):
    wrapped = hpccoll.Comm(comm)
    other = (comm.rank + 1) % comm.size
    x = np.zeros(4)
    for shown, sendbuf in (("MPI.IN_PLACE", IN_PLACE), ("None", None)):
        case = (
            lambda f, c, sendbuf=sendbuf: f(sendbuf, x, root=other),
            ValueError,
            f"sendbuf is {shown}; wanted a buffer, as this is not the root",
        )
        check_error(wrapped, "Reduce", case, wrapped.Reduce)
    case = (lambda f, c: f(read_only(), other), BufferError, "buf is read-only")
    check_error(wrapped, "Bcast", case, wrapped.Bcast)
    case = (lambda f, c: f(read_only(), other, comm=c), BufferError, "x is read-only")
    check_error(comm, "broadcast", case, hpccoll.broadcast)
    case = (
        lambda f, c: f(IN_PLACE, np.zeros(2 * c.size + 1)),
        ValueError,
        r"recvbuf has \d+ elements; wanted a multiple of",
    )
    check_error(wrapped, "Reduce_scatter_block", case, wrapped.Reduce_scatter_block)
    check_error(wrapped, "Allgather", case, wrapped.Allgather)
    check_next(comm)


def test_repeated_calls_are_checked_like_the_first(comm):
    wrapped = hpccoll.Comm(comm)
    x, whole = np.zeros(4), np.zeros(4 * comm.size)
    wrapped.Allgather(x, whole)
    wrapped.Reduce_scatter_block(whole, x)
    wrapped.Bcast(x)
    wrapped.Reduce(x, x.copy())
    wrapped.Reduce(x, x.copy(), root=comm.size - 1)
    for door in ("Reduce", "Reduce_scatter_block", "Allgather", "Bcast"):
        for case in METHODS[door].values():
            check_error(wrapped, door, case, getattr(wrapped, door))
    check_next(comm)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("count", [2, 5000])
def test_a_whole_vector_to_gather_is_refused_after_a_call_in_place(comm, count):
    wrapped = hpccoll.Comm(comm)
    whole = np.zeros(count * comm.size)
    for _ in range(2):
        wrapped.Allgather(IN_PLACE, whole)
        for wrong in (np.ones_like(whole), whole):
            with pytest.raises(ValueError, match="times as many"):
                wrapped.Allgather(wrong, whole)
    check_next(comm)


@pytest.mark.mpi(min_size=2)
def test_allgather_tells_all_ranks_of_rows_that_do_not_fit(comm):
    odd = comm.rank == comm.size - 1
    for x in (
        np.zeros((2, 4) if odd else (2, 3)),
        np.zeros(3, "f4" if odd else "f8"),
        np.zeros((2, 1)) if odd else np.zeros(2),
        np.zeros((1, 3), "i4") if odd else np.zeros((5, 3), "u4"),
    ):
        for _ in range(2):
            with pytest.raises(ValueError, match=r"^allgather: x has rows of shape .* and type"):
                hpccoll.allgather(x, comm=comm)
        check_next(comm)
    # One byte order or another is no difference.
    x = np.arange(3.0).astype(">f8" if odd else "<f8")
    result = hpccoll.allgather(x, comm=comm)
    assert result.tolist() == [0.0, 1.0, 2.0] * comm.size
    assert result.dtype == x.dtype


@pytest.mark.parametrize("wrong", ["number", "null", "inter"])
def test_what_is_no_communicator_is_refused(comm, wrong):
    calls = {
        "reduce_scatter": lambda c: hpccoll.reduce_scatter(X, comm=c),
        "allgather": lambda c: hpccoll.allgather(X, comm=c),
        "reduce": lambda c: hpccoll.reduce(X, comm=c),
        "broadcast": lambda c: hpccoll.broadcast(X.copy(), comm=c),
        "barrier": hpccoll.barrier,
    }
    if wrong == "inter":
        if comm.size == 1:
            return
        half = comm.Split(comm.rank % 2, comm.rank)
        inter = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
        half.Free()
    for door, call in calls.items():
        if wrong == "number":
            with pytest.raises(TypeError, match=rf"^{door}: comm is of type int; wanted an mpi4py"):
                call(3)
        elif wrong == "null":
            with pytest.raises(ValueError, match=rf"^{door}: comm is MPI\.COMM_NULL"):
                call(MPI.COMM_NULL)
        else:
            with pytest.raises(TypeError, match=rf"^{door}: comm is an intercommunicator"):
                call(inter)
    if wrong == "inter":
        inter.Free()
    freed = hpccoll.Comm(comm).Dup()
    freed.Barrier()
    freed.Free()
    for call in (
        lambda: freed.Allgather(X, X),
        lambda: freed.Bcast(X),
        lambda: freed.Reduce(X, X),
        lambda: freed.Reduce_scatter(X, X),
        lambda: freed.Barrier(),
    ):
        with pytest.raises((ValueError, MPI.Exception), match=r"(?i)null"):
            call()
    check_next(comm)


@pytest.mark.parametrize("name", ["ring", "binomial", "two_level", "reduce_scatter_gather"])
def test_a_communicator_s_algorithm_is_for_those_that_have_it(comm, name):
    """Others choose for themselves: one communicator names one algorithm for all collectives."""
    random_calls(hpccoll.Comm(comm, algorithm=name), random.Random(1), 40)
    wrapped = hpccoll.Comm(comm, algorithm=name)
    x, out = np.ones(10), np.empty(10 * comm.size)
    wrapped.Reduce(x, out[:10])
    assert (wrapped.last_call.algorithm == name) == (name in names("reduce"))
    wrapped.Allgather(x, out)
    assert (wrapped.last_call.algorithm == name) == (name in names("allgather"))
    assert (out == 1).all()


# Ranks that disagree.


def disagree(comm, call, starts):
    """Make a call that is another one on some ranks; after it, calls are right again.

    Where messages meet, ranks get ValueError. Who only sent learns of it in the next call.
    """
    raised = None
    try:
        call()
    except ValueError as error:
        raised = str(error)
    x = np.full(100, comm.rank + 1.0)
    if raised is None:
        with pytest.raises(
            ValueError, match=r"^allreduce: (expected .*|ranks make )different calls"
        ):
            hpccoll.allreduce(x, comm=comm, algorithm="naive_root")
    else:
        if "ranks make different calls: rank" in raised:  # all ranks say the same
            starts = starts.replace("expected ", "ranks make ")
            assert raised.count(" elements of ") == 2
        else:
            assert f"(rank {comm.rank} of {comm.size}, " in raised
        assert raised.startswith(starts), raised
    for name in ("naive_root", "circulant"):
        result = hpccoll.allreduce(x, comm=comm, algorithm=name)
        assert (result == comm.size * (comm.size + 1) // 2).all()
    check_next(comm)
    return raised


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("odd", ["first", "last"])
@pytest.mark.parametrize(("collective", "name"), ALL[:])
def test_a_rank_with_another_count(comm, collective, name, odd):
    if name == "auto":
        name = None
    odd_rank = 0 if odd == "first" else comm.size - 1
    wrapped = hpccoll.Comm(comm, algorithm=name or "auto")
    for usual, other in ((100, 50), (50, 100), (3, 2), (100, 0), (30000, 15000)):
        count = other if comm.rank == odd_rank else usual
        chunk, whole = np.zeros(count, "f4"), np.zeros(count * comm.size, "f4")
        calls = {
            "reduce_scatter": lambda chunk=chunk, whole=whole: wrapped.Reduce_scatter_block(
                whole, chunk
            ),
            "allgather": lambda chunk=chunk, whole=whole: wrapped.Allgather(chunk, whole),
            "reduce": lambda chunk=chunk: wrapped.Reduce(chunk, chunk.copy()),
            "broadcast": lambda chunk=chunk: wrapped.Bcast(chunk),
        }
        door = {
            "reduce_scatter": "Reduce_scatter_block",
            "allgather": "Allgather",
            "reduce": "Reduce",
            "broadcast": "Bcast",
        }[collective]
        raised = disagree(comm, calls[collective], f"{door}: expected ")
        assert any(comm.allgather(raised is not None))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["ring", "circulant"])
@pytest.mark.parametrize("collective", ["reduce_scatter", "allgather"])
def test_a_rank_with_other_counts(comm, collective, name):
    size, rank = comm.size, comm.rank
    counts = [10] * size
    if rank == 1:
        counts[0], counts[-1] = 11, 9
    if collective == "allgather":
        x = np.zeros(counts[rank])
        call = lambda: hpccoll.allgather(x, counts=counts, comm=comm, algorithm=name)  # noqa: E731
    else:
        x = np.zeros(10 * size)
        call = lambda: hpccoll.reduce_scatter(x, counts=counts, comm=comm, algorithm=name)  # noqa: E731
    raised = disagree(comm, call, f"{collective}: expected ")
    assert any(comm.allgather(raised is not None))


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("name", [entry.name for entry in algorithms("reduce")])
def test_a_rank_that_sends_to_another_root(comm, name):
    root = 2 if comm.rank == 1 else 0
    x = np.zeros(100)
    disagree(
        comm,
        lambda: hpccoll.reduce(x, "sum", root, comm=comm, algorithm=name),
        "reduce: expected ",
    )


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", [entry.name for entry in algorithms("broadcast")])
def test_two_ranks_that_are_the_root_of_a_broadcast(comm, name):
    root = 1 if comm.rank == 1 else 0
    x = np.zeros(100)
    disagree(
        comm,
        lambda: hpccoll.broadcast(x, root, comm=comm, algorithm=name),
        "broadcast: expected ",
    )


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("odd", ["first", "last"])
def test_a_rank_that_makes_another_call(comm, odd):
    odd_rank = 0 if odd == "first" else comm.size - 1
    x = np.zeros(4 * comm.size)
    options = {"comm": comm, "algorithm": "circulant"}
    calls = {
        "allreduce": lambda: hpccoll.allreduce(x, **options),
        "reduce_scatter": lambda: hpccoll.reduce_scatter(x, **options),
    }
    if comm.size <= 3:  # with more, ranks may wait for each other: no two messages meet
        calls["allgather"] = lambda: hpccoll.allgather(
            x[:4].copy(), counts=[4] * comm.size, **options
        )
    for usual, other in itertools.permutations(calls, 2):
        name = other if comm.rank == odd_rank else usual
        raised = disagree(comm, calls[name], f"{name}: expected ")
        assert any(comm.allgather(raised is not None))


@pytest.mark.mpi(min_size=2)
def test_a_rank_with_another_type_or_operation(comm):
    odd = comm.rank == comm.size - 1
    x, y = np.ones(4 * comm.size, "i4" if odd else "f4"), np.ones(4 * comm.size, "f4")
    for call, door in (
        (lambda: hpccoll.reduce_scatter(x, comm=comm, algorithm="ring"), "reduce_scatter"),
        (lambda: hpccoll.reduce_scatter(y, "max" if odd else "sum", comm=comm, algorithm="ring"),
         "reduce_scatter"),
        (lambda: hpccoll.allgather(x, counts=[4 * comm.size] * comm.size, comm=comm,
                                   algorithm="ring"), "allgather"),
        (lambda: hpccoll.reduce(x, comm=comm, algorithm="binomial"), "reduce"),
        (lambda: hpccoll.broadcast(x, comm=comm, algorithm="binomial"), "broadcast"),
    ):  # fmt: skip
        raised = disagree(comm, call, f"{door}: expected ")
        assert any(comm.allgather(raised is not None))
