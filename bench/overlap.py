"""A non-blocking all-reduce beside NumPy work of the same length.

    mpiexec -n 2 python bench/overlap.py

Both, one after the other, and at the same time: ``Iallreduce``, the work, ``Wait``. A rank needs a
core for each; where it has one, they take turns on it, and nothing is gained. Slowest rank,
medians, milliseconds.
"""

from time import perf_counter

import click
import numpy as np
from mpi4py import MPI
from rounds import medians, print_machine

import hpccoll
from hpccoll.benchmark.command import size


@click.command()
@click.option("-b", "--nbytes", type=size, default="64M", show_default=True)
@click.option("--rounds", default=15, show_default=True, help="Samples of each candidate.")
def main(nbytes: int, rounds: int) -> None:
    comm = MPI.COMM_WORLD
    ours = hpccoll.Comm(comm)
    x = np.random.default_rng(comm.rank).random(nbytes // 4, np.float32)
    out = np.empty_like(x)
    small = np.random.default_rng(1).random(1 << 15)  # work in cache, not on the memory bus

    def exchange() -> None:
        ours.Iallreduce(x, out).Wait()

    seconds = medians(comm, {"": exchange}, rounds=5)[""] * 1e-6
    comm.Barrier()
    started, turns = perf_counter(), 0
    while perf_counter() - started < seconds:
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

    times = medians(
        comm,
        {
            "exchange": exchange,
            "work": work,
            "both at once": lambda: beside(ours),
            "both at once, MPI's Iallreduce": lambda: beside(comm),
        },
        rounds=rounds,
        before=lambda name: None,
    )
    if comm.rank:
        return
    print_machine(comm)
    longer = max(times["exchange"], times["work"])
    print("", "| | ms | over the longer one |", "|---|---:|---:|", sep="\n")
    for name, time in times.items():
        print(f"| {name} | {time / 1e3:.1f} | {time / longer:.2f} |")


if __name__ == "__main__":
    main()
