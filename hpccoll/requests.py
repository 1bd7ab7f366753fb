"""Non-blocking and persistent calls of `hpccoll.Comm`, with mpi4py's signatures.

`Request` is what ``Iallreduce`` and the like return, `PersistentRequest` what ``Allreduce_init``
and the like do. Who runs them, and when: `hpccoll.progress`.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from mpi4py import MPI

from hpccoll._plans import Plan
from hpccoll._requests import Persistent
from hpccoll.calls import Call, Caller, call_of
from hpccoll.channel import Channel
from hpccoll.forks import is_forked, refuse_forked
from hpccoll.jobs import Deferred, Job
from hpccoll.native import leave_to_mpi
from hpccoll.progress import Progress, Ticket, progress_of
from hpccoll.task import STAGE_BYTES

if TYPE_CHECKING:
    from hpccoll.cuda.streams import Moment

SMALL_BYTES = STAGE_BYTES
"""Persistent calls on vectors up to this size run in `Wait`: waking a thread takes longer."""


class Request(MPI.Grequest):
    """A non-blocking call: a generalized request of MPI, so that MPI's own waits take it.

    Its own `Wait` and `Test` raise what the call raised; those of MPI for several requests
    (``MPI.Request.Waitall``) raise an `mpi4py.MPI.Exception` in its place, and `Wait` tells more.
    """

    _ticket: Ticket
    _progress: Progress
    _comm: Any

    @classmethod
    def begin(cls, comm: Any, call: str, job: Job | Deferred) -> "Request":
        """Queue a job, and return the request for it."""
        progress = progress_of(comm, call, comm.settings.timeout)
        tickets: list[Ticket] = []

        def query(status: MPI.Status) -> None:
            status.Set_elements(MPI.BYTE, 0)
            if tickets[0].error is not None and not tickets[0].told:
                raise MPI.Exception(MPI.ERR_OTHER)

        # Two objects for one request: a wait sets the handle of the user's to null.
        ours = MPI.Grequest.Start(query)
        request = cls(ours)
        ticket = Ticket(Caller(call, comm), progress.run_job(job), ours.Complete)
        tickets.append(ticket)
        request._ticket, request._progress, request._comm = ticket, progress, comm
        progress.enqueue(ticket)
        return request

    def Wait(self, status: MPI.Status | None = None) -> Any:  # noqa: N802
        """Return True when the call is complete; at once where it was waited for before.

        Raises
        ------
        Exception
            What the call raised.
        """
        if self == MPI.REQUEST_NULL:
            self._tell()
            return True
        try:
            self._progress.complete(self._ticket)
        finally:
            self._release(status)
        return True

    def _tell(self) -> None:
        """Raise what the call raised, once: a wait for several requests did not say what."""
        if self._ticket.error is not None and not self._ticket.told:
            self._ticket.told = True
            raise self._ticket.error

    def Test(self, status: MPI.Status | None = None) -> bool:  # noqa: N802
        """Return whether the call is complete.

        Raises
        ------
        Exception
            What the call raised.
        """
        if self == MPI.REQUEST_NULL:
            return self.Wait(status) is True
        if not self._progress.threaded:
            self._progress.advance(self._ticket)
        return bool(self._ticket.done and self.Wait(status))

    def wait(self, status: MPI.Status | None = None) -> Any:
        """As `Wait`."""
        return self.Wait(status)

    def test(self, status: MPI.Status | None = None) -> tuple[bool, Any | None]:
        """As `Test`, with None for a message, as mpi4py has it."""
        return self.Test(status), None

    @property
    def call(self) -> Call | None:
        """What the call did on this rank; None before it is complete, and where it failed."""
        return None if self._ticket.plan is None else call_of(self._ticket.plan)

    def _release(self, status: MPI.Status | None) -> None:
        """Give MPI's request back, of a call that has run."""
        if self._ticket.plan is not None:
            self._comm.note_call(self._ticket.plan)
        if not self._ticket.done:
            return  # interrupted: it goes on, and can be waited for again
        if is_forked():
            return  # MPI's request is the parent's
        self._ticket.told = True  # or will be, by who called this
        MPI.Request.Wait(self, status)


class PersistentRequest(Persistent):
    """A collective call that is prepared once: ``Start`` and ``Wait`` it as often as you like.

    Not an `mpi4py.MPI.Request`: of several, start and wait for each. Calls run in the order in
    which they were started, which is the same on all ranks.
    """

    _ran: Plan | Call | None = None

    def __init__(self, comm: Any, call: str, job: Job | Deferred) -> None:
        self._comm, self._call = comm, call
        progress = progress_of(comm, call, comm.settings.timeout)
        # A function, and no method of this object: it would live until the garbage collector runs,
        # with its buffers and the channel.
        super().__init__(
            progress.line,
            lambda request: progress.enqueue(request.new_ticket()),
            progress.take_over,
            progress.complete,
        )
        self._progress = progress
        # Behind what is queued: ranks may have to tell each other something.
        progress.complete(progress.enqueue(Ticket(Caller(call, comm), self._prepared(job))))
        if self.bound is not None:
            progress.watch()

    def _prepared(self, given: Job | Deferred) -> Callable[[Channel], Plan | None]:
        """Return what prepares a job."""

        def run(channel: Channel) -> Plan | None:
            try:
                self._job = job = given.make(channel) if isinstance(given, Deferred) else given
                if not job.is_plain:
                    return None
                job.compare_first(channel)
                return self._bind(channel)
            except BaseException:
                self._progress.line.closed = True
                raise

        return run

    def _bind(self, channel: Channel) -> Plan:
        """Make a plan of this request's own. A local operation."""
        job = self._job
        plan, source, target = job.prepare(channel)
        self.bind(
            plan, channel.turn, channel.clock, channel.limit(job.settings), source, target,
            channel.after_failure,
            job.count * job.dtype.itemsize <= SMALL_BYTES or not self._progress.threaded,
        )  # fmt: skip
        return plan

    def new_ticket(self) -> Ticket:
        """Return a ticket for one run, after what the caller did so far."""
        return Ticket(Caller(self._call, self._comm), partial(self._run, self._job.record()))

    def _run(self, moment: "Moment | None", channel: Channel) -> Plan | Call:
        if self.bound is None:
            self._ran = self._job.run(channel, moment)
            return self._ran
        if self._progress.line.closed:
            with channel.turn:
                channel.settle(channel.limit(self._job.settings))
            self._progress.line.closed = False
        if not self.bound.usable:  # its last run did not end
            self.bound.free()
            self._bind(channel)
        self.run_bound()
        return self.bound

    def Test(self, status: MPI.Status | None = None) -> bool:  # noqa: N802
        """Return whether the call is complete.

        Without a progress thread (MPI below ``MPI.THREAD_MULTIPLE``) this is where it runs, and it
        waits for the other ranks.

        Raises
        ------
        Exception
            What the call raised.
        """
        return super().Test(status) if self._progress.threaded else self.Wait(status)

    test = Test

    @property
    def call(self) -> Call | None:
        """What the last run did on this rank; None before the first."""
        plan = self.bound if self.has_run else self._ran
        return None if plan is None else call_of(plan)

    def sentence(self, method: str, state: str) -> str:
        """Return the text of an error."""
        sentence = f"{self._call}: {method} on a request that {state}"
        if self._comm == MPI.COMM_NULL:  # freed meanwhile
            return sentence
        return f"{sentence} (rank {self._comm.rank} of {self._comm.size})"

    def __enter__(self) -> "PersistentRequest":
        """Use the request in a ``with`` block, which frees it."""
        return self

    def __exit__(self, *exception: object) -> None:
        """Free the request."""
        if not self.active and not self.freed:
            self.Free()


class NonblockingCalls:
    """The methods of `hpccoll.Comm` that begin a call, or prepare one."""

    def _begin(self, name: str, *arguments: Any) -> MPI.Request:
        call = f"I{name.lower()}"
        with Caller(call, self):
            job = self._understood(name, call, arguments)  # type: ignore[attr-defined]
            if job is None or not _can_be_waited_for(job):
                refuse_forked(call)
                leave_to_mpi(arguments)
                native: MPI.Request = getattr(MPI.Intracomm, call)(self, *arguments)
                return native
            return Request.begin(self, call, job)

    def _prepare(self, name: str, *arguments: Any, info: MPI.Info) -> Any:
        call = f"{name}_init"
        with Caller(call, self):
            job = self._understood(name, call, arguments)  # type: ignore[attr-defined]
            if job is None:
                refuse_forked(call)
                leave_to_mpi(arguments, persistent=True)
                return getattr(MPI.Intracomm, call)(self, *arguments, info)
            return PersistentRequest(self, call, job)

    def Iallreduce(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, op: "MPI.Op | str" = MPI.SUM
    ) -> MPI.Request:
        """Begin an `Allreduce`."""
        return self._begin("Allreduce", sendbuf, recvbuf, op)

    def Ireduce(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, op: "MPI.Op | str" = MPI.SUM, root: int = 0
    ) -> MPI.Request:
        """Begin a `Reduce`."""
        return self._begin("Reduce", sendbuf, recvbuf, op, root)

    def Ireduce_scatter_block(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, op: "MPI.Op | str" = MPI.SUM
    ) -> MPI.Request:
        """Begin a `Reduce_scatter_block`."""
        return self._begin("Reduce_scatter_block", sendbuf, recvbuf, op)

    def Ireduce_scatter(  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: "MPI.Op | str" = MPI.SUM,
    ) -> MPI.Request:
        """Begin a `Reduce_scatter`."""
        return self._begin("Reduce_scatter", sendbuf, recvbuf, recvcounts, op)

    def Iallgather(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:  # noqa: N802
        """Begin an `Allgather`."""
        return self._begin("Allgather", sendbuf, recvbuf)

    def Iallgatherv(self, sendbuf: Any, recvbuf: Any) -> MPI.Request:  # noqa: N802
        """Begin an `Allgatherv`."""
        return self._begin("Allgatherv", sendbuf, recvbuf)

    def Ibcast(self, buf: Any, root: int = 0) -> MPI.Request:  # noqa: N802
        """Begin a `Bcast`."""
        return self._begin("Bcast", buf, root)

    def Ibarrier(self) -> MPI.Request:  # noqa: N802
        """Begin a `Barrier`."""
        return self._begin("Barrier")

    def Allreduce_init(  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: "MPI.Op | str" = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> Any:
        """Prepare an `Allreduce`. Collective."""
        return self._prepare("Allreduce", sendbuf, recvbuf, op, info=info)

    def Reduce_init(  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: "MPI.Op | str" = MPI.SUM,
        root: int = 0,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> Any:
        """Prepare a `Reduce`. Collective."""
        return self._prepare("Reduce", sendbuf, recvbuf, op, root, info=info)

    def Reduce_scatter_block_init(  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        op: "MPI.Op | str" = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> Any:
        """Prepare a `Reduce_scatter_block`. Collective."""
        return self._prepare("Reduce_scatter_block", sendbuf, recvbuf, op, info=info)

    def Reduce_scatter_init(  # noqa: N802
        self,
        sendbuf: Any,
        recvbuf: Any,
        recvcounts: Sequence[int] | None = None,
        op: "MPI.Op | str" = MPI.SUM,
        info: MPI.Info = MPI.INFO_NULL,
    ) -> Any:
        """Prepare a `Reduce_scatter`. Collective."""
        return self._prepare("Reduce_scatter", sendbuf, recvbuf, recvcounts, op, info=info)

    def Allgather_init(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> Any:
        """Prepare an `Allgather`. Collective."""
        return self._prepare("Allgather", sendbuf, recvbuf, info=info)

    def Allgatherv_init(  # noqa: N802
        self, sendbuf: Any, recvbuf: Any, info: MPI.Info = MPI.INFO_NULL
    ) -> Any:
        """Prepare an `Allgatherv`. Collective."""
        return self._prepare("Allgatherv", sendbuf, recvbuf, info=info)

    def Bcast_init(  # noqa: N802
        self, buf: Any, root: int = 0, info: MPI.Info = MPI.INFO_NULL
    ) -> Any:
        """Prepare a `Bcast`. Collective."""
        return self._prepare("Bcast", buf, root, info=info)

    def Barrier_init(self, info: MPI.Info = MPI.INFO_NULL) -> Any:  # noqa: N802
        """Prepare a `Barrier`. Collective."""
        return self._prepare("Barrier", info=info)


def _can_be_waited_for(job: Job | Deferred) -> bool:
    """Whether MPI's own waits complete a request for this job.

    Without a thread ours would run only in its own `Wait`; so what the MPI library can do, it does.
    """
    if MPI.Query_thread() == MPI.THREAD_MULTIPLE or job.on_device:  # MPI knows of no streams
        return True
    operation = job.operation if isinstance(job, Job) else None
    return operation is not None and not operation.mpi
