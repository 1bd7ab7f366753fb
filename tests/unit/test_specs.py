"""mpi4py's buffer forms: what of_spec makes of them, and what it leaves to mpi4py.

That the forms mean what they mean to mpi4py is tested in tests/mpi/test_specs.py.
"""

import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import buffers


def numbers():
    return np.arange(12.0)


FORMS = {
    "[x, type]": (lambda x: [x, MPI.DOUBLE], slice(None)),
    "(x, type)": (lambda x: (x, MPI.DOUBLE), slice(None)),
    "[x, code]": (lambda x: [x, "d"], slice(None)),
    "[x, count]": (lambda x: [x, 5], slice(5)),
    "[x, numpy count]": (lambda x: [x, np.int32(5)], slice(5)),
    "[x, (count, displacement)]": (lambda x: [x, (5, 2)], slice(2, 7)),
    "[x, (None, displacement)]": (lambda x: [x, (None, 2)], slice(2, None)),
    "[x, [count, displacement]]": (lambda x: [x, [5, 2]], slice(2, 7)),
    "[x, count, type]": (lambda x: [x, 5, MPI.DOUBLE], slice(5)),
    "[x, None, type]": (lambda x: [x, None, MPI.DOUBLE], slice(None)),
    "[x, count, code]": (lambda x: [x, 5, "d"], slice(5)),
    "[x, (count, displacement), type]": (lambda x: [x, (5, 2), MPI.DOUBLE], slice(2, 7)),
    "[x, count, displacement, type]": (lambda x: [x, 5, 2, MPI.DOUBLE], slice(2, 7)),
    "[x, count, None, type]": (lambda x: [x, 5, None, MPI.DOUBLE], slice(5)),
    "[x, all, type]": (lambda x: [x, 12, MPI.DOUBLE], slice(None)),
    "[x, nothing]": (lambda x: [x, 0], slice(0)),
    "[x, nothing at the end]": (lambda x: [x, (0, 12)], slice(0)),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_form_shows_its_part_of_the_memory(form):
    make, part = FORMS[form]
    x = numbers()
    view = buffers.of_spec(make(x))
    assert type(view) is np.ndarray
    assert view.dtype == x.dtype
    assert view.tolist() == x[part].tolist()
    view[...] = -1
    untouched = numbers()
    untouched[part] = -1
    assert x.tolist() == untouched.tolist()


@pytest.mark.parametrize(
    ("make", "values"),
    [
        (lambda x: [x.view("u1"), MPI.DOUBLE], list(range(12))),
        (lambda x: [x.view("u1"), 3, MPI.DOUBLE], [0, 1, 2]),
        (lambda x: [memoryview(x), (2, 9), MPI.DOUBLE], [9, 10]),
        (lambda x: [x.reshape(3, 4), (2, 3)], [3, 4]),
        (lambda x: [x.reshape(3, 4), (2, 3), MPI.DOUBLE], [3, 4]),
        (lambda x: [x, (4, 2), MPI.INT32_T], np.arange(12.0).view("i4")[2:6].tolist()),
        (lambda x: [x, MPI.C_DOUBLE_COMPLEX], np.arange(12.0).view("c16").tolist()),
    ],
)
def test_the_given_type_replaces_that_of_the_buffer(make, values):
    x = numbers()
    view = buffers.of_spec(make(x))
    assert view.ndim == 1
    assert view.tolist() == values
    assert np.shares_memory(view, x)


def test_scalars_and_empty_arrays_have_forms_too():
    x = np.array(3.0)
    view = buffers.of_spec([x, MPI.DOUBLE])
    assert view.tolist() == [3.0]
    assert np.shares_memory(view, x)
    assert buffers.of_spec([np.empty(0), MPI.DOUBLE]).tolist() == []
    assert buffers.of_spec([np.empty((0, 3)), 0, MPI.DOUBLE]).tolist() == []


def test_an_odd_address_is_no_obstacle():
    memory = bytearray(8 * 3 + 1)
    x = np.frombuffer(memory, "u1", offset=1)
    view = buffers.of_spec([x, MPI.DOUBLE])
    view[...] = [1, 2, 3]
    assert not view.flags.aligned
    assert np.frombuffer(memory, "f8", offset=1).tolist() == [1, 2, 3]


@pytest.mark.parametrize("code", ["d", "f", "i", "q", "b", "B", "?", "F", "D", "h"])
def test_codes_and_datatypes_are_understood_alike(code):
    memory = np.arange(48, dtype="u1") % 2
    view = buffers.of_spec([memory, code])
    assert view.dtype == np.dtype(code)
    assert view.size == 48 // np.dtype(code).itemsize
    other = buffers.of_spec([memory, MPI.Datatype.fromcode(code)])
    assert other.dtype == view.dtype
    assert other.tobytes() == view.tobytes() == memory.tobytes()


def derived():
    return MPI.DOUBLE.Create_vector(2, 1, 3).Commit()


BEYOND = {
    "too many elements": lambda x: [x, 13],
    "too far": lambda x: [x, (5, 8)],
    "too many of a wider type": lambda x: [x, 7, MPI.C_DOUBLE_COMPLEX],
}


@pytest.mark.parametrize("form", BEYOND)
def test_what_lies_beyond_the_buffer_is_refused(form):
    with pytest.raises(ValueError, match=r"the buffer holds \d+ elements of"):
        buffers.of_spec(BEYOND[form](numbers()))


LEFT = {
    "displacement past the end": lambda x: [x, (None, 13)],
    "negative count": lambda x: [x, -1],
    "negative displacement": lambda x: [x, (2, -1)],
    "a part of an element": lambda x: [x.view("u1")[:-1], MPI.DOUBLE],
    "one item": lambda x: [x],
    "five items": lambda x: [x, 1, 0, 0, MPI.DOUBLE],
    "no items": lambda x: [],
    "a count that is no integer": lambda x: [x, 5.0],
    "three numbers": lambda x: [x, (1, 2, 3)],
    "a list of numbers": lambda x: [1, 2],
    "no buffer": lambda x: [None, 5, MPI.DOUBLE],
    "nothing": lambda x: None,
    "an object": lambda x: object(),
    "bottom": lambda x: [MPI.BOTTOM, 1, MPI.DOUBLE],
    "a pair type": lambda x: [x, MPI.DOUBLE_INT],
    "characters": lambda x: [x, MPI.CHAR],
    "gaps with a type": lambda x: [x[::2], MPI.DOUBLE],
    "gaps with a count": lambda x: [x[::2], 3],
}


@pytest.mark.parametrize("form", LEFT)
def test_what_hpccoll_does_not_understand_is_left_to_mpi4py(form):
    assert buffers.of_spec(LEFT[form](numbers())) is None


def test_derived_datatypes_are_left_to_mpi4py():
    vector = derived()
    try:
        assert buffers.of_spec([numbers(), 1, vector]) is None
    finally:
        vector.Free()


def test_same_memory_needs_equal_addresses_and_equal_meaning():
    x = np.arange(12.0)
    square = np.arange(9.0).reshape(3, 3)
    same = buffers.same_memory
    assert same(x, x)
    assert same(x, x[:])
    assert same(x[::2], x[::2])
    assert not same(x, x[:-1])
    assert not same(x[1:], x[:-1])
    assert not same(x, x[::-1])
    assert not same(square, square.T)
    assert not same(x, x.reshape(3, 4))
    assert not same(x, x.view("i8"))
    assert not same(x, x.view(x.dtype.newbyteorder()))
    assert not same(x, x.copy())


def test_plain_is_contiguous_aligned_and_native():
    x = np.arange(12.0).reshape(3, 4)
    plain = buffers.is_plain
    assert plain(x)
    assert plain(x[1:])
    assert plain(np.array(1.0))
    assert not plain(x.T)
    assert not plain(x[:, ::2])
    assert not plain(x.astype(x.dtype.newbyteorder()))
    assert not plain(np.frombuffer(bytearray(17), "f8", offset=1))
