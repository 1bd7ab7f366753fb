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
from time import perf_counter

import click
import numpy as np
from collectives import human, microseconds
from mpi4py import MPI

import hpccoll
from hpccoll.benchmark.command import size
from hpccoll.benchmark.data import contribution, count_wrong, expected, fill
from hpccoll.benchmark.options import FRESH_BYTES, Options
from hpccoll.benchmark.report import Machine

SIZES = (8, 1 << 10, *(1 << power for power in range(14, 27, 2)))

CALLS = 200
"""Calls back to back of one sample, below 16 KiB."""

NAMES = ("mpi", "hpccoll", "mpi in place", "shared", "copy")


class Contest:
    """The candidates of one size, each with arrays of its own."""

    def __init__(self, nbytes: int, comm: MPI.Intracomm) -> None:
        self.comm = comm
        self.fresh = nbytes >= FRESH_BYTES
        self.block = contribution(comm.rank, comm.size, "float32", "sum")
        self.want = expected(comm.size, "float32", "sum")
        count = nbytes // 4
        ours = hpccoll.Comm(comm)
        self.x, self.out, self.ours = (np.empty(count, np.float32) for _ in range(3))
        self.in_place = np.empty(count, np.float32)
        self.shared = hpccoll.empty(count, np.float32)
        self.copied = np.empty(count, np.float32)
        self.calls: dict[str, tuple[Callable[[], object], np.ndarray, np.ndarray]] = {
            "mpi": (lambda: comm.Allreduce(self.x, self.out), self.x, self.out),
            "hpccoll": (lambda: ours.Allreduce(self.x, self.ours), self.x, self.ours),
            "mpi in place": (
                lambda: comm.Allreduce(MPI.IN_PLACE, self.in_place),
                self.in_place,
                self.in_place,
            ),
            "shared": (
                lambda: ours.Allreduce(MPI.IN_PLACE, self.shared),
                self.shared,
                self.shared,
            ),
            "copy": (lambda: np.copyto(self.copied, self.x), self.x, self.copied),
        }
        for name in NAMES:
            call, source, result = self.calls[name]
            result.fill(-1)
            fill(source, self.block)
            comm.Barrier()
            call()
            wrong = 0 if name == "copy" else count_wrong(result, self.want)
            if comm.allreduce(wrong):
                message = f"{name}: {wrong} wrong elements on rank {comm.rank} at {nbytes} bytes"
                raise SystemExit(message)

    def sample(self, name: str) -> float:
        """Return the seconds of one call on this rank."""
        call, source, result = self.calls[name]
        if self.fresh:
            fill(source, self.block)
        elif result is source:
            source[...] = 0  # or sums of sums would grow without bound
        number = 1 if self.fresh else CALLS
        self.comm.Barrier()
        started = perf_counter()
        for _ in range(number):
            call()
        return (perf_counter() - started) / number

    def times(self, seconds: float) -> dict[str, float]:
        """Return the median microseconds of each candidate; `seconds` for all together."""
        for _ in range(3):
            started = perf_counter()
            for name in NAMES:
                self.sample(name)
        rounds = self.comm.bcast(max(7, min(1000, int(seconds / (perf_counter() - started)))))
        samples = np.empty((rounds, len(NAMES)))
        for turn in range(rounds):
            for index in np.roll(np.arange(len(NAMES)), turn):
                samples[turn, index] = self.sample(NAMES[index])
        self.comm.Allreduce(MPI.IN_PLACE, samples, MPI.MAX)
        return dict(zip(NAMES, np.median(samples, axis=0) * 1e6, strict=True))


@click.command(context_settings={"show_default": True})
@click.option("-b", "--begin", type=size, default="8")
@click.option("-e", "--end", type=size, default="64M")
@click.option("--seconds", type=float, default=2.0, help="Time per size.")
def main(begin: int, end: int, seconds: float) -> None:
    comm = MPI.COMM_WORLD
    sizes = tuple(nbytes for nbytes in SIZES if begin <= nbytes <= end)
    head = "| size | MPI | hpccoll | ratio | MPI in place | shared | ratio | copy | shared / copy |"
    if comm.rank == 0:
        for line in Machine(comm.size, 1).header("allreduce", Options(sizes=sizes)):
            print(f"    {line}")
        print("", head, "|" + "---:|" * 9, sep="\n", flush=True)
    ratios = []
    for nbytes in sizes:
        t = Contest(nbytes, comm).times(seconds)
        ratios.append((t["mpi"] / t["hpccoll"], t["mpi in place"] / t["shared"]))
        if comm.rank == 0:
            cells = [human(nbytes), microseconds(t["mpi"]), microseconds(t["hpccoll"])]
            cells += [f"{ratios[-1][0]:.2f}", microseconds(t["mpi in place"])]
            cells += [microseconds(t["shared"]), f"{ratios[-1][1]:.2f}", microseconds(t["copy"])]
            cells += [f"{t['shared'] / t['copy']:.2f}"]
            print(f"| {' | '.join(cells)} |", flush=True)
    if comm.rank == 0:
        private, shared = (geometric_mean(column) for column in zip(*ratios, strict=True))
        print(f"| geometric mean | | | {private:.2f} | | | {shared:.2f} | | |")


if __name__ == "__main__":
    main()
