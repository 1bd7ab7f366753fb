"""Calls beside other things that go on: user messages, threads, the environment, many plans."""

import functools
import os
import threading
import time
import tracemalloc

import numpy as np
import pytest
from inputs import contribution, expected
from meanwhile import in_threads
from mpi4py import MPI

import hpccoll
from hpccoll import channel, selection
from hpccoll.algorithms import ALGORITHMS

NAMES = list(ALGORITHMS)


def check_sum(comm, count, seed=0, **options):
    x = contribution(comm.rank, count, "float64", "sum", comm.size, seed)
    result = hpccoll.allreduce(x, comm=comm, **options)
    np.testing.assert_array_equal(result, expected(count, "float64", "sum", comm.size, seed))


# Messages of the user.


@pytest.mark.parametrize("algorithm", NAMES)
def test_receives_from_anyone_are_left_alone(comm, algorithm):
    # Receives that match every message there is, posted before the calls.
    pending = [np.full(3, -1.0) for _ in range(2)]
    requests = [comm.Irecv(buffer, MPI.ANY_SOURCE, MPI.ANY_TAG) for buffer in pending]
    for count in (1, 100, 50_000):
        check_sum(comm, count, algorithm=algorithm, segment_bytes=4096)
    assert not any(request.Test() for request in requests)
    comm.Barrier()
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    for tag in (1, 77):
        comm.Send(np.full(3, comm.rank + 0.5), right, tag)
    statuses = [MPI.Status() for _ in requests]
    MPI.Request.Waitall(requests, statuses)
    for status, tag in zip(statuses, (1, 77), strict=True):
        assert (status.source, status.tag) == (left, tag)
    assert [buffer.tolist() for buffer in pending] == [[left + 0.5] * 3] * 2


@pytest.mark.parametrize("algorithm", NAMES)
def test_messages_that_wait_for_a_receive_are_left_alone(comm, algorithm):
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    # The tags are those of hpccoll's own messages, and others.
    sent = [comm.Isend(np.full(2, comm.rank * 100.0 + tag), right, tag) for tag in range(5)]
    for count in (1, 100, 50_000):
        check_sum(comm, count, algorithm=algorithm, segment_bytes=4096)
    for tag in range(5):
        buffer = np.empty(2)
        comm.Recv(buffer, left, tag)
        assert buffer.tolist() == [left * 100.0 + tag] * 2
    MPI.Request.Waitall(sent)


def test_a_collective_of_the_user_may_be_under_way(comm):
    # Ibarrier of the same communicator, begun before and finished after.
    request = comm.Ibarrier()
    check_sum(comm, 5000)
    request.Wait()
    total = np.empty(1)
    mine = np.full(1, comm.rank + 1.0)  # kept: mpi4py on Open MPI was seen to let go of it
    request = comm.Iallreduce(mine, total)
    check_sum(comm, 5000)
    request.Wait()
    assert total[0] == comm.size * (comm.size + 1) // 2


def test_other_communicators_are_left_alone(comm):
    # Calls on two communicators, in an order of each one's own; the ranks of one are reversed.
    other = comm.Split(0, -comm.rank)
    for count in (3, 5000):
        for seed in range(3):
            check_sum(comm, count, seed)
            check_sum(other, count, seed)
    other.Free()


# Many plans.


def test_more_arrays_than_plans_are_kept(comm):
    wrapped = hpccoll.Comm(comm)
    count = 1000  # more than what is staged: each array has a plan of its own
    arrays = [np.empty(count) for _ in range(40)]
    for _ in range(2):
        for seed, x in enumerate(arrays):
            x[:] = contribution(comm.rank, count, "float64", "sum", comm.size, seed)
            wrapped.Allreduce(MPI.IN_PLACE, x)
            np.testing.assert_array_equal(x, expected(count, "float64", "sum", comm.size, seed))


def test_one_address_serves_many_types_and_operations(comm):
    wrapped = hpccoll.Comm(comm)
    for nbytes in (48, 48_000):
        memory, results = np.empty(nbytes, "u1"), np.empty(nbytes, "u1")
        for _ in range(2):
            for dtype, op in (
                ("float64", "sum"),
                ("int64", "sum"),
                ("uint64", "sum"),
                ("float32", "sum"),
                ("float64", "max"),
                ("complex128", "sum"),
                ("float64", "mean"),
                ("float16", "sum"),
            ):
                x, out = memory.view(dtype), results.view(dtype)
                x[:] = contribution(comm.rank, x.size, dtype, op, comm.size)
                wrapped.Allreduce(x, out, op)
                wanted = expected(x.size, dtype, op, comm.size)
                assert out.tobytes() == wanted.tobytes(), (dtype, op)
                wrapped.Allreduce(x[: x.size // 3], out[: x.size // 3], op)
                assert out[: x.size // 3].tobytes() == wanted[: x.size // 3].tobytes()


@pytest.mark.parametrize("count", [100, 100_000])
@pytest.mark.parametrize("op", [MPI.SUM, "mean"])
def test_a_repeated_call_allocates_nothing(comm, op, count):
    wrapped = hpccoll.Comm(comm)
    x, out = np.ones(count), np.empty(count)
    for _ in range(3):
        wrapped.Allreduce(x, out, op)
    held = channel.channel_of(wrapped).memory.nbytes
    tracemalloc.start()
    try:
        wrapped.Allreduce(x, out, op)
        before = tracemalloc.get_traced_memory()[0]
        tracemalloc.reset_peak()
        for _ in range(20):
            wrapped.Allreduce(x, out, op)
        after, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 200
    assert peak - before < 1000  # numbers that a status tells, but no copy of the data
    assert channel.channel_of(wrapped).memory.nbytes == held


# Threads.


needs_threads = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI without THREAD_MULTIPLE"
)


@needs_threads
@pytest.mark.parametrize("layout", ["plain", "gaps"])
@pytest.mark.parametrize("count", [50, 20_000])
def test_threads_that_share_a_communicator_take_turns(count, layout):
    # Each rank on its own: with other ranks, the order of the calls would be theirs to agree on.
    comm = hpccoll.Comm(MPI.COMM_SELF).Dup()
    barrier = threading.Barrier(3)

    def job(number):
        x = np.empty(2 * count)[::2] if layout == "gaps" else np.empty(count)
        out = np.empty(2 * count)[::2] if layout == "gaps" else np.empty(count)
        for k in range(60):
            barrier.wait()
            x[:] = number * 1000 + k
            comm.Allreduce(x, out)
            assert (out == number * 1000 + k).all()
            comm.Allreduce(MPI.IN_PLACE, x)
            assert (x == number * 1000 + k).all()

    in_threads([functools.partial(job, number) for number in range(3)], barrier)
    comm.Free()


@needs_threads
def test_the_first_call_may_come_from_several_threads_at_once(monkeypatch):
    made = []

    class SlowChannel(channel.Channel):
        def __init__(self, comm):
            made.append(self)
            time.sleep(0.05)  # another thread would make its own meanwhile
            super().__init__(comm)

    monkeypatch.setattr(channel, "Channel", SlowChannel)
    comm = MPI.COMM_SELF.Dup()
    barrier = threading.Barrier(3)

    def job(number):
        barrier.wait()
        for count in (10, 5000):
            x = hpccoll.allreduce(np.full(count, number), comm=comm)
            assert (x == number).all()

    in_threads([functools.partial(job, number) for number in range(3)])
    assert len(made) == 1
    comm.Free()


@needs_threads
@pytest.mark.parametrize("layout", ["plain", "gaps"])
def test_threads_of_all_ranks_may_call_at_once(comm, layout):
    # Whichever calls of the ranks meet, they are equal; so each result is known.
    hpccoll.allreduce(0, comm=comm)
    count = 3000
    mine = contribution(comm.rank, count, "float64", "sum", comm.size)
    wanted = expected(count, "float64", "sum", comm.size)

    right = []

    def job():
        x = np.empty(2 * count)[::2] if layout == "gaps" else np.empty(count)
        for _ in range(20):
            x[:] = mine
            hpccoll.allreduce(x, out=x, comm=comm)
            right.append((x == wanted).all())

    in_threads([job, job])
    assert right == [True] * 40


@needs_threads
def test_threads_may_use_communicators_of_their_own(comm):
    comms = [comm.Dup() for _ in range(2)]

    def job(comm, algorithm):
        for seed in range(5):
            for count in (10, 5000):
                check_sum(comm, count, seed, algorithm=algorithm)

    in_threads([lambda: job(comms[0], "ring"), lambda: job(comms[1], "circulant")])
    for duplicate in comms:
        duplicate.Free()


@needs_threads
@pytest.mark.mpi(min_size=2)
@pytest.mark.limit(20)
def test_threads_may_make_channels_in_another_order_on_each_rank(comm):
    # Legal for MPI: each communicator sees one call. A lock that one of them holds while it waits
    # for other ranks must not keep the other one from being made.
    comms = [comm.Dup() for _ in range(2)]
    comm.Barrier()

    def job(number):
        time.sleep(0.3 * ((number + comm.rank) % 2))
        check_sum(comms[number], 100)

    in_threads([functools.partial(job, number) for number in range(2)])
    for duplicate in comms:
        duplicate.Free()


# Processes.


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kept", [False, True])
@pytest.mark.parametrize("count", [10, 5000])
def test_a_forked_child_is_told_that_it_cannot_call(count, kept):
    # On a communicator of one rank, where a call that should not run does no harm.
    comm = hpccoll.Comm(MPI.COMM_SELF).Dup()
    new = MPI.COMM_SELF.Dup()
    x = np.ones(count)
    hpccoll.allreduce(0, comm=comm)
    if kept:  # a plan of the parent
        comm.Allreduce(MPI.IN_PLACE, x)
    child = os.fork()
    if child == 0:
        try:
            for call in (
                lambda: comm.Allreduce(MPI.IN_PLACE, x),
                lambda: hpccoll.allreduce(x, out=x, comm=comm),
                lambda: hpccoll.allreduce(x, out=x, comm=new),  # a first call
            ):
                with pytest.raises(RuntimeError, match="forked child"):
                    call()
            os._exit(0)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    comm.Allreduce(MPI.IN_PLACE, x)
    comm.Free()
    new.Free()


# The environment.


@pytest.mark.parametrize("algorithm", NAMES)
def test_the_environment_of_rank_0_chooses_for_all(comm, monkeypatch, algorithm):
    other = NAMES[NAMES.index(algorithm) - 1]
    monkeypatch.setenv(selection.VARIABLE, algorithm if comm.rank == 0 else other)
    wrapped = hpccoll.Comm(comm)
    for count in (10, 5000):
        check_sum(wrapped, count)
        assert wrapped.last_call.algorithm == algorithm
    check_sum(wrapped, 10, algorithm=other)
    assert wrapped.last_call.algorithm == other
    named = hpccoll.Comm(comm, algorithm=other)
    check_sum(named, 10)
    assert named.last_call.algorithm == other


def test_the_environment_is_read_once_per_communicator(comm, monkeypatch):
    monkeypatch.setenv(selection.VARIABLE, "ring")
    wrapped = hpccoll.Comm(comm)
    check_sum(wrapped, 10)
    monkeypatch.setenv(selection.VARIABLE, "naive_root")
    check_sum(wrapped, 20)
    assert wrapped.last_call.algorithm == "ring"
    duplicate = wrapped.Dup()
    check_sum(duplicate, 10)
    assert duplicate.last_call.algorithm == "naive_root"
    duplicate.Free()


def test_an_unknown_name_in_the_environment_is_an_error_on_all_ranks(comm, monkeypatch):
    monkeypatch.setenv(selection.VARIABLE, "rings" if comm.rank == 0 else "ring")
    wrapped = hpccoll.Comm(comm)
    x = np.ones(10)
    for call in (
        lambda: wrapped.Allreduce(MPI.IN_PLACE, x),
        lambda: hpccoll.allreduce(x, comm=wrapped),
    ):
        with pytest.raises(ValueError, match=r"HPCCOLL_ALGORITHM: unknown algorithm 'rings'"):
            call()
    assert (x == 1).all()
    # An argument still goes before it, and the communicator works.
    check_sum(wrapped, 10, algorithm="ring")
