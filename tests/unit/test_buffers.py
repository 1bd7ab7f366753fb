"""What users pass becomes an array on the same memory, and a fitting result; the rest is refused.

Tensors of torch are in test_torch.py.
"""

import array
import ctypes
import decimal
import fractions
import math
import sys

import ml_dtypes
import numpy as np
import pytest
from mpi4py import MPI

from hpccoll import buffers
from hpccoll.cuda import driver

SHAPE = (3, 4)
COUNT = math.prod(SHAPE)


def numbered(shape, dtype="f8", order="C"):
    """Return an array in which each element says where it stands."""
    values = np.arange(1, math.prod(shape) + 1).reshape(shape)
    return np.array(values, dtype=dtype, order=order)


def misaligned(shape):
    memory = bytearray(8 * math.prod(shape) + 1)
    view = np.frombuffer(memory, "f8", offset=1).reshape(shape)
    view[...] = numbered(shape)
    assert not view.flags.aligned
    return view


LAYOUTS = {
    "contiguous": lambda: numbered(SHAPE),
    "gaps in one dimension": lambda: numbered((24,))[1::2],
    "gaps in two": lambda: numbered((7, 9))[1:6:2, 2::2],
    "a block of a matrix": lambda: numbered((6, 7))[2:5, 1:5],
    "reversed": lambda: numbered((COUNT,))[::-1],
    "reversed in both dimensions": lambda: numbered(SHAPE)[::-1, ::-1],
    "transposed": lambda: numbered((4, 3)).T,
    "axes turned": lambda: numbered((2, 3, 4)).transpose(1, 2, 0),
    "Fortran order": lambda: numbered(SHAPE, order="F"),
    "foreign byte order": lambda: numbered(SHAPE, np.dtype("f8").newbyteorder("S")),
    "misaligned": lambda: misaligned(SHAPE),
    "no dimensions": lambda: numbered(()),
    "one element": lambda: numbered((1,)),
    "dimensions of size 1": lambda: numbered((1, 12, 1))[:, ::3],
    "empty": lambda: np.empty(0),
    "empty with gaps": lambda: np.empty((3, 0, 2))[::2],
    "bool": lambda: numbered(SHAPE) % 2 == 0,
    "complex": lambda: numbered(SHAPE) * (1 + 2j),
    "bfloat16": lambda: numbered(SHAPE, ml_dtypes.bfloat16),
}


@pytest.fixture(params=LAYOUTS)
def x(request):
    return LAYOUTS[request.param]()


def check_same_memory(view, x):
    """Check that `view` shows the elements of `x`, at their addresses."""
    assert type(view) is np.ndarray
    assert (view.shape, view.strides, view.dtype) == (x.shape, x.strides, x.dtype)
    assert view.__array_interface__["data"] == x.__array_interface__["data"]


def check_result(operand, shape, dtype):
    """Check the new result of an operand: fresh memory, and its value shows what is put there."""
    memory, value = operand.new_result(None)
    assert type(memory) is np.ndarray
    assert (memory.shape, memory.dtype) == (shape, dtype)
    assert memory.flags.c_contiguous
    assert memory.flags.writeable
    assert not np.may_share_memory(memory, operand.array) or not memory.size
    other, _ = operand.new_result(None)
    assert not np.may_share_memory(memory, other) or not memory.size
    memory[...] = numbered(shape).astype(dtype)[...] if shape else numbered((1,), dtype)[0]
    return memory, value()


def test_an_array_is_taken_where_it_lies(x):
    operand = buffers.of_array("x", x)
    check_same_memory(operand.array, x)
    memory, value = check_result(operand, x.shape, x.dtype)
    assert type(value) is np.ndarray
    assert value.tobytes() == memory.tobytes()
    assert value.dtype.byteorder == x.dtype.byteorder


def test_a_spec_without_count_and_type_is_taken_where_it_lies(x):
    check_same_memory(buffers.of_spec(x), x)


def test_a_read_only_array_gives_a_writable_result(x):
    x.flags.writeable = False
    operand = buffers.of_array("x", x)
    check_same_memory(operand.array, x)
    assert not operand.array.flags.writeable
    check_result(operand, x.shape, x.dtype)
    check_same_memory(buffers.of_spec(x), x)


def test_a_broadcast_array_is_taken_as_it_is():
    x = np.broadcast_to(numbered((4,)), SHAPE)
    operand = buffers.of_array("x", x)
    check_same_memory(operand.array, x)
    check_result(operand, SHAPE, x.dtype)


# Subclasses.


class Tagged(np.ndarray):
    """An array with an attribute, as units and coordinates are kept by packages."""

    def __array_finalize__(self, parent):
        self.unit = getattr(parent, "unit", None)


@pytest.mark.parametrize("order", "CF")
def test_a_subclass_keeps_its_type_and_attribute(order):
    x = numbered(SHAPE, order=order).view(Tagged)
    x.unit = "metre"
    operand = buffers.of_array("x", x)
    check_same_memory(operand.array, x)
    memory, value = check_result(operand, SHAPE, x.dtype)
    assert type(value) is Tagged
    assert value.unit == "metre"
    assert value.tobytes() == memory.tobytes()
    check_same_memory(buffers.of_spec(x), x)


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
def test_a_matrix_keeps_its_type():
    x = np.matrix(numbered(SHAPE))[:, 1:3]
    operand = buffers.of_array("x", x)
    check_same_memory(operand.array, x)
    _, value = check_result(operand, (3, 2), x.dtype)
    assert type(value) is np.matrix


def test_a_mapped_file_is_taken_and_left_alone(tmp_path):
    x = np.memmap(tmp_path / "data", "f8", "w+", shape=SHAPE)
    x[...] = numbered(SHAPE)
    operand = buffers.of_array("x", x)
    check_same_memory(operand.array, x)
    memory, _ = check_result(operand, SHAPE, x.dtype)
    memory[...] = -1
    assert (x == numbered(SHAPE)).all()


def test_masked_arrays_are_refused():
    x = np.ma.masked_less(numbered(SHAPE), 3)
    with pytest.raises(TypeError, match=r"x is a masked array.*filled"):
        buffers.of_array("x", x)


@pytest.mark.parametrize("form", [lambda x: x, lambda x: [x, MPI.DOUBLE], lambda x: [x, 3]])
def test_masked_arrays_are_refused_as_specs(form):
    x = np.ma.masked_less(numbered(SHAPE), 3)
    with pytest.raises(TypeError, match="masked array"):
        buffers.of_spec(form(x))


# Scalars.

NUMPY_SCALARS = [
    *(np.dtype(code).type(3) for code in "bBhHiIlLqQefdgFDG"),
    np.bool_(True),
    ml_dtypes.bfloat16(1.5),
    np.timedelta64(5, "ms"),
    np.datetime64("2020-01-01", "D"),
]


@pytest.mark.parametrize("x", NUMPY_SCALARS, ids=lambda x: type(x).__name__)
def test_a_numpy_scalar_comes_back_as_one(x):
    operand = buffers.of_array("x", x)
    assert operand.array.shape == ()
    assert operand.array.dtype == x.dtype
    assert operand.array[()] == x
    memory, value = operand.new_result(None)
    assert memory.shape == ()
    memory[...] = x
    result = value()
    assert type(result) is type(x)
    assert result.dtype == x.dtype
    assert result == x


@pytest.mark.parametrize(
    ("x", "dtype"),
    [
        (True, "bool"),
        (False, "bool"),
        (0, "int64"),
        (-(2**63), "int64"),
        (2**63 - 1, "int64"),
        (0.1, "float64"),
        (-math.inf, "float64"),
        (1 - 2j, "complex128"),
    ],
)
def test_a_python_number_comes_back_as_one(x, dtype):
    operand = buffers.of_array("x", x)
    assert operand.array.shape == ()
    assert operand.array.dtype == dtype
    memory, value = operand.new_result(None)
    memory[...] = operand.array
    result = value()
    assert type(result) is type(x)
    assert result == x


@pytest.mark.parametrize("x", [2**63, 2**64 - 1, 2**64, -(2**63) - 1, 10**30])
def test_an_int_that_does_not_fit_64_bits_is_refused(x):
    # Also up to 2**64: uint64 here would meet int64 on a rank whose number is smaller.
    with pytest.raises(TypeError, match=f"x is {x} of type int; .*64 bits"):
        buffers.of_array("x", x)


@pytest.mark.parametrize("x", [decimal.Decimal("0.1"), fractions.Fraction(1, 3)])
def test_other_numbers_are_refused(x):
    with pytest.raises(TypeError, match=f"x is .* of type {type(x).__name__}; wanted"):
        buffers.of_array("x", x)


# Buffers.


def two_dimensional_memoryview():
    return memoryview(bytearray(numbered(SHAPE).tobytes())).cast("B").cast("d", SHAPE)


BUFFERS = {
    "bytearray": (lambda: bytearray(b"\1\2\3"), "u1", [1, 2, 3]),
    "memoryview": (lambda: memoryview(numbered((3,))), "f8", [1, 2, 3]),
    "memoryview with gaps": (lambda: memoryview(numbered((5,)))[::2], "f8", [1, 3, 5]),
    "memoryview reversed": (lambda: memoryview(numbered((3,)))[::-1], "f8", [3, 2, 1]),
    "memoryview in 2D": (two_dimensional_memoryview, "f8", numbered(SHAPE).tolist()),
    "array.array": (lambda: array.array("i", [1, -2, 3]), "i4", [1, -2, 3]),
    "ctypes": (lambda: (ctypes.c_float * 3)(1, 2, 3), "f4", [1, 2, 3]),
}


@pytest.mark.parametrize("name", BUFFERS)
def test_a_buffer_is_taken_where_it_lies(name):
    make, dtype, values = BUFFERS[name]
    x = make()
    operand = buffers.of_array("x", x)
    assert operand.array.dtype == dtype
    assert operand.array.tolist() == values
    _, value = check_result(operand, operand.array.shape, operand.array.dtype)
    assert type(value) is np.ndarray
    view = buffers.of_spec(x)
    assert view.tolist() == values
    assert view.flags.writeable
    view[(0,) * view.ndim] = 7
    assert operand.array[(0,) * view.ndim] == 7
    assert np.asarray(memoryview(x))[(0,) * view.ndim] == 7


def test_bytes_are_a_read_only_buffer():
    view = buffers.of_array("x", b"\1\2").array
    assert view.tolist() == [1, 2]
    assert not view.flags.writeable


# DLPack and devices.


class Exporter:
    """The least that DLPack asks for."""

    def __init__(self, array):
        self.array = array

    def __dlpack__(self, **options):
        return self.array.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


class OldExporter(Exporter):
    """As before DLPack 1.0."""

    def __dlpack__(self, stream=None):
        return self.array.__dlpack__()


class Library:
    """A library that follows the array API standard."""

    @staticmethod
    def from_dlpack(x):
        return Member(np.from_dlpack(x))


class Member(Exporter):
    """An array of that library."""

    def __array_namespace__(self, api_version=None):
        return Library


@pytest.mark.parametrize("kind", [Exporter, OldExporter, Member])
@pytest.mark.parametrize("layout", ["contiguous", "gaps in two", "transposed", "no dimensions"])
def test_an_exporter_is_taken_where_it_lies(kind, layout):
    inner = LAYOUTS[layout]()
    operand = buffers.of_array("x", kind(inner))
    assert operand.array.__array_interface__["data"][0] == inner.__array_interface__["data"][0]
    assert operand.array.strides == inner.strides
    memory, value = check_result(operand, inner.shape, inner.dtype)
    if kind is Member:
        assert type(value) is Member
        value = value.array
    assert type(value) is np.ndarray
    assert value.tobytes() == memory.tobytes()
    assert buffers.of_spec(kind(inner)).tolist() == inner.tolist()


@pytest.mark.parametrize("kind", [Exporter, Member])
def test_an_exporter_can_be_written_to(kind):
    inner = numbered(SHAPE)
    buffers.of_array("out", kind(inner)).array[1, 2] = -5
    assert inner[1, 2] == -5


class OnDevice:
    """As an array on a GPU looks from outside; whoever touches its memory would crash."""

    __cuda_array_interface__ = {  # noqa: RUF012 - as the protocol has it
        "shape": (3,),
        "typestr": "<f8",
        "data": (0xDEAD0000, False),
        "version": 3,
        "strides": None,
    }

    def __dlpack__(self, **options):
        raise AssertionError("device memory was asked for")

    def __dlpack_device__(self):
        return (2, 0)


class OnlyCuda:
    """The same without DLPack."""

    __cuda_array_interface__ = OnDevice.__cuda_array_interface__


@pytest.mark.parametrize("kind", [OnDevice, OnlyCuda])
def test_device_memory_needs_the_parts_for_cuda(kind, monkeypatch):
    monkeypatch.setitem(sys.modules, "cuda.core", None)
    former = driver.install(None)
    try:
        for take in (
            lambda: buffers.of_array("x", kind()),
            lambda: buffers.of_spec(kind(), "x"),
            lambda: buffers.of_spec([kind(), 3, MPI.DOUBLE], "x"),
        ):
            with pytest.raises(ImportError, match=r'x lies in GPU memory.*"hpccoll\[cuda12\]"'):
                take()
    finally:
        driver.install(former)


# DLPack by itself.


@pytest.mark.parametrize("form", [lambda x: x, lambda x: [x, MPI.DOUBLE], lambda x: [x, 3, "d"]])
@pytest.mark.parametrize("kind", [Exporter, OldExporter])
def test_what_dlpack_exports_is_written_where_it_lies(kind, form):
    x = np.arange(3.0)
    array = buffers.of_spec(form(kind(x)))
    assert array.dtype == x.dtype
    array[...] = 7  # NumPy alone would take the memory of the old one for read-only
    assert x.tolist() == [7, 7, 7]


@pytest.mark.parametrize("form", [lambda x: x, lambda x: [x, MPI.DOUBLE]])
def test_what_dlpack_exports_as_read_only_stays_so(form):
    x = np.arange(3.0)
    x.flags.writeable = False
    array = buffers.of_spec(form(Exporter(x)))
    assert array.tolist() == [0, 1, 2]
    assert not array.flags.writeable


class UnknownType(Exporter):
    """Of a type that DLPack has and NumPy has not."""

    def __dlpack__(self, **options):
        raise BufferError("unknown type")


def test_a_type_that_numpy_does_not_take_from_dlpack_is_left_to_mpi():
    assert buffers.of_spec(UnknownType(np.arange(3.0))) is None


# Refusals.


@pytest.mark.parametrize("x", [[], [1.0, 2.0], (), (1, 2)])
def test_lists_and_tuples_are_refused(x):
    with pytest.raises(TypeError, match=f"x is a {type(x).__name__}; .*numpy.asarray"):
        buffers.of_array("x", x)


@pytest.mark.parametrize("x", [None, "text", {1: 2}, {1, 2}, range(3), object()])
def test_what_is_no_array_is_refused(x):
    with pytest.raises(TypeError, match=f"x is of type {type(x).__name__}; wanted an array"):
        buffers.of_array("x", x)


def test_a_memoryview_that_was_released_is_refused():
    x = memoryview(bytearray(3))
    x.release()
    with pytest.raises(TypeError, match="x is of type memoryview"):
        buffers.of_array("x", x)


NO_NUMBERS = ["O", "U3", "S3", "V8", "f8,i4", "(2,)f8,f8"]


@pytest.mark.parametrize("dtype", NO_NUMBERS, ids=str)
def test_these_types_are_no_numbers(dtype):
    assert not buffers.is_number(np.dtype(dtype))


@pytest.mark.parametrize("dtype", [*"?bBhHiIlLqQefdgFDG", "m8[s]", "M8[D]", ">f8", "bfloat16"])
def test_these_types_are_numbers(dtype):
    assert buffers.is_number(np.dtype(dtype))
