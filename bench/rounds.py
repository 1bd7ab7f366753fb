"""The timed loop of the small benchmarks here: candidates in turns, slowest rank, medians."""

from collections.abc import Callable, Mapping
from time import perf_counter

import numpy as np
from mpi4py import MPI

from hpccoll.benchmark.options import Options
from hpccoll.benchmark.report import Machine

WARMUP = 3
"""Rounds before those that count."""


def medians(
    comm: MPI.Intracomm,
    candidates: Mapping[str, Callable[[], object]],
    *,
    rounds: int,
    calls: int = 1,
    before: Callable[[str], object] | None = None,
) -> dict[str, float]:
    """Return the median microseconds of one call of each candidate.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        For barriers, and to find the slowest rank: the MPI library's own.
    candidates : mapping
        By name; collective. They take turns.
    rounds, calls : int
        Samples, at least `WARMUP`, and calls back to back in each.
    before : callable, optional
        Called with the name before each sample, untimed: writes the input anew.
    """
    names = list(candidates)
    samples = np.empty((rounds, len(names)))
    for turn in range(-WARMUP, rounds):
        for index in np.roll(np.arange(len(names)), turn):
            if before is not None:
                before(names[index])
            call = candidates[names[index]]
            comm.Barrier()
            started = perf_counter()
            for _ in range(calls):
                call()
            samples[turn, index] = (perf_counter() - started) / calls
    comm.Allreduce(MPI.IN_PLACE, samples, MPI.MAX)
    return dict(zip(names, np.median(samples, axis=0) * 1e6, strict=True))


def print_machine(comm: MPI.Intracomm) -> None:
    """Say what this was measured on."""
    for line in Machine(comm.size, 1).header(Options(sizes=(8,)))[:2]:
        print(f"    {line}")
