"""Collectives on arrays in device memory, on all ways that a call can go."""

import gc
import math
import threading

import numpy as np
import pytest
from cuda_session import devices, our_communicator, which_way  # noqa: F401 - fixtures
from fake_arrays import FakeArray
from inputs import contribution, expected
from mpi4py import MPI
from stream_stress import MODES, Stress

import hpccoll
from hpccoll.algorithms import REGISTRY
from hpccoll.cuda import foreign_arrays
from hpccoll.errors import CollectiveTimeoutError, CudaError, MismatchError

TYPES = (
    ("bool", "lxor"),
    ("int8", "sum"),
    ("uint16", "band"),
    ("int32", "prod"),
    ("uint64", "max"),
    ("float16", "sum"),
    ("bfloat16", "mean"),
    ("float16", "min"),
    ("float32", "sum"),
    ("float64", "fmax"),
    ("complex64", "mean"),
    ("complex128", "prod"),
)


def dtype_of(name):
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


@pytest.mark.parametrize(("name", "op"), TYPES)
def test_allreduce_is_exact(gpu, ours, name, op):
    if name == "bfloat16":
        pytest.skip("no array interface has bfloat16: see test_torch.py")
    dtype, size = dtype_of(name), ours.size
    for count in (0, size + 1, 20_001):
        mine = contribution(ours.rank, count, dtype, op, size)
        wanted = expected(count, dtype, op, size).tobytes()
        x, out = gpu.array(mine), gpu.array(np.zeros_like(mine))
        assert hpccoll.allreduce(x, op, out=out, comm=ours) is out
        assert gpu.numpy(out).tobytes() == wanted, count
        assert gpu.numpy(x).tobytes() == mine.tobytes()
        assert hpccoll.allreduce(x, op, out=x, comm=ours) is x
        assert gpu.numpy(x).tobytes() == wanted, count


def test_what_was_done_is_told(gpu, ours, way):
    x = gpu.array(np.ones(1000, np.float32))
    ours.Allreduce(MPI.IN_PLACE, x)
    call = ours.last_call
    assert (gpu.numpy(x) == ours.size).all()
    assert call.memory.startswith(f"cuda:{gpu.device}, ")
    if ours.size > 1 and way != "mapped":
        assert call.memory.endswith(way.partition(",")[0])
        assert call.path == ("host" if way == "staged, host" else "point-to-point")
    assert call.count == 1000
    assert call.in_place


@pytest.mark.any_size
@pytest.mark.parametrize("name", REGISTRY["allreduce"])
def test_algorithms_by_name(gpu, ours, name):
    size, count = ours.size, 5_011
    for segment_bytes in (None, 4096):
        mine = contribution(ours.rank, count, "float32", "sum", size)
        x, out = gpu.array(mine), gpu.array(np.zeros_like(mine))
        hpccoll.allreduce(x, out=out, comm=ours, algorithm=name, segment_bytes=segment_bytes)
        np.testing.assert_array_equal(gpu.numpy(out), expected(count, "float32", "sum", size))
        if size > 1 and name not in ("two_level", "multi_leader"):
            assert ours.last_call.algorithm == name


@pytest.mark.any_size
@pytest.mark.parametrize("count", [1, 7, 5000, 100_001])
def test_the_family(gpu, ours, count):
    size, rank = ours.size, ours.rank
    vectors = [contribution(peer, count, "float64", "sum", size) for peer in range(size)]
    total = expected(count, "float64", "sum", size)
    root = size - 1
    mine = gpu.array(vectors[rank])
    result = hpccoll.reduce(mine, root=root, comm=ours)
    assert (result is None) == (rank != root)
    if rank == root:
        np.testing.assert_array_equal(gpu.numpy(result), total)
    part = hpccoll.reduce_scatter(mine, comm=ours)
    chunk = np.array_split(total, size)[rank]
    np.testing.assert_array_equal(gpu.numpy(part), chunk)
    whole = hpccoll.allgather(part, comm=ours)
    np.testing.assert_array_equal(gpu.numpy(whole), total)
    sent = gpu.array(vectors[root] if rank == root else np.zeros(count))
    hpccoll.broadcast(sent, root=root, comm=ours)
    np.testing.assert_array_equal(gpu.numpy(sent), vectors[root])
    np.testing.assert_array_equal(gpu.numpy(mine), vectors[rank])


def test_mpi4py_signatures(gpu, ours):
    size, rank, count = ours.size, ours.rank, 3001
    blocks = gpu.array(contribution(rank, count * size, "float32", "sum", size))
    part = gpu.array(np.zeros(count, np.float32))
    ours.Reduce_scatter_block(blocks, part, MPI.SUM)
    total = expected(count * size, "float32", "sum", size)
    mine = total[rank * count : (rank + 1) * count]
    np.testing.assert_array_equal(gpu.numpy(part), mine)
    whole = gpu.array(np.zeros(count * size, np.float32))
    ours.Allgather([part, MPI.FLOAT], whole)
    np.testing.assert_array_equal(gpu.numpy(whole), total)
    counts = [count + 3 * peer for peer in range(size)]
    values = np.arange(counts[rank], dtype=np.float32) + rank
    pieces = gpu.array(np.zeros(sum(counts), np.float32))
    ours.Allgatherv(gpu.array(values), [pieces, counts])
    every = [np.arange(n, dtype=np.float32) + peer for peer, n in enumerate(counts)]
    np.testing.assert_array_equal(gpu.numpy(pieces), np.concatenate(every))
    ours.Reduce(blocks, whole if rank == 0 else None, MPI.SUM)
    if rank == 0:
        np.testing.assert_array_equal(gpu.numpy(whole), total)
    ours.Bcast(pieces)
    ours.Barrier()


def test_layouts(gpu, ours):
    size = ours.size
    base = gpu.array(np.zeros((40, 60)))
    values = contribution(ours.rank, 2400, "float64", "sum", size).reshape(40, 60)
    total = expected(2400, "float64", "sum", size).reshape(40, 60)
    if not hasattr(base, "T"):
        pytest.skip("the arrays of hpccoll.cuda have no views")
    for view in (np.s_[::2, 5:50:3], np.s_[::-1, ::-2], np.s_[3:4, :]):
        x = gpu.array(values)
        out = gpu.array(np.zeros((40, 60)))
        hpccoll.allreduce(x[view], out=out[view], comm=ours)
        wanted = np.zeros((40, 60))
        wanted[view] = total[view]
        np.testing.assert_array_equal(gpu.numpy(out), wanted)
    x = gpu.array(values)
    hpccoll.allreduce(x.T, out=x.T, comm=ours)
    np.testing.assert_array_equal(gpu.numpy(x), total)


def test_outputs_that_overlap_the_input(gpu, ours):
    size, root = ours.size, ours.size - 1
    values = np.arange(1000.0)
    x = gpu.array(values)
    hpccoll.allreduce(x[:900], out=x[100:], comm=ours)
    np.testing.assert_array_equal(gpu.numpy(x)[100:], size * values[:900])
    for other in (np.s_[:900], np.s_[100:]):
        x = gpu.array(values if ours.rank == root else 0 * values)
        hpccoll.broadcast(x[:900], root, out=x[other], comm=ours)
        np.testing.assert_array_equal(gpu.numpy(x)[other], values[:900])


def test_vectors_with_gaps_in_mpi4py_signatures(gpu, ours):
    size, rank = ours.size, ours.rank
    values = np.arange(6.0 * size)
    x = gpu.array(values)
    if not hasattr(x, "T"):
        pytest.skip("the arrays of hpccoll.cuda have no views")
    ours.Reduce_scatter(MPI.IN_PLACE, x[::2], [3] * size)
    own = size * values[::2][3 * rank : 3 * rank + 3]
    np.testing.assert_array_equal(gpu.numpy(x)[:6:2], own)
    np.testing.assert_array_equal(gpu.numpy(x)[1::2], values[1::2])
    ours.Allgatherv(gpu.array(own), [x[::-2], [3] * size, [3 * peer for peer in range(size)]])
    np.testing.assert_array_equal(gpu.numpy(x)[::-2], size * values[::2])


def test_calls_that_repeat_on_contents_that_are_late(gpu, ours):
    size, count = ours.size, 30_000
    x = gpu.array(np.zeros(count, np.float32))
    out = gpu.array(np.zeros(count, np.float32))
    for turn in range(5):
        mine = contribution(ours.rank, count, "float32", "sum", size, seed=turn)
        x = x.fill(mine) if hasattr(x, "fill") else gpu.array(mine)
        ours.Allreduce(x, out)
        wanted = expected(count, "float32", "sum", size, seed=turn)
        np.testing.assert_array_equal(gpu.numpy(out), wanted)


def test_nonblocking_and_persistent(gpu, ours):
    size, count = ours.size, 4000
    mine = contribution(ours.rank, count, "float32", "sum", size)
    total = expected(count, "float32", "sum", size)
    handles = [hpccoll.iallreduce(gpu.array(mine), comm=ours) for _ in range(3)]
    x, out = gpu.array(mine), gpu.array(np.zeros_like(mine))
    request = ours.Iallreduce(x, out)
    blocking = gpu.array(mine)
    ours.Allreduce(MPI.IN_PLACE, blocking)
    for handle in handles:
        np.testing.assert_array_equal(gpu.numpy(handle.wait()), total)
    request.Wait()
    np.testing.assert_array_equal(gpu.numpy(out), total)
    np.testing.assert_array_equal(gpu.numpy(blocking), total)
    step = ours.Allreduce_init(x, out)
    for _ in range(3):
        step.Start()
        step.Wait()
        np.testing.assert_array_equal(gpu.numpy(out), total)
    step.Free()


@pytest.mark.mpi(min_size=2)
def test_results_that_are_allocated_when_the_call_runs(gpu, ours, monkeypatch):
    """A pool hands out memory that what is in its stream has yet to be done with."""
    if gpu.fake is None:
        pytest.skip("real pools cannot be looked into")
    pool = gpu.fake.new_stream(gpu.device)

    def new_like(x, array, shape, stream):
        made = FakeArray(shape, array.dtype, gpu.device, pool).fill(-1)
        return foreign_arrays.of_device("the result", made), lambda: made

    monkeypatch.setattr(foreign_arrays, "new_like", new_like)
    mine = np.arange(700.0) + 1000 * ours.rank
    wanted = np.concatenate([np.arange(700.0) + 1000 * rank for rank in range(ours.size)])
    result = hpccoll.iallgather(gpu.array(mine), comm=ours).wait()
    np.testing.assert_array_equal(result.numpy(), wanted)
    result = hpccoll.allgather(gpu.array(mine), comm=ours)
    np.testing.assert_array_equal(result.numpy(), wanted)


def test_fused(gpu, ours):
    size = ours.size
    shapes = [(3, 4), (1000,), (), (50, 60)]
    mine = [
        contribution(ours.rank, math.prod(shape), "float32", "sum", size).reshape(shape)
        for shape in shapes
    ]
    arrays = [gpu.array(values) for values in mine]
    results = hpccoll.allreduce_many(arrays, comm=ours, bucket_bytes=5000)
    for shape, result in zip(shapes, results, strict=True):
        wanted = expected(math.prod(shape), "float32", "sum", size).reshape(shape)
        np.testing.assert_array_equal(gpu.numpy(result), wanted)


@pytest.mark.mpi(min_size=2)
def test_ranks_that_disagree(gpu, ours):
    x = gpu.array(np.ones(100 + ours.rank, np.float32))
    ours.Allreduce(MPI.IN_PLACE, gpu.array(np.ones(10, np.float32)))
    with pytest.raises(MismatchError):
        hpccoll.allreduce(x, out=x, comm=ours, check=True)
    y = gpu.array(np.ones(100, np.float32))
    ours.Allreduce(MPI.IN_PLACE, y)
    assert (gpu.numpy(y) == ours.size).all()


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_does_not_come(gpu, comm):
    made = hpccoll.Comm(comm).Dup()
    x = gpu.array(np.ones(5000, np.float32))
    made.Allreduce(MPI.IN_PLACE, x)
    if comm.rank != 1:
        with pytest.raises(CollectiveTimeoutError):
            hpccoll.allreduce(x, out=x, comm=made, timeout=0.5)
    comm.Barrier()


def test_the_time_limit_is_that_of_the_call(gpu, ours):
    if gpu.fake is None:
        pytest.skip("streams of real devices cannot be held up")
    x = gpu.array(np.ones(1000, np.float32))
    hpccoll.allreduce(x, out=x, comm=ours, timeout=0.2)
    gpu.fake.hold(gpu.stream, gpu.device)
    goes_on = threading.Timer(0.5, gpu.fake.release, (gpu.stream, gpu.device))
    goes_on.start()
    hpccoll.allreduce(x, out=x, comm=ours)
    goes_on.join()
    assert (gpu.numpy(x) == ours.size**2).all()


@pytest.mark.mpi(min_size=2)
def test_a_stream_that_never_goes_on(gpu, comm):
    if gpu.fake is None:
        pytest.skip("streams of real devices cannot be held up")
    made = hpccoll.Comm(comm).Dup()
    x = gpu.array(np.ones(1000, np.float32))
    made.Allreduce(MPI.IN_PLACE, x)
    gpu.fake.hold(gpu.stream, gpu.device)
    with pytest.raises(CollectiveTimeoutError, match=f"on CUDA device {gpu.device}"):
        hpccoll.allreduce(x, out=x, comm=made, timeout=0.2)
    gpu.fake.release(gpu.stream, gpu.device)
    comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_others_are_told_of_a_stream_that_never_goes_on(gpu, comm):
    if gpu.fake is None:
        pytest.skip("streams of real devices cannot be held up")
    made = hpccoll.Comm(comm).Dup()
    x = gpu.array(np.ones(1000, np.float32))
    made.Allreduce(MPI.IN_PLACE, x)
    if comm.rank == 0:
        gpu.fake.hold(gpu.stream, gpu.device)
    with pytest.raises(CollectiveTimeoutError):
        hpccoll.allreduce(x, out=x, comm=made, timeout=0.2 if comm.rank == 0 else None)
    gpu.fake.release(gpu.stream, gpu.device)
    comm.Barrier()


@pytest.mark.mpi(min_size=2)
def test_a_communicator_is_freed_while_a_device_is_still_at_work(gpu, comm):
    if gpu.fake is None:
        pytest.skip("streams of real devices cannot be held up")
    inner = comm.Dup()
    made = hpccoll.Comm(inner)
    x = gpu.array(np.ones(1000, np.float32))
    made.Allreduce(MPI.IN_PLACE, x)
    gpu.fake.hold(gpu.stream, gpu.device)
    with pytest.raises(CollectiveTimeoutError):
        hpccoll.allreduce(x, out=x, comm=made, timeout=0.2)
    inner.Free()
    del made, inner
    gc.collect()  # the fake looks who may still use what is given back
    gpu.fake.release(gpu.stream, gpu.device)
    gpu.fake.finish(gpu.stream, gpu.device)


@pytest.mark.mpi(min_size=2)
def test_others_are_told_of_a_device_that_fails(gpu, comm):
    if gpu.fake is None:
        pytest.skip("real devices do not fail when told to")
    made = hpccoll.Comm(comm).Dup()
    x = gpu.array(np.ones(1000, np.float32))
    made.Allreduce(MPI.IN_PLACE, x)
    if comm.rank == 0:
        gpu.fake.fail("cuStreamWaitEvent", 719)
    with pytest.raises(CudaError if comm.rank == 0 else CollectiveTimeoutError):
        made.Allreduce(MPI.IN_PLACE, x)  # without a time limit
    with pytest.raises(RuntimeError, match="on this communicator was given up"):
        made.Allreduce(MPI.IN_PLACE, x)
    comm.Barrier()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("function", ["cuStreamCreate", "cuLaunchKernel"])
def test_others_are_told_of_a_call_that_does_not_begin(gpu, comm, function):
    if gpu.fake is None:
        pytest.skip("real devices do not fail when told to")
    made = hpccoll.Comm(comm).Dup()
    x, out = gpu.array(np.ones(1000, np.float32)), gpu.array(np.zeros((2, 250), np.float32))
    if comm.rank == 0:
        gpu.fake.fail(function, 719)
    with pytest.raises(CudaError if comm.rank == 0 else CollectiveTimeoutError):
        made.Allreduce(x[::2], out)
    comm.Barrier()


def reduce_now_or_later(x, out, comm, *, later):
    if later:
        hpccoll.iallreduce(x, out=out, comm=comm).wait()
    else:
        hpccoll.allreduce(x, out=out, comm=comm)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("later", [False, True])
def test_arrays_can_be_freed_after_a_call_that_failed(gpu, ours, later):
    begun = gpu.array(np.ones(10, np.float32))
    hpccoll.iallreduce(begun, out=begun, comm=ours).wait()
    # Of several segments: some are copied, and some have yet to be.
    count = 3_000_000 + 5 * ours.rank
    x, out = gpu.array(np.ones(count, np.float32)), gpu.array(np.zeros(count, np.float32))
    with pytest.raises(MismatchError):
        reduce_now_or_later(x, out, ours, later=later)
    del x, out  # the fake looks who may still use the memory
    x = gpu.array(np.full(10, 2.0))
    ours.Allreduce(MPI.IN_PLACE, x)
    assert (gpu.numpy(x) == 2 * ours.size).all()


@pytest.mark.mpi(min_size=2)
def test_a_rank_that_goes_on_to_another_device(gpu, ours):
    if gpu.fake is None:
        pytest.skip("there may be one device alone")
    for device in (0, 1 if ours.rank == 0 else 0):
        stream = gpu.fake.new_stream(device)
        x = FakeArray(1000, np.float32, device, stream).fill(1.0)
        hpccoll.allreduce(x, out=x, comm=ours, timeout=10)
        assert (x.numpy() == ours.size).all()


def test_an_environment_that_cannot_be_read(gpu, comm, monkeypatch):
    monkeypatch.setenv("HPCCOLL_CUDA", "telepathic")
    made = hpccoll.Comm(comm).Dup()
    with pytest.raises(ValueError, match=r"HPCCOLL_CUDA of rank 0 .*auto, direct, staged"):
        made.Allreduce(MPI.IN_PLACE, gpu.array(np.ones(10, np.float32)))
    made.Free()


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("mode", MODES)
def test_calls_in_a_stream_without_a_pause(gpu, ours, mode):
    # What tests/gpu/test_stream_order.py does on devices, with larger vectors and more turns.
    for count in (1000, 100_000):
        assert Stress(gpu, ours, count).run(3, mode) == [0, 0, 0]


@pytest.mark.mpi(min_size=2)
def test_wrong_elements_of_such_calls_are_counted(gpu, ours, monkeypatch):
    stress = Stress(gpu, ours, 1000)
    monkeypatch.setattr(stress, "_call", lambda turn, mode: stress.x)
    assert all(wrong > 900 for wrong in stress.run(2, "in place"))
