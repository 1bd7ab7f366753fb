"""Ranks of one node: hpccoll's own choice beside the MPI library, on private and on shared arrays.

    mpiexec -n 2 python bench/node.py                       # Markdown, to standard output
    mpiexec -n 4 python bench/node.py -b 16K -e 4M --seconds 1

Private arrays are reduced out of place, shared ones (`hpccoll.empty`) in place, each beside the MPI
library's own call of that kind on private arrays; "copy" is one `numpy.copyto` of the vector by all
ranks at once. Candidates take turns in one loop. From 16 KiB up a rank writes its input anew before
each call, untimed, and waits for the others; below, calls are made back to back. Times are those of
the slowest rank, call by call, and the median of them, in microseconds.
"""

from collections.abc import Callable
from statistics import geometric_mean

import click
import numpy as np
from contest import CALLS, Contest, Contestant, human, line, microseconds
from mpi4py import MPI

import hpccoll
from hpccoll.benchmark.command import size
from hpccoll.benchmark.data import contribution, count_wrong, expected, fill
from hpccoll.benchmark.options import FRESH_BYTES, Options
from hpccoll.benchmark.report import Machine

SIZES = (8, 1 << 10, *(1 << power for power in range(14, 27, 2)))


def contest(nbytes: int, comm: MPI.Intracomm) -> Contest:
    """Return the candidates of one size."""
    fresh = nbytes >= FRESH_BYTES
    block = contribution(comm.rank, comm.size, "float32", "sum")
    want = expected(comm.size, "float32", "sum")
    ours = hpccoll.Comm(comm)

    def array() -> np.ndarray:
        return np.empty(nbytes // 4, np.float32)

    x, out, in_place, copied = array(), array(), array(), array()
    our_out, shared = array(), hpccoll.empty(nbytes // 4, np.float32)

    def contestant(
        call: Callable[[], object], source: np.ndarray, result: np.ndarray, checked: bool = True
    ) -> Contestant:
        def prepare() -> None:
            if fresh:
                fill(source, block)
            elif result is source:
                source[...] = 0  # or sums of sums would grow without bound

        def check() -> int:
            result.fill(-1)
            fill(source, block)
            comm.Barrier()
            call()
            return count_wrong(result, want) if checked else 0

        return Contestant(call, prepare, check)

    contestants = {
        "mpi": contestant(lambda: comm.Allreduce(x, out), x, out),
        "hpccoll": contestant(lambda: ours.Allreduce(x, our_out), x, our_out),
        "mpi in place": contestant(
            lambda: comm.Allreduce(MPI.IN_PLACE, in_place), in_place, in_place
        ),
        "shared": contestant(lambda: ours.Allreduce(MPI.IN_PLACE, shared), shared, shared),
        "copy": contestant(lambda: np.copyto(copied, x), x, copied, checked=False),
    }
    return Contest(comm, contestants, 1 if fresh else CALLS)


@click.command(context_settings={"show_default": True})
@click.option("-b", "--begin", type=size, default="8")
@click.option("-e", "--end", type=size, default="64M")
@click.option("--seconds", type=float, default=2.0, help="Time per size.")
def main(begin: int, end: int, seconds: float) -> None:
    comm = MPI.COMM_WORLD
    sizes = tuple(nbytes for nbytes in SIZES if begin <= nbytes <= end)
    head = "| size | MPI | hpccoll | ratio | MPI in place | shared | ratio | copy | shared / copy |"
    if comm.rank == 0:
        for text in Machine(comm.size, 1).header(Options(sizes=sizes)):
            print(f"    {text}")
        print("", head, "|" + "---:|" * 9, sep="\n", flush=True)
    ratios = []
    for nbytes in sizes:
        candidates = contest(nbytes, comm)
        candidates.check(human(nbytes))
        t = candidates.times(seconds)
        ratios.append((t["mpi"] / t["hpccoll"], t["mpi in place"] / t["shared"]))
        if comm.rank == 0:
            cells = [human(nbytes), microseconds(t["mpi"]), microseconds(t["hpccoll"])]
            cells += [f"{ratios[-1][0]:.2f}", microseconds(t["mpi in place"])]
            cells += [microseconds(t["shared"]), f"{ratios[-1][1]:.2f}", microseconds(t["copy"])]
            cells += [f"{t['shared'] / t['copy']:.2f}"]
            print(line(*cells), flush=True)
    if comm.rank == 0:
        private, shared = (geometric_mean(column) for column in zip(*ratios, strict=True))
        print(f"| geometric mean | | | {private:.2f} | | | {shared:.2f} | | |")


if __name__ == "__main__":
    main()
