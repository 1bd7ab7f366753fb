"""The doors, at one rank: any arrays through functions and methods, and any of mpi4py's forms.

A form that mpi4py takes means the same here; some that it refuses mean something, too.
"""

import os

import numpy as np
import pytest
from fuzz import data
from fuzz.interpreter import Rank
from fuzz.normal import FORMS_OF_BUFFERS, SCALARS, normal
from fuzz.places import NAMES as LAYOUTS
from fuzz.steps import Call, Environment
from hypothesis import given, settings
from hypothesis import strategies as st
from mpi4py import MPI

import hpccoll
from hpccoll import buffers
from hpccoll.algorithms import COLLECTIVES

layouts = st.sampled_from(LAYOUTS)
lengths = st.one_of(st.integers(0, 9), st.integers(0, 200))


@st.composite
def calls(draw, collective, door):
    """Draw a call of any arrays."""
    dtype = draw(st.sampled_from((*data.COMMON, *data.RARE)))
    rows = tuple(draw(st.lists(lengths, max_size=1)))
    return normal(
        Call(
            collective,
            door=door,
            form=draw(st.sampled_from(("blocking", "begun", "prepared"))),
            number=1,
            dtype=dtype,
            op=draw(st.sampled_from(data.operations_of(dtype))),
            rows=rows,
            rest=tuple(draw(st.lists(st.integers(0, 4), max_size=3))) if rows else (),
            where=draw(st.sampled_from(("new", "apart", "in place", "overlap"))),
            shift=draw(st.integers(-9, 9)),
            source=draw(st.one_of(layouts, st.sampled_from(SCALARS))),
            target=draw(layouts),
            shared=draw(st.sampled_from(("none", "all"))),
            readonly=draw(st.booleans()),
            form_of_buffer=draw(st.sampled_from(FORMS_OF_BUFFERS)),
            counts=draw(st.booleans()),
            vector=draw(st.booleans()),
            displaced=draw(st.booleans()),
            mpi_op=draw(st.booleans()),
            times=draw(st.integers(1, 2)),
            seed=draw(st.integers(0, 9)),
        )
    )


@pytest.fixture(scope="module", name="rank")
def one_rank():
    """Give one rank, with a communicator of its own."""
    before = dict(os.environ)
    rank = Rank(MPI.COMM_SELF, Environment())
    yield rank
    rank.close()
    os.environ.clear()
    os.environ.update(before)


@pytest.mark.parametrize("door", ["function", "method"])
@pytest.mark.parametrize("collective", [name for name in COLLECTIVES if name != "barrier"])
@settings(max_examples=60)
@given(drawn=st.data())
def test_any_arrays(rank, collective, door, drawn):
    call = drawn.draw(calls(collective, door))
    assert rank.run([call]).errors == []


# mpi4py's forms.

TYPES = (MPI.DOUBLE, MPI.INT32_T, "d", "i", "no such code")
numbers = st.one_of(st.none(), st.integers(-1, 14))


@st.composite
def forms(draw):
    """Draw what makes a form out of an array of 12 numbers."""
    view = draw(st.sampled_from(("array", "matrix", "bytes", "memoryview")))
    count, displacement = draw(numbers), draw(numbers)
    middle = draw(
        st.sampled_from(
            (
                (),
                (count,),
                ((count, displacement),),
                ([count, displacement],),
                (count, displacement),
                ((count,),),
            )
        )
    )
    datatype = draw(st.lists(st.sampled_from(TYPES), max_size=1))
    parts = (view, middle, tuple(datatype))
    return parts if middle or datatype else (view,)


def made(form, array):
    """Return a form of a buffer."""
    views = {
        "array": lambda: array,
        "matrix": lambda: array.reshape(3, 4),
        "bytes": lambda: array.view(np.uint8),
        "memoryview": lambda: memoryview(array),
    }
    view = views[form[0]]()
    return view if len(form) == 1 else [view, *form[1], *form[2]]


def in_the_middle(values, filler=0.0):
    """Return an array in the middle of a larger one, and that: mpi4py goes beyond the ends."""
    wide = np.full(60, filler)
    wide[24:36] = values
    return wide[24:36], wide


def outcome(call, send, receive):
    """Return what a call did to the receiver, or what it raised."""
    x, before = in_the_middle(np.linspace(1, 12, 12))
    out, after = in_the_middle(np.linspace(100, 200, 12))
    kept = before.copy()
    try:
        call(made(send, x), made(receive, out))
    except Exception as error:
        return error
    assert (before == kept).all()
    return after


def sent(form, filler=0.0):
    """Return the bytes that a form names, as mpi4py sends them; None where it refuses."""
    room, status = np.zeros(1000, np.uint8), MPI.Status()
    array, _ = in_the_middle(np.linspace(1, 12, 12), filler)
    try:
        MPI.COMM_SELF.Sendrecv(made(form, array), 0, 0, [room, MPI.BYTE], 0, 0, status)
    except Exception:
        return None
    return room[: status.Get_count(MPI.BYTE)].tobytes()


def goes_beyond(form):
    """Whether a form, to mpi4py, names what lies beside the array."""
    return sent(form, 3.0) != sent(form, 4.0)


REFUSED = (TypeError, ValueError, BufferError, KeyError)


@settings(max_examples=300)
@given(forms())
def test_any_form_names_what_it_names_in_mpi4py(form):
    theirs = None if goes_beyond(form) else sent(form)
    try:
        ours = buffers.of_spec(made(form, np.linspace(1, 12, 12)))
    except REFUSED:
        assert theirs is None
        return
    if ours is None:  # left to the MPI library
        assert not goes_beyond(form)
    elif theirs is not None:
        assert ours.tobytes() == theirs


@settings(max_examples=300)
@given(forms(), forms())
@pytest.mark.parametrize("name", ["Allreduce", "Allgather", "Reduce_scatter_block"])
def test_any_form_does_what_it_does_in_mpi4py(name, send, receive):
    plain = MPI.COMM_SELF
    ours = outcome(getattr(hpccoll.Comm(plain), name), send, receive)
    both = sent(send), sent(receive)
    if goes_beyond(send) or goes_beyond(receive):
        assert isinstance(ours, REFUSED)
    elif name == "Allreduce" or None in both or len(both[0]) == len(both[1]):
        theirs = outcome(getattr(plain, name), send, receive)
        if isinstance(ours, Exception):
            assert isinstance(theirs, Exception), ours
        elif not isinstance(theirs, Exception):
            np.testing.assert_array_equal(ours, theirs)
        else:  # what mpi4py refuses may have a meaning, and stays in its place
            assert (ours[:24] == 0).all()
            assert (ours[36:] == 0).all()


@settings(max_examples=200)
@given(st.data())
def test_any_form_with_a_part_for_each_rank_does_what_it_does_in_mpi4py(data):
    count, start = data.draw(st.integers(-1, 13)), data.draw(st.integers(-1, 13))
    counts = data.draw(st.sampled_from((count, [count], (count,), np.array([count]))))
    starts = data.draw(st.sampled_from((None, start, [start], (start,))))
    datatype = data.draw(st.sampled_from(((), (MPI.DOUBLE,), ("d",))))
    middle = data.draw(st.sampled_from(((counts,), (counts, starts), ((counts, starts),))))
    form = ("array", middle, datatype)
    alone = len(middle) == 1 and middle[0] is counts
    first = 0 if alone or not isinstance(starts, (list, tuple)) else start
    ours = outcome(hpccoll.Comm(MPI.COMM_SELF).Allgatherv, ("array", (max(count, 0),), ()), form)
    if count < 0 or first < 0 or (count and first + count > 12):
        assert isinstance(ours, REFUSED)
        return
    theirs = outcome(MPI.COMM_SELF.Allgatherv, ("array", (count,), ()), form)
    if isinstance(ours, Exception):
        assert isinstance(theirs, Exception), ours
    elif not isinstance(theirs, Exception):
        np.testing.assert_array_equal(ours, theirs)
