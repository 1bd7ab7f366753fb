"""Calls by NCCL, NVIDIA's library of collectives, where the caller asks for ``algorithm="nccl"``.

It is reached through nccl4py or CuPy, whichever is installed, and no part of hpccoll. Each rank
needs a GPU of its own. NCCL has its own order of operands, and its own answer to NaN in "min" and
"max", so results may differ from those of hpccoll's algorithms in the last bits.

A call goes on the stream on which hpccoll's kernels would be, and the host does not wait for it:
ranks compare what they call before, but whether all have come to it, no time limit tells.
"""

import importlib
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from hpccoll._device import COMPUTE
from hpccoll.buffers import Array
from hpccoll.calls import Call
from hpccoll.cuda.outcomes import Exchange, Outcome
from hpccoll.selection import NCCL
from hpccoll.task import Task

if TYPE_CHECKING:
    from hpccoll.cuda.site import Site
    from hpccoll.jobs import Job

NEEDED = (
    'algorithm="nccl" needs NCCL by way of nccl4py or CuPy, and neither can be imported; '
    'install "nccl4py[cu13]", for example'
)

# Numbers of nccl.h, which are those of all releases.
TYPES = {
    **{"int8": 0, "uint8": 1, "int32": 2, "uint32": 3, "int64": 4, "uint64": 5},
    **{"float16": 6, "float32": 7, "float64": 8, "bfloat16": 9},
}
BYTES = TYPES["uint8"]
OPERATIONS = {"sum": 0, "prod": 1, "max": 2, "min": 3, "mean": 4}

UNIQUE_ID_BYTES = 128


class Communicator(Protocol):
    """What both libraries have. Addresses and handles are ints; types and operations numbers."""

    def all_reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        """As ncclAllReduce."""

    def reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, root: int, stream: int
    ) -> None:
        """As ncclReduce."""

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        """As ncclReduceScatter: `count` elements for each rank."""

    def all_gather(self, source: int, target: int, count: int, dtype: int, stream: int) -> None:
        """As ncclAllGather: `count` elements of each rank."""

    def broadcast(
        self, source: int, target: int, count: int, dtype: int, root: int, stream: int
    ) -> None:
        """As ncclBroadcast."""

    def destroy(self) -> None:
        """As ncclCommDestroy."""


class Library(Protocol):
    """A way to NCCL."""

    def unique_id(self) -> bytes:
        """Return what names a communicator that is to be made."""

    def connect(self, size: int, unique_id: bytes, rank: int) -> Communicator:
        """Make it, on the current device. Returns when all ranks have come."""


class _OfNccl4py:
    """By nccl4py: communicators by its public interface, and the functions as C has them."""

    def __init__(self) -> None:
        self._core = importlib.import_module("nccl.core")
        self._functions = importlib.import_module("nccl.bindings.nccl")

    def unique_id(self) -> bytes:
        return bytes(self._core.get_unique_id())

    def connect(self, size: int, unique_id: bytes, rank: int) -> "_Nccl4pyCommunicator":
        name = self._core.UniqueId.from_bytes(unique_id)
        made = self._core.Communicator.init(size, rank, name)
        return _Nccl4pyCommunicator(self._functions, made)


class _Nccl4pyCommunicator:
    def __init__(self, functions: Any, communicator: Any) -> None:
        self._functions, self._communicator = functions, communicator
        # Handles were plain numbers once.
        kind = getattr(functions, "Comm", int)
        self._handle = kind(communicator.ptr)

    def all_reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        self._functions.all_reduce(source, target, count, dtype, op, self._handle, stream)

    def reduce(
        self, source: int, target: int, count: int, dtype: int, op: int, root: int, stream: int
    ) -> None:
        self._functions.reduce(source, target, count, dtype, op, root, self._handle, stream)

    def reduce_scatter(
        self, source: int, target: int, count: int, dtype: int, op: int, stream: int
    ) -> None:
        self._functions.reduce_scatter(source, target, count, dtype, op, self._handle, stream)

    def all_gather(self, source: int, target: int, count: int, dtype: int, stream: int) -> None:
        self._functions.all_gather(source, target, count, dtype, self._handle, stream)

    def broadcast(
        self, source: int, target: int, count: int, dtype: int, root: int, stream: int
    ) -> None:
        self._functions.broadcast(source, target, count, dtype, root, self._handle, stream)

    def destroy(self) -> None:
        self._communicator.destroy()


class _OfCupy:
    """By CuPy, whose unique ids are tuples of 128 signed numbers."""

    def __init__(self) -> None:
        self._nccl = importlib.import_module("cupy.cuda.nccl")
        if not getattr(self._nccl, "available", True):
            raise ImportError("this CuPy was built without NCCL")

    def unique_id(self) -> bytes:
        return bytes(np.array(self._nccl.get_unique_id(), np.int64).astype(np.uint8))

    def connect(self, size: int, unique_id: bytes, rank: int) -> "_CupyCommunicator":
        name = tuple(np.frombuffer(unique_id, np.int8).tolist())
        return _CupyCommunicator(self._nccl.NcclCommunicator(size, name, rank))


class _CupyCommunicator:
    def __init__(self, communicator: Any) -> None:
        self.all_reduce = communicator.allReduce
        self.reduce = communicator.reduce
        self.reduce_scatter = communicator.reduceScatter
        self.all_gather = communicator.allGather
        self.broadcast = communicator.broadcast
        self.destroy = communicator.destroy


def find_library() -> Library:
    """Return the way to NCCL that is installed.

    Raises
    ------
    ImportError
        There is none.
    """
    try:
        return _OfNccl4py()
    except ImportError:
        pass
    try:
        return _OfCupy()
    except ImportError:
        raise ImportError(NEEDED, name="nccl") from None


class NcclCalls:
    """Runs calls of one site by NCCL; the communicator is made when there is none of all ranks yet.

    Parameters
    ----------
    site : Site
        The device, and the channel.
    """

    def __init__(self, site: "Site") -> None:
        self.site = site
        self._communicators: list[Communicator] = []  # the last one is in use
        self._made_in = 0

    def run(self, job: "Job", task: Task, source: Array | None, target: Array | None) -> Call:
        """Run a call; parameters as of `hpccoll.cuda.mapped.Mapped.run`.

        Raises
        ------
        TypeError
            NCCL does not have the operation, or the type.
        ValueError
            On all ranks: chunks are of different lengths, or ranks share a GPU.
        ImportError
            There is no NCCL here.
        """
        channel = self.site.channel
        outcome = Outcome()
        with Exchange(channel, job.call, job.settings) as exchange:
            with outcome:
                check(task, channel.size)
            head = [task.kind(), task.salt, task.nbytes]
            told = exchange([*head, outcome.code, self._made_in])
            if (told[:, :3] != told[0, :3]).any():
                exchange.known = True
                job.compare(channel, task)
            exchange.check(outcome, told[:, 3].tolist())
            # A rank that has gone on to another GPU, or back, does not have that of the others.
            if not self._made_in or (told[:, 4] != self._made_in).any():
                self._communicators.append(self._connect(exchange))
                self._made_in = channel.clock.number  # equal on all ranks
            if task.nbytes:
                self._submit(self._communicators[-1], job, task, source, target)
        return Call(
            collective=task.pattern.collective,
            path=NCCL,
            algorithm=NCCL,
            op=task.operation,
            dtype=task.reduction.dtype.name,
            count=task.count,
            nbytes=task.nbytes,
            size=channel.size,
            kernel=NCCL if task.pattern.reduces else "none",
            in_place=job.x is None,
            memory=f"{self.site.name}, {NCCL}",
        )

    def _connect(self, exchange: Exchange) -> Communicator:
        """Make the communicator. Collective."""
        channel, outcome = self.site.channel, Outcome()
        name, library = bytes(UNIQUE_ID_BYTES), None
        with outcome:
            library = find_library()
            if channel.rank == 0:
                name = library.unique_id()
        uuid = np.frombuffer(self.site.device.uuid, np.int64).tolist()
        told = exchange([outcome.code, *uuid, *np.frombuffer(name, np.int64).tolist()])
        exchange.check(outcome, told[:, 0].tolist())
        shared = len({tuple(row) for row in told[:, 1:3].tolist()}) < channel.size
        if shared:
            exchange.known = True
            message = (
                f'{exchange.call}: algorithm="nccl" wants a GPU for each rank, and two of '
                f"{channel.size} ranks have the same one"
            )
            raise ValueError(message)
        made: list[Communicator] = []
        with outcome:
            assert library is not None
            made.append(library.connect(channel.size, told[0, 3:].tobytes(), channel.rank))
        exchange.agree(outcome)
        return made[0]

    def _submit(
        self,
        communicator: Communicator,
        job: "Job",
        task: Task,
        source: Array | None,
        target: Array | None,
    ) -> None:
        """Put a call on the stream of kernels."""
        pattern, rank, size = task.pattern, self.site.channel.rank, self.site.channel.size
        stream = self.site.queue.streams[COMPUTE]
        read = 0 if source is None else source.ctypes.data
        written = 0 if target is None else target.ctypes.data
        dtype = TYPES.get(task.reduction.dtype.name, BYTES)
        op = OPERATIONS.get(task.operation, 0)
        if pattern.collective == "allreduce":
            communicator.all_reduce(read, written, task.count, dtype, op, stream)
        elif pattern.collective == "reduce":
            # Where nothing is wanted, NCCL looks at no target.
            target_address = written or read
            communicator.reduce(read, target_address, task.count, dtype, op, pattern.root, stream)
        elif pattern.collective == "reduce_scatter":
            communicator.reduce_scatter(read, written, task.count // size, dtype, op, stream)
        elif pattern.collective == "allgather":
            nbytes = task.nbytes // size
            if job.x is None:
                read = written + rank * nbytes
            communicator.all_gather(read, written, nbytes, BYTES, stream)
        else:
            # The root has what it wants.
            communicator.broadcast(
                read or written, written or read, task.nbytes, BYTES, pattern.root, stream
            )

    def close(self) -> None:
        """Give communicators back, when nothing is under way in them."""
        while self._communicators:
            # Each library has errors of its own for this, and the other ranks wait for this one.
            with suppress(Exception):
                self._communicators.pop().destroy()
        self._made_in = 0


def check(task: Task, size: int) -> None:
    """Raise where NCCL cannot do a task, which all ranks see alike."""
    pattern, dtype = task.pattern, task.reduction.dtype.name
    if pattern.reduces and (task.operation not in OPERATIONS or dtype not in TYPES):
        message = (
            f"NCCL has no op {task.operation!r} on {dtype}; it has {', '.join(OPERATIONS)} on "
            f"{', '.join(TYPES)}"
        )
        raise TypeError(message)
    if pattern.collective in ("reduce_scatter", "allgather"):
        counts = {chunk.count for chunk in pattern.chunks(size, task.count)}
        if len(counts) > 1:
            message = f"NCCL wants parts of one length; got {min(counts)} to {max(counts)} elements"
            raise ValueError(message)
