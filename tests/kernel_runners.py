"""What runs a GPU kernel in a test: the CPU, or the first GPU where ``HPCCOLL_TEST_GPU=1``.

Tests have their arrays in host memory, and addresses of it in the arguments. `DeviceRunner` takes
the memory to the device and back, and puts the device's addresses in their place.
"""

import ctypes
import functools
from collections.abc import Sequence
from typing import Any, Protocol

import host_kernels
import numpy as np
from cuda_session import REAL

from hpccoll.cuda import compilation
from hpccoll.cuda.copies import copy_bytes
from hpccoll.cuda.device import Device
from hpccoll.cuda.driver import get_device
from hpccoll.cuda.streams import wait_for

ALIGNMENT = 256
"""Memory keeps its place modulo this on the way to a device."""

Memory = np.ndarray[Any, np.dtype[np.uint8]]


class Runner(Protocol):
    """Runs kernels."""

    def run(
        self,
        text: str,
        name: str,
        arguments: ctypes.Structure,
        grid: tuple[int, int],
        memories: Sequence[Memory],
    ) -> None:
        """Run a kernel, all of it, before this returns.

        Parameters
        ----------
        text : str
            The program; compiled once.
        name : str
            Of the kernel.
        arguments : ctypes.Structure
            Of `hpccoll.cuda.kernel_arguments`.
        grid : (int, int)
            Blocks, and threads of each.
        memories : sequence of numpy.ndarray
            Bytes: all that the arguments point into, and what is beside that.
        """


def launch_kernel(
    device: Device, function: int, arguments: ctypes.Structure, grid: int, block: int, stream: int
) -> None:
    """Launch a kernel on a stream of the caller's.

    Parameters
    ----------
    device : Device
        Whose kernel it is.
    function : int
        Its handle.
    arguments : ctypes.Structure
        What it takes by value; copied.
    grid, block : int
        Blocks, and threads of each.
    stream : int
        Handle of the stream.
    """
    parameters = (ctypes.c_void_p * 1)(ctypes.addressof(arguments))
    shape = (grid, 1, 1, block, 1, 1)
    with device:
        device.driver.call("cuLaunchKernel", function, *shape, 0, stream, parameters, None)


class HostRunner:
    """The CPU, which runs kernels where the arrays are."""

    def __init__(self) -> None:
        self._compile = functools.cache(host_kernels.HostCompiler().compile_text)

    def run(self, text, name, arguments, grid, memories):
        host_kernels.run(self._compile(text), name, bytes(arguments), *grid)


class DeviceRunner:
    """The first device.

    Parameters
    ----------
    compiler : NvrtcCompiler or HostCompiler, optional
        By default the former.
    """

    def __init__(self, compiler: Any = None) -> None:
        self.device = get_device(0)
        self._compiler = compiler or compilation.NvrtcCompiler()
        self._stream = self.device.new_stream()
        self._modules: dict[str, int] = {}
        self._functions: dict[tuple[int, str], int] = {}
        self._there = self._here = 0
        self._staging = np.empty(0, np.uint8)

    def run(self, text, name, arguments, grid, memories):
        starts, nbytes = _places(memories)
        self._reserve(nbytes)
        for memory, start in zip(memories, starts, strict=True):
            self._staging[start : start + memory.size] = memory
        moved = _moved(arguments, memories, [self._there + start for start in starts])
        self._copy(self._there, self._here, nbytes)
        launch_kernel(self.device, self._function(text, name), moved, *grid, self._stream)
        self._copy(self._here, self._there, nbytes)
        wait_for(self.device.number, self._stream)
        for memory, start in zip(memories, starts, strict=True):
            result = self._staging[start : start + memory.size]
            if memory.flags.writeable:
                memory[:] = result
            else:
                assert np.array_equal(memory, result), f"{name} has changed what it is to read"

    def close(self) -> None:
        """Give back what was allocated."""
        if self._there:
            self.device.free(self._there)
            self.device.free_pinned(self._here)
        self._there = 0

    def _reserve(self, nbytes: int) -> None:
        if nbytes <= self._staging.size:
            return
        self.close()
        size = 1 << max(20, nbytes.bit_length())
        self._there = self.device.allocate(size)
        self._here = self.device.allocate_pinned(size)
        self._staging = np.ctypeslib.as_array((ctypes.c_uint8 * size).from_address(self._here))

    def _function(self, text: str, name: str) -> int:
        if text not in self._modules:
            code = self._compiler.compile_text(text, self.device.arch)
            self._modules[text] = self.device.load_module(code)
        key = self._modules[text], name
        if key not in self._functions:
            self._functions[key] = self.device.function(*key)
        return self._functions[key]

    def _copy(self, out: int, source: int, nbytes: int) -> None:
        if nbytes:
            copy_bytes(self.device.number, out, source, nbytes, self._stream)


def _places(memories: Sequence[Memory]) -> tuple[list[int], int]:
    """Return where memories start in one that holds them all, and the size of that."""
    starts, end = [], 0
    for memory in memories:
        starts.append(-(-end // ALIGNMENT) * ALIGNMENT + memory.ctypes.data % ALIGNMENT)
        end = starts[-1] + memory.size
    return starts, end


def _moved(
    arguments: ctypes.Structure, memories: Sequence[Memory], places: Sequence[int]
) -> ctypes.Structure:
    """Return arguments that point to the same bytes of memories in other places."""

    def place(address: int | None) -> int | None:
        if not address:
            return None
        for memory, start in zip(memories, places, strict=True):
            # The end counts: there an array without elements may lie.
            if 0 <= address - memory.ctypes.data <= memory.size:
                return start + address - memory.ctypes.data
        raise AssertionError(f"{address:#x} is in none of the memories")

    moved = type(arguments).from_buffer_copy(arguments)
    for name, kind in arguments._fields_:
        value = getattr(arguments, name)
        if kind is ctypes.c_void_p:
            setattr(moved, name, place(value))
        elif isinstance(value, ctypes.Array) and value._type_ is ctypes.c_void_p:
            setattr(moved, name, kind(*map(place, value)))
    return moved


@functools.cache
def runner() -> Runner:
    """Return what runs the kernels of this session."""
    return DeviceRunner() if REAL else HostRunner()
