"""The functions that begin a collective and return a handle: `iallreduce` and the like."""

from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

from mpi4py import MPI

from hpccoll import arrays
from hpccoll.arrays import Door
from hpccoll.calls import Call, Caller, call_of
from hpccoll.jobs import Deferred, Job
from hpccoll.progress import Ticket

T = TypeVar("T")


class Handle(Generic[T]):
    """A collective call under way. `wait` gives its result.

    Attributes
    ----------
    done : bool
        Whether the call is complete.
    """

    def __init__(self, door: Door, job: Job | Deferred, result: Callable[[], T]) -> None:
        self._comm, self._call = door.comm, door.call
        self._progress = door.progress()
        self._result = result
        self._waited = False
        self._ticket = self._progress.enqueue(
            Ticket(Caller(door.call, door.comm), self._progress.run_job(job))
        )

    @property
    def done(self) -> bool:
        """Whether the call is complete; never waits for other ranks."""
        return self._ticket.done

    def test(self) -> bool:
        """Return whether the call is complete.

        Without a progress thread (MPI below ``MPI.THREAD_MULTIPLE``) this is where it runs, and it
        waits for the other ranks.
        """
        if not self._progress.threaded:
            self._progress.advance(self._ticket)
        return self._ticket.done

    def wait(self) -> T:
        """Return the result when the call is complete.

        Raises
        ------
        RuntimeError
            It was waited for before.
        Exception
            What the call raised, on every rank that has waited.
        """
        if self._waited:
            rank, size = self._comm.rank, self._comm.size
            message = f"{self._call}: wait on a handle that was waited for (rank {rank} of {size})"
            raise RuntimeError(message)
        try:
            self._progress.complete(self._ticket)
        finally:
            self._waited = self._ticket.done  # not where it was interrupted
        if self._ticket.plan is not None and hasattr(self._comm, "note_call"):
            self._comm.note_call(self._ticket.plan)
        return self._result()

    @property
    def call(self) -> Call | None:
        """What the call did on this rank; None before it is complete, and where it failed."""
        return None if self._ticket.plan is None else call_of(self._ticket.plan)


def iallreduce(
    x: T,
    op: "str | MPI.Op" = "sum",
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    algorithm: str | None = None,
    segment_bytes: int | None = None,
    timeout: float | None = None,
    check: bool | None = None,
    stream: Any = None,
) -> Handle[T]:
    """Begin an `allreduce`, and return a handle whose ``wait()`` returns the result.

    Parameters as of `allreduce`. The arrays are hpccoll's until then: `x` must not be written, and
    `out` not be used. They are kept alive. Errors in the arguments are raised at once, those of
    the call by ``wait()``.

    Notes
    -----
    All ranks begin their non-blocking calls on a communicator in the same order; they run in that
    order, one after the other, and beside blocking calls. Where MPI was started with
    ``MPI.THREAD_MULTIPLE``, as mpi4py does, they progress by themselves, in a thread per
    communicator; elsewhere they run when they are waited for.

    Examples
    --------
    >>> import numpy as np, hpccoll
    >>> handle = hpccoll.iallreduce(np.arange(3.0))
    >>> handle.wait().tolist()
    [0.0, 1.0, 2.0]
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("iallreduce", comm):
        door = Door.of(
            "iallreduce", "allreduce", comm, algorithm, segment_bytes, timeout, check, stream
        )
        return Handle(door, *arrays.allreduce(door, x, op, out))


def ireduce(
    x: T,
    op: "str | MPI.Op" = "sum",
    root: int = 0,
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    algorithm: str | None = None,
    segment_bytes: int | None = None,
    timeout: float | None = None,
    check: bool | None = None,
    stream: Any = None,
) -> "Handle[T | None]":
    """Begin a `reduce`, and return a handle whose ``wait()`` returns the result.

    Parameters as of `reduce`; notes as of `iallreduce`.
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("ireduce", comm):
        door = Door.of("ireduce", "reduce", comm, algorithm, segment_bytes, timeout, check, stream)
        return Handle(door, *arrays.reduce(door, x, op, root, out))


def ireduce_scatter(
    x: T,
    op: "str | MPI.Op" = "sum",
    *,
    counts: Sequence[int] | None = None,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    algorithm: str | None = None,
    segment_bytes: int | None = None,
    timeout: float | None = None,
    check: bool | None = None,
    stream: Any = None,
) -> Handle[T]:
    """Begin a `reduce_scatter`, and return a handle whose ``wait()`` returns the result.

    Parameters as of `reduce_scatter`; notes as of `iallreduce`.
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("ireduce_scatter", comm):
        door = Door.of(
            "ireduce_scatter",
            "reduce_scatter",
            comm,
            algorithm,
            segment_bytes,
            timeout,
            check,
            stream,
        )
        return Handle(door, *arrays.reduce_scatter(door, x, op, out, counts))


def iallgather(
    x: T,
    *,
    counts: Sequence[int] | None = None,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    algorithm: str | None = None,
    segment_bytes: int | None = None,
    timeout: float | None = None,
    check: bool | None = None,
    stream: Any = None,
) -> Handle[T]:
    """Begin an `allgather`, and return a handle whose ``wait()`` returns the result.

    Parameters as of `allgather`; notes as of `iallreduce`.
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("iallgather", comm):
        door = Door.of(
            "iallgather", "allgather", comm, algorithm, segment_bytes, timeout, check, stream
        )
        return Handle(door, *arrays.allgather(door, x, out, counts))


def ibroadcast(
    x: T,
    root: int = 0,
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    algorithm: str | None = None,
    segment_bytes: int | None = None,
    timeout: float | None = None,
    check: bool | None = None,
    stream: Any = None,
) -> Handle[T]:
    """Begin a `broadcast`, and return a handle whose ``wait()`` returns the result.

    Parameters as of `broadcast`; notes as of `iallreduce`.
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("ibroadcast", comm):
        door = Door.of(
            "ibroadcast", "broadcast", comm, algorithm, segment_bytes, timeout, check, stream
        )
        return Handle(door, *arrays.broadcast(door, x, root, out))


def ibarrier(
    comm: MPI.Intracomm | None = None,
    *,
    timeout: float | None = None,
    check: bool | None = None,
) -> Handle[None]:
    """Begin a `barrier`, and return a handle whose ``wait()`` returns when all have begun it.

    Notes as of `iallreduce`.
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("ibarrier", comm):
        door = Door.of("ibarrier", "barrier", comm, timeout=timeout, check=check)
        return Handle(door, *arrays.barrier(door))
