"""What the functions take becomes jobs: one function here per collective.

Each returns what runs on a channel, and a function that then gives what the user gets.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from hpccoll import buffers
from hpccoll.algorithms import AUTO, find
from hpccoll.buffers import Array, Operand
from hpccoll.channel import Channel, channel_of
from hpccoll.checks import check_counts, check_output, check_root
from hpccoll.chunks import chunks
from hpccoll.jobs import NOTHING, Deferred, Job, copier, gathered, streams_of
from hpccoll.ops import Operation, find_operation
from hpccoll.pattern import Pattern
from hpccoll.progress import Progress, progress_of
from hpccoll.selection import NCCL, Settings

if TYPE_CHECKING:
    from hpccoll.cuda.streams import GivenStream

Result = Callable[[], Any]
Names = tuple[str, str]

NAMES = ("x", "out")

IN_PLACE = {
    "allreduce": "allreduce(x, out=x)",
    "reduce": "reduce(x, out=x)",
    "reduce_scatter": "reduce_scatter(x, out=x)",
    "allgather": "allgather(x, out=out) of an x that is a part of out",
    "broadcast": "broadcast(x)",
}
"""By function: what is called in place instead of with ``MPI.IN_PLACE``."""


@dataclass(frozen=True, slots=True)
class Door:
    """Where and how a function was called.

    Attributes
    ----------
    call : str
        For messages: the call that the user made.
    collective : str
        Which one it is.
    comm : mpi4py.MPI.Intracomm
        The ranks that take part.
    settings : Settings
        The arguments, else those of `comm`.
    stream : GivenStream or None
        The stream that arrays in GPU memory are on, where the user named one.
    """

    call: str
    collective: str
    comm: MPI.Intracomm
    settings: Settings
    stream: "GivenStream | None" = None

    @classmethod
    def of(
        cls,
        call: str,
        collective: str,
        comm: MPI.Intracomm,
        algorithm: str | None = None,
        segment_bytes: int | None = None,
        timeout: float | None = None,
        check: bool | None = None,
        stream: object = None,
    ) -> "Door":
        """Check what all functions take."""
        if not isinstance(comm, MPI.Comm):
            message = f"comm is of type {type(comm).__name__}; wanted an mpi4py.MPI.Intracomm"
            raise TypeError(message)
        if comm == MPI.COMM_NULL:
            message = "comm is MPI.COMM_NULL; wanted a communicator (it may have been freed)"
            raise ValueError(message)
        if comm.is_inter:
            message = "comm is an intercommunicator; wanted an intracommunicator"
            raise TypeError(message)
        base: Settings = getattr(comm, "settings", Settings())
        settings = Settings(
            base.algorithm if algorithm is None else algorithm,
            base.segment_bytes if segment_bytes is None else segment_bytes,
            base.timeout if timeout is None else timeout,
            base.checked if check is None else check,
        )
        if isinstance(algorithm, str) and algorithm not in (AUTO, NCCL):
            find(algorithm, collective)
        settings.check()
        if stream is None:
            return cls(call, collective, comm, settings)
        from hpccoll.cuda.streams import given_stream

        return cls(call, collective, comm, settings, given_stream(stream))

    @property
    def stream_handle(self) -> int | None:
        """CUDA's handle of the stream that the user named, if any."""
        return None if self.stream is None else self.stream.handle

    def channel(self) -> Channel:
        """Return the channel of the communicator; the first call on it is collective."""
        return channel_of(self.comm, self.call, self.settings.timeout)

    def progress(self) -> Progress:
        """Return the queue of non-blocking calls of the communicator."""
        return progress_of(self.comm, self.call, self.settings.timeout)

    def job(
        self,
        pattern: Pattern,
        operation: Operation | None,
        x: Array | None,
        out: Array | None,
        count: int,
        names: Names = NAMES,
        after: Callable[[int], object] | None = None,
    ) -> Job:
        """Return a checked job."""
        job = Job(self.call, self.settings, pattern, operation, x, out, names, count, after=after)
        job.streams = streams_of(x, out, stream=self.stream_handle)
        return job.check(self.comm.rank, self.comm.size)


def allreduce(door: Door, x: Any, op: "str | MPI.Op", out: Any) -> tuple[Job, Result]:
    """Return the job of `hpccoll.allreduce`."""
    operation = operation_of(op)
    operand = operand_of(door, x)
    target, result = target_of(operand, out, operand.array.shape)
    return door.job(Pattern(), operation, operand.array, target, target.size), result


def reduce(door: Door, x: Any, op: "str | MPI.Op", root: int, out: Any) -> tuple[Job, Result]:
    """Return the job of `hpccoll.reduce`."""
    operation = operation_of(op)
    check_root(root, door.comm.size)
    operand = operand_of(door, x)
    source, pattern = operand.array, Pattern("reduce", int(root))
    if door.comm.rank != root:
        return door.job(pattern, operation, source, None, source.size), lambda: None
    target, result = target_of(operand, out, source.shape)
    return door.job(pattern, operation, source, target, target.size), result


def reduce_scatter(
    door: Door, x: Any, op: "str | MPI.Op", out: Any, counts: Sequence[int] | None
) -> tuple[Job, Result]:
    """Return the job of `hpccoll.reduce_scatter`."""
    operation = operation_of(op)
    operand = operand_of(door, x)
    source, size, rank = operand.array, door.comm.size, door.comm.rank
    if source.ndim == 0:
        message = "x has no dimensions; wanted an array to be split along its first"
        raise ValueError(message)
    length, *rest = source.shape
    rows = rows_of(counts, length, size)
    row = int(np.prod(rest, dtype=np.int64))
    if out is x:  # as in MPI, not as in NCCL: every rank's result goes to the start
        target, result = source[: rows[rank]], lambda: out[: rows[rank]]
    else:
        target, result = target_of(operand, out, (rows[rank], *rest))
    elements = tuple(count * row for count in rows)
    pattern = Pattern("reduce_scatter", counts=None if len(set(rows)) == 1 else elements)
    return door.job(pattern, operation, source, target, source.size), result


def allgather(
    door: Door, x: Any, out: Any, counts: Sequence[int] | None
) -> tuple[Job | Deferred, Result]:
    """Return the job of `hpccoll.allgather`."""
    operand = operand_of(door, x)
    source = operand.array.reshape(1) if operand.array.ndim == 0 else operand.array
    length, *rest = source.shape
    size, rank = door.comm.size, door.comm.rank
    results: list[Result] = []

    def make(rows: tuple[int, ...]) -> Job:
        if rows[rank] != length:
            message = f"x has {length} rows; wanted {rows[rank]}, as counts say of this rank"
            raise ValueError(message)
        target, result = target_of(operand, out, (sum(rows), *rest))
        results.append(result)
        row = int(np.prod(rest, dtype=np.int64))
        elements = tuple(count * row for count in rows)
        pattern = Pattern("allgather", counts=None if len(set(rows)) == 1 else elements)
        return door.job(pattern, None, source, target, target.size)

    def result() -> Any:
        return results[-1]()

    if counts is not None:
        return make(check_counts("counts", counts, size)), result
    # What can be told of `out` now is told now.
    given = None if out is None else target_of(operand, out, None)[0]
    kind = zlib.crc32(f"{source.dtype.newbyteorder('=')} {rest}".encode())

    def agree(channel: Channel) -> Job:
        told = gathered(channel, door.call, door.settings, [length, kind])
        others = np.flatnonzero(told[:, 1] != told[0, 1]).tolist()
        if others:
            message = (
                f"x has rows of shape {tuple(rest)} and type {source.dtype} here, and other ones "
                f"than rank 0's on rank {', '.join(map(str, others))}; wanted the same on all "
                "ranks but for the first dimension"
            )
            raise ValueError(message)
        return make(tuple(told[:, 0].tolist()))

    return Deferred(agree, streams_of(source, given, stream=door.stream_handle)), result


def broadcast(door: Door, x: Any, root: int, out: Any) -> tuple[Job, Result]:
    """Return the job of `hpccoll.broadcast`."""
    check_root(root, door.comm.size)
    operand = operand_of(door, x)
    source, pattern = operand.array, Pattern("broadcast", int(root))
    sending = door.comm.rank == root
    if out is not None:
        target, result = target_of(operand, out, source.shape)
    elif buffers.is_scalar(x):
        target, result = operand.new_result(None)
    else:
        target, result = source, lambda: x
    if not sending:
        names = ("x", "x" if out is None else "out")
        return door.job(pattern, None, None, target, target.size, names), result
    after, through = None, False
    if target is not source:
        check_output(target, "out")
        if not buffers.same_memory(target, source):
            after = copier((target, source))
            # NumPy sees to overlaps by itself.
            through = buffers.device_of(source) is not None and np.may_share_memory(target, source)
    if through:
        between = buffers.scratch_beside(source, source.size).reshape(source.shape)
        after = copier((between, source), (target, between))
    job = door.job(pattern, None, source, None, source.size, after=after)
    job.streams = streams_of(source, target, stream=door.stream_handle)
    job.waits = through
    return job, result


def barrier(door: Door) -> tuple[Job, Result]:
    """Return the job of `hpccoll.barrier`."""
    return door.job(Pattern("barrier"), None, None, NOTHING, 0), lambda: None


# -- what they have in common ----------------------------------------------------------------------


def operation_of(op: "str | MPI.Op") -> Operation:
    """Return the operation, or raise where there are no loops for it."""
    operation = find_operation(op)
    if operation is None:
        message = f"op {op!r} has no loops here; hpccoll.Comm hands it to the MPI library"
        raise ValueError(message)
    return operation


def operand_of(door: Door, x: Any) -> Operand:
    """Take what a rank brings."""
    if x is MPI.IN_PLACE:
        message = f"x is MPI.IN_PLACE; in place is {IN_PLACE.get(door.collective, 'out=x')}"
        raise TypeError(message)
    operand = buffers.of_array("x", x, door.stream_handle)
    _check_stream(door, operand.array)
    if not buffers.is_number(operand.array.dtype):
        message = f"x has dtype {operand.array.dtype}; wanted numbers or bool"
        raise TypeError(message)
    return operand


def _check_stream(door: Door, x: Array) -> None:
    """Raise where the user named a stream, and it is none for `x`."""
    if door.stream is None:
        return
    device = buffers.device_of(x)
    if device is None:
        message = "stream is given, and x lies in host memory; it is for arrays in GPU memory"
        raise TypeError(message)
    from hpccoll.cuda.streams import check_stream

    check_stream(door.stream, device)


def target_of(operand: Operand, out: Any, shape: tuple[int, ...] | None) -> tuple[Array, Result]:
    """Return where the result goes, and what gives it to the user.

    Parameters
    ----------
    operand : Operand
        What the rank brings; a new result is of its library.
    out : array or None
        What the user passed.
    shape : tuple of int or None
        Of the result; None where it is not known yet.
    """
    if out is None:
        whole = operand.array.shape if shape is None else shape
        return operand.new_result(None if whole == operand.array.shape else whole)
    if buffers.is_scalar(out):
        message = f"out is a scalar of type {type(out).__name__}; wanted an array"
        raise TypeError(message)
    x = operand.array
    if buffers.device_of(x) is None and buffers.is_on_device(out):  # said without the driver
        message = "x lies in host memory, out in that of a GPU; they must lie in the same memory"
        raise TypeError(message)
    target = buffers.of_array("out", out).array
    buffers.check_same_device(NAMES, x, target)
    if x.dtype.newbyteorder("=") != target.dtype.newbyteorder("="):
        message = f"out has dtype {target.dtype}, x has {x.dtype}; they must be the same"
        raise TypeError(message)
    if shape is not None and target.shape != shape:
        message = f"out has shape {target.shape}; wanted {shape}"
        if shape == x.shape:
            message = f"out has shape {target.shape}, x has {shape}; they must be the same"
        raise ValueError(message)
    return target, lambda: out


def rows_of(counts: Sequence[int] | None, length: int, size: int) -> tuple[int, ...]:
    """Return the rows of each rank: as asked for, or as `numpy.array_split` cuts them."""
    if counts is None:
        return tuple(chunk.count for chunk in chunks(length, size))
    rows = check_counts("counts", counts, size)
    if sum(rows) != length:
        message = f"counts is {list(rows)}, of together {sum(rows)}; x has {length} rows"
        raise ValueError(message)
    return rows
