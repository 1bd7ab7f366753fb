"""Non-blocking calls: what MPI's requests and hpccoll's handles give, in any order and company."""

import gc
import sys
import threading
import time
import weakref
from pathlib import Path

import numpy as np
import pytest
from begun import CASES, mine, reference, total
from launch import Launcher
from mpi4py import MPI

import hpccoll

ROOT = Path(__file__).parents[2]
COUNTS = [3, 1000, 400_000]  # in line, by messages that MPI buffers or slots, 3 MB
LARGE = 400_000

first_call_is_local = pytest.mark.skipif(
    MPI.get_vendor()[0] == "Open MPI",
    reason="Open MPI mixes up communicators that two threads make: there the first call waits",
)


@pytest.fixture(name="wrapped", params=["auto", "off"])
def wrapped_comm(request, comm, monkeypatch):
    """Give a communicator on the node path, and one that sends messages."""
    monkeypatch.setenv("HPCCOLL_NODE", request.param)
    return hpccoll.Comm(comm)


def check_next_calls(comm, n=100):
    """Check that all kinds of calls are right."""
    for begin in (comm.Allreduce, comm.Iallreduce):
        out = np.empty(n)
        request = begin(mine(comm, n), out)
        if request is not None:
            request.Wait()
        np.testing.assert_array_equal(out, total(comm, n))


# Results.


@pytest.mark.parametrize("n", COUNTS[:2])
@pytest.mark.parametrize("name", CASES)
def test_the_bits_are_those_of_the_blocking_call(wrapped, name, n):
    call = CASES[name](wrapped, n)
    call.fill(5)
    request = call.begin(wrapped)
    assert isinstance(request, MPI.Request)
    assert request.Wait() is True
    assert request == MPI.REQUEST_NULL
    assert request.Wait() is True
    assert call.result.tobytes() == reference(name, wrapped, n, 5)
    assert request.call.collective == wrapped.last_call.collective


def test_many_under_way_at_once(wrapped):
    calls = [CASES[name](wrapped, n) for n in (7, 2000) for name in CASES]
    for seed, call in enumerate(calls):
        call.fill(seed)
    MPI.Request.Waitall([call.begin(wrapped) for call in calls])
    for seed, (call, name) in enumerate(zip(calls, [*CASES] * 2, strict=True)):
        assert call.result.tobytes() == reference(
            name, wrapped, 7 if seed < len(CASES) else 2000, seed
        )


def test_large_ones_under_way(wrapped):
    names = ["allreduce", "bcast_last", "allreduce_in_place"]
    calls = [CASES[name](wrapped, LARGE) for name in names]
    for call in calls:
        call.fill(1)
    requests = [call.begin(wrapped) for call in calls]
    for request in reversed(requests):
        request.Wait()
    for call, name in zip(calls, names, strict=True):
        assert call.result.tobytes() == reference(name, wrapped, LARGE, 1)


@pytest.mark.parametrize("seed", range(3))
def test_waits_in_an_order_of_the_rank_s_own(wrapped, seed):
    outs = [np.empty(500 * k + 1) for k in range(8)]
    requests = [wrapped.Iallreduce(mine(wrapped, len(out), k), out) for k, out in enumerate(outs)]
    for k in np.random.default_rng([seed, wrapped.rank]).permutation(len(outs)).tolist():
        requests[k].Wait()
        np.testing.assert_array_equal(outs[k], total(wrapped, len(outs[k]), k))


def test_in_company_of_blocking_calls_and_messages(wrapped):
    right, left = (wrapped.rank + 1) % wrapped.size, (wrapped.rank - 1) % wrapped.size
    for n in (10, 30_000):
        out, other, between = np.empty(n), np.full(n, wrapped.rank), np.empty(n)
        told = np.full(n, -1)
        requests = [wrapped.Iallreduce(mine(wrapped, n), out)]
        wrapped.Allreduce(mine(wrapped, n, 1), between)
        requests.append(wrapped.Irecv(told, left))
        requests.append(wrapped.Ibcast(other, wrapped.size - 1))
        requests.append(wrapped.Isend(np.full(n, wrapped.rank), right))
        np.testing.assert_array_equal(between, total(wrapped, n, 1))
        assert wrapped.allreduce(1) == wrapped.size
        MPI.Request.Waitall(requests)
        assert all(request == MPI.REQUEST_NULL for request in requests)
        np.testing.assert_array_equal(out, total(wrapped, n))
        assert (other == wrapped.size - 1).all()
        assert (told == left).all()


def test_waits_of_mpi_for_some(wrapped):
    outs = [np.empty(300) for _ in range(5)]
    requests = [wrapped.Iallreduce(mine(wrapped, 300, k), out) for k, out in enumerate(outs)]
    first = MPI.Request.Waitany(requests)
    np.testing.assert_array_equal(outs[first], total(wrapped, 300, first))
    seen = [first]
    while len(seen) < len(outs):
        seen += MPI.Request.Waitsome(requests)
    assert sorted(seen) == list(range(len(outs)))
    assert MPI.Request.Waitsome(requests) is None
    assert MPI.Request.Testall(requests)
    for k, out in enumerate(outs):
        np.testing.assert_array_equal(out, total(wrapped, 300, k))


@first_call_is_local
def test_two_communicators(comm):
    one, other = hpccoll.Comm(comm), hpccoll.Comm(comm).Dup()
    a, b = np.empty(2000), np.empty(2000)
    # In another order on every other rank: only that of one communicator counts.
    pairs = [(one, a), (other, b)]
    requests = [
        each.Iallreduce(mine(comm, 2000), out)
        for each, out in (pairs if comm.rank % 2 else pairs[::-1])
    ]
    for request in requests:
        request.Wait()
    assert a.tobytes() == b.tobytes() == total(comm, 2000).tobytes()
    other.Free()


def test_two_objects_of_one_communicator(comm):
    one, other = hpccoll.Comm(comm, algorithm="ring"), hpccoll.Comm(comm, algorithm="circulant")
    outs = [np.empty(5000) for _ in range(4)]
    requests = [
        each.Iallreduce(mine(comm, 5000), out)
        for each, out in zip((one, other, one, other), outs, strict=True)
    ]
    for request in requests:
        request.Wait()
    assert [request.call.algorithm for request in requests] == ["ring", "circulant"] * 2
    assert (one.last_call.algorithm, other.last_call.algorithm) == ("ring", "circulant")
    assert len({out.tobytes() for out in outs}) == 1


def test_operations_of_the_user_run_in_the_mpi_library(wrapped):
    def multiply(x, y, datatype):
        mine = np.frombuffer(y, "i4")
        mine *= np.frombuffer(x, "i4")

    op = MPI.Op.Create(multiply, commute=True)
    x, out = np.full(5, 2, "i4"), np.empty(5, "i4")
    wrapped.Iallreduce(x, out, op).Wait()
    op.Free()
    assert out.tolist() == [2**wrapped.size] * 5


# Progress.


def test_a_loop_of_test_ends_before_the_others_wait(wrapped):
    for n in (10, LARGE):
        out = np.empty(n)
        request = wrapped.Iallreduce(mine(wrapped, n), out)
        while not request.Test():
            time.sleep(1e-4)
        wrapped.Barrier()
        assert request == MPI.REQUEST_NULL
        assert request.Test() is True
        assert request.test() == (True, None)
        np.testing.assert_array_equal(out, total(wrapped, n))


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("n", [10, LARGE])
def test_a_call_completes_while_a_rank_computes(wrapped, n):
    wrapped.Ibarrier().Wait()
    out = np.empty(n)
    request = wrapped.Iallreduce(mine(wrapped, n), out)
    if wrapped.rank == 0:
        # The others tell when they are done; until then this rank is in no call of anybody's.
        # It computes for longer than CPython's switch interval at a time: whoever lets go of the
        # interpreter lock more often than that, for an instant, can keep it from all other threads
        # (they ask for it only after a whole interval in which nobody let go of it).
        deadline = time.monotonic() + 20
        while not wrapped.Iprobe(tag=9) and time.monotonic() < deadline:
            until = time.perf_counter() + 4 * sys.getswitchinterval()
            while time.perf_counter() < until:
                pass
        assert all(wrapped.recv(source=rank, tag=9) for rank in range(1, wrapped.size))
        assert time.monotonic() < deadline
        request.Wait()
    else:
        request.Wait()
        wrapped.send(True, 0, tag=9)
    np.testing.assert_array_equal(out, total(wrapped, n))


def test_the_first_call_is_local_on_mpich(comm):
    if MPI.get_vendor()[0] != "MPICH":
        pytest.skip("collective there")
    if comm.rank == 0:
        comm.recv(source=comm.size - 1) if comm.size > 1 else None
    request = hpccoll.Comm(comm).Ibarrier()
    if comm.rank == comm.size - 1 > 0:
        comm.send(None, 0)
    request.Wait()


# Handles.


def test_handles_give_what_the_functions_give(comm):
    size, rank = comm.size, comm.rank
    for n in (5, 3000):
        x = mine(comm, n)
        rows = np.full((rank + 1, 2), rank)
        pairs = [
            (hpccoll.iallreduce(x, comm=comm), hpccoll.allreduce(x, comm=comm)),
            (hpccoll.iallreduce(x, "mean", comm=comm), hpccoll.allreduce(x, "mean", comm=comm)),
            (
                hpccoll.ireduce(x, "max", size - 1, comm=comm),
                hpccoll.reduce(x, "max", size - 1, comm=comm),
            ),
            (hpccoll.ireduce_scatter(x, comm=comm), hpccoll.reduce_scatter(x, comm=comm)),
            (hpccoll.iallgather(rows, comm=comm), hpccoll.allgather(rows, comm=comm)),
            (hpccoll.iallgather(x[:2], comm=comm), hpccoll.allgather(x[:2], comm=comm)),
            (
                hpccoll.ibroadcast(x.copy(), size - 1, comm=comm),
                hpccoll.broadcast(x.copy(), size - 1, comm=comm),
            ),
            (hpccoll.ibarrier(comm), hpccoll.barrier(comm)),
            (hpccoll.iallreduce(rank + 1, comm=comm), size * (size + 1) // 2),
        ]
        for handle, wanted in reversed(pairs):
            result = handle.wait()
            assert type(result) is type(wanted)
            if wanted is not None:
                np.testing.assert_array_equal(result, wanted, strict=True)
            assert handle.done
            assert handle.test()


def test_out_is_what_comes_back(comm):
    out = np.empty(1000)
    handle = hpccoll.iallreduce(mine(comm, 1000), out=out, comm=comm)
    assert handle.wait() is out
    np.testing.assert_array_equal(out, total(comm, 1000))
    whole = np.full(2 * comm.size, float(comm.rank))
    assert hpccoll.iallgather(whole[:2], out=whole.copy(), comm=comm).wait().size == whole.size


def test_a_handle_can_be_waited_for_once(comm):
    handle = hpccoll.iallreduce(np.ones(3), comm=comm)
    handle.wait()
    text = (
        rf"^iallreduce: wait on a handle that was waited for \(rank {comm.rank} of {comm.size}\)$"
    )
    with pytest.raises(RuntimeError, match=text):
        handle.wait()
    assert handle.call.collective == "allreduce"


def test_buffers_live_until_the_call_is_complete(comm):
    handles = []
    gone = []
    for seed in range(20):
        x = mine(comm, 20_000, seed)
        gone.append(weakref.ref(x))
        handles.append(hpccoll.iallreduce(x, comm=comm))
        del x
        gc.collect(0)
    rubbish = [np.full(20_000, np.nan) for _ in range(20)]  # would take the place of freed memory
    for seed, handle in enumerate(handles):
        np.testing.assert_array_equal(handle.wait(), total(comm, 20_000, seed))
    del rubbish, handles, handle
    hpccoll.ibarrier(comm).wait()
    gc.collect()
    assert [each for each in gone if each() is not None] == []


def test_requests_keep_their_buffers(wrapped):
    outs = []
    requests = []
    for seed in range(10):
        outs.append(np.empty(20_000))
        requests.append(wrapped.Iallreduce(mine(wrapped, 20_000, seed), outs[-1]))
        gc.collect(0)
    MPI.Request.Waitall(requests)
    for seed, out in enumerate(outs):
        np.testing.assert_array_equal(out, total(wrapped, 20_000, seed))


# Errors.


def test_wrong_arguments_are_told_at_the_call(comm, wrapped):
    x, out = np.ones(4), np.empty(4)
    where = rf" \(rank {comm.rank} of {comm.size}\)$"
    with pytest.raises(ValueError, match="^Iallreduce: recvbuf has 3 elements.*" + where):
        wrapped.Iallreduce(x, out[:3].copy())
    with pytest.raises(TypeError, match="^Iallreduce: .*dtype.*" + where):
        wrapped.Iallreduce(x, np.empty(4, "f4"))
    out.flags.writeable = False
    with pytest.raises(BufferError, match="^Iallreduce: recvbuf is read-only.*" + where):
        wrapped.Iallreduce(x, out)
    with pytest.raises(ValueError, match="^Ibcast: root is .*" + where):
        wrapped.Ibcast(x, comm.size)
    with pytest.raises(ValueError, match="^Ireduce_scatter: sendbuf has 4 elements.*" + where):
        wrapped.Ireduce_scatter(x, x.copy(), [5] * comm.size)
    with pytest.raises(ValueError, match=r"^iallreduce: unknown algorithm 'rings'"):
        hpccoll.iallreduce(x, comm=comm, algorithm="rings")
    with pytest.raises(TypeError, match=r"^iallgather: x is MPI.IN_PLACE"):
        hpccoll.iallgather(MPI.IN_PLACE, comm=comm)
    with pytest.raises(ValueError, match=r"^ibarrier: comm is MPI.COMM_NULL"):
        hpccoll.ibarrier(MPI.COMM_NULL)
    with pytest.raises(ValueError, match=r"^Ibarrier: the communicator is MPI.COMM_NULL"):
        hpccoll.Comm().Ibarrier()
    check_next_calls(wrapped)


MISMATCH = r"expected .* got|of another type or for another op|given up|different calls"
several = pytest.mark.mpi(min_size=2)


def odd_call(comm, n):
    """Begin a call that does not fit on one rank."""
    out = np.empty(n + (comm.rank == comm.size - 1))
    return comm.Iallreduce(np.ones(out.size), out)


def wait_by(wait):
    """Call a function until it does not return False."""
    while wait() is False:
        time.sleep(1e-4)


@several
@pytest.mark.parametrize("n", [2, 3000, 150_000])
def test_a_mismatch_is_told_to_who_waits(wrapped, n):
    for way in ("Wait", "Test", "handle", "operation"):
        if way == "handle":
            call = hpccoll.iallreduce(np.ones(n + (wrapped.rank == 0)), comm=wrapped)
            wait = call.wait
        elif way == "operation":
            op = MPI.MAX if wrapped.rank == 0 else MPI.SUM
            call = wrapped.Iallreduce(np.ones(n), np.empty(n), op)
            wait = call.Wait
        else:
            call = odd_call(wrapped, n)
            wait = getattr(call, way)
        with pytest.raises(ValueError, match=rf"^[Ii]allreduce: .*({MISMATCH})"):
            wait_by(wait)
        assert call.call is None
        check_next_calls(wrapped)


@several
@pytest.mark.parametrize("n", [2, 3000])
def test_a_mismatch_among_many(wrapped, n):
    good = [np.empty(n) for _ in range(2)]
    requests = [
        wrapped.Iallreduce(mine(wrapped, n), good[0]),
        odd_call(wrapped, n),
        wrapped.Iallreduce(mine(wrapped, n, 1), good[1]),
    ]
    given = list(requests)
    with pytest.raises(MPI.Exception):
        MPI.Request.Waitall(requests)
    with pytest.raises(ValueError, match=rf"^Iallreduce: .*({MISMATCH})"):
        given[1].Wait()
    assert given[1].Wait() is True  # told once
    for request in (given[0], given[2]):
        assert request.Wait() is True
    np.testing.assert_array_equal(good[0], total(wrapped, n))
    np.testing.assert_array_equal(good[1], total(wrapped, n, 1))
    check_next_calls(wrapped)


@several
def test_rows_that_do_not_fit_are_told_to_who_waits(comm):
    handle = hpccoll.iallgather(np.ones((2, 3 if comm.rank else 4)), comm=comm)
    with pytest.raises(ValueError, match=r"^iallgather: x has rows of shape"):
        handle.wait()
    with pytest.raises(RuntimeError, match=r"^iallgather: wait on a handle"):
        handle.wait()
    assert hpccoll.iallgather(np.ones(2), comm=comm).wait().size == 2 * comm.size


# Communicators that go.


def threads():
    return [each.name for each in threading.enumerate() if "hpccoll" in each.name]


@pytest.mark.parametrize("make", ["Dup", "Split"])
def test_no_thread_is_left_when_a_communicator_is_freed(comm, make):
    before = threads()
    for _ in range(5):
        made = (
            hpccoll.Comm(comm).Dup() if make == "Dup" else hpccoll.Comm(comm).Split(comm.rank % 2)
        )
        out = np.empty(100)
        made.Iallreduce(mine(made, 100), out).Wait()
        np.testing.assert_array_equal(out, total(made, 100))
        assert len(threads()) == len(before) + 1
        made.Free()
        assert threads() == before


@pytest.mark.parametrize("blocking_first", [False, True])
@pytest.mark.parametrize("kind", ["hpccoll.Comm", "mpi4py's"])
def test_a_communicator_is_freed_while_a_call_is_under_way(comm, kind, blocking_first):
    before = threads()
    for n in (10, LARGE, 10):
        made = hpccoll.Comm(comm).Dup() if kind == "hpccoll.Comm" else comm.Dup()
        if blocking_first:
            hpccoll.barrier(made)
        if comm.rank == comm.size - 1:
            time.sleep(0.05)
        handle = hpccoll.iallreduce(mine(comm, n), comm=made)
        request = MPI.REQUEST_NULL
        if kind == "hpccoll.Comm":
            out = np.empty(n)
            request = made.Iallreduce(mine(comm, n, 1), out)
        made.Free()
        request.Wait()
        if kind == "hpccoll.Comm":
            np.testing.assert_array_equal(out, total(comm, n, 1))
        np.testing.assert_array_equal(handle.wait(), total(comm, n))
    deadline = time.monotonic() + 10
    while threads() != before and time.monotonic() < deadline:
        time.sleep(1e-3)
    assert threads() == before


def test_threads_of_the_user_s_have_a_communicator_each(comm):
    comms = [hpccoll.Comm(comm).Dup() for _ in range(3)]
    wrong = []

    def work(made):
        for seed in range(30):
            out = np.empty(seed * 50 + 1)
            requests = [made.Iallreduce(mine(comm, out.size, seed), out), made.Ibarrier()]
            MPI.Request.Waitall(requests)
            if out.tobytes() != total(comm, out.size, seed).tobytes():
                wrong.append(seed)

    workers = [threading.Thread(target=work, args=[made]) for made in comms]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    for made in comms:
        made.Free()
    assert wrong == []


# Programs of their own: what MPI is started with, and how they end.

FUNNELED = """
import mpi4py
mpi4py.rc.thread_level = "funneled"
import numpy as np, hpccoll
from mpi4py import MPI
if MPI.Query_thread() == MPI.THREAD_MULTIPLE:
    print("ok", flush=True)
    raise SystemExit
comm = hpccoll.Comm(MPI.COMM_WORLD)
assert hpccoll.info()["nonblocking"]["progress"] == "in test and wait"
assert "THREAD_MULTIPLE" in hpccoll.info()["nonblocking"]["note"]
rank, size = comm.rank, comm.size
for n in (5, 100_000):
    x, out, other = np.full(n, rank + 1.0), np.empty(n), np.empty(n)
    y = np.full(n, rank)
    right, left, told = (rank + 1) % size, (rank - 1) % size, np.empty(1)
    MPI.Request.Waitall([
        comm.Iallreduce(x, out), comm.Ibcast(y, size - 1), comm.Isend(x[:1], right),
        comm.Irecv(told, left), comm.Ibarrier(),
    ])
    assert (out == size * (size + 1) / 2).all() and (y == size - 1).all() and told == left + 1
    request = comm.Iallreduce(x, out, "mean")
    request.Wait()
    assert (out == (size + 1) / 2).all()
    request = comm.Iallreduce(x, out, "mean")
    while not request.Test():
        pass
    one, two = hpccoll.iallreduce(x, comm=comm), hpccoll.iallreduce(x, "max", comm=comm)
    assert (two.wait() == size).all() and (one.wait() == size * (size + 1) / 2).all()
    three = hpccoll.iallgather(x[:2], comm=comm)
    assert three.test() and three.done and three.wait().size == 2 * size
    persistent = comm.Allreduce_init(x, other), comm.Allreduce_init(x, out, MPI.MAX)
    for step in range(3):
        x[:] = rank + step
        for each in persistent:
            each.Start()
        if step == 2:
            assert persistent[1].Test()
        for each in reversed(persistent):
            each.Wait()
        assert (out == size - 1 + step).all()
        assert (other == size * (size - 1) / 2 + size * step).all()
    for each in persistent:
        each.Free()
    results = hpccoll.allreduce_many([x, x[:3]], "max", comm=comm)
    assert (results[0] == size + 1).all() and len(results[1]) == 3
    made = comm.Dup()
    made.Iallreduce(x, out, "mean").Wait()
    made.Free()
print("ok", flush=True)
"""

ENDS = {
    "waits for none": "request = comm.Iallreduce(np.ones(n), out)",
    "starts and waits for none": "comm.Allreduce_init(np.ones(n), out).Start()",
    "drops it": "comm.Iallreduce(np.ones(n), out)\nimport gc; gc.collect()",
    "comes late": "import time; time.sleep(0.5 * comm.rank)\nhpccoll.iallreduce(np.ones(n))",
    "is on a duplicate": "made = comm.Dup()\nmade.Iallreduce(np.ones(n), out)",
    "has raised": "comm.Iallreduce(np.ones(n + comm.rank), np.empty(n + comm.rank))",
}


def start(comm, program, ranks, limit=30):
    """Run a program under mpiexec from rank 0; return how it ended."""
    done = None
    if comm.rank == 0:
        done = Launcher.find().run(ranks, [sys.executable, "-c", program], limit, cwd=ROOT)
    # The others sleep in Python: they share the cores with what runs.
    request = comm.Ibarrier()
    while not request.Test():
        time.sleep(0.01)
    return done


@pytest.mark.parametrize("ranks", [1, 3])
def test_below_thread_multiple(comm, ranks):
    if comm.size != 2:
        pytest.skip("once is enough")
    done = start(comm, FUNNELED, ranks)
    if done:
        assert done.status == 0, done.output
        assert done.output.count("ok") == ranks, done.output


@pytest.mark.parametrize("n", [3, LARGE])
@pytest.mark.parametrize("name", ENDS)
def test_a_process_may_end_without_a_wait(comm, name, n):
    if comm.size != 1 or (n == LARGE and name not in ("waits for none", "comes late")):
        pytest.skip("once is enough")
    program = (
        "import numpy as np, hpccoll\nfrom mpi4py import MPI\n"
        f"comm = hpccoll.Comm(MPI.COMM_WORLD)\nn = {n}\nout = np.empty(n)\n{ENDS[name]}"
    )
    done = start(comm, program, 2, limit=20)
    assert done.status == 0, done.output
    assert not done.ended_by_us


@pytest.mark.parametrize("bucket_bytes", [8, 10**7])
@pytest.mark.parametrize("n", [4, 100_000])
def test_results_of_many_may_go_to_the_memory_of_other_arrays(comm, n, bucket_bytes):
    first, second = mine(comm, n), mine(comm, n, 1)
    results = hpccoll.allreduce_many(
        [first, second], out=[second, first], comm=comm, bucket_bytes=bucket_bytes
    )
    np.testing.assert_array_equal(results[0], total(comm, n))
    np.testing.assert_array_equal(results[1], total(comm, n, 1))
    assert results[0] is second
    assert results[1] is first
