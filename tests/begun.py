"""Every collective of `hpccoll.Comm`, for all ways to make it: blocking, begun or prepared.

`CASES` has a function for each form of a call. It returns the arguments, and the array in which the
result is; equal seeds give equal data.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from inputs import contribution
from mpi4py import MPI

Array = np.ndarray[Any, np.dtype[Any]]


@dataclass
class Prepared:
    """Arguments of a call.

    Attributes
    ----------
    name : str
        mpi4py's, of the blocking call.
    arguments : tuple
        Its arguments.
    result : numpy.ndarray
        Where the result is on this rank.
    fill : callable
        ``fill(seed)`` writes the input, and rubbish where only the result belongs.
    """

    name: str
    arguments: tuple[Any, ...]
    result: Array
    fill: Callable[[int], None]

    def blocking(self, comm: MPI.Intracomm) -> None:
        """Make the call."""
        getattr(comm, self.name)(*self.arguments)

    def begin(self, comm: MPI.Intracomm) -> MPI.Request:
        """Begin the call."""
        return getattr(comm, f"I{self.name.lower()}")(*self.arguments)

    def prepare(self, comm: MPI.Intracomm) -> Any:
        """Prepare the call."""
        return getattr(comm, f"{self.name}_init")(*self.arguments)


def uneven(size: int, count: int) -> list[int]:
    """Return counts of which some are zero, and others large."""
    return [(rank % 3) * count + rank // 2 for rank in range(size)]


def _data(comm: MPI.Intracomm, count: int, seed: int) -> Array:
    return contribution(comm.rank, count, "float64", "sum", comm.size, seed)


def _call(
    name: str,
    comm: MPI.Intracomm,
    arguments: tuple[Any, ...],
    x: Array | None,
    result: Array,
    brings: slice = slice(None),
) -> Prepared:
    """Make `Prepared`; `x` is what this rank brings, or a part of it that `brings` says."""

    def fill(seed: int) -> None:
        result[...] = -seed - 1
        if x is not None:
            x[brings] = _data(comm, x[brings].size, seed)

    return Prepared(name, arguments, result, fill)


def _allreduce(comm, n):
    x, out = np.empty(n), np.empty(n)
    return _call("Allreduce", comm, (x, out), x, out)


def _allreduce_in_place(comm, n):
    x = np.empty(n)
    return _call("Allreduce", comm, (MPI.IN_PLACE, x, MPI.MAX), x, x)


def _allreduce_strided(comm, n):
    x, out = np.empty((n, 2))[:, 0], np.empty(2 * n)[::2]
    return _call("Allreduce", comm, (x, out, MPI.SUM), x, out)


def _reduce(comm, n, root=0):
    x, out = np.empty(n), np.empty(n)
    return _call("Reduce", comm, (x, out, MPI.SUM, root), x, out)


def _reduce_last(comm, n):
    return _reduce(comm, n, comm.size - 1)


def _reduce_in_place(comm, n):
    x, root = np.empty(n), comm.size // 2
    here = comm.rank == root
    return _call("Reduce", comm, (MPI.IN_PLACE if here else x, x, MPI.MIN, root), x, x)


def _reduce_scatter_block(comm, n):
    x, out = np.empty(n * comm.size), np.empty(n)
    return _call("Reduce_scatter_block", comm, (x, out), x, out)


def _reduce_scatter_block_in_place(comm, n):
    x = np.empty(n * comm.size)
    return _call("Reduce_scatter_block", comm, (MPI.IN_PLACE, x), x, x[:n])


def _reduce_scatter(comm, n):
    counts = uneven(comm.size, n)
    x, out = np.empty(sum(counts)), np.empty(counts[comm.rank])
    return _call("Reduce_scatter", comm, (x, out, counts, MPI.MAX), x, out)


def _reduce_scatter_without_counts(comm, n):
    counts = uneven(comm.size, n)
    x, out = np.empty(sum(counts)), np.empty(counts[comm.rank])
    return _call("Reduce_scatter", comm, (x, out), x, out)


def _reduce_scatter_in_place(comm, n):
    counts = uneven(comm.size, n)
    x = np.empty(sum(counts))
    return _call("Reduce_scatter", comm, (MPI.IN_PLACE, x, counts), x, x[: counts[comm.rank]])


def _allgather(comm, n):
    x, out = np.empty(n), np.empty(n * comm.size)
    return _call("Allgather", comm, (x, out), x, out)


def _allgather_in_place(comm, n):
    out = np.empty(n * comm.size)
    own = slice(n * comm.rank, n * (comm.rank + 1))
    return _call("Allgather", comm, (MPI.IN_PLACE, out), out, out, own)


def _allgatherv(comm, n):
    counts = uneven(comm.size, n)
    x, out = np.empty(counts[comm.rank]), np.empty(sum(counts))
    return _call("Allgatherv", comm, (x, [out, counts]), x, out)


def _allgatherv_with_gaps(comm, n):
    counts = uneven(comm.size, n)
    starts = [sum(counts[rank + 1 :]) + 2 * (comm.size - rank) for rank in range(comm.size)]
    out = np.empty(sum(counts) + 2 * comm.size + 2)
    own = slice(starts[comm.rank], starts[comm.rank] + counts[comm.rank])
    spec = [out, counts, starts, MPI.DOUBLE]
    return _call("Allgatherv", comm, (MPI.IN_PLACE, spec), out, out, own)


def _bcast(comm, n, root=0):
    x = np.empty(n)
    return _call("Bcast", comm, (x, root), x if comm.rank == root else None, x)


def _bcast_last(comm, n):
    return _bcast(comm, n, comm.size - 1)


def _barrier(comm, n):
    return _call("Barrier", comm, (), None, np.empty(0))


CASES: dict[str, Callable[[MPI.Intracomm, int], Prepared]] = {
    name[1:]: case
    for name, case in list(globals().items())
    if name.startswith("_") and name not in ("_data", "_call") and callable(case)
}
"""By name: ``CASES[name](comm, n)`` makes `Prepared` for about `n` elements."""


def reference(name: str, comm: MPI.Intracomm, n: int, seed: int) -> bytes:
    """Return the bytes of the result of the blocking call."""
    call = CASES[name](comm, n)
    call.fill(seed)
    call.blocking(comm)
    return call.result.tobytes()
