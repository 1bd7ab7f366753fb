"""`Comm`: an `mpi4py.MPI.Intracomm` whose collectives are hpccoll's."""

from typing import Any

from mpi4py import MPI

from hpccoll import _comm, specs
from hpccoll._plans import Plan
from hpccoll.algorithms import AUTO
from hpccoll.calls import Call, Caller, call_of, native_call
from hpccoll.channel import channel_of
from hpccoll.forks import refuse_forked
from hpccoll.jobs import Deferred, Job
from hpccoll.native import leave_to_mpi
from hpccoll.progress import settle_first_call
from hpccoll.requests import NonblockingCalls
from hpccoll.selection import Settings


class Comm(NonblockingCalls, MPI.Intracomm):
    """A communicator whose collectives run hpccoll's algorithms; a drop-in for mpi4py's.

    It is the same communicator: the same handle, equal to `comm`, with all methods of
    `mpi4py.MPI.Intracomm`. What `hpccoll.Comm` does not implement goes to the MPI library.
    ``Dup``, ``Split``, ``Create`` and the like return an `hpccoll.Comm` with the same settings.
    Calls on arrays in GPU memory are on their current stream, as of `hpccoll.allreduce`.

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
        512 KiB, and 2 MiB of arrays in GPU memory. Without effect where no message is sent. Equal
        on all ranks.
    timeout : float, optional
        Seconds that this rank waits for one thing (a message, a step of a peer in shared memory)
        before it gives a call up. Default: ``HPCCOLL_TIMEOUT``, else any time, with a warning on
        stderr after 60 s.
    check : bool, optional
        Whether ranks compare what they call before data moves; equal on all ranks. Default:
        ``HPCCOLL_CHECK`` of rank 0, else not.

    Raises
    ------
    TypeError
        `comm` is no intracommunicator, or a setting has the wrong type.
    ValueError
        The algorithm is unknown, or `segment_bytes` or `timeout` is not positive.

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
        timeout: float | None = None,
        check: bool | None = None,
    ) -> "Comm":
        """Wrap a communicator."""
        settings = Settings(algorithm, segment_bytes, timeout, check)
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
        """What the last collective through this object did on this rank; None before the first."""
        last = None if self._recent is None else self._recent.last
        return call_of(last) if isinstance(last, Plan) else last

    def note_call(self, call: "Plan | Call") -> None:
        """Remember what `last_call` tells."""
        if self._recent is None:
            if self == MPI.COMM_NULL:  # freed while the call was under way
                return
            self._recent = _comm.Recent(self.rank)
        self._recent.last = call

    # -- collectives -------------------------------------------------------------------------------

    Allreduce = _comm.Allreduce
    Reduce = _comm.Reduce
    Reduce_scatter_block = _comm.Reduce_scatter_block
    Reduce_scatter = _comm.Reduce_scatter
    Allgather = _comm.Allgather
    Allgatherv = _comm.Allgatherv
    Bcast = _comm.Bcast
    Barrier = _comm.Barrier

    def _run(self, name: str, *arguments: Any) -> None:
        """Make a call that is no repetition of an earlier one."""
        with Caller(name, self) as caller:
            job = self._understood(name, name, arguments)
            if job is None:
                refuse_forked(name)
                leave_to_mpi(arguments)
                getattr(MPI.Intracomm, name)(self, *arguments)
                caller.ran = native_call(name, arguments, self.size)
                return
            channel = channel_of(self, name, self._settings.timeout)
            caller.ran = job.run(channel)
        recent = self._recent
        assert recent is not None  # `Caller` has noted the call
        if (
            not isinstance(job, Job)
            or job.on_device
            or (channel.is_checked(self._settings) and not job.headers_tell)
        ):
            return  # each call comes this way
        if job.pattern.counts is None:
            pattern = job.pattern
            plans = channel.plans(self._settings, pattern)
            recent.plans[pattern.collective, pattern.root] = plans
            recent.limit = channel.limit(self._settings)
            if pattern.collective == "allreduce":
                recent.all_reduce = plans

    def _understood(self, name: str, call: str, arguments: Any) -> "Job | Deferred | None":
        """Return the job of a call; None where it is the MPI library's."""
        if self == MPI.COMM_NULL:
            message = "the communicator is MPI.COMM_NULL; it may have been freed"
            raise ValueError(message)
        return specs.COLLECTIVES[name](self, call, *arguments)

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

    def Free(self) -> None:  # noqa: N802
        """Free the communicator. Collective; calls under way complete first."""
        refuse_forked("Free")
        settle_first_call(self)
        super().Free()

    def Disconnect(self) -> None:  # noqa: N802
        """Free the communicator when all its messages have arrived. Collective."""
        refuse_forked("Disconnect")
        settle_first_call(self)
        super().Disconnect()

    def Shrink(self) -> "Comm":  # noqa: N802
        """Make a communicator of the ranks that have not failed, with the settings."""
        return self._adopt(super().Shrink())
