"""Small all-reduces: the MPI library's own call, its persistent one, and hpccoll's doors.

    mpiexec -n 2 python bench/persistent.py

Calls back to back on float32 arrays, all candidates in turns; microseconds per call of the slowest
rank, median of the rounds, and the MPI library's ``Allreduce`` over each.
"""

from collections.abc import Callable
from contextlib import ExitStack

import click
import numpy as np
from mpi4py import MPI
from rounds import medians, print_machine

import hpccoll

CALLS = 200


def candidates(
    comm: MPI.Intracomm, ours: hpccoll.Comm, nbytes: int, stack: ExitStack
) -> dict[str, Callable[[], object]]:
    x, out = np.zeros(nbytes // 4, np.float32), np.empty(nbytes // 4, np.float32)
    prepared = ours.Allreduce_init(x, out)
    stack.callback(prepared.Free)

    def persistent() -> None:
        prepared.Start()
        prepared.Wait()

    found = {
        "MPI": lambda: comm.Allreduce(x, out),
        "hpccoll": lambda: ours.Allreduce(x, out),
        "persistent": persistent,
        "function": lambda: hpccoll.allreduce(x, out=out, comm=ours),
    }
    try:
        theirs = comm.Allreduce_init(x, out)
    except NotImplementedError:  # MPI before version 4
        return found
    stack.callback(theirs.Free)

    def native() -> None:
        theirs.Start()
        theirs.Wait()

    return {**found, "MPI persistent": native}


@click.command()
@click.option("--rounds", default=200, show_default=True, help="Samples of each candidate.")
def main(rounds: int) -> None:
    comm = MPI.COMM_WORLD
    ours = hpccoll.Comm(comm)
    for nbytes in (8, 1024, 4096):
        with ExitStack() as stack:
            calls = candidates(comm, ours, nbytes, stack)
            times = medians(comm, calls, rounds=rounds, calls=CALLS)
        if comm.rank:
            continue
        if nbytes == 8:
            print_machine(comm)
            print(
                "", f"| bytes | {' | '.join(times)} |", "|---:" * (len(times) + 1) + "|", sep="\n"
            )
        cells = [f"{time:.2f} ({times['MPI'] / time:.2f})" for time in times.values()]
        print(f"| {nbytes} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
