"""The functions: NumPy-style doors to the collectives."""

from collections.abc import Sequence
from typing import Any, TypeVar

from mpi4py import MPI

from hpccoll import arrays
from hpccoll.arrays import Door
from hpccoll.calls import Caller

T = TypeVar("T")


def allreduce(
    x: T,
    op: "str | MPI.Op" = "sum",
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    algorithm: str | None = None,
    segment_bytes: int | None = None,
    timeout: float | None = None,
    check: bool | None = None,
    stream: Any = None,
) -> T:
    """Combine an array from every rank, element by element, and return the result on every rank.

    Collective: all ranks of `comm` call it with the same shape, type, `op`, `algorithm` and
    `segment_bytes`. All ranks get identical bytes.

    Parameters
    ----------
    x : array or scalar
        This rank's contribution; not changed unless it is `out`. NumPy arrays of any layout
        (strided, reversed, Fortran-ordered, foreign byte order, read-only, no dimensions, empty),
        NumPy and Python scalars, tensors of torch, and objects with ``__dlpack__`` or the
        buffer protocol. Elements pair up by index, whatever their order in memory. In GPU memory
        arrays of CuPy, torch, JAX and Numba, and objects with ``__cuda_array_interface__`` or
        ``__dlpack__``; on all ranks, or on none.
    op : str or mpi4py.MPI.Op, default "sum"
        "sum", "mean", "prod", "min", "max", "fmin", "fmax", "land", "lor", "lxor", "band", "bor",
        "bxor", or the MPI operation of that name. "mean" divides the complete sum by the number
        of ranks, once. "min" and "max" give NaN where any rank has one; "fmin" and "fmax"
        ignore it. Integers wrap. float16 and bfloat16 are summed in float32 and rounded once.
    out : array, optional
        Receives the result: same shape and type as `x`, writable, of any layout; gaps of a view
        stay untouched. ``out=x`` is in place. An `out` that overlaps `x` in part is right, too.
        It lies where `x` does: in host memory, or on the same device. By default a new array of the
        shape, type and library of `x`, in the same place.
    comm : mpi4py.MPI.Intracomm, default MPI.COMM_WORLD
        The ranks that take part. Messages travel on a private duplicate. An `hpccoll.Comm`
        brings its settings along.
    algorithm : str, optional
        A name of `hpccoll.algorithms`, or "auto": what the environment variable
        ``HPCCOLL_ALGORITHM`` of rank 0 names, else a choice by nodes, number of ranks, bytes and
        count, which may go through memory that ranks of a node share. "nccl" leaves a call on
        arrays in GPU memory to NCCL (docs/gpu.md). Default: what `comm` was made with, else "auto".
    segment_bytes : int, optional
        Upper limit of one message in bytes, rounded down to whole elements, at least one. Default:
        512 KiB, and 2 MiB of arrays in GPU memory. Smaller overlaps more and costs more per
        message. Without effect where no message is sent.
    timeout : float, optional
        Seconds that this rank waits for one thing (a message, a step of a peer in shared memory)
        before it gives the call up; ``math.inf`` for any time. May differ between ranks. Default:
        what `comm` was made with, else ``HPCCOLL_TIMEOUT``, else any time, with one line of warning
        on stderr after 60 s.
    check : bool, optional
        Whether ranks compare what they call before data moves: collective, type, operation, counts,
        root, algorithm, segment size and how many calls there were. Equal on all ranks; costs a
        small all-reduce, but next to nothing in the memory of a node. Default: what `comm` was made
        with, else ``HPCCOLL_CHECK`` of rank 0.
    stream : int or stream, optional
        For arrays in GPU memory: the stream that the caller's work is on, as a handle or as an
        object of CuPy, torch, Numba or cuda.core. The call reads what that stream has been given
        before, and what it is given afterwards finds the result; the host need not wait for either.
        Default: of torch and CuPy arrays the current stream of the library, else the one that
        ``__cuda_array_interface__`` names, else the legacy default stream. Non-blocking calls
        follow the stream as it is when they begin; after ``wait()`` the result is there for any.

    Returns
    -------
    array or scalar
        `out`, or a new array of the shape, type and library of `x`; a scalar for a scalar.
        Objects known only by the buffer protocol give a NumPy array; those in GPU memory of a
        library that takes no DLPack, an `hpccoll.cuda.CudaArray`.

    Raises
    ------
    TypeError
        `x` is no array (a list, an array of objects), or `op` makes no sense on its type; `out` has
        another type, or one of the two lies in GPU memory and the other one does not, or on another
        device; `stream` is no stream, or `x` lies in host memory; `comm` is no intracommunicator,
        or a setting has the wrong type.
    ValueError
        `out` has another shape; `op` or `algorithm` is unknown; an array lies in GPU memory that
        was freed, or on a device that this process does not see, or `stream` on another one; or, at
        the first call on `comm`, an environment variable cannot be read.
    ImportError
        `x` lies in GPU memory, and hpccoll was installed without ``hpccoll[cuda12]`` or
        ``hpccoll[cuda13]``.
    MismatchError
        A ValueError, on all ranks: they passed different counts, types, operations, algorithms or
        segment sizes. Always with `check`, else where this showed.
    CollectiveTimeoutError
        A TimeoutError: others did not come in time; its `ranks` are those that gave no sign. `comm`
        cannot be used any more: `comm.Dup()` gives a new one.
    BufferError
        `out` is read-only, as all arrays of JAX are.
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
        door = Door.of(
            "allreduce", "allreduce", comm, algorithm, segment_bytes, timeout, check, stream
        )
        job, result = arrays.allreduce(door, x, op, out)
        caller.ran = job.run(door.channel())
    return result()  # type: ignore[no-any-return]


def reduce(
    x: T,
    op: "str | MPI.Op" = "sum",
    root: int = 0,
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    algorithm: str | None = None,
    segment_bytes: int | None = None,
    timeout: float | None = None,
    check: bool | None = None,
    stream: Any = None,
) -> T | None:
    """Combine an array from every rank, element by element, and return the result on one rank.

    For a result that only one rank needs; costs the others about half of an all-reduce.
    Collective: as of `allreduce`, and with the same `root`.

    Parameters
    ----------
    x : array or scalar
        As of `allreduce`.
    op : str or mpi4py.MPI.Op, default "sum"
        As of `allreduce`.
    root : int, default 0
        The rank that gets the result.
    out : array, optional
        At the root as of `allreduce`; ``out=x`` is in place. Elsewhere it stays untouched, and may
        be None.
    comm, algorithm, segment_bytes, stream
        As of `allreduce`; the algorithms are those of ``hpccoll.algorithms("reduce")``.

    Returns
    -------
    array or scalar or None
        At the root `out`, or a new array; None elsewhere.

    Raises
    ------
    ValueError
        `root` is no rank of `comm`. Otherwise, and other errors, as of `allreduce`.

    Examples
    --------
    >>> import numpy as np, hpccoll
    >>> hpccoll.reduce(np.arange(3.0), op="max").tolist()
    [0.0, 1.0, 2.0]
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("reduce", comm) as caller:
        door = Door.of("reduce", "reduce", comm, algorithm, segment_bytes, timeout, check, stream)
        job, result = arrays.reduce(door, x, op, root, out)
        caller.ran = job.run(door.channel())
    return result()  # type: ignore[no-any-return]


def reduce_scatter(
    x: T,
    op: "str | MPI.Op" = "sum",
    *,
    counts: Sequence[int] | None = None,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    algorithm: str | None = None,
    segment_bytes: int | None = None,
    timeout: float | None = None,
    check: bool | None = None,
    stream: Any = None,
) -> T:
    """Combine an array from every rank, and return to each rank its part of the result.

    For a result that each rank needs a part of: half of an all-reduce. Collective: as of
    `allreduce`, and with the same `counts`.

    Parameters
    ----------
    x : array
        This rank's contribution to the whole, of the same shape on all ranks, with at least one
        dimension.
    op : str or mpi4py.MPI.Op, default "sum"
        As of `allreduce`.
    counts : sequence of int, optional
        Rows (elements of the first dimension) that each rank gets. Default: as
        `numpy.array_split` cuts, the first ranks one row more.
    out : array, optional
        Receives this rank's rows. ``out=x`` is in place as in MPI: the result goes to the first
        rows of `x` on every rank (not to the rank's own rows, as in NCCL), and the others are left
        as they were.
    comm, algorithm, segment_bytes, stream
        As of `allreduce`; the algorithms are those of ``hpccoll.algorithms("reduce_scatter")``.

    Returns
    -------
    array
        `out`, or a new array: this rank's rows of the result. In place, a view of `x`.

    Raises
    ------
    ValueError
        `counts` do not add up to the rows of `x`, or are not one per rank. Otherwise, and other
        errors, as of `allreduce`.

    Examples
    --------
    >>> import numpy as np, hpccoll
    >>> hpccoll.reduce_scatter(np.arange(6.0).reshape(3, 2)).shape
    (3, 2)
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("reduce_scatter", comm) as caller:
        door = Door.of(
            "reduce_scatter",
            "reduce_scatter",
            comm,
            algorithm,
            segment_bytes,
            timeout,
            check,
            stream,
        )
        job, result = arrays.reduce_scatter(door, x, op, out, counts)
        caller.ran = job.run(door.channel())
    return result()  # type: ignore[no-any-return]


def allgather(
    x: T,
    *,
    counts: Sequence[int] | None = None,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    algorithm: str | None = None,
    segment_bytes: int | None = None,
    timeout: float | None = None,
    check: bool | None = None,
    stream: Any = None,
) -> T:
    """Join an array from every rank along the first dimension, and return all of it on every rank.

    For parts that every rank needs all of. Collective: all ranks call it with arrays of one type,
    whose shapes may differ in the first dimension.

    Parameters
    ----------
    x : array or scalar
        This rank's rows. A scalar, or an array of no dimensions, is one row.
    counts : sequence of int, optional
        Rows of each rank, if they are known: saves that ranks tell each other. All ranks give
        them, or none does.
    out : array, optional
        Receives the result. In place is as in MPI (and in NCCL): `x` is this rank's own rows of
        `out`.
    comm, algorithm, segment_bytes, stream
        As of `allreduce`; the algorithms are those of ``hpccoll.algorithms("allgather")``.

    Returns
    -------
    array
        `out`, or a new array, with the rows of rank 0 first.

    Raises
    ------
    ValueError
        Types, or shapes beyond the first dimension, differ between ranks; raised on all of them,
        unless `counts` are given. Otherwise, and other errors, as of `allreduce`.

    Examples
    --------
    >>> import numpy as np, hpccoll
    >>> hpccoll.allgather(np.arange(3.0)).tolist()
    [0.0, 1.0, 2.0]
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("allgather", comm) as caller:
        door = Door.of(
            "allgather", "allgather", comm, algorithm, segment_bytes, timeout, check, stream
        )
        job, result = arrays.allgather(door, x, out, counts)
        caller.ran = job.run(door.channel())
    return result()  # type: ignore[no-any-return]


def broadcast(
    x: T,
    root: int = 0,
    *,
    out: Any = None,
    comm: MPI.Intracomm | None = None,
    algorithm: str | None = None,
    segment_bytes: int | None = None,
    timeout: float | None = None,
    check: bool | None = None,
    stream: Any = None,
) -> T:
    """Copy an array from one rank to all.

    For values that one rank has: nothing is combined. Collective: all ranks call it with the same
    shape, type and `root`.

    Parameters
    ----------
    x : array or scalar
        At the root what is copied, which may be read-only; elsewhere it is overwritten, unless
        there is an `out` or it is a scalar.
    root : int, default 0
        The rank that has the values.
    out : array, optional
        Receives the values, at the root as well, in place of `x`.
    comm, algorithm, segment_bytes, stream
        As of `allreduce`; the algorithms are those of ``hpccoll.algorithms("broadcast")``.

    Returns
    -------
    array or scalar
        `out`, or `x`; a new scalar for a scalar.

    Raises
    ------
    ValueError
        `root` is no rank of `comm`. Otherwise, and other errors, as of `allreduce`.

    Examples
    --------
    >>> import numpy as np, hpccoll
    >>> x = np.arange(3.0)
    >>> hpccoll.broadcast(x) is x
    True
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("broadcast", comm) as caller:
        door = Door.of(
            "broadcast", "broadcast", comm, algorithm, segment_bytes, timeout, check, stream
        )
        job, result = arrays.broadcast(door, x, root, out)
        caller.ran = job.run(door.channel())
    return result()  # type: ignore[no-any-return]


def barrier(
    comm: MPI.Intracomm | None = None,
    *,
    timeout: float | None = None,
    check: bool | None = None,
) -> None:
    """Return when all ranks have called it.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, default MPI.COMM_WORLD
        The ranks.
    timeout, check
        As of `allreduce`.

    Examples
    --------
    >>> import hpccoll
    >>> hpccoll.barrier()
    """
    comm = MPI.COMM_WORLD if comm is None else comm
    with Caller("barrier", comm) as caller:
        door = Door.of("barrier", "barrier", comm, timeout=timeout, check=check)
        job, _ = arrays.barrier(door)
        caller.ran = job.run(door.channel())
