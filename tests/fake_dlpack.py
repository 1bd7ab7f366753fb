"""Arrays in the memory of a fake device that can be had by DLPack alone."""

import ctypes
from typing import Any, NoReturn

from fake_arrays import FakeArray
from fake_cuda_order import Event

CUDA = 2
"""kDLCUDA."""

CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
BFLOAT = 4


class Device(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_int32), ("number", ctypes.c_int32))


class Type(ctypes.Structure):
    _fields_ = (("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16))


class Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device", Device),
        ("ndim", ctypes.c_int32),
        ("dtype", Type),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


Deleter = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


class ManagedTensor(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", Tensor), ("context", ctypes.c_void_p), ("deleter", Deleter))


_capsule = ctypes.pythonapi.PyCapsule_New
_capsule.restype = ctypes.py_object
_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)

_exported: dict[int, tuple[Any, ...]] = {}
"""By the address of the tensor: what its consumer uses until it calls the deleter."""

_delete = Deleter(lambda address: _exported.pop(address, None) and None)


class DlpackArray(FakeArray):
    """A `FakeArray` without ``__cuda_array_interface__``.

    As DLPack wants it, the stream that the consumer names waits for the array's own, unless it is
    -1.
    """

    @property
    def __cuda_array_interface__(self) -> NoReturn:
        raise AttributeError("__cuda_array_interface__")

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.device

    def __dlpack__(self, *, stream: int | None = None, **options: Any) -> object:
        if self.readonly:
            raise BufferError("this array cannot be written to")
        if stream != -1:
            self._order(1 if stream is None else stream)
        lengths, strides = (
            (ctypes.c_int64 * len(self.shape))(*numbers)
            for numbers in (self.shape, (one // self.dtype.itemsize for one in self._form.strides))
        )
        code = BFLOAT if self.dtype.name == "bfloat16" else CODES[self.dtype.kind]
        tensor = ManagedTensor()
        tensor.tensor = Tensor(
            self.address,
            Device(CUDA, self.device),
            len(self.shape),
            Type(code, 8 * self.dtype.itemsize, 1),
            ctypes.cast(lengths, ctypes.POINTER(ctypes.c_int64)),
            ctypes.cast(strides, ctypes.POINTER(ctypes.c_int64)),
            0,
        )
        tensor.deleter = _delete
        address = ctypes.addressof(tensor)
        _exported[address] = (self, tensor, lengths, strides)
        return _capsule(address, b"dltensor", None)

    def _order(self, consumer: int) -> None:
        """Let a stream wait for the array's own."""
        with self.fake.lock:
            event = Event(0, self.device)
            self.fake.order.record(event, self.fake.stream_of(self.stream or 1, self.device))
            self.fake.order.wait(self.fake.stream_of(consumer, self.device), event)
