# cython: language_level=3
"""The part of `hpccoll.Comm` that every call goes through: a repeated call ends here.

For vectors of a few bytes on one node, a frame of Python would take as long as the reduction.
"""

cimport cython
from cpython.dict cimport PyDict_GetItem
from cpython.object cimport PyObject
from libc.stdint cimport int64_t
from mpi4py import MPI

from hpccoll._plans cimport Plan, PlanCache


@cython.final
cdef class Recent:
    """What a communicator object has for its next call, and of its last one.

    Attributes
    ----------
    rank : int
        This rank.
    plans : dict
        By collective, and root of a rooted one, the plans made with its settings.
    last : Plan, Call or None
        What ran.
    limit : int
        Nanoseconds that a call may wait; 0 for any time.
    """

    cdef public dict plans
    cdef public object last
    cdef public int rank
    cdef public int64_t limit
    cdef public PlanCache all_reduce

    def __init__(self, rank):
        self.rank = rank
        self.plans = {}

    cdef bint repeated(self, str collective, root, sendbuf, recvbuf, op) except -1:
        """Run the plan of an earlier, equal call; tell whether there was one."""
        cdef PyObject *plans = PyDict_GetItem(self.plans, (collective, root))
        if plans == NULL:
            return False
        plan = (<PlanCache> plans).repeat(sendbuf, recvbuf, op, self.limit)
        if plan is None:
            return False
        self.last = plan
        return True


def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
    """Combine a vector from every rank and leave the result on every rank.

    Collective, with mpi4py's signature and buffer forms. All ranks get identical bytes.

    Parameters
    ----------
    sendbuf : buffer, MPI.IN_PLACE or None
        This rank's vector: an array, or ``[array, count]``, ``[array, datatype]``,
        ``[array, count, datatype]``, ``[array, (count, displacement), datatype]``. Arrays of
        any layout; elements pair up by index. In place (MPI.IN_PLACE, None, or the memory of
        `recvbuf`) the vector is taken from `recvbuf`. In GPU memory, as of `hpccoll.allreduce`, on
        the stream that is current there.
    recvbuf : buffer
        Receives the result: the same count and type, writable.
    op : mpi4py.MPI.Op or str, default MPI.SUM
        A predefined operation or one of hpccoll's names ("mean", "fmin", ...). Others
        (user-made, MAXLOC, MINLOC) go to the MPI library, as do derived datatypes;
        `last_call.path` says "native" then. GPU memory does only where ``info()["cuda_aware"]`` is
        yes.

    Raises
    ------
    TypeError
        Types differ, or the operation makes no sense on the type; one buffer lies in GPU memory and
        the other one does not, or on another device.
    ValueError
        Counts differ. On all ranks, where they passed different counts, types, operations,
        algorithms or segment sizes and this showed.
    BufferError
        `recvbuf` is read-only.
    RuntimeError
        A call on this communicator was left before its end, here or on another rank.

    See Also
    --------
    hpccoll.allreduce : the same as a function.
    """
    cdef Recent recent = self._recent
    cdef Plan plan
    if recent is not None and recent.all_reduce is not None:
        plan = recent.all_reduce.repeat(sendbuf, recvbuf, op, recent.limit)
        if plan is not None:
            recent.last = plan
            return
    self._run("Allreduce", sendbuf, recvbuf, op)


def Reduce(self, sendbuf, recvbuf, op=MPI.SUM, root=0):
    """Combine a vector from every rank and leave the result on one.

    Collective, with mpi4py's signature and buffer forms.

    Parameters
    ----------
    sendbuf, op
        As of `Allreduce`; in place at the root only.
    recvbuf : buffer or None
        At the root as of `Allreduce`; elsewhere it stays untouched.
    root : int, default 0
        The rank that gets the result; equal on all ranks.

    See Also
    --------
    hpccoll.reduce : the same as a function.
    """
    cdef Recent recent = self._recent
    if recent is not None and recent.repeated(
        "reduce", root, sendbuf, recvbuf if recent.rank == root else None, op
    ):
        return
    self._run("Reduce", sendbuf, recvbuf, op, root)


def Reduce_scatter_block(self, sendbuf, recvbuf, op=MPI.SUM):
    """Combine a vector from every rank and leave on each an equal chunk of the result.

    Collective, with mpi4py's signature and buffer forms.

    Parameters
    ----------
    sendbuf : buffer, MPI.IN_PLACE or None
        This rank's vector: as many elements as all `recvbuf` together. In place the vector is taken
        from `recvbuf`, and the chunk goes to the start of it, as MPI has it.
    recvbuf : buffer
        Receives the chunk.
    op
        As of `Allreduce`.

    See Also
    --------
    hpccoll.reduce_scatter : the same as a function.
    """
    cdef Recent recent = self._recent
    if recent is not None and recent.repeated("reduce_scatter", 0, sendbuf, recvbuf, op):
        return
    self._run("Reduce_scatter_block", sendbuf, recvbuf, op)


def Reduce_scatter(self, sendbuf, recvbuf, recvcounts=None, op=MPI.SUM):
    """Combine a vector from every rank and leave on each a chunk of the result.

    Collective, with mpi4py's signature and buffer forms.

    Parameters
    ----------
    sendbuf : buffer, MPI.IN_PLACE or None
        As of `Reduce_scatter_block`.
    recvbuf : buffer
        Receives the chunk: as many elements as `recvcounts` has for this rank.
    recvcounts : sequence of int, optional
        Elements of each rank's chunk; equal on all ranks. Default: ranks tell each other the sizes
        of their `recvbuf`; not in place.
    op
        As of `Allreduce`.

    See Also
    --------
    hpccoll.reduce_scatter : the same as a function.
    """
    self._run("Reduce_scatter", sendbuf, recvbuf, recvcounts, op)


def Allgather(self, sendbuf, recvbuf):
    """Join equal chunks from all ranks, and leave all of them on every rank.

    Collective, with mpi4py's signature and buffer forms.

    Parameters
    ----------
    sendbuf : buffer, MPI.IN_PLACE or None
        This rank's chunk. In place it stands in `recvbuf`, where it belongs.
    recvbuf : buffer
        Receives the chunks, that of rank 0 first.

    Notes
    -----
    Whether a datatype is a derived one must be the same on all ranks: those that have one leave the
    call to the MPI library.

    See Also
    --------
    hpccoll.allgather : the same as a function.
    """
    cdef Recent recent = self._recent
    if recent is not None and recent.repeated("allgather", 0, sendbuf, recvbuf, None):
        return
    self._run("Allgather", sendbuf, recvbuf)


def Allgatherv(self, sendbuf, recvbuf):
    """Join chunks from all ranks, and leave all of them on every rank.

    Collective, with mpi4py's signature and buffer forms.

    Parameters
    ----------
    sendbuf : buffer, MPI.IN_PLACE or None
        As of `Allgather`.
    recvbuf : buffer
        An array, or ``[array, counts]``, ``[array, counts, displacements, datatype]`` and the like,
        with equal counts on all ranks.

    See Also
    --------
    hpccoll.allgather : the same as a function.
    """
    self._run("Allgatherv", sendbuf, recvbuf)


def Bcast(self, buf, root=0):
    """Copy a vector from one rank to all.

    Collective, with mpi4py's signature and buffer forms.

    Parameters
    ----------
    buf : buffer
        At the root what is copied, which may be read-only; elsewhere it is overwritten.
    root : int, default 0
        The rank that has the vector; equal on all ranks.

    Notes
    -----
    Whether a datatype is a derived one must be the same on all ranks, as of `Allgather`.

    See Also
    --------
    hpccoll.broadcast : the same as a function.
    """
    cdef Recent recent = self._recent
    if recent is not None:
        if recent.rank == root:
            if recent.repeated("broadcast", root, buf, None, None):
                return
        elif recent.repeated("broadcast", root, None, buf, None):
            return
    self._run("Bcast", buf, root)


def Barrier(self):
    """Return when all ranks have called it. Collective."""
    cdef Recent recent = self._recent
    if recent is not None and recent.repeated("barrier", 0, None, NOTHING, None):
        return
    self._run("Barrier")


# What a barrier moves; hpccoll.jobs sets it.
NOTHING = None
