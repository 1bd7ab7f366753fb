"""What users pass in GPU memory becomes a `DeviceArray`, and a fitting result; the rest is refused.

Libraries are stand-ins: modules with the few names that are looked up, on a fake device.
"""

import ctypes
import gc
import subprocess
import sys
import types
import weakref
from contextlib import contextmanager, nullcontext
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from fake_arrays import FakeArray
from fake_cuda import FakeCuda
from mpi4py import MPI

import hpccoll
from hpccoll import buffers
from hpccoll import cuda as hc
from hpccoll.cuda import dlpack, driver, foreign_arrays, streams
from hpccoll.cuda.device_array import DeviceArray

ROOT = Path(hpccoll.__file__).parents[1]


@pytest.fixture
def fake():
    with FakeCuda(devices=2, kernels=object()) as fake:
        yield fake
        gc.collect()


def place(array):
    """Return all that tells where the elements lie."""
    return array.ctypes.data, array.shape, array.strides, array.dtype, array.device


class Wearer:
    """Something with ``__cuda_array_interface__`` over a `FakeArray`; and other attributes."""

    def __init__(self, x, drop=(), **entries):
        self.x = x
        interface = {**x.__cuda_array_interface__, **entries}
        self.__cuda_array_interface__ = {k: v for k, v in interface.items() if k not in drop}


# __cuda_array_interface__.

TYPES = ("bool", "int8", "uint16", "int64", "float16", "float32", "complex128", ">f4", "M8[s]")


@pytest.mark.parametrize("dtype", TYPES)
@pytest.mark.parametrize("form", [lambda x: x, lambda x: [x], lambda x: [x, 12]])
def test_an_interface_is_taken_where_it_lies(fake, dtype, form):
    x = FakeArray((3, 4), dtype, device=1)
    if form(x) is x:
        operand = buffers.of_array("x", x)
        assert place(operand.array) == (x.address, (3, 4), operand.array.strides, x.dtype, 1)
        assert operand.array.owner is x
    else:
        array = buffers.of_spec(form(x) if len(form(x)) > 1 else x)
        assert isinstance(array, DeviceArray)
        assert place(array)[0] == x.address
        assert (array.size, array.dtype, array.device) == (12, x.dtype, 1)


LAYOUTS = {
    "contiguous": lambda x: x,
    "gaps": lambda x: x[1::2, ::3],
    "transposed": lambda x: x.T,
    "reversed": lambda x: x[::-1],
    "a row": lambda x: x[1],
    "no rows": lambda x: x[:0],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_layouts_are_those_of_the_array(fake, layout):
    x = LAYOUTS[layout](FakeArray((4, 6)))
    array = buffers.of_array("x", x).array
    assert array.shape == x.shape
    if array.size:
        assert array.ctypes.data == x.address
        assert array.strides == x._form.strides
    assert array.flags.c_contiguous == x._form.flags.c_contiguous


def test_memory_lives_as_long_as_what_was_made_of_it(fake):
    x = FakeArray(3)
    kept = weakref.ref(x)
    array = buffers.of_spec([x, 2, MPI.FLOAT])
    del x
    assert kept() is not None
    del array
    gc.collect()
    assert kept() is None


def test_an_older_interface_is_taken(fake):
    x = Wearer(FakeArray(3), version=2, drop=("stream", "strides"))
    array = buffers.of_array("x", x).array
    assert array.shape == (3,)
    assert streams.current_stream(array.owner, 0) == streams.LEGACY


def test_read_only_memory_stays_so(fake):
    x = FakeArray(3)
    x.readonly = True
    assert not buffers.of_array("x", x).array.flags.writeable
    with pytest.raises(BufferError, match=r"^allreduce: out is read-only; wanted a writable array"):
        hpccoll.allreduce(FakeArray(3), out=x, comm=MPI.COMM_SELF)


def test_a_type_without_a_name_in_the_interface_is_that_of_the_object(fake):
    x = Wearer(FakeArray(3, ml_dtypes.bfloat16))
    x.dtype = np.dtype(ml_dtypes.bfloat16)
    assert buffers.of_array("x", x).array.dtype == ml_dtypes.bfloat16


@pytest.mark.parametrize(
    ("form", "start", "count"),
    [
        (lambda x: [x, MPI.FLOAT], 0, 12),
        (lambda x: [x, 5, MPI.FLOAT], 0, 5),
        (lambda x: [x, (5, 2), MPI.FLOAT], 2, 5),
        (lambda x: [x, 5, 2, MPI.FLOAT], 2, 5),
        (lambda x: [x, "f"], 0, 12),
        (lambda x: [x, 5], 0, 5),
    ],
)
def test_forms_of_mpi4py_name_parts(fake, form, start, count):
    x = FakeArray((3, 4))
    array = buffers.of_spec(form(x))
    assert isinstance(array, DeviceArray)
    assert array.ctypes.data == x.address + 4 * start
    assert (array.size, array.dtype) == (count, np.float32)


def test_a_derived_datatype_is_left_to_mpi(fake):
    pair = MPI.FLOAT.Create_contiguous(2)
    assert buffers.of_spec([FakeArray(4), 2, pair]) is None
    pair.Free()


# Bad interfaces.


def wearer(**entries):
    return lambda: Wearer(FakeArray(4), **entries)


BAD = {
    "a mask": (wearer(mask=object()), TypeError, "x has a mask, which means nothing here"),
    "no shape": (wearer(drop=("shape",)), TypeError, "x has a __cuda_array_interface__ that can"),
    "no type": (wearer(typestr="what"), TypeError, "x has a __cuda_array_interface__ that cannot"),
    "a length below 0": (wearer(shape=(-1,)), TypeError, r"cannot be read .*shape \(-1,\)"),
    "strides of others": (wearer(strides=(4, 4)), TypeError, "cannot be read .*strides"),
    "no address": (wearer(data=None), TypeError, "x has a __cuda_array_interface__ that cannot"),
    "nowhere": (wearer(data=(0, False)), ValueError, r"x has shape \(4,\) and lies at address 0"),
    "unknown memory": (
        wearer(data=(0xDEAD0000, False)),
        ValueError,
        "x lies at 0xdead0000, which is no memory of a device: it was freed, or never was",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_interface_is_refused(fake, name):
    make, error, text = BAD[name]
    x = make()
    with pytest.raises(error, match=text):
        buffers.of_array("x", x)
    with pytest.raises(error, match=text):
        buffers.of_spec(x, "x")


def test_freed_memory_is_refused(fake):
    address = driver.get_device(0).allocate(64)
    x = Wearer(FakeArray(4), data=(address, False))
    buffers.of_array("x", x)
    driver.get_device(0).free(address)
    with pytest.raises(ValueError, match=f"x lies at {address:#x}, .* it was freed"):
        buffers.of_array("x", x)


def test_an_array_without_elements_may_lie_nowhere(fake):
    for x in (FakeArray((0, 3)), Wearer(FakeArray(4), shape=(0, 3), data=(0, False))):
        array = buffers.of_array("x", x).array
        assert array.shape == (0, 3)
        assert array.device == 0
    x = Wearer(FakeArray(4), shape=(0,), data=(0, False))
    x.device = types.SimpleNamespace(id=1)
    assert buffers.of_array("x", x).array.device == 1
    x.device.id = 5
    with pytest.raises(ValueError, match="x lies on device 5; this process sees device 0 to 1"):
        buffers.of_array("x", x)


@pytest.mark.parametrize("name", ["cuda.core", "libcuda.so.1"])
def test_what_is_not_installed_is_named(name, monkeypatch):
    """Without cuda.core the extra is; without a driver that there is none."""
    former = driver.install(None)
    try:
        monkeypatch.setitem(sys.modules, "cuda", types.ModuleType("cuda"))
        core = None if name == "cuda.core" else types.ModuleType("cuda.core")
        monkeypatch.setitem(sys.modules, "cuda.core", core)
        monkeypatch.setattr(driver, "LIBRARY", "libnothing.so.1")
        text = r'"hpccoll\[cuda12\]", or "hpccoll\[cuda13\]"' if core is None else "no CUDA driver"
        x = types.SimpleNamespace(
            __cuda_array_interface__={"shape": (3,), "typestr": "<f4", "data": (1, False)}
        )
        with pytest.raises(ImportError, match=rf"^allreduce: .*{text}.* \(rank 0 of 1\)$"):
            hpccoll.allreduce(x, comm=MPI.COMM_SELF)
    finally:
        driver.install(former)


# DLPack.


class Exporter:
    """What has DLPack alone, on a device."""

    def __init__(self, x, kind=dlpack.CUDA, device=None):
        self.x, self.kind, self.number = x, kind, x.device if device is None else device
        self.streams = []

    def __dlpack_device__(self):
        return self.kind, self.number

    def __dlpack__(self, *, stream=None, max_version=None, **_):
        self.streams.append(stream)
        return dlpack.export(
            self.x, self.x.address, self.x.shape, self.x.dtype, self.number,
            versioned=max_version is not None,
        )  # fmt: skip


class View:
    """As cuda.core's StridedMemoryView, as far as it is used."""

    asked = ()

    def __init__(self, x, readonly):
        self.capsule = x.__dlpack__(stream=1, max_version=(1, 0))
        self.ptr, self.shape, self.dtype = x.x.address, x.x.shape, x.x.dtype
        self.strides, self.device_id, self.readonly = None, x.number, readonly

    @classmethod
    def from_dlpack(cls, x, stream_ptr):
        cls.asked = (*cls.asked, stream_ptr)
        return cls(x, getattr(x, "readonly", False))


@pytest.fixture
def view(monkeypatch):
    for name in ("cuda", "cuda.core", "cuda.core.utils"):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    monkeypatch.setattr(sys.modules["cuda.core.utils"], "StridedMemoryView", View, raising=False)
    monkeypatch.setattr(View, "asked", ())


@pytest.mark.parametrize("kind", [dlpack.CUDA, dlpack.MANAGED])
def test_dlpack_is_read_by_cuda_core(fake, view, kind):
    x = Exporter(FakeArray((3, 4), device=1), kind)
    array = buffers.of_array("x", x, 0x1234).array
    assert place(array) == (x.x.address, (3, 4), (16, 4), np.float32, 1)
    assert View.asked == (0x1234,)
    assert buffers.of_array("x", x).array.device == 1
    assert View.asked == (0x1234, streams.LEGACY)
    # Each later call is in order with what the library has done until then.
    x.streams.clear()
    assert streams.current_stream(array.owner, 1) == streams.LEGACY
    assert x.streams == [streams.LEGACY]
    assert isinstance(buffers.of_spec([x, 5, MPI.FLOAT]), DeviceArray)


def test_dlpack_is_read_by_the_real_cuda_core(fake):
    pytest.importorskip("cuda.core")
    x = Exporter(FakeArray((3, 4), device=1))
    array = buffers.of_array("x", x).array
    assert place(array) == (x.x.address, (3, 4), (16, 4), np.float32, 1)
    assert x.streams == [streams.LEGACY]


def test_an_interface_that_knows_no_streams_is_passed_over_for_dlpack(fake, view):
    x = Exporter(FakeArray(3))
    x.__cuda_array_interface__ = {**x.x.__cuda_array_interface__, "version": 2}
    buffers.of_array("x", x)
    assert x.streams
    x.__cuda_array_interface__["version"] = 3
    x.streams.clear()
    buffers.of_array("x", x)
    assert not x.streams


def test_what_dlpack_exports_read_only_stays_so(fake, view):
    x = Exporter(FakeArray(3))
    x.readonly = True
    assert not buffers.of_array("x", x).array.flags.writeable


def test_arrays_of_jax_never_change(fake, view):
    x = type("ArrayImpl", (Exporter,), {"__module__": "jaxlib._jax"})(FakeArray(3))
    assert not buffers.of_array("x", x).array.flags.writeable


def test_pinned_host_memory_is_the_hosts():
    class Pinned(Exporter):
        def __dlpack__(self, **options):
            return self.x.__dlpack__(**options)

    x = np.arange(3.0)
    array = buffers.of_spec(Pinned(x, 3, 0))
    assert type(array) is np.ndarray
    array[0] = 7
    assert x[0] == 7


def test_a_capsule_that_nobody_takes_lets_go(fake):
    for versioned in (False, True):
        owner = FakeArray(3)
        kept = weakref.ref(owner)
        capsule = dlpack.export(owner, 64, (3,), np.dtype("f4"), 0, versioned=versioned)
        del owner
        gc.collect()
        assert kept() is not None
        del capsule
        gc.collect()
        assert kept() is None


@pytest.mark.parametrize("dtype", ["M8[s]", ">f4", "S3"])
def test_a_type_that_dlpack_has_not_is_refused(dtype):
    with pytest.raises(BufferError, match="DLPack has no type for"):
        dlpack.export(None, 64, (3,), np.dtype(dtype), 0, versioned=True)


# torch.


class Tensor:
    """As torch.Tensor, over a `FakeArray`."""

    layout = "strided"
    requires_grad = conj = neg = False

    def __init__(self, x, **attributes):
        self.x = x
        self.shape = x.shape
        self.dtype = "torch." + x.dtype.name
        self.device = types.SimpleNamespace(type="cuda", index=x.device)
        vars(self).update(attributes)

    @property
    def __cuda_array_interface__(self):
        raise RuntimeError("of a tensor that requires grad, or of bfloat16")

    def __dlpack_device__(self):
        return 2, self.device.index

    def stride(self):
        return tuple(step // self.x.dtype.itemsize for step in self.x._form.strides)

    def data_ptr(self):
        return self.x.address if self.x._form.size else 0

    def is_conj(self):
        return self.conj

    def is_neg(self):
        return self.neg


class Torch(types.ModuleType):
    """As the module torch."""

    Tensor, strided, bfloat16 = Tensor, "strided", "torch.bfloat16"

    def __init__(self):
        super().__init__("torch")
        self.on = [0x77]
        self.cuda = types.SimpleNamespace(
            current_stream=lambda _: types.SimpleNamespace(cuda_stream=self.on[-1]),
            ExternalStream=lambda handle, device: handle,
            default_stream=lambda device: 0,
            stream=self.with_stream,
        )

    @contextmanager
    def with_stream(self, handle):
        self.on.append(handle)
        yield
        self.on.pop()

    def empty(self, shape, dtype, device):
        made = FakeArray(shape, np.dtype(dtype.removeprefix("torch.")), device.index)
        return Tensor(made, made_on=self.on[-1])


@pytest.fixture
def torch(fake, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", Torch())
    return sys.modules["torch"]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "complex64", "bool"])
def test_a_tensor_is_taken_where_it_lies(torch, layout, dtype):
    x = Tensor(LAYOUTS[layout](FakeArray((4, 6), np.dtype(dtype), device=1)))
    for array in (buffers.of_array("x", x).array, buffers.of_spec(x)):
        assert array.shape == x.shape
        assert array.dtype == x.x.dtype
        assert array.device == 1
        assert not array.size or array.ctypes.data == x.x.address
        assert not array.size or array.strides == x.x._form.strides


@pytest.mark.parametrize(("stream", "made_on"), [(None, 0x77), (0x1234, 0x1234), (1, 0)])
def test_the_result_for_a_tensor_is_one_on_its_device_and_stream(torch, stream, made_on):
    x = Tensor(FakeArray((3, 4), device=1))
    memory, value = buffers.of_array("x", x, stream).new_result((2, 4))
    result = value()
    assert type(result) is Tensor
    assert result.shape == (2, 4)
    assert result.device.index == 1
    assert result.made_on == made_on
    assert memory.ctypes.data == result.data_ptr()
    assert torch.on == [0x77]


@pytest.mark.parametrize(
    ("attributes", "text"),
    [
        ({"requires_grad": True}, "x is a tensor that requires grad"),
        ({"layout": "sparse"}, "x is a tensor of layout sparse"),
        ({"conj": True}, "lazily conjugated"),
        ({"neg": True}, "lazily conjugated or negated"),
        ({"dtype": "torch.float8_e5m2"}, "x has dtype torch.float8_e5m2; wanted numbers"),
        ({"device": types.SimpleNamespace(type="xpu", index=0)}, "x is a tensor on .*host memory"),
    ],
)
def test_a_tensor_that_is_no_plain_one_is_refused(torch, attributes, text):
    x = Tensor(FakeArray(3), **attributes)
    for take in (lambda: buffers.of_array("x", x), lambda: buffers.of_spec(x, "x")):
        with pytest.raises(TypeError, match=text):
            take()


# CuPy, Numba, JAX.


def test_the_result_for_a_cupy_array_is_one(fake, monkeypatch):
    inside = []

    @contextmanager
    def entered(*what):
        inside.append(what)
        yield
        inside.pop()

    def empty(shape, dtype):
        result = FakeArray(shape, dtype, inside[0][0])
        result.made_in = list(inside)
        return result

    cuda = types.SimpleNamespace(
        Device=entered,
        ExternalStream=entered,
        Stream=types.SimpleNamespace(null=nullcontext()),
        get_current_stream=lambda: types.SimpleNamespace(ptr=0),
    )
    cupy = types.SimpleNamespace(ndarray=FakeArray, empty=empty, cuda=cuda)
    monkeypatch.setitem(sys.modules, "cupy", cupy)
    x = FakeArray((3, 4), device=1).T
    result = buffers.of_array("x", x).new_result(None)[1]()
    assert (type(result), result.shape, result.made_in) == (FakeArray, (4, 3), [(1,)])
    assert result._form.flags.c_contiguous
    result = buffers.of_array("x", x, 0x1234).new_result(None)[1]()
    assert result.made_in == [(1,), (0x1234, 1)]
    result = buffers.of_array("x", x, streams.LEGACY).new_result(None)[1]()
    assert result.made_in == [(1,)]


def test_the_result_for_a_numba_array_is_one(fake, monkeypatch):
    numba = types.SimpleNamespace(
        gpus=[nullcontext(), nullcontext()],
        device_array=lambda shape, dtype: FakeArray(shape, dtype, 1),
    )
    monkeypatch.setitem(sys.modules, "numba.cuda", numba)
    x = FakeArray((3, 4), device=1)
    assert type(buffers.of_array("x", x).new_result(None)[1]()) is hc.CudaArray
    monkeypatch.setattr(FakeArray, "__cuda_ndarray__", True, raising=False)
    assert type(buffers.of_array("x", x).new_result(None)[1]()) is FakeArray


def test_the_result_goes_to_a_library_by_its_namespace(fake, monkeypatch):
    taken = []

    def from_dlpack(made):
        taken.append(made)
        return "an array of JAX"

    namespace = types.SimpleNamespace(from_dlpack=from_dlpack)
    monkeypatch.setattr(FakeArray, "__array_namespace__", lambda _: namespace, raising=False)
    x = FakeArray((3, 4), device=1, stream=fake.new_stream(1))
    memory, value = buffers.of_array("x", x).new_result((2, 2))
    assert value() == "an array of JAX"
    assert taken[0].array.ctypes.data == memory.ctypes.data
    assert (taken[0].shape, taken[0].device, taken[0].stream) == ((2, 2), 1, x.stream)


# CudaArray.


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "bool", "M8[s]"])
def test_arrays_go_up_and_come_down(fake, dtype):
    x = np.arange(12).reshape(3, 4).T.astype(dtype)
    up = hc.asarray(x, device=1)
    assert (up.shape, up.dtype, up.device, up.ndim, up.size) == ((4, 3), x.dtype, 1, 2, 12)
    assert (up.nbytes, len(up), up.stream) == (x.nbytes, 4, streams.LEGACY)
    down = hc.asnumpy(up)
    assert down.dtype == x.dtype
    np.testing.assert_array_equal(down, x)
    np.testing.assert_array_equal(hc.asnumpy(up[1:3]), x[1:3])


def test_large_arrays_go_in_parts(fake, monkeypatch):
    monkeypatch.setattr("hpccoll.cuda.copies.STAGE_BYTES", 64)
    x = np.arange(100, dtype=np.int16)
    np.testing.assert_array_equal(hc.asnumpy(hc.asarray(x)), x)


@pytest.mark.parametrize("shape", [(), 0, (0, 3), 5, (2, 3)])
def test_arrays_of_any_shape_are_made(fake, shape):
    x = hc.empty(shape, "i4")
    wanted = np.empty(shape, "i4")
    assert (x.shape, x.size, x.nbytes) == (wanted.shape, wanted.size, wanted.nbytes)
    array = buffers.of_array("x", x).array
    assert array.shape == wanted.shape
    assert hc.asnumpy(x).shape == wanted.shape


def test_the_memory_is_freed_with_the_last_array(fake):
    x = hc.empty(3)
    kept = buffers.of_array("x", x).array
    del x
    gc.collect()
    assert fake.calls["cuMemFree"] == 0
    del kept
    gc.collect()
    hc.empty(3)  # what was given back is freed when more is asked for
    assert fake.calls["cuMemFree"] == 1


def test_a_cuda_array_gives_itself_to_others_in_the_order_of_streams(fake):
    mine, theirs = fake.new_stream(), fake.new_stream()
    x = hc.CudaArray(3, "f4", stream=mine)
    done = []
    fake.enqueue(mine, "producer", lambda: done.append("produced"))
    x.__dlpack__(stream=theirs, max_version=(1, 0))
    fake.enqueue(theirs, "consumer", lambda: done.append("consumed"))
    fake.finish(theirs)
    assert done == ["produced", "consumed"]
    assert x.__dlpack_device__() == (2, 0)
    with pytest.raises(BufferError, match="given as it is"):
        x.__dlpack__(copy=True)


def test_bad_arguments_of_cuda_arrays_are_refused(fake):
    with pytest.raises(ValueError, match=r"shape is \(-1,\)"):
        hc.empty(-1)
    with pytest.raises(ValueError, match="no objects"):
        hc.empty(3, object)
    with pytest.raises(TypeError, match="x is of type ndarray; wanted an array in GPU memory"):
        hc.asnumpy(np.arange(3))
    with pytest.raises(TypeError, match="no plain slice"):
        hc.empty(3)[::2]
    with pytest.raises(AttributeError, match="no attribute 'zeros'"):
        hc.zeros  # noqa: B018 - the access is what is tested


# Nothing is imported that the user has not.


def test_no_array_library_is_imported():
    code = (
        "import sys\n"
        "import hpccoll, numpy as np\n"
        "from fake_cuda import FakeCuda\n"
        "from fake_arrays import FakeArray\n"
        "from hpccoll import buffers, cuda\n"
        "with FakeCuda(1, object()) as fake:\n"
        "    operand = buffers.of_array('x', FakeArray(3))\n"
        "    operand.new_result(None)[1]()\n"
        "    cuda.asnumpy(cuda.asarray(np.arange(3)))\n"
        "    del operand\n"
        "libraries = ('torch', 'cupy', 'jax', 'numba', 'cuda.core')\n"
        "print([name for name in libraries if name in sys.modules])\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        cwd=ROOT,
        env={"PYTHONPATH": f"{ROOT}:{ROOT / 'tests'}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


def test_importing_hpccoll_cuda_starts_nothing():
    code = (
        "import sys, hpccoll.cuda\n"
        "from hpccoll.cuda import driver, CudaArray\n"
        "print(driver.is_loaded(), 'cuda.core' in sys.modules, 'mpi4py.MPI' in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr) == ("False False False", "")


def test_what_says_nothing_of_a_device_lies_on_none():
    class Broken:
        def __dlpack__(self):
            raise AssertionError

        def __dlpack_device__(self):
            raise RuntimeError("no device")

    assert not foreign_arrays.is_on_device(Broken())
    assert not buffers.is_on_device(np.arange(3))
    assert not buffers.is_on_device(ctypes.c_int(3))
