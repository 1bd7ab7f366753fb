"""Arrays of libraries that keep them in GPU memory: what comes back, streams, views."""

import numpy as np
import pytest
from cuda_session import devices, our_communicator  # noqa: F401 - fixtures
from gpu_libraries import LIBRARIES, VIEWS
from inputs import contribution, expected
from mpi4py import MPI
from stream_stress import LateKernels, values

import hpccoll
from hpccoll.cuda.foreign_arrays import of_device
from hpccoll.cuda.streams import given_stream

# Libraries have warnings of their own, and take long to import.
pytestmark = [pytest.mark.filterwarnings("default"), pytest.mark.limit(120)]


@pytest.fixture(name="way")
def default_way(monkeypatch):
    """Let calls go as they do by default; no fake MPI library takes device memory."""
    monkeypatch.setenv("HPCCOLL_CUDA", "staged")
    return "default"


@pytest.fixture(name="library", params=LIBRARIES, ids=lambda kind: kind.__name__)
def which_library(request, gpu):
    return request.param(gpu)


def vectors(comm, dtype, shape=(60, 50), op="sum"):
    count = int(np.prod(shape))
    mine = contribution(comm.rank, count, dtype, op, comm.size).reshape(shape)
    return mine.copy(), expected(count, dtype, op, comm.size).reshape(shape)


def dtype_of(name):
    if name == "bfloat16":
        import ml_dtypes

        return np.dtype(ml_dtypes.bfloat16)
    return np.dtype(name)


def test_new_results_are_of_the_same_library(library, ours):
    for name in library.types:
        op = "lor" if name == "bool" else "sum"
        mine, total = vectors(ours, dtype_of(name), op=op)
        x = library.array(mine)
        result = hpccoll.allreduce(x, op, comm=ours)
        assert type(result) is library.kind_of_result(x), name
        assert (tuple(result.shape), result.dtype) == (tuple(x.shape), x.dtype)
        assert library.numpy(result).tobytes() == total.tobytes(), name
        assert library.numpy(x).tobytes() == mine.tobytes(), name
        assert ours.last_call.memory.startswith(f"cuda:{library.device}, ")


def test_in_place(library, ours):
    for name in library.types:
        op = "land" if name == "bool" else "sum"
        mine, total = vectors(ours, dtype_of(name), op=op)
        x = library.array(mine)
        if not library.is_mutable:
            with pytest.raises(BufferError, match="read-only"):
                hpccoll.allreduce(x, op, out=x, comm=ours)
            continue
        assert hpccoll.allreduce(x, op, out=x, comm=ours) is x
        assert library.numpy(x).tobytes() == total.tobytes(), name


def test_mpi4py_signatures(library, ours):
    if not library.is_mutable:
        pytest.skip("has nothing that could be written to")
    mine, total = vectors(ours, "float32")
    x, out = library.array(mine), library.array(np.zeros_like(mine))
    ours.Allreduce(x, out, MPI.SUM)
    np.testing.assert_array_equal(library.numpy(out), total)
    ours.Allreduce(MPI.IN_PLACE, x)
    np.testing.assert_array_equal(library.numpy(x), total)
    ours.Bcast(out, root=ours.size - 1)
    np.testing.assert_array_equal(library.numpy(out), total)


def test_the_family(library, ours):
    mine, total = vectors(ours, "float32", (3001,))
    x = library.array(mine)
    part = hpccoll.reduce_scatter(x, comm=ours)
    chunk = np.array_split(total, ours.size)[ours.rank]
    np.testing.assert_array_equal(library.numpy(part), chunk)
    whole = hpccoll.allgather(part, comm=ours)
    np.testing.assert_array_equal(library.numpy(whole), total)
    result = hpccoll.reduce(x, root=0, comm=ours)
    if ours.rank == 0:
        np.testing.assert_array_equal(library.numpy(result), total)


@pytest.mark.parametrize("name", VIEWS)
def test_views(library, ours, name):
    if name not in library.views:
        pytest.skip("has no such views")
    view = VIEWS[name]
    mine, total = vectors(ours, "float32")
    x, out = library.array(mine), library.array(np.full_like(mine, -1))
    result = hpccoll.allreduce(view(x), comm=ours)
    np.testing.assert_array_equal(library.numpy(result), view(total))
    hpccoll.allreduce(view(x), out=view(out), comm=ours)
    wanted = np.full_like(mine, -1)
    view(wanted)[...] = view(total)
    np.testing.assert_array_equal(library.numpy(out), wanted)
    np.testing.assert_array_equal(library.numpy(x), mine)


@pytest.mark.parametrize("count", [1000, 300_000])
@pytest.mark.parametrize("told", ["current", "stream="])
def test_late_input_on_a_stream(library, ours, count, told):
    stream = library.new_stream()
    if stream is None:
        pytest.skip("has no streams")
    kernels = LateKernels(library.device)
    handle = given_stream(stream).handle
    ranks = range(ours.size)
    with library.on(stream):
        x = library.array(np.zeros(count, np.float32), stream)
        address = of_device("x", x).ctypes.data
        library.numpy(x, stream)
    for turn in range(5):
        kernels.produce(address, count, turn, ours.rank, handle)
        if told == "current":
            with library.on(stream):
                result = hpccoll.allreduce(x, comm=ours)
        else:
            result = hpccoll.allreduce(x, comm=ours, stream=stream)
        wanted = sum(values(count, turn, rank) for rank in ranks)
        np.testing.assert_array_equal(library.numpy(result, stream), wanted)


def test_nonblocking(library, ours):
    mine, total = vectors(ours, "float32")
    handles = [hpccoll.iallreduce(library.array(mine), comm=ours) for _ in range(3)]
    for handle in handles:
        np.testing.assert_array_equal(library.numpy(handle.wait()), total)


def test_many_arrays(library, ours):
    shapes = ((40, 30), (1000,), (7, 11, 13))
    made = [vectors(ours, "float32", shape) for shape in shapes]
    results = hpccoll.allreduce_many([library.array(mine) for mine, _ in made], comm=ours)
    for result, (_, total) in zip(results, made, strict=True):
        np.testing.assert_array_equal(library.numpy(result), total)


def test_arrays_of_host_and_device_do_not_mix(library, ours):
    mine, _ = vectors(ours, "float32")
    with pytest.raises((TypeError, ValueError), match=r"device|GPU"):
        hpccoll.allreduce(library.array(mine), out=np.zeros_like(mine), comm=ours)
    ours.Barrier()
