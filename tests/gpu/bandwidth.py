"""How fast the sum of two vectors is on a device, beside a copy on that device.

    python tests/gpu/bandwidth.py

Bytes that are read and written, per second: of the sum in place two vectors are read and one is
written, of the driver's copy from device memory to device memory one is read and one written. They
take turns, so that what the clocks do they do to all.
"""

import argparse
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from kernel_runners import launch_kernel

from gpu.bars import verdict
from hpccoll.benchmark.options import dtype_of, parse_size
from hpccoll.cuda.copies import copy_bytes
from hpccoll.cuda.cuda_array import asarray
from hpccoll.cuda.driver import get_device
from hpccoll.cuda.kernel_arguments import PairArguments
from hpccoll.cuda.kernels import BLOCK_THREADS, Compiler, Kernels, launch_shape
from hpccoll.cuda.streams import wait_for

BARS = {"float32": 0.90, "float16": 0.85, "bfloat16": 0.85}
"""By type, what part of the copy's rate the sum is to reach."""

PLAN_BLOCKS = 16
"""Blocks per multiprocessor in plans, as in kernels/device_work.h."""


@dataclass(frozen=True, slots=True)
class Rate:
    """What was measured of one kernel on one type.

    Attributes
    ----------
    type : str
        Of the elements.
    grid : int
        Blocks of a launch.
    sum, copy : float
        Bytes per second.
    """

    type: str
    grid: int
    sum: float
    copy: float


def measure(
    type_name: str, nbytes: int, launches: int, rounds: int, compiler: Compiler | None = None
) -> list[Rate]:
    """Measure the sum with as many blocks as plans have, and as `launch_shape` says.

    Parameters
    ----------
    type_name : str
        Of the elements.
    nbytes : int
        Of a vector.
    launches, rounds : int
        Launches in a row, and how often; the median counts.
    compiler : Compiler, optional
        As of `Kernels`.
    """
    device = get_device(0)
    dtype = dtype_of(type_name)
    n = nbytes // dtype.itemsize
    random = np.random.default_rng(0).uniform(-1, 1, min(n, 1 << 20)).astype(dtype)
    vectors = [asarray(np.resize(random, n).view(np.uint8)) for _ in range(2)]
    left, right = (vector.array.ctypes.data for vector in vectors)
    stream = device.new_stream()
    function = Kernels(device, compiler).pair("sum", type_name)
    arguments = PairArguments(left, left, right, n)
    grids = dict.fromkeys(
        (PLAN_BLOCKS * device.multiprocessors, launch_shape(n, dtype.itemsize)[0])
    )
    works = {0: partial(copy_bytes, device.number, left, right, nbytes, stream)}
    for grid in grids:
        works[grid] = partial(
            launch_kernel, device, function, arguments, grid, BLOCK_THREADS, stream
        )
    seconds = defaultdict(list)
    for _ in range(rounds + 1):  # and one to warm up
        for grid, work in works.items():
            seconds[grid].append(_seconds(work, launches, partial(wait_for, device.number, stream)))
    device.destroy_stream(stream)
    median = {grid: statistics.median(times[1:]) for grid, times in seconds.items()}
    copy = 2 * nbytes / median[0]
    return [Rate(type_name, grid, 3 * nbytes / median[grid], copy) for grid in grids]


def _seconds(work: Callable[[], None], launches: int, wait: Callable[[], None]) -> float:
    start = time.perf_counter()
    for _ in range(launches):
        work()
    wait()
    return (time.perf_counter() - start) / launches


def report(rates: Sequence[Rate], nbytes: int) -> list[str]:
    """Return the table, and a line for each bar."""
    lines = [f"sum in place of {nbytes >> 20} MiB, beside a copy; GB/s read and written"]
    lines.append(f"{'type':>10} {'blocks':>7} {'sum':>9} {'copy':>9} {'ratio':>6}")
    for rate in rates:
        ratio = rate.sum / rate.copy
        lines.append(
            f"{rate.type:>10} {rate.grid:>7} {rate.sum / 1e9:>9.1f} {rate.copy / 1e9:>9.1f} "
            f"{ratio:>6.3f}"
        )
    for name, bar in BARS.items():
        slowest = min((rate.sum / rate.copy for rate in rates if rate.type == name), default=None)
        lines.append(verdict(f"sum of {name} over the copy", slowest, bar))
    return lines


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--size", type=parse_size, default="256M", help="of a vector")
    parser.add_argument("--launches", type=int, default=50, help="in a row")
    parser.add_argument("--rounds", type=int, default=7, help="of which the median counts")
    args = parser.parse_args()
    rates = [rate for name in BARS for rate in measure(name, args.size, args.launches, args.rounds)]
    print("\n".join(report(rates, args.size)))


if __name__ == "__main__":
    main()
