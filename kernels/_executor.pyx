# cython: language_level=3
"""The loop that runs a program, and the table that finds it again.

A `Plan` is a program bound to memory, to persistent requests and to loops. Running it costs the MPI
calls themselves and little else: nothing is looked up, and no memory is allocated but the integers
that receives report. `PlanCache` recognises a repeated call by the addresses, the type
and the operation of its arrays, without going through Python.

MPI is reached only through the methods of the request objects that a transport made (mpi4py's,
under MPI) and the transport's `give_up`; this module does not link MPI. Loops are called by their
address (`_kernels.reduce_address` and the like).
"""

cimport cython
cimport numpy as cnp
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy

cnp.import_array()

cdef extern from "Python.h":
    object PyObject_CallNoArgs(PyObject *callable)
    object PyObject_CallOneArg(PyObject *callable, PyObject *arg)

ctypedef void (*reduce_loop)(void *out, const void *left, const void *right,
                             size_t n) noexcept nogil
ctypedef void (*divide_loop)(void *x, double divisor, size_t n) noexcept nogil
ctypedef void (*convert_loop)(void *out, const void *x, size_t n) noexcept nogil

# The same number as hpccoll.transport.FAILED; a unit test compares the two.
cdef enum:
    FAILED = 1

FAILED_TAG = FAILED

# The same numbers as hpccoll.program.Opcode; a unit test compares the two.
cdef enum:
    START_RECEIVE = 0
    START_SEND = 1
    WAIT_RECEIVE = 2
    WAIT_SEND = 3
    REDUCE = 4
    COPY = 5
    WIDEN = 6
    FINISH = 7

OPCODES = {
    "START_RECEIVE": START_RECEIVE,
    "START_SEND": START_SEND,
    "WAIT_RECEIVE": WAIT_RECEIVE,
    "WAIT_SEND": WAIT_SEND,
    "REDUCE": REDUCE,
    "COPY": COPY,
    "WIDEN": WIDEN,
    "FINISH": FINISH,
}

# Loops shorter than this run with the interpreter lock held: giving it up and taking it again
# costs more than they do.
cdef enum:
    UNLOCK_BYTES = 16384

cdef struct Instruction:
    int opcode
    int index
    char *out
    const char *left
    const char *right
    size_t count

cdef struct Message:
    PyObject *start    # bound methods, owned by the lists of the plan
    PyObject *wait
    Py_ssize_t nbytes
    int peer
    int tag
    bint active        # started, and not yet waited for


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

    cdef reduce_loop reduce
    cdef divide_loop divide
    cdef convert_loop widen
    cdef convert_loop narrow
    cdef object reduce_call
    cdef object divide_call
    cdef double divisor

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

    cdef inline int run_reduce(self, Instruction *code, size_t itemsize) except -1:
        if self.reduce == NULL:
            self.reduce_call(
                <uintptr_t> code.out, <uintptr_t> code.left, <uintptr_t> code.right, code.count
            )
        elif code.count * itemsize < UNLOCK_BYTES:
            self.reduce(code.out, code.left, code.right, code.count)
        else:
            with nogil:
                self.reduce(code.out, code.left, code.right, code.count)
        return 0

    cdef inline int run_finish(self, Instruction *code) except -1:
        if self.divisor != 0:
            if self.divide != NULL:
                with nogil:
                    self.divide(<char *> code.left, self.divisor, code.count)
            else:
                self.divide_call(<uintptr_t> code.left, self.divisor, code.count)
        if self.narrow != NULL:
            with nogil:
                self.narrow(code.out, code.left, code.count)
        return 0

    cdef inline int run_widen(self, Instruction *code) except -1:
        with nogil:
            self.widen(code.out, code.left, code.count)
        return 0


# Plans that stay alive because MPI may still use their memory.
abandoned = []


@cython.final
cdef class Plan:
    """A program bound to memory, requests and loops. Made by `hpccoll.engine`.

    Parameters
    ----------
    instructions : sequence of tuple
        ``(opcode, index, out, left, right, count)``, with addresses in place of places.
    sends, receives : sequence of tuple
        ``(request, nbytes, peer, tag)``; a request has the methods of `hpccoll.transport.Request`.
    loops : Loops
    itemsize, partial_itemsize : int
        Bytes per element of the caller's type and of partial values.
    nbytes : int
        Bytes of the caller's vector.
    stage_in, stage_out : int
        Addresses that the vector is copied to before, and from after; 0 where the program
        works on the caller's memory itself.
    status : object
        Handed to the ``Wait`` of receives; tells how much came, and with which tag.
    transport : Transport
        Of the requests.
    keep : object
        Kept alive with the plan: scratch memory and the like.
    info : object
        What `hpccoll.Comm.last_call` is made from; ``info.mismatch(...)`` raises the error of a
        receive that another message came for than was expected.
    """

    cdef Instruction *code
    cdef Py_ssize_t length
    cdef Message *sends
    cdef Message *receives
    cdef Py_ssize_t send_count
    cdef Py_ssize_t receive_count
    cdef size_t itemsize
    cdef size_t partial_itemsize
    cdef size_t nbytes
    cdef char *stage_in
    cdef char *stage_out
    cdef Loops loops
    cdef object status
    cdef object get_count
    cdef object get_tag
    cdef object byte
    cdef object transport
    cdef int told_by
    cdef object requests
    cdef object methods
    cdef object keep
    cdef readonly object info
    cdef readonly bint usable
    cdef readonly bint in_place
    # What the last run really did.
    cdef readonly int64_t bytes_sent
    cdef readonly int64_t bytes_received
    cdef readonly int64_t bytes_reduced
    cdef readonly int64_t messages_sent
    cdef readonly int64_t messages_received

    def __init__(self, instructions, sends, receives, Loops loops, *, itemsize, partial_itemsize,
                 nbytes, stage_in=0, stage_out=0, transport, status, keep, info):
        self.loops = loops
        self.itemsize = itemsize
        self.partial_itemsize = partial_itemsize
        self.nbytes = nbytes
        self.stage_in = <char *> <uintptr_t> stage_in
        self.stage_out = <char *> <uintptr_t> stage_out
        self.transport = transport
        self.status = status
        self.get_count = status.Get_count
        self.get_tag = status.Get_tag
        self.byte = transport.byte
        self.keep = keep
        self.info = info
        self.usable = True
        self.methods = []
        self.requests = [entry[0] for entry in (*sends, *receives)]
        self.send_count = len(sends)
        self.receive_count = len(receives)
        self.sends = self.bind(sends)
        self.receives = self.bind(receives)
        self.length = len(instructions)
        self.code = <Instruction *> PyMem_Malloc((self.length + 1) * sizeof(Instruction))
        if self.code == NULL:
            raise MemoryError
        for k, (opcode, index, out, left, right, count) in enumerate(instructions):
            self.code[k] = Instruction(
                opcode,
                index,
                <char *> <uintptr_t> out,
                <const char *> <uintptr_t> left,
                <const char *> <uintptr_t> right,
                count,
            )

    cdef Message *bind(self, entries) except NULL:
        cdef Message *messages = <Message *> PyMem_Malloc((len(entries) + 1) * sizeof(Message))
        if messages == NULL:
            raise MemoryError
        for k, (request, nbytes, peer, tag) in enumerate(entries):
            start, wait = request.Start, request.Wait
            self.methods += [start, wait]
            messages[k] = Message(<PyObject *> start, <PyObject *> wait, nbytes, peer, tag, False)
        return messages

    def __dealloc__(self):
        PyMem_Free(self.code)
        PyMem_Free(self.sends)
        PyMem_Free(self.receives)

    def free(self):
        """Free the requests. A local operation; the plan cannot run afterwards."""
        if self.usable:
            self.usable = False
            for request in self.requests:
                request.Free()
            self.requests = []
        elif self.requests:
            # An exception left messages on their way: MPI may still write to the plan's memory.
            abandoned.append(self)

    def run(self, uintptr_t source, uintptr_t target):
        """Run the program on the vector at `source`, for a result at `target`."""
        self.execute(<char *> source, <char *> target)

    cdef int execute(self, char *source, char *target) except -1:
        if not self.usable:
            raise RuntimeError("this plan was freed, or one of its calls failed")
        self.in_place = source == target
        if self.stage_in != NULL and self.nbytes:
            memcpy(self.stage_in, source, self.nbytes)
        self.usable = False
        try:
            self.follow_instructions()
        except BaseException:
            self.give_up()
            raise
        self.usable = True
        if self.stage_out != NULL and self.nbytes:
            memcpy(target, self.stage_out, self.nbytes)
        return 0

    cdef int follow_instructions(self) except -1:
        cdef Instruction *code
        cdef Message *message
        cdef Py_ssize_t k
        self.bytes_sent = self.bytes_received = self.bytes_reduced = 0
        self.messages_sent = self.messages_received = 0
        self.told_by = -1
        for k in range(self.length):
            code = &self.code[k]
            if code.opcode == START_RECEIVE:
                message = &self.receives[code.index]
                PyObject_CallNoArgs(message.start)
                message.active = True
            elif code.opcode == START_SEND:
                message = &self.sends[code.index]
                PyObject_CallNoArgs(message.start)
                self.bytes_sent += message.nbytes
                self.messages_sent += 1
            elif code.opcode == WAIT_RECEIVE:
                self.wait_receive(&self.receives[code.index])
            elif code.opcode == WAIT_SEND:
                PyObject_CallNoArgs(self.sends[code.index].wait)
            elif code.opcode == REDUCE:
                self.loops.run_reduce(code, self.partial_itemsize)
                self.bytes_reduced += code.count * self.partial_itemsize
            elif code.opcode == FINISH:
                self.loops.run_finish(code)
            elif code.opcode == COPY:
                with nogil:
                    memcpy(code.out, code.left, code.count * self.itemsize)
            else:
                self.loops.run_widen(code)
        return 0

    cdef int wait_receive(self, Message *message) except -1:
        cdef Py_ssize_t nbytes
        cdef int tag
        try:
            PyObject_CallOneArg(message.wait, <PyObject *> self.status)
        except Exception as error:
            if not self.transport.is_truncation(error):
                raise
            message.active = False
            self.info.mismatch(message.peer, message.nbytes, message.tag, None, message.tag)
        message.active = False
        nbytes = PyObject_CallOneArg(<PyObject *> self.get_count, <PyObject *> self.byte)
        tag = PyObject_CallNoArgs(<PyObject *> self.get_tag)
        if nbytes != message.nbytes or tag != message.tag:
            if tag == FAILED:
                self.told_by = message.peer
            self.info.mismatch(message.peer, message.nbytes, message.tag, nbytes, tag)
        self.bytes_received += nbytes
        self.messages_received += 1
        return 0

    cdef int give_up(self) except -1:
        """Bring a call that failed to its end, so that no rank waits for ever.

        The plan can run again if all other ranks have given up, too, so that nothing is under way.
        """
        cdef Py_ssize_t k
        active = [
            self.requests[self.send_count + k]
            for k in range(self.receive_count)
            if self.receives[k].active
        ]
        if self.transport.give_up(active, self.told_by):
            for k in range(self.send_count):
                PyObject_CallNoArgs(self.sends[k].wait)
            for k in range(self.receive_count):
                self.receives[k].active = False
            self.usable = True
        return 0


cdef struct Entry:
    uintptr_t source
    uintptr_t target
    size_t nbytes
    int type_number
    PyObject *op       # one of the interned operation names
    size_t used        # the cache's clock when it was last used; 0 where the entry is empty


cdef enum:
    PLANS = 32


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
    lock : context manager
        Held while a plan runs.
    on_failure : callable
        Called with the plan, and with the lock held, when a plan raised an exception.

    Attributes
    ----------
    closed : bool
        While it is set, `repeat` runs nothing.
    """

    cdef Entry entries[PLANS]
    cdef list plans
    cdef tuple operations
    cdef PyObject *last_object
    cdef PyObject *last_name
    cdef object in_place
    cdef object lock
    cdef object on_failure
    cdef public bint closed
    cdef size_t clock

    def __init__(self, operations, in_place, lock, on_failure):
        self.plans = [None] * PLANS
        self.operations = tuple(operations)
        self.last_object = NULL
        self.in_place = in_place
        self.lock = lock
        self.on_failure = on_failure
        self.closed = False
        self.clock = 0
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

    cdef int look_up(self, uintptr_t source, uintptr_t target, size_t nbytes, int type_number,
                     PyObject *name) noexcept:
        cdef Entry *entry
        cdef int k
        for k in range(PLANS):
            entry = &self.entries[k]
            if (entry.op == name and entry.nbytes == nbytes and entry.type_number == type_number
                    and (entry.target == target or entry.target == 0)
                    and (entry.source == source or entry.source == 0)):
                self.clock += 1
                entry.used = self.clock
                return k
        return -1

    def repeat(self, sendbuf, recvbuf, op):
        """Run the plan of an earlier, equal call and return it; None where there is none.

        Equal means: the same op object, C-contiguous NumPy arrays of the same type and size,
        at the same addresses unless the plan copies its data anyway.
        """
        cdef PyObject *name
        cdef uintptr_t source, target
        cdef size_t nbytes
        cdef Plan plan
        cdef int k, type_number
        if not (cnp.PyArray_CheckExact(recvbuf) and cnp.PyArray_ISCARRAY(recvbuf)):
            return None
        target = <uintptr_t> cnp.PyArray_DATA(recvbuf)
        nbytes = cnp.PyArray_NBYTES(recvbuf)
        type_number = cnp.PyArray_TYPE(recvbuf)
        if type_number == cnp.NPY_DATETIME or type_number == cnp.NPY_TIMEDELTA:
            return None  # one number, many units
        if sendbuf is self.in_place or sendbuf is None:
            source = target
        elif (cnp.PyArray_CheckExact(sendbuf) and cnp.PyArray_ISCARRAY_RO(sendbuf)
                and cnp.PyArray_TYPE(sendbuf) == type_number
                and <size_t> cnp.PyArray_NBYTES(sendbuf) == nbytes):
            source = <uintptr_t> cnp.PyArray_DATA(sendbuf)
            if source != target and source < target + nbytes and target < source + nbytes:
                return None
        else:
            return None
        name = self.name_of(op)
        if name == NULL:
            return None
        with self.lock:
            k = self.look_up(source, target, nbytes, type_number, name)
            if k < 0 or self.closed:
                return None
            plan = self.plans[k]
            if not plan.usable:
                return None
            try:
                plan.execute(<char *> source, <char *> target)
            except BaseException:
                self.on_failure(plan)
                raise
        return plan

    def find(self, uintptr_t source, uintptr_t target, size_t nbytes, int type_number, str name):
        """Return the plan kept for these addresses, size, type number and operation, or None."""
        cdef int k = self.look_up(source, target, nbytes, type_number, <PyObject *> name)
        return self.plans[k] if k >= 0 and self.plans[k].usable else None

    def keep(self, uintptr_t source, uintptr_t target, size_t nbytes, int type_number,
             str name, Plan plan):
        """Keep a plan; address 0 stands for any (a plan that stages its data).

        `name` must be the very string object of the operation table.
        """
        cdef int k
        cdef int oldest = self.look_up(source, target, nbytes, type_number, <PyObject *> name)
        if oldest < 0:
            oldest = 0
            for k in range(PLANS):
                if self.entries[k].used < self.entries[oldest].used:
                    oldest = k
        old = self.plans[oldest]
        self.clock += 1
        self.entries[oldest] = Entry(
            source, target, nbytes, type_number, <PyObject *> name, self.clock
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
