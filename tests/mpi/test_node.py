"""The node path across processes: what takes it, shared arrays, settings, failures."""

import threading
import time
from pathlib import Path

import numpy as np
import pytest
from inputs import contribution, digest, expected
from meanwhile import interrupted
from mpi4py import MPI

import hpccoll
from hpccoll import _arena
from hpccoll.algorithms import ALGORITHMS
from hpccoll.channel import channel_of
from hpccoll.node import CHOICES

COUNTS = (1, 10, 11, 1000, 20_000, 70_001, 300_000)

several = pytest.mark.mpi(min_size=2)


def check(comm, make=np.empty, counts=COUNTS, dtype="float32", op="sum"):
    """Reduce in place and out of place, and return the last calls."""
    wrapped = hpccoll.Comm(comm)
    calls = []
    for seed, count in enumerate(counts):
        want = expected(count, dtype, op, comm.size, seed)
        x, out = make(count, dtype), make(count, dtype)
        x[:] = contribution(comm.rank, count, dtype, op, comm.size, seed)
        wrapped.Allreduce(x, out, op)
        calls.append(wrapped.last_call)
        assert out.tobytes() == want.tobytes()
        wrapped.Allreduce(MPI.IN_PLACE, x, op)
        calls.append(wrapped.last_call)
        assert x.tobytes() == want.tobytes()
    return calls


@several
@pytest.mark.parametrize(
    ("op", "dtype"),
    [("sum", "float32"), ("mean", "float16"), ("prod", "complex64"), ("max", "int8"), ("lor", "?")],
)
def test_auto_goes_through_the_memory_of_a_node(comm, op, dtype):
    calls = check(comm, op=op, dtype=dtype)
    assert {call.path for call in calls} == {"node"}
    assert {call.messages_sent for call in calls} == {0}
    assert {"in_line", "gathered"} <= {call.algorithm for call in calls}


@several
def test_a_named_algorithm_runs_as_itself(comm):
    x = np.ones(100)
    for name in ("ring", "recursive_doubling"):
        wrapped = hpccoll.Comm(comm, algorithm=name)
        wrapped.Allreduce(MPI.IN_PLACE, x)
        assert (wrapped.last_call.path, wrapped.last_call.algorithm) == ("point-to-point", name)


@several
def test_types_without_loops_go_by_messages(comm):
    wrapped = hpccoll.Comm(comm)
    x = np.full(10, comm.rank + 1, np.longdouble)
    assert (hpccoll.allreduce(x, comm=wrapped) == comm.size * (comm.size + 1) // 2).all()
    assert wrapped.last_call.path == "point-to-point"


@several
def test_shared_arrays_are_reduced_where_they_lie(comm):
    calls = check(comm, hpccoll.empty, (5000, 70_001, 300_000))
    assert {call.algorithm for call in calls} == {"shared"}
    with hpccoll.shared_arrays():
        calls = check(comm, counts=(5000, 70_001))
    assert {call.algorithm for call in calls} == {"shared"}


@several
def test_views_of_shared_arrays_are_found(comm):
    wrapped = hpccoll.Comm(comm)
    whole = hpccoll.full((40, 1000), -1.0)
    part = whole[10 + comm.rank : 30 + comm.rank]  # at another offset on each rank
    part[...] = contribution(comm.rank, 20_000, "float64", "sum", comm.size).reshape(part.shape)
    wrapped.Allreduce(MPI.IN_PLACE, part)
    assert wrapped.last_call.algorithm == "shared"
    assert part.tobytes() == expected(20_000, "float64", "sum", comm.size).tobytes()
    assert (whole[: 10 + comm.rank] == -1).all()
    assert (whole[30 + comm.rank :] == -1).all()


@several
def test_one_rank_has_a_private_array(comm):
    for count in (5000, 300_000):
        for odd in range(comm.size):
            x = np.empty(count) if comm.rank == odd else hpccoll.empty(count)
            x[:] = contribution(comm.rank, count, "float64", "sum", comm.size)
            result = hpccoll.allreduce(x, out=x, comm=comm)
            assert result.tobytes() == expected(count, "float64", "sum", comm.size).tobytes()


def test_all_paths_give_the_same_bits(comm):
    random = np.random.default_rng(comm.rank)
    for count in (3, 500, 40_000, 200_000):
        x = random.standard_normal(count) * 10.0 ** random.integers(-4, 4, count)
        shared = hpccoll.empty(count)
        shared[:] = x
        digests = {
            digest(hpccoll.allreduce(x, comm=comm, algorithm="recursive_doubling")),
            digest(hpccoll.allreduce(x, comm=comm)),
            digest(hpccoll.allreduce(shared, out=shared, comm=comm)),
        }
        assert len({*digests, *comm.allgather(digests.copy().pop())}) == 1


@several
@pytest.mark.parametrize("choice", CHOICES)
def test_what_the_ranks_share_can_be_chosen(comm, monkeypatch, choice):
    monkeypatch.setenv("HPCCOLL_NODE", choice)
    calls = check(comm)
    assert {call.path for call in calls} == {"point-to-point" if choice == "off" else "node"}
    nodes = hpccoll.info(comm)["nodes"]
    assert nodes["memory"] == {"auto": "arena", "off": "none"}.get(choice, choice)
    assert nodes["of_ranks"] == [0] * comm.size
    assert nodes["text"] == f"1 node of {comm.size} ranks"
    if choice == "window":
        x = hpccoll.empty(50_000, comm=comm)
        x[:] = contribution(comm.rank, 50_000, "float64", "sum", comm.size)
        wrapped = hpccoll.Comm(comm)
        wrapped.Allreduce(MPI.IN_PLACE, x)
        assert wrapped.last_call.algorithm == "shared"
        assert x.tobytes() == expected(50_000, "float64", "sum", comm.size).tobytes()


@several
@pytest.mark.parametrize(
    ("name", "value", "wanted"),
    [
        ("HPCCOLL_WAIT", "walk", "wanted one of auto, spin, yield, sleep"),
        ("HPCCOLL_NODE", "yes", "wanted one of auto, arena, window, off"),
    ],
)
def test_a_wrong_setting_is_an_error_on_all_ranks(comm, monkeypatch, name, value, wanted):
    everywhere = name == "HPCCOLL_NODE"  # rank 0's counts
    if everywhere or comm.rank == comm.size - 1:
        monkeypatch.setenv(name, value)
    for _ in range(2):
        with pytest.raises(ValueError, match=f"{name} is '{value}'; {wanted}"):
            hpccoll.allreduce(np.ones(3), comm=comm)
    monkeypatch.delenv(name, raising=False)
    check(comm, counts=(10, 1000))


@several
@pytest.mark.parametrize("wait", ["spin", "yield", "sleep"])
def test_every_way_to_wait(comm, monkeypatch, wait):
    monkeypatch.setenv("HPCCOLL_WAIT", wait)
    check(comm, counts=(1, 1000, 70_001))


@several
@pytest.mark.parametrize("nodes", ["one node", "two nodes"])
@pytest.mark.parametrize("name", ALGORITHMS)
def test_a_rank_that_names_an_algorithm(comm, monkeypatch, name, nodes):
    """The others wait in memory, and that one in another way; sometimes it passes more."""
    if nodes == "two nodes":
        if comm.size < 4:
            pytest.skip("too few ranks")
        labels = [str(2 * rank // comm.size) for rank in range(comm.size)]
        monkeypatch.setenv("HPCCOLL_NODES", ",".join(labels))
    for count, more in ((2, 0), (3000, 1), (300_000, 0)):
        for odd in (0, comm.size - 1):
            mine = comm.rank == odd
            algorithm = name if mine else "two_level" if name == "multi_leader" else None
            x = np.ones(count + more * mine)
            if nodes == "two nodes" and name == "two_level" and count > 3000:  # as "auto" there
                assert (hpccoll.allreduce(x, comm=comm, algorithm=algorithm) == comm.size).all()
                continue
            with pytest.raises(ValueError, match=r"^allreduce: .*expected .* got"):
                hpccoll.allreduce(x, comm=comm, algorithm=algorithm)
            assert (x == 1).all()
            check(comm, counts=(1, 1000, 70_001))
            assert hpccoll.allreduce(1, comm=comm, algorithm="ring") == comm.size


@several
@pytest.mark.parametrize("counts", [(2, 3), (100, 101), (5, 3000), (300_000, 299_999)])
def test_ranks_that_pass_different_counts(comm, counts):
    x = np.ones(counts[comm.rank == comm.size - 1])
    first = f"ranks? 0.*: allreduce of {counts[0]} elements of float64, op sum"
    last = f"rank {comm.size - 1}: allreduce of {counts[1]} elements of float64"
    with pytest.raises(hpccoll.MismatchError, match=f"different calls: {first}.*; {last}, op sum"):
        hpccoll.allreduce(x, comm=comm)
    assert (x == 1).all()
    check(comm, counts=(1, 1000, 70_001))


@several
def test_a_rank_that_is_interrupted_ends_the_call_of_all(comm):
    """The first rank waits for the last one, which comes when the first has left."""
    part = hpccoll.Comm(comm.Split(comm.rank in (0, comm.size - 1)))
    if comm.rank == 0:
        channel_of(part)
        with interrupted(0.3):
            part.Allreduce(MPI.IN_PLACE, np.ones(10_000))
        comm.send(None, comm.size - 1)
    elif comm.rank == comm.size - 1:
        channel_of(part)
        comm.recv(source=0)
        with pytest.raises(RuntimeError, match=r"Allreduce: rank 0 has left a call .* Dup"):
            part.Allreduce(MPI.IN_PLACE, np.ones(10_000))
    if comm.rank in (0, comm.size - 1):
        with pytest.raises(RuntimeError, match="left before its end"):
            part.Allreduce(MPI.IN_PLACE, np.ones(10))
        again = part.Dup()
        x = np.ones(10)
        again.Allreduce(MPI.IN_PLACE, x)
        assert (x == 2).all()
        again.Free()
    part.Free()


@several
def test_a_rank_that_waits_leaves_its_core_to_others(comm):
    wrapped = hpccoll.Comm(comm)
    x = np.ones(1000)
    wrapped.Allreduce(MPI.IN_PLACE, x)
    comm.Barrier()
    if comm.rank == 0:
        time.sleep(1.5)
    before = time.process_time()
    wrapped.Allreduce(MPI.IN_PLACE, x)
    assert time.process_time() - before < 0.15


@several
def test_two_threads_on_two_communicators(comm):
    if MPI.Query_thread() < MPI.THREAD_MULTIPLE:
        pytest.skip("MPI has one thread here")
    ours = [hpccoll.Comm(comm).Dup() for _ in range(2)]
    for one in ours:
        channel_of(one)
    errors = []

    def work(one):
        try:
            check(one, counts=(1, 1000, 20_000) * 5)
        except BaseException as error:
            errors.append(error)

    order = ours if comm.rank % 2 else ours[::-1]
    threads = [threading.Thread(target=work, args=(one,)) for one in order]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for one in ours:
        one.Free()


def open_files():
    return len(list(Path("/proc/self/fd").iterdir()))


@several
def test_slots_go_with_their_communicator(comm):
    def cycle():
        duplicate = hpccoll.Comm(comm).Dup()
        x = np.ones(100)
        duplicate.Allreduce(MPI.IN_PLACE, x)
        duplicate.Free()

    cycle()
    used, files = _arena.used(), open_files()
    for _ in range(10):
        cycle()
    assert _arena.used() == used
    assert open_files() == files


@several
def test_parts_of_the_world(comm):
    part = comm.Split(comm.rank % 2, -comm.rank)
    check(part, counts=(1, 1000, 70_001))
    check(part, hpccoll.empty, (5000,))
    part.Free()
