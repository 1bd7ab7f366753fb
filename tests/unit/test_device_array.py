"""Arrays in device memory have a form and no elements; memory goes back when it is no more."""

import copy
import gc
import mmap
import os
import pickle
import sys

import numpy as np
import pytest
import simple_kernels
from fake_cuda import FakeCuda

from hpccoll import arena
from hpccoll.buffers import is_plain, overlaps_itself, same_memory
from hpccoll.cuda import memory
from hpccoll.cuda.device_array import DeviceArray, device_array
from hpccoll.cuda.driver import get_device
from hpccoll.cuda.memory import device_bytes, pinned_bytes
from hpccoll.errors import CudaError
from hpccoll.scratch import Memory

ADDRESS = 0x7F0000000000
"""Nothing is there: who reads or writes ends the process."""


@pytest.fixture
def x():
    return device_array(ADDRESS, (4, 6), np.float32, 3, owner="the owner")


def test_form(x):
    assert isinstance(x, DeviceArray)
    assert (x.shape, x.strides, x.size, x.nbytes, x.ndim) == ((4, 6), (24, 4), 24, 96, 2)
    assert x.dtype == np.float32
    assert (x.ctypes.data, x.device, x.owner, x.is_device) == (ADDRESS, 3, "the owner", True)
    assert x.flags.c_contiguous
    assert x.flags.writeable
    assert len(x) == 4
    assert repr(x) == str(x) == f"{x}" == "DeviceArray(shape=(4, 6), dtype=float32, device=3)"
    assert is_plain(x)
    assert not overlaps_itself(x)
    assert same_memory(x, x.T.T)


VIEWS = {
    "row": (lambda x: x[1], 24, (6,), (4,)),
    "rows": (lambda x: x[1:3], 24, (2, 6), (24, 4)),
    "steps": (lambda x: x[::-2, 1::2], 76, (2, 3), (-48, 8)),
    "element": (lambda x: x[1, 2, ...], 32, (), ()),
    "new axis": (lambda x: x[None, 2, 1], 52, (1,), (0,)),
    "whole": (lambda x: x[...], 0, (4, 6), (24, 4)),
    "transposed": (lambda x: x.T, 0, (6, 4), (4, 24)),
    "flat": (lambda x: x.reshape(-1), 0, (24,), (4,)),
    "other shape": (lambda x: x.reshape(2, 12), 0, (2, 12), (48, 4)),
    "shape as a tuple": (lambda x: x.reshape((8, 3)), 0, (8, 3), (12, 4)),
    "bytes": (lambda x: x.view(np.uint8), 0, (4, 24), (24, 1)),
    "complex": (lambda x: x.view(dtype=np.complex64), 0, (4, 3), (24, 8)),
    "imaginary parts": (lambda x: x.view(np.complex64).imag, 4, (4, 3), (24, 8)),
    "real parts": (lambda x: x.view(np.complex64).real, 0, (4, 3), (24, 8)),
    "numpy integer": (lambda x: x[np.int64(1)], 24, (6,), (4,)),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views(x, name):
    view, offset, shape, strides = VIEWS[name]
    y = view(x)
    assert type(y) is DeviceArray
    assert (y.device, y.owner) == (3, "the owner")
    assert y.ctypes.data == ADDRESS + offset
    assert y.shape == shape
    if name != "new axis":  # whose stride means nothing
        assert y.strides == strides


def test_overlap_is_seen(x):
    assert np.may_share_memory(x, x[1:])
    assert not np.may_share_memory(x[:2], x[2:])
    assert np.shares_memory(x[:, 1], x[1])
    assert not np.shares_memory(x[:, ::2], x[:, 1::2])
    assert np.shape(x) == (4, 6)


ELEMENTS = {
    **{f"x.{name}()": lambda x, name=name: getattr(x, name)() for name in ("sum", "min", "tolist")},
    **{
        f"x.{name}()": lambda x, name=name: getattr(x, name)()
        for name in ("copy", "tobytes", "item")
    },
    **{
        f"x.{name}()": lambda x, name=name: getattr(x, name)()
        for name in ("ravel", "flatten", "sort")
    },
    "x.astype": lambda x: x.astype(np.float64),
    "x.fill": lambda x: x.fill(0),
    "x[0, 0]": lambda x: x[0, 0],
    "x[[0]]": lambda x: x[[0]],
    "x[array]": lambda x: x[np.array([0])],
    "x[True]": lambda x: x[True],
    "x['a']": lambda x: x["a"],
    "x[0] = 1": lambda x: x.__setitem__(0, 1),
    "x + 1": lambda x: x + 1,
    "x += 1": lambda x: x.__iadd__(1),
    "x == x": lambda x: x == x,
    "-x": lambda x: -x,
    "x @ x": lambda x: x @ x.T,
    "numpy + x": lambda x: np.ones(6) + x,
    "bool": bool,
    "float": lambda x: float(x[0, :1]),
    "iter": iter,
    "list": list,
    "in": lambda x: 1 in x,
    "np.sum": np.sum,
    "np.copy": np.copy,
    "np.empty_like": np.empty_like,
    "np.concatenate": lambda x: np.concatenate([x, x]),
    "np.array_equal": lambda x: np.array_equal(x, x),
    "np.copyto": lambda x: np.copyto(np.zeros((4, 6)), x),
    "np.from_dlpack": np.from_dlpack,
    "pickle": pickle.dumps,
    "copy.copy": copy.copy,
    "copy.deepcopy": copy.deepcopy,
    "__array__": lambda x: x.__array__(),
    "__array_struct__": lambda x: x.__array_struct__,
    "data": lambda x: x.data,
    "flat": lambda x: x.flat,
    "imag": lambda x: x.imag,
    "view(ndarray)": lambda x: x.view(np.ndarray),
    "view(type=ndarray)": lambda x: x.view(type=np.ndarray),
    "to_device": lambda x: x.to_device("cpu"),
}


@pytest.mark.parametrize("name", ELEMENTS)
def test_elements_are_out_of_reach(x, name):
    with pytest.raises(TypeError, match="which the host cannot read or store"):
        ELEMENTS[name](x)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="no subclass can refuse its buffer")
def test_there_is_no_buffer(x):
    with pytest.raises(TypeError, match="which the host cannot read or store"):
        memoryview(x)


def test_shapes_that_may_need_a_copy(x):
    for reshape in (
        lambda: x.T.reshape(-1),
        lambda: x[:, ::2].reshape(-1),
        lambda: x.reshape(-1, order="F"),
    ):
        with pytest.raises(TypeError, match="reshape needs the elements"):
            reshape()
    with pytest.raises(ValueError, match="reshape"):
        x.reshape(5, 5)


@pytest.mark.parametrize("name", ["shape", "strides", "real", "imag", "flat", "data"])
def test_nothing_is_set(x, name):
    with pytest.raises(TypeError, match=f"setting {name}"):
        setattr(x, name, getattr(np.zeros(1), name))


def test_types_of_ml_dtypes():
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = device_array(ADDRESS, (3,), ml_dtypes.bfloat16, 0)
    assert x.dtype == ml_dtypes.bfloat16
    assert x.nbytes == 6


def test_strides_and_arrays_that_cannot_be_written():
    x = device_array(ADDRESS, (3, 2), np.int16, 0, strides=(2, 20), readonly=True)
    assert x.strides == (2, 20)
    assert not x.flags.writeable
    assert not x[1:].flags.writeable
    assert not x.flags.c_contiguous


def test_an_array_without_elements():
    x = device_array(0, (0, 3), np.float32, 1)
    assert (x.shape, x.size, x.device) == ((0, 3), 0, 1)


def test_views_keep_the_owner_alive():
    class Owner:
        gone = False

        def __del__(self):
            Owner.gone = True

    x = device_array(ADDRESS, (8,), np.uint8, 0, owner=Owner())
    view = x[2:].view(np.uint16)
    del x
    gc.collect()
    assert not Owner.gone
    del view
    gc.collect()
    assert Owner.gone


# Memory


@pytest.fixture
def fake():
    with FakeCuda(2, kernels=simple_kernels) as fake:
        yield fake


def test_device_memory_is_freed_with_its_last_view(fake):
    x = device_bytes(get_device(1), 100)
    assert (type(x), x.shape, x.dtype, x.device) == (DeviceArray, (100,), np.uint8, 1)
    assert fake.driver.device_of(x.ctypes.data) == 1
    view = x[10:].view(np.uint16)
    address = x.ctypes.data
    del x
    gc.collect()
    assert fake.driver.device_of(address) == 1
    del view
    gc.collect()
    assert fake.driver.device_of(address) is None
    assert fake.calls["cuMemFree"] == 1


def test_scratch_memory_of_a_device(fake):
    blocks = Memory(lambda nbytes: device_bytes(get_device(0), nbytes))
    block = blocks.block("scratch", 10000)
    assert (block.size, block.ctypes.data % 64) == (16384, 0)
    assert blocks.block("scratch", 9000) is block
    assert fake.calls["cuMemAlloc"] == 1


def test_memory_of_no_bytes(fake):
    device = get_device(0)
    assert device_bytes(device, 0).size == 0
    assert pinned_bytes(device, 0, 0).size == 0


def test_memory_that_the_device_does_not_have(fake):
    fake.fail("cuMemAlloc", 2)
    with pytest.raises(CudaError, match="cuMemAlloc failed: CUDA_ERROR_OUT_OF_MEMORY"):
        device_bytes(get_device(0), 100)


def test_pinned_memory_is_of_the_arena(fake):
    x = pinned_bytes(get_device(0), 5000, 0)
    assert type(x) is np.ndarray
    assert (x.shape, x.dtype) == ((5000,), np.uint8)
    base = arena._arena.base()
    assert base <= x.ctypes.data < base + arena.descriptor().capacity
    assert x.ctypes.data % mmap.PAGESIZE == 0
    with get_device(0) as device:  # takes no pageable memory
        out = device_bytes(device, 5000)
        stream = device.new_stream()
        device.driver.call("cuMemcpyAsync", out.ctypes.data, x.ctypes.data, 5000, stream)
    fake.finish(stream)


def test_pinned_memory_is_unregistered_with_its_last_view(fake):
    device = get_device(0)
    view = pinned_bytes(device, 5000, 0)[100:]
    other = pinned_bytes(device, 1, 0)
    gc.collect()
    assert fake.calls["cuMemHostUnregister"] == 0
    del view
    gc.collect()
    assert fake.calls["cuMemHostUnregister"] == 1
    del other
    gc.collect()
    assert fake.calls["cuMemHostRegister"] == fake.calls["cuMemHostUnregister"] == 2


def test_pinned_memory_is_the_drivers_where_the_arena_cannot_be_pinned(fake):
    fake.fail("cuMemHostRegister", 801)
    x = pinned_bytes(get_device(0), 5000, 0)
    assert (x.shape, x.dtype, x.flags.writeable) == ((5000,), np.uint8, True)
    x[:] = 3
    assert fake.calls["cuMemHostAlloc"] == 1
    view = x[10:]
    del x
    gc.collect()
    assert fake.calls["cuMemFreeHost"] == 0
    assert view[0] == 3
    del view
    gc.collect()
    assert fake.calls["cuMemFreeHost"] == 1


def test_errors_at_the_end_of_memory_are_not_raised(fake):
    x = device_bytes(get_device(0), 8)
    fake.fail("cuMemFree", 4)
    del x
    gc.collect()
    assert fake.calls["cuMemFree"] == 1


def test_a_forked_child_gives_nothing_back(fake, monkeypatch):
    x = device_bytes(get_device(0), 8)
    parent = os.getpid()
    monkeypatch.setattr(os, "getpid", lambda: parent + 1)
    del x
    gc.collect()
    assert fake.calls["cuMemFree"] == 0
    monkeypatch.undo()


def test_pages_are_of_one_array(fake, monkeypatch):
    """The driver pins pages, and none of them twice."""
    device = get_device(0)
    arrays = [pinned_bytes(device, nbytes, 0) for nbytes in (1, 100, 4096, 4097)]
    assert fake.calls["cuMemHostAlloc"] == 0
    assert len({x.ctypes.data // mmap.PAGESIZE for x in arrays}) == 4
    assert memory.mmap.PAGESIZE == mmap.PAGESIZE
