"""The timed loop.

All candidates are called within one loop, in turns, so that what disturbs the machine disturbs all
of them alike. A collective is finished when its slowest rank is: times are the maximum over the
ranks, call by call. Ranks compare them once, after the loop.
"""

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import repeat
from statistics import median
from time import perf_counter

import numpy as np
import numpy.typing as npt
from mpi4py import MPI

from hpccoll.benchmark.data import Vectors
from hpccoll.benchmark.options import Options

Contestant = Callable[[], object]
Times = npt.NDArray[np.float64]

BATCH_SECONDS = 5e-3
"""A batch of calls back to back takes about this long: much longer than to read the clock."""

MOST_CALLS = 200
"""Calls of a batch."""

PROBE_CALLS = 10
"""Calls of a batch while it is not known how long one takes."""

FEWEST, MOST = 5, 1000
"""Samples per row where their number goes by the time."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What the loop found.

    Attributes
    ----------
    seconds : numpy.ndarray
        ``[candidate, sample]``: seconds per call, of the slowest rank.
    calls : int
        Calls per sample.
    wrong : list of int
        Wrong elements on this rank after the last call of each candidate; 0 where not checked.
    """

    seconds: Times
    calls: int
    wrong: list[int]


def measure(
    comm: MPI.Intracomm, calls: Sequence[Contestant], vectors: Vectors, options: Options
) -> Timing:
    """Time calls. Collective.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        For barriers, and to agree on the number of samples; the MPI library's own.
    calls : sequence of callable
        One per candidate; collective. All work on `vectors`.
    vectors : Vectors
        This rank's.
    options : Options
        How often.
    """
    loop = _Loop(comm, calls, vectors)
    if not vectors.case.fresh:
        vectors.settle()
    collecting = gc.isenabled()
    gc.disable()
    try:
        samples, number = _agree(loop, options)
        seconds = np.empty((samples, len(calls)))
        for sample in range(samples - 1):
            loop.round(number, sample, seconds[sample])
        wrong = [0] * len(calls)
        last = seconds[samples - 1]
        if options.check and vectors.case.fresh:
            wrong = loop.checked_round(samples - 1, last)
        else:
            loop.round(number, samples - 1, last)
    finally:
        if collecting:
            gc.enable()
    comm.Allreduce(MPI.IN_PLACE, seconds, MPI.MAX)
    return Timing(np.ascontiguousarray(seconds.T), number, wrong)


def _agree(loop: "_Loop", options: Options) -> tuple[int, int]:
    """Warm up, and return the number of samples and of calls per sample; rank 0 decides."""
    fresh = loop.vectors.case.fresh
    number = 1 if fresh else PROBE_CALLS
    seconds = np.empty(len(loop.calls))
    rounds = options.warmup
    if options.iterations is None or not fresh:
        rounds = max(rounds, 1)
    elapsed = []
    for sample in range(rounds):
        started = perf_counter()
        loop.round(number, sample, seconds)
        # With what is not timed, as the rewriting of the input: it takes its share of the budget.
        elapsed.append(perf_counter() - started)
    per_call = median(elapsed or [0.0]) / (len(loop.calls) * number)
    if not fresh:
        number = min(max(int(BATCH_SECONDS / per_call), 1), MOST_CALLS)
    if options.iterations is None:
        samples = min(max(int(options.seconds / (per_call * number)), FEWEST), MOST)
    else:
        samples = options.iterations
    samples, number = loop.comm.bcast((samples, number), root=0)
    return samples, number


@dataclass(frozen=True, slots=True)
class _Loop:
    comm: MPI.Intracomm
    calls: Sequence[Contestant]
    vectors: Vectors

    def round(self, number: int, turn: int, seconds: Times) -> None:
        """Take one sample of each candidate."""
        fresh = self.vectors.case.fresh
        for index in self._order(turn):
            if fresh:
                self.vectors.rewrite()
            self.comm.Barrier()
            seconds[index] = _timed(self.calls[index], number)

    def checked_round(self, turn: int, seconds: Times) -> list[int]:
        """Take one sample of each, and return how many elements are wrong after it."""
        wrong = [0] * len(self.calls)
        self.vectors.restore()  # any candidate may have touched it
        for index in self._order(turn):
            self.vectors.spoil_some()
            self.vectors.rewrite()
            self.comm.Barrier()
            seconds[index] = _timed(self.calls[index], 1)
            wrong[index] = self.vectors.count_wrong()
        return wrong

    def _order(self, turn: int) -> list[int]:
        """Return the candidates, another first each time, so that none always follows another."""
        count = len(self.calls)
        order = [(turn + index) % count for index in range(count)]
        return order[::-1] if turn % 2 else order


def _timed(call: Contestant, number: int) -> float:
    started = perf_counter()
    for _ in repeat(None, number):
        call()
    return (perf_counter() - started) / number
