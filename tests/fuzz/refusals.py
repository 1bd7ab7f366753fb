"""Calls that must be refused: each on all ranks, before anything is sent."""

from collections.abc import Callable
from typing import Any

import numpy as np
from mpi4py import MPI

import hpccoll

Refusal = tuple[type[Exception], Callable[[MPI.Intracomm], Any]]


def _read_only(count: int) -> Any:
    array = np.zeros(count)
    array.flags.writeable = False
    return array


def _on_itself() -> Any:
    return np.lib.stride_tricks.as_strided(np.zeros(4), (3, 4), (0, 8))


def _wrapped(comm: MPI.Intracomm) -> Any:
    return hpccoll.Comm(comm)


ONES = np.ones(4)

REFUSALS: dict[str, Refusal] = {
    "unknown op": (ValueError, lambda c: hpccoll.allreduce(ONES, "plus", comm=c)),
    "op of another type": (TypeError, lambda c: hpccoll.reduce(ONES, 3, comm=c)),
    "sum of bool": (TypeError, lambda c: hpccoll.allreduce(np.ones(3, bool), comm=c)),
    "mean of int": (TypeError, lambda c: hpccoll.iallreduce(np.ones(3, int), "mean", comm=c)),
    "bits of float": (TypeError, lambda c: hpccoll.reduce_scatter(ONES, "band", comm=c)),
    "order of complex": (TypeError, lambda c: hpccoll.reduce(np.ones(2, "c8"), "min", comm=c)),
    "list": (TypeError, lambda c: hpccoll.allgather([1, 2], comm=c)),
    "text": (TypeError, lambda c: hpccoll.broadcast("text", comm=c)),
    "objects": (TypeError, lambda c: hpccoll.allreduce(np.ones(2, object), comm=c)),
    "IN_PLACE by a function": (TypeError, lambda c: hpccoll.ireduce(MPI.IN_PLACE, comm=c)),
    "root too large": (ValueError, lambda c: hpccoll.broadcast(np.ones(2), c.size, comm=c)),
    "root below 0": (ValueError, lambda c: hpccoll.reduce(ONES, root=-1, comm=c)),
    "root of another type": (TypeError, lambda c: _wrapped(c).Bcast(np.ones(2), 0.0)),
    "Reduce, root too large": (
        ValueError,
        lambda c: _wrapped(c).Reduce(ONES, np.ones(4), root=c.size),
    ),
    "unknown algorithm": (ValueError, lambda c: hpccoll.allreduce(ONES, algorithm="best", comm=c)),
    "algorithm of another collective": (
        ValueError,
        lambda c: hpccoll.ibroadcast(np.ones(3), algorithm="ring", comm=c),
    ),
    "algorithm of another type": (TypeError, lambda c: hpccoll.Comm(c, algorithm=3)),
    "segment_bytes 0": (ValueError, lambda c: hpccoll.allreduce(ONES, segment_bytes=0, comm=c)),
    "segment_bytes as text": (TypeError, lambda c: hpccoll.Comm(c, segment_bytes="1K")),
    "counts too few": (
        ValueError,
        lambda c: hpccoll.reduce_scatter(ONES, counts=[4] + [0] * c.size, comm=c),
    ),
    "counts of another sum": (
        ValueError,
        lambda c: (
            hpccoll.reduce_scatter(ONES, counts=[4] * c.size, comm=c)
            if c.size > 1
            else hpccoll.reduce_scatter(ONES, counts=[5], comm=c)
        ),
    ),
    "counts below 0": (
        ValueError,
        lambda c: hpccoll.iallgather(ONES, counts=[-1] * c.size, comm=c),
    ),
    "counts that are not x's": (
        ValueError,
        lambda c: hpccoll.allgather(ONES, counts=[5] * c.size, comm=c),
    ),
    "counts of another type": (
        TypeError,
        lambda c: _wrapped(c).Reduce_scatter(ONES, np.ones(4), 4.0),
    ),
    "out of another shape": (
        ValueError,
        lambda c: hpccoll.allreduce(ONES, out=np.ones((2, 2)), comm=c),
    ),
    "out of another type": (
        TypeError,
        lambda c: hpccoll.allreduce(ONES, out=np.ones(4, "f4"), comm=c),
    ),
    "out that is read-only": (
        BufferError,
        lambda c: hpccoll.iallreduce(ONES, out=_read_only(4), comm=c),
    ),
    "out on itself": (
        ValueError,
        lambda c: hpccoll.allreduce(np.ones((3, 4)), out=_on_itself(), comm=c),
    ),
    "out that is a number": (TypeError, lambda c: hpccoll.allreduce(ONES, out=1.0, comm=c)),
    "split of no dimensions": (ValueError, lambda c: hpccoll.reduce_scatter(np.ones(()), comm=c)),
    "no communicator": (TypeError, lambda c: hpccoll.barrier("world")),
    "the null communicator": (ValueError, lambda c: hpccoll.ibarrier(MPI.COMM_NULL)),
    "recvbuf of another count": (ValueError, lambda c: _wrapped(c).Allreduce(ONES, np.ones(5))),
    "recvbuf of another type": (
        TypeError,
        lambda c: _wrapped(c).Iallreduce(ONES, np.ones(4, "f4")),
    ),
    "recvbuf that is read-only": (
        BufferError,
        lambda c: _wrapped(c).Allreduce_init(ONES, _read_only(4)),
    ),
    "recvbuf on itself": (
        ValueError,
        lambda c: _wrapped(c).Allreduce(MPI.IN_PLACE, _on_itself()),
    ),
    "more than the buffer holds": (
        ValueError,
        lambda c: _wrapped(c).Allreduce([ONES, 5], [np.ones(4), 5]),
    ),
    "no multiple of the ranks": (
        ValueError,
        lambda c: _wrapped(c).Reduce_scatter_block(np.ones(c.size * 2 + 1), np.ones(2)),
    ),
    "Allgather of another count": (
        ValueError,
        lambda c: _wrapped(c).Iallgather(ONES, np.ones(4 * c.size + 1)),
    ),
    "Allgatherv beyond the end": (
        ValueError,
        lambda c: _wrapped(c).Allgatherv(
            ONES, [np.ones(4 * c.size), [4] * c.size, [4 * c.size] * c.size]
        ),
    ),
    "in place without counts": (
        ValueError,
        lambda c: _wrapped(c).Reduce_scatter(MPI.IN_PLACE, np.ones(c.size)),
    ),
    "many: as many outs": (
        ValueError,
        lambda c: hpccoll.allreduce_many([ONES, ONES], out=[np.ones(4)], comm=c),
    ),
    "many: a type": (TypeError, lambda c: hpccoll.allreduce_many([ONES, np.ones(2, bool)], comm=c)),
    "many: bucket_bytes": (
        ValueError,
        lambda c: hpccoll.allreduce_many([ONES], bucket_bytes=0, comm=c),
    ),
    "Bucketer: a number": (TypeError, lambda c: hpccoll.Bucketer(comm=c).ready("x", 1.0)),
}


def refused(what: str, comm: MPI.Intracomm) -> str:
    """Make a call that is to be refused; say what is wrong, empty if it was refused as it must."""
    kind, call = REFUSALS[what]
    try:
        call(comm)
    except kind as error:
        return "" if error.args and str(error) else f"{kind.__name__} without a text"
    except Exception as error:
        return f"raised {type(error).__name__} ({error}), wanted {kind.__name__}"
    return f"was not refused; wanted {kind.__name__}"
