# cython: language_level=3
"""The loop that runs a program of messages.

A `MessagePlan` is a program bound to memory, to persistent requests and to loops. Running it costs
the MPI calls themselves and little else: nothing is looked up, and no memory is allocated but the
integers that receives report.

MPI is reached only through the methods of the request objects that a transport made (mpi4py's,
under MPI) and those of the transport; this module does not link MPI. Loops are called by their
address (`_kernels.reduce_address` and the like).
"""

cimport cython
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.object cimport PyObject
from libc.stdint cimport int64_t, uintptr_t
from libc.string cimport memcpy

from hpccoll._plans cimport CallClock, DeviceWork, Levels, Loops, Plan
from hpccoll import transport as transports
from hpccoll.errors import CollectiveTimeoutError
from hpccoll.transport import Failure, Word

cdef extern from "waiting.h" nogil:
    int64_t nanoseconds()

cdef extern from "looking.h" nogil:
    enum:
        SHORTEST_NAP
    ctypedef int test_function(void *request, int *flag, void *status) noexcept
    void sleep_for(long nanoseconds)
    int look_at(test_function *test, void *request, void *status, long longest_nap,
                int64_t patience, int *complete)

cdef extern from *:
    """
    #include <stdint.h>

    static void count_one(void *at)
    {
        __atomic_fetch_add((unsigned long long *)at, 1, __ATOMIC_RELEASE);
    }
    """
    void count_one(void *at) noexcept nogil

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1
    object PyObject_CallNoArgs(PyObject *callable)
    object PyObject_CallOneArg(PyObject *callable, PyObject *arg)

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
    NODE_REDUCE = 8
    NODE_PUBLISH = 9
    SUBMIT = 10
    AWAIT = 11

OPCODES = {
    "START_RECEIVE": START_RECEIVE,
    "START_SEND": START_SEND,
    "WAIT_RECEIVE": WAIT_RECEIVE,
    "WAIT_SEND": WAIT_SEND,
    "REDUCE": REDUCE,
    "COPY": COPY,
    "WIDEN": WIDEN,
    "FINISH": FINISH,
    "NODE_REDUCE": NODE_REDUCE,
    "NODE_PUBLISH": NODE_PUBLISH,
    "SUBMIT": SUBMIT,
    "AWAIT": AWAIT,
}

# Loops shorter than this run with the interpreter lock held: giving it up and taking it again
# costs more than they do.
cdef enum:
    UNLOCK_BYTES = 16384

# In place of a number of bytes: more than there was room for.
cdef enum:
    TRUNCATED = -1

# A waiting rank looks so often for signals, words of other ranks, and the time.
cdef int64_t ATTEND_EVERY = 50000000  # nanoseconds

cdef struct Instruction:
    int opcode
    int index
    char *out
    const char *left
    const char *right
    size_t count

cdef struct Message:
    PyObject *start    # bound methods, owned by the lists of the plan
    PyObject *test
    void *handle       # for the transport's test function
    Py_ssize_t nbytes
    int peer
    int tag
    int step
    bint active        # started, and not yet waited for
    bint arrived       # seen to be complete before it was waited for
    Py_ssize_t came_nbytes
    int came_tag


cdef inline void copy_bytes(char *to, const char *source, size_t nbytes) noexcept:
    if 0 < nbytes < UNLOCK_BYTES:
        memcpy(to, source, nbytes)
    elif nbytes:
        with nogil:
            memcpy(to, source, nbytes)


cdef inline int run_reduce(Loops loops, Instruction *code, size_t itemsize) except -1:
    if loops.reduce == NULL:
        loops.reduce_call(
            <uintptr_t> code.out, <uintptr_t> code.left, <uintptr_t> code.right, code.count
        )
    elif code.count * itemsize < UNLOCK_BYTES:
        loops.reduce(code.out, code.left, code.right, code.count)
    else:
        with nogil:
            loops.reduce(code.out, code.left, code.right, code.count)
    return 0


cdef inline int run_finish(Loops loops, Instruction *code) except -1:
    if loops.divisor != 0:
        if loops.divide != NULL:
            with nogil:
                loops.divide(<char *> code.left, loops.divisor, code.count)
        else:
            loops.divide_call(<uintptr_t> code.left, loops.divisor, code.count)
    if loops.narrow != NULL:
        with nogil:
            loops.narrow(code.out, code.left, code.count)
    return 0


cdef inline int run_widen(Loops loops, Instruction *code) except -1:
    with nogil:
        loops.widen(code.out, code.left, code.count)
    return 0


# Plans that stay alive because MPI may still use their memory.
abandoned = []


@cython.final
cdef class MessagePlan(Plan):
    """A program bound to memory, requests and loops. Made by `hpccoll.engine`.

    Parameters
    ----------
    instructions : sequence of tuple
        ``(opcode, index, out, left, right, count)``, with addresses in place of places.
    sends, receives : sequence of tuple
        ``(request, nbytes, peer, tag, step)``; a request has the methods of
        `hpccoll.transport.Request`.
    loops : Loops
    itemsize, partial_itemsize : int
        Bytes per element of the caller's type and of partial values.
    levels : Levels, optional
        Of a hierarchical plan: what it does inside the node.
    device : DeviceWork, optional
        Of a plan on device memory: what the device does, in place of the loops.
    stage_in, in_nbytes : int
        Address to which so many bytes of the caller are copied before; 0 where the program works on
        the caller's memory itself.
    stage_out, out_nbytes : int
        Address from which so many bytes are copied to the caller after; 0 likewise.
    status : object
        Handed to ``Test``; tells how much came, and with which tag.
    transport : Transport
        Of the requests; says how to wait, and ends calls that failed.
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
    cdef char *stage_in
    cdef char *stage_out
    cdef size_t in_nbytes
    cdef size_t out_nbytes
    cdef Loops loops
    cdef Levels levels
    cdef DeviceWork device
    cdef object status
    cdef object get_count
    cdef object get_tag
    cdef object byte
    cdef object transport
    cdef CallClock clock
    cdef test_function *test
    cdef void *status_handle
    cdef long nap          # nanoseconds
    cdef set told_by       # ranks whose words have been received
    cdef object requests
    cdef object methods
    cdef object keep
    cdef void *begun

    def __init__(self, instructions, sends, receives, Loops loops, *, itemsize, partial_itemsize,
                 Levels levels=None, DeviceWork device=None, stage_in=0, in_nbytes=0, stage_out=0,
                 out_nbytes=0, transport, status, keep, info):
        self.loops = loops
        self.levels = levels
        self.device = device
        self.itemsize = itemsize
        self.partial_itemsize = partial_itemsize
        self.stage_in = <char *> <uintptr_t> stage_in
        self.stage_out = <char *> <uintptr_t> stage_out
        self.in_nbytes = in_nbytes
        self.out_nbytes = out_nbytes
        self.transport = transport
        self.clock = transport.clock
        self.test = <test_function *> <uintptr_t> transport.test_function
        self.nap = transport.nap
        self.status = status
        self.status_handle = <void *> <uintptr_t> transport.handle(status)
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

    def count_at(self, uintptr_t address):
        """Count runs there, where peers on the node see that this rank sends messages."""
        self.begun = <void *> address

    @property
    def hierarchical(self):
        """Whether it works inside a node, too."""
        return self.levels is not None

    cdef Message *bind(self, entries) except NULL:
        cdef Message *messages = <Message *> PyMem_Malloc((len(entries) + 1) * sizeof(Message))
        if messages == NULL:
            raise MemoryError
        for k, (request, nbytes, peer, tag, step) in enumerate(entries):
            start, test = request.Start, request.Test
            self.methods += [start, test]
            messages[k] = Message(
                <PyObject *> start, <PyObject *> test,
                <void *> <uintptr_t> self.transport.handle(request), nbytes, peer, tag, step,
                False, False, 0, 0,
            )
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

    cdef int execute(self, char *source, char *target) except -1:
        if not self.usable:
            raise RuntimeError("this plan was freed, or one of its calls failed")
        self.in_place = source == target + self.own_offset
        if self.stage_in != NULL and self.stage_in != source:
            copy_bytes(self.stage_in, source, self.in_nbytes)
        self.usable = False
        self.told_by = set()
        self.clock.begin()
        if self.begun != NULL:
            count_one(self.begun)
        try:
            if self.device is not None:
                self.device.begin(source, target)
            if self.levels is not None:
                self.levels.begin(source, target)
            self.follow_instructions()
            if self.levels is not None:
                self.levels.end()
        except BaseException as error:
            if self.levels is not None:
                self.levels.leave(error)
            if self.device is not None:
                self.device.leave()
            self.give_up(error)
            raise
        self.usable = True
        if self.stage_out != NULL:
            copy_bytes(target, self.stage_out, self.out_nbytes)
        return 0

    cdef int follow_instructions(self) except -1:
        cdef Instruction *code
        cdef Message *message
        cdef Py_ssize_t k
        self.bytes_sent = self.bytes_received = self.bytes_reduced = 0
        self.messages_sent = self.messages_received = 0
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
                self.complete(&self.sends[code.index])
            elif code.opcode == REDUCE:
                run_reduce(self.loops, code, self.partial_itemsize)
                self.bytes_reduced += code.count * self.partial_itemsize
            elif code.opcode == FINISH:
                run_finish(self.loops, code)
            elif code.opcode == COPY:
                with nogil:
                    memcpy(code.out, code.left, code.count * self.itemsize)
            elif code.opcode == NODE_REDUCE:
                self.levels.reduce(code.index)
            elif code.opcode == NODE_PUBLISH:
                self.levels.publish(code.index)
            elif code.opcode == SUBMIT:
                self.bytes_reduced += self.device.submit(code.index)
            elif code.opcode == AWAIT:
                self.device.wait(code.index)
            else:
                run_widen(self.loops, code)
        return 0

    cdef int complete(self, Message *message) except -1:
        """Wait for a message that was started; `status` tells what came."""
        cdef int64_t since = 0
        while not self.is_complete(message):
            if since == 0:
                since = nanoseconds() - self.longest_look()
            self.attend(message, nanoseconds() - since)
        return 0

    cdef int64_t longest_look(self) noexcept:
        cdef int64_t limit = self.clock.limit
        return limit if 0 < limit < ATTEND_EVERY else ATTEND_EVERY

    cdef bint is_complete(self, Message *message) except -1:
        """Look at a message for a while; tell whether it is complete."""
        cdef int error, flag = 0
        cdef int64_t patience = self.longest_look()
        cdef int64_t start
        cdef long nap = SHORTEST_NAP
        if self.test != NULL:
            with nogil:
                error = look_at(self.test, message.handle, self.status_handle, self.nap, patience,
                                &flag)
            if error:
                raise self.transport.error(error, message.peer)
            return flag
        start = nanoseconds()
        while not PyObject_CallOneArg(message.test, <PyObject *> self.status):
            if nanoseconds() - start >= patience:
                return False
            with nogil:
                sleep_for(nap)
            nap = min(2 * nap, self.nap)
        return True

    cdef int attend(self, Message *message, int64_t waited) except -1:
        """Do what is to be done while a message does not come; raise what ends the call."""
        cdef CallClock clock = self.clock
        PyErr_CheckSignals()
        word = self.transport.word() or self.word_received(message)
        if word is not None:
            self.info.given_up(word, message.nbytes, message.tag, clock.number)
        if 0 < clock.limit <= waited:
            self.info.lose(clock.number, self.describe_wait(message, waited))
        if 0 < clock.warning <= waited and not clock.warned:
            clock.warned = True
            self.info.warn(clock.number, self.describe_wait(message, waited))
        return 0

    cdef object word_received(self, Message *awaited):
        """Return the word that a receive has taken which is to be waited for later, or None.

        The transport does not see it there; who is waited for now may be the one that is lost.
        """
        cdef Message *message
        cdef Py_ssize_t k
        for k in range(self.receive_count):
            message = &self.receives[k]
            if not message.active or message.arrived or message == awaited:
                continue
            try:
                if not PyObject_CallOneArg(message.test, <PyObject *> self.status):
                    continue
                self.note_arrival(message, False)
            except Exception as error:
                if not self.transport.is_truncation(error):
                    raise
                self.note_arrival(message, True)
            failure = self.transport.told(message.came_tag)
            if failure is not None:
                self.told_by.add(message.peer)
                return Word(message.peer, failure)
        return None

    cdef int note_arrival(self, Message *message, bint truncated) except -1:
        """Note what came, as `status` tells."""
        message.arrived = True
        message.came_nbytes = TRUNCATED
        message.came_tag = message.tag
        if not truncated:
            message.came_nbytes = PyObject_CallOneArg(
                <PyObject *> self.get_count, <PyObject *> self.byte
            )
            message.came_tag = PyObject_CallNoArgs(<PyObject *> self.get_tag)
        return 0

    cdef object describe_wait(self, Message *message, int64_t waited):
        is_receive = self.receives <= message < self.receives + self.receive_count
        what = "for a message from" if is_receive else "until a message was taken by"
        return (
            f"waited {waited / 1e9:.3g} s {what} rank {message.peer} in step {message.step + 1} of "
            f"{self.info.steps}"
        )

    cdef int wait_receive(self, Message *message) except -1:
        cdef Py_ssize_t nbytes
        if not message.arrived:
            try:
                self.complete(message)
                self.note_arrival(message, False)
            except Exception as error:
                if not self.transport.is_truncation(error):
                    raise
                self.note_arrival(message, True)
        message.active = message.arrived = False
        nbytes = message.came_nbytes
        if nbytes != message.nbytes or message.came_tag != message.tag:
            failure = self.transport.told(message.came_tag)
            if failure is not None:
                self.told_by.add(message.peer)
                word = Word(message.peer, failure)
                self.info.given_up(word, message.nbytes, message.tag, self.clock.number)
            self.info.mismatch(
                message.peer, message.nbytes, message.tag,
                None if nbytes == TRUNCATED else nbytes, message.came_tag,
            )
        self.bytes_received += nbytes
        self.messages_received += 1
        return 0

    cdef bint sends_end(self, int64_t patience) except -1:
        """Tell whether all sends are complete, or will be in so many nanoseconds.

        The others have taken in what came. A message that was lost on the way never ends.
        """
        cdef int64_t start = nanoseconds()
        cdef Py_ssize_t k
        for k in range(self.send_count):
            while not self.is_complete(&self.sends[k]):
                if nanoseconds() - start >= patience:
                    return False
        return True

    cdef int give_up(self, error) except -1:
        """Bring a call that failed to its end, so that no rank waits for ever.

        The plan can run again if all other ranks have given up, too, so that nothing is under way.
        """
        cdef Py_ssize_t k
        failure, patience = Failure.DISAGREES, transports.PATIENCE
        if isinstance(error, (TimeoutError, RuntimeError)):  # MPI's errors are of the second kind
            failure, patience = Failure.LOST, transports.LOST_PATIENCE
            self.clock.lose()
        elif isinstance(error, KeyboardInterrupt):
            patience = transports.SHORT_PATIENCE
        active = [
            self.requests[self.send_count + k]
            for k in range(self.receive_count)
            if self.receives[k].active and not self.receives[k].arrived
        ]
        silent = self.transport.give_up(active, self.told_by, failure, patience)
        if failure is Failure.LOST:
            if isinstance(error, CollectiveTimeoutError):
                self.info.complete(error, silent)
        elif not silent and self.sends_end(<int64_t> (patience * 1e9)):
            for k in range(self.receive_count):
                self.receives[k].active = self.receives[k].arrived = False
            self.usable = True
        return 0
