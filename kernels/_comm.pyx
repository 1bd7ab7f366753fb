# cython: language_level=3
"""The part of `hpccoll.Comm` that every call goes through: a repeated call ends here.

For vectors of a few bytes on one node, a frame of Python would take as long as the reduction.
"""

cimport cython
from mpi4py import MPI

from hpccoll._plans cimport Plan, PlanCache


@cython.final
cdef class Recent:
    """What a communicator object has for its next call, and of its last one.

    Attributes
    ----------
    plans : PlanCache or None
        The plans made with its settings; None before the first.
    last : Plan, Call or None
        What ran.
    """

    cdef public PlanCache plans
    cdef public object last


def Allreduce(self, sendbuf, recvbuf, op=MPI.SUM):
    """Combine a vector from every rank and leave the result on every rank.

    Collective, with mpi4py's signature and buffer forms. All ranks get identical bytes.

    Parameters
    ----------
    sendbuf : buffer, MPI.IN_PLACE or None
        This rank's vector: an array, or ``[array, count]``, ``[array, datatype]``,
        ``[array, count, datatype]``, ``[array, (count, displacement), datatype]``. Arrays of
        any layout; elements pair up by index. In place (MPI.IN_PLACE, None, or the memory of
        `recvbuf`) the vector is taken from `recvbuf`.
    recvbuf : buffer
        Receives the result: the same count and type, writable.
    op : mpi4py.MPI.Op or str, default MPI.SUM
        A predefined operation or one of hpccoll's names ("mean", "fmin", ...). Others
        (user-made, MAXLOC, MINLOC) go to the MPI library, as do derived datatypes and device
        memory; `last_call.path` says "native" then.

    Raises
    ------
    TypeError
        Types differ, or the operation makes no sense on the type.
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
    if recent is not None and recent.plans is not None:
        plan = recent.plans.repeat(sendbuf, recvbuf, op)
        if plan is not None:
            recent.last = plan
            return
    self._allreduce(sendbuf, recvbuf, op)
