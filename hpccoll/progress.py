"""Progress: non-blocking and persistent calls of one communicator run here, in call order.

They have a channel of their own, so that blocking calls may be made in between. Where MPI allows
calls from several threads (``MPI.THREAD_MULTIPLE``), a thread runs what is queued; whoever waits
for a call takes part. Elsewhere calls run when they are waited for.

The thread holds the interpreter lock only between messages: it sleeps, or works, in C.
"""

import atexit
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from itertools import count

from mpi4py import MPI

from hpccoll._plans import Plan
from hpccoll._requests import Line, Persistent
from hpccoll.calls import Caller
from hpccoll.channel import Attachment, Channel, postpone_closing
from hpccoll.jobs import Deferred, Job

LONGEST_NAP = 1e-3
"""Seconds between two looks whether all ranks have duplicated the communicator."""

LONGEST_HOLD = 0.01
"""Seconds between two looks whether a small persistent call was started, and nobody waits for it.

Other ranks may wait for it, and this one for them: in a call that is none of ours.
"""

EXIT_PATIENCE = 5.0
"""Seconds that a process waits at its end for calls that are still under way."""


class Ticket:
    """One call in the queue.

    Attributes
    ----------
    done : bool
        Whether it has run.
    error : BaseException or None
        What it raised.
    plan : Plan or None
        What ran.
    told : bool
        Whether the error is raised by hpccoll's own wait, so that MPI's need not report one.
    """

    __slots__ = ("_caller", "_on_done", "_run", "done", "error", "plan", "told")

    def __init__(
        self,
        caller: Caller,
        run: Callable[[Channel], Plan | None],
        on_done: Callable[[], object] | None = None,
    ) -> None:
        self._caller = caller
        self._run: Callable[[Channel], Plan | None] | None = run
        self._on_done = on_done
        self.done = False
        self.error: BaseException | None = None
        self.plan: Plan | None = None
        self.told = False

    def run(self, progress: "Progress") -> None:
        """Run the call; what it raises is kept for who waits."""
        assert self._run is not None
        try:
            with self._caller:
                self.plan = self._run(progress.channel)
        except BaseException as error:
            self.error = error
        self._run = None  # lets go of the buffers
        self.done = True

    def tell(self) -> None:
        """Tell that the call has run."""
        if self._on_done is not None:
            self._on_done()


class Progress:
    """The queue of one communicator. Use `progress_of`, which makes or finds it.

    Attributes
    ----------
    threaded : bool
        Whether calls run by themselves.
    line : Line
        Of small persistent calls.
    """

    def __init__(self, comm: MPI.Intracomm) -> None:
        self.threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.line = Line()
        self._queue: deque[Ticket] = deque()
        self._runner = threading.Lock()
        self._news = threading.Event()
        self._open = threading.Event()
        self._stopping = False
        self._longest_sleep: float | None = None
        self._leases: set[int] = set()
        self._channel: Channel | None = None
        self._refusal: BaseException | None = None
        self._thread: threading.Thread | None = None
        # Local, and in order with the other collectives of the communicator: the others may make
        # their call at any time.
        self._private, self._duplication = MPI.Intracomm.Idup(comm)
        if not _opens_in_thread():
            self._make_channel()
        if self.threaded:
            name = f"hpccoll progress of {comm.Get_name() or 'a communicator'}"
            self._thread = threading.Thread(target=self._serve, name=name, daemon=True)
            self._thread.start()
        _all.add(self)

    @property
    def channel(self) -> Channel:
        """Where calls run. Waits until all ranks have made their first call."""
        self._open.wait()
        if self._refusal is not None:
            raise self._refusal
        assert self._channel is not None
        return self._channel

    def _make_channel(self) -> None:
        nap = 1e-5
        while not self._duplication.Test():
            time.sleep(nap)
            nap = min(2 * nap, LONGEST_NAP)
        try:
            self._channel = Channel.on_private(MPI.Intracomm(self._private), background=True)
        except BaseException as error:
            self._refusal = error
        self._open.set()

    def _serve(self) -> None:
        """Run what is queued; the thread's work."""
        postponed = postpone_closing()
        if not self._open.is_set():
            self._make_channel()
        while self._queue or not (self._stopping or postponed):
            if not self._news.wait(self._longest_sleep):
                self._take_over_held()
            self._news.clear()
            self.advance()
        for closable in postponed:
            closable.close()

    def enqueue(self, ticket: Ticket) -> Ticket:
        """Have a call run behind those that were made before it."""
        self._take_over_held()
        self.line.queued += 1
        self._queue.append(ticket)
        self._news.set()
        return ticket

    def take_over(self, request: Persistent) -> None:
        """Have a call run that is held, unless somebody runs it already."""
        ticket = request.new_ticket()  # type: ignore[attr-defined]
        if self.line.hand_over(self._queue, request, ticket):
            self._news.set()

    def _take_over_held(self) -> None:
        held = self.line.held
        if held is not None:
            self.take_over(held)

    def watch(self) -> None:
        """Look from now on whether calls are held that nobody waits for."""
        if self.threaded and self._longest_sleep is None:
            self._longest_sleep = LONGEST_HOLD
            self._news.set()

    def advance(self, until: Ticket | None = None) -> None:
        """Run what is queued, in order: all of it, or until a call is done."""
        while self._queue and not (until is not None and until.done):
            with self._runner:
                if not self._queue or (until is not None and until.done):
                    return
                ticket = self._queue[0]
                if not ticket.done:  # an interrupt may have come behind it
                    ticket.run(self)
                self._queue.popleft()
                self.line.queued -= 1
            ticket.tell()

    def complete(self, ticket: Ticket) -> None:
        """Return when a call has run; raise its error."""
        if not ticket.done:
            self.advance(ticket)
        if ticket.error is not None:
            raise ticket.error

    def run_job(self, job: Job | Deferred) -> Callable[[Channel], Plan]:
        """Return what runs a job on the channel of this queue."""

        def run(channel: Channel) -> Plan:
            try:
                return job.run(channel)
            except BaseException:
                self.line.closed = True
                raise

        return run

    def settle_first_call(self) -> None:
        """Return when there is a channel, or an error in its place."""
        self._open.wait()

    def lease(self) -> int:
        """Return a number that nobody else on the communicator has: memory is named by it."""
        number = next(number for number in count() if number not in self._leases)
        self._leases.add(number)
        return number

    def give_back(self, number: int) -> None:
        """End a lease."""
        self._leases.discard(number)

    def stop(self, patience: float | None = None) -> None:
        """End the thread when it has run what was begun."""
        self._take_over_held()
        self._stopping = True
        self._news.set()
        if self._thread is not None:
            self._thread.join(patience)

    def close(self) -> None:
        """Run what was begun, and free the channel. Collective."""
        if threading.current_thread() is not self._thread:
            self.stop()
        if not self.threaded:
            self.advance()
        self.line.ended = True
        if self._refusal is None:
            self.channel.close()


def _opens_in_thread() -> bool:
    """Whether the thread may make the channel, so that the first call on a communicator is local.

    Open MPI 5.0 mixes up communicators that two threads make at the same time (a test of an Idup
    beside a Dup: messages of the one arrive in the other): there the first call makes the channel,
    and returns when all ranks have made theirs.
    """
    threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    return threaded and MPI.get_vendor()[0] != "Open MPI"


_all: "weakref.WeakSet[Progress]" = weakref.WeakSet()
_attachment = Attachment(Progress)


@atexit.register
def _stop_all() -> None:
    for progress in list(_all):
        progress.stop(EXIT_PATIENCE)


def progress_of(comm: MPI.Intracomm, call: str) -> Progress:
    """Return the queue of a communicator; the first call makes it.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The communicator.
    call : str
        For messages: the call that the user made.

    Raises
    ------
    RuntimeError
        In a forked child.
    """
    return _attachment.of(comm, call)


def settle_first_call(comm: MPI.Intracomm) -> None:
    """Return when the first non-blocking call on a communicator, if any, has come to all ranks.

    To be called before a communicator is freed: its channel is made of it until then.
    """
    if comm != MPI.COMM_NULL and not MPI.Is_finalized():
        progress = _attachment.find(comm)
        if progress is not None:
            progress.settle_first_call()


def thread_levels() -> dict[str, str]:
    """Return how non-blocking calls progress, for `hpccoll.info`."""
    threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    note = "" if threaded else "MPI was started below MPI.THREAD_MULTIPLE"
    return {"progress": "thread" if threaded else "in test and wait", "note": note}
