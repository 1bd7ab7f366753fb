"""`hpccoll.Comm` as a drop-in: one communicator with mpi4py's, its settings, and what it says."""

import gc
import weakref

import numpy as np
import pytest
from inputs import contribution, expected
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.channel import channel_of
from hpccoll.selection import Settings

SETTINGS = {"algorithm": "circulant", "segment_bytes": 4096}


@pytest.fixture(name="wrapped")
def wrapped_comm(comm):
    return hpccoll.Comm(comm, **SETTINGS)


def check_call(comm, count=2000):
    """Check that an all-reduce is right and runs by the settings."""
    x = contribution(comm.rank, count, "float64", "sum", comm.size)
    out = np.empty(count)
    comm.Allreduce(x, out)
    np.testing.assert_array_equal(out, expected(count, "float64", "sum", comm.size))
    assert comm.last_call.algorithm == comm.settings.algorithm
    assert comm.last_call.segment_bytes == comm.settings.segment_bytes
    assert comm.last_call.size == comm.size


# The same communicator.


def test_it_is_the_communicator_it_was_made_from(comm, wrapped):
    assert isinstance(wrapped, MPI.Intracomm)
    assert wrapped == comm
    assert comm == wrapped
    assert wrapped.handle == comm.handle
    assert (wrapped.rank, wrapped.size) == (comm.rank, comm.size)
    assert MPI.Comm.Compare(wrapped, comm) == MPI.IDENT
    assert wrapped.settings == Settings(**SETTINGS)


def test_methods_of_mpi4py_work_on_it(wrapped):
    assert wrapped.allreduce(wrapped.rank) == wrapped.size * (wrapped.size - 1) // 2
    x = np.full(3, wrapped.rank, "i4")
    wrapped.Bcast(x, root=0)
    assert x.tolist() == [0, 0, 0]
    right, left = (wrapped.rank + 1) % wrapped.size, (wrapped.rank - 1) % wrapped.size
    assert wrapped.sendrecv(wrapped.rank, right, source=left) == left


def test_it_is_the_null_communicator_without_an_argument():
    assert hpccoll.Comm() == MPI.COMM_NULL
    assert hpccoll.Comm().settings == Settings()


def test_settings_are_checked_when_it_is_made(comm):
    with pytest.raises(ValueError, match=r"^Comm: unknown algorithm 'rings'; choose"):
        hpccoll.Comm(comm, algorithm="rings")
    with pytest.raises(ValueError, match=r"^Comm: segment_bytes is -1"):
        hpccoll.Comm(comm, segment_bytes=-1)
    with pytest.raises(TypeError, match=r"^Comm: segment_bytes is '4K'"):
        hpccoll.Comm(comm, segment_bytes="4K")


# Communicators made from it.


def everyone(comm):
    return comm.Get_group()


def idup(comm):
    duplicate, request = comm.Idup()
    request.Wait()
    return duplicate


def idup_with_info(comm):
    duplicate, request = comm.Idup_with_info(MPI.INFO_NULL)
    request.Wait()
    return duplicate


MAKERS = {
    "Dup": lambda comm: comm.Dup(),
    "Dup(info)": lambda comm: comm.Dup(MPI.INFO_NULL),
    "Dup_with_info": lambda comm: comm.Dup_with_info(MPI.INFO_NULL),
    "Clone": lambda comm: comm.Clone(),
    "Split": lambda comm: comm.Split(comm.rank % 2, -comm.rank),
    "Split by keyword": lambda comm: comm.Split(color=0, key=comm.rank),
    "Create": lambda comm: comm.Create(everyone(comm)),
    "Create_group": lambda comm: comm.Create_group(everyone(comm)),
    "Create_group by keyword": lambda comm: comm.Create_group(everyone(comm), tag=3),
    "Split_type": lambda comm: comm.Split_type(MPI.COMM_TYPE_SHARED),
    "Idup": idup,
    "Idup_with_info": idup_with_info,
}


@pytest.mark.parametrize("maker", MAKERS)
def test_settings_pass_on(wrapped, maker):
    made = MAKERS[maker](wrapped)
    try:
        assert type(made) is hpccoll.Comm
        assert made != wrapped
        assert made.settings == wrapped.settings
        assert made.last_call is None
        check_call(made)
        again = made.Dup()
        assert again.settings == wrapped.settings
        check_call(again)
        again.Free()
    finally:
        made.Free()
    check_call(wrapped)


def test_who_is_not_in_a_group_gets_the_null_communicator(comm, wrapped):
    group = everyone(comm).Incl([0])
    for made in (
        wrapped.Create(group),
        wrapped.Split(0 if comm.rank == 0 else MPI.UNDEFINED),
    ):
        if comm.rank:
            assert made == MPI.COMM_NULL
        else:
            assert type(made) is hpccoll.Comm
            check_call(made)
            made.Free()


def test_a_subclass_makes_its_own(comm):
    class Mine(hpccoll.Comm):
        pass

    wrapped = Mine(comm, algorithm="ring")
    for maker in ("Dup", "Split", "Idup"):
        made = MAKERS[maker](wrapped)
        assert type(made) is Mine
        assert made.settings.algorithm == "ring"
        made.Free()


def test_topologies_stay_mpi4py_s(wrapped):
    grid = wrapped.Create_cart([wrapped.size], periods=[True])
    assert isinstance(grid, MPI.Cartcomm)
    assert grid.Get_coords(grid.rank) == [grid.rank]
    x = hpccoll.allreduce(np.ones(3), comm=grid)
    assert x.tolist() == [grid.size] * 3
    grid.Free()


# Settings of a call.


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_a_named_algorithm_runs_as_itself(comm, algorithm):
    wrapped = hpccoll.Comm(comm, algorithm=algorithm)
    x = np.ones(5000)
    wrapped.Allreduce(MPI.IN_PLACE, x)
    assert wrapped.last_call.algorithm == algorithm
    hpccoll.allreduce(x, comm=wrapped, algorithm="ring")
    assert wrapped.last_call.algorithm == "ring"
    hpccoll.allreduce(x, comm=wrapped)
    assert wrapped.last_call.algorithm == algorithm


def test_a_function_takes_over_what_it_is_not_told(wrapped):
    x = np.ones(5000)
    hpccoll.allreduce(x, comm=wrapped, segment_bytes=256)
    assert wrapped.last_call.algorithm == "circulant"
    assert wrapped.last_call.segment_bytes == 256
    hpccoll.allreduce(x, comm=wrapped, algorithm="ring")
    assert wrapped.last_call.segment_bytes == 4096
    assert wrapped.settings == Settings(**SETTINGS)


def test_two_objects_of_one_communicator_have_settings_of_their_own(comm):
    one, other = hpccoll.Comm(comm, algorithm="ring"), hpccoll.Comm(comm, algorithm="naive_root")
    for count in (10, 5000):
        x, out = np.ones(count), np.empty(count)
        for _ in range(2):
            for wrapped in (one, other):
                wrapped.Allreduce(x, out)
                assert wrapped.last_call.algorithm == wrapped.settings.algorithm
                assert (out == comm.size).all()
    assert channel_of(one) is channel_of(other) is channel_of(comm)


# What it says of the last call.


def test_the_last_call_is_what_ran(comm):
    wrapped = hpccoll.Comm(comm, algorithm="ring")
    assert wrapped.last_call is None
    predicted = hpccoll.simulate("ring", size=comm.size, count=3000, itemsize=4).ranks[comm.rank]
    x, out = np.ones(3000, "float32"), np.empty(3000, "float32")
    for _ in range(3):
        wrapped.Allreduce(x, out, op=MPI.SUM)
        call = wrapped.last_call
        assert call.collective == "allreduce"
        assert call.path == "point-to-point"
        assert (call.algorithm, call.op, call.dtype) == ("ring", "sum", "float32")
        assert (call.count, call.nbytes, call.size) == (3000, 12000, comm.size)
        assert call.steps == predicted.steps
        assert call.bytes_sent == predicted.bytes_sent
        assert call.bytes_received == predicted.bytes_received
        assert call.bytes_reduced == predicted.bytes_reduced
        assert call.messages_sent == predicted.messages_sent
        assert call.messages_received == predicted.messages_received
        assert not call.in_place
        assert call.kernel


@pytest.mark.parametrize("count", [10, 5000])
def test_the_last_call_says_whether_it_was_in_place(comm, count):
    wrapped = hpccoll.Comm(comm)
    x, out = np.ones(count), np.empty(count)
    for sendbuf, in_place in (
        (MPI.IN_PLACE, True),
        (x, False),
        (None, True),
        (x.copy(), False),
        (out, True),
    ):
        for _ in range(2):
            wrapped.Allreduce(sendbuf, out)
            assert wrapped.last_call.in_place == in_place


def test_the_last_call_is_this_object_s(comm):
    one, other = hpccoll.Comm(comm), hpccoll.Comm(comm)
    x = np.ones(10)
    one.Allreduce(MPI.IN_PLACE, x)
    assert other.last_call is None
    hpccoll.allreduce(np.ones(20, "i4"), "max", comm=other)
    assert (one.last_call.count, one.last_call.op) == (10, "sum")
    assert (other.last_call.count, other.last_call.op) == (20, "max")
    # A later call by the same plan does not change what was handed out.
    kept = one.last_call
    other.Allreduce(MPI.IN_PLACE, x)
    assert one.last_call == kept


# What goes to the MPI library.


def native(wrapped, *args):
    wrapped.Allreduce(*args)
    assert wrapped.last_call.path == "native"
    assert wrapped.last_call.algorithm == "native"
    assert wrapped.last_call.collective == "allreduce"


def test_an_operation_that_a_user_made_runs_in_the_mpi_library(wrapped):
    def multiply_mod_97(x, y, datatype):
        theirs, mine = np.frombuffer(x, "i4"), np.frombuffer(y, "i4")
        mine[:] = theirs * mine % 97

    op = MPI.Op.Create(multiply_mod_97, commute=True)
    try:
        x = np.arange(2, 12, dtype="i4") + wrapped.rank
        out = np.empty_like(x)
        native(wrapped, x, out, op)
    finally:
        op.Free()
    wanted = np.ones(10, "i8")
    for rank in range(wrapped.size):
        wanted = wanted * (np.arange(2, 12) + rank) % 97
    assert out.tolist() == wanted.tolist()
    check_call(wrapped)


@pytest.mark.parametrize("name", ["MAXLOC", "MINLOC"])
def test_values_with_their_place_run_in_the_mpi_library(wrapped, name):
    pair = np.dtype([("value", "f8"), ("place", "i4")], align=True)
    x = np.zeros(wrapped.size, pair)
    x["place"] = wrapped.rank
    x["value"] = (np.arange(wrapped.size) == wrapped.rank) * (1 if name == "MAXLOC" else -1)
    out = np.zeros_like(x)
    native(wrapped, [x, MPI.DOUBLE_INT], [out, MPI.DOUBLE_INT], getattr(MPI, name))
    assert out["place"].tolist() == list(range(wrapped.size))
    check_call(wrapped)


def test_a_derived_datatype_runs_in_the_mpi_library(wrapped):
    def add_pairs(x, y, datatype):
        mine = np.frombuffer(y, "f8")
        mine += np.frombuffer(x, "f8")

    pairs = MPI.DOUBLE.Create_contiguous(2).Commit()
    op = MPI.Op.Create(add_pairs, commute=True)
    try:
        x, out = np.arange(6.0) * (wrapped.rank + 1), np.empty(6)
        native(wrapped, [x, 3, pairs], [out, 3, pairs], op)
    finally:
        op.Free()
        pairs.Free()
    assert out.tolist() == (np.arange(6.0) * sum(range(1, wrapped.size + 1))).tolist()
    check_call(wrapped)


# Many communicators.


@pytest.mark.parametrize("parent", ["world", "self"])
def test_communicators_come_and_go_without_end(comm, parent):
    # MPICH has some 2,000 at a time, and each with a channel takes two. The world only for a few
    # ranks: where they share a core, each cycle takes milliseconds.
    cycles = 3000 if parent == "self" or comm.size <= 2 else 100
    wrapped = hpccoll.Comm(MPI.COMM_SELF if parent == "self" else comm)
    x = np.empty(3)
    for cycle in range(cycles):
        duplicate = wrapped.Dup()
        x[:] = cycle
        duplicate.Allreduce(MPI.IN_PLACE, x)
        assert x[0] == cycle * duplicate.size
        duplicate.Free()


def test_a_channel_goes_with_its_communicator(comm):
    duplicate = hpccoll.Comm(comm).Dup()
    x, out = np.ones(10_000), np.empty(10_000)
    for algorithm in ALGORITHMS:
        hpccoll.allreduce(x, out=out, comm=duplicate, algorithm=algorithm)
    duplicate.Allreduce(x, out)
    channel, plan = channel_of(duplicate), duplicate._recent.last
    assert plan.usable
    assert channel.memory.nbytes
    duplicate.Free()
    assert not plan.usable
    assert not channel.memory.nbytes
    gone = weakref.ref(channel)
    del channel, duplicate
    gc.collect()
    assert gone() is None


def test_a_duplicate_has_a_channel_of_its_own(wrapped):
    check_call(wrapped)
    duplicate = wrapped.Dup()
    check_call(duplicate)
    assert channel_of(duplicate) is not channel_of(wrapped)
    duplicate.Free()
    check_call(wrapped)
