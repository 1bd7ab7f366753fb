"""Time limits: who waits for a rank that does not come is told so, and who that is."""

import math
import os
import threading
import time

import numpy as np
import pytest
from meanwhile import interrupted
from mpi4py import MPI

import hpccoll
from hpccoll.channel import channel_of

LIMIT = 0.1 * max(3, MPI.COMM_WORLD.size)
"""Seconds: longer than ranks that share a core may come apart."""

SMALL, LARGE = 10, 200_000

several = pytest.mark.mpi(min_size=2)

WAYS = {
    "node": {},
    "messages": {"HPCCOLL_NODE": "off"},
    "two nodes": {"HPCCOLL_NODES": "halves"},
}


@pytest.fixture(params=WAYS)
def way(request, monkeypatch, comm):
    """Set the environment such that calls go one way or the other."""
    for name, value in WAYS[request.param].items():
        halves = ",".join(str(2 * rank // comm.size) for rank in range(comm.size))
        monkeypatch.setenv(name, halves if value == "halves" else value)
    return request.param


def all_reduce(comm, n):
    """Make a call that is right."""
    x = np.full(n, comm.rank + 1.0)
    out = np.empty(n)
    comm.Allreduce(x, out)
    assert (out == comm.size * (comm.size + 1) // 2).all()


def twice(call):
    """Make two calls."""
    call()
    call()


def lose(comm, call, late):
    """Let all ranks but some make a call, and those when the others have given up."""
    if comm.rank in late:
        for rank in range(comm.size):
            if rank not in late:
                comm.recv(source=rank, tag=5)
        # Where all that it needs is there, it is the next call that cannot be.
        with pytest.raises(hpccoll.CollectiveTimeoutError, match="cannot be used any more"):
            twice(call)
        return None
    with pytest.raises(hpccoll.CollectiveTimeoutError) as caught:
        call()
    for rank in late:
        comm.send(None, rank, tag=5)
    return caught.value


def check_fresh(comm):
    """Check that a communicator is broken, and that a duplicate of it is not."""
    for _ in range(2):
        with pytest.raises(RuntimeError, match=r"given up.*make a new one with Dup"):
            comm.Allreduce(MPI.IN_PLACE, np.ones(SMALL))
    fresh = comm.Dup()
    for n in (SMALL, LARGE):
        all_reduce(fresh, n)
    fresh.Free()


@several
def test_who_is_missing_is_named_on_all_other_ranks_whatever_the_algorithm(comm, monkeypatch):
    monkeypatch.setenv("HPCCOLL_NODE", "off")
    for algorithm in ("naive_root", "ring", "rabenseifner", "circulant"):
        wrapped = hpccoll.Comm(comm, timeout=LIMIT, algorithm=algorithm).Dup()
        all_reduce(wrapped, SMALL)
        error = lose(wrapped, lambda: all_reduce(wrapped, SMALL), {comm.size - 1})  # noqa: B023
        assert error is None or error.ranks == (comm.size - 1,)
        wrapped.Free()


@several
@pytest.mark.parametrize("n", [SMALL, LARGE])
def test_who_is_missing_is_named_on_all_other_ranks(comm, way, n):
    wrapped = hpccoll.Comm(comm, timeout=LIMIT)
    all_reduce(wrapped, n)
    out = np.empty(n)
    error = lose(wrapped, lambda: wrapped.Allreduce(np.ones(n), out), {comm.size - 1})
    if error is not None:
        assert error.ranks == (comm.size - 1,)
        text = str(error)
        assert text.startswith("Allreduce: "), text
        assert f"(call 2 on this communicator, sum of {n} elements of float64" in text
        assert f"rank {comm.rank} of {comm.size})" in text
        assert f"No sign of rank {comm.size - 1}. The" in text
        assert "waited" in text or "has given up" in text
    check_fresh(wrapped)


@pytest.mark.mpi(min_size=3)
def test_several_ranks_may_be_missing(comm, way):
    wrapped = hpccoll.Comm(comm, timeout=LIMIT)
    all_reduce(wrapped, SMALL)
    late = {0, comm.size - 1}
    error = lose(wrapped, wrapped.Barrier, late)
    assert error is None or error.ranks == (0, comm.size - 1)
    check_fresh(wrapped)


@several
def test_who_is_missing_in_the_first_call_is_named(comm, way):
    wrapped = hpccoll.Comm(comm, timeout=LIMIT)
    error = lose(wrapped, lambda: all_reduce(wrapped, SMALL), {0})
    if error is not None:
        assert error.ranks == (0,)
        assert "s for rank 0 to come, in the first call on this communicator" in str(error)
    if MPI.get_vendor()[0] != "Open MPI":  # it mixes up a Dup with an Idup that is under way
        check_fresh(wrapped)


@several
def test_the_limit_of_one_call(comm):
    wrapped = hpccoll.Comm(comm)
    all_reduce(wrapped, SMALL)

    def call():
        hpccoll.allreduce(np.ones(SMALL), comm=wrapped, timeout=LIMIT)

    error = lose(wrapped, call, {comm.size - 1})
    assert error is None or str(error).startswith("allreduce: ")
    check_fresh(wrapped)


@several
def test_who_comes_late_is_told_without_a_limit_of_its_own(comm):
    """It may find all that it needs in the memory of the node, and then makes another call."""
    wrapped = hpccoll.Comm(comm)
    all_reduce(wrapped, SMALL)
    if comm.rank == 0:
        with pytest.raises(hpccoll.CollectiveTimeoutError) as caught:
            hpccoll.barrier(wrapped, timeout=LIMIT)
        assert caught.value.ranks == tuple(range(1, comm.size))
        comm.Barrier()
    else:
        comm.Barrier()
        with pytest.raises(hpccoll.CollectiveTimeoutError, match="has given up"):
            twice(lambda: hpccoll.allreduce(np.ones(LARGE), comm=wrapped, algorithm="ring"))
    check_fresh(wrapped)


@several
def test_the_limit_of_the_environment(comm, monkeypatch):
    monkeypatch.setenv("HPCCOLL_TIMEOUT", str(LIMIT))
    wrapped = hpccoll.Comm(comm)
    lose(wrapped, wrapped.Barrier, {comm.size - 1})
    check_fresh(wrapped)


@several
@pytest.mark.parametrize("value", ["0", "-1", "soon", "nan"])
def test_an_environment_that_cannot_be_read_is_told_on_all_ranks(comm, monkeypatch, value):
    if comm.rank == comm.size - 1:
        monkeypatch.setenv("HPCCOLL_TIMEOUT", value)
    with pytest.raises(ValueError, match=f"HPCCOLL_TIMEOUT is '{value}'; wanted seconds"):
        hpccoll.barrier(comm)
    monkeypatch.delenv("HPCCOLL_TIMEOUT", raising=False)
    hpccoll.barrier(comm)


@pytest.mark.parametrize("timeout", [0, -1.0, math.nan, True, "5"])
def test_what_is_no_limit_is_refused(comm, timeout):
    error = TypeError if isinstance(timeout, (bool, str)) else ValueError
    with pytest.raises(error, match=rf"timeout is {timeout!r}.*; wanted seconds"):
        hpccoll.Comm(comm, timeout=timeout)
    with pytest.raises(error, match=r"^barrier: timeout is .* \(rank"):
        hpccoll.barrier(comm, timeout=timeout)


@several
@pytest.mark.parametrize(
    ("way_to_wait", "n"),
    [
        ("Wait", SMALL),
        ("Wait", LARGE),
        ("Test", SMALL),
        ("handle", LARGE),
        ("persistent", SMALL),
        ("first", SMALL),
    ],
)
def test_non_blocking_calls(comm, n, way_to_wait):
    wrapped = hpccoll.Comm(comm, timeout=LIMIT)
    x, out = np.ones(n), np.empty(n)
    if way_to_wait != "first":
        wrapped.Iallreduce(x, out).Wait()
    prepared = wrapped.Allreduce_init(x, out) if way_to_wait == "persistent" else None

    def call():
        if way_to_wait == "handle":
            hpccoll.iallreduce(x, comm=wrapped).wait()
        elif prepared is not None:
            prepared.Start()
            prepared.Wait()
        elif way_to_wait == "Test":
            request = wrapped.Iallreduce(x, out)
            while not request.Test():
                time.sleep(1e-3)
        else:
            wrapped.Iallreduce(x, out).Wait()

    error = lose(wrapped, call, {0})
    assert error is None or error.ranks == (0,)
    with pytest.raises((RuntimeError, TimeoutError), match="make a new one with Dup"):
        call()
    comm.Barrier()
    all_reduce(wrapped, n)  # blocking calls have a channel of their own


@several
def test_without_a_limit_there_is_a_warning(comm, way, capfd):
    wrapped = hpccoll.Comm(comm)
    all_reduce(wrapped, SMALL)
    channel_of(wrapped).clock.warning = 100_000_000
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(0.6)
    all_reduce(wrapped, SMALL)
    text = capfd.readouterr().err
    if comm.rank == 0:
        assert text == ""
    elif "waited" in text or comm.size == 2:
        # Who is told late what it waits for may have waited a shorter time, for another rank.
        assert text.count("\n") == 1
        assert text.startswith("hpccoll: Allreduce: waited ")
        assert "(call 2 on this communicator, sum of 10 elements of float64" in text
        assert text.endswith("; it goes on waiting\n")


@several
def test_a_limit_that_is_not_reached_changes_nothing(comm, way):
    wrapped = hpccoll.Comm(comm, timeout=30.0)
    for n in (SMALL, LARGE) * 3:
        all_reduce(wrapped, n)
    assert wrapped.Split().settings.timeout == 30.0


@several
def test_an_interrupt_ends_a_wait_for_messages(comm, monkeypatch):
    """The others are told, too, and calls after that are right."""
    monkeypatch.setenv("HPCCOLL_NODE", "off")
    wrapped = hpccoll.Comm(comm)
    all_reduce(wrapped, LARGE)
    if comm.rank == 0:
        with interrupted(0.3):
            wrapped.Allreduce(MPI.IN_PLACE, np.ones(LARGE))
        comm.send(None, comm.size - 1)
    else:
        if comm.rank == comm.size - 1:
            comm.recv(source=0)
        with pytest.raises(hpccoll.MismatchError, match="given up"):
            wrapped.Allreduce(MPI.IN_PLACE, np.ones(LARGE))
    for n in (SMALL, LARGE):
        all_reduce(wrapped, n)


@several
def test_an_interrupted_first_call_can_be_made_again(comm):
    wrapped = hpccoll.Comm(comm)
    if comm.rank == 0:
        with interrupted(0.2):
            wrapped.Barrier()
        for rank in range(1, comm.size):
            comm.send(None, rank)
    else:
        comm.recv(source=0)
    all_reduce(wrapped, SMALL)


@several
def test_waiting_leaves_the_interpreter_to_other_threads(comm, monkeypatch):
    monkeypatch.setenv("HPCCOLL_NODE", "off")
    wrapped = hpccoll.Comm(comm)
    all_reduce(wrapped, SMALL)
    counted = []
    if comm.rank == 0:
        done = threading.Event()

        def count():
            while not done.wait(1e-3):
                counted.append(os.getpid())

        thread = threading.Thread(target=count)
        thread.start()
        all_reduce(wrapped, SMALL)
        done.set()
        thread.join()
        assert len(counted) > 10
    else:
        time.sleep(0.3)
        all_reduce(wrapped, SMALL)
