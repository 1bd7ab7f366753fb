"""A non-blocking all-reduce beside NumPy work of the same length.

    mpiexec -n 2 python bench/overlap.py

Both, one after the other, and at the same time: ``Iallreduce``, the work, ``Wait``. A rank needs a
core for each; where it has one, they take turns on it, and nothing is gained. Slowest rank,
medians, milliseconds.
"""

from time import perf_counter

import click
import numpy as np
from contest import Contest, Contestant, print_machine
from mpi4py import MPI

import hpccoll
from hpccoll.benchmark.command import size


@click.command()
@click.option("-b", "--nbytes", type=size, default="64M", show_default=True)
@click.option("--seconds", default=10.0, show_default=True, help="Time for all.")
def main(nbytes: int, seconds: float) -> None:
    comm = MPI.COMM_WORLD
    ours = hpccoll.Comm(comm)
    x = np.random.default_rng(comm.rank).random(nbytes // 4, np.float32)
    out = np.empty_like(x)
    small = np.random.default_rng(1).random(1 << 15)  # work in cache, not on the memory bus

    def exchange() -> None:
        ours.Iallreduce(x, out).Wait()

    alone = Contest(comm, {"": Contestant(exchange)}).times(1.0)[""] * 1e-6
    comm.Barrier()
    started, turns = perf_counter(), 0
    while perf_counter() - started < alone:
        np.sin(small)
        turns += 1
    turns = comm.bcast(turns)

    def work() -> None:
        for _ in range(turns):
            np.sin(small)

    def beside(door: MPI.Intracomm) -> None:
        request = door.Iallreduce(x, out)
        work()
        request.Wait()

    contestants = {
        "exchange": Contestant(exchange),
        "work": Contestant(work),
        "both at once": Contestant(lambda: beside(ours)),
        "both at once, MPI's Iallreduce": Contestant(lambda: beside(comm)),
    }
    times = Contest(comm, contestants).times(seconds)
    if comm.rank:
        return
    print_machine(comm)
    longer = max(times["exchange"], times["work"])
    print("", "| | ms | over the longer one |", "|---|---:|---:|", sep="\n")
    for name, time in times.items():
        print(f"| {name} | {time / 1e3:.1f} | {time / longer:.2f} |")


if __name__ == "__main__":
    main()
