"""Candidates that are checked, and then take turns for a given time; and Markdown."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from time import perf_counter

from mpi4py import MPI
from rounds import WARMUP, medians

from hpccoll.benchmark.options import Options
from hpccoll.benchmark.report import Machine

CALLS = 200
"""Calls back to back of one sample, where data need not be fresh."""

PROBE = 3
"""Rounds that tell how long one takes."""

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

    def times(self, seconds: float) -> dict[str, float]:
        """Return the median microseconds of each, of the slowest rank; `seconds` for all together.

        Collective; the same on all ranks.
        """
        calls = {name: contestant.call for name, contestant in self.contestants.items()}
        race = partial(medians, self.comm, calls, calls=self.number, before=self._prepare)
        started = perf_counter()
        race(rounds=PROBE)
        per_round = (perf_counter() - started) / (PROBE + WARMUP)
        return race(rounds=self.comm.bcast(max(FEWEST, min(MOST, int(seconds / per_round)))))

    def _prepare(self, name: str) -> None:
        self.contestants[name].prepare()


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
