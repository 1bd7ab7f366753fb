"""Buffer forms mean what they mean to mpi4py: the two do the same with the same arguments."""

import numpy as np
import pytest
from inputs import contribution, expected
from mpi4py import MPI

import hpccoll


def first(comm):
    """Return 12 numbers of a rank; sums of them are exact."""
    return np.arange(1.0, 13) * (comm.rank + 1)


# name: what to make of an array x of 12 numbers as a send buffer, and as a receive buffer.
FORMS = {
    "array": (lambda x: x, lambda x: x),
    "datatype": (lambda x: [x, MPI.DOUBLE], lambda x: [x, MPI.DOUBLE]),
    "tuples": (lambda x: (x, MPI.DOUBLE), lambda x: (x, 12, MPI.DOUBLE)),
    "code": (lambda x: [x, "d"], lambda x: [x, 12, "d"]),
    "count": (lambda x: [x, 5], lambda x: [x, 5]),
    "count of an array": (lambda x: [x, 12], lambda x: x),
    "numpy count": (lambda x: [x, np.int64(5)], lambda x: [x, np.int32(5)]),
    "displacement": (lambda x: [x, (5, 2)], lambda x: [x, (5, 7)]),
    "displacement only": (lambda x: [x, (None, 4)], lambda x: [x, (None, 4)]),
    "all three": (lambda x: [x, (5, 2), MPI.DOUBLE], lambda x: [x, (5, 0), MPI.DOUBLE]),
    "all four": (lambda x: [x, 5, 2, MPI.DOUBLE], lambda x: [x, 5, 0, MPI.DOUBLE]),
    "no count": (lambda x: [x, None, MPI.DOUBLE], lambda x: [x, None, MPI.DOUBLE]),
    "no elements": (lambda x: [x, 0], lambda x: [x, 0]),
    "no elements, far": (lambda x: [x, (0, 12)], lambda x: [x, (0, 12), MPI.DOUBLE]),
    "bytes": (lambda x: [x.view("u1"), MPI.DOUBLE], lambda x: [x.view("u1"), 12, MPI.DOUBLE]),
    "bytes of an object": (lambda x: [bytearray(x), MPI.DOUBLE], lambda x: x),
    "other type": (lambda x: [x, MPI.INT32_T], lambda x: [x, MPI.INT32_T]),
    "part of another type": (lambda x: [x, (3, 5), "i"], lambda x: [x, (3, 1), "i"]),
    "complex": (lambda x: [x, MPI.C_DOUBLE_COMPLEX], lambda x: [x, MPI.C_DOUBLE_COMPLEX]),
    "matrix": (lambda x: x.reshape(3, 4), lambda x: x.reshape(4, 3)),
    "part of a matrix": (lambda x: [x.reshape(3, 4), 7], lambda x: [x.reshape(4, 3), 7]),
    "in place": (lambda x: MPI.IN_PLACE, lambda x: x),
    "in place, none": (lambda x: None, lambda x: [x, (5, 3), MPI.DOUBLE]),
    "memoryview": (memoryview, memoryview),
    "negative count": (lambda x: [x, -1], lambda x: [x, -1]),
    "negative displacement": (lambda x: [x, (5, -1)], lambda x: [x, (5, -1)]),
    "a part of an element": (lambda x: [x.view("u1")[:-1], MPI.DOUBLE], lambda x: [x, 11]),
    "a part of an element, too": (
        lambda x: [x[:11], MPI.DOUBLE],
        lambda x: [x.view("u1")[:-1], MPI.DOUBLE],
    ),
    "list of numbers": (lambda x: [1.0, 2.0], lambda x: x),
    "nothing to receive": (lambda x: x, lambda x: None),
    "no code": (lambda x: [x, "no such code"], lambda x: x),
    "one item": (lambda x: [x], lambda x: [x]),
    "five items": (lambda x: [x, 5, 0, 0, MPI.DOUBLE], lambda x: x),
    "derived": (lambda x: [x, 3, PAIRS], lambda x: [x, 3, PAIRS]),
    "gaps with a type": (lambda x: [x.repeat(2)[::2], MPI.DOUBLE], lambda x: x),
}

PAIRS = MPI.DOUBLE.Create_contiguous(2).Commit()


def attempt(comm, form):
    """Return what a call did: the receiver's 12 numbers, or the exception."""
    send, receive = FORMS[form]
    x, out = first(comm), np.linspace(100, 200, 12) * (comm.rank + 1)
    try:
        comm.Allreduce(send(x), receive(out))
    except Exception as error:
        return error
    assert (x == first(comm)).all()
    return out


@pytest.mark.parametrize("form", FORMS)
def test_a_form_does_what_it_does_in_mpi4py(comm, form):
    theirs = attempt(comm, form)
    wrapped = hpccoll.Comm(comm)
    ours = attempt(wrapped, form)
    if isinstance(theirs, Exception):
        assert isinstance(ours, (type(theirs), ValueError)), (theirs, ours)
    else:
        assert not isinstance(ours, Exception), ours
        np.testing.assert_array_equal(ours, theirs)
    # Whatever came of it, the communicator is as good as before.
    x = np.full(3, comm.rank + 1.0)
    wrapped.Allreduce(MPI.IN_PLACE, x)
    assert (x == comm.size * (comm.size + 1) // 2).all()


@pytest.mark.parametrize(
    "form", ["datatype", "count", "displacement", "all four", "bytes", "other type", "memoryview"]
)
def test_these_forms_need_no_help_from_mpi(comm, form):
    wrapped = hpccoll.Comm(comm)
    assert not isinstance(attempt(wrapped, form), Exception)
    assert wrapped.last_call.path != "native"


def test_a_part_of_the_buffer_is_all_that_changes(comm):
    wrapped = hpccoll.Comm(comm)
    count = 2000
    for start, stop in ((3, 10), (100, 1900)):
        x = contribution(comm.rank, count, "float64", "sum", comm.size)
        out = x.copy()
        part = (stop - start, start)
        for sendbuf in ([x, part], MPI.IN_PLACE):
            out[:] = x
            wrapped.Allreduce(sendbuf, [out, part, MPI.DOUBLE])
            wanted = x.copy()
            wanted[start:stop] = expected(count, "float64", "sum", comm.size)[start:stop]
            np.testing.assert_array_equal(out, wanted)


@pytest.mark.parametrize("part", [(None, 2), [None, 2], (None, 0)])
def test_blocks_without_a_count_begin_at_the_displacement(comm, part):
    wrapped, size, start = hpccoll.Comm(comm), comm.size, part[1]
    x = contribution(comm.rank, 3, "float64", "sum", size)
    for call in (comm.Allgather, wrapped.Allgather):
        out = np.full(start + 3 * size, -1.0)
        call(x, [out, part, MPI.DOUBLE])
        wanted = [contribution(rank, 3, "float64", "sum", size) for rank in range(size)]
        np.testing.assert_array_equal(out, [-1] * start + np.concatenate(wanted).tolist())
    whole = contribution(comm.rank, start + 3 * size, "float64", "sum", size)
    for call in (comm.Reduce_scatter_block, wrapped.Reduce_scatter_block):
        result = np.empty(3)
        call([whole, part], result)
        total = expected(start + 3 * size, "float64", "sum", size)[start:]
        np.testing.assert_array_equal(result, total[3 * comm.rank :][:3])
    assert wrapped.last_call.path != "native"


@pytest.mark.parametrize("form", ["array and type", "array and count", "all"])
def test_fortran_order_with_a_type_or_count_pairs_by_index_or_is_refused(comm, form):
    # mpi4py pairs by memory here, which gives a wrong answer where the other side has C order.
    make = {
        "array and type": lambda a: [a, MPI.DOUBLE],
        "array and count": lambda a: [a, a.size],
        "all": lambda a: [a, a.size, MPI.DOUBLE],
    }[form]
    values = contribution(comm.rank, 12, "float64", "sum", comm.size).reshape(3, 4)
    wanted = expected(12, "float64", "sum", comm.size).reshape(3, 4)
    wrapped = hpccoll.Comm(comm)
    out = np.empty((3, 4))
    try:
        wrapped.Allreduce(make(np.asfortranarray(values)), make(out))
    except (TypeError, ValueError, BufferError):
        return
    np.testing.assert_array_equal(out, wanted)
