"""Calls on arrays in GPU memory, from the doors to where they run: order of streams, refusals.

The communicator is of one rank, and what runs there is a stand-in that copies what the rank brings
to where the result goes, in the caller's stream.
"""

import gc
import sys
import types

import host_kernels
import numpy as np
import pytest
from fake_arrays import FakeArray
from fake_cuda import FakeCuda
from mpi4py import MPI

import hpccoll
from hpccoll import buffers
from hpccoll import cuda as hc
from hpccoll.channel import channel_of
from hpccoll.cuda import copies, driver
from hpccoll.cuda.device_array import DeviceArray
from hpccoll.errors import CudaError
from hpccoll.native import leave_to_mpi

SELF = MPI.COMM_SELF


class Site(types.ModuleType):
    """As hpccoll.cuda.site, on one rank."""

    def __init__(self):
        super().__init__("hpccoll.cuda.site")
        self.jobs, self.moments = [], []

    def run_on_device(self, job, channel, moment, *, complete=False):
        # Not the job itself, with which memory would stay.
        self.jobs.append((job.count, job.on_device, job.is_plain))
        self.moments.append(moment)
        if job.x is not None and job.out is not None:
            copies.copy_array(job.out.reshape(-1), job.x.reshape(-1), moment.stream)
        return object()


@pytest.fixture
def fake(monkeypatch):
    monkeypatch.setattr(copies, "compiler", host_kernels.HostCompiler())
    with FakeCuda(devices=2) as fake:
        yield fake
        gc.collect()


@pytest.fixture
def site(fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "hpccoll.cuda.site", Site())
    return sys.modules["hpccoll.cuda.site"]


@pytest.fixture
def comm():
    comm = SELF.Dup()
    yield comm
    comm.Free()


def produced(fake, shape=(3, 4), dtype=np.float32, device=0):
    """Return an array whose contents its stream has yet to produce, and these."""
    x = FakeArray(shape, dtype, device, stream=fake.new_stream(device))
    values = np.arange(1, np.prod(shape, dtype=int) + 1).reshape(shape).astype(dtype)
    return x.fill(values), values


FUNCTIONS = {
    "allreduce": (lambda f, x, **o: f(x, "max", **o), lambda v: v),
    "reduce": (lambda f, x, **o: f(x, "max", **o), lambda v: v),
    "reduce_scatter": (lambda f, x, **o: f(x, "max", **o), lambda v: v),
    "allgather": (lambda f, x, **o: f(x, **o), lambda v: v),
    "broadcast": (lambda f, x, **o: f(x, **o), lambda v: v),
}


def call(name, x, **options):
    """Call a function, or begin it and wait."""
    if name.startswith("i"):
        return FUNCTIONS[name[1:]][0](getattr(hpccoll, name), x, **options).wait()
    return FUNCTIONS[name][0](getattr(hpccoll, name), x, **options)


NAMES = [*FUNCTIONS, *(f"i{name}" for name in FUNCTIONS)]


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("name", NAMES)
def test_a_call_is_in_order_with_the_callers_stream(fake, site, comm, name, device):
    x, values = produced(fake, device=device)
    result = call(name, x, comm=comm)
    if name.endswith("broadcast"):
        assert result is x
        np.testing.assert_array_equal(x.numpy(), values)
    else:
        assert type(result) is hc.CudaArray
        np.testing.assert_array_equal(hc.asnumpy(result), values)
    assert site.moments[0].device == device
    assert (site.moments[0].stream == x.stream) != name.startswith("i")


@pytest.mark.parametrize("name", [name for name in NAMES if "gather" not in name])
def test_the_result_goes_to_out_on_another_stream(fake, site, comm, name):
    x, values = produced(fake)
    out = FakeArray((3, 4), stream=fake.new_stream()).fill(0)
    assert call(name, x, out=out, comm=comm) is out
    np.testing.assert_array_equal(out.numpy(), values)
    np.testing.assert_array_equal(x.numpy(), values)
    assert out.stream != x.stream


def test_without_counts_an_allgather_is_in_order_too(fake, site, comm):
    x, values = produced(fake)
    out = FakeArray((3, 4), stream=fake.new_stream()).fill(0)
    hpccoll.allgather(x, out=out, comm=comm)
    np.testing.assert_array_equal(out.numpy(), values)
    out.fill(0)
    hpccoll.iallgather(x, out=out, counts=[3], comm=comm).wait()
    np.testing.assert_array_equal(out.numpy(), values)


@pytest.mark.parametrize("name", NAMES)
def test_a_stream_that_is_given_counts(fake, site, comm, name):
    x, values = produced(fake)
    mine, x.stream = x.stream, fake.new_stream()
    fake.enqueue(x.stream, "for ever")
    fake.hold(x.stream)
    stream = types.SimpleNamespace(cuda_stream=mine, device_index=0)
    result = call(name, x, comm=comm, stream=stream)
    if not name.endswith("broadcast"):
        np.testing.assert_array_equal(hc.asnumpy(result, stream=stream), values)
    fake.release(x.stream)


def test_a_call_that_begins_follows_the_stream_of_then(fake, site, comm):
    x, values = produced(fake)
    handle = hpccoll.iallreduce(x, comm=comm)
    first, x.stream = x.stream, fake.new_stream()
    np.testing.assert_array_equal(hc.asnumpy(handle.wait()), values)
    x.stream = first


def test_results_of_calls_that_began_are_there_for_any_stream(fake, site, comm):
    x, values = produced(fake)
    out = FakeArray((3, 4), stream=fake.new_stream())
    hpccoll.iallreduce(x, out=out, comm=comm).wait()
    np.testing.assert_array_equal(out.numpy(on=fake.new_stream()), values)


# Layouts.


LAYOUTS = {
    "gaps": lambda x: x[::2, 1:],
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_go_up_and_down_by_kernels(fake, layout):
    x, values = produced(fake)
    view = LAYOUTS[layout]
    np.testing.assert_array_equal(hc.asnumpy(view(x)), view(values))


def test_an_array_in_foreign_byte_order_is_copied_right(fake):
    x, values = produced(fake, dtype=">f4")
    out = hc.empty((3, 4), "f4", stream=x.stream)
    source = buffers.of_array("x", x).array
    copies.copy_array(out.array, source, x.stream)
    np.testing.assert_array_equal(hc.asnumpy(out), values)


def test_too_many_dimensions_are_refused(fake):
    x = FakeArray((2, 3) * 5)
    view = buffers.of_array("x", x).array[(slice(None, None, 2), slice(None, None, 2)) * 5]
    out = buffers.of_array("out", FakeArray(view.shape)).array
    copies.copy_array(out, view, 1)  # dimensions of one element do not count
    view = buffers.of_array("x", FakeArray((3,) * 9)).array[(slice(None, None, 2),) * 9]
    out = buffers.of_array("out", FakeArray(view.shape)).array
    with pytest.raises(
        ValueError, match=r"9 dimensions that do not lie together .*wanted 8 at most"
    ):
        copies.copy_array(out, view, 1)


@pytest.mark.parametrize("dtype", ["V3", "S5", "V12", "complex256", ">U3"])
def test_elements_of_any_size_are_copied_by_words(fake, dtype):
    values = np.frombuffer(b"0123456789ab" * 32, "u1").reshape(32, 12)[:20]
    values = np.array([str(row) for row in values[:, 0]] * 6)[:24].reshape(4, 6)
    if dtype[0] != ">":
        values = np.arange(24 * np.dtype(dtype).itemsize).astype("u1").view(dtype).reshape(4, 6)
    x = FakeArray((4, 6), dtype).fill(values)
    out = hc.empty((4, 3), x.dtype.newbyteorder("="))
    copies.copy_array(out.array, buffers.of_array("x", x).array[:, ::2], 1)
    wanted = values.astype(out.dtype)[:, ::2]
    assert hc.asnumpy(out).tobytes() == wanted.tobytes()


@pytest.mark.parametrize("place", ["x", "out"])
def test_layouts_that_no_kernel_copies_are_refused_before_the_call(fake, comm, place):
    view = FakeArray((3,) * 9)[(slice(None, None, 2),) * 9]
    other = FakeArray(view.shape)
    x, out = (view, other) if place == "x" else (other, view)
    with pytest.raises(ValueError, match=f"{place} has 9 dimensions that do not lie together"):
        hpccoll.iallreduce(x, out=out, comm=comm)


def test_foreign_byte_order_of_other_things_than_numbers_is_refused(fake, comm):
    kind = np.dtype([("a", ">i2"), ("b", ">i2")])
    with pytest.raises(TypeError, match=r"buf has dtype .* foreign byte order"):
        hpccoll.Comm(comm).Bcast(FakeArray(4, kind))


def test_dimensions_that_lie_together_are_joined():
    assert copies.joined((2, 3, 4), (48, 16, 4), (48, 16, 4)) == ((24,), (4,), (4,))
    assert copies.joined((2, 3, 4), (48, 16, 4), (96, 16, 4)) == ((2, 12), (48, 4), (96, 4))
    assert copies.joined((1, 1), (8, 8), (4, 4)) == ((), (), ())


# hpccoll.Comm.


def test_methods_take_device_memory_in_all_forms(fake, site, comm):
    wrapped = hpccoll.Comm(comm)
    x, values = produced(fake, 6)
    out = FakeArray(6, stream=fake.new_stream()).fill(0)
    for sendbuf, recvbuf in (
        (x, out),
        ([x, MPI.FLOAT], [out, MPI.FLOAT]),
        ([x, 6, MPI.FLOAT], [out, (6, 0), MPI.FLOAT]),
    ):
        out.fill(0)
        wrapped.Allreduce(sendbuf, recvbuf, op=MPI.MAX)
        np.testing.assert_array_equal(out.numpy(), values)
    wrapped.Allreduce(MPI.IN_PLACE, out)
    wrapped.Reduce(x, out, root=0)
    wrapped.Bcast(x)
    wrapped.Allgather(x, out)
    wrapped.Reduce_scatter_block(x, out)
    np.testing.assert_array_equal(out.numpy(), values)
    assert len(site.jobs) == 8
    assert all(on_device and not is_plain for _, on_device, is_plain in site.jobs)


def test_no_plan_of_a_device_call_is_remembered(fake, site, comm):
    wrapped = hpccoll.Comm(comm)
    wrapped.Allreduce(MPI.IN_PLACE, FakeArray(3))
    assert wrapped._recent is None or not wrapped._recent.plans


@pytest.mark.parametrize("view", [lambda x: x, lambda x: x[::2, 1:], lambda x: x.T])
def test_in_place_the_chunk_of_a_reduce_scatter_goes_to_the_start(fake, site, comm, view):
    x, values = produced(fake)
    hpccoll.Comm(comm).Reduce_scatter_block(MPI.IN_PLACE, view(x))
    np.testing.assert_array_equal(x.numpy(), values)
    hpccoll.Comm(comm).Reduce_scatter(MPI.IN_PLACE, view(x), [view(values).size])
    np.testing.assert_array_equal(x.numpy(), values)


def test_chunks_of_an_allgather_may_lie_anywhere(fake, site, comm):
    x, values = produced(fake, 3)
    out = FakeArray(8, stream=fake.new_stream()).fill(7)
    hpccoll.Comm(comm).Allgatherv(x, [out, [3], [4], MPI.FLOAT])
    np.testing.assert_array_equal(out.numpy(), [7] * 4 + values.tolist() + [7])
    hpccoll.Comm(comm).Allgatherv(MPI.IN_PLACE, [out, [3], [4], MPI.FLOAT])
    np.testing.assert_array_equal(out.numpy(), [7] * 4 + values.tolist() + [7])


def test_a_view_is_packed_where_the_shape_of_the_result_is_another(fake, site, comm):
    x, values = produced(fake)
    out = FakeArray(12, stream=x.stream).fill(0)
    hpccoll.Comm(comm).Allreduce(x.T, out)
    np.testing.assert_array_equal(out.numpy(), values.T.reshape(-1))


def test_requests_are_in_order_with_the_callers_stream(fake, site, comm):
    wrapped = hpccoll.Comm(comm)
    x, values = produced(fake)
    out = FakeArray((3, 4), stream=fake.new_stream()).fill(0)
    wrapped.Iallreduce(x, out).Wait()
    np.testing.assert_array_equal(out.numpy(on=fake.new_stream()), values)


def test_persistent_requests_follow_the_stream_of_each_start(fake, site, comm):
    wrapped = hpccoll.Comm(comm)
    x = FakeArray(4, stream=fake.new_stream())
    out = FakeArray(4, stream=x.stream)
    with wrapped.Allreduce_init(x, out) as request:
        for number in range(3):
            x.stream = out.stream = fake.new_stream()
            x.fill(number)
            request.Start()
            request.Wait()
            assert (out.numpy(on=fake.new_stream()) == number).all()
    assert len(site.jobs) == 3


# Many arrays.


@pytest.mark.parametrize("spare", [False, True])
def test_many_arrays_are_packed_by_type_and_place(fake, site, comm, monkeypatch, spare):
    monkeypatch.setattr(channel_of(comm), "spare_cores", spare)
    kinds = (
        *((3, "f4", 0), ((2, 3), "f4", 0), (5, "f4", 1)),
        *((4, "i4", 0), (2, "f4", 1), (70000, "f4", 0)),
    )
    made = [produced(fake, *kind) for kind in kinds]
    host = [np.arange(3.0), np.arange(5.0)]
    results = hpccoll.allreduce_many([*(x for x, _ in made), *host], comm=comm)
    for (_, values), result in zip(made, results, strict=False):
        np.testing.assert_array_equal(hc.asnumpy(result), values)
    assert [result.tolist() for result in results[-2:]] == [[0, 1, 2], [0, 1, 2, 3, 4]]
    assert sorted(count for count, _, _ in site.jobs) == [4, 7, 9, 70000]


def test_a_stream_for_many_arrays_is_one_for_each(fake, site, comm):
    x, values = produced(fake)
    (result,) = hpccoll.allreduce_many([x], comm=comm, stream=x.stream)
    np.testing.assert_array_equal(hc.asnumpy(result, stream=x.stream), values)
    with pytest.raises(TypeError, match="array 1: stream is given, and x lies in host memory"):
        hpccoll.allreduce_many([x, np.ones(3)], comm=comm, stream=x.stream)


def test_many_arrays_are_reduced_in_place_and_into_others(fake, site, comm):
    made = [produced(fake, 3 + n) for n in range(4)]
    x = [x for x, _ in made]
    assert hpccoll.allreduce_many(x, out=x, comm=comm) == x
    outs = [FakeArray(3 + n, stream=fake.new_stream()).fill(0) for n in range(4)]
    hpccoll.allreduce_many(x, out=outs, comm=comm)
    for (x, values), out in zip(made, outs, strict=True):
        np.testing.assert_array_equal(x.numpy(), values)
        np.testing.assert_array_equal(out.numpy(), values)


def test_many_arrays_that_overlap_others_results_are_kept(fake, site, comm):
    x, values = produced(fake, 8)
    out = [x[4:], FakeArray(4, stream=x.stream)]
    hpccoll.allreduce_many([x[:4], x[4:]], out=out, comm=comm)
    np.testing.assert_array_equal(out[0].numpy(), values[:4])
    np.testing.assert_array_equal(out[1].numpy(), values[4:])


def test_a_bucketer_takes_what_is_on_the_stream_when_it_is_ready(fake, site, comm):
    bucketer = hpccoll.Bucketer("max", comm=comm)
    arrays = {name: FakeArray(5, stream=fake.new_stream()) for name in "abc"}
    for step in range(3):
        for name, x in arrays.items():
            x.fill(step)
            bucketer.ready(name, x)
            x.stream = fake.new_stream()  # what is current later does not matter
        bucketer.wait()
        assert all((x.numpy() == step).all() for x in arrays.values())


# What is refused, before anything is sent.


def on(device=0, shape=4, dtype=np.float64):
    return FakeArray(shape, dtype, device)


HOST = np.ones(4)

REFUSED = {
    "out in host memory": (
        lambda f: f(on(), out=np.ones(4)),
        TypeError,
        "x lies on CUDA device 0, out in host memory; they must lie in the same memory",
    ),
    "x in host memory": (
        lambda f: f(np.ones(4), out=on()),
        TypeError,
        "x lies in host memory, out in that of a GPU; they must lie in the same memory",
    ),
    "a scalar": (lambda f: f(1.0, out=on()), TypeError, "x lies in host memory, out in that of a"),
    "another device": (
        lambda f: f(on(0), out=on(1)),
        TypeError,
        "x lies on CUDA device 0, out on CUDA device 1; they must",
    ),
    "another type": (
        lambda f: f(on(), out=on(dtype="f4")),
        TypeError,
        "out has dtype float32, x has float64",
    ),
    "another shape": (lambda f: f(on(), out=on(shape=5)), ValueError, r"out has shape \(5,\)"),
    "a stream for host memory": (
        lambda f: f(np.ones(4), stream=1),
        TypeError,
        "stream is given, and x lies in host memory",
    ),
    "no stream": (lambda f: f(on(), stream="main"), TypeError, "stream is 'main' of type str"),
    "a stream of another device": (
        lambda f: f(on(), stream=types.SimpleNamespace(cuda_stream=5, device_index=1)),
        ValueError,
        "stream is one of device 1, and x lies on device 0",
    ),
    "no numbers": (lambda f: f(on(dtype="S4")), TypeError, r"x has dtype \|S4; wanted numbers"),
}


@pytest.mark.parametrize(
    ("name", "case"),
    [
        (name, case)
        for name in NAMES
        for case in REFUSED
        if "reduce_scatter" not in name
        and not ("gather" in name and case == "another shape")  # it may have one
    ],
)
def test_functions_refuse(fake, site, comm, name, case):
    make, error, text = REFUSED[case]
    with pytest.raises(error, match=text) as caught:
        make(lambda x, **options: call(name, x, comm=comm, **options))
    assert str(caught.value).startswith(f"{name}: ")
    assert not site.jobs


def test_types_without_kernels_are_refused(fake, site, comm):
    for dtype, op in (("longdouble", "sum"), ("m8[s]", "max"), ("clongdouble", "prod")):
        with pytest.raises(TypeError, match=f"op '{op}' has no loops for .* in GPU memory"):
            hpccoll.allreduce(on(dtype=dtype), op, comm=comm)
        with pytest.raises(TypeError, match=f"'{op}' has no loops for .* in GPU memory"):
            hpccoll.Comm(comm).Allreduce(MPI.IN_PLACE, on(dtype=dtype), op)
    with pytest.raises(TypeError, match="cannot run on bool"):
        hpccoll.allreduce(on(dtype=bool), comm=comm)
    hpccoll.broadcast(on(dtype="longdouble"), comm=comm)


def test_methods_refuse_mixed_memory(fake, site, comm):
    wrapped = hpccoll.Comm(comm)
    for method in (wrapped.Allreduce, wrapped.Allgather, wrapped.Reduce_scatter_block):
        with pytest.raises(TypeError, match="sendbuf lies on CUDA device 0, recvbuf in host mem"):
            method(on(), np.ones(4))
        with pytest.raises(TypeError, match="sendbuf lies in host memory, recvbuf on CUDA device"):
            method(np.ones(4), on())
        with pytest.raises(TypeError, match="sendbuf lies on CUDA device 1, recvbuf on CUDA dev"):
            method(on(1), on(0))
    assert not site.jobs


@pytest.fixture
def aware(monkeypatch):
    module = types.ModuleType("hpccoll.cuda.awareness")
    module.answer = "no"
    module.cuda_aware = lambda: module
    monkeypatch.setitem(sys.modules, "hpccoll.cuda.awareness", module)
    return module


def test_the_mpi_library_gets_device_memory_only_where_it_can_take_it(fake, comm, aware):
    wrapped = hpccoll.Comm(comm)
    own = MPI.Op.Create(lambda *_: None, commute=True)
    for answer in ("no", "unknown"):
        aware.answer = answer
        for method in (wrapped.Allreduce, wrapped.Iallreduce, wrapped.Allreduce_init):
            with pytest.raises(
                TypeError, match=rf"FakeArray in GPU memory cannot be given .*cuda_aware: {answer}"
            ):
                method(on(), on(), own)
    aware.answer = "yes"
    with pytest.raises(TypeError, match="has to be told of its stream at each start"):
        wrapped.Allreduce_init([on(), MPI.DOUBLE], on(), own)
    x, values = produced(fake, 4)
    leave_to_mpi((x, [x, MPI.FLOAT], own))
    assert x.numpy().tolist() == values.tolist()
    own.Free()


def test_an_error_of_the_driver_is_told(fake, site, comm):
    x = on()
    fake.fail("cuEventRecord", 719)
    with pytest.raises(CudaError, match=r"^iallreduce: cuEventRecord failed: .*rank 0 of 1"):
        hpccoll.iallreduce(x, comm=comm)
    assert driver.is_loaded()


def test_host_calls_know_nothing_of_devices(fake, comm):
    before = dict(fake.calls)
    assert hpccoll.allreduce(HOST, comm=comm).tolist() == HOST.tolist()
    assert dict(fake.calls) == before
    assert not isinstance(HOST, DeviceArray)


def test_arrays_that_nobody_keeps_are_freed_behind_what_uses_them(fake):
    """Not at once, which would be to wait for the device; and not never."""
    values = np.arange(5000.0)
    for _ in range(4):
        hpccoll.allreduce(hc.asarray(values), comm=MPI.COMM_SELF)
    freed = fake.calls["cuMemFree"]
    fake.finish(1)
    hc.empty(10)
    assert fake.calls["cuMemFree"] > freed
