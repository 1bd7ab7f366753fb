"""Bad arguments: the error says what is wrong, nothing was sent, and the next call is right.

Each call is made twice: by all ranks on a communicator that has seen none, and by rank 0 alone on
one that has. If it sent or awaited anything there, the next collective would hang or be wrong.
"""

import decimal
import sys

import numpy as np
import pytest
from inputs import contribution, expected
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.transport import MpiTransport


def good():
    return np.arange(4.0)


def read_only():
    x = good()
    x.flags.writeable = False
    return x


class OnDevice:
    __cuda_array_interface__ = {  # noqa: RUF012 - as the protocol has it
        "shape": (4,),
        "typestr": "<f8",
        "data": (0xDEAD0000, False),
        "version": 3,
    }


RECORD = np.dtype([("a", "f8"), ("b", "i4")])

FUNCTION = {
    "list": (lambda f: f([1.0, 2.0]), TypeError, "x is a list"),
    "tuple": (lambda f: f((1.0, 2.0)), TypeError, "x is a tuple"),
    "nothing": (lambda f: f(None), TypeError, "x is of type NoneType"),
    "text": (lambda f: f("text"), TypeError, "x is of type str"),
    "decimal": (lambda f: f(decimal.Decimal(1)), TypeError, "x is .* of type Decimal"),
    "large int": (lambda f: f(10**30), TypeError, "x is 10.* of type int"),
    "objects": (lambda f: f(np.array([1, None])), TypeError, "x has dtype object"),
    "strings": (lambda f: f(np.array(["a"])), TypeError, "x has dtype <U1"),
    "records": (lambda f: f(np.zeros(3, RECORD)), TypeError, "x has dtype .*a.*b"),
    "masked": (lambda f: f(np.ma.masked_less(good(), 2)), TypeError, "x is a masked array"),
    "out list": (lambda f: f(good(), out=[0.0] * 4), TypeError, "out is a list"),
    "out scalar": (lambda f: f(1.0, out=2.0), TypeError, "out is a scalar of type float"),
    "out numpy scalar": (lambda f: f(1.0, out=np.float64(2)), TypeError, "out is a scalar"),
    "out device": (
        lambda f: f(good(), out=OnDevice()),
        TypeError,
        "x lies in host memory, out in that of a GPU",
    ),
    "out shape": (
        lambda f: f(good(), out=np.empty((2, 2))),
        ValueError,
        r"out has shape \(2, 2\), x has \(4,\)",
    ),
    "out dtype": (
        lambda f: f(good(), out=np.empty(4, "f4")),
        TypeError,
        "out has dtype float32, x has float64",
    ),
    "out read-only": (lambda f: f(good(), out=read_only()), BufferError, "out is read-only"),
    "out bytes": (lambda f: f(bytearray(4), out=b"1234"), BufferError, "out is read-only"),
    "unknown op": (lambda f: f(good(), "add"), ValueError, "unknown op 'add'; choose from sum"),
    "no op": (lambda f: f(good(), None), TypeError, "op is None"),
    "null op": (lambda f: f(good(), MPI.OP_NULL), ValueError, "op is MPI.OP_NULL"),
    "MAXLOC": (lambda f: f(good(), MPI.MAXLOC), ValueError, "has no loops here"),
    "bool sum": (lambda f: f(good() > 1), TypeError, "op 'sum' cannot run on bool.*'lor'"),
    "int mean": (lambda f: f(np.arange(4), "mean"), TypeError, "op 'mean' cannot run on int64"),
    "complex max": (lambda f: f(good() * 1j, "max"), TypeError, "no order"),
    "float bor": (lambda f: f(good(), "bor"), TypeError, "op 'bor' cannot run on float64"),
    "dates": (lambda f: f(np.zeros(3, "M8[s]")), TypeError, "op 'sum' cannot run on datetime64"),
    "algorithm": (
        lambda f: f(good(), algorithm="rings"),
        ValueError,
        "unknown algorithm 'rings'; choose",
    ),
    "algorithm type": (lambda f: f(good(), algorithm=3), TypeError, "algorithm is 3 of type int"),
    "segment": (lambda f: f(good(), segment_bytes=0), ValueError, "segment_bytes is 0"),
    "segment type": (lambda f: f(good(), segment_bytes="4K"), TypeError, "segment_bytes is '4K'"),
}

METHOD = {
    "count": (
        lambda f: f(good(), np.empty(3)),
        ValueError,
        "recvbuf has 3 elements, sendbuf has 4",
    ),
    "spec count": (lambda f: f([good(), 2], good()), ValueError, "recvbuf has 4 .* has 2"),
    "dtype": (
        lambda f: f(good(), np.empty(4, "f4")),
        TypeError,
        "recvbuf has dtype float32, sendbuf has float64",
    ),
    "same size": (
        lambda f: f(good(), np.empty(4, "i8")),
        TypeError,
        "recvbuf has dtype int64, sendbuf has float64",
    ),
    "read-only": (lambda f: f(good(), read_only()), BufferError, "recvbuf is read-only"),
    "read-only in place": (
        lambda f: f(MPI.IN_PLACE, read_only()),
        BufferError,
        "recvbuf is read-only",
    ),
    "unknown op": (lambda f: f(good(), good(), "add"), ValueError, "unknown op 'add'"),
    "no op": (lambda f: f(good(), good(), None), TypeError, "op is None"),
    "bool sum": (lambda f: f(good() > 1, good() > 1), TypeError, "cannot run on bool"),
    "int mean": (
        lambda f: f(np.arange(4), np.arange(4), "mean"),
        TypeError,
        "op 'mean' cannot run on int64",
    ),
    "complex min": (lambda f: f(good() * 1j, good() * 1j, MPI.MIN), TypeError, "no order"),
    "mean of objects": (
        lambda f: f(np.array([None]), np.array([None]), "mean"),
        TypeError,
        "op 'mean' needs arrays of numbers",
    ),
    "masked": (
        lambda f: f(np.ma.masked_less(good(), 2), good()),
        TypeError,
        "sendbuf is a masked array",
    ),
    "masked result": (
        lambda f: f(good(), np.ma.masked_less(good(), 2)),
        TypeError,
        "recvbuf is a masked array",
    ),
}


def check_next(comm):
    """Check that a collective on the communicator is right."""
    wanted = expected(500, "float64", "sum", comm.size)
    x = contribution(comm.rank, 500, "float64", "sum", comm.size)
    np.testing.assert_array_equal(hpccoll.allreduce(x, comm=comm), wanted)
    out = np.empty(500)
    hpccoll.Comm(comm).Allreduce(x, out)
    np.testing.assert_array_equal(out, wanted)


def check_error(comm, door, case, call):
    make, error, text = case
    with pytest.raises(error, match=text) as caught:
        make(call)
    assert type(caught.value) is error
    assert str(caught.value).startswith(f"{door}: ")
    assert f"(rank {comm.rank} of {comm.size})" in str(caught.value)


@pytest.mark.parametrize("name", FUNCTION)
def test_the_function_refuses(comm, name):
    def call(*args, **options):
        return hpccoll.allreduce(*args, comm=comm, **options)

    check_error(comm, "allreduce", FUNCTION[name], call)
    check_next(comm)
    if comm.rank == 0:
        check_error(comm, "allreduce", FUNCTION[name], call)
    check_next(comm)


@pytest.mark.parametrize("name", METHOD)
def test_the_method_refuses(comm, name):
    wrapped = hpccoll.Comm(comm)
    check_error(comm, "Allreduce", METHOD[name], wrapped.Allreduce)
    assert wrapped.last_call is None
    check_next(comm)
    if comm.rank == 0:
        check_error(comm, "Allreduce", METHOD[name], wrapped.Allreduce)
    check_next(comm)


@pytest.mark.parametrize("algorithm", ["auto", *ALGORITHMS])
def test_a_call_that_repeats_is_checked_like_the_first(comm, algorithm):
    wrapped = hpccoll.Comm(comm, algorithm=algorithm)
    x, out = good(), good()
    wrapped.Allreduce(x, out)
    done = wrapped.last_call
    if comm.rank == 0:
        out.flags.writeable = False
        check_error(comm, "Allreduce", METHOD["read-only"], lambda *_: wrapped.Allreduce(x, out))
        out.flags.writeable = True
        for name in ("count", "dtype", "same size", "unknown op"):
            check_error(comm, "Allreduce", METHOD[name], wrapped.Allreduce)
        assert wrapped.last_call == done
    wrapped.Allreduce(x, out)
    np.testing.assert_array_equal(out, x * comm.size)


def test_units_of_time_are_checked_in_a_call_that_repeats(comm):
    # NumPy's type number is the same for all of them.
    wrapped = hpccoll.Comm(comm)
    seconds, hours = np.arange(4).astype("m8[s]"), np.arange(4).astype("m8[h]")
    wrapped.Allreduce(seconds, seconds.copy())
    for x, out in ((seconds, hours.copy()), (hours, seconds.copy())):
        with pytest.raises(TypeError, match="recvbuf has dtype timedelta64"):
            wrapped.Allreduce(x, out)
    out = hours.copy()
    wrapped.Allreduce(hours, out)
    np.testing.assert_array_equal(out, hours * comm.size)


@pytest.mark.parametrize("wrong", [3, "world", None.__class__])
def test_what_is_no_communicator_is_refused(wrong):
    with pytest.raises(TypeError, match=r"^allreduce: comm is of type .*wanted an mpi4py"):
        hpccoll.allreduce(good(), comm=wrong)
    with pytest.raises(TypeError, match=r"^Comm: comm is .*wanted an mpi4py"):
        hpccoll.Comm(wrong)


def test_the_null_communicator_is_refused():
    with pytest.raises(ValueError, match=r"allreduce: comm is MPI\.COMM_NULL"):
        hpccoll.allreduce(good(), comm=MPI.COMM_NULL)
    with pytest.raises((ValueError, MPI.Exception), match=r"(?i)null"):
        hpccoll.Comm(MPI.COMM_NULL).Allreduce(good(), good())


@pytest.mark.mpi(min_size=2)
def test_an_intercommunicator_is_refused(comm):
    half = comm.Split(comm.rank % 2, comm.rank)
    inter = half.Create_intercomm(0, comm, 1 - comm.rank % 2)
    try:
        with pytest.raises(TypeError, match="comm is an intercommunicator"):
            hpccoll.allreduce(good(), comm=inter)
        with pytest.raises(TypeError, match="Comm: comm is an intercommunicator"):
            hpccoll.Comm(inter)
    finally:
        inter.Free()
        half.Free()
    check_next(comm)


def test_a_communicator_that_was_freed_is_an_error(comm):
    duplicate = hpccoll.Comm(comm).Dup()
    x = good()
    duplicate.Allreduce(MPI.IN_PLACE, x)
    alias = hpccoll.Comm(duplicate)
    alias.Allreduce(MPI.IN_PLACE, x)
    duplicate.Free()
    assert duplicate == MPI.COMM_NULL
    with pytest.raises((ValueError, MPI.Exception), match=r"(?i)null"):
        duplicate.Allreduce(MPI.IN_PLACE, x)
    check_next(comm)


@pytest.mark.skipif(sys.version_info < (3, 11), reason="errors have notes from Python 3.11 on")
def test_an_error_of_mpi_says_what_was_waited_for(comm):
    error = MpiTransport(comm).error(MPI.ERR_OTHER, peer=5)
    assert isinstance(error, MPI.Exception)
    assert error.__notes__ == [f"rank {comm.rank} was waiting for a message to or from rank 5"]
