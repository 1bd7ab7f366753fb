"""The functions: NumPy-style doors to the collectives."""

from typing import Any, TypeVar

import numpy as np
from mpi4py import MPI

from hpccoll import buffers, selection
from hpccoll._plans import Plan
from hpccoll.buffers import Array
from hpccoll.calls import Call
from hpccoll.channel import Channel, channel_of
from hpccoll.engine import Task
from hpccoll.ops import Operation, check_type, find_operation
from hpccoll.selection import Settings

T = TypeVar("T")


def allreduce(
    x: T,
    op: "str | MPI.Op" = "sum",
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    algorithm: str | None = None,
    segment_bytes: int | None = None,
) -> T:
    """Combine an array from every rank, element by element, and return the result on every rank.

    Collective: all ranks of `comm` call it with the same shape, type, `op`, `algorithm` and
    `segment_bytes`. All ranks get identical bytes.

    Parameters
    ----------
    x : array or scalar
        This rank's contribution; not changed unless it is `out`. NumPy arrays of any layout
        (strided, reversed, Fortran-ordered, foreign byte order, read-only, no dimensions, empty),
        NumPy and Python scalars, CPU tensors of torch, and objects with ``__dlpack__`` or the
        buffer protocol. Elements pair up by index, whatever their order in memory.
    op : str or mpi4py.MPI.Op, default "sum"
        "sum", "mean", "prod", "min", "max", "fmin", "fmax", "land", "lor", "lxor", "band", "bor",
        "bxor", or the MPI operation of that name. "mean" divides the complete sum by the number
        of ranks, once. "min" and "max" give NaN where any rank has one; "fmin" and "fmax"
        ignore it. Integers wrap. float16 and bfloat16 are summed in float32 and rounded once.
    out : array, optional
        Receives the result: same shape and type as `x`, writable, of any layout; gaps of a view
        stay untouched. ``out=x`` is in place. An `out` that overlaps `x` in part is right, too.
        By default a new array of the shape, type and library of `x`.
    comm : mpi4py.MPI.Intracomm, default MPI.COMM_WORLD
        The ranks that take part. Messages travel on a private duplicate. An `hpccoll.Comm`
        brings its settings along.
    algorithm : str, optional
        A name of `hpccoll.algorithms`, or "auto": what the environment variable
        ``HPCCOLL_ALGORITHM`` of rank 0 names, else a choice by nodes, number of ranks, bytes and
        count, which may go through memory that ranks of a node share. Default: what `comm` was
        made with, else "auto".
    segment_bytes : int, optional
        Upper limit of one message in bytes, rounded down to whole elements, at least one. Default:
        512 KiB. Smaller overlaps more and costs more per message. Without effect where no message
        is sent.

    Returns
    -------
    array or scalar
        `out`, or a new array of the shape, type and library of `x`; a scalar for a scalar.
        Objects known only by the buffer protocol give a NumPy array.

    Raises
    ------
    TypeError
        `x` is no array (a list, an array of objects), lies on a device, or `op` makes no sense on
        its type; `out` has another type, `comm` is no intracommunicator, or a setting has the
        wrong type.
    ValueError
        `out` has another shape; `op` or `algorithm` is unknown. On all ranks, where they passed
        different counts, types, operations, algorithms or segment sizes and this showed;
        or, at the first call on `comm`, where an environment variable cannot be read.
    BufferError
        `out` is read-only.
    RuntimeError
        Called in a forked child of a process that used MPI, or a call on `comm` was left before
        its end, here or on another rank.

    Notes
    -----
    All errors but that of ranks which disagree are raised before any message leaves. Where an
    argument is wrong on some ranks only, the others wait for them. The algorithms, what each costs
    and where they were published are in docs/algorithms.md.

    See Also
    --------
    hpccoll.Comm.Allreduce : the same with mpi4py's signature.

    Examples
    --------
    >>> import numpy as np, hpccoll
    >>> x = np.arange(3.0)
    >>> hpccoll.allreduce(x, op="mean").tolist()
    [0.0, 1.0, 2.0]
    >>> hpccoll.allreduce(x, out=x) is x
    True
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("allreduce", comm) as caller:
        if not isinstance(comm, MPI.Comm):
            message = f"comm is of type {type(comm).__name__}; wanted an mpi4py.MPI.Intracomm"
            raise TypeError(message)
        if comm == MPI.COMM_NULL:
            message = "comm is MPI.COMM_NULL; wanted a communicator (it may have been freed)"
            raise ValueError(message)
        if comm.is_inter:
            message = "comm is an intercommunicator; wanted an intracommunicator"
            raise TypeError(message)
        operation = find_operation(op)
        if operation is None:
            message = f"op {op!r} has no loops here; Comm.Allreduce hands it to the MPI library"
            raise ValueError(message)
        base: Settings = getattr(comm, "settings", Settings())
        settings = Settings(
            base.algorithm if algorithm is None else algorithm,
            base.segment_bytes if segment_bytes is None else segment_bytes,
        )
        settings.check()
        if x is MPI.IN_PLACE:
            message = "x is MPI.IN_PLACE; in place is allreduce(x, out=x)"
            raise TypeError(message)
        operand = buffers.of_array("x", x)
        if out is None:
            target, result = operand.new_result()
        else:
            target, result = buffers.of_array("out", out).array, lambda: out
            if isinstance(out, (bool, int, float, complex, np.generic)):
                message = f"out is a scalar of type {type(out).__name__}; wanted an array"
                raise TypeError(message)
        caller.ran = allreduce_arrays(
            "allreduce", comm, settings, operation, operand.array, target, names=("x", "out")
        )
    return result()  # type: ignore[no-any-return]


class Caller:
    """Adds the call and the rank to the text of an error, and notes what ran.

    Parameters
    ----------
    name : str
        The call that the user made.
    comm : mpi4py.MPI.Comm
        Its communicator.
    """

    def __init__(self, name: str, comm: object) -> None:
        self.name = name
        self.comm = comm
        self.ran: Plan | Call | None = None

    def __enter__(self) -> "Caller":
        """Begin the call."""
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        """Note what ran, or complete the text of the error."""
        if error is None:
            if self.ran is not None and hasattr(self.comm, "note_call"):
                self.comm.note_call(self.ran)
        elif isinstance(error, (TypeError, ValueError, BufferError)) and error.args:
            text = str(error.args[0])
            door, _, rest = text.partition(": ")
            if door.lower() == self.name.lower():  # of a plan that the other door made
                text = f"{self.name}: {rest}"
                error.args = (text,)
            if not text.startswith(self.name):
                where = ""
                if isinstance(self.comm, MPI.Comm) and self.comm != MPI.COMM_NULL:
                    where = f" (rank {self.comm.rank} of {self.comm.size})"
                error.args = (f"{self.name}: {text}{where}",)


def allreduce_arrays(
    call: str,
    comm: MPI.Intracomm,
    settings: Settings,
    operation: Operation,
    x: Array,
    out: Array,
    names: tuple[str, str],
) -> Plan:
    """Run an all-reduce of `x` into `out`, whatever their layouts, and return the plan that ran.

    Parameters
    ----------
    call : str
        For messages: the call that the user made.
    comm, settings, operation
        Where, how and what.
    x, out : numpy.ndarray
        Any layout and byte order; the same object, the same memory, overlapping, or apart.
    names : tuple of str
        What the user calls `x` and `out`.
    """
    check_arrays(x, out, names)
    dtype = x.dtype.newbyteorder("=")
    check_type(operation, dtype)
    channel = channel_of(comm, call)
    plan = channel.plans(settings).repeat(x, out, operation.name)
    if plan is not None:
        return plan
    reduction = channel.reduction(operation, dtype)
    algorithm = selection.choose(
        settings,
        channel.environment,
        topology=channel.topology,
        nbytes=x.size * dtype.itemsize,
        count=x.size,
        through_memory=channel.meeting.serves(channel.topology) and reduction.loops.compiled,
    )
    task = Task(
        call,
        algorithm,
        operation.name,
        reduction,
        x.size,
        settings.segment_bytes,
        channel.topology,
    )
    with channel.turn:
        source, target = arrange(channel, x, out, dtype)
        plan = channel.run(settings, task, source.ctypes.data, target.ctypes.data)
        if not buffers.same_memory(target, out):
            out[...] = target.reshape(out.shape)
    return plan


def check_arrays(x: Array, out: Array, names: tuple[str, str]) -> None:
    """Raise where an array cannot be reduced into another, before any message leaves."""
    source, target = names
    if not buffers.is_number(x.dtype):
        message = f"{source} has dtype {x.dtype}; wanted numbers or bool"
        raise TypeError(message)
    if x.dtype.newbyteorder("=") != out.dtype.newbyteorder("="):
        message = f"{target} has dtype {out.dtype}, {source} has {x.dtype}; they must be the same"
        raise TypeError(message)
    if x.shape != out.shape:
        message = f"{target} has shape {out.shape}, {source} has {x.shape}; they must be the same"
        raise ValueError(message)
    if buffers.overlaps_itself(out):
        message = (
            f"{target} has elements that overlap (shape {out.shape}, strides {out.strides}); "
            "wanted an array with a place for each element"
        )
        raise ValueError(message)
    if not out.flags.writeable:
        message = f"{target} is read-only; wanted a writable array"
        raise BufferError(message)


def arrange(channel: Channel, x: Array, out: Array, dtype: np.dtype[Any]) -> tuple[Array, Array]:
    """Return `x` and `out`, or contiguous native memory in their place, ready for the engine.

    The result is a pair of arrays that are the same memory or do not overlap. Where the second is
    not `out` itself, the caller copies it there afterwards.
    """
    in_place = buffers.same_memory(x, out)
    target = out
    if not buffers.is_plain(out) or (not in_place and np.may_share_memory(x, out)):
        # Views with gaps, foreign byte order, partial overlap: the result is made elsewhere first.
        target = packed(channel, "packed output", out.size, dtype)
    if in_place and target is not out:
        np.copyto(target, x.reshape(-1))
        return target, target
    if in_place:
        return out, out
    if buffers.is_plain(x):
        return x, target
    source = packed(channel, "packed input", x.size, dtype).reshape(x.shape)
    np.copyto(source, x)
    return source, target


def packed(channel: Channel, purpose: str, count: int, dtype: np.dtype[Any]) -> Array:
    """Return scratch memory for `count` contiguous elements."""
    nbytes = count * dtype.itemsize
    return channel.memory.block(purpose, nbytes)[:nbytes].view(dtype)
