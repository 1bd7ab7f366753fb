"""`Comm`: an `mpi4py.MPI.Intracomm` whose `Allreduce` is hpccoll's."""

from typing import Any

from mpi4py import MPI

from hpccoll import _comm, buffers
from hpccoll._plans import Plan
from hpccoll.algorithms import AUTO
from hpccoll.buffers import is_number
from hpccoll.calls import Call, call_of
from hpccoll.channel import OPERATION_OBJECTS, channel_of
from hpccoll.collectives import Caller, allreduce_arrays
from hpccoll.ops import find_operation
from hpccoll.selection import Settings


class Comm(MPI.Intracomm):
    """A communicator whose `Allreduce` runs hpccoll's algorithms; a drop-in for mpi4py's.

    It is the same communicator: the same handle, equal to `comm`, with all methods of
    `mpi4py.MPI.Intracomm`. What `hpccoll.Comm` does not implement goes to the MPI library.
    ``Dup``, ``Split``, ``Create`` and the like return an `hpccoll.Comm` with the same settings.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm, default MPI.COMM_NULL
        The communicator.
    algorithm : str, default "auto"
        A name of `hpccoll.algorithms`, or "auto": what the environment variable
        ``HPCCOLL_ALGORITHM`` of rank 0 names, else a choice by nodes, number of ranks, bytes and
        count. Equal on all ranks.
    segment_bytes : int, optional
        Upper limit of one message in bytes, rounded down to whole elements, at least one. Default:
        512 KiB. Without effect where no message is sent. Equal on all ranks.

    Raises
    ------
    TypeError
        `comm` is no intracommunicator, or a setting has the wrong type.
    ValueError
        The algorithm is unknown, or `segment_bytes` is not positive.

    Examples
    --------
    >>> import numpy as np, hpccoll
    >>> from mpi4py import MPI
    >>> comm = hpccoll.Comm(MPI.COMM_WORLD)
    >>> x = np.ones(1000)
    >>> comm.Allreduce(MPI.IN_PLACE, x, op=MPI.SUM)
    >>> comm.last_call.path
    'point-to-point'
    """

    # Class attributes: mpi4py makes instances of this class (in `Dup`) without calling `__init__`.
    _settings: Settings = Settings()
    _recent: _comm.Recent | None = None

    def __new__(
        cls,
        comm: MPI.Comm | None = None,
        *,
        algorithm: str = AUTO,
        segment_bytes: int | None = None,
    ) -> "Comm":
        """Wrap a communicator."""
        settings = Settings(algorithm, segment_bytes)
        with Caller("Comm", comm):
            null = comm is None or (isinstance(comm, MPI.Comm) and comm == MPI.COMM_NULL)
            if not null and not isinstance(comm, MPI.Intracomm):
                kind = "an intercommunicator" if isinstance(comm, MPI.Intercomm) else repr(comm)
                message = f"comm is {kind}; wanted an mpi4py.MPI.Intracomm"
                raise TypeError(message)
            settings.check()
        self = super().__new__(cls, comm)
        self._settings = settings
        return self

    @property
    def settings(self) -> Settings:
        """The settings that this communicator was made with."""
        return self._settings

    @property
    def last_call(self) -> Call | None:
        """What the last all-reduce through this object did on this rank; None before the first."""
        last = None if self._recent is None else self._recent.last
        return call_of(last) if isinstance(last, Plan) else last

    def note_call(self, call: "Plan | Call") -> None:
        """Remember what `last_call` tells."""
        if self._recent is None:
            self._recent = _comm.Recent()
        self._recent.last = call

    # -- collectives -------------------------------------------------------------------------------

    Allreduce = _comm.Allreduce

    def _allreduce(self, sendbuf: Any, recvbuf: Any, op: MPI.Op | str) -> None:
        with Caller("Allreduce", self) as caller:
            if self == MPI.COMM_NULL:
                message = "the communicator is MPI.COMM_NULL; it may have been freed"
                raise ValueError(message)
            operation = find_operation(op)
            out = buffers.of_spec(recvbuf, "recvbuf")
            in_place = sendbuf is None or sendbuf is MPI.IN_PLACE
            x = out if in_place else buffers.of_spec(sendbuf, "sendbuf")
            if (
                operation is None
                or x is None
                or out is None
                or not (is_number(x.dtype) and is_number(out.dtype))
            ):
                if isinstance(op, str):
                    message = f"op {op!r} needs arrays of numbers in host memory"
                    raise TypeError(message)
                super().Allreduce(sendbuf, recvbuf, op)
                predefined = [name for known, name in OPERATION_OBJECTS if known is op]
                caller.ran = Call(
                    collective="allreduce",
                    path="native",
                    algorithm="native",
                    op=predefined[0] if predefined else "other",
                    dtype="unknown" if out is None else str(out.dtype),
                    count=-1 if out is None else out.size,
                    nbytes=-1 if out is None else out.nbytes,
                    size=self.size,
                )
                return
            if x.size != out.size:
                message = f"recvbuf has {out.size} elements, sendbuf has {x.size}; they must agree"
                raise ValueError(message)
            if x.shape != out.shape:
                x = x.reshape(out.shape)
            caller.ran = allreduce_arrays(
                "Allreduce", self, self._settings, operation, x, out, ("sendbuf", "recvbuf")
            )
            if self._recent is None:
                self._recent = _comm.Recent()
            self._recent.plans = channel_of(self, "Allreduce").plans(self._settings)

    # -- communicators made from this one ----------------------------------------------------------

    def _adopt(self, comm: MPI.Comm) -> "Comm":
        """Return `comm` as an `hpccoll.Comm` with this one's settings; also COMM_NULL."""
        adopted = type(self)(MPI.Intracomm(comm))
        adopted._settings = self._settings
        return adopted

    def Dup(self, info: MPI.Info | None = None) -> "Comm":  # noqa: N802
        """Duplicate, with the settings. Collective."""
        return self._adopt(super().Dup(info))

    def Dup_with_info(self, info: MPI.Info) -> "Comm":  # noqa: N802
        """Duplicate with hints, with the settings. Collective."""
        return self._adopt(super().Dup_with_info(info))

    def Clone(self) -> "Comm":  # noqa: N802
        """Duplicate, with the settings. Collective."""
        return self._adopt(super().Clone())

    def Create(self, group: MPI.Group) -> "Comm":  # noqa: N802
        """Make a communicator of a group, with the settings. Collective."""
        return self._adopt(super().Create(group))

    def Create_group(self, group: MPI.Group, tag: int = 0) -> "Comm":  # noqa: N802
        """Make a communicator of a group, with the settings. Collective over the group."""
        return self._adopt(super().Create_group(group, tag))

    def Split(self, color: int = 0, key: int = 0) -> "Comm":  # noqa: N802
        """Split by color and order by key, with the settings. Collective."""
        return self._adopt(super().Split(color, key))

    def Split_type(  # noqa: N802
        self, split_type: int, key: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> "Comm":
        """Split by a property of the machine, with the settings. Collective."""
        return self._adopt(super().Split_type(split_type, key, info))

    def Idup(self, info: MPI.Info | None = None) -> "tuple[Comm, MPI.Request]":  # noqa: N802
        """Begin to duplicate, with the settings. Collective."""
        comm, request = super().Idup(info)
        return self._adopt(comm), request

    def Idup_with_info(self, info: MPI.Info) -> "tuple[Comm, MPI.Request]":  # noqa: N802
        """Begin to duplicate with hints, with the settings. Collective."""
        comm, request = super().Idup_with_info(info)
        return self._adopt(comm), request

    def Shrink(self) -> "Comm":  # noqa: N802
        """Make a communicator of the ranks that have not failed, with the settings."""
        return self._adopt(super().Shrink())
