# cython: language_level=3
"""What a call runs by, and the table that finds it again.

A `Plan` knows how to run one collective on vectors of one size, type and operation; what kind it is
(messages, memory that a node shares) is its own affair. `PlanCache` recognises a repeated call by
the addresses, the type and the operation of its arrays, without going through Python.
"""

cimport cython
cimport numpy as cnp
from cpython.object cimport PyObject
from cpython.pythread cimport (
    NOWAIT_LOCK,
    WAIT_LOCK,
    PyThread_acquire_lock,
    PyThread_allocate_lock,
    PyThread_free_lock,
    PyThread_get_thread_ident,
    PyThread_release_lock,
)
from libc.stdint cimport uintptr_t

cnp.import_array()


@cython.final
cdef class Loops:
    """The loops of one operation on one type: addresses of compiled ones, or callables.

    Parameters
    ----------
    reduce, divide : int or callable or None
        An int is the address of a compiled loop; a callable takes addresses in place of pointers.
        ``reduce(out, left, right, n)`` and ``divide(x, divisor, n)``. None for no division.
    widen, narrow : int
        Addresses of compiled loops ``(out, x, n)``; 0 where partial values have the caller's type.
    divisor : float
        What complete elements are divided by; 0 for no division.
    """

    def __init__(self, reduce, divide=None, uintptr_t widen=0, uintptr_t narrow=0,
                 double divisor=0):
        self.divisor = divisor
        if isinstance(reduce, int):
            self.reduce = <reduce_loop> <uintptr_t> reduce
        else:
            self.reduce_call = reduce
        if isinstance(divide, int):
            self.divide = <divide_loop> <uintptr_t> divide
        else:
            self.divide_call = divide
        self.widen = <convert_loop> widen
        self.narrow = <convert_loop> narrow

    @property
    def compiled(self):
        """Whether all loops are compiled ones."""
        return self.reduce != NULL and (self.divisor == 0 or self.divide != NULL)


@cython.final
cdef class CallClock:
    """Counts the calls of one channel, and says how long a rank waits in them.

    Attributes
    ----------
    number : int
        Of the call that runs, or ran last, from 1: equal on all ranks where they make the same
        calls.
    limit : int
        Nanoseconds that the call may wait for one thing; 0 for any time.
    warning : int
        Nanoseconds of a wait after which there is a warning; 0 for never.
    warned : bool
        Whether the call has warned.
    broken : str
        Why no call can be made any more; empty while they can.
    """

    def __cinit__(self):
        self.broken = ""

    cdef void begin(self) noexcept:
        self.number += 1
        self.warned = False

    cpdef lose(self):
        """Note that the call was given up for good, so that none can be made any more."""
        if not self.broken:
            self.broken = f"call {self.number} on this communicator was given up"


cdef class Plan:
    """One collective on vectors of one size, type and operation; a base class.

    Attributes
    ----------
    info : object
        What `hpccoll.Comm.last_call` is made from.
    usable : bool
        Whether it can run.
    in_place : bool
        Whether input and output of the last run were the same memory.
    compares : bool
        Whether ranks compare what they call in it, before data moves.
    own_offset : int
        Bytes in the output before what this rank brings, where that stands there (all-gather).
    bytes_sent, bytes_received, bytes_reduced, messages_sent, messages_received : int
        What the last run really did.
    """

    cdef int execute(self, char *source, char *target) except -1:
        raise NotImplementedError

    def run(self, uintptr_t source, uintptr_t target):
        """Run on the vector at `source`, for a result at `target`."""
        self.execute(<char *> source, <char *> target)

    def free(self):
        """Give back what the plan holds. A local operation; the plan cannot run afterwards."""
        self.usable = False


cdef class Levels:
    """What a hierarchical plan does inside its node, piece by piece; a base class."""

    cdef int begin(self, char *source, char *target) except -1:
        """Begin a call; the first piece can be reduced."""
        raise NotImplementedError

    cdef int reduce(self, int piece) except -1:
        """Reduce this rank's share of a piece over the node."""
        raise NotImplementedError

    cdef int publish(self, int piece) except -1:
        """Tell peers that a piece of the own slice is finished."""
        raise NotImplementedError

    cdef int end(self) except -1:
        """Collect what is finished, until all is."""
        raise NotImplementedError

    cdef int leave(self, error) except -1:
        """Leave a call before its end, by this exception, and tell peers so."""
        raise NotImplementedError


cdef class DeviceWork:
    """What a plan has a device do with elements, work by work; a base class."""

    cdef int begin(self, char *source, char *target) except -1:
        """Begin a call on vectors at these addresses."""
        raise NotImplementedError

    cdef int64_t submit(self, Py_ssize_t index) except -1:
        """Hand a work to the device, and return how many bytes it reduces."""
        raise NotImplementedError

    cdef int wait(self, Py_ssize_t index) except -1:
        """Wait until a work is complete; -1 stands for what the caller had submitted before."""
        raise NotImplementedError

    cdef int leave(self) except -1:
        """Leave a call before its end: wait until nothing of it is under way."""
        raise NotImplementedError


@cython.final
cdef class Turn:
    """A lock that threads take turns with, and one thread may take again; a context manager.

    What `threading.RLock` does, at a tenth of its price for a thread that is alone.
    """

    def __cinit__(self):
        self.lock = PyThread_allocate_lock()
        if self.lock == NULL:
            raise MemoryError

    def __dealloc__(self):
        if self.lock != NULL:
            PyThread_free_lock(self.lock)

    cdef int take(self) except -1:
        cdef unsigned long me = PyThread_get_thread_ident()
        if self.depth and self.owner == me:
            self.depth += 1
            return 0
        if not PyThread_acquire_lock(self.lock, NOWAIT_LOCK):
            with nogil:
                PyThread_acquire_lock(self.lock, WAIT_LOCK)
        self.owner = me
        self.depth = 1
        return 0

    cdef void leave(self) noexcept:
        self.depth -= 1
        if self.depth == 0:
            PyThread_release_lock(self.lock)

    def __enter__(self):
        self.take()
        return self

    def __exit__(self, *exception):
        self.leave()


# In a key, for the size of an input that is a part of the output: no array has it.
cdef size_t PART = <size_t> -1
PART_IN_PLACE = PART


@cython.final
cdef class PlanCache:
    """The plans of one communicator and one set of settings; the least recently used one leaves.

    Parameters
    ----------
    operations : sequence of (object, str)
        The objects that callers pass as `op` (``MPI.SUM``, "sum") and the operation's name. They
        are recognised by identity, and live as long as the cache.
    in_place : object
        What stands for "in place" as a send buffer (``MPI.IN_PLACE``).
    turn : Turn
        Held while a plan runs.
    on_failure : callable
        Called with the plan and its exception, and with the lock held, when a plan raised one.
    clock : CallClock
        Of all plans.
    part_in_place : bool
        Whether what stands in place is a part of the output (all-gather), not all of it.

    Attributes
    ----------
    closed : bool
        While it is set, `repeat` runs nothing.
    checked : bool
        While it is set, `repeat` runs only plans in which ranks compare what they call.
    """

    def __init__(self, operations, in_place, Turn turn, on_failure, CallClock clock, *,
                 bint part_in_place=False):
        self.plans = [None] * PLANS
        self.operations = tuple(operations)
        self.last_object = NULL
        self.in_place = in_place
        self.turn = turn
        self.on_failure = on_failure
        self.clock = clock
        self.part_in_place = part_in_place
        self.closed = False
        self.uses = 0
        for k in range(PLANS):
            self.entries[k].op = NULL
            self.entries[k].used = 0

    cdef PyObject *name_of(self, op):
        if self.last_object != <PyObject *> op:
            for known, name in self.operations:
                if known is op:
                    self.last_object = <PyObject *> known
                    self.last_name = <PyObject *> name
                    break
            else:
                return NULL
        return self.last_name

    cdef int look_up(self, uintptr_t source, uintptr_t target, size_t in_nbytes,
                     size_t out_nbytes, int type_number, PyObject *name) noexcept:
        cdef Entry *entry
        cdef int i, k
        for i in range(PLANS):
            k = (self.last + i) % PLANS  # the one that was found last is likely to be it
            entry = &self.entries[k]
            if (entry.op == name and entry.out_nbytes == out_nbytes
                    and entry.in_nbytes == in_nbytes and entry.type_number == type_number
                    and (entry.target == target or entry.target == 0)
                    and (entry.source == source or entry.source == 0)):
                self.uses += 1
                entry.used = self.uses
                self.last = k
                return k
        return -1

    cpdef Plan repeat(self, sendbuf, recvbuf, op, int64_t limit=0):
        """Run the plan of an earlier, equal call and return it; None where there is none.

        Equal means: the same op object, C-contiguous NumPy arrays of the same type and size,
        at the same addresses unless the plan copies its data anyway. In place is the `in_place` of
        the table, or None, as `sendbuf`; None as `recvbuf` is for ranks that want nothing. It may
        wait for `limit` nanoseconds; 0: for any time.
        """
        cdef PyObject *name
        cdef uintptr_t source = 0, target = 0
        cdef size_t in_nbytes = 0, out_nbytes = 0
        cdef Plan plan
        cdef int k, type_number = -1
        cdef bint in_place = sendbuf is self.in_place or sendbuf is None
        if recvbuf is not None:
            if not (cnp.PyArray_CheckExact(recvbuf) and cnp.PyArray_ISCARRAY(recvbuf)):
                return None
            target = <uintptr_t> cnp.PyArray_DATA(recvbuf)
            out_nbytes = cnp.PyArray_NBYTES(recvbuf)
            type_number = cnp.PyArray_TYPE(recvbuf)
        if in_place:
            source, in_nbytes = target, PART if self.part_in_place else out_nbytes
        else:
            if not (cnp.PyArray_CheckExact(sendbuf) and cnp.PyArray_ISCARRAY_RO(sendbuf)):
                return None
            source = <uintptr_t> cnp.PyArray_DATA(sendbuf)
            in_nbytes = cnp.PyArray_NBYTES(sendbuf)
            if recvbuf is None:
                type_number = cnp.PyArray_TYPE(sendbuf)
            elif cnp.PyArray_TYPE(sendbuf) != type_number:
                return None
            elif source == target and in_nbytes == out_nbytes:
                in_place = True
            elif source < target + out_nbytes and target < source + in_nbytes:
                return None
        if cnp.NPY_OBJECT <= type_number <= cnp.NPY_TIMEDELTA:
            return None  # one number, many types: texts, records, times
        name = self.name_of(op)
        # Before the turn: in a forked child, a thread that is not there may have it.
        if name == NULL or self.closed:
            return None
        self.turn.take()
        try:
            k = self.look_up(source, target, in_nbytes, out_nbytes, type_number, name)
            if k < 0 or self.closed:
                return None
            plan = self.plans[k]
            if not plan.usable or self.checked and not plan.compares:
                return None
            if in_place:
                source += plan.own_offset
            self.clock.limit = limit
            try:
                plan.execute(<char *> source, <char *> target)
            except BaseException as error:
                self.on_failure(plan, error)
                raise
        finally:
            self.turn.leave()
        return plan

    def find(self, tuple key):
        """Return the plan kept under a key, or None.

        Parameters
        ----------
        key : tuple
            ``(source, target, in_nbytes, out_nbytes, type_number, name)`` as of the arrays that
            `repeat` gets; address 0 stands for any (a plan that stages its data). `in_nbytes` is
            `PART_IN_PLACE` where the input is a part of the output, in place. `name` must be
            the very string object of the operation table.
        """
        source, target, in_nbytes, out_nbytes, type_number, name = key
        cdef int k = self.look_up(
            source, target, in_nbytes, out_nbytes, type_number, <PyObject *> name
        )
        return self.plans[k] if k >= 0 and self.plans[k].usable else None

    def keep(self, tuple key, Plan plan):
        """Keep a plan under a key, as of `find`."""
        source, target, in_nbytes, out_nbytes, type_number, name = key
        cdef int k
        cdef int oldest = self.look_up(
            source, target, in_nbytes, out_nbytes, type_number, <PyObject *> name
        )
        if oldest < 0:
            oldest = 0
            for k in range(PLANS):
                if self.entries[k].used < self.entries[oldest].used:
                    oldest = k
        old = self.plans[oldest]
        self.uses += 1
        self.entries[oldest] = Entry(
            source, target, in_nbytes, out_nbytes, type_number, <PyObject *> name, self.uses
        )
        self.plans[oldest] = plan
        if old is not None:
            old.free()

    def clear(self):
        """Free all plans."""
        for k in range(PLANS):
            plan = self.plans[k]
            self.plans[k] = None
            self.entries[k].op = NULL
            self.entries[k].used = 0
            if plan is not None:
                plan.free()
