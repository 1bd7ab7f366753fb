"""mpi4py's signatures become jobs: one function per collective, for all doors of `hpccoll.Comm`.

Each takes the communicator, the name of the call for messages, and the arguments as mpi4py has
them, and returns a `Job`, or None where the call is the MPI library's to run (a derived datatype,
an operation of the user's own).
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll import buffers
from hpccoll.buffers import Array
from hpccoll.channel import Channel
from hpccoll.checks import check_counts, check_output, check_root
from hpccoll.chunks import chunks
from hpccoll.jobs import NOTHING, Deferred, Job, copier, gathered, streams_of
from hpccoll.ops import Operation, find_operation
from hpccoll.pattern import Pattern

NAMES = ("sendbuf", "recvbuf")


def allreduce(
    comm: Any, call: str, sendbuf: Any, recvbuf: Any, op: "MPI.Op | str" = MPI.SUM
) -> Job | None:
    """Understand ``Allreduce(sendbuf, recvbuf, op)``."""
    operation = find_operation(op)
    both = _both(op, operation, sendbuf, recvbuf)
    if both is None:
        return None
    x, out = both
    _same_count(x, out)
    job = Job(call, comm.settings, Pattern(), operation, x, out, NAMES, out.size)
    return job.check(comm.rank, comm.size)


def reduce(
    comm: Any,
    call: str,
    sendbuf: Any,
    recvbuf: Any,
    op: "MPI.Op | str" = MPI.SUM,
    root: int = 0,
) -> Job | None:
    """Understand ``Reduce(sendbuf, recvbuf, op, root)``."""
    operation = find_operation(op)
    check_root(root, comm.size)
    out = x = None
    if comm.rank == root:
        both = _both(op, operation, sendbuf, recvbuf)
        if both is None:
            return None
        x, out = both
        _same_count(x, out)
    else:
        if _is_in_place(sendbuf):
            message = f"sendbuf is {_shown(sendbuf)}; wanted a buffer, as this is not the root"
            raise ValueError(message)
        x = buffers.of_spec(sendbuf, "sendbuf")
        if not _reducible(op, operation, x, x):
            return None
        assert x is not None
    pattern = Pattern("reduce", root)
    job = Job(call, comm.settings, pattern, operation, x, out, NAMES, x.size)
    return job.check(comm.rank, comm.size)


def reduce_scatter_block(
    comm: Any, call: str, sendbuf: Any, recvbuf: Any, op: "MPI.Op | str" = MPI.SUM
) -> Job | None:
    """Understand ``Reduce_scatter_block(sendbuf, recvbuf, op)``."""
    operation, size = find_operation(op), comm.size
    if _is_in_place(sendbuf):
        x = buffers.of_spec(_for_blocks(recvbuf, size), "recvbuf")
        if not _reducible(op, operation, x, x):
            return None
        assert x is not None
        if x.size % size:
            message = f"recvbuf has {x.size} elements; wanted a multiple of {size}, for each rank"
            raise ValueError(message)
        return _scatter_in_place(comm, call, operation, x, None, x.size // size)
    out = buffers.of_spec(recvbuf, "recvbuf")
    x = buffers.of_spec(_for_blocks(sendbuf, size), "sendbuf")
    if not _reducible(op, operation, x, out):
        return None
    assert x is not None
    assert out is not None
    if x.size != size * out.size:
        message = (
            f"sendbuf has {x.size} elements, recvbuf {out.size}; "
            f"wanted {size} times as many, for each rank"
        )
        raise ValueError(message)
    pattern = Pattern("reduce_scatter")
    job = Job(call, comm.settings, pattern, operation, x, out, NAMES, x.size)
    return job.check(comm.rank, comm.size)


def reduce_scatter(
    comm: Any,
    call: str,
    sendbuf: Any,
    recvbuf: Any,
    recvcounts: Sequence[int] | None = None,
    op: "MPI.Op | str" = MPI.SUM,
) -> Job | Deferred | None:
    """Understand ``Reduce_scatter(sendbuf, recvbuf, recvcounts, op)``.

    Without `recvcounts` ranks tell each other: a collective call.
    """
    operation = find_operation(op)
    both = _both(op, operation, sendbuf, recvbuf)
    if both is None:
        return None
    x, out = both
    if recvcounts is None and _is_in_place(sendbuf):
        message = "recvcounts is None and sendbuf is in place; wanted a count for each rank"
        raise ValueError(message)

    def make(counts: tuple[int, ...]) -> Job:
        if x.size != sum(counts):
            name = "recvbuf" if _is_in_place(sendbuf) else "sendbuf"
            message = f"{name} has {x.size} elements; wanted {sum(counts)}, as recvcounts say"
            raise ValueError(message)
        if _is_in_place(sendbuf):
            return _scatter_in_place(comm, call, operation, x, counts, counts[comm.rank])
        pattern = Pattern("reduce_scatter", counts=counts)
        job = Job(call, comm.settings, pattern, operation, x, out, NAMES, x.size)
        return job.check(comm.rank, comm.size)

    if recvcounts is not None:
        return make(check_counts("recvcounts", recvcounts, comm.size))
    mine = [out.size]

    def agree(channel: Channel) -> Job:
        return make(tuple(gathered(channel, call, comm.settings, mine)[:, 0].tolist()))

    return Deferred(agree, streams_of(x, out))


def _scatter_in_place(
    comm: Any,
    call: str,
    operation: Operation | None,
    whole: Array,
    counts: tuple[int, ...] | None,
    own: int,
) -> Job:
    """As MPI has it: the whole vector stands in the buffer, and the own chunk goes to its start."""
    x, before, store_whole = _flat(whole)
    result = buffers.scratch_beside(whole, own)
    pattern = Pattern("reduce_scatter", counts=counts)
    job = Job(
        call, comm.settings, pattern, operation, x, result, NAMES, whole.size,
        before=copier(*before), after=copier((x[:own], result), *store_whole),
        streams=streams_of(whole), waits=True,
    )  # fmt: skip
    check_output(whole, "recvbuf")
    return job.check(comm.rank, comm.size)


def allgather(comm: Any, call: str, sendbuf: Any, recvbuf: Any) -> Job | None:
    """Understand ``Allgather(sendbuf, recvbuf)``."""
    size = comm.size
    out = buffers.of_spec(_for_blocks(recvbuf, size), "recvbuf")
    in_place = _is_in_place(sendbuf)
    x = out if in_place else buffers.of_spec(sendbuf, "sendbuf")
    if not _movable(x, out):
        return None
    assert x is not None
    assert out is not None
    if in_place:
        x = None
        if out.size % size:
            message = f"recvbuf has {out.size} elements; wanted a multiple of {size}, for each rank"
            raise ValueError(message)
    else:
        dtype = out.dtype
        x, out = _of_one_type(x, out)
        if out.size != size * x.size:
            unit = "elements" if out.dtype == dtype else "bytes"
            message = (
                f"recvbuf has {out.size} {unit}, sendbuf {x.size}; "
                f"wanted {size} times as many, for each rank"
            )
            raise ValueError(message)
    job = Job(call, comm.settings, Pattern("allgather"), None, x, out, NAMES, out.size)
    return job.check(comm.rank, comm.size)


def allgatherv(comm: Any, call: str, sendbuf: Any, recvbuf: Any) -> Job | None:
    """Understand ``Allgatherv(sendbuf, recvbuf)``."""
    chunked = of_vector_spec(recvbuf, "recvbuf", comm.size)
    in_place = _is_in_place(sendbuf)
    x = None if in_place else buffers.of_spec(sendbuf, "sendbuf")
    if chunked is None or not (in_place or _movable(x, x)):
        return None
    whole, counts, starts = chunked.array, chunked.counts, chunked.starts
    own = slice(starts[comm.rank], starts[comm.rank] + counts[comm.rank])
    if x is not None:
        dtype = whole.dtype
        x, whole = _of_one_type(x, whole)
        if whole.dtype != dtype:  # both are bytes now
            counts = tuple(count * dtype.itemsize for count in counts)
            starts = tuple(start * dtype.itemsize for start in starts)
    pattern = Pattern("allgather", counts=counts)
    packed = starts == tuple(accumulate(counts, initial=0))[:-1]
    if packed and sum(counts) == whole.size:
        job = Job(call, comm.settings, pattern, None, x, whole, NAMES, whole.size)
        return job.check(comm.rank, comm.size)
    if packed and (whole.ndim == 1 or whole.flags.c_contiguous):
        flat = whole if whole.ndim == 1 else whole.reshape(-1)
        job = Job(call, comm.settings, pattern, None, x, flat[: sum(counts)], NAMES, sum(counts))
        return job.check(comm.rank, comm.size)
    # Chunks lie in any order, with gaps, or in a part of a view: they are gathered elsewhere first.
    flat, before, store_whole = _flat(whole)
    result = buffers.scratch_beside(whole, sum(counts))
    places = tuple(accumulate(counts, initial=0))
    stores = [
        (flat[start : start + count], result[place : place + count])
        for start, count, place in zip(starts, counts, places, strict=False)
    ]
    if in_place:
        x = buffers.scratch_beside(whole, counts[comm.rank])
        before = [*before, (x, flat[own])]
    job = Job(
        call, comm.settings, pattern, None, x, result, NAMES, result.size,
        before=copier(*before), after=copier(*stores, *store_whole), streams=streams_of(x, whole),
        waits=True,
    )  # fmt: skip
    check_output(whole, "recvbuf")
    return job.check(comm.rank, comm.size)


def bcast(comm: Any, call: str, buf: Any, root: int = 0) -> Job | None:
    """Understand ``Bcast(buf, root)``."""
    check_root(root, comm.size)
    array = buffers.of_spec(buf, "buf")
    if not _movable(array, array):
        return None
    assert array is not None
    x, out = (array, None) if comm.rank == root else (None, array)
    pattern = Pattern("broadcast", root)
    job = Job(call, comm.settings, pattern, None, x, out, ("buf", "buf"), array.size)
    return job.check(comm.rank, comm.size)


def barrier(comm: Any, call: str) -> Job | None:
    """Understand ``Barrier()``."""
    return Job(call, comm.settings, Pattern("barrier"), None, None, NOTHING, ("", ""), 0)


# -- what the forms have in common -----------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ChunkedArray:
    """A buffer with a chunk for each rank.

    Attributes
    ----------
    array : numpy.ndarray or DeviceArray
        On the memory of the buffer.
    counts, starts : tuple of int
        Elements of each chunk, and the element at which it begins.
    """

    array: Array
    counts: tuple[int, ...]
    starts: tuple[int, ...]


def of_vector_spec(spec: Any, argument: str, size: int) -> ChunkedArray | None:
    """Take ``[buffer, counts, displacements, datatype]``, whose middle parts may be left out.

    Without counts the buffer is cut as `numpy.array_split` does; one number holds for all ranks.
    Without displacements chunks follow one another; one number is the distance of their starts.
    """
    counts = displacements = None
    if isinstance(spec, (list, tuple)) and len(spec) >= 2:
        buffer, *rest = spec
        datatype: list[Any] = []
        if isinstance(rest[-1], (str, MPI.Datatype)):
            datatype = [rest.pop()]
        if len(rest) == 1 and isinstance(rest[0], tuple):
            rest = list(rest[0])
        if len(rest) > 2:
            return None
        counts, displacements = (*rest, None, None)[:2]
        spec = [buffer, *datatype] if datatype else buffer
    array = buffers.of_spec(spec, argument)
    if array is None or not _movable(array, array):
        return None
    if counts is None:
        parts = [chunk.count for chunk in chunks(array.size, size)]
    elif isinstance(counts, (int, np.integer)):
        parts = [int(counts)] * size
    else:
        parts = list(check_counts(f"counts of {argument}", counts, size))
    if displacements is None:
        starts = list(accumulate(parts, initial=0))[:-1]
    elif isinstance(displacements, (int, np.integer)):
        starts = [int(displacements) * rank for rank in range(size)]
    else:
        starts = list(check_counts(f"displacements of {argument}", displacements, size))
    for rank, (start, count) in enumerate(zip(starts, parts, strict=True)):
        if start < 0 or count < 0 or (count and start + count > array.size):
            message = (
                f"{argument} holds {array.size} elements of {array.dtype}, and rank {rank} has "
                f"{count} from element {start} on"
            )
            raise ValueError(message)
    return ChunkedArray(array, tuple(parts), tuple(starts))


def _is_in_place(sendbuf: object) -> bool:
    return sendbuf is None or sendbuf is MPI.IN_PLACE


def _shown(sendbuf: object) -> str:
    return "None" if sendbuf is None else "MPI.IN_PLACE"


def _both(
    op: object, operation: Operation | None, sendbuf: Any, recvbuf: Any
) -> tuple[Array, Array] | None:
    """Return the arrays of both buffers, one in place; None leaves the call to the MPI library."""
    out = buffers.of_spec(recvbuf, "recvbuf")
    x = out if _is_in_place(sendbuf) else buffers.of_spec(sendbuf, "sendbuf")
    if not _reducible(op, operation, x, out):
        return None
    assert x is not None
    assert out is not None
    return x, out


def _reducible(op: object, operation: Operation | None, *arrays: Array | None) -> bool:
    """Whether hpccoll can reduce; False leaves the call to the MPI library."""
    if operation is not None and all(
        array is not None and buffers.is_number(array.dtype) for array in arrays
    ):
        return True
    if isinstance(op, str):
        message = f"op {op!r} needs arrays of numbers"
        raise TypeError(message)
    return False


def _movable(*arrays: Array | None) -> bool:
    return all(array is not None and not array.dtype.hasobject for array in arrays)


def _same_count(x: Array, out: Array) -> None:
    if x.size != out.size:
        message = f"recvbuf has {out.size} elements, sendbuf has {x.size}; they must agree"
        raise ValueError(message)


def _of_one_type(x: Array, out: Array) -> tuple[Array, Array]:
    """Return both as bytes where their types differ, as MPI lets them for what only moves."""
    if x.dtype.newbyteorder("=") == out.dtype.newbyteorder("="):
        return x, out
    if x.flags.c_contiguous and out.flags.c_contiguous:
        return x.reshape(-1).view(np.uint8), out.reshape(-1).view(np.uint8)
    return x, out


Copies = list[tuple[Array, Array]]


def _flat(whole: Array) -> tuple[Array, Copies, Copies]:
    """Return the elements of a buffer as a vector, with copies to it before a call, and back after.

    Of a view with gaps it is fresh memory: what a call leaves alone comes back as it was.
    """
    if whole.ndim == 1:
        return whole, [], []
    if whole.flags.c_contiguous:
        return whole.reshape(-1), [], []
    flat = buffers.scratch_beside(whole, whole.size)
    shaped = flat.reshape(whole.shape)
    return flat, [(shaped, whole)], [(whole, shaped)]


def _for_blocks(spec: Any, blocks: int) -> Any:
    """Return a buffer form whose count, if it has one, is that of all blocks, not of one."""
    if not isinstance(spec, (list, tuple)) or len(spec) < 2:
        return spec
    count = spec[1]
    if isinstance(count, (list, tuple)) and count and isinstance(count[0], (int, np.integer)):
        return [spec[0], (count[0] * blocks, *count[1:]), *spec[2:]]
    if isinstance(count, (int, np.integer)):
        return [spec[0], count * blocks, *spec[2:]]
    return spec


Understand = Callable[..., Job | Deferred | None]

COLLECTIVES: dict[str, Understand] = {
    "Allreduce": allreduce,
    "Reduce": reduce,
    "Reduce_scatter_block": reduce_scatter_block,
    "Reduce_scatter": reduce_scatter,
    "Allgather": allgather,
    "Allgatherv": allgatherv,
    "Bcast": bcast,
    "Barrier": barrier,
}
"""By mpi4py's name: what understands its arguments."""
