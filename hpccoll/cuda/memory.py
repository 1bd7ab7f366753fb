"""Memory for calls on arrays of a device: on the device, and pinned in the host."""

import functools
import mmap
import weakref
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import numpy as np

from hpccoll import arena
from hpccoll.cuda.device import Device
from hpccoll.cuda.device_array import DeviceArray, device_array
from hpccoll.errors import CudaError

Bytes = np.ndarray[Any, np.dtype[np.uint8]]


class _Owner:
    """Stands for memory of the driver, which goes with it."""


def device_bytes(device: Device, nbytes: int, stream: int = 0) -> DeviceArray:
    """Return memory of a device as an array of so many bytes; garbage collection frees it.

    Parameters
    ----------
    device : Device
        Which one.
    nbytes : int
        How much.
    stream : int
        Handle of the stream behind which it is freed; 0 where nothing is under way in it then.

    Raises
    ------
    CudaError
        There is not so much.
    """
    address = device.allocate(nbytes)
    owner = _Owner()
    free = functools.partial(device.free_behind, stream) if stream else device.free
    _at_end_of(owner, device, free, address)
    return device_array(address, (nbytes,), np.uint8, device.number, owner=owner)


def pinned_bytes(device: Device, nbytes: int, region: int) -> Bytes:
    """Return pinned host memory as an array of so many bytes; garbage collection frees it.

    It is memory of the arena, which ranks of the node can map. Where the driver does not pin that,
    it is the driver's own, which they cannot.

    Parameters
    ----------
    device : Device
        Of whose driver; all its devices can copy from and to the memory.
    nbytes : int
        How much.
    region : int
        Of the arena.

    Raises
    ------
    MemoryError
        The arena is full.
    CudaError
        The driver gives no pinned memory.
    """
    # Pages are pinned, and those of two arrays must not be the same.
    page = mmap.PAGESIZE
    pages = max(-(-nbytes // page), 1) * page
    if region == 0:
        arena.ensure_open()
    block = arena.empty_array(pages + page - 1, region)
    start = -block.ctypes.data % page
    address = block.ctypes.data + start
    try:
        device.register(address, pages)
    except CudaError:
        return _driver_bytes(device, nbytes)
    _at_end_of(block, device, device.unregister, address)
    return block[start : start + nbytes]


def _driver_bytes(device: Device, nbytes: int) -> Bytes:
    address = device.allocate_pinned(nbytes)
    owner = _Owner()
    _at_end_of(owner, device, device.free_pinned, address)
    owner.__array_interface__ = {  # type: ignore[attr-defined]
        "version": 3,
        "shape": (nbytes,),
        "typestr": "|u1",
        "data": (address, False),
    }
    return np.asarray(owner)


def _at_end_of(
    owner: object, device: Device, give_back: Callable[[int], None], address: int
) -> None:
    """Give memory back when an object is no more, but not in a forked child or at exit."""

    def finish() -> None:
        if device.driver.usable:
            # The context may be broken, or gone: then the memory is, too.
            with suppress(CudaError):
                give_back(address)

    weakref.finalize(owner, finish).atexit = False
