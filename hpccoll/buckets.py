"""Buckets: small arrays that are reduced in one call, and how they are packed and exchanged.

A bucket is of one type and in one memory (the host's, or a device's). A large array is its own, and
is reduced where it lies: to copy it would cost more than a call. Buckets are exchanged by
`hpccoll.progress` while the next ones are packed.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from hpccoll.arrays import Door
from hpccoll.buffers import Array
from hpccoll.calls import Caller
from hpccoll.channel import Channel
from hpccoll.jobs import Job, copier
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
    device : int or None
        The device that they lie on; None for host memory.
    """

    members: tuple[int, ...]
    starts: tuple[int, ...]
    count: int
    dtype: np.dtype[Any]
    device: int | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of all."""
        return self.count * self.dtype.itemsize


def deal(
    kinds: Sequence[tuple[int, np.dtype[Any]]],
    bucket_bytes: int,
    devices: Sequence[int | None] | None = None,
) -> list[Bucket]:
    """Deal arrays out to buckets, in order. Pure, so that all ranks do the same.

    Parameters
    ----------
    kinds : sequence of (int, numpy.dtype)
        Elements and type of each array.
    bucket_bytes : int
        A bucket is closed before it gets larger than this.
    devices : sequence of int or None, optional
        The device that each array lies on; None for host memory, where all lie by default. Devices
        may have other numbers on other ranks.

    Returns
    -------
    list of Bucket
        In the order in which their last member comes.
    """
    lying_on = [None] * len(kinds) if devices is None else devices
    finished: list[Bucket] = []
    open_ones: dict[tuple[np.dtype[Any], int | None], list[int]] = {}
    filled: dict[tuple[np.dtype[Any], int | None], int] = {}

    def close(members: list[int]) -> None:
        starts, count = [], 0
        for member in members:
            starts.append(count)
            count += kinds[member][0]
        first = members[0]
        finished.append(
            Bucket(tuple(members), tuple(starts), count, kinds[first][1], lying_on[first])
        )

    for number, (count, dtype) in enumerate(kinds):
        nbytes = count * dtype.itemsize
        if nbytes >= min(ALONE_BYTES, bucket_bytes):
            close([number])
            continue
        key = (dtype, lying_on[number])
        members = open_ones.setdefault(key, [])
        if members and filled[key] + nbytes > bucket_bytes:
            close(members)
            members.clear()
        filled[key] = nbytes + (filled[key] if members else 0)
        members.append(number)
    for members in open_ones.values():
        close(members)
    return sorted(finished, key=lambda bucket: bucket.members[-1])


def check_bucket_bytes(bucket_bytes: object) -> None:
    """Raise TypeError or ValueError where the argument of that name is no positive int."""
    if isinstance(bucket_bytes, bool) or not isinstance(bucket_bytes, int):
        message = (
            f"bucket_bytes is {bucket_bytes!r} of type {type(bucket_bytes).__name__}; "
            "wanted a positive int"
        )
        raise TypeError(message)
    if bucket_bytes <= 0:
        message = f"bucket_bytes is {bucket_bytes}; wanted a positive int"
        raise ValueError(message)


class BucketExchange:
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
        if bucket.device is not None:
            return room_on_device(bucket, self._door.channel(), f"bucket {self._leased[slot]}")
        if self._rooms[slot].nbytes < nbytes:
            channel = self._door.channel()
            self._rooms[slot] = channel.scratch(f"bucket {self._leased[slot]}", nbytes)
        return self._rooms[slot][:nbytes].view(bucket.dtype)

    def _finish_first(self) -> None:
        ticket, bucket, room, jobs = self._started.popleft()
        self._progress.complete(ticket)
        if bucket is not None and room is not None:
            unpack(bucket, jobs, room)


def room_on_device(bucket: Bucket, channel: Channel, purpose: str) -> Array:
    """Return device memory for a bucket; `purpose` names it."""
    from hpccoll.cuda.resources import resources_of

    assert bucket.device is not None
    room: Array = resources_of(channel, bucket.device).room(purpose, bucket.nbytes)
    return room.view(bucket.dtype)


def pack(bucket: Bucket, jobs: list[Job], room: Array) -> Job:
    """Copy what the members of a bucket bring to their places in it; return the job for all.

    On a device that job does the copies, in the order of the streams, also those of the results.
    """
    parts = [
        room[start : start + job.count].reshape(job.source.shape)
        for job, start in zip(jobs, bucket.starts, strict=True)
    ]
    packing = copier(*((part, job.source) for part, job in zip(parts, jobs, strict=True)))
    whole = replace(jobs[0], x=None, out=room, count=room.size)
    if bucket.device is None:
        packing(0)
        return whole
    whole.before, whole.after = packing, copier(*_results(bucket, jobs, room))
    streams = [job.streams for job in jobs if job.streams is not None]
    whole.streams = streams[0].joined(streams[1:])
    return whole


def unpack(bucket: Bucket, jobs: list[Job], room: Array) -> None:
    """Copy the results of the members out of a bucket in host memory."""
    if bucket.device is None:
        copier(*_results(bucket, jobs, room))(0)


def _results(bucket: Bucket, jobs: list[Job], room: Array) -> Iterator[tuple[Array, Array]]:
    for job, start in zip(jobs, bucket.starts, strict=True):
        assert job.out is not None
        yield job.out, room[start : start + job.count].reshape(job.out.shape)


def exchange_now(channel: Channel, bucket: Bucket, jobs: list[Job]) -> None:
    """Reduce a bucket in this thread; `jobs` are those of its members."""
    if len(jobs) == 1:
        jobs[0].run(channel)
        return
    if bucket.device is not None:
        with channel.turn:  # to the end of all work on the device: the room is used again
            job = pack(bucket, jobs, room_on_device(bucket, channel, "bucket"))
            job.run(channel, job.record())
        return
    with channel.turn:
        room = channel.scratch("bucket", bucket.nbytes)[: bucket.nbytes].view(bucket.dtype)
        pack(bucket, jobs, room).run(channel)
        unpack(bucket, jobs, room)
