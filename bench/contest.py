"""What the measurements of this folder share: candidates that take turns in one loop."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from mpi4py import MPI

from hpccoll.benchmark.options import Options
from hpccoll.benchmark.report import Machine

CALLS = 200
"""Calls back to back of one sample, where data need not be fresh."""

FEWEST, MOST = 7, 1000
"""Rounds of the loop."""


@dataclass(frozen=True)
class Contestant:
    """One candidate, with arrays of its own.

    Attributes
    ----------
    call : callable
        What is timed; collective.
    prepare : callable
        What is done before each sample, untimed: the input is written anew.
    check : callable
        Spoils the result, writes the input, calls, and returns the number of wrong elements.
    """

    call: Callable[[], object]
    prepare: Callable[[], object] = lambda: None
    check: Callable[[], int] = lambda: 0


@dataclass(frozen=True)
class Contest:
    """Candidates that do the same, or nearly so.

    Attributes
    ----------
    comm : mpi4py.MPI.Intracomm
        The MPI library's own communicator.
    contestants : mapping
        By name.
    number : int
        Calls per sample.
    """

    comm: MPI.Intracomm
    contestants: Mapping[str, Contestant]
    number: int = 1

    def check(self, what: str) -> None:
        """Call each once, and leave the program where a result is wrong. Collective."""
        for name, contestant in self.contestants.items():
            wrong = contestant.check()
            if self.comm.allreduce(wrong):
                message = f"{name}: {wrong} wrong elements on rank {self.comm.rank} at {what}"
                raise SystemExit(message)

    def sample(self, name: str) -> float:
        """Return the seconds of one call on this rank."""
        contestant = self.contestants[name]
        call = contestant.call
        contestant.prepare()
        self.comm.Barrier()
        started = perf_counter()
        for _ in range(self.number):
            call()
        return (perf_counter() - started) / self.number

    def times(self, seconds: float) -> dict[str, float]:
        """Return the median microseconds of each, of the slowest rank; `seconds` for all together.

        Collective; the same on all ranks.
        """
        names = tuple(self.contestants)
        for _ in range(3):
            started = perf_counter()
            for name in names:
                self.sample(name)
        rounds = int(seconds / (perf_counter() - started))
        rounds = self.comm.bcast(max(FEWEST, min(MOST, rounds)))
        samples = np.empty((rounds, len(names)))
        for turn in range(rounds):
            for index in np.roll(np.arange(len(names)), turn):
                samples[turn, index] = self.sample(names[index])
        self.comm.Allreduce(MPI.IN_PLACE, samples, MPI.MAX)
        return dict(zip(names, np.median(samples, axis=0) * 1e6, strict=True))


def human(nbytes: int) -> str:
    """Return a number of bytes as 8 B, 64 KiB or 1 MiB, where that is exact."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes % (1 << power) == 0:
            return f"{nbytes >> power} {unit}"
    return f"{nbytes} B"


def microseconds(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}" if value < 100 else f"{value:.0f}"


def line(*cells: str) -> str:
    """Return a row of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def print_machine(comm: MPI.Intracomm) -> None:
    """Say what this was measured on."""
    for line in Machine(comm.size, 1).header(Options(sizes=(8,)))[:2]:
        print(f"    {line}")
