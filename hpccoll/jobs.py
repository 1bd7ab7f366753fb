"""`Job`: one collective call of this rank, understood and checked, and ready to run on a channel.

The doors (`hpccoll.specs` for mpi4py's signatures, `hpccoll.collectives` for the functions) make
jobs; blocking calls run them at once, others hand them to `hpccoll.progress`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np

from hpccoll import _comm, buffers, selection
from hpccoll._plans import Plan
from hpccoll.buffers import Array
from hpccoll.channel import Channel
from hpccoll.engine import Task
from hpccoll.ops import Operation, check_type
from hpccoll.pattern import NO_OPERATION, Pattern
from hpccoll.selection import Settings

NOTHING: Array = np.empty(0, np.uint8)
"""What a barrier moves."""
_comm.NOTHING = NOTHING


@dataclass(slots=True)
class Job:
    """One collective call of this rank.

    Attributes
    ----------
    call : str
        For messages: the call that the user made.
    settings : Settings
        How; equal on all ranks.
    pattern : Pattern
        Which collective; equal on all ranks.
    operation : Operation or None
        What combines elements; None where they only move.
    x : numpy.ndarray or None
        What this rank brings, of any layout; None where it brings nothing, or it stands in `out`.
    out : numpy.ndarray or None
        Where the result goes, of any layout; None where it wants nothing. The same memory as `x`,
        overlapping, or apart.
    names : tuple of str
        What the user calls `x` and `out`.
    count : int
        Elements of the whole vector.
    before, after : callable, optional
        Called before each run, and after it.
    """

    call: str
    settings: Settings
    pattern: Pattern
    operation: Operation | None
    x: Array | None
    out: Array | None
    names: tuple[str, str]
    count: int
    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None

    def check(self, rank: int, size: int) -> "Job":
        """Raise where the call cannot be made, before any message leaves; return the job."""
        x, out = self.x, self.out
        source, target = self.names
        if x is not None and out is not None:
            if x.dtype.newbyteorder("=") != out.dtype.newbyteorder("="):
                message = (
                    f"{target} has dtype {out.dtype}, {source} has {x.dtype}; they must be the same"
                )
                raise TypeError(message)
            if x.size == out.size and self.pattern.collective in ("allreduce", "reduce"):
                # Identity first: to compare addresses takes NumPy a while.
                self.x = None if x is out else x.reshape(out.shape)
                if self.x is not None and buffers.same_memory(self.x, out):
                    self.x = None
            elif (
                self.pattern.collective == "allgather"
                and x.flags.c_contiguous
                and out.flags.c_contiguous
                and out.size == self.count
            ):
                own = out.reshape(-1)[slice(*self.pattern.brings(rank, size, self.count))]
                if buffers.same_memory(x.reshape(-1), own):
                    self.x = None
        if self.operation is not None:
            check_type(self.operation, self.dtype)
        for array, name, wanted in (
            (self.x, source, self.pattern.brings(rank, size, self.count).count),
            (out, target, self.pattern.wants(rank, size, self.count).count),
        ):
            if array is not None and array.size != wanted:
                message = f"{name} has {array.size} elements; wanted {wanted}"
                raise ValueError(message)
        if out is not None:
            check_output(out, target)
        return self

    @property
    def source(self) -> Array:
        """What this rank brings: `x`, or `out` in place; where it brings nothing, `out`."""
        array = self.out if self.x is None else self.x
        assert array is not None
        return array

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of the elements, in native byte order."""
        return self.source.dtype.newbyteorder("=")

    def run(self, channel: Channel) -> Plan:
        """Run, and return the plan that did it."""
        if self.before is not None:
            self.before()
        name = None if self.operation is None else self.operation.name
        plan = None
        if self.headers_tell or not channel.is_checked(self.settings):
            plans = channel.plans(self.settings, self.pattern)
            plan = plans.repeat(self.x, self.out, name, channel.limit(self.settings))
        if plan is None:
            plan = self._run(channel)
        if self.after is not None:
            self.after()
        return plan

    @property
    def is_plain(self) -> bool:
        """Whether a plan can work on the arrays themselves, each time without further ado."""
        arrays = [array for array in (self.x, self.out) if array is not None]
        return (
            self.before is None
            and self.after is None
            and all(buffers.is_plain(array) for array in arrays)
            and not (len(arrays) == 2 and np.may_share_memory(arrays[0], arrays[1]))
        )

    def prepare(self, channel: Channel) -> tuple[Plan, int, int]:
        """Return a plan of this job's own, and the addresses to run it on; of a plain job."""
        task = self.task(channel)
        target = 0 if self.out is None else self.out.ctypes.data
        source = target if self.x is None else self.x.ctypes.data
        with channel.turn:
            channel.settle(channel.limit(self.settings))
            plan = channel.make_plan(task, source, target)
        return plan, source + (plan.own_offset if self.x is None else 0), target

    @property
    def headers_tell(self) -> bool:
        """Whether all that must be equal on all ranks stands in the headers of a node's memory."""
        return self.pattern.counts is None and self.settings.segment_bytes is None

    def compare_first(self, channel: Channel) -> None:
        """Compare, if this is asked for, what is to be prepared. Collective."""
        if channel.is_checked(self.settings):
            self.compare(channel, self.task(channel))

    def compare(self, channel: Channel, task: Task) -> None:
        """Raise on all ranks where they call different things. Collective."""
        name = selection.requested(self.settings, channel.environment, self.pattern.collective)
        channel.compare(self.settings, self.call, task.full_text(name))

    def _run(self, channel: Channel) -> Plan:
        task = self.task(channel)
        if channel.is_checked(self.settings) and not (task.algorithm is None and self.headers_tell):
            self.compare(channel, task)
        with channel.turn:
            source, target = self._arrange(channel)
            plan = channel.run(
                self.settings,
                task,
                0 if source is None else source.ctypes.data,
                0 if target is None else target.ctypes.data,
                in_place=self.x is None,
            )
            if target is not self.out:
                assert target is not None
                assert self.out is not None
                self.out[...] = target.reshape(self.out.shape)
        return plan

    def task(self, channel: Channel) -> Task:
        """Return what is to be done, as far as it is equal on all ranks."""
        dtype = self.dtype
        reduction = channel.reduction(self.operation, dtype)
        algorithm = selection.choose(
            self.settings,
            channel.environment,
            topology=channel.topology,
            nbytes=self.count * dtype.itemsize,
            count=self.count,
            through_memory=channel.through_memory(reduction, self.pattern),
            collective=self.pattern.collective,
        )
        return Task(
            self.call,
            algorithm,
            NO_OPERATION if self.operation is None else self.operation.name,
            reduction,
            self.count,
            self.settings.segment_bytes,
            channel.topology,
            self.pattern,
        )

    def _arrange(self, channel: Channel) -> tuple[Array | None, Array | None]:
        """Return `x` and `out`, or contiguous native memory in their place, ready for the engine.

        The result is the same memory twice, or memory that does not overlap. Where the second is
        not `out` itself, it is copied there afterwards.
        """
        x, out, dtype = self.x, self.out, self.dtype
        target = out
        if out is not None and not (
            buffers.is_plain(out) and (x is None or not np.may_share_memory(x, out))
        ):
            # Views with gaps, foreign byte order, overlaps: the result is made elsewhere first.
            target = packed(channel, "packed output", out.size, dtype)
            if x is None:
                start, stop = self.pattern.brings(channel.rank, channel.size, self.count)
                target[start:stop] = out.reshape(-1)[start:stop]
        if x is None:
            return target, target
        if buffers.is_plain(x):
            return x, target
        source = packed(channel, "packed input", x.size, dtype)
        np.copyto(source, x.reshape(-1))
        return source, target


@dataclass(slots=True)
class Deferred:
    """A job that cannot be made before ranks have told each other something, on the channel."""

    make: Callable[[Channel], Job]

    def run(self, channel: Channel) -> Plan:
        """Make the job and run it. Collective."""
        return self.make(channel).run(channel)


def gathered(channel: Channel, call: str, settings: Settings, numbers: list[int]) -> Array:
    """Return a row of numbers from each rank. Collective.

    Parameters
    ----------
    channel : Channel
        Of the ranks.
    call : str
        For messages: the call that the user made.
    settings : Settings
        Of that call: the time limit and the check are those of this exchange, too.
    numbers : list of int
        As many on all ranks.
    """
    settings = Settings(timeout=settings.timeout, checked=settings.checked)
    mine = np.array(numbers, np.int64)
    told = np.empty((channel.size, len(numbers)), np.int64)
    pattern = Pattern("allgather")
    Job(call, settings, pattern, None, mine, told, ("", ""), told.size).run(channel)
    return told


def check_output(out: Array, name: str) -> None:
    """Raise where a result cannot be stored."""
    if buffers.overlaps_itself(out):
        message = (
            f"{name} has elements that overlap (shape {out.shape}, strides {out.strides}); "
            "wanted an array with a place for each element"
        )
        raise ValueError(message)
    if not out.flags.writeable:
        message = f"{name} is read-only; wanted a writable array"
        raise BufferError(message)


def packed(channel: Channel, purpose: str, count: int, dtype: np.dtype[Any]) -> Array:
    """Return scratch memory for `count` contiguous elements."""
    nbytes = count * dtype.itemsize
    return channel.memory.block(purpose, nbytes)[:nbytes].view(dtype)


def check_root(root: object, size: int) -> None:
    """Raise where `root` is no rank."""
    if isinstance(root, bool) or not isinstance(root, (int, np.integer)):
        message = f"root is {root!r} of type {type(root).__name__}; wanted a rank"
        raise TypeError(message)
    if not 0 <= root < size:
        message = f"root is {root}; wanted a rank from 0 to {size - 1}"
        raise ValueError(message)


def check_counts(name: str, counts: Any, size: int) -> tuple[int, ...]:
    """Return one count per rank, or raise."""
    try:
        numbers = tuple(index(count) for count in counts)
    except TypeError:
        message = f"{name} is {counts!r}; wanted a sequence of {size} ints"
        raise TypeError(message) from None
    if len(numbers) != size or any(number < 0 for number in numbers):
        message = f"{name} is {list(numbers)}; wanted {size} numbers, none below 0"
        raise ValueError(message)
    return numbers
