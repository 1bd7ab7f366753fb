# cython: language_level=3
"""The part of persistent calls that every start and wait goes through.

A small call is run by whoever waits for it, which takes less time than to wake a thread. Until then
it stands in the `Line` of its communicator; all others stand in the queue of `hpccoll.progress`.
"""

cimport cython
from libc.stdint cimport int64_t, uintptr_t

from hpccoll._plans cimport CallClock, Plan, Turn


@cython.final
cdef class Line:
    """Who is next: what threads of one process must agree on without a lock, under the GIL.

    Attributes
    ----------
    held : Persistent or None
        A small call that has been started, and that nobody runs yet.
    queued : int
        Calls in the queue behind, or running.
    closed : bool
        After a failure: there is something to be settled before the next call.
    ended : bool
        The communicator was freed, and with it the memory that plans work in.
    """

    cdef public object held
    cdef public Py_ssize_t queued
    cdef public bint closed
    cdef public bint ended

    cpdef bint hand_over(self, queue, Persistent request, ticket):
        """Move a call from here to the end of the queue, unless somebody runs it already.

        In one go: without the GIL no thread can come between.

        Parameters
        ----------
        queue : collections.deque
            Of tickets.
        request : Persistent
            The call.
        ticket : Ticket
            For its run.
        """
        if self.held is not request:
            return False
        self.queued += 1
        queue.append(ticket)
        request.ticket = ticket
        self.held = None
        return True


cdef class Persistent:
    """A collective call that is prepared once and started many times; see `hpccoll.requests`.

    Parameters
    ----------
    line : Line
        Of the communicator.
    queue : callable
        ``queue(request) -> ticket``: has the call run behind those that are queued.
    take_over : callable
        ``take_over(request)``: moves the call from the `Line` to the queue.
    complete : callable
        ``complete(ticket)``: returns when it has run, or raises its error.
    """

    cdef Line line
    cdef object queue
    cdef object take_over
    cdef object complete
    cdef object ticket
    cdef Plan plan
    cdef Turn turn
    cdef CallClock clock
    cdef int64_t limit
    cdef uintptr_t source
    cdef uintptr_t target
    cdef object on_failure
    cdef bint small
    cdef readonly bint active
    cdef readonly bint freed
    cdef readonly bint has_run

    def __init__(self, Line line, queue, take_over, complete):
        self.line = line
        self.queue = queue
        self.take_over = take_over
        self.complete = complete

    cpdef bind(self, Plan plan, Turn turn, CallClock clock, int64_t limit, uintptr_t source,
               uintptr_t target, on_failure, bint small):
        """Run a plan that is this request's own, on memory that stays where it is.

        Parameters
        ----------
        plan : Plan
            What runs.
        turn : Turn
            Held while it does.
        clock : CallClock
            Of the channel.
        limit : int
            Nanoseconds that it may wait; 0 for any time.
        source, target : int
            What it runs on.
        on_failure : callable
            Called with the plan and its exception when it raised one.
        small : bool
            Whether it runs in `Wait`, unless others are to run before.
        """
        self.plan = plan
        self.turn = turn
        self.clock = clock
        self.limit = limit
        self.source = source
        self.target = target
        self.on_failure = on_failure
        self.small = small

    @property
    def bound(self):
        """The plan that runs, if it is bound to one."""
        return self.plan

    cpdef run_bound(self):
        """Run the plan, in this thread."""
        self.turn.take()
        self.clock.limit = self.limit
        try:
            self.plan.execute(<char *> self.source, <char *> self.target)
            self.has_run = True
        except BaseException as error:
            self.line.closed = True
            self.on_failure(self.plan, error)
            raise
        finally:
            self.turn.leave()

    cdef int refuse(self, str method) except -1:
        """Raise where the request is freed, or under way."""
        if self.freed:
            raise RuntimeError(self.sentence(method, "was freed"))
        if self.active:
            raise RuntimeError(self.sentence(method, "was started and has not been waited for"))
        return 0

    def Start(self):
        """Begin the call. Local; the buffers are hpccoll's until it is waited for.

        Raises
        ------
        RuntimeError
            It has been started and not been waited for, or it or its communicator was freed.
        """
        self.refuse("Start")
        if self.line.ended:
            raise RuntimeError(self.sentence("Start", "is of a communicator that was freed"))
        if (self.small and self.line.queued == 0 and self.line.held is None
                and not self.line.closed and self.plan.usable):
            self.line.held = self
        else:
            self.ticket = self.queue(self)
        self.active = True

    def Wait(self, status=None):
        """Return True when the call is complete; at once where none was started.

        Raises
        ------
        Exception
            What the call raised.
        """
        if not self.active:
            return True
        if self.line.held is self:
            self.line.held = None
            self.active = False
            self.run_bound()
            return True
        try:
            self.complete(self.ticket)
        finally:
            # Not where it was interrupted: the call goes on, and can be waited for again.
            if self.ticket.done:
                self.active = False
                self.ticket = None
        return True

    def Test(self, status=None):
        """Return whether the call is complete; never waits for other ranks.

        Raises
        ------
        Exception
            What the call raised.
        """
        if not self.active:
            return True
        if self.line.held is self:
            self.take_over(self)
        if not self.ticket.done:
            return False
        return self.Wait()

    def Free(self):
        """Give back what the request holds. Local.

        Raises
        ------
        RuntimeError
            It has been started and not been waited for, or it has been freed.
        """
        self.refuse("Free")
        self.freed = True
        if self.plan is not None:
            self.plan.free()

    # mpi4py has both spellings.
    wait = Wait
    test = Test

    def sentence(self, method, state):
        """Return the text of an error; the subclass knows more."""
        return f"{method}: the request {state}"
