"""Many arrays in few calls: `allreduce_many`, and `Bucketer` for those that come one by one.

Small arrays are packed into buckets, one type each. A large one is its own, and is reduced where
it lies: to copy it would cost more than a call. Buckets are exchanged by `hpccoll.progress` while
the next ones are packed.
"""

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from mpi4py import MPI

from hpccoll.arrays import Door, barrier, operand_of, operation_of, target_of
from hpccoll.buffers import Array, is_scalar
from hpccoll.calls import Caller
from hpccoll.channel import Channel
from hpccoll.jobs import Job, check_output
from hpccoll.ops import check_type
from hpccoll.pattern import Pattern
from hpccoll.placement import raise_first
from hpccoll.progress import Progress, Ticket

BUCKET_BYTES = 25_000_000
"""Default size of a bucket, that of PyTorch's DistributedDataParallel."""

ALONE_BYTES = 128 << 10
"""An array from this size on is not packed. From bench/fused.py."""


@dataclass(frozen=True, slots=True)
class Bucket:
    """Arrays that are reduced in one call.

    Attributes
    ----------
    members : tuple of int
        Which ones, by their place in the list.
    starts : tuple of int
        The element of the bucket at which each begins.
    count : int
        Elements of all.
    dtype : numpy.dtype
        Their type, in native byte order.
    """

    members: tuple[int, ...]
    starts: tuple[int, ...]
    count: int
    dtype: np.dtype[Any]

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.count * self.dtype.itemsize


def buckets(kinds: Sequence[tuple[int, np.dtype[Any]]], bucket_bytes: int) -> list[Bucket]:
    """Deal arrays out to buckets, in order. Pure, so that all ranks do the same.

    Parameters
    ----------
    kinds : sequence of (int, numpy.dtype)
        Elements and type of each array.
    bucket_bytes : int
        A bucket is closed before it gets larger than this.

    Returns
    -------
    list of Bucket
        In the order in which their last member comes.
    """
    finished: list[Bucket] = []
    open_ones: dict[np.dtype[Any], list[int]] = {}
    filled: dict[np.dtype[Any], int] = {}

    def close(members: list[int]) -> None:
        starts, count = [], 0
        for member in members:
            starts.append(count)
            count += kinds[member][0]
        finished.append(Bucket(tuple(members), tuple(starts), count, kinds[members[0]][1]))

    for number, (count, dtype) in enumerate(kinds):
        nbytes = count * dtype.itemsize
        if nbytes >= min(ALONE_BYTES, bucket_bytes):
            close([number])
            continue
        members = open_ones.setdefault(dtype, [])
        if members and filled[dtype] + nbytes > bucket_bytes:
            close(members)
            members.clear()
        filled[dtype] = nbytes + (filled[dtype] if members else 0)
        members.append(number)
    for members in open_ones.values():
        close(members)
    return sorted(finished, key=lambda bucket: bucket.members[-1])


class Exchange:
    """Reduces buckets of arrays, two packed ones under way at a time.

    Parameters
    ----------
    door : Door
        Where.
    progress : Progress
        Runs the calls.
    """

    UNDER_WAY = 2

    def __init__(self, door: Door, progress: Progress) -> None:
        self._door = door
        self._progress = progress
        self._packed = 0
        self._leased: list[int] = []
        self._started: deque[tuple[Ticket, Bucket | None, Array | None, list[Job]]] = deque()
        self._rooms: list[Array] = [np.empty(0, np.uint8)] * self.UNDER_WAY

    def start(self, bucket: Bucket, jobs: list[Job]) -> None:
        """Begin to reduce a bucket; `jobs` are those of its members."""
        if len(jobs) == 1:
            self._started.append((self._enqueue(jobs[0]), None, None, jobs))
            return
        while sum(1 for entry in self._started if entry[1] is not None) >= self.UNDER_WAY:
            self._finish_first()
        room = self._room(bucket)
        job = pack(bucket, jobs, room)
        self._started.append((self._enqueue(job), bucket, room, jobs))

    def finish(self) -> None:
        """Return when all that was started is where it belongs; raise the first error."""
        try:
            while self._started:
                self._finish_first()
        finally:
            self.abandon()

    def abandon(self) -> None:
        """Return when nothing that was started is under way, and give the memory back."""
        while self._started:
            with suppress(Exception):
                self._progress.complete(self._started.popleft()[0])
        while self._leased:
            self._progress.give_back(self._leased.pop())
        self._rooms = [np.empty(0, np.uint8)] * self.UNDER_WAY
        self._packed = 0

    def _enqueue(self, job: Job) -> Ticket:
        caller = Caller(self._door.call, self._door.comm)
        return self._progress.enqueue(Ticket(caller, self._progress.run_job(job)))

    def _room(self, bucket: Bucket) -> Array:
        """Return memory for a bucket, such as the node shares if it can be."""
        nbytes = bucket.nbytes
        slot = self._packed % self.UNDER_WAY
        self._packed += 1
        if slot == len(self._leased):
            self._leased.append(self._progress.lease())
        if self._rooms[slot].nbytes < nbytes:
            channel = self._door.channel()
            self._rooms[slot] = channel.scratch(f"bucket {self._leased[slot]}", nbytes)
        return self._rooms[slot][:nbytes].view(bucket.dtype)

    def _finish_first(self) -> None:
        ticket, bucket, room, jobs = self._started.popleft()
        self._progress.complete(ticket)
        if bucket is not None and room is not None:
            unpack(bucket, jobs, room)


def pack(bucket: Bucket, jobs: list[Job], room: Array) -> Job:
    """Copy what the members of a bucket bring to their places in it; return the job for all."""
    for job, start in zip(jobs, bucket.starts, strict=True):
        room[start : start + job.count].reshape(job.source.shape)[...] = job.source
    return replace(jobs[0], x=None, out=room, count=room.size)


def unpack(bucket: Bucket, jobs: list[Job], room: Array) -> None:
    """Copy the results of the members out of a bucket."""
    for job, start in zip(jobs, bucket.starts, strict=True):
        assert job.out is not None
        job.out[...] = room[start : start + job.count].reshape(job.out.shape)


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
) -> list[Any]:
    """All-reduce a list of arrays, of any shapes and types, in few calls.

    Collective: all ranks call it with as many arrays, of the same shapes and types in the same
    order, and the same settings.

    Parameters
    ----------
    arrays : sequence of arrays
        Each as the `x` of `allreduce`.
    op : str or mpi4py.MPI.Op, default "sum"
        As of `allreduce`, for all arrays.
    out : sequence of arrays, optional
        Receive the results; ``out=arrays`` is in place. By default new ones.
    comm, algorithm, segment_bytes, timeout, check
        As of `allreduce`.
    bucket_bytes : int, default 25000000
        Small arrays of one type are packed into buckets of at most this size.

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
            "allreduce_many", "allreduce", comm, algorithm, segment_bytes, timeout, check
        )
        operation = operation_of(op)
        _check_bucket_bytes(bucket_bytes)
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
        dealt = buckets([(job.count, job.dtype) for job in jobs], bucket_bytes)
        parcels = [(bucket, [jobs[k] for k in bucket.members]) for bucket in dealt]
        channel = door.channel()
        if channel.spare_cores:
            exchange = Exchange(door, door.progress())
            try:
                for parcel in parcels:
                    exchange.start(*parcel)
                exchange.finish()
            finally:
                exchange.abandon()
        else:
            # On a core that both share, thread and rank would only take turns.
            for parcel in parcels:
                _exchange_now(channel, *parcel)
    return [result() for result in results]


def _itself(array: Any) -> Any:
    return array


def _exchange_now(channel: Channel, bucket: Bucket, jobs: list[Job]) -> None:
    """Reduce a bucket; `jobs` are those of its members."""
    if len(jobs) == 1:
        jobs[0].run(channel)
        return
    with channel.turn:
        room = channel.scratch("bucket", bucket.nbytes)[: bucket.nbytes].view(bucket.dtype)
        pack(bucket, jobs, room).run(channel)
        unpack(bucket, jobs, room)


class Bucketer:
    """All-reduces arrays in place as they become ready, such as gradients of a backward pass.

    In each step every array is declared `ready` once, and `wait` ends the step. In the first step
    ranks agree on the order, which is that of rank 0, and nothing is overlapped. From the second on
    a bucket is exchanged as soon as all its arrays are ready, in the same order on all ranks
    whatever the order in which they come.

    Parameters
    ----------
    op : str or mpi4py.MPI.Op, default "mean"
        As of `allreduce`.
    comm, algorithm, segment_bytes, timeout, check
        As of `allreduce`.
    bucket_bytes : int, default 25000000
        As of `allreduce_many`.

    Examples
    --------
    >>> import numpy as np, hpccoll
    >>> weights, bias = np.ones(1000), np.ones(10)
    >>> bucketer = hpccoll.Bucketer(op="mean")
    >>> for step in range(3):
    ...     bucketer.ready("bias", bias)
    ...     bucketer.ready("weights", weights)
    ...     bucketer.wait()
    """

    def __init__(
        self,
        op: "str | MPI.Op" = "mean",
        *,
        comm: MPI.Intracomm | None = None,
        algorithm: str | None = None,
        segment_bytes: int | None = None,
        timeout: float | None = None,
        check: bool | None = None,
        bucket_bytes: int = BUCKET_BYTES,
    ) -> None:
        self._comm = MPI.COMM_WORLD if comm is None else comm
        with Caller("Bucketer", self._comm):
            self._door = Door.of(
                "Bucketer", "allreduce", self._comm, algorithm, segment_bytes, timeout, check
            )
            self._operation = operation_of(op)
            _check_bucket_bytes(bucket_bytes)
        self._bucket_bytes = bucket_bytes
        self._exchange: Exchange | None = None
        self._ready: dict[str, Array] = {}
        self._kinds: dict[str, tuple[tuple[int, ...], np.dtype[Any]]] = {}
        """By name, in the order that was agreed on; empty in the first step."""
        self._buckets: list[Bucket] = []
        self._next = 0

    @property
    def names(self) -> tuple[str, ...]:
        """The names in the order in which they are exchanged; empty before the first `wait`."""
        return tuple(self._kinds)

    def ready(self, name: str, array: Any) -> None:
        """Declare an array ready. Begins the exchange of the buckets that this makes complete.

        Local, but for the time that it takes to pack.

        Parameters
        ----------
        name : str
            What it is called on all ranks.
        array : array
            Is overwritten until `wait` returns; of the same shape and type in all steps.

        Raises
        ------
        ValueError
            The name is unknown, was declared ready in this step already, or has another shape than
            before.
        TypeError, BufferError
            The array cannot be reduced in place.
        """
        with Caller("Bucketer.ready", self._comm):
            if is_scalar(array):
                message = f"{name!r} is a scalar of type {type(array).__name__}; wanted an array"
                raise TypeError(message)
            x = operand_of(self._door, array).array
            check_type(self._operation, x.dtype.newbyteorder("="))
            check_output(x, repr(name))
            if name in self._ready:
                message = f"{name!r} was declared ready in this step; wait() ends it"
                raise ValueError(message)
            kind = (x.shape, x.dtype.newbyteorder("="))
            if self._kinds:
                known = self._kinds.get(name)
                if known is None:
                    names = ", ".join(map(repr, self._kinds))
                    message = f"unknown name {name!r}; in the first step there were {names}"
                    raise ValueError(message)
                if known != kind:
                    message = (
                        f"{name!r} has shape {x.shape} and type {x.dtype}; in the first step it "
                        f"had {known[0]} and {known[1]}"
                    )
                    raise ValueError(message)
            self._ready[name] = x
            if self._kinds:
                self._start_complete()

    def wait(self) -> None:
        """Return when all arrays of the step are reduced. Collective.

        Raises
        ------
        ValueError
            Arrays of the first step have not been declared ready in this one: they still can be.
            On all ranks after the first step, where ranks declared different arrays.
        """
        with Caller("Bucketer.wait", self._comm):
            if not self._kinds:
                self._agree()
            missing = [name for name in self._kinds if name not in self._ready]
            if missing:
                message = f"not ready in this step: {', '.join(map(repr, missing))}"
                raise ValueError(message)
            try:
                self._start_complete()
                if self._exchange is not None:
                    self._exchange.finish()
            finally:
                self._ready.clear()
                self._next = 0

    def _agree(self) -> None:
        """Take the order of rank 0. Collective."""
        mine = {name: (x.shape, x.dtype.newbyteorder("=").str) for name, x in self._ready.items()}
        channel = self._door.channel()
        barrier(self._door)[0].run(channel)  # it has a time limit, and names who is missing
        with channel.turn:
            told = channel.transport.comm.allgather(mine)
        declared, self._ready = self._ready, {}  # where ranks disagree, the step begins anew
        raise_first(
            f"rank {rank} declared {_difference(told[0], other)}, which rank 0 did not"
            for rank, other in enumerate(told)
            if other != told[0]
        )
        self._ready = declared
        kinds = {name: (x.shape, x.dtype.newbyteorder("=")) for name, x in self._ready.items()}
        self._kinds = {name: kinds[name] for name in told[0]}
        sizes = [(math.prod(shape), dtype) for shape, dtype in self._kinds.values()]
        self._buckets = buckets(sizes, self._bucket_bytes)
        self._exchange = Exchange(self._door, self._door.progress())

    def _start_complete(self) -> None:
        """Begin the exchange of the next buckets, as far as they are complete."""
        for bucket in self._complete():
            arrays = [self._ready[self.names[member]] for member in bucket.members]
            jobs = [self._door.job(Pattern(), self._operation, None, x, x.size) for x in arrays]
            assert self._exchange is not None
            self._exchange.start(bucket, jobs)

    def _complete(self) -> Iterator[Bucket]:
        names = self.names
        while self._next < len(self._buckets):
            bucket = self._buckets[self._next]
            if any(names[member] not in self._ready for member in bucket.members):
                return
            self._next += 1
            yield bucket


def _keep_from_others(jobs: list[Job]) -> None:
    """Copy what is brought in memory in which the result of another job may be stored."""
    for number in _overwritten(jobs):
        jobs[number].x = jobs[number].source.copy()


def _overwritten(jobs: list[Job]) -> set[int]:
    """Return the numbers of jobs in whose memory the result of another one may be stored."""
    places = sorted(
        (*_byte_bounds(array), is_target, number)
        for number, job in enumerate(jobs)
        for is_target, array in enumerate((job.source, job.out))
        if array is not None and array.size
    )
    found: set[int] = set()
    reaching: list[tuple[int, int, int, int]] = []
    for place in places:
        reaching = [earlier for earlier in reaching if earlier[1] > place[0]]
        for other in reaching:
            if other[2] != place[2] and other[3] != place[3]:
                found.add((place if other[2] else other)[3])
        reaching.append(place)
    return found


def _byte_bounds(array: Array) -> tuple[int, int]:
    """Return the addresses between which the elements of an array lie."""
    reach = [(n - 1) * stride for n, stride in zip(array.shape, array.strides, strict=True)]
    start = array.ctypes.data
    first = start + sum(step for step in reach if step < 0)
    return first, start + sum(step for step in reach if step > 0) + array.itemsize


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


def _difference(first: dict[str, Any], other: dict[str, Any]) -> str:
    """Return what is in `other` and not in `first`, for people."""
    parts = [
        f"{name!r} of shape {other[name][0]} and type {other[name][1]}"
        for name in other
        if first.get(name) != other[name]
    ]
    missing = [repr(name) for name in first if name not in other]
    return ", ".join(parts) or f"no {', '.join(missing)}"


def _check_bucket_bytes(bucket_bytes: object) -> None:
    if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int):
        message = (
            f"bucket_bytes is {bucket_bytes!r} of type {type(bucket_bytes).__name__}; "
            "wanted a positive int"
        )
        raise TypeError(message)
    if bucket_bytes <= 0:
        message = f"bucket_bytes is {bucket_bytes}; wanted a positive int"
        raise ValueError(message)
