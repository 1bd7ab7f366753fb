"""Every layout, through both doors: elements pair up by index, and gaps stay as they were."""

import itertools
import math

import numpy as np
import pytest
from inputs import contribution, expected
from layouts import LAYOUTS, place
from mpi4py import MPI

import hpccoll

NAMES = list(LAYOUTS)
SHAPES = [(), (7,), (0, 3), (1, 5, 1), (2, 3, 4), (41, 37)]
"""The last one is larger than what is staged; some have fewer elements than there are ranks."""

TYPES = ["float64", "int32", "float16", "complex64"]


@pytest.fixture(params=NAMES)
def layout(request):
    return request.param


def mine(comm, shape, dtype="float64", op="sum"):
    return contribution(comm.rank, math.prod(shape), dtype, op, comm.size).reshape(shape)


def total(comm, shape, dtype="float64", op="sum"):
    return expected(math.prod(shape), dtype, op, comm.size).reshape(shape)


def other(layout, comm):
    """Return another layout on each rank."""
    return NAMES[(NAMES.index(layout) + comm.rank) % len(NAMES)]


def check_result(result, comm, shape, dtype="float64"):
    assert result.shape == shape
    assert result.dtype.newbyteorder("=") == dtype
    np.testing.assert_array_equal(result, total(comm, shape, dtype), strict=result.dtype.isnative)


def test_a_new_result_has_the_shape_and_type_of_the_input(comm, layout):
    for shape, dtype in itertools.product(SHAPES, TYPES):
        x = place(layout, mine(comm, shape, dtype))
        result = hpccoll.allreduce(x.array, comm=comm)
        assert type(result) is np.ndarray
        assert result.flags.c_contiguous
        assert result.dtype == x.array.dtype
        check_result(result, comm, shape, dtype)
        np.testing.assert_array_equal(x.array, mine(comm, shape, dtype))
        x.check_gaps()


def test_out_may_have_any_layout(comm, layout):
    for shape, other_layout in itertools.product(SHAPES, NAMES):
        x = place(layout, mine(comm, shape))
        out = place(other_layout, np.full(shape, -1.0))
        assert hpccoll.allreduce(x.array, out=out.array, comm=comm) is out.array
        check_result(out.array, comm, shape)
        np.testing.assert_array_equal(x.array, mine(comm, shape))
        out.check_gaps()
        x.check_gaps()


def test_a_call_in_place_leaves_the_gaps(comm, layout):
    for shape, dtype in itertools.product(SHAPES, TYPES):
        for another_object in (False, True):
            x = place(layout, mine(comm, shape, dtype))
            out = x.array[...] if another_object else x.array
            assert hpccoll.allreduce(x.array, out=out, comm=comm) is out
            check_result(x.array, comm, shape, dtype)
            x.check_gaps()


def test_ranks_may_have_different_layouts(comm, layout):
    for shape, dtype in itertools.product(SHAPES, TYPES):
        x = place(other(layout, comm), mine(comm, shape, dtype))
        check_result(hpccoll.allreduce(x.array, comm=comm), comm, shape, dtype)
        out = place(other(layout, comm), np.zeros(shape, dtype))
        hpccoll.allreduce(mine(comm, shape, dtype), out=out.array, comm=comm)
        check_result(out.array, comm, shape, dtype)
        out.check_gaps()
        hpccoll.allreduce(x.array, out=x.array, comm=comm)
        check_result(x.array, comm, shape, dtype)
        x.check_gaps()


def test_a_read_only_input_is_no_obstacle(comm, layout):
    for shape in SHAPES:
        x = place(layout, mine(comm, shape)).array
        x.flags.writeable = False
        result = hpccoll.allreduce(x, comm=comm)
        assert result.flags.writeable
        check_result(result, comm, shape)
        np.testing.assert_array_equal(x, mine(comm, shape))


def test_comm_allreduce_takes_any_layout(comm, layout):
    comm = hpccoll.Comm(comm)
    for shape, other_layout in itertools.product(SHAPES, NAMES):
        x = place(layout, mine(comm, shape))
        out = place(other_layout, np.full(shape, -1.0))
        for _ in range(2):  # the second call may find the plan of the first
            out.array[...] = -1
            assert comm.Allreduce(x.array, out.array) is None
            check_result(out.array, comm, shape)
        assert comm.last_call.path != "native"
        np.testing.assert_array_equal(x.array, mine(comm, shape))
        out.check_gaps()
        x.check_gaps()


def test_comm_allreduce_in_place_takes_any_layout(comm, layout):
    comm = hpccoll.Comm(comm)
    for shape in SHAPES:
        x = place(other(layout, comm), mine(comm, shape))
        for sendbuf in (MPI.IN_PLACE, None, x.array, x.array[...]):
            for _ in range(2):
                x.array[...] = mine(comm, shape)
                comm.Allreduce(sendbuf, x.array)
                check_result(x.array, comm, shape)
        x.check_gaps()


def test_comm_allreduce_pairs_arrays_of_other_shapes_by_index(comm, layout):
    # mpi4py takes any two buffers of equal count; so does this, in C order on both sides.
    comm = hpccoll.Comm(comm)
    for shape, out_shape in [((3, 4), (12,)), ((12,), (3, 4)), ((2, 3, 4), (4, 6)), ((), (1,))]:
        for out_layout in NAMES:
            x = place(layout, mine(comm, shape))
            out = place(out_layout, np.full(out_shape, -1.0))
            comm.Allreduce(x.array, out.array)
            np.testing.assert_array_equal(out.array, total(comm, shape).reshape(out_shape))
            out.check_gaps()


def test_comm_allreduce_in_place_may_name_the_memory_by_another_shape(comm):
    comm = hpccoll.Comm(comm)
    for shape, out_shape in [((3, 4), (12,)), ((41, 37), (37, 41))]:
        x = mine(comm, shape)
        for _ in range(2):
            x[...] = mine(comm, shape)
            comm.Allreduce(x, x.reshape(out_shape))
            np.testing.assert_array_equal(x, total(comm, shape))


def overlapping(kind, n, size):
    """Return two arrays of n * n elements that share memory, in a way that is not "in place"."""
    memory = np.full(4 * n * n, -1.0)
    square = memory[: n * n].reshape(n, n)
    return {
        "ahead": lambda: (memory[: n * n], memory[n : n * n + n]),
        "behind": lambda: (memory[n : n * n + n], memory[: n * n]),
        "by one": lambda: (memory[: n * n], memory[1 : n * n + 1]),
        "reversed": lambda: (memory[: n * n], memory[: n * n][::-1]),
        "transposed": lambda: (square, square.T),
        "interleaved": lambda: (memory[: 2 * n * n : 2], memory[1 : 2 * n * n + 1 : 2]),
        "every second": lambda: (memory[: n * n], memory[: 2 * n * n : 2]),
        "the other byte order": lambda: (square, square.view(square.dtype.newbyteorder("S"))),
    }[kind]()


@pytest.mark.parametrize("n", [5, 40])
@pytest.mark.parametrize(
    "kind",
    [
        "ahead",
        "behind",
        "by one",
        "reversed",
        "transposed",
        "interleaved",
        "every second",
        "the other byte order",
    ],
)
def test_an_out_that_overlaps_the_input_is_right(comm, kind, n):
    wrapped = hpccoll.Comm(comm)
    for run in (
        lambda x, out: hpccoll.allreduce(x, out=out, comm=comm),
        wrapped.Allreduce,
        wrapped.Allreduce,
    ):
        x, out = overlapping(kind, n, comm.size)
        x[...] = mine(comm, x.shape)
        run(x, out)
        np.testing.assert_array_equal(out, total(comm, x.shape))


def test_an_out_whose_elements_share_memory_is_refused(comm):
    # There is no memory for its result: whatever stood there would be wrong at some index.
    x = mine(comm, (3, 4))
    out = np.lib.stride_tricks.as_strided(np.zeros(4), (3, 4), (0, 8))
    assert out.flags.writeable
    with pytest.raises(ValueError, match=r"out.*overlap"):
        hpccoll.allreduce(x, out=out, comm=comm)
    with pytest.raises(ValueError, match=r"recvbuf.*overlap"):
        hpccoll.Comm(comm).Allreduce(x, out)
    with pytest.raises(ValueError, match=r"recvbuf.*overlap"):
        hpccoll.Comm(comm).Allreduce(MPI.IN_PLACE, out)
    check_result(hpccoll.allreduce(x, comm=comm), comm, (3, 4))


def test_an_input_whose_elements_share_memory_is_right(comm):
    row = mine(comm, (4,))
    x = np.broadcast_to(row, (300, 4))
    wanted = np.broadcast_to(total(comm, (4,)), (300, 4))
    np.testing.assert_array_equal(hpccoll.allreduce(x, comm=comm), wanted)
    out = np.empty((300, 4))
    hpccoll.Comm(comm).Allreduce(x, out)
    np.testing.assert_array_equal(out, wanted)
