"""Device memory as a DLPack capsule, so that libraries take it over without a copy."""

import ctypes
import itertools
from collections.abc import Callable
from typing import Any

import numpy as np

CUDA = 2
"""DLPack's number of the memory of a CUDA device."""

MANAGED = 13
"""DLPack's number of memory that CUDA moves between host and devices."""

CODES = {"i": 0, "u": 1, "f": 2, "c": 5, "b": 6}
BFLOAT16 = 4

_NAMES = (b"dltensor", b"dltensor_versioned")


class _Tensor(ctypes.Structure):
    """DLTensor."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("device_type", ctypes.c_int32),
        ("device_id", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("code", ctypes.c_uint8),
        ("bits", ctypes.c_uint8),
        ("lanes", ctypes.c_uint16),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    )


class _Managed(ctypes.Structure):
    """DLManagedTensor."""

    _fields_ = (("tensor", _Tensor), ("context", ctypes.c_void_p), ("deleter", ctypes.c_void_p))


class _Versioned(ctypes.Structure):
    """DLManagedTensorVersioned, of version 1.0."""

    _fields_ = (
        ("major", ctypes.c_uint32),
        ("minor", ctypes.c_uint32),
        ("context", ctypes.c_void_p),
        ("deleter", ctypes.c_void_p),
        ("flags", ctypes.c_uint64),
        ("tensor", _Tensor),
    )


_numbers = itertools.count(1)
_exported: dict[int, object] = {}
"""By number: what is kept alive until whoever took a capsule has no more use for it."""


def _release(structure: Any) -> Callable[[int], None]:
    def release(address: int) -> None:
        _exported.pop(structure.from_address(address).context or 0, None)

    return release


_DELETER = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
_DELETERS = (_DELETER(_release(_Managed)), _DELETER(_release(_Versioned)))

_api = ctypes.pythonapi
# A prototype each: others may have set the types of the functions that pythonapi shares.
_new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", _api))
_is_valid = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_IsValid", _api)
)
_pointer = ctypes.PYFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p, ctypes.c_char_p)(
    ("PyCapsule_GetPointer", _api)
)


def _end(capsule: int) -> None:
    """End a capsule; of the address, since the object is about to end."""
    for name, deleter in zip(_NAMES, _DELETERS, strict=True):
        if _is_valid(capsule, name):  # nobody has taken it: who does gives it another name
            deleter(_pointer(capsule, name))


_end_capsule = ctypes.PYFUNCTYPE(None, ctypes.c_void_p)(_end)


def export(
    owner: object,
    address: int,
    shape: tuple[int, ...],
    dtype: np.dtype[Any],
    device: int,
    *,
    versioned: bool,
) -> Any:
    """Return a capsule for elements in C order in the memory of a device.

    Parameters
    ----------
    owner : object
        Kept alive until the memory is given back.
    address : int
        Of the first element.
    shape : tuple of int
    dtype : numpy.dtype
    device : int
        Whose memory it is.
    versioned : bool
        Whether the capsule is one of DLPack 1.0, and not of the time before.

    Raises
    ------
    BufferError
        DLPack has no such type.
    """
    code = BFLOAT16 if dtype.name == "bfloat16" else CODES.get(dtype.kind)
    if code is None or not dtype.isnative:
        message = f"DLPack has no type for {dtype}"
        raise BufferError(message)
    dimensions = len(shape)
    lengths = (ctypes.c_int64 * dimensions)(*shape)
    steps = (ctypes.c_int64 * dimensions)(
        *(int(np.prod(shape[place + 1 :], dtype=np.int64)) for place in range(dimensions))
    )
    tensor = _Tensor(
        address if 0 not in shape else None,
        CUDA,
        device,
        dimensions,
        code,
        8 * dtype.itemsize,
        1,
        ctypes.cast(lengths, ctypes.POINTER(ctypes.c_int64)),
        ctypes.cast(steps, ctypes.POINTER(ctypes.c_int64)),
        0,
    )
    number = next(_numbers)
    deleter = ctypes.cast(_DELETERS[versioned], ctypes.c_void_p)
    managed: _Managed | _Versioned
    if versioned:
        managed = _Versioned(1, 0, number, deleter, 0, tensor)
    else:
        managed = _Managed(tensor, number, deleter)
    _exported[number] = (managed, lengths, steps, owner)
    end = ctypes.cast(_end_capsule, ctypes.c_void_p)
    return _new_capsule(ctypes.addressof(managed), _NAMES[versioned], end)
