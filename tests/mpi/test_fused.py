"""Many arrays in few calls: `allreduce_many`, and `Bucketer`, step by step."""

import numpy as np
import pytest
from begun import mine, total
from mpi4py import MPI

import hpccoll
from hpccoll.channel import channel_of
from hpccoll.jobs import Job

SHAPES = [(3,), (100, 7), (40_000,), (5, 5, 5), (0,), (), (2, 0, 3), (90, 70), (20_000,)]
several = pytest.mark.mpi(min_size=2)


def arrays_of(comm, seed=0):
    """Return arrays of all shapes, several types and layouts."""
    made = []
    for k, shape in enumerate(SHAPES):
        n = int(np.prod(shape, dtype=int))
        x = mine(comm, n, seed + k).reshape(shape)
        if k % 3 == 1:
            x = (x * 8).astype("i8")
        if k % 4 == 1:
            x = np.asfortranarray(x)
        if k % 4 == 3:
            x = np.repeat(x.reshape(-1), 2)[::2].reshape(shape)
        made.append(x)
    spaced = np.zeros((40, 6))
    spaced[:, ::2] = mine(comm, 120, seed).reshape(40, 3)
    return [*made, spaced[:, ::2], made[0].astype(">f8"), np.ones(50, "f4") * comm.rank]


# All at once.


@pytest.mark.parametrize("bucket_bytes", [1, 3000, 25_000_000])
@pytest.mark.parametrize("where", ["new", "in place", "out"])
def test_each_array_is_reduced(comm, where, bucket_bytes):
    op = "max" if where == "out" else "sum"
    arrays = arrays_of(comm)
    wanted = [hpccoll.allreduce(x, op, comm=comm) for x in arrays]
    before = [x.copy() for x in arrays]
    out = {"new": None, "in place": arrays, "out": [np.full_like(x, 7) for x in arrays]}[where]
    results = hpccoll.allreduce_many(arrays, op, out=out, comm=comm, bucket_bytes=bucket_bytes)
    assert type(results) is list
    for k, (result, right) in enumerate(zip(results, wanted, strict=True)):
        np.testing.assert_array_equal(result, right)
        assert result.dtype == arrays[k].dtype
        if where == "in place":
            assert result is arrays[k]
        else:
            np.testing.assert_array_equal(arrays[k], before[k])
        if where == "out":
            assert result is out[k]


def test_no_array_at_all(comm):
    assert hpccoll.allreduce_many([], comm=comm) == []
    assert hpccoll.allreduce_many((), "mean", out=[], comm=comm) == []
    assert hpccoll.allreduce_many([np.empty(0)], comm=comm)[0].size == 0


def test_numbers_and_algorithms(comm):
    results = hpccoll.allreduce_many([1, 2.5, np.float32(2)], comm=comm, algorithm="ring")
    assert results == [comm.size, 2.5 * comm.size, 2 * comm.size]
    assert [type(result) for result in results] == [int, float, np.float32]


@pytest.mark.parametrize("spare", [False, True])
def test_few_calls_are_made(comm, monkeypatch, spare):
    """At once where a rank has one core, beside the packing where it has two."""
    monkeypatch.setattr(channel_of(comm), "spare_cores", spare)
    made = []
    run = Job.run
    monkeypatch.setattr(Job, "run", lambda self, *where: (made.append(self), run(self, *where))[1])
    arrays = [np.full(100, comm.rank + number) for number in range(500)]
    results = hpccoll.allreduce_many(arrays, "max", comm=comm, bucket_bytes=160_000)
    assert [job.count for job in made] == [20_000, 20_000, 10_000]
    for number, result in enumerate(results):
        assert (result == comm.size - 1 + number).all()


def test_a_mean(comm):
    arrays = [np.full(10, float(comm.rank)), np.full(30_000, comm.rank + 1.0)]
    first, second = hpccoll.allreduce_many(arrays, "mean", comm=comm)
    assert (first == (comm.size - 1) / 2).all()
    assert (second == (comm.size + 1) / 2).all()


def test_errors_name_the_array(comm):
    x, where = np.ones(3), rf" \(rank {comm.rank} of {comm.size}\)$"
    fixed = np.ones(3)
    fixed.flags.writeable = False
    for out, error, text in (
        ([np.empty(3), np.empty(4)], ValueError, "array 1: out has shape"),
        ([np.empty(3, "f4"), np.empty(3)], TypeError, "array 0: out has dtype"),
        ([np.empty(3), fixed], BufferError, "array 1: out is read-only"),
        ([np.empty(3)], ValueError, "out has 1 arrays, arrays has 2"),
    ):
        with pytest.raises(error, match=f"^allreduce_many: {text}.*{where}"):
            hpccoll.allreduce_many([x, x], out=out, comm=comm)
    with pytest.raises(TypeError, match=r"^allreduce_many: array 2: .*"):
        hpccoll.allreduce_many([x, x, "text"], comm=comm)
    with pytest.raises(TypeError, match=r"^allreduce_many: array 1: .*"):
        hpccoll.allreduce_many([np.ones(2, int), x], "bor", comm=comm)
    for wrong, error in ((0, ValueError), (-1, ValueError), (1.5, TypeError), (True, TypeError)):
        with pytest.raises(error, match=r"^allreduce_many: bucket_bytes is"):
            hpccoll.allreduce_many([x], comm=comm, bucket_bytes=wrong)
    assert hpccoll.allreduce_many([x], comm=comm)[0].tolist() == [comm.size] * 3


@several
def test_a_mismatch_is_told_on_every_rank_and_the_next_is_right(comm):
    for odd in (4, 3000):
        arrays = [np.ones(5), np.ones(odd + (comm.rank == 0)), *(np.ones(900) for _ in range(40))]
        with pytest.raises(
            ValueError, match=r"^allreduce_many: .*(expected .* got|given up|different calls)"
        ):
            hpccoll.allreduce_many(arrays, comm=comm, bucket_bytes=8000)
        again = [mine(comm, 700, k) for k in range(40)]
        results = hpccoll.allreduce_many(again, comm=comm, bucket_bytes=8000)
        for k, result in enumerate(results):
            np.testing.assert_array_equal(result, total(comm, 700, k))


# One by one.


def parameters(comm, step=0):
    return {
        f"p{k}": mine(comm, int(np.prod(shape, dtype=int)), 10 * step + k).reshape(shape)
        for k, shape in enumerate(SHAPES)
    }


def declare(bucketer, arrays, order):
    names = [*arrays]
    for k in order.permutation(len(names)).tolist():
        bucketer.ready(names[k], arrays[names[k]])


@pytest.mark.parametrize(
    ("op", "bucket_bytes"), [("sum", 1), ("sum", 60_000), ("mean", 25_000_000)]
)
def test_steps_in_an_order_of_the_rank_s_own(comm, op, bucket_bytes):
    bucketer = hpccoll.Bucketer(op, comm=comm, bucket_bytes=bucket_bytes)
    assert bucketer.names == ()
    for step in range(3):
        arrays = parameters(comm, step)
        declare(bucketer, arrays, np.random.default_rng([step, comm.rank]))
        bucketer.wait()
        assert sorted(bucketer.names) == sorted(arrays)
        assert len(set(comm.allgather(bucketer.names))) == 1
        for k, (name, shape) in enumerate(zip(arrays, SHAPES, strict=True)):
            n = int(np.prod(shape, dtype=int))
            wanted = total(comm, n, 10 * step + k).reshape(shape)
            wanted = wanted / comm.size if op == "mean" else wanted
            np.testing.assert_allclose(arrays[name], wanted, rtol=1e-15)


def test_two_at_a_time_and_others_in_between(comm):
    """Each has memory of its own, as long as it is under way."""
    one, other = (hpccoll.Bucketer("sum", comm=comm, bucket_bytes=30_000) for _ in range(2))
    for step in range(3):
        a = {f"a{k}": mine(comm, 2000, k) for k in range(12)}
        b = {f"b{k}": mine(comm, 2000, 50 + k) for k in range(12)}
        many = [mine(comm, 2000, 90 + k) for k in range(12)]
        for (name, x), (second, y) in zip(a.items(), b.items(), strict=True):
            one.ready(name, x)
            other.ready(second, y)
        hpccoll.allreduce_many(many, out=many, comm=comm, bucket_bytes=30_000)
        for bucketer in (one, other) if step % 2 else (other, one):
            bucketer.wait()
        for k in range(12):
            np.testing.assert_array_equal(a[f"a{k}"], total(comm, 2000, k))
            np.testing.assert_array_equal(b[f"b{k}"], total(comm, 2000, 50 + k))
            np.testing.assert_array_equal(many[k], total(comm, 2000, 90 + k))


@pytest.fixture(name="second")
def bucketer_of_two(comm):
    """Give a bucketer after its first step."""
    bucketer = hpccoll.Bucketer("sum", comm=comm)
    bucketer.ready("a", np.ones(3))
    bucketer.ready("b", np.ones((2, 2)))
    bucketer.wait()
    return bucketer


def test_names_that_are_wrong(comm, second):
    where = rf" \(rank {comm.rank} of {comm.size}\)$"
    a, b = np.ones(3), np.ones((2, 2))
    for name, x, text in (
        ("c", a, "unknown name 'c'; in the first step there were 'a', 'b'"),
        ("a", np.ones(4), r"'a' has shape \(4,\) and type float64; in the first step it had"),
        ("a", np.ones(3, "f4"), r"'a' has shape \(3,\) and type float32; in the first step"),
    ):
        with pytest.raises(ValueError, match=f"^Bucketer.ready: {text}.*{where}"):
            second.ready(name, x)
    second.ready("a", a)
    with pytest.raises(ValueError, match=f"^Bucketer.ready: 'a' was declared ready .*{where}"):
        second.ready("a", a)
    with pytest.raises(ValueError, match=f"^Bucketer.wait: not ready in this step: 'b'{where}"):
        second.wait()
    second.ready("b", b)  # it still can be
    second.wait()
    assert (a == comm.size).all()
    assert (b == comm.size).all()


def test_arrays_that_cannot_be_reduced_in_place(comm):
    bucketer = hpccoll.Bucketer("bor", comm=comm)
    fixed = np.ones(3, int)
    fixed.flags.writeable = False
    with pytest.raises(BufferError, match=r"^Bucketer.ready: 'a' is read-only"):
        bucketer.ready("a", fixed)
    with pytest.raises(TypeError, match=r"^Bucketer.ready: "):
        bucketer.ready("a", np.ones(3))
    with pytest.raises(TypeError, match=r"^Bucketer.ready: "):
        bucketer.ready("a", 3)
    with pytest.raises(ValueError, match=r"^Bucketer.ready: "):
        bucketer.ready("a", np.lib.stride_tricks.as_strided(np.ones(1, int), (3,), (0,)))
    with pytest.raises(ValueError, match=r"^Bucketer: bucket_bytes is 0"):
        hpccoll.Bucketer(comm=comm, bucket_bytes=0)
    x = np.full(3, 1 << comm.rank)
    bucketer.ready("a", x)
    bucketer.wait()
    assert (x == (1 << comm.size) - 1).all()


@several
@pytest.mark.parametrize("what", ["name", "shape", "type", "missing"])
def test_ranks_that_declare_other_arrays(comm, what):
    last = comm.rank == comm.size - 1
    bucketer = hpccoll.Bucketer(comm=comm)
    bucketer.ready("a", np.ones(3))
    odd = np.ones(5 if what == "shape" and last else 4, "f4" if what == "type" and last else "f8")
    if not (what == "missing" and last):
        bucketer.ready("c" if what == "name" and last else "b", odd)
    declared = "no 'b'" if what == "missing" else ".* of shape"
    text = rf"^Bucketer.wait: rank {comm.size - 1} declared {declared}.*, which rank 0 did not"
    with pytest.raises(ValueError, match=text):
        bucketer.wait()
    assert bucketer.names == ()
    assert hpccoll.allreduce(1, comm=comm) == comm.size


def test_a_step_without_arrays(comm):
    bucketer = hpccoll.Bucketer(comm=comm)
    bucketer.wait()
    x = np.full(3, float(comm.rank))
    bucketer.ready("x", x)
    bucketer.wait()
    assert (x == (comm.size - 1) / 2).all()


def test_left_without_a_wait(comm, second):
    x = np.ones(3)
    second.ready("a", x)
    second.ready("b", np.ones((2, 2)))
    del second
    assert hpccoll.iallreduce(1, comm=comm).wait() == comm.size
    assert MPI.COMM_WORLD.allreduce(1) == MPI.COMM_WORLD.size
