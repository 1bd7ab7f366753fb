"""Progress: non-blocking and persistent calls of one communicator run here, in call order.

They have a channel of their own, so that blocking calls may be made in between. Where MPI allows
calls from several threads (``MPI.THREAD_MULTIPLE``), a thread runs what is queued; whoever waits
for a call takes part. Elsewhere calls run when they are waited for.

The thread holds the interpreter lock only between messages: it sleeps, or works, in C.
"""

import atexit
import os
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable
from itertools import count

from mpi4py import MPI

from hpccoll._plans import Plan
from hpccoll._requests import Line, Persistent
from hpccoll.attachments import Attachment, postpone_closing
from hpccoll.calls import Call, Caller
from hpccoll.channel import Channel
from hpccoll.forks import is_forked, refuse_forked
from hpccoll.jobs import Deferred, Job

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
    caller : Caller
        The call that the user made.
    done : bool
        Whether it has run.
    error : BaseException or None
        What it raised.
    plan : Plan, Call or None
        What ran.
    told : bool
        Whether the error is raised by hpccoll's own wait, so that MPI's need not report one.
    """

    __slots__ = ("_on_done", "_run", "caller", "done", "error", "plan", "told")

    def __init__(
        self,
        caller: Caller,
        run: Callable[[Channel], Plan | Call | None],
        on_done: Callable[[], object] | None = None,
    ) -> None:
        self.caller = caller
        self._run: Callable[[Channel], Plan | Call | None] | None = run
        self._on_done = on_done
        self.done = False
        self.error: BaseException | None = None
        self.plan: Plan | Call | None = None
        self.told = False

    def run(self, progress: "Progress") -> None:
        """Run the call; what it raises is kept for who waits."""
        assert self._run is not None
        try:
            with self.caller:
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
        self.is_open = False
        self.threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
        self.line = Line()
        self._queue: deque[Ticket] = deque()
        self._runner = threading.Lock()
        self._news = threading.Event()
        self._open = threading.Event()
        self._stopping = False
        self._longest_sleep: float | None = None
        self._leases: set[int] = set()
        self._refusal: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._name = f"hpccoll progress of {comm.Get_name() or 'a communicator'}"
        # Local, and in order with the other collectives of the communicator: the others may make
        # their call at any time.
        self._channel = Channel(comm, background=True)
        _all.add(self)

    def open(self, call: str, timeout: float | None) -> None:
        """Begin to open the channel, in the thread where there is one that can."""
        if not _opens_in_thread():
            self._open_channel(call, timeout)
        if self.threaded:
            self._thread = threading.Thread(
                target=self._serve, args=(call, timeout), name=self._name, daemon=True
            )
            self._thread.start()
        self.is_open = True

    @property
    def channel(self) -> Channel:
        """Where calls run. Waits until all ranks have made their first call."""
        self._open.wait()
        if self._refusal is not None:
            raise self._refusal
        return self._channel

    def _open_channel(self, call: str, timeout: float | None) -> None:
        try:
            self._channel.open(call, timeout)
        except KeyboardInterrupt:
            raise  # the next call goes on with it
        except BaseException as error:
            self._refusal = error
        self._open.set()

    def _serve(self, call: str, timeout: float | None) -> None:
        """Run what is queued; the thread's work."""
        postponed = postpone_closing()
        if not self._open.is_set():
            self._open_channel(call, timeout)
        while self._queue or not (self._stopping or postponed):
            if not self._news.wait(self._longest_sleep):
                self._take_over_held()
            self._news.clear()
            self.advance()
        for closable in postponed:
            closable.close()

    def enqueue(self, ticket: Ticket) -> Ticket:
        """Have a call run behind those that were made before it."""
        refuse_forked(ticket.caller.name)
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

    def run_job(self, job: Job | Deferred) -> Callable[[Channel], Plan | Call]:
        """Return what runs a job on the channel of this queue, after what the caller did so far."""
        moment = job.record()

        def run(channel: Channel) -> Plan | Call:
            try:
                return job.run(channel, moment)
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

    def stop(self) -> None:
        """Have the thread end when it has run what was begun; `join` waits for that."""
        self._take_over_held()
        self._stopping = True
        self._news.set()

    def join(self, patience: float | None = None) -> None:
        """Return when the thread has ended, or after so many seconds."""
        if self._thread is not None:
            self._thread.join(patience)

    def end_in_child(self) -> None:
        """In a forked child: nothing that was begun completes here, and all who ask are told."""
        self.line.closed = True  # what is started from now on comes to `enqueue`
        held = self.line.held
        if held is not None:
            self.line.hand_over(self._queue, held, held.new_ticket())  # type: ignore[attr-defined]
        for ticket in self._queue:
            try:
                refuse_forked(ticket.caller.name)
            except RuntimeError as error:
                ticket.error = error
            ticket.done = True
        self._queue.clear()
        self.line.queued = 0

    def close(self) -> None:
        """Run what was begun, and free the channel. Collective."""
        if not self.is_open:  # it was interrupted, and nothing was begun
            self._channel.close()
            return
        if threading.current_thread() is not self._thread:
            self.stop()
            self.join()
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


def _end_in_child() -> None:
    for progress in _all:
        progress.end_in_child()


os.register_at_fork(after_in_child=_end_in_child)


@atexit.register
def _stop_all() -> None:
    if is_forked():
        return
    running = list(_all)
    for progress in running:
        progress.stop()
    deadline = time.monotonic() + EXIT_PATIENCE  # for all of them together
    for progress in running:
        progress.join(max(0.0, deadline - time.monotonic()))


def progress_of(comm: MPI.Intracomm, call: str, timeout: float | None = None) -> Progress:
    """Return the queue of a communicator; the first call makes it.

    Parameters
    ----------
    comm : mpi4py.MPI.Intracomm
        The communicator.
    call : str
        For messages: the call that the user made.
    timeout : float, optional
        Seconds to wait for the others in the first call.

    Raises
    ------
    RuntimeError
        In a forked child.
    """
    return _attachment.of(comm, call, timeout)


def settle_first_call(comm: MPI.Intracomm) -> None:
    """Return when the first non-blocking call on a communicator, if any, has come to all ranks.

    To be called before a communicator is freed: its channel is made of it until then.
    """
    if comm != MPI.COMM_NULL and not MPI.Is_finalized():
        progress = _attachment.find(comm)
        if progress is not None and progress.is_open:
            progress.settle_first_call()


def thread_levels() -> dict[str, str]:
    """Return how non-blocking calls progress, for `hpccoll.info`."""
    threaded = MPI.Query_thread() == MPI.THREAD_MULTIPLE
    note = "" if threaded else "MPI was started below MPI.THREAD_MULTIPLE"
    return {"progress": "thread" if threaded else "in test and wait", "note": note}
