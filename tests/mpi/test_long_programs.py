"""Life in a long program: nothing grows, threads and messages keep apart, children are refused."""

import gc
import multiprocessing
import os
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from begun import mine, total
from meanwhile import in_threads
from mpi4py import MPI

import hpccoll
from hpccoll import _arena, arena, channel, node, progress

SHARING = ["auto", "window", "off"]

needs_threads = pytest.mark.skipif(
    MPI.Query_thread() < MPI.THREAD_MULTIPLE, reason="MPI without THREAD_MULTIPLE"
)


@pytest.fixture(name="sharing", params=SHARING)
def what_ranks_share(request, monkeypatch):
    """Have communicators that are new share memory of this kind."""
    monkeypatch.setenv(node.VARIABLE, request.param)
    return request.param


# Growth.


def holdings():
    """Return what this process holds that a cycle might leave behind, by name."""
    gc.collect()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    return {
        # `VmRSS` without what is mapped from files, such as libraries.
        "memory": sum(
            int(line.split()[1]) << 10
            for line in status.splitlines()
            if line.startswith(("RssAnon:", "RssShmem:"))
        ),
        "blocks of Python's": sys.getallocatedblocks(),
        "files": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
        "mappings": len(Path("/proc/self/maps").read_bytes().splitlines()),
        "threads": threading.active_count(),
        "channels": len(channel._channels),
        "queues": len(progress._all),
        "peers": len(arena._peers),
        "blocks in the arena": _arena.live() if _arena.is_open() else 0,
        "bytes in the arena": _arena.used() if _arena.is_open() else 0,
        "regions": sum(map(_arena_region, range(1, 32))),
    }


def _arena_region(number):
    try:
        return _arena.live(number) >= 0
    except ValueError:
        return False


def blocking(made, x, out):
    made.Allreduce(x, out)


def begun(made, x, out):
    made.Iallreduce(x, out).Wait()


def prepared(made, x, out):
    request = made.Allreduce_init(x, out)
    request.Start()
    request.Wait()
    request.Free()


def by_all_doors(made, x, out):
    blocking(made, x, out)
    begun(made, x, out)
    prepared(made, x, out)
    hpccoll.allreduce_many([x, x[:3]], comm=made, out=[out, out[:3].copy()])
    hpccoll.allreduce(x, out=out, comm=made, algorithm="ring")


CALLS = {
    "blocking": (blocking, 300),
    "begun": (begun, 150),
    "prepared": (prepared, 100),
    "by all doors": (by_all_doors, 50),
}
"""What is called on each communicator, and on how many."""


def fewer(comm, cycles):
    """Return for how many communicators there is time; fewer where ranks share a core."""
    return cycles // {1: 1, 2: 1, 3: 5, 4: 5}.get(comm.size, 12)


def live(comm, call, cycles, counts=(100,)):
    """Split, all-reduce, free; return the numbers by which MPI knew the communicators."""
    wrapped = hpccoll.Comm(comm)
    numbers = set()
    for cycle in range(cycles):
        made = wrapped.Split(0, wrapped.rank)
        numbers.add(made.py2f())
        for count in counts:
            x, out = np.full(count, cycle + made.rank, float), np.empty(count)
            call(made, x, out)
            wanted = made.size * cycle + made.size * (made.size - 1) // 2
            assert (out == wanted).all()
        made.Free()
    return numbers


def check_growth(before, after, cycles, most_memory):
    """Check that no cycle has left anything behind."""
    grown = {name: after[name] - before[name] for name in before}
    memory, blocks = grown.pop("memory"), grown.pop("blocks of Python's")
    # A mapping may be split, or a pool of threads' memory made, once.
    mappings = grown.pop("mappings")
    assert {name: more for name, more in grown.items() if more > 0} == {}
    assert blocks < 1000, blocks  # free lists and the like, which fill up once
    assert mappings < max(6, cycles / 20), mappings
    assert memory < most_memory, memory


@pytest.mark.limit(180)
@pytest.mark.parametrize("name", CALLS)
def test_communicators_come_and_go_and_leave_nothing(comm, sharing, name):
    call, most = CALLS[name]
    cycles = fewer(comm, most)
    live(comm, call, 10)
    before = holdings()
    numbers = live(comm, call, cycles)
    after = holdings()
    check_growth(before, after, cycles, 4 << 20)
    # MPI gives the lowest number that is free: those that are not freed would use them up.
    assert len(numbers) <= 8


@pytest.mark.limit(60)
def test_large_vectors_come_and_go(comm, sharing):
    cycles, counts = fewer(comm, 24), (300, 100_000)
    live(comm, by_all_doors, 5, counts)
    before = holdings()
    live(comm, by_all_doors, cycles, counts)
    check_growth(before, holdings(), cycles, 8 << 20)


@pytest.mark.slow
@pytest.mark.limit(1500)
@pytest.mark.parametrize(("call", "most_memory"), [(blocking, 6 << 20), (begun, 24 << 20)])
def test_20_000_communicators(comm, call, most_memory):
    # UCX keeps 140 bytes for each mapping that a process gives up; for a thread it has several.
    # With UCX_MEM_EVENTS=n nothing grows.
    if comm.size != 2:
        pytest.skip("once is enough")
    live(comm, call, 500)
    before = holdings()
    numbers = live(comm, call, 20_000)
    check_growth(before, holdings(), 20_000, most_memory)
    assert len(numbers) <= 8


# A communicator that is forgotten.


def test_a_communicator_that_one_rank_forgets_keeps_nobody_waiting(comm, sharing):
    wrapped = hpccoll.Comm(comm)
    kept, numbers = [], []
    for n in (10, 50_000):
        made = wrapped.Dup()
        out = np.empty(n)
        made.Allreduce(mine(comm, n), out)
        made.Iallreduce(mine(comm, n), out).Wait()
        step = made.Allreduce_init(mine(comm, n), out)
        step.Start()
        step.Wait()
        if comm.rank != comm.size - 1:
            kept.append(made)
        numbers.append(made.py2f())
        del made, step
        gc.collect()
        wrapped.Allreduce(mine(comm, n, 1), out)
        np.testing.assert_array_equal(out, total(comm, n, 1))
        again = wrapped.Dup()
        again.Iallreduce(mine(comm, n, 2), out).Wait()
        np.testing.assert_array_equal(out, total(comm, n, 2))
        again.Free()
    # By its number in MPI it can still be freed, so that no thread of it is left to later tests.
    for number in numbers:
        MPI.Comm.f2py(number).Free()


# Threads.


@needs_threads
def test_two_threads_on_two_communicators(comm, sharing):
    comms = [hpccoll.Comm(comm).Dup() for _ in range(2)]
    for made in comms:  # Open MPI mixes up communicators that two threads make
        made.Allreduce(MPI.IN_PLACE, np.ones(1))
        made.Ibarrier().Wait()

    def job(number):
        made = comms[number]
        for seed in range(number, fewer(comm, 48), 2):
            for n in (1 + seed, 3000):
                out, begun_out = np.empty(n), np.empty(n)
                request = made.Iallreduce(mine(comm, n, seed + 1), begun_out)
                made.Allreduce(mine(comm, n, seed), out)
                request.Wait()
                assert out.tobytes() == total(comm, n, seed).tobytes()
                assert begun_out.tobytes() == total(comm, n, seed + 1).tobytes()

    jobs = [lambda: job(0), lambda: job(1)]
    in_threads(jobs if comm.rank % 2 else reversed(jobs))
    for made in comms:
        made.Free()


@needs_threads
@pytest.mark.parametrize("n", [3, 1000, 30_000])
@pytest.mark.parametrize("door", ["method", "function", "begun"])
def test_two_threads_on_one_communicator_are_not_mixed(comm, sharing, door, n):
    # Which calls of the ranks meet is chance. But each is one call of each rank: the digit of a
    # rank in a sum tells which of its threads it was, and is the same in the whole vector.
    made = hpccoll.Comm(comm).Dup()
    made.Ibarrier().Wait()
    calls = max(4, fewer(comm, 15))
    sums = []

    def job(thread):
        x = np.full(n, (1 + thread) * 4.0**made.rank)
        for _ in range(calls):
            out = np.empty(n)
            if door == "method":
                made.Allreduce(x, out)
            elif door == "function":
                hpccoll.allreduce(x, out=out, comm=made)
            else:
                made.Iallreduce(x, out).Wait()
            assert (out == out[0]).all()
            sums.append(int(out[0]))

    in_threads([lambda: job(0), lambda: job(1)])
    everyone = comm.allgather(sorted(sums))
    assert all(other == everyone[0] for other in everyone)
    for rank in range(comm.size):
        threads = [value // 4**rank % 4 for value in sums]
        assert sorted(threads) == [1] * calls + [2] * calls
    made.Free()


# Messages of the user.


def test_receives_from_anyone_meet_no_message_of_ours(comm, sharing):
    # All that travels by itself: first calls, non-blocking and persistent ones, barriers.
    status, buffer = MPI.Status(), np.full(3, -1.0)
    everything = [
        where.Irecv(np.empty(3), MPI.ANY_SOURCE, MPI.ANY_TAG) for where in (MPI.COMM_WORLD, comm)
    ]
    caught = comm.Irecv(buffer, MPI.ANY_SOURCE, MPI.ANY_TAG)
    for n in (1, 100, 50_000):
        made = hpccoll.Comm(comm).Dup()
        out = np.empty(n)
        listening = made.Irecv(np.empty(3), MPI.ANY_SOURCE, MPI.ANY_TAG)
        step = made.Allreduce_init(mine(comm, n), out)
        requests = [made.Iallreduce(mine(comm, n), np.empty(n)), made.Ibarrier()]
        step.Start()
        made.Barrier()
        hpccoll.allreduce(mine(comm, n), comm=made, algorithm="ring", segment_bytes=4096)
        for _ in range(20):
            for where in (MPI.COMM_WORLD, comm, made):
                assert not where.Iprobe(MPI.ANY_SOURCE, MPI.ANY_TAG)
        MPI.Request.Waitall(requests)
        step.Wait()
        np.testing.assert_array_equal(out, total(comm, n))
        listening.Cancel()
        listening.Wait(status)
        assert status.Is_cancelled()
        made.Free()
    for request in (everything[1], caught, everything[0]):
        request.Cancel()
        request.Wait(status)
        assert status.Is_cancelled()
    assert buffer.tolist() == [-1.0] * 3


# Forked children.


class Parent:
    """What a rank has used, and has under way, when it forks."""

    def __init__(self, comm, n):
        self.comm, self.n = hpccoll.Comm(comm).Dup(), n
        self.x, self.out, self.other = mine(comm, n), np.empty(n), np.empty(n)
        self.new = MPI.COMM_SELF.Dup()
        self.own_op = MPI.Op.Create(lambda *_: None)
        self.step = self.comm.Allreduce_init(self.x, self.out)
        self.started = self.comm.Allreduce_init(self.x, self.out)
        self.bucketer = hpccoll.Bucketer(comm=self.comm)
        self.handle = self.request = None
        for _ in range(2):
            self.call_all()

    def call_all(self):
        """Make one call of each kind that a child must not make."""
        self.comm.Allreduce(self.x, self.out)
        self.comm.Barrier()
        self.comm.Iallreduce(self.x, self.out).Wait()
        self.step.Start()
        self.step.Wait()
        self.bucketer.ready("x", self.x.copy())
        self.bucketer.wait()

    def begin(self, only_one):
        """Begin what is under way when a rank forks; if only one, nobody else runs that."""
        self.started.Start()
        if not only_one:
            self.handle = hpccoll.iallreduce(self.x, comm=self.comm)
            self.request = self.comm.Iallreduce(self.x, self.other)

    def complete(self):
        """Wait for what was begun, and check it."""
        wanted = total(self.comm, self.n)
        self.started.Wait()
        np.testing.assert_array_equal(self.out, wanted)
        if self.handle is not None:
            np.testing.assert_array_equal(self.handle.wait(), wanted)
            self.request.Wait()
            np.testing.assert_array_equal(self.other, wanted)

    def free(self):
        """Give all back."""
        self.comm.Free()
        self.new.Free()
        self.own_op.Free()

    def calls(self):
        """Return what a child might call, by name; all is to be refused, and again."""
        comm, x, out = self.comm, self.x, self.out
        return {
            "a call that repeats": lambda: comm.Allreduce(x, out),
            "a new one": lambda: comm.Allreduce(x[:1], out[:1]),
            "a function": lambda: hpccoll.allreduce(x, comm=comm),
            "on a new communicator": lambda: hpccoll.allreduce(x, comm=self.new),
            "a barrier": comm.Barrier,
            "the MPI library's": lambda: comm.Allreduce(x, out, self.own_op),
            "begun": lambda: comm.Iallreduce(x, out),
            "begun, the MPI library's": lambda: comm.Iallreduce(x, out, self.own_op),
            "begun, a function": lambda: hpccoll.iallreduce(x, comm=comm),
            "begun, on a new communicator": lambda: hpccoll.iallreduce(x, comm=self.new),
            "prepared": lambda: comm.Allreduce_init(x, out),
            "prepared, the MPI library's": lambda: comm.Allreduce_init(x, out, self.own_op),
            "started": self.step.Start,
            "fused": lambda: hpccoll.allreduce_many([x, x], comm=comm),
            "freed": comm.Free,
        }

    def waits(self):
        """Return what tells once that what was begun does not complete, by name."""
        waits = {
            "started before": self.started.Wait,
            "gradients": lambda: (self.bucketer.ready("x", self.x), self.bucketer.wait()),
        }
        if self.handle is not None:
            # A loop of tests must end, too.
            waits["a handle"] = lambda: self.handle.test() and self.handle.wait()
            waits["a request"] = self.request.Test
        return waits

    def in_child(self, pipe):
        """Try everything in a child, and tell what was not refused."""
        calls = self.calls()
        for name, call in [*self.waits().items(), *calls.items(), *calls.items()]:
            try:
                call()
                os.write(pipe, f"{name} was not refused\n".encode())
            except Exception as error:  # noqa: PERF203
                if type(error) is not RuntimeError or "forked child" not in str(error):
                    os.write(pipe, f"{name}: {error!r}\n".encode())
        os.write(pipe, b"end\n")

    def fork(self, how):
        """Have a child try; return what it has told."""
        read, write = os.pipe()
        if how == "multiprocessing":
            context = multiprocessing.get_context("fork")
            child = context.Process(target=self.in_child, args=(write,))
            child.start()
        else:
            number = os.fork()
            if number == 0:
                try:
                    self.in_child(write)
                finally:
                    os._exit(0)
        os.close(write)
        with os.fdopen(read) as pipe:
            said = pipe.read()
        if how == "multiprocessing":
            child.join()
        else:
            os.waitpid(number, 0)
        return said


@pytest.mark.mpi(min_size=2)
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("n", [10, 50_000])
@pytest.mark.parametrize("how", ["os.fork", "multiprocessing"])
@pytest.mark.parametrize("only_one", [True, False])
def test_a_forked_child_is_refused_whatever_it_calls(comm, how, n, only_one):
    parent = Parent(comm, n)
    comm.Barrier()
    said = ""
    if comm.rank == 0:
        # The others begin later: nothing of this can be complete when this rank forks.
        parent.begin(only_one)
        said = parent.fork(how)
    said = comm.bcast(said)
    if comm.rank:
        parent.begin(only_one)
    parent.complete()
    parent.call_all()
    parent.free()
    assert said == "end\n"
