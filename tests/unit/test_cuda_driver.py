"""The CUDA driver: what it says when something is missing, and what devices do."""

import ctypes.util
import os
import pickle
import subprocess
import sys
import threading

import pytest
import simple_kernels
from fake_cuda import FakeCuda

from hpccoll.cuda import driver as cuda_driver
from hpccoll.cuda import driver_api as api
from hpccoll.cuda.driver import Driver, failure, get_device, get_driver, install, is_loaded
from hpccoll.errors import CudaError


@pytest.fixture
def fake():
    with FakeCuda(2, kernels=simple_kernels) as fake:
        yield fake


@pytest.fixture
def nothing_loaded():
    former = install(None)
    yield
    install(former)


def test_no_driver_on_this_machine(nothing_loaded, monkeypatch):
    monkeypatch.setattr(cuda_driver, "LIBRARY", "libno-such-cuda.so.1")
    message = r"there is no CUDA driver on this machine \(libno-such-cuda.so.1: .*\); arrays in GPU"
    for call in (Driver.load, get_driver, lambda: get_device(0)):
        with pytest.raises(ImportError, match=message) as caught:
            call()
        assert caught.value.name == "libno-such-cuda.so.1"
    assert not is_loaded()


@pytest.mark.skipif(bool(ctypes.util.find_library("cuda")), reason="there is a driver here")
def test_no_driver_here(nothing_loaded):
    with pytest.raises(ImportError, match=r"libcuda\.so\.1"):
        Driver.load()


def test_a_driver_without_a_function(nothing_loaded, monkeypatch):
    monkeypatch.setattr(cuda_driver, "LIBRARY", None)  # this process, which has no CUDA
    with pytest.raises(ImportError, match="has no function cuInit: it is too old"):
        Driver.load()


def test_importing_loads_nothing():
    program = (
        "import sys; import hpccoll.cuda.memory, hpccoll._device, hpccoll.cuda.driver as d;"
        "assert not d.is_loaded();"
        "assert not {'mpi4py.MPI', 'cuda', 'cupy', 'torch'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=50)


def test_signatures_are_complete():
    assert set(api.PROTOTYPES) == set(api.SIGNATURES)
    assert set(api.SECOND_VERSIONS) < set(api.SIGNATURES)


def test_a_driver_is_installed_and_taken_away(nothing_loaded):
    first, second = (FakeCuda(kernels=simple_kernels) for _ in range(2))
    assert install(first.driver) is None
    assert is_loaded()
    assert get_driver() is first.driver
    device = get_device(0)
    assert get_device(0) is device
    assert install(second.driver) is first.driver
    assert get_device(0) is not device
    for fake in (first, second):
        fake.check()
        fake.close()


def test_devices_that_are_not_visible(fake, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(CudaError, match=r"no CUDA device 2: this process sees 2 \(.* is not set\)"):
        get_device(2)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    with pytest.raises(CudaError, match=r"device -1: .* \(CUDA_VISIBLE_DEVICES is '0,1'\)"):
        get_device(-1)


def test_no_device_at_all(fake, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    fake.fail("cuInit", api.NO_DEVICE)
    message = (
        r"cuInit failed: CUDA_ERROR_NO_DEVICE \(100\): no device \(CUDA_VISIBLE_DEVICES is ''\)"
    )
    with pytest.raises(CudaError, match=message) as caught:
        fake.driver.call("cuInit", 0)
    assert caught.value.code == api.NO_DEVICE


def test_errors_without_a_name(fake):
    error = failure(fake.driver.functions, "cuInit", 12345)
    assert str(error).startswith("cuInit failed: CUDA_ERROR_UNKNOWN (12345)")
    silent = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_void_p)(lambda *_: 1)
    address = ctypes.cast(silent, ctypes.c_void_p).value
    functions = dict.fromkeys(("cuGetErrorName", "cuGetErrorString"), address)
    assert "unknown error (7): unknown error" in str(failure(functions, "cuInit", 7))


def test_errors_can_be_pickled():
    error = pickle.loads(pickle.dumps(CudaError("it failed", 2)))
    assert (str(error), error.code) == ("it failed", 2)
    assert isinstance(error, RuntimeError)


def test_what_a_device_is(fake):
    device, other = get_device(0), get_device(1)
    assert (device.number, device.name, device.arch) == (0, "fake device 0", "sm_90")
    assert device.multiprocessors == 4
    assert len(device.uuid) == 16
    assert device.uuid != other.uuid
    assert "fake device 0" in repr(device)
    assert device.driver is fake.driver
    assert fake.driver.device_count() == 2


def test_peers(fake):
    device, other = get_device(0), get_device(1)
    assert device.can_access(other)
    fake.peers = False
    assert not device.can_access(other)
    assert device.can_access(device)


def test_contexts_nest(fake):
    device, other = get_device(0), get_device(1)
    assert fake.stack == []
    with device:
        assert fake.stack == [device.context]
        with other, device:
            assert fake.stack == [device.context, other.context, device.context]
        assert fake.stack == [device.context]
    assert fake.stack == []
    assert fake.calls["cuDevicePrimaryCtxRetain"] == 2


def test_contexts_are_restored_after_errors(fake):
    device = get_device(0)
    fake.fail("cuMemAlloc", 2)
    with get_device(1):
        with pytest.raises(CudaError, match="OUT_OF_MEMORY"):
            device.allocate(8)
        assert fake.current == 1


def test_contexts_are_of_a_thread(fake):
    device = get_device(0)
    seen = []

    def look():
        seen.append(list(fake.stack))
        with get_device(1):
            seen.append(fake.current)

    with device:
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        assert fake.current == 0
    assert seen == [[], 1]


def test_a_context_that_cannot_be_had(fake):
    fake.fail("cuDevicePrimaryCtxRetain", 2)
    with pytest.raises(CudaError, match="cuDevicePrimaryCtxRetain"):
        get_device(0).new_event()
    get_device(0).new_event()


def test_memory_events_and_streams_go_back(fake):
    device = get_device(0)
    device.free(device.allocate(0))
    device.free_pinned(device.allocate_pinned(0))
    device.destroy_event(device.new_event())
    stream = device.new_stream()
    assert not fake.stream_of(stream, 0).blocking
    device.destroy_stream(stream)
    module = device.load_module(simple_kernels.CODE)
    assert device.function(module, "add")


def test_handles_of_memory_are_64_bytes(fake):
    device = get_device(0)
    base = device.allocate(1000)
    handle = device.export(base + 10)
    assert (type(handle), len(handle)) == (bytes, 64)
    address = device.open(handle)
    assert fake.driver.allocation_of(address + 999)[:2] == (address, 1000)
    device.close(address)
    device.free(base)


def test_a_forked_child_is_refused(fake):
    device = get_device(0)
    device.context  # noqa: B018  # has been used here
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        text = "nothing was raised"
        try:
            device.allocate(8)
        except CudaError as error:
            text = str(error)
        os.write(writing, text.encode())
        os._exit(0)
    os.waitpid(child, 0)
    text = os.read(reading, 1000).decode()
    os.close(reading), os.close(writing)
    assert text.startswith("cuCtxPushCurrent was not called: this process was forked from one")
    assert device.driver.usable


def test_errors_of_pointers_are_told(fake):
    fake.fail("cuPointerGetAttribute", 4)
    with pytest.raises(CudaError, match="DEINITIALIZED"):
        fake.driver.device_of(4096)
