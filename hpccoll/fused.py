"""`allreduce_many`: a list of arrays in few calls, in buckets."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from mpi4py import MPI

from hpccoll.arrays import Door, operand_of, operation_of, target_of
from hpccoll.buckets import BUCKET_BYTES, BucketExchange, check_bucket_bytes, deal, exchange_now
from hpccoll.buffers import byte_bounds, device_of, scratch_beside
from hpccoll.calls import Caller
from hpccoll.jobs import Job, copier
from hpccoll.pattern import Pattern


def allreduce_many(
    arrays: Sequence[Any],
    op: "str | MPI.Op" = "sum",
    *,
    out: Sequence[Any] | None = None,
    comm: MPI.Intracomm | None = None,
    algorithm: str | None = None,
    segment_bytes: int | None = None,
    timeout: float | None = None,
    check: bool | None = None,
    bucket_bytes: int = BUCKET_BYTES,
    stream: Any = None,
) -> list[Any]:
    """All-reduce a list of arrays, of any shapes and types, in few calls.

    Collective: all ranks call it with as many arrays, of the same shapes and types in the same
    order, and the same settings.

    Parameters
    ----------
    arrays : sequence of arrays
        Each as the `x` of `allreduce`; some may lie in host memory, and others in that of a device.
    op : str or mpi4py.MPI.Op, default "sum"
        As of `allreduce`, for all arrays.
    out : sequence of arrays, optional
        Receive the results; ``out=arrays`` is in place. By default new ones.
    comm, algorithm, segment_bytes, timeout, check
        As of `allreduce`.
    bucket_bytes : int, default 25000000
        Small arrays of one type are packed into buckets of at most this size.
    stream : int or stream, optional
        As of `allreduce`, where all arrays lie on one device.

    Returns
    -------
    list
        `out`, or new arrays, in the order of `arrays`.

    Raises
    ------
    TypeError, ValueError, BufferError
        As from `allreduce`; the text says which array. Raised before anything is sent.

    Examples
    --------
    >>> import numpy as np, hpccoll
    >>> a, b = hpccoll.allreduce_many([np.ones(2), np.arange(3)], op="max")
    >>> a.tolist(), b.tolist()
    ([1.0, 1.0], [0, 1, 2])
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("allreduce_many", comm):
        door = Door.of(
            "allreduce_many", "allreduce", comm, algorithm, segment_bytes, timeout, check, stream
        )
        operation = operation_of(op)
        check_bucket_bytes(bucket_bytes)
        if out is not None and len(out) != len(arrays):
            message = f"out has {len(out)} arrays, arrays has {len(arrays)}; they must be as many"
            raise ValueError(message)
        jobs: list[Job] = []
        results: list[Callable[[], Any]] = []
        for number, array in enumerate(arrays):
            with _Naming(number):
                operand = operand_of(door, array)
                source = target = operand.array
                result: Callable[[], Any] = partial(_itself, array)
                if out is None or out[number] is not array:
                    given = None if out is None else out[number]
                    target, result = target_of(operand, given, source.shape)
                jobs.append(door.job(Pattern(), operation, source, target, target.size))
            results.append(result)
        if any(job.x is not None for job in jobs):
            _keep_from_others(jobs)
        devices = [device_of(job.source) for job in jobs]
        dealt = deal([(job.count, job.dtype) for job in jobs], bucket_bytes, devices)
        parcels = [(bucket, [jobs[k] for k in bucket.members]) for bucket in dealt]
        channel = door.channel()
        if channel.spare_cores:
            exchange = BucketExchange(door, door.progress())
            try:
                for parcel in parcels:
                    exchange.start(*parcel)
                exchange.finish()
            finally:
                exchange.abandon()
        else:
            # On a core that both share, thread and rank would only take turns.
            for parcel in parcels:
                exchange_now(channel, *parcel)
    return [result() for result in results]


def _itself(array: Any) -> Any:
    return array


def _keep_from_others(jobs: list[Job]) -> None:
    """Copy what is brought in memory in which the result of another job may be stored."""
    for number in _overwritten(jobs):
        job = jobs[number]
        kept = scratch_beside(job.source, job.source.size).reshape(job.source.shape)
        copy = copier((kept, job.source))
        if job.streams is None:
            copy(0)
        else:
            with job.streams.now().joined() as moment:
                copy(moment.stream)
        job.x, job.waits = kept, True


def _overwritten(jobs: list[Job]) -> set[int]:
    """Return the numbers of jobs in whose memory the result of another one may be stored."""
    extents = sorted(
        (*byte_bounds(array), is_target, number)
        for number, job in enumerate(jobs)
        for is_target, array in enumerate((job.source, job.out))
        if array is not None and array.size
    )
    found: set[int] = set()
    reaching: list[tuple[int, int, int, int]] = []
    for extent in extents:
        reaching = [earlier for earlier in reaching if earlier[1] > extent[0]]
        for other in reaching:
            if other[2] != extent[2] and other[3] != extent[3]:
                found.add((extent if other[2] else other)[3])
        reaching.append(extent)
    return found


class _Naming:
    """Says which array of a list an error is about."""

    def __init__(self, number: int) -> None:
        self._number = number

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Complete the text."""
        if isinstance(error, (TypeError, ValueError, BufferError)) and error.args:
            error.args = (f"array {self._number}: {error.args[0]}",)
