"""The family of collectives: hpccoll's own choice beside the MPI library's calls.

    mpiexec -n 2 python bench/family.py                     # Markdown, to standard output
    mpiexec -n 4 python bench/family.py --collectives reduce,broadcast -b 1M -e 4M --seconds 1

A table per collective. MPI and hpccoll.Comm work on private NumPy arrays, "shared" is hpccoll.Comm
on arrays of `hpccoll.empty`; ratios above 1 are in hpccoll's favour. The size is that of the whole
vector: what each rank brings to a reduce-scatter, and what it ends with in an all-gather. Elements
are float32, the operation is sum, the root is rank 0, and input and output are two arrays, but for
the broadcast, which has one.

Candidates take turns in one loop. From 16 KiB up a rank that brings something writes it anew before
each call, untimed, and waits for the others; below, calls are made back to back. Times are those of
the slowest rank, call by call, and the median of them, in microseconds. Results are checked before.
"""

from statistics import geometric_mean

import click
import numpy as np
from contest import CALLS, Contest, Contestant, human, line, microseconds
from mpi4py import MPI

import hpccoll
from hpccoll.benchmark.command import names, size
from hpccoll.benchmark.data import Empty, Vectors
from hpccoll.benchmark.options import Case, Options, size_range
from hpccoll.benchmark.report import Machine
from hpccoll.benchmark.sweep import bound

COLLECTIVES = ("reduce_scatter", "allgather", "reduce", "broadcast")

HEAD = ("size", "MPI (us)", "hpccoll (us)", "MPI / hpccoll", "shared (us)", "MPI / shared")


def contest(case: Case, comm: MPI.Intracomm, ours: hpccoll.Comm) -> Contest:
    """Return the candidates of one case, each with arrays of its own."""

    def contestant(door: MPI.Intracomm, empty: Empty) -> Contestant:
        vectors = Vectors(case, comm.rank, comm.size, empty)
        call = bound(door, case, vectors)

        def check() -> int:
            vectors.spoil()
            vectors.rewrite()
            comm.Barrier()
            call()
            return vectors.count_wrong()

        return Contestant(call, vectors.rewrite if case.fresh else vectors.settle, check)

    contestants = {
        "mpi": contestant(comm, np.empty),
        "hpccoll": contestant(ours, np.empty),
        "shared": contestant(ours, hpccoll.empty),
    }
    return Contest(comm, contestants, 1 if case.fresh else CALLS)


def table(collective: str, sizes: tuple[int, ...], seconds: float, comm: MPI.Intracomm) -> None:
    """Measure a collective and print its table. Collective."""
    ours = hpccoll.Comm(comm)
    if comm.rank == 0:
        known = Machine(comm.size, 1).header(Options(sizes, collective=collective))
        environment = [text for text in known if text.startswith("environment: ")]
        print("", *(f"    {text}" for text in [*known[:2], *environment]), "", sep="\n")
        print(line(*HEAD), "|" + "---:|" * len(HEAD), sep="\n", flush=True)
    ratios = []
    for case in Options(sizes, collective=collective).cases(comm.size):
        candidates = contest(case, comm, ours)
        candidates.check(f"{collective} of {human(case.nbytes)}")
        t = candidates.times(seconds)
        ratios.append((t["mpi"] / t["hpccoll"], t["mpi"] / t["shared"]))
        if comm.rank == 0:
            private, shared = (f"{ratio:.2f}" for ratio in ratios[-1])
            mpi, plain, placed = map(microseconds, t.values())
            print(line(human(case.nbytes), mpi, plain, private, placed, shared), flush=True)
    if comm.rank == 0:
        private, shared = (f"{geometric_mean(ratio):.2f}" for ratio in zip(*ratios, strict=True))
        print(line("geometric mean", "", "", private, "", shared), flush=True)


@click.command(context_settings={"show_default": True})
@click.option(
    "--collectives",
    type=names("collective", lambda: COLLECTIVES),
    default="all",
    help=f"Of {', '.join(COLLECTIVES)}; separated by commas.",
)
@click.option("-b", "--begin", type=size, default="64K")
@click.option("-e", "--end", type=size, default="16M", help="In steps of 4.")
@click.option("--seconds", type=float, default=2.0, help="Time per size.")
def main(collectives: tuple[str, ...], begin: int, end: int, seconds: float) -> None:
    comm = MPI.COMM_WORLD
    sizes = size_range(begin, end, 4)
    if not sizes:
        message = "there is no size between --begin and --end"
        raise click.UsageError(message)
    for collective in collectives:
        table(collective, sizes, seconds, comm)


if __name__ == "__main__":
    main()
