# cython: language_level=3
"""Collectives among ranks that share memory: no message, no MPI call, no interpreter lock.

A `Node` is what one rank knows of the others' slots; a `NodePlan` runs one collective there. How, is
in node_allreduce.h; what the slots hold, in node_slots.h.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport uintptr_t

from hpccoll._plans cimport Loops, Plan
from node_allreduce cimport (
    ATTENDED,
    DIFFERENT,
    DONE,
    GIVEN_UP,
    MEMORY_BYTES,
    SLOT_HEAD_BYTES,
    STAGING_BYTES,
    TIME_IS_UP,
    announce,
    current,
    loops,
    node,
    node_allreduce,
    slot,
)


cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1


# By enum design of node_slots.h.
DESIGNS = ("none", "in_line", "gathered", "slotted", "read_from_peers", "shared")


def slot_bytes(size_t segment_bytes):
    """Return the size of a slot with buffers of so many bytes."""
    return SLOT_HEAD_BYTES + 4 * segment_bytes


@cython.final
cdef class Node:
    """One rank's view of the slots of a node.

    Parameters
    ----------
    rank : int
        Number of this process among those of the node, which is also its place in the expression.
    slots : sequence of int
        By rank: the address at which this process maps its slot, of `slot_bytes` zeros at first.
    segment_bytes : int
        Of one buffer of a slot; a multiple of 64.
    arenas : sequence of int
        By rank: the address at which this process maps its arena; empty where there are none.
    arena_bytes : int
        Size of each.
    processes : sequence of int
        By rank: the process whose memory is read; empty where that is not allowed.
    gather_bytes, slot_bytes, shared_bytes : int
        Which design runs at which size; see node_slots.h.
    spins, yield_time
        How to wait: looks, then nanoseconds.
    watch : callable
        Called while waiting long; what it raises ends the call.
    keep : object
        Kept alive with the node.

    Attributes
    ----------
    broken : bool
        A call was left before its end: the ranks are out of step, and none can be made any more.
    """

    cdef node state
    cdef object watch
    cdef object keep
    cdef object error
    cdef int *process_ids
    cdef readonly bint broken

    def __cinit__(self, rank, slots, *, size_t segment_bytes, arenas, size_t arena_bytes, processes,
                  size_t gather_bytes, size_t slot_bytes, size_t shared_bytes, long spins,
                  long yield_time, watch, keep=None):
        cdef int size = len(slots)
        self.watch = watch
        self.keep = keep
        self.state.rank = rank
        self.state.size = size
        self.state.segment_bytes = segment_bytes
        self.state.arena_bytes = arena_bytes
        self.state.gather_bytes = gather_bytes
        self.state.slot_bytes = slot_bytes
        self.state.shared_bytes = shared_bytes
        self.state.slots = <slot **> self.table(size)
        self.state.arenas = <char **> self.table(size)
        self.state.inputs = <const char **> self.table(size)
        self.state.outputs = <char **> self.table(size)
        self.process_ids = <int *> self.table(size)
        self.state.memory = <char *> self.room(MEMORY_BYTES)
        self.state.staging = <char *> self.room(STAGING_BYTES)
        for k in range(size):
            self.state.slots[k] = <slot *> <uintptr_t> slots[k]
            if arenas:
                self.state.arenas[k] = <char *> <uintptr_t> arenas[k]
            if processes:
                self.process_ids[k] = processes[k]
        if processes:
            self.state.processes = self.process_ids
        self.state.waiting.spins = spins
        self.state.waiting.yield_time = yield_time
        self.state.waiting.time_limit = 0
        self.state.waiting.attend = attend
        self.state.waiting.context = <void *> self

    cdef void *table(self, int size) except NULL:
        return self.room(size * sizeof(void *))

    cdef void *room(self, size_t nbytes) except NULL:
        cdef void *memory = PyMem_Calloc(nbytes, 1)
        if memory == NULL:
            raise MemoryError
        return memory

    def __dealloc__(self):
        PyMem_Free(self.state.slots)
        PyMem_Free(self.state.arenas)
        PyMem_Free(<void *> self.state.inputs)
        PyMem_Free(self.state.outputs)
        PyMem_Free(self.process_ids)
        PyMem_Free(self.state.memory)
        PyMem_Free(self.state.staging)

    cdef int attended(self) noexcept:
        try:
            PyErr_CheckSignals()
            self.watch()
        except BaseException as error:
            self.error = error
            return ATTENDED
        return 0

    cdef int fail(self, int outcome, NodePlan plan) except -1:
        """Raise the error of a call that did not come to its end."""
        cdef int peer = self.state.culprit
        cdef slot *theirs = self.state.slots[peer]
        if outcome == DIFFERENT:
            # All ranks have seen that, before any data moved: they are still in step.
            header = theirs.headers[self.state.calls % 2]
            plan.info.mismatch(peer, plan.nbytes, plan.kind, header.nbytes, header.kind)
        self.broken = True
        announce(&self.state.slots[self.state.rank].given_up, 1)
        if outcome == ATTENDED:
            error, self.error = self.error, None
            raise error
        if outcome == GIVEN_UP:
            plan.info.fail(f"rank {peer} of the node has left a call before its end")
        if outcome == TIME_IS_UP:
            plan.info.fail(f"rank {peer} of the node did not come in time")
        plan.info.fail("the memory of another rank of the node could not be read")


cdef int attend(void *context) noexcept nogil:
    cdef node *state = &(<Node> context).state
    cdef int k
    for k in range(state.size):
        if current(&state.slots[k].given_up):
            state.culprit = k
            return GIVEN_UP
    with gil:
        return (<Node> context).attended()


@cython.final
cdef class NodePlan(Plan):
    """One collective among the ranks of a node.

    Parameters
    ----------
    node : Node
    loops : Loops
        Compiled ones.
    itemsize, partial_itemsize : int
        Bytes per element of the caller's type and of partial values.
    kind : int
        What must be equal on all ranks beside the number of bytes.
    count : int
        Elements of the vector.
    info : object
        What `hpccoll.Comm.last_call` is made from; its ``mismatch`` and ``fail`` raise errors.
    """

    cdef Node node
    cdef loops loops
    cdef Loops kept
    cdef int kind
    cdef size_t count
    cdef readonly size_t nbytes
    cdef int design_number

    def __init__(self, Node node, Loops loops, *, itemsize, partial_itemsize, kind, count, info):
        self.node = node
        self.kept = loops
        self.loops.reduce = loops.reduce
        self.loops.divide = loops.divide if loops.divisor != 0 else NULL
        self.loops.widen = loops.widen
        self.loops.narrow = loops.narrow
        self.loops.divisor = loops.divisor
        self.loops.itemsize = itemsize
        self.loops.partial_itemsize = partial_itemsize
        self.kind = kind
        self.count = count
        self.nbytes = count * itemsize
        self.info = info
        self.usable = True

    @property
    def design(self):
        """How the last run moved the data: one of `DESIGNS`."""
        return DESIGNS[self.design_number]

    cdef int execute(self, char *source, char *target) except -1:
        cdef int outcome
        cdef Node node = self.node
        if node.broken:
            self.info.fail("an earlier call on this communicator was left before its end")
        self.in_place = source == target
        with nogil:
            outcome = node_allreduce(
                &node.state, &self.loops, self.kind, source, target, self.count
            )
        self.design_number = node.state.design
        if outcome != DONE:
            node.fail(outcome, self)
        return 0
