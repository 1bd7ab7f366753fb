"""The fake driver finds each kind of mistake, and takes no correct order for one."""

import ctypes
import subprocess
import sys
import threading

import numpy as np
import pytest
import simple_kernels
from fake_arrays import FakeArray
from fake_cuda import FakeCuda
from fake_cuda_functions import NOT_REGISTERED
from fake_dlpack import DlpackArray, ManagedTensor

from hpccoll.cuda import driver_api as api
from hpccoll.cuda.driver import get_device
from hpccoll.errors import CudaError

N = 100


@pytest.fixture
def fake():
    """Two devices. A test that ends in violations takes them with `found`."""
    with FakeCuda(2, kernels=simple_kernels) as fake:
        yield fake


def found(fake, *words):
    """Assert that there is one violation, with these words in it, and forget it."""
    (text,) = fake.violations
    for word in words:
        assert word in text
    with pytest.raises(AssertionError):
        fake.check()
    fake.violations.clear()


class Streams:
    """Two streams of device 0, an event, and memory that they use."""

    def __init__(self, fake, *, blocking=False):
        self.fake, self.device = fake, get_device(0)
        self.one, self.other = (fake.new_stream(blocking=blocking) for _ in range(2))
        self.event = self.device.new_event()
        self.array = FakeArray(N, stream=self.one)
        self.nbytes = 4 * N
        fake.kept = self  # the array is not freed before the end

    def use(self, stream, *, writes, start=0, nbytes=None):
        part = [(self.array.address + start, nbytes or self.nbytes)]
        form = {"writes": part} if writes else {"reads": part}
        self.fake.enqueue(stream, "work", **form)

    def record(self, stream):
        with self.device:
            self.device.driver.call("cuEventRecord", self.event, stream)

    def wait(self, stream):
        with self.device:
            self.device.driver.call("cuStreamWaitEvent", stream, self.event, 0)

    def is_done(self):
        with self.device:
            try:
                self.device.driver.call("cuEventQuery", self.event)
            except CudaError as error:
                if error.code != api.NOT_READY:
                    raise
                return False
        return True

    def await_event(self):
        while not self.is_done():
            pass


@pytest.fixture
def streams(fake):
    return Streams(fake)


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_conflicts_between_streams_are_found(fake, streams, first, second):
    streams.use(streams.one, writes=first)
    streams.use(streams.other, writes=second)
    found(fake, "nothing orders the two", "work on stream", "allocation")


@pytest.mark.parametrize(("first", "second"), [(True, True), (True, False), (False, True)])
def test_an_event_orders_streams(fake, streams, first, second):
    streams.use(streams.one, writes=first)
    streams.record(streams.one)
    streams.wait(streams.other)
    streams.use(streams.other, writes=second)


def test_two_readers_need_no_order(fake, streams):
    streams.use(streams.one, writes=False)
    streams.use(streams.other, writes=False)


def test_parts_that_do_not_meet_need_no_order(fake, streams):
    streams.use(streams.one, writes=True, nbytes=40)
    streams.use(streams.other, writes=True, start=40, nbytes=40)


def test_parts_that_meet_in_a_byte_do(fake, streams):
    streams.use(streams.one, writes=True, nbytes=41)
    streams.use(streams.other, writes=True, start=40, nbytes=40)
    found(fake, "nothing orders")


def test_an_event_orders_nothing_that_comes_after_it(fake, streams):
    streams.record(streams.one)
    streams.use(streams.one, writes=True)
    streams.wait(streams.other)
    streams.use(streams.other, writes=True)
    found(fake, "nothing orders")


def test_an_event_stands_for_its_last_record_when_it_is_waited_for(fake, streams):
    streams.record(streams.one)
    streams.wait(streams.other)
    streams.use(streams.one, writes=True)
    streams.record(streams.one)
    streams.use(streams.other, writes=True)
    found(fake, "nothing orders")


def test_order_goes_through_a_third_stream(fake, streams):
    third, event = fake.new_stream(), streams.device.new_event()
    streams.use(streams.one, writes=True)
    streams.record(streams.one)
    streams.wait(third)
    with streams.device as device:
        device.driver.call("cuEventRecord", event, third)
        device.driver.call("cuStreamWaitEvent", streams.other, event, 0)
    streams.use(streams.other, writes=True)


def test_an_event_that_was_never_recorded(fake, streams):
    streams.wait(streams.one)
    found(fake, "never recorded")
    assert streams.is_done()
    found(fake, "never recorded")


def test_the_host_orders_streams_by_waiting(fake, streams):
    streams.use(streams.one, writes=True)
    streams.record(streams.one)
    streams.await_event()
    streams.use(streams.other, writes=True)


def test_the_host_orders_nothing_by_looking(fake, streams):
    streams.use(streams.one, writes=True)
    streams.record(streams.one)
    fake.hold(streams.one)
    assert not streams.is_done()
    streams.use(streams.other, writes=True)
    found(fake, "nothing orders")
    fake.release(streams.one)


@pytest.mark.parametrize(("work", "host"), [(True, True), (True, False), (False, True)])
def test_the_host_must_wait_for_work(fake, streams, work, host):
    streams.use(streams.one, writes=work)
    touch = fake.host_writes if host else fake.host_reads
    touch(streams.array.address, 4, "MPI")
    found(fake, "MPI", "nothing orders")


def test_the_host_may_touch_what_it_has_waited_for(fake, streams):
    streams.use(streams.one, writes=True)
    fake.finish(streams.one)
    fake.host_writes(streams.array.address, 4)
    streams.use(streams.one, writes=True)


def test_the_host_may_read_what_is_read(fake, streams):
    streams.use(streams.one, writes=False)
    fake.host_reads(streams.array.address, 4)


@pytest.mark.parametrize(("work", "host"), [(True, True), (True, False), (False, True)])
def test_work_must_not_begin_while_mpi_uses_memory(fake, streams, work, host):
    message = fake.host_begins(streams.array.address, 8, writes=host, text="a message")
    streams.use(streams.one, writes=work)
    found(fake, "a message", "nothing orders")
    fake.host_ends(message)
    streams.use(streams.one, writes=work)


def test_work_may_read_what_mpi_reads(fake, streams):
    message = fake.host_begins(streams.array.address, 8, writes=False)
    streams.use(streams.one, writes=False)
    fake.host_ends(message)


def test_memory_that_the_driver_does_not_know_needs_no_order(fake):
    x = np.zeros(3)
    assert fake.host_begins(x.ctypes.data, x.nbytes, writes=True) == []


@pytest.mark.parametrize("legacy_first", [True, False])
@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("legacy", [0, 1])
def test_the_legacy_stream_orders_blocking_streams_only(fake, blocking, legacy_first, legacy):
    streams = Streams(fake, blocking=blocking)
    pair = (legacy, streams.one) if legacy_first else (streams.one, legacy)
    for stream in pair:
        streams.use(stream, writes=True)
    if not blocking:
        found(fake, "nothing orders")


def test_blocking_streams_are_not_ordered_by_themselves(fake):
    streams = Streams(fake, blocking=True)
    streams.use(streams.one, writes=True)
    streams.use(streams.other, writes=True)
    found(fake, "nothing orders")


def test_threads_have_default_streams_of_their_own(fake, streams):
    streams.use(2, writes=True)
    thread = threading.Thread(target=streams.use, args=(2,), kwargs={"writes": True})
    thread.start()
    thread.join()
    found(fake, "nothing orders", "default stream of a thread")


def test_what_came_before_is_not_forgotten(fake, streams):
    """A later access that is ordered behind an earlier one does not hide it."""
    streams.use(streams.one, writes=True)
    streams.use(streams.one, writes=False, nbytes=8)
    streams.record(streams.one)
    streams.wait(streams.other)
    streams.use(streams.other, writes=False)
    third = fake.new_stream()
    streams.use(third, writes=False)
    found(fake, "work on", "reads", "nothing orders")


def test_arrays_go_back_in_the_order_of_their_stream(fake):
    streams = [fake.new_stream() for _ in range(2)]
    x = FakeArray(N, stream=streams[0]).fill(1)
    address = x.address
    del x
    fake.enqueue(streams[0], "work", reads=[(address, 4)])
    found(fake, "after it was given back")
    x = FakeArray(N, stream=streams[0])
    fake.enqueue(streams[1], "work", reads=[(x.address, 4)])
    del x
    found(fake, "the caller's allocator", "which work on stream", "nothing orders")


def test_nothing_runs_before_it_is_asked_for(fake):
    stream = fake.new_stream()
    ran = []
    fake.enqueue(stream, "work", lambda: ran.append(1))
    assert ran == []
    fake.finish(stream)
    assert ran == [1]


def test_streams_go_on_in_many_orders():
    orders = set()
    for seed in range(20):
        with FakeCuda(kernels=simple_kernels, seed=seed) as fake:
            ran, streams = [], [fake.new_stream() for _ in range(2)]
            for k in (0, 1):
                fake.enqueue(streams[k], "work", lambda k=k: ran.append(k))  # noqa: B023
            for stream in streams[::-1]:
                fake.finish(stream)
            orders.add(tuple(ran))
    assert orders == {(0, 1), (1, 0)}


def test_a_stream_that_waits_runs_after_what_it_waits_for():
    for seed in range(20):
        with FakeCuda(kernels=simple_kernels, seed=seed) as fake:
            streams, ran = Streams(fake), []
            fake.enqueue(streams.one, "work", lambda: ran.append(1))  # noqa: B023
            streams.record(streams.one)
            streams.wait(streams.other)
            fake.enqueue(streams.other, "work", lambda: ran.append(2))  # noqa: B023
            fake.finish(streams.other)
            assert ran == [1, 2]


def test_memory_is_poisoned(fake):
    assert np.isnan(FakeArray(3).numpy()).all()


def test_memory_that_is_used_after_it_was_freed(fake, streams):
    address = streams.device.allocate(64)
    streams.device.free(address)
    fake.enqueue(streams.one, "work", reads=[(address, 4)])
    found(fake, "work uses", "after it was given back")
    fake.host_reads(address, 4)
    found(fake, "after it was given back")
    assert fake.driver.device_of(address) is None


def test_memory_past_the_end(fake, streams):
    streams.use(streams.one, writes=True, start=4)
    found(fake, "past its end")


def test_memory_that_is_freed_while_it_is_used(fake, streams):
    address = streams.device.allocate(64)
    fake.enqueue(streams.one, "work", reads=[(address, 4)])
    streams.device.free(address)
    found(fake, "work on", "may still use it")


def test_memory_that_is_freed_after_it_was_used(fake, streams):
    address = streams.device.allocate(64)
    fake.enqueue(streams.one, "work", reads=[(address, 4)])
    fake.finish(streams.one)
    streams.device.free(address)


def test_memory_that_is_freed_twice(fake, streams):
    address = streams.device.allocate(64)
    streams.device.free(address)
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        streams.device.free(address)
    found(fake, "twice")
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        streams.device.free(4096)
    found(fake, "never given out")


def copy(device, out, source, nbytes, stream):
    with device:
        device.driver.call("cuMemcpyAsync", out, source, nbytes, stream)


def test_copies_take_pinned_memory_alone(fake, streams):
    x = np.arange(N, dtype=np.float32)
    copy(streams.device, streams.array.address, x.ctypes.data, x.nbytes, streams.one)
    found(fake, "pageable")
    streams.device.register(x.ctypes.data, x.nbytes)
    copy(streams.device, streams.array.address, x.ctypes.data, x.nbytes, streams.one)
    assert (streams.array.numpy() == x).all()
    streams.device.unregister(x.ctypes.data)
    copy(streams.device, streams.array.address, x.ctypes.data, x.nbytes, streams.one)
    found(fake, "after it was given back")


def test_registered_memory_needs_order(fake, streams):
    x = np.arange(N, dtype=np.float32)
    streams.device.register(x.ctypes.data, x.nbytes)
    streams.array.fill(1)
    copy(streams.device, x.ctypes.data, streams.array.address, x.nbytes, streams.one)
    fake.host_reads(x.ctypes.data, x.nbytes)
    found(fake, "registered memory", "nothing orders")
    streams.device.unregister(x.ctypes.data)
    found(fake, "unregistered", "may still use it")
    assert (x == np.arange(N)).all()


def test_pages_are_registered_once(fake, streams):
    x = np.zeros(100, np.uint8)
    streams.device.register(x.ctypes.data, 50)
    with pytest.raises(CudaError, match="ALREADY_REGISTERED"):
        streams.device.register(x.ctypes.data + 50, 50)
    streams.device.unregister(x.ctypes.data)
    with pytest.raises(CudaError) as caught:
        streams.device.unregister(x.ctypes.data)
    assert caught.value.code == NOT_REGISTERED
    found(fake, "twice")


def test_pinned_memory_of_the_driver(fake, streams):
    address = streams.device.allocate_pinned(4 * N)
    assert fake.driver.device_of(address) is None
    copy(streams.device, address, streams.array.fill(3).address, 4 * N, streams.one)
    fake.finish(streams.one)
    assert (simple_kernels.at(address, N, "f4") == 3).all()
    streams.device.free_pinned(address)


def test_calls_need_a_context(fake, streams):
    with pytest.raises(CudaError, match="INVALID_CONTEXT"):
        fake.driver.call("cuEventRecord", streams.event, streams.one)
    found(fake, "no context was current")


def test_streams_belong_to_a_device(fake, streams):
    with get_device(1) as device, pytest.raises(CudaError, match="INVALID_HANDLE"):
        device.driver.call("cuEventRecord", device.new_event(), streams.one)
    found(fake, "while device 1 is current")


def test_events_belong_to_a_device(fake, streams):
    event = get_device(1).new_event()
    with streams.device as device, pytest.raises(CudaError, match="INVALID_HANDLE"):
        device.driver.call("cuEventRecord", event, streams.one)
    found(fake, "event of device 1")


def test_streams_wait_for_events_of_other_devices(fake, streams):
    streams.use(streams.one, writes=True)
    streams.record(streams.one)
    other = fake.new_stream(1)
    with get_device(1) as device:
        device.driver.call("cuStreamWaitEvent", other, streams.event, 0)
    fake.enqueue(other, "work", writes=[(streams.array.address, 4)], device=1)


def test_handles_that_are_none(fake, streams):
    with streams.device as device:
        for name, arguments in {
            "cuEventQuery": (77,),
            "cuEventDestroy": (streams.one,),
            "cuStreamDestroy": (streams.event,),
        }.items():
            with pytest.raises(CudaError, match=f"{name} failed: CUDA_ERROR_INVALID_HANDLE"):
                device.driver.call(name, *arguments)


def test_a_context_that_stays_current(fake, streams):
    streams.device.__enter__()
    with pytest.raises(AssertionError, match="stayed current"):
        fake.check()
    streams.device.__exit__()


def test_a_context_too_many_that_is_popped(fake, streams):
    with pytest.raises(CudaError, match="INVALID_CONTEXT"):
        streams.device.__exit__()
    found(fake, "empty stack")


def test_kernels_of_another_device_and_on_its_memory(fake, streams):
    mine, other = streams.device, get_device(1)
    function = other.function(other.load_module(simple_kernels.CODE), "add")
    there = FakeArray(N, device=1)
    block = ctypes.create_string_buffer(
        simple_kernels.PAIR.pack(there.address, there.address, streams.array.address, N)
    )
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(block))
    arguments = (1, 1, 1, 32, 1, 1, 0)
    with mine, pytest.raises(CudaError, match="INVALID_HANDLE"):
        mine.driver.call("cuLaunchKernel", function, *arguments, streams.one, parameters, None)
    found(fake, "add of device 1 is launched on")
    with other:
        stream = fake.new_stream(1)
        other.driver.call("cuLaunchKernel", function, *arguments, stream, parameters, None)
    found(fake, "which it has not opened")


def test_kernels_that_are_not_there(fake, streams):
    module = streams.device.load_module(simple_kernels.CODE)
    with pytest.raises(CudaError, match="NOT_FOUND"):
        streams.device.function(module, "subtract")


def test_functions_fail_when_told_to(fake, streams):
    fake.fail("cuIpcGetMemHandle", 801, times=2, after=1)
    address = streams.array.address
    assert len(bytes(streams.device.export(address)).rstrip(b"\0"))  # those before do their work
    for _ in range(2):
        with pytest.raises(CudaError, match="cuIpcGetMemHandle failed: CUDA_ERROR_NOT_SUPPORTED"):
            streams.device.export(address)
    streams.device.export(address)
    assert fake.calls["cuIpcGetMemHandle"] == 4


def test_memory_opened_by_its_handle_is_the_same(fake, streams):
    device, array = streams.device, streams.array.fill(5)
    address = device.open(device.export(array.address))
    assert address != array.address
    fake.host_reads(address, 4)
    found(fake, "nothing orders")
    fake.finish(streams.one)
    assert (simple_kernels.at(address, N, "f4") == 5).all()
    assert device.open(device.export(array.address)) == address
    device.close(address)
    fake.host_reads(address, 4)
    device.close(address)
    fake.host_reads(address, 4)
    found(fake, "after it was given back")


def test_memory_is_freed_after_it_was_closed(fake, streams):
    device = streams.device
    base = device.allocate(64)
    address = device.open(device.export(base))
    fake.enqueue(streams.one, "work", reads=[(address, 4)])
    device.close(address)
    found(fake, "is closed", "may still use it")
    fake.finish(streams.one)
    address = device.open(device.export(base))
    device.free(base)
    found(fake, "still open")


def test_handles_of_nothing(fake, streams):
    with pytest.raises(CudaError, match="INVALID_HANDLE"):
        streams.device.open(bytes(64))
    with pytest.raises(CudaError, match="INVALID_VALUE"):
        streams.device.export(streams.device.allocate_pinned(8))


OTHER_PROCESS = """
import sys
import simple_kernels
from fake_cuda import FakeCuda
from hpccoll.cuda.driver import get_device

with FakeCuda(kernels=simple_kernels):
    device = get_device(0)
    address = device.open(bytes.fromhex(sys.argv[1]))
    seen = simple_kernels.at(address, 100, "f4")
    assert (seen == 7).all()
    seen[:] = 8
    assert device.driver.device_of(address) == 0
    assert device.open(bytes.fromhex(sys.argv[1])) == address
    device.close(address)
    device.close(address)
"""


def test_memory_is_shared_between_processes(fake, streams, request):
    streams.array.fill(7)
    fake.finish(streams.one)
    handle = streams.device.export(streams.array.address)
    paths = [str(request.config.rootpath / "tests"), str(request.config.rootpath)]
    program = f"import sys; sys.path[:0] = {paths!r}\n{OTHER_PROCESS}"
    subprocess.run([sys.executable, "-c", program, handle.hex()], check=True, timeout=50)
    assert (simple_kernels.at(streams.array.address, N, "f4") == 8).all()


def test_what_the_driver_knows_of_an_address(fake, streams):
    first, second = (FakeArray(N, device=k) for k in (0, 1))
    assert [fake.driver.device_of(x[3:].address) for x in (first, second)] == [0, 1]
    assert fake.driver.device_of(np.zeros(1).ctypes.data) is None
    one, other = (fake.driver.allocation_of(x[3:].address) for x in (first, second))
    assert (one.base, one.nbytes) == (first.address, 4 * N)
    assert one.buffer_id != other.buffer_id
    with pytest.raises(CudaError, match="no address in the memory of a CUDA device"):
        fake.driver.allocation_of(np.zeros(1).ctypes.data)


def test_arrays(fake):
    stream = fake.new_stream()
    x = FakeArray((4, 6), np.int16, stream=stream)
    values = np.arange(24).reshape(4, 6)
    x.fill(values)
    view = x[1:, ::2]
    interface = view.__cuda_array_interface__
    assert interface["shape"] == (3, 3)
    assert interface["strides"] == (12, 4)
    assert interface["stream"] == stream
    assert interface["data"] == (x.address + 12, False)
    assert x.__cuda_array_interface__["strides"] is None
    assert (view.numpy() == values[1:, ::2]).all()
    assert (x.T[::-1].numpy() == values.T[::-1]).all()
    x[:, 1].fill(-1)
    assert (x.numpy()[:, 1] == -1).all()
    assert x.view(np.int8).shape == (4, 12)


def test_arrays_whose_contents_are_read_on_the_wrong_stream(fake):
    x = FakeArray(N, stream=fake.new_stream()).fill(2)
    x.numpy(on=fake.new_stream())
    found(fake, "the caller's consumer", "the caller's producer")


def test_exceptions_in_functions_are_told(fake, streams, monkeypatch):
    def broken(*arguments):
        raise ZeroDivisionError

    monkeypatch.setattr(fake.kernels, "has", broken)
    module = streams.device.load_module(simple_kernels.CODE)
    with pytest.raises(CudaError, match="CUDA_ERROR_UNKNOWN"):
        streams.device.function(module, "add")
    found(fake, "ZeroDivisionError")


def test_a_driver_that_was_given_up_does_nothing(streams):
    streams.fake.close()
    with pytest.raises(CudaError, match="DEINITIALIZED"):
        streams.device.allocate(8)


def test_arrays_by_dlpack(fake):
    own, consumer = fake.new_stream(), fake.new_stream()
    x = DlpackArray((4, 6), np.int16, stream=own).fill(1)
    assert not hasattr(x, "__cuda_array_interface__")
    assert x.__dlpack_device__() == (2, 0)
    view = x[1:, ::2]
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    capsule = view.__dlpack__(stream=consumer)
    fake.enqueue(consumer, "work", reads=[(view.address, 4)])  # is ordered
    managed = ManagedTensor.from_address(address(capsule, b"dltensor"))
    tensor = managed.tensor
    assert (tensor.data, tensor.ndim, tensor.byte_offset) == (view.address, 2, 0)
    assert (tensor.shape[:2], tensor.strides[:2]) == ([3, 3], [6, 2])
    assert (tensor.dtype.code, tensor.dtype.bits, tensor.dtype.lanes) == (0, 16, 1)
    assert (tensor.device.kind, tensor.device.number) == (2, 0)
    managed.deleter(ctypes.addressof(managed))
    capsule = x.__dlpack__(stream=-1)
    fake.enqueue(fake.new_stream(), "work", reads=[(x.address, 4)])
    found(fake, "nothing orders")
    managed = ManagedTensor.from_address(address(capsule, b"dltensor"))
    managed.deleter(ctypes.addressof(managed))
    fake.kept = x
