"""Arrays in memory that the node shares: `empty`, `zeros`, `full`, `shared_arrays`, `is_shared`."""

import math
import operator
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from hpccoll import _arena, arena

if TYPE_CHECKING:
    from mpi4py import MPI

Shape = SupportsIndex | Sequence[SupportsIndex]
Order = Literal["C", "F"]

MIN_BYTES = 16 << 10
"""The smallest array that `shared_arrays` puts into shared memory, unless it is told otherwise."""


def empty(
    shape: Shape,
    dtype: DTypeLike = float,
    order: Order = "C",
    *,
    comm: "MPI.Comm | None" = None,
) -> NDArray[Any]:
    """Return a new array, not initialised, in memory that the ranks of this node share.

    A local call, like `numpy.empty`: no other rank need make one. Collectives on such arrays, or
    on any slice of them, take the fastest path between ranks of a node. The memory is
    freed when the last array on it is garbage collected. Copies and results of arithmetic are
    ordinary arrays, except inside `shared_arrays`.

    Parameters
    ----------
    shape : int or sequence of int
    dtype : data-type, default float
        Any but object.
    order : {"C", "F"}, default "C"
        Row-major or column-major memory.
    comm : mpi4py.MPI.Comm, optional
        The ranks to share with, where the system does not let processes map one another's memory:
        there the array is shared if the communicator has made a collective call before. Elsewhere
        it makes no difference.

    Returns
    -------
    numpy.ndarray

    Raises
    ------
    MemoryError
        It does not fit. The message says how much was wanted and how much there is. The
        environment variable ``HPCCOLL_ARENA`` ("4G", "512M") sets the size of this process' arena
        when the first array is made; by default it has room for all the memory there is.
    OSError
        The system does not give memory of this kind.
    TypeError, ValueError
        As from NumPy; TypeError also for a type that holds Python objects.

    Notes
    -----
    After a fork, parent and child see and change the same arrays. The child can make no new ones.

    See Also
    --------
    shared_arrays : have NumPy itself make its arrays there.

    Examples
    --------
    >>> import hpccoll
    >>> x = hpccoll.empty((1000, 3), "float32")
    >>> x.shape, x.dtype.name, hpccoll.is_shared(x[10:20, 1])
    ((1000, 3), 'float32', True)
    """
    return _make(np.empty, shape, dtype, order, comm, "empty")


def zeros(
    shape: Shape,
    dtype: DTypeLike = float,
    order: Order = "C",
    *,
    comm: "MPI.Comm | None" = None,
) -> NDArray[Any]:
    """Return a new array of zeros in memory that the ranks of this node share.

    Parameters, errors and notes as of `empty`. Pages of a large array take memory when they are
    first written to.

    Examples
    --------
    >>> import hpccoll
    >>> hpccoll.zeros(3).tolist()
    [0.0, 0.0, 0.0]
    """
    return _make(np.zeros, shape, dtype, order, comm, "zeros")


def full(
    shape: Shape,
    fill_value: ArrayLike,
    dtype: DTypeLike | None = None,
    order: Order = "C",
    *,
    comm: "MPI.Comm | None" = None,
) -> NDArray[Any]:
    """Return a new array filled with a value, in memory that the ranks of this node share.

    Parameters, errors and notes as of `empty`.

    Parameters
    ----------
    shape : int or sequence of int
    fill_value : scalar or array
        Is broadcast to `shape`.
    dtype : data-type, optional
        Default: that of `fill_value`.
    order : {"C", "F"}, default "C"
    comm : mpi4py.MPI.Comm, optional

    Examples
    --------
    >>> import hpccoll
    >>> hpccoll.full((2, 2), 7).tolist()
    [[7, 7], [7, 7]]
    """
    if dtype is None:
        dtype = np.asarray(fill_value).dtype
    array = _make(np.empty, shape, dtype, order, comm, "full")
    np.copyto(array, fill_value, casting="unsafe")
    return array


@contextmanager
def shared_arrays(
    comm: "MPI.Comm | None" = None, *, min_bytes: SupportsIndex = MIN_BYTES
) -> Iterator[None]:
    """Have NumPy allocate its large arrays in memory that the ranks of this node share.

    ``with hpccoll.shared_arrays(): ...``, or as a decorator, ``@hpccoll.shared_arrays()``. Inside,
    each array that NumPy makes, results of arithmetic included, lies there if it has at least
    `min_bytes`. It stays there when the context is left, and until it is garbage collected.
    Contexts nest. One holds for the thread, or the asyncio task, that entered it.

    Parameters
    ----------
    comm : mpi4py.MPI.Comm, optional
        As of `empty`.
    min_bytes : int, default 16384
        Smaller arrays come from NumPy's own allocator, which is faster for them.

    Warns
    -----
    RuntimeWarning
        At the end, once, if arrays did not fit and were made in ordinary memory instead: with how
        much was wanted and how much there is. Results are the same, and collectives slower.

    Raises
    ------
    TypeError, ValueError
        `comm` is no communicator, `min_bytes` is no int or negative, or ``HPCCOLL_ARENA``
        is no size.

    Examples
    --------
    >>> import numpy as np, hpccoll
    >>> with hpccoll.shared_arrays():
    ...     x = np.arange(10000.0)
    ...     y = np.sqrt(x)
    >>> hpccoll.is_shared(x), hpccoll.is_shared(y), hpccoll.is_shared(x + y)
    (True, True, False)
    """
    smallest = operator.index(min_bytes)
    if smallest < 0:
        message = f"hpccoll.shared_arrays: min_bytes is {smallest}; wanted 0 or more"
        raise ValueError(message)
    reason = ""
    region = 0
    try:
        region = _region_of(comm, "shared_arrays")
    except OSError as error:
        reason = f"had no place: {error.strerror}"
    handler = _arena.new_handler(region, strict=False, min_bytes=smallest)
    before = _arena.set_handler(handler)
    try:
        yield
    finally:
        _arena.set_handler(before)
    number, nbytes, largest = _arena.missed(handler)
    if number:
        message = (
            "hpccoll.shared_arrays: arrays that were made in ordinary memory, where collectives "
            f"are slower: {number}, of together {arena.format_size(nbytes)}. "
            f"The largest {reason or arena.shortage(largest, region)}"
        )
        warnings.warn(message, RuntimeWarning, stacklevel=3)


def is_shared(array: NDArray[Any]) -> bool:
    """Whether all of an array, or of a view, lies in memory that the ranks of this node share.

    Examples
    --------
    >>> import numpy as np, hpccoll
    >>> hpccoll.is_shared(hpccoll.empty(10)[::-2]), hpccoll.is_shared(np.empty(10))
    (True, False)
    """
    if not isinstance(array, np.ndarray):
        message = f"hpccoll.is_shared: array is of type {type(array).__name__}; wanted an ndarray"
        raise TypeError(message)
    first = array.__array_interface__["data"][0]
    if array.size == 0:
        return _arena.contains(first, 0)
    steps = [
        (length - 1) * stride for length, stride in zip(array.shape, array.strides, strict=True)
    ]
    first += sum(step for step in steps if step < 0)
    return _arena.contains(first, sum(map(abs, steps)) + array.itemsize)


_handlers: dict[int, Any] = {}
"""By region, what `empty` and the like allocate with."""


def _make(
    make: Callable[..., NDArray[Any]],
    shape: Shape,
    dtype: DTypeLike,
    order: Order,
    comm: "MPI.Comm | None",
    name: str,
) -> NDArray[Any]:
    """Have NumPy make an array with our allocator; `name` is the function that the user called."""
    kind = np.dtype(dtype)
    if kind.hasobject:
        message = (
            f"hpccoll.{name}: dtype is {kind}; wanted one without Python objects, "
            "which no other process could use"
        )
        raise TypeError(message)
    region = _region_of(comm, name)
    handler = _handlers.get(region)
    if handler is None:
        handler = _handlers.setdefault(region, _arena.new_handler(region))
    before = _arena.set_handler(handler)
    try:
        return make(shape, kind, order)
    except MemoryError:
        lengths = (shape,) if isinstance(shape, SupportsIndex) else tuple(shape)
        nbytes = math.prod(map(operator.index, lengths)) * kind.itemsize
    finally:
        _arena.set_handler(before)
    message = f"hpccoll.{name}: {arena.shortage(nbytes, region)}"
    raise MemoryError(message)


def _region_of(comm: "MPI.Comm | None", name: str) -> int:
    """Return the number of the region for arrays that the ranks of `comm` share.

    That is the arena, for any communicator; but where peers cannot map it, and the ranks of `comm`
    have met in a window instead (in an earlier collective call), that window's.
    """
    if comm is not None:
        from mpi4py import MPI

        if not isinstance(comm, MPI.Comm):
            message = (
                f"hpccoll.{name}: comm is of type {type(comm).__name__}; wanted an mpi4py.MPI.Comm"
            )
            raise TypeError(message)
        if isinstance(comm, MPI.Intracomm) and comm != MPI.COMM_NULL:
            from hpccoll.channel import find_channel

            channel = find_channel(comm)
            if channel is not None and channel.meeting.region:
                return channel.meeting.region
    if not _arena.is_forked():  # where nothing fits, as `shortage` says
        arena.ensure_open()
    return 0
