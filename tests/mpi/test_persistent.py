"""Persistent calls: prepared once, started many times, in company of all others."""

import gc
import time
import weakref

import numpy as np
import pytest
from begun import CASES, mine, reference, total
from mpi4py import MPI

import hpccoll

LARGE = 400_000
several = pytest.mark.mpi(min_size=2)


@pytest.fixture(name="wrapped", params=["auto", "off"])
def wrapped_comm(request, comm, monkeypatch):
    """Give a communicator on the node path, and one that sends messages."""
    monkeypatch.setenv("HPCCOLL_NODE", request.param)
    return hpccoll.Comm(comm)


# Results.


@pytest.mark.parametrize("n", [3, 1000])
@pytest.mark.parametrize("name", CASES)
def test_every_run_has_the_bits_of_the_blocking_call(wrapped, name, n):
    call = CASES[name](wrapped, n)
    request = call.prepare(wrapped)
    for seed in range(3):
        call.fill(seed)
        assert not request.active
        request.Start()
        assert request.active
        assert request.Wait() is True
        assert call.result.tobytes() == reference(name, wrapped, n, seed)
    request.Free()
    assert request.freed


def test_large_ones(wrapped):
    for name in ("allreduce", "allreduce_strided", "reduce_scatter_block", "bcast_last"):
        call = CASES[name](wrapped, LARGE // (wrapped.size if "block" in name else 1))
        with call.prepare(wrapped) as request:
            for seed in range(2):
                call.fill(seed)
                request.Start()
                while not request.Test():
                    time.sleep(1e-4)
                n = LARGE // wrapped.size if "block" in name else LARGE
                assert call.result.tobytes() == reference(name, wrapped, n, seed)
        assert request.freed


@pytest.mark.parametrize("seed", range(2))
def test_several_started_together_and_waited_for_in_any_order(wrapped, seed):
    sizes = [4, 30, 20_000, 8, 50_000, 1]
    arrays = [(np.empty(n), np.empty(n)) for n in sizes]
    requests = [wrapped.Allreduce_init(x, out) for x, out in arrays]
    order = np.random.default_rng([seed, wrapped.rank])
    for step in range(3):
        for k, (x, _) in enumerate(arrays):
            x[:] = mine(wrapped, len(x), step + k)
        starts = np.random.default_rng([seed, step]).permutation(len(sizes)).tolist()
        for k in starts:
            requests[k].Start()
        for k in order.permutation(len(sizes)).tolist():
            requests[k].Wait()
            wanted = total(wrapped, sizes[k], step + k)
            np.testing.assert_array_equal(arrays[k][1], wanted)
    for request in requests:
        request.Free()


def test_in_company_of_all_others(wrapped):
    n = 50
    x, out, between, begun = np.empty(n), np.empty(n), np.empty(n), np.empty(3000)
    request = wrapped.Allreduce_init(x, out)
    for step in range(9):
        x[:] = mine(wrapped, n, step)
        if step % 2:
            other = wrapped.Iallreduce(mine(wrapped, 3000, step), begun)
            request.Start()
        else:
            request.Start()
            other = wrapped.Iallreduce(mine(wrapped, 3000, step), begun)
        wrapped.Allreduce(mine(wrapped, n, step + 1), between)
        waits = [request.Wait, lambda: MPI.Request.Waitall([other])]  # noqa: B023
        for wait in waits if (step + wrapped.rank) % 3 else reversed(waits):
            wait()
        np.testing.assert_array_equal(out, total(wrapped, n, step))
        np.testing.assert_array_equal(between, total(wrapped, n, step + 1))
        np.testing.assert_array_equal(begun, total(wrapped, 3000, step))
    request.Free()


@pytest.mark.parametrize("name", ["allreduce", "reduce_scatter_without_counts", "allgatherv"])
def test_prepared_while_others_are_under_way(wrapped, name):
    for seed in range(4):
        outs = [np.empty(30_000) for _ in range(4)]
        others = [wrapped.Iallreduce(mine(wrapped, 30_000, k), out) for k, out in enumerate(outs)]
        call = CASES[name](wrapped, 100)
        request = call.prepare(wrapped)
        call.fill(seed)
        request.Start()
        request.Wait()
        MPI.Request.Waitall(others)
        assert call.result.tobytes() == reference(name, wrapped, 100, seed)
        for k, out in enumerate(outs):
            np.testing.assert_array_equal(out, total(wrapped, 30_000, k))
        request.Free()


def test_buffers_live_as_long_as_the_request(wrapped):
    requests = []
    for seed in range(5):
        x = np.full(500, wrapped.rank + seed, "i8")
        requests.append((wrapped.Allreduce_init(MPI.IN_PLACE, x), x.ctypes.data))
        del x
        gc.collect(0)
    rubbish = [np.full(500, -1) for _ in range(20)]
    for request, address in requests:
        request.Start()
        request.Wait()
        assert all(array.ctypes.data != address for array in rubbish)
        request.Free()


def test_operations_of_the_user_run_in_the_mpi_library(wrapped):
    pair = np.dtype([("value", "f8"), ("place", "i4")], align=True)
    x, out = np.zeros(2, pair), np.zeros(2, pair)
    x["value"] = x["place"] = wrapped.rank
    request = wrapped.Allreduce_init([x, MPI.DOUBLE_INT], [out, MPI.DOUBLE_INT], MPI.MAXLOC)
    assert isinstance(request, MPI.Request)
    for _ in range(2):
        request.Start()
        request.Wait()
        assert out["place"].tolist() == [wrapped.size - 1] * 2
    request.Free()


def test_what_ran_can_be_seen(wrapped):
    x, out = np.ones(5000), np.empty(5000)
    request = hpccoll.Comm(wrapped, algorithm="ring").Allreduce_init(x, out)
    for _ in range(2):
        request.Start()
        request.Wait()
        assert (request.call.collective, request.call.algorithm) == ("allreduce", "ring")
        assert request.call.count == 5000
        assert request.call.bytes_sent > 0 or wrapped.size == 1
    request.Free()


# Progress.


@several
@pytest.mark.parametrize("n", [5, LARGE])
def test_a_started_call_completes_while_a_rank_computes(wrapped, n):
    x, out = mine(wrapped, n), np.empty(n)
    request = wrapped.Allreduce_init(x, out)
    request.Start()
    if wrapped.rank == 0:
        deadline = time.monotonic() + 20
        left = wrapped.size - 1
        while left and time.monotonic() < deadline:
            if wrapped.Iprobe(tag=9):
                wrapped.recv(tag=9)
                left -= 1
            time.sleep(1e-3)
        assert not left
        request.Wait()
    else:
        request.Wait()
        wrapped.send(True, 0, tag=9)
    np.testing.assert_array_equal(out, total(wrapped, n))
    request.Free()


@several
@pytest.mark.parametrize("how", ["a message", "a barrier of MPI's", "a blocking call"])
def test_a_rank_may_wait_for_others_between_start_and_wait(wrapped, how):
    """Nobody waits for the small call here, and the others do: it must run all the same."""
    x, out = np.empty(5), np.empty(5)
    request = wrapped.Allreduce_init(x, out)
    for step in range(3):
        x[:] = mine(wrapped, 5, step)
        request.Start()
        if wrapped.rank:
            request.Wait()
        if how == "a message":
            if wrapped.rank:
                wrapped.send(None, 0)
            else:
                for rank in range(1, wrapped.size):
                    wrapped.recv(source=rank)
        elif how == "a blocking call":
            wrapped.Allreduce(np.ones(3), np.empty(3))
        else:
            MPI.Intracomm.Barrier(wrapped)
        request.Wait()
        np.testing.assert_array_equal(out, total(wrapped, 5, step))
    request.Free()


# Errors.


@pytest.mark.parametrize("n", [4, LARGE])
def test_calls_out_of_turn(wrapped, n):
    rank, size = wrapped.rank, wrapped.size
    x, out = mine(wrapped, n), np.empty(n)
    request = wrapped.Allreduce_init(x, out)
    assert request.Wait() is True  # nothing was started
    assert request.Test() is True
    request.Start()
    for method in (request.Start, request.Free):
        text = rf"^Allreduce_init: {method.__name__} on a request that was started and has not been"
        with pytest.raises(RuntimeError, match=rf"{text} waited for \(rank {rank} of {size}\)$"):
            method()
    request.Wait()
    np.testing.assert_array_equal(out, total(wrapped, n))
    assert request.wait() is True
    request.Free()
    for method in (request.Start, request.Free):
        text = rf"^Allreduce_init: {method.__name__} on a request that was freed"
        with pytest.raises(RuntimeError, match=rf"{text} \(rank {rank} of {size}\)$"):
            method()
    assert request.Wait() is True
    assert request.Test() is True


def test_wrong_arguments_are_told_when_it_is_prepared(wrapped):
    x = np.ones(4)
    with pytest.raises(ValueError, match=r"^Allreduce_init: recvbuf has 3 elements"):
        wrapped.Allreduce_init(x, np.empty(3))
    with pytest.raises(ValueError, match=r"^Bcast_init: root is"):
        wrapped.Bcast_init(x, -1)
    with pytest.raises(ValueError, match=r"^Reduce_scatter_init: sendbuf has 4 elements"):
        wrapped.Reduce_scatter_init(x, np.empty(4)) if wrapped.size > 1 else (
            wrapped.Reduce_scatter_init(x, np.empty(4), [5])
        )
    with wrapped.Barrier_init() as request:
        request.Start()
        request.Wait()


@several
@pytest.mark.parametrize("n", [2, 3000, 150_000])
@pytest.mark.parametrize("by", ["Wait", "Test"])
def test_a_mismatch_is_told_on_every_rank(wrapped, by, n):
    odd = n + (wrapped.rank == 0)
    wrong = wrapped.Allreduce_init(np.ones(odd), np.empty(odd))
    x, out = mine(wrapped, 10), np.empty(10)
    right = wrapped.Allreduce_init(x, out)

    def fail():
        wrong.Start()
        while not getattr(wrong, by)():
            time.sleep(1e-4)

    for _ in range(2):
        with pytest.raises(
            ValueError, match=r"^Allreduce_init: .*(expected .* got|given up|different calls)"
        ):
            fail()
        assert not wrong.active
        out[:] = 0
        right.Start()
        right.Wait()
        np.testing.assert_array_equal(out, total(wrapped, 10))
        for begin in (wrapped.Allreduce, wrapped.Iallreduce):
            out[:] = 0
            (begin(x, out) or MPI.REQUEST_NULL).Wait()
            np.testing.assert_array_equal(out, total(wrapped, 10))
    wrong.Free()
    right.Free()


def test_the_communicator_may_be_freed_before_the_request(comm):
    made = hpccoll.Comm(comm).Dup()
    x, out = mine(comm, 10), np.empty(10)
    request = made.Allreduce_init(x, out)
    request.Start()
    request.Wait()
    made.Free()
    np.testing.assert_array_equal(out, total(comm, 10))
    request.Free()
    assert request.freed


@pytest.mark.parametrize("n", [3, LARGE])
def test_what_is_started_after_the_communicator_was_freed_is_refused(comm, n):
    made = hpccoll.Comm(comm).Dup()
    x, out = mine(comm, n), np.empty(n)
    request = made.Allreduce_init(x, out)
    request.Start()
    made.Free()
    assert request.Wait() is True
    assert out.tobytes() == total(comm, n).tobytes()
    with pytest.raises(RuntimeError, match="freed"):
        request.Start()
    assert request.Wait() is True
    request.Free()


@pytest.mark.parametrize("n", [3, LARGE])
def test_a_request_goes_without_the_garbage_collector(wrapped, n):
    out = np.empty(n)
    gc.disable()
    try:
        for free in (True, False):
            step = wrapped.Allreduce_init(mine(wrapped, n), out)
            for _ in range(2):
                step.Start()
                step.Wait()
            if free:
                step.Free()
            gone = weakref.ref(step)
            del step
            assert gone() is None
    finally:
        gc.enable()
