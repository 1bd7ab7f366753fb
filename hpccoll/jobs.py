"""`Job`: one collective call of this rank, understood and checked, and ready to run on a channel.

The doors (`hpccoll.specs` for mpi4py's signatures, `hpccoll.collectives` for the functions) make
jobs; blocking calls run them at once, others hand them to `hpccoll.progress`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from hpccoll import _comm, buffers, selection
from hpccoll._plans import Plan
from hpccoll.buffers import Array
from hpccoll.channel import Channel
from hpccoll.checks import check_device_loops, check_output
from hpccoll.cuda.device_array import DeviceArray
from hpccoll.ops import Operation, check_type
from hpccoll.pattern import NO_OPERATION, Pattern
from hpccoll.selection import Settings
from hpccoll.task import Task

if TYPE_CHECKING:
    from hpccoll.calls import Call
    from hpccoll.cuda.streams import CallerStreams, Moment

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
    x : numpy.ndarray, DeviceArray or None
        What this rank brings, of any layout; None where it brings nothing, or it stands in `out`.
    out : numpy.ndarray, DeviceArray or None
        Where the result goes, of any layout; None where it wants nothing. The same memory as `x`,
        overlapping, or apart.
    names : tuple of str
        What the user calls `x` and `out`.
    count : int
        Elements of the whole vector.
    before, after : callable, optional
        Called before each run, and after it, with the handle of the stream that the call is on; 0
        in host memory.
    streams : CallerStreams or None
        Of arrays in GPU memory: what a call is put in order with.
    waits : bool
        Whether there the host waits for its end: it works in memory that goes with the job.
    """

    call: str
    settings: Settings
    pattern: Pattern
    operation: Operation | None
    x: Array | None
    out: Array | None
    names: tuple[str, str]
    count: int
    before: Callable[[int], object] | None = None
    after: Callable[[int], object] | None = None
    streams: "CallerStreams | None" = None
    waits: bool = False

    def check(self, rank: int, size: int) -> "Job":
        """Raise where the call cannot be made, before any message leaves; return the job."""
        x, out = self.x, self.out
        source, target = self.names
        if self.on_device and self.streams is None:
            self.streams = streams_of(x, out)
        if isinstance(x, DeviceArray) and x is not out:
            from hpccoll.cuda.copies import check_layout

            check_layout(source, x)
        if x is not None and out is not None:
            buffers.check_same_device(self.names, x, out)
            if x.dtype.newbyteorder("=") != out.dtype.newbyteorder("="):
                message = (
                    f"{target} has dtype {out.dtype}, {source} has {x.dtype}; they must be the same"
                )
                raise TypeError(message)
            if x.size == out.size and self.pattern.collective in ("allreduce", "reduce"):
                # Identity first: to compare addresses takes NumPy a while.
                self.x = None if x is out else self._reshaped(x, out.shape)
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
            if self.on_device:
                check_device_loops(self.operation, self.dtype, size)
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

    def _reshaped(self, x: Array, shape: tuple[int, ...]) -> Array:
        """Return `x` in another shape; on a device what has gaps is to be copied for that first."""
        if x.shape == shape:
            return x
        if not isinstance(x, DeviceArray) or x.flags.c_contiguous:
            return x.reshape(shape)
        assert self.before is None
        packed = buffers.scratch_beside(x, x.size)
        self.before, self.waits = copier((packed.reshape(x.shape), x)), True
        return packed.reshape(shape)

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

    @property
    def on_device(self) -> bool:
        """Whether the arrays lie in GPU memory."""
        return isinstance(self.out if self.x is None else self.x, DeviceArray)

    def record(self) -> "Moment | None":
        """Mark what the caller's streams have been given, for a run later or in another thread."""
        return None if self.streams is None else self.streams.now().record()

    def run(self, channel: Channel, moment: "Moment | None" = None) -> "Plan | Call":
        """Run, and return the plan that did it, or what was done.

        Parameters
        ----------
        channel : Channel
            Where.
        moment : Moment, optional
            What `record` returned when the call was made; None where that is now.
        """
        if self.on_device:
            return self._run_on_device(channel, moment)
        if self.before is not None:
            self.before(0)
        name = None if self.operation is None else self.operation.name
        plan = None
        if self.headers_tell or not channel.is_checked(self.settings):
            plans = channel.plans(self.settings, self.pattern)
            plan = plans.repeat(self.x, self.out, name, channel.limit(self.settings))
        if plan is None:
            plan = self._run(channel)
        if self.after is not None:
            self.after(0)
        return plan

    def _run_on_device(self, channel: Channel, moment: "Moment | None") -> "Plan | Call":
        from hpccoll.cuda.outcomes import telling_errors
        from hpccoll.cuda.resources import taken_up
        from hpccoll.cuda.site import run_on_device

        assert self.streams is not None
        if moment is None:
            moment = self.streams.now()
        if self.waits and not moment.event:
            moment.record()
        is_later = moment.event != 0
        with telling_errors(channel), taken_up(moment, channel) as here:
            if self.before is not None:
                self.before(here.stream)
            # The host waits there, with the time limit of the call, for all but what comes after.
            ran = run_on_device(self, channel, here, complete=is_later)
            if self.after is not None:
                self.after(here.stream)
        return ran

    @property
    def is_plain(self) -> bool:
        """Whether a plan can work on the arrays themselves, each time without further ado."""
        arrays = [array for array in (self.x, self.out) if array is not None]
        return (
            not self.on_device
            and self.before is None
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
        name = selection.requested(
            self.settings,
            channel.environment,
            self.pattern.collective,
            on_device=self.on_device,
        )
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
    """A job that cannot be made before ranks have told each other something, on the channel.

    Attributes
    ----------
    make : callable
        Makes the job. Collective.
    streams : CallerStreams or None
        As of `Job`.
    """

    make: Callable[[Channel], Job]
    streams: "CallerStreams | None" = None

    @property
    def on_device(self) -> bool:
        """Whether the arrays lie in GPU memory."""
        return self.streams is not None

    def record(self) -> "Moment | None":
        """As `Job.record`."""
        return None if self.streams is None else self.streams.now().record()

    def run(self, channel: Channel, moment: "Moment | None" = None) -> "Plan | Call":
        """Make the job and run it, as `Job.run`. Collective."""
        if moment is None and self.streams is not None:
            moment = self.streams.now()
        job = self.make(channel)
        if moment is not None and job.streams is not None:
            # A result that was allocated now: who had that memory before may still be at work, and
            # who uses it next does so in its own stream.
            late = job.streams.now()
            moment.others = (*moment.others, late.stream, *late.others)
        return job.run(channel, moment)


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


def streams_of(*arrays: Array | None, stream: int | None = None) -> "CallerStreams | None":
    """Return what a call on these arrays is put in order with; None in host memory.

    Parameters
    ----------
    *arrays : numpy.ndarray, DeviceArray or None
        On one device, those that are on one.
    stream : int, optional
        The handle of the stream that the user named.
    """
    owned = [array for array in arrays if isinstance(array, DeviceArray)]
    if not owned:
        return None
    from hpccoll.cuda.streams import CallerStreams

    device = owned[0].device
    if stream is not None:
        return CallerStreams(device, (stream,))
    return CallerStreams(device, owners=tuple(array.owner for array in owned))


def copier(*pairs: tuple[Array, Array]) -> Callable[[int], object]:
    """Return what copies the second array of each pair to the first, in the order of a stream."""

    def copy(stream: int) -> None:
        for out, source in pairs:
            if isinstance(out, DeviceArray):
                from hpccoll.cuda.copies import copy_array

                copy_array(out, source, stream)
            else:
                np.copyto(out, source)

    return copy


def packed(channel: Channel, purpose: str, count: int, dtype: np.dtype[Any]) -> Array:
    """Return scratch memory for `count` contiguous elements."""
    nbytes = count * dtype.itemsize
    return channel.memory.block(purpose, nbytes)[:nbytes].view(dtype)
