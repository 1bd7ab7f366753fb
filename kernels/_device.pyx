# cython: language_level=3
"""What is submitted to a CUDA device, and how the host waits for it.

The functions of the driver are called by their addresses, without the interpreter lock. Whoever
calls anything here has made the device's context current on the calling thread (``with device:``);
nothing here looks whether it is. Nothing here waits for the whole device: the host waits for
events.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint64_t, uintptr_t

import sys

from device_work cimport (
    COPY_DOWN_WORK,
    COPY_UP_WORK,
    COPY_WORK,
    FINISH_WORK,
    LAUNCH_WORK,
    MOST_AFTER,
    PLACES,
    QUEUES,
    REDUCE_WORK,
    WIDEN_WORK,
    WORK_KINDS,
    copy_bytes,
    copy_function,
    device_queue,
    drain_for,
    follow_stream,
    launch,
    launch_function,
    lead_stream,
    look_at_event,
    make_wait,
    place,
    query_function,
    record_all,
    record_event,
    record_function,
    submit_work,
    wait_function,
    work,
    work_setting,
)
from hpccoll._plans cimport CallClock, DeviceWork
from hpccoll.cuda.driver import failure
from hpccoll.errors import NEW_ONE, CollectiveTimeoutError

cdef extern from "waiting.h" nogil:
    int64_t nanoseconds()

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1

COMPUTE, DOWN, UP = range(QUEUES)

REDUCE = REDUCE_WORK
FINISH = FINISH_WORK
WIDEN = WIDEN_WORK
COPY = COPY_WORK
COPY_DOWN = COPY_DOWN_WORK
COPY_UP = COPY_UP_WORK
LAUNCH = LAUNCH_WORK

# Of a place in a work.
ABSOLUTE, SOURCE, TARGET = range(PLACES)

# Events that a queue needs: one for each stream, and one for the caller's.
QUEUE_EVENTS = QUEUES + 1

# A short wait is spent looking, a longer one mostly asleep; now and then there is a look for
# signals and at the time.
cdef int64_t FIRST_LOOK = 1000000     # nanoseconds
cdef int64_t ATTEND_EVERY = 50000000
cdef long LONGEST_NAP = 50000

# How long a call that failed waits for what it has submitted.
cdef int64_t LEAVE_PATIENCE = 5000000000

# Works that stay alive because the device may still use their memory.
abandoned = []


cdef void *pointer(number) except? NULL:
    return <void *> <uintptr_t> number


@cython.final
cdef class DeviceQueue:
    """Three streams of one device, and the order between them and the caller's stream.

    What is submitted on one queue runs in order; between queues there is only the order that
    `record` and `wait_for` make, and `follow` and `lead`. All methods need the device's context
    current on the calling thread, and one thread at a time.

    Parameters
    ----------
    functions : mapping of str to int
        Of the driver: addresses by name.
    context : int
        The context that streams and events belong to.
    streams : sequence of int
        Three non-blocking streams: for kernels, for copies to the host, for copies to the device.
    events : sequence of int
        `QUEUE_EVENTS` of them, for the queue alone.
    clock : CallClock
        How long the host waits for an event. It is lost where that is too long.
    device : int
        Number of the device, for messages.

    Raises
    ------
    ValueError
        There are more or fewer streams or events.
    """

    cdef device_queue raw
    cdef object functions
    cdef readonly object context
    cdef readonly tuple streams
    cdef readonly int device
    cdef CallClock clock

    def __init__(self, functions, context, streams, events, CallClock clock, *, int device=0):
        if len(streams) != QUEUES or len(events) != QUEUES + 1:
            raise ValueError(
                f"{len(streams)} streams and {len(events)} events; wanted {QUEUES} and {QUEUES + 1}"
            )
        self.functions = functions
        self.context = context
        self.streams = tuple(streams)
        self.device = device
        self.clock = clock
        self.raw.cuda.launch = <launch_function *> pointer(functions["cuLaunchKernel"])
        self.raw.cuda.copy = <copy_function *> pointer(functions["cuMemcpyAsync"])
        self.raw.cuda.record = <record_function *> pointer(functions["cuEventRecord"])
        self.raw.cuda.wait = <wait_function *> pointer(functions["cuStreamWaitEvent"])
        self.raw.cuda.query = <query_function *> pointer(functions["cuEventQuery"])
        for k in range(QUEUES):
            self.raw.streams[k] = pointer(streams[k])
            self.raw.events[k] = pointer(events[k])
        self.raw.caller = pointer(events[QUEUES])

    cdef int check(self, int result) except -1:
        if result:
            raise failure(self.functions, self.raw.failed.decode(), result)
        return 0

    cdef void *stream(self, int queue) except? NULL:
        if not 0 <= queue < QUEUES:
            raise ValueError(f"there is no queue {queue}")
        return self.raw.streams[queue]

    def follow(self, stream):
        """Let all queues wait for what has been submitted on a stream so far."""
        cdef void *caller = pointer(stream)
        cdef int result
        with nogil:
            result = follow_stream(&self.raw, caller)
        self.check(result)

    def lead(self, stream):
        """Let a stream wait for all that has been submitted on the queues so far."""
        cdef void *caller = pointer(stream)
        cdef int result
        with nogil:
            result = lead_stream(&self.raw, caller)
        self.check(result)

    def launch(self, function, arguments, unsigned grid, unsigned block, int queue=0):
        """Launch a kernel that takes one structure by value.

        Parameters
        ----------
        function : int
            Handle of the kernel.
        arguments : buffer
            The bytes of the structure; they are copied.
        grid, block : int
            Blocks, and threads of each. A grid of 0 launches nothing.
        queue : int
            On which it runs.
        """
        cdef void *stream = self.stream(queue)
        cdef void *kernel = pointer(function)
        cdef Py_buffer view
        cdef int result
        PyObject_GetBuffer(arguments, &view, PyBUF_SIMPLE)
        try:
            with nogil:
                result = launch(&self.raw, kernel, view.buf, grid, block, stream)
        finally:
            PyBuffer_Release(&view)
        self.check(result)

    def copy(self, uint64_t out, uint64_t source, size_t nbytes, int queue=0):
        """Copy bytes between addresses in device memory and in pinned host memory."""
        cdef void *stream = self.stream(queue)
        cdef int result
        with nogil:
            result = copy_bytes(&self.raw, out, source, nbytes, stream)
        self.check(result)

    def record(self, event, int queue):
        """Record an event behind what has been submitted on a queue."""
        cdef void *stream = self.stream(queue)
        cdef void *handle = pointer(event)
        cdef int result
        with nogil:
            result = record_event(&self.raw, handle, stream)
        self.check(result)

    def wait_for(self, event, int queue):
        """Let a queue wait for an event that has been recorded."""
        cdef void *stream = self.stream(queue)
        cdef void *handle = pointer(event)
        cdef int result
        with nogil:
            result = make_wait(&self.raw, stream, handle)
        self.check(result)

    def await_event(self, event, what):
        """Wait on the host until an event is complete.

        Parameters
        ----------
        event : int
            It has been recorded.
        what : str
            What the event stands for, for messages: "the copy to the host".

        Raises
        ------
        CollectiveTimeoutError
            It took longer than the clock allows. The clock is lost.
        CudaError
            Something that was submitted failed.
        """
        self.wait_on(pointer(event), what)

    def drain(self, what):
        """Wait on the host until all that has been submitted is complete; errors as above."""
        cdef int result, k
        with nogil:
            result = record_all(&self.raw)
        self.check(result)
        for k in range(QUEUES):
            self.wait_on(self.raw.events[k], what)

    def leave(self):
        """Wait for all that has been submitted, in a call that failed: for some seconds at most.

        Returns
        -------
        bool
            Whether nothing is under way any more. No error is raised: the one that ends the call
            says more.
        """
        cdef int complete = 0
        with nogil:
            drain_for(&self.raw, LONGEST_NAP, LEAVE_PATIENCE, &complete)
        return complete != 0

    cdef int wait_on(self, void *event, what) except -1:
        cdef int64_t start = nanoseconds()
        cdef int64_t limit = self.clock.limit
        cdef int64_t longest = limit if 0 < limit < ATTEND_EVERY else ATTEND_EVERY
        cdef int64_t patience = FIRST_LOOK if FIRST_LOOK < longest else longest
        cdef long nap = 0
        cdef int result, complete = 0
        while True:
            with nogil:
                result = look_at_event(&self.raw, event, nap, patience, &complete)
            self.check(result)
            if complete:
                return 0
            self.attend(what, nanoseconds() - start)
            nap, patience = LONGEST_NAP, longest

    cdef int attend(self, what, int64_t waited) except -1:
        """Do what is to be done while an event is not complete; raise what ends the wait."""
        cdef CallClock clock = self.clock
        PyErr_CheckSignals()
        if 0 < clock.limit <= waited:
            clock.lose()
            raise CollectiveTimeoutError(f"{self.describe_wait(what, waited)}. {NEW_ONE}")
        if 0 < clock.warning <= waited and not clock.warned:
            clock.warned = True
            text = f"hpccoll: {self.describe_wait(what, waited)}; it goes on waiting"
            print(text, file=sys.stderr, flush=True)
        return 0

    cdef object describe_wait(self, what, int64_t waited):
        return (
            f"call {self.clock.number} on this communicator: waited {waited / 1e9:.3g} s for "
            f"{what} on CUDA device {self.device}"
        )


@cython.final
cdef class BoundWorks(DeviceWork):
    """The works of a plan, bound to kernels and to memory.

    Parameters
    ----------
    queue : DeviceQueue
        Where they are submitted.
    works : sequence of tuple
        ``(kind, queue, out, left, right, count, nbytes, after, is_marked)``. Places are pairs
        ``(base, offset)`` with a base of `ABSOLUTE`, `SOURCE` or `TARGET`, which are those of the
        call. Kernels take `count` elements: REDUCE stores ``left op right``, FINISH and WIDEN what
        they make of `left`. Copies take `nbytes` bytes from `left`. `after` are up to three works,
        by index, that must be complete before; those on other queues must be marked. A marked work
        can be waited for.
        Or ``(LAUNCH, queue, function, arguments, grid, block, reduced, after, is_marked)``: any
        kernel, with the bytes of its structure, in which addresses are absolute; `reduced` bytes
        count as reduced. `set_arguments` replaces them for the calls that follow.
    reduce, finish, widen : int
        Handles of the kernels. Where `finish` is 0, FINISH copies what is not in its place yet.
    divisor : float
        What complete elements are divided by; 0 for no division.
    itemsize, partial_itemsize : int
        Bytes per element of the caller's type and of partial values.
    events : sequence of int
        As many as there are marked works. Plans that never run at the same time can share them.
    multiprocessors : int
        How many the device has.
    keep : object
        Kept alive with the works.

    Raises
    ------
    ValueError
        A work makes no sense.
    """

    cdef DeviceQueue queue
    cdef work *works
    cdef Py_ssize_t length
    cdef work_setting setting
    cdef int64_t call
    cdef dict arguments
    cdef object keep

    def __init__(self, DeviceQueue queue, works, *, reduce, finish, widen, double divisor,
                 size_t itemsize, size_t partial_itemsize, events, unsigned multiprocessors, keep):
        cdef Py_ssize_t k
        self.queue = queue
        self.keep = keep
        self.arguments = {}
        self.call = 1  # no work was submitted in it
        self.setting.reduce = pointer(reduce)
        self.setting.finish = pointer(finish)
        self.setting.widen = pointer(widen)
        self.setting.divisor = divisor
        self.setting.itemsize = itemsize
        self.setting.partial_itemsize = partial_itemsize
        self.setting.multiprocessors = multiprocessors
        self.works = <work *> PyMem_Calloc(len(works) + 1, sizeof(work))
        if self.works == NULL:
            raise MemoryError
        marks = iter(events)
        for k in range(len(works)):
            self.bind(k, works[k], marks)
            self.length += 1

    def __dealloc__(self):
        PyMem_Free(self.works)

    cdef int bind(self, Py_ssize_t index, entry, marks) except -1:
        cdef work *one = &self.works[index]
        kind, queue, *details, after, is_marked = entry
        if not 0 <= kind < WORK_KINDS or not 0 <= queue < QUEUES:
            raise ValueError(f"work {index} is of kind {kind}, on queue {queue}")
        one.kind, one.queue = kind, queue
        if kind == LAUNCH_WORK:
            function, arguments, one.grid, one.block, one.reduced = details
            one.function = pointer(function)
            self.give_arguments(index, bytes(arguments))
        else:
            out, left, right, one.count, one.nbytes = details
            one.out, one.left, one.right = bind_place(out), bind_place(left), bind_place(right)
            if kind == REDUCE_WORK:
                one.reduced = one.count * self.setting.partial_itemsize
        needs = self.setting.reduce if kind == REDUCE_WORK else self.setting.widen
        if kind in (REDUCE_WORK, WIDEN_WORK) and needs == NULL:
            raise ValueError(f"work {index} needs a kernel that was not given")
        if is_marked:
            event = next(marks, 0)
            if not event:
                raise ValueError(f"there are only {self.count_marked(index)} events for the works")
            one.event = pointer(event)
        for earlier in after:
            self.bind_order(index, earlier)
        return 0

    cdef int give_arguments(self, Py_ssize_t index, bytes arguments) except -1:
        self.arguments[index] = arguments
        self.works[index].arguments = <char *> arguments
        return 0

    def set_arguments(self, Py_ssize_t index, arguments):
        """Give a LAUNCH other bytes of its structure; between two calls, or before it is submitted.

        Parameters
        ----------
        index : int
            Of the work.
        arguments : buffer
            As many bytes as it has; they are copied.

        Raises
        ------
        ValueError
            It is no LAUNCH, or has more or fewer bytes.
        """
        cdef bytes former = self.arguments.get(index)
        made = bytes(arguments)
        if former is None or len(made) != len(former):
            wanted = "no arguments" if former is None else f"{len(former)} bytes of arguments"
            raise ValueError(f"work {index} takes {wanted}, and was given {len(made)}")
        self.give_arguments(index, made)

    cdef int bind_order(self, Py_ssize_t index, Py_ssize_t earlier) except -1:
        cdef work *one = &self.works[index]
        if not 0 <= earlier < index:
            raise ValueError(f"work {index} comes after work {earlier}, which is not before it")
        if self.works[earlier].queue == one.queue:
            return 0
        if self.works[earlier].event == NULL:
            raise ValueError(f"work {index} comes after work {earlier}, which is not marked")
        if one.after_count == MOST_AFTER:
            raise ValueError(f"work {index} comes after more than {MOST_AFTER} others")
        one.after[one.after_count] = earlier
        one.after_count += 1
        return 0

    cdef Py_ssize_t count_marked(self, Py_ssize_t stop):
        cdef Py_ssize_t k, count = 0
        for k in range(stop):
            count += self.works[k].event != NULL
        return count

    cdef work *submitted(self, Py_ssize_t index) except NULL:
        """Return a work that must have been submitted in this call."""
        if not 0 <= index < self.length or self.works[index].call != self.call:
            raise RuntimeError(f"work {index} was not submitted in this call")
        return &self.works[index]

    cdef int begin(self, char *source, char *target) except -1:
        self.call += 1
        self.setting.bases[1] = <uintptr_t> source
        self.setting.bases[2] = <uintptr_t> target
        return 0

    cdef int64_t submit(self, Py_ssize_t index) except -1:
        cdef work *one
        cdef int k, result
        if not 0 <= index < self.length:
            raise IndexError(f"there is no work {index}")
        one = &self.works[index]
        for k in range(one.after_count):
            self.submitted(one.after[k])
        with nogil:
            result = submit_work(&self.queue.raw, &self.setting, self.works, one)
        self.queue.check(result)
        one.call = self.call
        return one.reduced

    cdef int wait(self, Py_ssize_t index) except -1:
        cdef work *one
        if index == -1:
            return self.queue.wait_on(
                self.queue.raw.caller, "what the caller's stream did before the call"
            )
        one = self.submitted(index)
        if one.event == NULL:
            raise RuntimeError(f"work {index} is not marked")
        return self.queue.wait_on(one.event, f"work {index + 1} of {self.length}")

    cdef int leave(self) except -1:
        if not self.queue.leave():
            abandoned.append(self)
        return 0

    # For tests, which run works without a plan.

    def begin_call(self, uintptr_t source, uintptr_t target):
        """Begin a call on vectors at these addresses."""
        self.begin(<char *> source, <char *> target)

    def submit_one(self, Py_ssize_t index):
        """Submit a work behind those that it comes after; return how many bytes it reduces."""
        return self.submit(index)

    def wait_for_one(self, Py_ssize_t index):
        """Wait until a marked work is complete; -1: what `DeviceQueue.follow` was told of."""
        self.wait(index)

    def leave_call(self):
        """Wait, for a few seconds at most, until nothing that was submitted is under way."""
        self.leave()


cdef place bind_place(entry) except *:
    cdef place result
    base, offset = entry
    if not 0 <= base < PLACES:
        raise ValueError(f"there is no base {base} of places")
    result.base, result.offset = base, offset
    return result
