"""Agreement: with ``check``, ranks that call different things are told who calls what."""

import numpy as np
import pytest
from mpi4py import MPI

import hpccoll

several = pytest.mark.mpi(min_size=2)

X = np.arange(12.0)

CALLS = {
    "usual": (lambda c: c.Allreduce(X, np.empty(12)), ""),
    "count": (lambda c: c.Allreduce(X[:6].copy(), np.empty(6)), "6 elements"),
    "type": (lambda c: c.Allreduce(X.astype("f4"), np.empty(12, "f4")), "float32"),
    "operation": (lambda c: c.Allreduce(X, np.empty(12), MPI.MAX), "op max"),
    "collective": (lambda c: c.Barrier(), "barrier of 0 elements"),
    "root": (lambda c: c.Reduce(X, np.empty(12), root=c.size - 1), "root"),
    "other root": (lambda c: c.Bcast(X.copy(), root=0), "broadcast of 12 elements .* root 0"),
    "algorithm": (lambda c: hpccoll.allreduce(X, comm=c, algorithm="ring"), "algorithm ring"),
    "segments": (lambda c: hpccoll.allreduce(X, comm=c, segment_bytes=64), "segment_bytes 64"),
    "counts": (
        lambda c: hpccoll.reduce_scatter(X, comm=c, counts=[12] + [0] * (c.size - 1)),
        "counts .12",
    ),
    "allgather": (lambda c: c.Allgather(X[:1].copy(), np.empty(c.size)), "allgather of"),
}


def all_reduce(comm, n=12):
    """Make a call that is right."""
    out = np.empty(n)
    comm.Allreduce(np.full(n, comm.rank + 1.0), out)
    assert (out == comm.size * (comm.size + 1) // 2).all()


def ranks(numbers):
    """Return ranks as errors have them."""
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


@several
@pytest.mark.parametrize(
    ("name", "way"),
    [
        *((name, "node") for name in CALLS if name != "usual"),
        *((name, way) for name in ("count", "collective") for way in ("messages", "two nodes")),
    ],
)
@pytest.mark.parametrize("odd", ["first", "last"])
def test_every_rank_is_told_who_calls_what(comm, monkeypatch, name, odd, way):
    if way == "messages":
        monkeypatch.setenv("HPCCOLL_NODE", "off")
    elif way == "two nodes":
        labels = [str(2 * rank // comm.size) for rank in range(comm.size)]
        monkeypatch.setenv("HPCCOLL_NODES", ",".join(labels))
    wrapped = hpccoll.Comm(comm, check=True)
    odd_rank = 0 if odd == "first" else comm.size - 1
    others = [rank for rank in range(comm.size) if rank != odd_rank]
    call, text = CALLS[name]
    for _ in range(2):
        all_reduce(wrapped)
        mine = call if comm.rank == odd_rank else CALLS["usual"][0]
        with pytest.raises(hpccoll.MismatchError) as caught:
            mine(wrapped)
        told = str(caught.value)
        assert "ranks make different calls: rank" in told
        usual = "allreduce of 12 elements of float64, op sum, algorithm auto, segment_bytes None"
        assert f"{ranks(others)}: {usual} (call " in told
        with pytest.raises(hpccoll.MismatchError, match=f"rank {odd_rank}: .*{text}"):
            raise caught.value
        all_reduce(wrapped)
    assert len(set(comm.allgather(told.partition(": ")[2]))) == 1


@several
def test_checked_calls_are_right(comm):
    wrapped = hpccoll.Comm(comm, check=True)
    for n in (0, 1, 5, 5000, 100_000):
        all_reduce(wrapped, n)
        request = wrapped.Iallreduce(np.ones(n), out := np.empty(n))
        request.Wait()
        assert (out == comm.size).all()
    request = wrapped.Allreduce_init(np.ones(5), out := np.empty(5))
    for _ in range(3):
        request.Start()
        request.Wait()
        assert (out == comm.size).all()
    request.Free()
    parts = hpccoll.allreduce_many([np.ones(3), np.ones((2, 2), "i4")], comm=wrapped)
    assert all((part == comm.size).all() for part in parts)
    assert wrapped.Dup().settings.checked is True


@several
@pytest.mark.parametrize(
    "call",
    [
        lambda comm, x: hpccoll.iallreduce(x, comm=comm).wait(),
        lambda comm, x: comm.Iallreduce(x, np.empty_like(x)).Wait(),
        lambda comm, x: comm.Allreduce_init(x, np.empty_like(x)),
        lambda comm, x: hpccoll.allreduce_many([x], comm=comm),
    ],
    ids=["handle", "request", "persistent", "many"],
)
def test_other_calls_than_blocking_ones(comm, call):
    wrapped = hpccoll.Comm(comm, check=True)
    x = np.ones(5 + (comm.rank == 0))
    for _ in range(2):
        told = r"rank 0: allreduce of 6 elements.*; rank"
        with pytest.raises(hpccoll.MismatchError, match=told):
            call(wrapped, x)
        wrapped.Iallreduce(np.ones(3), out := np.empty(3)).Wait()
        assert (out == comm.size).all()
        all_reduce(wrapped)


@several
def test_the_check_of_one_call(comm):
    for count in (4, 40_000):
        x = np.ones(count + (comm.rank == 0))
        text = f"rank 0: allreduce of {count + 1} elements .*; rank.*: allreduce of {count} el"
        with pytest.raises(hpccoll.MismatchError, match=f"^allreduce: ranks make .*{text}"):
            hpccoll.allreduce(x, comm=comm, check=True)
        assert (hpccoll.allreduce(np.ones(count), comm=comm, check=True) == comm.size).all()
        assert (hpccoll.allreduce(np.ones(count), comm=comm) == comm.size).all()


@several
def test_the_check_of_the_environment(comm, monkeypatch):
    if comm.rank == 0:  # its word is that of all
        monkeypatch.setenv("HPCCOLL_CHECK", "1")
    elif comm.rank == 1:
        monkeypatch.setenv("HPCCOLL_CHECK", "0")
    op = "max" if comm.rank == 0 else "sum"
    with pytest.raises(hpccoll.MismatchError, match=r"rank 0: .*op max.*; rank.*op sum"):
        hpccoll.allreduce(X, op, comm=comm, algorithm="ring")
    # One call may do without.
    assert (hpccoll.allreduce(np.ones(3), comm=comm, check=False) == comm.size).all()


@several
def test_an_environment_that_cannot_be_read_is_told_on_all_ranks(comm, monkeypatch):
    if comm.rank == comm.size - 1:
        monkeypatch.setenv("HPCCOLL_CHECK", "maybe")
    with pytest.raises(ValueError, match=r"HPCCOLL_CHECK is 'maybe'; wanted 0 or 1"):
        hpccoll.barrier(comm)
    monkeypatch.delenv("HPCCOLL_CHECK", raising=False)
    hpccoll.barrier(comm)


def test_what_is_no_bool_is_refused(comm):
    with pytest.raises(TypeError, match=r"check is 1 of type int; wanted a bool or None"):
        hpccoll.Comm(comm, check=1)
    with pytest.raises(TypeError, match=r"^allreduce: check is 'yes' of type str; wanted a bool"):
        hpccoll.allreduce(X, comm=comm, check="yes")


@several
def test_a_call_that_one_rank_could_not_make_may_be_made_again(comm):
    """An error in the arguments is no call: the numbers of the calls stay in step."""
    wrapped = hpccoll.Comm(comm, check=True)
    if comm.rank == 0:
        with pytest.raises(ValueError, match="elements"):
            wrapped.Allreduce(np.ones(3), np.empty(2))
    all_reduce(wrapped)
    all_reduce(wrapped)
