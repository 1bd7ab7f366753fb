"""Find the best segment size: time per call for each, in one loop with the MPI library's own.

    mpiexec -n 4 python bench/segments.py
    mpiexec -n 4 python bench/segments.py -a ring -b 4M -e 4M -s 32K,128K,512K

Writes a Markdown table; times are medians over calls of the slowest rank, in microseconds. The
default of `hpccoll.task.SEGMENT_BYTES` comes from here.
"""

from functools import partial

import click
import numpy as np
from contest import human, line, microseconds
from mpi4py import MPI

import hpccoll
from hpccoll.algorithms import ALGORITHMS
from hpccoll.benchmark.command import size
from hpccoll.benchmark.data import Vectors
from hpccoll.benchmark.measure import measure
from hpccoll.benchmark.options import SECONDS, Options, size_range


@click.command(context_settings={"show_default": True})
@click.option("-b", "--begin", type=size, default="256K")
@click.option("-e", "--end", type=size, default="16M")
@click.option("-f", "--factor", type=click.IntRange(2), default=4)
@click.option("-a", "--algorithm", type=click.Choice(list(ALGORITHMS)), default="rabenseifner")
@click.option("-s", "--segments", default="16K,64K,128K,256K,512K,1M,4M", help="Segment sizes.")
@click.option("--seconds", type=float, default=SECONDS, help="Time per figure.")
def main(begin: int, end: int, factor: int, algorithm: str, segments: str, seconds: float) -> None:
    comm = MPI.COMM_WORLD
    options = Options(size_range(begin, end, factor), seconds=seconds)
    limits = [None, *(size(text) for text in segments.split(","))]
    doors = [hpccoll.Comm(comm, algorithm=algorithm, segment_bytes=limit) for limit in limits]
    if comm.rank == 0:
        names = ["default" if limit is None else human(limit) for limit in limits]
        print(f"{algorithm}, {comm.size} ranks; us by size and segment\n")
        print(f"| size | MPI | {' | '.join(names)} |")
        print("|---:|" + "---:|" * (len(names) + 1), flush=True)
    for case in options.cases(comm.size):
        vectors = Vectors(case, comm.rank, comm.size)
        calls = [
            partial(door.Allreduce, vectors.x, vectors.out, MPI.SUM) for door in (comm, *doors)
        ]
        timing = measure(comm, calls, vectors, options)
        wrong = comm.allreduce(sum(timing.wrong))
        if comm.rank == 0:
            medians = np.median(timing.seconds, axis=1) * 1e6
            cells = [human(case.nbytes), *map(microseconds, medians)]
            print(line(*cells), flush=True)
        if wrong:
            raise SystemExit(f"{wrong} wrong elements")


if __name__ == "__main__":
    main()
