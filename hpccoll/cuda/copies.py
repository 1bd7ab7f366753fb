"""Copies on the caller's stream: arrays of any layout on a device, and to and from the host."""

import ctypes
import math
import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from hpccoll.buffers import Array
from hpccoll.cuda.device import Device
from hpccoll.cuda.device_array import DeviceArray
from hpccoll.cuda.driver import get_device, get_driver
from hpccoll.cuda.streams import wait_for

if TYPE_CHECKING:
    from hpccoll.cuda.kernels import Compiler, Kernels

STAGE_BYTES = 32 << 20
"""The most that goes through pinned memory at once."""

Strides = tuple[int, ...]


def copy_array(out: Array, source: Array, stream: int) -> None:
    """Copy the elements of an array to another one of the same shape, on one device.

    Parameters
    ----------
    out, source : DeviceArray
        Of one type, but for the byte order. They do not overlap.
    stream : int
        Handle of the stream that copies.

    Raises
    ------
    ValueError
        The shapes differ, or as from `check_layout`.
    TypeError
        As from `check_layout`.
    """
    assert isinstance(out, DeviceArray)
    assert isinstance(source, DeviceArray)
    if out.shape != source.shape:
        message = f"an array of shape {source.shape} does not go into one of {out.shape}"
        raise ValueError(message)
    if not out.nbytes:
        return
    swaps = out.dtype.isnative != source.dtype.isnative
    if not swaps and out.flags.c_contiguous and source.flags.c_contiguous:
        copy_bytes(out.device, out.ctypes.data, source.ctypes.data, out.nbytes, stream)
        return
    _copy_view(out, source, stream, swaps=swaps)


def copy_bytes(device: int, out: int, source: int, nbytes: int, stream: int) -> None:
    """Copy bytes between addresses on a device, or between one and the host.

    Parameters
    ----------
    device : int
        Whose context is used.
    out, source : int
        Addresses; in the host of pinned memory, which must live until the stream has copied.
    nbytes : int
    stream : int
        Handle of the stream that copies.
    """
    with get_device(device):
        get_driver().call("cuMemcpyAsync", out, source, nbytes, stream)


def copy_up(device: int, out: int, source: NDArray[Any], stream: int) -> None:
    """Copy an array in C order from host memory to a device, and return when it is there."""
    host = source.reshape(-1).view(np.uint8)
    for start, stop, staged in _stages(device, host.nbytes):
        staged[:] = host[start:stop]
        copy_bytes(device, out + start, staged.ctypes.data, stop - start, stream)
        wait_for(device, stream)


def copy_down(device: int, out: NDArray[Any], source: int, stream: int) -> None:
    """Copy what lies at an address on a device to an array in C order in host memory."""
    host = out.reshape(-1).view(np.uint8)
    for start, stop, staged in _stages(device, host.nbytes):
        copy_bytes(device, staged.ctypes.data, source + start, stop - start, stream)
        wait_for(device, stream)
        host[start:stop] = staged


def _stages(device: int, nbytes: int) -> Iterator[tuple[int, int, NDArray[np.uint8]]]:
    """Yield parts of so many bytes, each with pinned host memory for it."""
    owner = get_device(device)
    size = min(nbytes, STAGE_BYTES)
    address = owner.allocate_pinned(size)
    try:
        memory = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(address))
        for start in range(0, nbytes, size):
            stop = min(start + size, nbytes)
            yield start, stop, memory[: stop - start]
    finally:
        owner.free_pinned(address)


def joined(shape: Strides, one: Strides, other: Strides) -> tuple[Strides, Strides, Strides]:
    """Return the same elements in as few dimensions as both layouts allow.

    Parameters
    ----------
    shape : tuple of int
        None of them 0.
    one, other : tuple of int
        Strides of two arrays of that shape, in bytes.
    """
    dimensions: list[tuple[int, int, int]] = []
    for length, step, other_step in zip(shape, one, other, strict=True):
        if length == 1:
            continue
        if dimensions:
            before, outer, other_outer = dimensions[-1]
            if outer == step * length and other_outer == other_step * length:
                dimensions[-1] = (before * length, step, other_step)
                continue
        dimensions.append((length, step, other_step))
    lengths, steps, other_steps = zip(*dimensions, strict=True) if dimensions else ((), (), ())
    return lengths, steps, other_steps


compiler: "Compiler | None" = None
"""What compiles kernels in place of NVRTC, in tests."""

_kernels: "weakref.WeakKeyDictionary[Device, Kernels]" = weakref.WeakKeyDictionary()


def kernels_of(device: Device) -> "Kernels":
    """Return the kernels of a device, of which each is compiled once."""
    from hpccoll.cuda.kernels import Kernels

    if device not in _kernels:
        _kernels[device] = Kernels(device, compiler)
    return _kernels[device]


def check_layout(name: str, x: Array) -> None:
    """Raise where an array cannot be packed, or a result not be stored in it.

    Parameters
    ----------
    name : str
        What the user calls it.
    x : DeviceArray
        Of any layout.

    Raises
    ------
    ValueError
        It has too many dimensions that do not lie together in memory.
    TypeError
        Its elements are in foreign byte order, and no numbers.
    """
    if not x.nbytes or (x.flags.c_contiguous and x.dtype.isnative):
        return
    if not x.dtype.isnative and _number_bytes(x.dtype) not in SWAPPED:
        message = (
            f"{name} has dtype {x.dtype} in foreign byte order, which devices reverse for numbers "
            f"of {', '.join(map(str, SWAPPED))} bytes alone; convert it"
        )
        raise TypeError(message)
    word = _word_bytes(x.dtype.itemsize)
    packed = tuple(x.dtype.itemsize * math.prod(x.shape[place + 1 :]) for place in range(x.ndim))
    _check_dimensions(name, _by_words(x.shape, x.strides, packed, x.dtype.itemsize, word)[0])


SWAPPED = (2, 4, 8)
"""Bytes of numbers that the kernels take in foreign byte order."""


def _number_bytes(dtype: np.dtype[Any]) -> int:
    """Return the bytes of each number in an element; 0 where they are not all alike."""
    if dtype.kind == "V":
        return 0
    return {"c": dtype.itemsize // 2, "U": 4}.get(dtype.kind, dtype.itemsize)


def _word_bytes(itemsize: int) -> int:
    """Return the bytes of the longest words that the kernels move, and elements consist of."""
    return math.gcd(itemsize, 16)


def _by_words(
    shape: Strides, one: Strides, other: Strides, itemsize: int, word: int
) -> tuple[Strides, Strides, Strides]:
    """Return the words of the elements as `joined` does: elements are one more dimension."""
    return joined((*shape, itemsize // word), (*one, word), (*other, word))


def _check_dimensions(name: str, shape: Strides) -> None:
    from hpccoll.cuda.kernel_arguments import MOST_DIMENSIONS

    if len(shape) > MOST_DIMENSIONS:
        message = (
            f"{name} has {len(shape)} dimensions that do not lie together in memory; "
            f"wanted {MOST_DIMENSIONS} at most"
        )
        raise ValueError(message)


def _copy_view(out: DeviceArray, source: DeviceArray, stream: int, *, swaps: bool) -> None:
    from hpccoll.cuda.kernel_arguments import ViewArguments
    from hpccoll.cuda.kernels import PACKET_BYTES, launch_shape

    word = _word_bytes(out.itemsize)
    shape, out_strides, source_strides = _by_words(
        out.shape, out.strides, source.strides, out.itemsize, word
    )
    _check_dimensions("an array", shape)
    arguments = ViewArguments.of(
        out.ctypes.data, source.ctypes.data, shape, out_strides, source_strides,
        _number_bytes(out.dtype) if swaps else 0,
    )  # fmt: skip
    device = get_device(out.device)
    function = kernels_of(device).view(word)
    grid, block = launch_shape(out.nbytes // word, PACKET_BYTES)
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
    with device:
        get_driver().call(
            "cuLaunchKernel", function, grid, 1, 1, block, 1, 1, 0, stream, parameters, None
        )
