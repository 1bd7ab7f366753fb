"""Calls whose input is late, one right behind the other in a stream, and looked at on the device.

Each turn gives a stream a kernel that spins before it writes the input; at once the call; and at
once a copy of the result, whose elements a kernel compares. The host waits for nothing, and so each
turn also overwrites the input, and the result, of the turn before. Whatever runs too early or too
late leaves elements of another turn.
"""

import ctypes
from typing import Any

import host_kernels
import numpy as np
from cuda_session import Gpu
from host_kernels import Ranges
from kernel_runners import launch_kernel

import hpccoll
from hpccoll.cuda import compilation
from hpccoll.cuda.copies import copy_bytes
from hpccoll.cuda.cuda_array import asarray, asnumpy, empty
from hpccoll.cuda.driver import get_device

SPIN_CYCLES = 4_000_000
"""Of the device's clock: about two milliseconds, much longer than it takes to begin a call."""

BLOCK = 256

BLOCKS_PER_MULTIPROCESSOR = 4
"""So few that all blocks of a launch run at a time, and spin at a time."""

MODES = ("out of place", "in place", "non-blocking")

PROGRAM = """
#include "cuda/threads.h"

#ifdef __CUDACC__
#define SPIN(cycles) for (const long long start = clock64(); clock64() - start < (cycles);)
#define COUNT(place) atomicAdd(place, 1)
#else /* tests without a device */
#define SPIN(cycles) for (; 0;)
#define COUNT(place) __atomic_add_fetch(place, 1, __ATOMIC_RELAXED)
#endif

/* Small integers, whose sums are exact; no turn, rank or index has those of its neighbours. */
ALWAYS_INLINE float value_of(uint64_t i, uint64_t turn, uint64_t rank)
{
    return (float)((i * 31 + turn * 17 + rank * 5) % 997);
}

struct late_arguments {
    float *out;
    uint64_t n, turn, rank;
    int64_t cycles;
};

KERNEL(late_values, late_arguments)
{
    SPIN(arguments.cycles)
        ;
    for (uint64_t i = thread_number(); i < arguments.n; i += thread_count())
        arguments.out[i] = value_of(i, arguments.turn, arguments.rank);
}

struct count_arguments {
    const float *x;
    uint32_t *wrong;
    uint64_t n, turn, ranks;
};

KERNEL(count_wrong, count_arguments)
{
    for (uint64_t i = thread_number(); i < arguments.n; i += thread_count()) {
        float wanted = 0;
        for (uint64_t rank = 0; rank < arguments.ranks; rank++)
            wanted += value_of(i, arguments.turn, rank);
        if (arguments.x[i] != wanted)
            COUNT(arguments.wrong);
    }
}
"""


class LateArguments(ctypes.Structure):
    _fields_ = (
        ("out", ctypes.c_void_p),
        ("n", ctypes.c_uint64),
        ("turn", ctypes.c_uint64),
        ("rank", ctypes.c_uint64),
        ("cycles", ctypes.c_int64),
    )


class CountArguments(ctypes.Structure):
    _fields_ = (
        ("x", ctypes.c_void_p),
        ("wrong", ctypes.c_void_p),
        ("n", ctypes.c_uint64),
        ("turn", ctypes.c_uint64),
        ("ranks", ctypes.c_uint64),
    )


def _late_ranges(x: LateArguments) -> tuple[Ranges, Ranges]:
    return [], [(x.out, 4 * x.n)]


def _count_ranges(x: CountArguments) -> tuple[Ranges, Ranges]:
    return [(x.x, 4 * x.n), (x.wrong, 4)], [(x.wrong, 4)]


host_kernels.add("late", LateArguments, _late_ranges)
host_kernels.add("count", CountArguments, _count_ranges)


class LateKernels:
    """The kernels, of one device.

    Parameters
    ----------
    device : int
        Its number.
    """

    def __init__(self, device: int) -> None:
        self._device = get_device(device)
        code = compilation.NvrtcCompiler().compile_text(PROGRAM, self._device.arch)
        module = self._device.load_module(code)
        self._late = self._device.function(module, "late_values")
        self._count = self._device.function(module, "count_wrong")

    def produce(
        self, x: int, count: int, turn: int, rank: int, stream: int, cycles: int = SPIN_CYCLES
    ) -> None:
        """Have a stream spin, and then write what a rank contributes in a turn.

        Parameters
        ----------
        x, count : int
            Address and length of a float32 vector.
        turn, rank : int
            Whose values; as of `values`.
        stream : int
            Its handle.
        cycles : int
            How long it spins.
        """
        arguments = LateArguments(x, count, turn, rank, cycles)
        self._launch(self._late, arguments, count, stream)

    def count_wrong(
        self, x: int, wrong: int, count: int, turn: int, ranks: int, stream: int
    ) -> None:
        """Have a stream count the elements that are not the sum of that turn.

        Parameters
        ----------
        x, count : int
            Address and length of the vector.
        wrong : int
            Address of a uint32, to which their number is added.
        turn, ranks : int
            Of which turn, and how many contribute.
        stream : int
            Its handle.
        """
        arguments = CountArguments(x, wrong, count, turn, ranks)
        self._launch(self._count, arguments, count, stream)

    def _launch(self, function: int, arguments: ctypes.Structure, count: int, stream: int) -> None:
        most = BLOCKS_PER_MULTIPROCESSOR * self._device.multiprocessors
        grid = min(most, -(-count // BLOCK))
        launch_kernel(self._device, function, arguments, grid, BLOCK, stream)


def values(count: int, turn: int, rank: int) -> "np.ndarray[Any, np.dtype[np.float32]]":
    """Return what a rank contributes in a turn, as the kernels compute it."""
    return ((np.arange(count) * 31 + turn * 17 + rank * 5) % 997).astype(np.float32)


class Stress:
    """One rank's vectors, and the kernels that write and compare them.

    Parameters
    ----------
    gpu : Gpu
        Its device and stream.
    comm : hpccoll.Comm
        Of the ranks.
    count : int
        Elements of a vector, float32.
    """

    def __init__(self, gpu: Gpu, comm: hpccoll.Comm, count: int) -> None:
        self.comm, self.count, self.stream, self.device = comm, count, gpu.stream, gpu.device
        self.kernels = LateKernels(gpu.device)
        self.x, self.out, self._copy = (
            empty(count, np.float32, gpu.device, stream=self.stream) for _ in range(3)
        )

    def run(self, turns: int, mode: str, cycles: int = SPIN_CYCLES) -> list[int]:
        """Run so many turns, and return how many elements were wrong in each.

        Parameters
        ----------
        turns : int
            Equal on all ranks.
        mode : str
            One of `MODES`.
        cycles : int
            How long each input is late.
        """
        wrong = asarray(np.zeros(turns, np.uint32), self.device, stream=self.stream)
        for turn in range(turns):
            x = self.x.array.ctypes.data
            self.kernels.produce(x, self.count, turn, self.comm.rank, self.stream, cycles)
            out = self._call(turn, mode)
            self._consume(out, turn, wrong.array.ctypes.data + 4 * turn)
        return asnumpy(wrong).tolist()

    def _call(self, turn: int, mode: str) -> Any:
        out = self.x if mode == "in place" else self.out
        # The arrays name the stream, and now and then the call does.
        stream = self.stream if turn % 2 else None
        if mode == "non-blocking":
            return hpccoll.iallreduce(self.x, out=out, comm=self.comm, stream=stream).wait()
        return hpccoll.allreduce(self.x, out=out, comm=self.comm, stream=stream)

    def _consume(self, out: Any, turn: int, wrong: int) -> None:
        copy, stream = self._copy.array.ctypes.data, self.stream
        copy_bytes(self.device, copy, out.array.ctypes.data, 4 * self.count, stream)
        self.kernels.count_wrong(copy, wrong, self.count, turn, self.comm.size, stream)
