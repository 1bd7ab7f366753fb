"""Opening: a private duplicate of a communicator is made, and who has come to that is known.

The first call on a communicator is where a rank is most often missing, and nothing private is there
yet by which ranks could ask each other. So each rank tells all others that it has come, by a
non-blocking collective of the communicator itself (those never meet the user's messages), and
duplicates it without blocking. Whose word is not there when time is up has not come.
"""

import sys
import threading
import time
from collections.abc import Iterator

import numpy as np
from mpi4py import MPI

from hpccoll.errors import NEW_ONE, CollectiveTimeoutError, join_ranks
from hpccoll.time_limits import NANOSECONDS, WARNING_SECONDS

NAP_FRACTION = 0.01
LONGEST_NAP = 1e-3
"""Seconds between two looks, and how much of the wait so far. MPI makes progress only while it is
looked at, and what is waited for takes many rounds among ranks that are all there."""

TOLD_AT_ONCE = 32
"""Ranks at a distance of at most so many tell each other in one collective. MPICH sends to so many
at once; those behind wait until these have come."""


_given_up: "list[Opening]" = []
"""MPICH frees a communicator only when all that is under way on it has been seen to be complete."""


_looking = threading.Lock()
_ever = False


def look_at_given_up() -> None:
    """See what is complete of openings that were given up."""
    # Without waiting: MPI may call back in the middle of it.
    if _given_up and _looking.acquire(blocking=False):
        try:
            for opening in list(_given_up):
                if opening.is_over():
                    _given_up.remove(opening)
        finally:
            _looking.release()


def some_given_up() -> bool:
    """Return whether an opening was ever given up in this process."""
    return _ever


class Opening:
    """A private duplicate on its way. To begin it is local; it is complete when all have begun.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The user's communicator.

    Attributes
    ----------
    private : mpi4py.MPI.Intracomm
        The duplicate; not to be used before `advance` has returned True.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        look_at_given_up()
        self.rank, self.size = comm.rank, comm.size
        self._heard = np.zeros(self.size, np.uint8)
        self._heard[self.rank] = 1
        self._sent = np.ones(self.size, np.uint8)
        self._presence = list(self._tell(comm))
        self.private, self._duplication = MPI.Intracomm.Idup(comm)
        self._begun = time.monotonic_ns()
        self._stages = self._run()
        self._warned = False
        self.complete = False

    def _tell(self, comm: MPI.Intracomm) -> Iterator[MPI.Request]:
        """Begin to tell all others that this rank has come, and to hear them.

        Not itself: on a communicator of one rank, MPICH 5.0.2 hands what a rank tells itself in an
        Ialltoallv to a receive of the user's from any source.
        """
        places = np.arange(self.size, dtype=np.intc)
        for first in range(1, self.size, TOLD_AT_ONCE):
            distances = np.arange(first, min(first + TOLD_AT_ONCE, self.size))
            to, source = np.zeros((2, self.size), np.intc)
            to[(self.rank - distances) % self.size] = 1
            source[(self.rank + distances) % self.size] = 1
            yield MPI.Intracomm.Ialltoallv(
                comm, [self._sent, to, places, MPI.BYTE], [self._heard, source, places, MPI.BYTE]
            )

    def _run(self) -> Iterator[None]:
        while not (self._duplication.Test() and MPI.Request.Testall(self._presence)):
            yield
        # A rank that comes when others have given up finds all their words, but not them.
        self.private = MPI.Intracomm(self.private)
        barrier = MPI.Intracomm.Ibarrier(self.private)
        while not barrier.Test():
            yield

    def advance(self) -> bool:
        """Go on without waiting; return whether it is complete."""
        if not self.complete:
            self.complete = next(self._stages, True) is True
        return self.complete

    def give_up(self) -> None:
        """Wait no more. What is under way is looked at again when other openings are begun."""
        global _ever
        _ever = True
        _given_up.append(self)

    def is_over(self) -> bool:
        """Return whether nothing that was begun on the user's communicator is under way."""
        return bool(self._duplication.Test()) and MPI.Request.Testall(self._presence)

    def missing(self) -> list[int]:
        """Return the ranks that have not come, as far as this one has heard."""
        return [int(rank) for rank in np.flatnonzero(self._heard == 0)]

    def look(self, call: str, limit: int, nap: float) -> float:
        """Sleep once between two looks, and return how long to sleep the next time.

        Raises
        ------
        CollectiveTimeoutError
            When this has taken longer than `limit` nanoseconds, if that is not 0.
        """
        time.sleep(nap)
        waited = time.monotonic_ns() - self._begun
        if 0 < limit < waited:
            missing = self.missing()
            error = CollectiveTimeoutError(f"{self._describe(call, waited)}. {NEW_ONE}")
            error.ranks = tuple(missing)
            raise error
        if not self._warned and waited > WARNING_SECONDS * NANOSECONDS:
            self._warned = True
            text = f"hpccoll: {self._describe(call, waited)}; it goes on waiting"
            print(text, file=sys.stderr, flush=True)
        return min(max(nap, NAP_FRACTION * waited / NANOSECONDS), LONGEST_NAP)

    def _describe(self, call: str, waited: int) -> str:
        missing = self.missing()
        whom = f"{join_ranks(missing)} to come" if missing else "others that have given up"
        return (
            f"{call}: waited {waited / NANOSECONDS:.3g} s for {whom}, in the first call on this "
            f"communicator (rank {self.rank} of {self.size})"
        )

    def wait(self, call: str, limit: int) -> None:
        """Return when it is complete; after an interrupt it can be waited for again.

        Parameters
        ----------
        call : str
            For messages: the call that the user made.
        limit : int
            Nanoseconds, from the beginning; 0 for any time.

        Raises
        ------
        CollectiveTimeoutError
            When time is up.
        """
        nap = 1e-5
        while not self.advance():
            nap = self.look(call, limit, nap)
