"""The reduction loops beside NumPy's: in place, on one core, in one run.

The two take turns, so that what else the machine does meets both alike, and turns are short, so
that most go by undisturbed; times are medians. The same two arrays are used over and over: they
lie in whichever cache they fit.
"""

import platform
import statistics
import timeit
from pathlib import Path

import click
import ml_dtypes
import numpy as np
from rich.console import Console
from rich.table import Table

from hpccoll import _kernels

UFUNCS = {
    "sum": np.add,
    "prod": np.multiply,
    "min": np.minimum,
    "max": np.maximum,
    "fmin": np.fmin,
    "fmax": np.fmax,
    "band": np.bitwise_and,
    "bor": np.bitwise_or,
    "bxor": np.bitwise_xor,
}

SIZES = (4 << 10, 64 << 10, 1 << 20, 64 << 20)


def cpu_name() -> str:
    """Return the processor's name as the system gives it."""
    info = Path("/proc/cpuinfo")
    if info.exists():
        for line in info.read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def readable(nbytes: int) -> str:
    """Write a number of bytes in the largest unit that divides it."""
    for unit, name in ((1 << 20, "MiB"), (1 << 10, "KiB")):
        if nbytes % unit == 0:
            return f"{nbytes // unit} {name}"
    return f"{nbytes} B"


def calls_in_a_turn(timer: timeit.Timer) -> int:
    """Return how many calls last about 0.3 ms; 1 where a single call lasts longer."""
    timer.timeit(1)
    return max(1, int(0.3e-3 / min(timer.repeat(3, 1))))


def medians(calls: list[str], names: dict[str, object], turns: int) -> list[float]:
    """Time statements in turns; return the median seconds of one execution of each."""
    timers = [timeit.Timer(call, globals=names) for call in calls]
    numbers = [calls_in_a_turn(timer) for timer in timers]
    times: list[list[float]] = [[] for _ in calls]
    for _ in range(turns):
        for timer, number, sample in zip(timers, numbers, times, strict=True):
            sample.append(timer.timeit(number) / number)
    return [statistics.median(sample) for sample in times]


@click.command(context_settings={"show_default": True})
@click.option("--op", "ops", multiple=True, default=["sum"], type=click.Choice(list(UFUNCS)))
@click.option(
    "--type",
    "types",
    multiple=True,
    default=["float32", "float64", "float16", "bfloat16"],
    type=click.Choice(_kernels.TYPES),
)
@click.option("--nbytes", "sizes", multiple=True, default=SIZES, type=click.IntRange(min=16))
@click.option(
    "--turns",
    default=301,
    type=click.IntRange(min=20),
    help="Turns of each side; a twentieth of them from 8 MiB up.",
)
@click.option(
    "--target", default=_kernels.target(), type=click.Choice(_kernels.targets()), help="CPU target."
)
def main(
    ops: tuple[str, ...], types: tuple[str, ...], sizes: tuple[int, ...], turns: int, target: str
) -> None:
    """Time the reduction loops and NumPy's, side by side."""
    _kernels.set_target(target)
    console = Console()
    console.print(
        f"{cpu_name()}; target {_kernels.target()} of {', '.join(_kernels.targets())}; "
        f"Python {platform.python_version()}, NumPy {np.__version__}, "
        f"ml_dtypes {ml_dtypes.__version__}",
        highlight=False,
        soft_wrap=True,
    )
    table = Table(caption="in place: acc = incoming op acc; GB/s counts two reads and one write")
    for heading in ("op", "type"):
        table.add_column(heading)
    for heading in ("nbytes", "hpccoll µs", "NumPy µs", "NumPy / hpccoll", "hpccoll GB/s"):
        table.add_column(heading, justify="right")
    for op in ops:
        for name in types:
            if not _kernels.supports(op, name):
                continue
            dtype = np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)
            for nbytes in sizes:
                acc = np.ones(nbytes // dtype.itemsize, dtype)
                names = {
                    "acc": acc,
                    "incoming": np.ones_like(acc) if op == "prod" else np.zeros_like(acc),
                    "op": op,
                    "reduce_into": _kernels.reduce_into,
                    "ufunc": UFUNCS[op],
                }
                calls = ["reduce_into(acc, incoming, op)", "ufunc(acc, incoming, out=acc)"]
                ours, numpys = medians(calls, names, turns if nbytes < 8 << 20 else turns // 20)
                table.add_row(
                    op,
                    name,
                    readable(nbytes),
                    f"{ours * 1e6:.2f}",
                    f"{numpys * 1e6:.2f}",
                    f"{numpys / ours:.2f}",
                    f"{3 * acc.nbytes / ours / 1e9:.1f}",
                )
            table.add_section()
    console.print(table)


if __name__ == "__main__":
    main()
