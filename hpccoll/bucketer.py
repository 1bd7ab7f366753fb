"""`Bucketer`: an all-reduce of arrays that become ready one by one, in buckets."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np
from mpi4py import MPI

from hpccoll.arrays import Door, barrier, operand_of, operation_of
from hpccoll.buckets import BUCKET_BYTES, Bucket, BucketExchange, check_bucket_bytes, deal
from hpccoll.buffers import Array, device_of, is_scalar
from hpccoll.calls import Caller
from hpccoll.checks import check_device_loops, check_output
from hpccoll.jobs import streams_of
from hpccoll.ops import check_type
from hpccoll.pattern import Pattern
from hpccoll.placement import raise_first

if TYPE_CHECKING:
    from hpccoll.cuda.streams import CallerStreams

Kind = tuple[tuple[int, ...], np.dtype[Any], int | None]
"""Shape and type of an array, and the device that it lies on; None for host memory."""


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
        As of `allreduce`. Of arrays in GPU memory the streams count that are current when they are
        declared ready.
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
            check_bucket_bytes(bucket_bytes)
        self._bucket_bytes = bucket_bytes
        self._exchange: BucketExchange | None = None
        self._ready: dict[str, Array] = {}
        self._streams: dict[str, CallerStreams | None] = {}
        self._kinds: dict[str, Kind] = {}
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
            if device_of(x) is not None:
                check_device_loops(self._operation, x.dtype.newbyteorder("="), self._comm.size)
            check_output(x, repr(name))
            if name in self._ready:
                message = f"{name!r} was declared ready in this step; wait() ends it"
                raise ValueError(message)
            kind = _kind(x)
            if self._kinds:
                known = self._kinds.get(name)
                if known is None:
                    names = ", ".join(map(repr, self._kinds))
                    message = f"unknown name {name!r}; in the first step there were {names}"
                    raise ValueError(message)
                if known != kind:
                    message = (
                        f"{name!r} has {_shown(kind)}; in the first step it had {_shown(known)}"
                    )
                    raise ValueError(message)
            self._ready[name] = x
            streams = streams_of(x)
            self._streams[name] = None if streams is None else streams.fixed()
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
                self._streams.clear()
                self._next = 0

    def _agree(self) -> None:
        """Take the order of rank 0. Collective."""
        mine = {
            name: (shape, dtype.str, "" if device is None else " in GPU memory")
            for name, (shape, dtype, device) in ((n, _kind(x)) for n, x in self._ready.items())
        }
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
        self._kinds = {name: _kind(self._ready[name]) for name in told[0]}
        sizes = [(math.prod(shape), dtype) for shape, dtype, _ in self._kinds.values()]
        devices = [device for _, _, device in self._kinds.values()]
        self._buckets = deal(sizes, self._bucket_bytes, devices)
        self._exchange = BucketExchange(self._door, self._door.progress())

    def _start_complete(self) -> None:
        """Begin the exchange of the next buckets, as far as they are complete."""
        for bucket in self._complete():
            jobs = []
            for name in (self.names[member] for member in bucket.members):
                x = self._ready[name]
                job = self._door.job(Pattern(), self._operation, None, x, x.size)
                job.streams = self._streams[name]
                jobs.append(job)
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


def _kind(x: Array) -> Kind:
    return x.shape, x.dtype.newbyteorder("="), device_of(x)


def _shown(kind: Kind) -> str:
    shape, dtype, device = kind
    where = "" if device is None else f" on CUDA device {device}"
    return f"shape {shape} and type {dtype}{where}"


def _difference(first: dict[str, Any], other: dict[str, Any]) -> str:
    """Return what is in `other` and not in `first`, for people."""
    parts = [
        f"{name!r} of shape {other[name][0]} and type {other[name][1]}{other[name][2]}"
        for name in other
        if first.get(name) != other[name]
    ]
    missing = [repr(name) for name in first if name not in other]
    return ", ".join(parts) or f"no {', '.join(missing)}"
