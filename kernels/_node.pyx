# cython: language_level=3
"""Collectives among ranks that share memory: no message, no MPI call, no interpreter lock.

A `Node` is what one rank knows of the others' slots; a `NodePlan` runs one collective there. How is
in node_reduce.h and node_move.h; what the slots hold, in node_slots.h.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from libc.stdint cimport int64_t, uint64_t, uintptr_t

from hpccoll._plans cimport CallClock, Levels, Loops, Plan
from hpccoll.errors import CollectiveTimeoutError, join_ranks
from hpccoll.transport import Failure
from node_levels cimport (
    APART,
    COLLECTIVE_COUNT,
    DESIGN_COUNT,
    DIFFERENT,
    DISAGREES,
    DONE,
    ELSEWHERE,
    EVERYONE,
    GIVEN_UP,
    INTERRUPTED,
    LEFT,
    LOST,
    MEMORY_BYTES,
    SLOT_HEAD_BYTES,
    STAGING_BYTES,
    STAYS,
    TIME_IS_UP,
    UNREADABLE,
    announce,
    collective as c_collective,
    collective_names,
    crossing_time,
    current,
    design_names,
    hear_out,
    levels as c_levels,
    levels_begin,
    levels_end,
    levels_publish,
    levels_reduce,
    linger,
    loops as c_loops,
    node as c_node,
    node_collective,
    reads_like,
    slot,
)


cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1


DESIGNS = tuple([design_names[i].decode() for i in range(DESIGN_COUNT)])
COLLECTIVES = tuple([collective_names[i].decode() for i in range(COLLECTIVE_COUNT)])

# Those with a root, and those with a chunk for each rank.
ROOTED = ("reduce", "broadcast", "gather", "scatter")
CHUNKED = ("reduce_scatter", "allgather", "gather", "scatter")

# The same number as hpccoll.engine.GIVEN_UP; a unit test compares the two.
cdef enum:
    NO_DATA = -1

GIVEN_UP_TAG = NO_DATA

# What the address of a slot is a multiple of.
ALIGNMENT = APART


def slot_bytes(size_t buffer_bytes):
    """Return the size of a slot with buffers of so many bytes."""
    return SLOT_HEAD_BYTES + 4 * buffer_bytes


def can_read(int process, uintptr_t there, uintptr_t here, size_t nbytes):
    """Tell whether memory of another process can be read, and is what lies `here`.

    Parameters
    ----------
    process : int
        Its number.
    there, here : int
        Addresses, in that process and in this one.
    nbytes : int
        How much to compare, at most 64.
    """
    return reads_like(process, <void *> there, <void *> here, nbytes) != 0


def describe_wait(ranks, waited):
    """Return text about a wait of so many nanoseconds."""
    whom = join_ranks(ranks) if ranks else "others"
    return f"waited {waited / 1e9:.3g} s for {whom} in the memory of the node"


@cython.final
cdef class Node:
    """One rank's view of the slots of a node.

    Parameters
    ----------
    rank : int
        Number of this process among those of the node, which is also its place in the expression.
    slots : sequence of int
        By rank: the address at which this process maps its slot, of `slot_bytes` zeros at first.
    buffer_bytes : int
        Of one buffer of a slot; a multiple of 64.
    arenas : sequence of int
        By rank: the address at which this process maps its arena; empty where there are none.
    arena_bytes : int
        Size of each.
    processes : sequence of int
        By rank: the process whose memory is read; empty where that is not allowed.
    members : sequence of int
        By rank: what the communicator calls it.
    limits : sequence of int
        As of `set_limits`.
    spins, yield_time : int
        How to wait: looks, then nanoseconds.
    watch : callable
        Called while waiting long, with the ranks that have not begun the call that this one has
        begun. Returns `hpccoll.transport.Word` of one that makes another call or has given up, or
        None; what it raises ends the call.
    clock : CallClock, optional
        Of the channel.

    Attributes
    ----------
    members : tuple of int
        As above.
    broken : bool
        A call was left before its end: the ranks are out of step, and none can be made any more.
    """

    cdef c_node state
    cdef object watch
    cdef object error
    cdef object elsewhere
    cdef object info     # of the plan that runs
    cdef CallClock clock
    cdef int64_t waited  # nanoseconds, when the call was last attended to
    cdef readonly tuple members
    cdef readonly bint broken

    def __cinit__(self, rank, slots, *, size_t buffer_bytes, arenas, size_t arena_bytes, processes,
                  members, limits, long spins, long yield_time, watch, CallClock clock=None):
        cdef int size = len(slots)
        self.clock = CallClock() if clock is None else clock
        self.watch = watch
        self.members = tuple(members)
        self.state.rank = rank
        self.state.size = size
        self.state.buffer_bytes = buffer_bytes
        self.state.arena_bytes = arena_bytes
        self.set_limits(limits)
        self.state.slots = <slot **> self.table(size)
        self.state.arenas = <char **> self.table(size)
        self.state.inputs = <const char **> self.table(size)
        self.state.outputs = <char **> self.table(size)
        self.state.memory = <char *> self.room(MEMORY_BYTES)
        self.state.staging = <char *> self.room(STAGING_BYTES)
        for k in range(size):
            self.state.slots[k] = <slot *> <uintptr_t> slots[k]
            if arenas:
                self.state.arenas[k] = <char *> <uintptr_t> arenas[k]
        if processes:
            self.state.processes = self.numbers(processes)
        self.state.waiting.spins = spins
        self.state.waiting.yield_time = yield_time
        self.state.waiting.time_limit = 0
        self.state.waiting.attend = attend
        self.state.waiting.context = <void *> self

    cdef void *table(self, int size) except NULL:
        return self.room(size * sizeof(void *))

    cdef int *numbers(self, values) except NULL:
        cdef int *room = <int *> self.room(len(values) * sizeof(int))
        for k, value in enumerate(values):
            room[k] = value
        return room

    cdef size_t *offsets(self, values) except NULL:
        cdef size_t *room = <size_t *> self.room(len(values) * sizeof(size_t))
        for k, value in enumerate(values):
            room[k] = value
        return room

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
        PyMem_Free(<void *> self.state.processes)
        PyMem_Free(self.state.memory)
        PyMem_Free(self.state.staging)

    @property
    def segment_bytes(self):
        """Bytes that go through one buffer of a slot at once."""
        return self.state.segment_bytes

    def set_limits(self, limits):
        """Set which design runs at which size; equal on all ranks.

        Parameters
        ----------
        limits : sequence of int
            ``gather_bytes, slot_bytes, shared_bytes, segment_bytes``; see node_slots.h.
        """
        gather_bytes, slot_bytes, shared_bytes, segment_bytes = limits
        self.state.gather_bytes = gather_bytes
        self.state.slot_bytes = slot_bytes
        self.state.shared_bytes = shared_bytes
        self.state.segment_bytes = min(segment_bytes, self.state.buffer_bytes)

    def crossing_time(self):
        """Return nanoseconds until the others see what a rank has stored. Collective."""
        with nogil:
            time = crossing_time(&self.state)
        return time

    @property
    def calls_by_messages(self):
        """Address of the number of flat calls that this rank has begun, for their plans."""
        return <uintptr_t> &self.state.slots[self.state.rank].by_messages

    cdef object sender_among(self, list late):
        """Return one of these ranks that runs a flat call in place of this one, or None."""
        cdef uint64_t mine = current(&self.state.slots[self.state.rank].by_messages)
        cdef int k
        for k in range(self.state.size):
            if self.members[k] in late and current(&self.state.slots[k].by_messages) > mine:
                return self.members[k]
        return None

    def counters(self):
        """Return numbers that lie behind this rank, and end its being left behind.

        For ranks that are out of step: they take the greatest of all as theirs, by `catch_up`,
        before any of them begins another call.
        """
        cdef slot *mine = self.state.slots[self.state.rank]
        self.broken = False
        announce(&mine.given_up, STAYS)
        return (
            self.state.calls,
            max(self.state.segments, current(&mine.copied)),
            max(self.state.pieces, current(&mine.reduced)),
            max(self.state.published, current(&mine.published)),
            current(&mine.by_messages),
        )

    def catch_up(self, counters):
        """Go on from these `counters`, as all other ranks do."""
        (
            self.state.calls, self.state.segments, self.state.pieces, self.state.published,
            by_messages,
        ) = counters
        announce(&self.state.slots[self.state.rank].by_messages, by_messages)

    cdef list late(self):
        """Return the ranks that have not begun the call that this one has begun."""
        cdef uint64_t call = self.state.calls
        if not self.state.beginning:
            return []
        return [
            self.members[k]
            for k in range(self.state.size)
            if current(&self.state.slots[k].headers[call % 2].call) < call
        ]

    cdef int attended(self, int64_t waited) noexcept:
        self.waited = waited
        try:
            PyErr_CheckSignals()
            late = self.late()
            word = self.watch(late)
            if word is not None and word.failure is Failure.LOST:
                return TIME_IS_UP
            self.elsewhere = self.sender_among(late) if word is None else word.rank
            if self.elsewhere is not None and self.late() != late:
                # Who has come meanwhile may have left again: the news was of its next call. If it
                # was not, it is there at the next look.
                self.elsewhere = None
            if 0 < self.clock.warning <= waited and not self.clock.warned:
                self.clock.warned = True
                self.info.warn(self.clock.number, describe_wait(late, waited))
        except BaseException as error:
            self.error = error
            return INTERRUPTED
        return 0 if self.elsewhere is None else ELSEWHERE

    cdef int begin(self, info) except -1:
        if self.broken:
            info.fail("an earlier call was left before its end, here or on another rank")
        self.info = info
        self.waited = 0
        self.state.waiting.time_limit = self.clock.limit
        return 0

    cdef int leave(self, int how) noexcept:
        """Leave a call before its end, and tell so: LEFT, LOST or DISAGREES.

        If they disagree, all ranks of the communicator do, and will catch up.
        """
        self.broken = how != DISAGREES
        announce(&self.state.slots[self.state.rank].given_up, how)
        return 0

    cdef int leave_by(self, error) noexcept:
        """Leave a hierarchical call by an exception."""
        if isinstance(error, ValueError):  # ranks disagree, and all of them hear of that
            return self.leave(DISAGREES)
        return self.leave(LOST if isinstance(error, CollectiveTimeoutError) else LEFT)

    cdef int give_up(self, int outcome, info, str what, list whom, bint hear) except -1:
        """Raise the error of a call to which ranks did not come, or in which they were lost.

        Parameters
        ----------
        outcome : int
            UNREADABLE, TIME_IS_UP or GIVEN_UP.
        info : object
            Of the plan.
        what : str
            What happened.
        whom : list of int
            Who was waited for.
        hear : bool
            Find out here who gives no sign; else it will be found out by messages.
        """
        cdef int k
        late = self.late()
        self.leave(LOST)
        with nogil:
            if hear:
                hear_out(&self.state)
            linger(&self.state)
        silent = [
            self.members[k]
            for k in range(self.state.size)
            if current(&self.state.slots[k].given_up) == STAYS
        ]
        self.clock.lose()
        missing = late or silent or whom
        if outcome == UNREADABLE and not missing:  # all are there, but it is not allowed
            info.fail(what)
        info.lose(self.clock.number, what, missing)

    cdef int fail(self, int outcome, info, Py_ssize_t nbytes, int kind, bint flat) except -1:
        """Raise the error of a call that did not come to its end; `flat`: within the node."""
        cdef int peer = self.state.culprit
        cdef slot *theirs = self.state.slots[peer]
        member = self.members[peer]
        if outcome == DIFFERENT:
            # All ranks have seen that, before any data moved: they are still in step.
            their_nbytes = theirs.headers[self.state.calls % 2].nbytes
            their_kind = theirs.headers[self.state.calls % 2].kind
            info.mismatch(member, nbytes, kind, their_nbytes, their_kind)
        if outcome == ELSEWHERE:
            info.elsewhere(self.elsewhere)
        if outcome == GIVEN_UP and current(&theirs.given_up) == DISAGREES:
            info.mismatch(member, nbytes, kind, 0, NO_DATA)
        if outcome == UNREADABLE:  # of a process that has ended, for example
            what = "the memory of another rank could not be read"
            self.give_up(outcome, info, what, [], flat)
        if outcome == TIME_IS_UP:
            whom = self.late() or [member]
            waited = max(self.waited, self.clock.limit)
            self.give_up(outcome, info, describe_wait(whom, waited), whom, flat)
        if outcome == GIVEN_UP and current(&theirs.given_up) == LOST:
            what = f"rank {member} has given up the call for good"
            self.give_up(outcome, info, what, [], flat)
        self.leave(LEFT)
        with nogil:
            linger(&self.state)
        if outcome == INTERRUPTED:
            error, self.error = self.error, None
            raise error
        if outcome == GIVEN_UP:
            info.fail(f"rank {member} has left a call before its end")


cdef int attend(void *context, int64_t waited) noexcept nogil:
    cdef c_node *state = &(<Node> context).state
    cdef int k
    for k in range(state.size):
        if current(&state.slots[k].given_up):
            state.culprit = k
            return GIVEN_UP
    with gil:
        return (<Node> context).attended(waited)


cdef c_loops c_loops_of(Loops loops, size_t itemsize, size_t partial_itemsize) noexcept:
    cdef c_loops made
    made.reduce = loops.reduce
    made.divide = loops.divide if loops.divisor != 0 else NULL
    made.widen = loops.widen
    made.narrow = loops.narrow
    made.divisor = loops.divisor
    made.itemsize = itemsize
    made.partial_itemsize = partial_itemsize
    return made


@cython.final
cdef class NodePlan(Plan):
    """One collective among the ranks of a node.

    Parameters
    ----------
    node : Node
    loops : Loops
        Compiled ones; without any where elements only move.
    itemsize, partial_itemsize : int
        Bytes per element of the caller's type and of partial values.
    kind : int
        What must be equal on all ranks, beside the number of bytes, the collective and the root.
    count : int
        Elements of the whole vector.
    info : object
        What `hpccoll.Comm.last_call` is made from; its ``mismatch``, ``elsewhere`` and ``fail``
        raise errors.
    collective : str
        One of `COLLECTIVES`.
    root : int
        Number of the root on the node, where there is one.
    starts : sequence of int
        Where ranks have chunks: in elements, where each begins, in order, and `count` at last;
        equal on all ranks.

    Attributes
    ----------
    disagrees : bool
        The last run ended because other ranks make another call. They have not been told yet.
    differs : bool
        The last run ended before data moved, since ranks passed different arguments. All have seen
        that.
    """

    cdef Node node
    cdef c_loops loops
    cdef c_collective collective
    cdef Loops kept  # what the addresses in C lead to
    cdef int kind
    cdef readonly size_t nbytes
    cdef readonly bint disagrees
    cdef readonly bint differs
    cdef int design_number

    def __cinit__(self, Node node, Loops loops, *, itemsize, partial_itemsize, kind, count, info,
                  collective="allreduce", root=0, starts=()):
        cdef int size = node.state.size
        ascends = [0, *sorted(starts[1:])] == [*starts]
        if collective in CHUNKED and not (
            ascends and len(starts) == size + 1 and starts[size] == count
        ):
            raise ValueError(f"chunks start at {starts}; wanted {size}, in order, up to {count}")
        if collective in ROOTED and not 0 <= root < size:
            raise ValueError(f"root of {collective} is {root}; wanted one of {size} ranks")
        self.collective.which = COLLECTIVES.index(collective)
        self.collective.root = root if collective in ROOTED else EVERYONE
        self.collective.count = count
        self.collective.starts = node.offsets(starts)
        self.node = node
        self.kept = loops
        self.loops = c_loops_of(loops, itemsize, partial_itemsize)
        self.kind = kind
        self.nbytes = count * itemsize
        self.info = info
        self.usable = self.compares = True

    def __dealloc__(self):
        PyMem_Free(<void *> self.collective.starts)

    @property
    def design(self):
        """How the last run moved the data: one of `DESIGNS`."""
        return DESIGNS[self.design_number]

    @property
    def segment_bytes(self):
        """Bytes that go through one buffer of a slot at once."""
        return self.node.segment_bytes

    cdef int execute(self, char *source, char *target) except -1:
        cdef int outcome
        cdef Node node = self.node
        self.disagrees = self.differs = False
        node.begin(self.info)
        node.clock.begin()
        self.in_place = source == target + self.own_offset
        if target == NULL:
            target = source  # the root of a broadcast has what it wants
        with nogil:
            outcome = node_collective(
                &node.state, &self.loops, &self.collective, self.kind, source, target
            )
        self.design_number = node.state.design
        if outcome != DONE:
            self.differs = outcome == DIFFERENT and not node.state.mixed
            self.disagrees = (
                outcome == ELSEWHERE
                or outcome == DIFFERENT and node.state.mixed
                or outcome == GIVEN_UP
                and current(&node.state.slots[node.state.culprit].given_up) == DISAGREES
            )
            node.fail(outcome, self.info, self.nbytes, self.kind, True)
        return 0


@cython.final
cdef class NodeLevels(Levels):
    """What a hierarchical all-reduce does inside the node, for a plan of messages between nodes.

    Parameters
    ----------
    node : Node
    loops : Loops
        Compiled ones.
    itemsize, partial_itemsize : int
        Bytes per element of the caller's type and of partial values.
    kind : int
        What must be equal on all ranks of the node beside the number of bytes.
    count : int
        Elements of the vector.
    leader_ranks : sequence of int
        By slice: number of its leader on this node.
    pieces : int
        Per slice.
    input, partial, output : int
        Addresses in the own arena: room for the vector, and for partial and finished values of
        the slice that this rank leads.
    info : object
        As of the plan.
    """

    cdef c_levels state
    cdef Node node
    cdef Loops kept  # what the addresses in C lead to
    cdef object info
    cdef int kind
    cdef Py_ssize_t nbytes

    def __cinit__(self, Node node, Loops loops, *, itemsize, partial_itemsize, kind, count,
                  leader_ranks, pieces, uintptr_t input, uintptr_t partial, uintptr_t output, info):
        self.node = node
        self.kept = loops
        self.info = info
        self.kind = kind
        self.nbytes = count * itemsize
        self.state.node = &node.state
        self.state.loops = c_loops_of(loops, itemsize, partial_itemsize)
        # Values stay partial until all nodes are in them.
        self.state.loops.divide = NULL
        self.state.loops.narrow = NULL
        self.state.count = count
        self.state.leaders = len(leader_ranks)
        self.state.leader_ranks = node.numbers(leader_ranks)
        self.state.slice = -1
        for slice_number, rank in enumerate(leader_ranks):
            if rank == node.state.rank:
                self.state.slice = slice_number
        self.state.pieces = pieces
        self.state.input = <char *> input
        self.state.partial = <char *> partial
        self.state.output = <char *> output

    def __dealloc__(self):
        PyMem_Free(<void *> self.state.leader_ranks)

    cdef int begin(self, char *source, char *target) except -1:
        cdef int outcome
        self.node.begin(self.info)
        with nogil:
            outcome = levels_begin(&self.state, self.kind, source, target)
        return self.checked(outcome)

    cdef int reduce(self, int piece) except -1:
        cdef int outcome
        with nogil:
            outcome = levels_reduce(&self.state, piece)
        return self.checked(outcome)

    cdef int publish(self, int piece) except -1:
        cdef int outcome
        with nogil:
            outcome = levels_publish(&self.state, piece)
        return self.checked(outcome)

    cdef int end(self) except -1:
        cdef int outcome
        with nogil:
            outcome = levels_end(&self.state)
        return self.checked(outcome)

    cdef int checked(self, int outcome) except -1:
        if outcome != DONE:
            self.node.fail(outcome, self.info, self.nbytes, self.kind, False)
        return 0

    cdef int leave(self, error) except -1:
        return self.node.leave_by(error)


@cython.final
cdef class DeviceLevels(Levels):
    """What ranks of a node tell each other in a hierarchical plan on device memory.

    Works of the plan reduce and publish, on memory that ranks have mapped of each other.

    Parameters
    ----------
    node : Node
    begin : callable
        Called when a call begins. It returns when all ranks of the node let the others read what
        they bring, and store to what they want.
    end : callable
        Called when the plan has done its part. It returns when those of all ranks of the node are
        done.
    """

    cdef Node node
    cdef object on_begin
    cdef object on_end

    def __cinit__(self, Node node, begin, end):
        self.node = node
        self.on_begin = begin
        self.on_end = end

    cdef int begin(self, char *source, char *target) except -1:
        self.on_begin()
        return 0

    cdef int end(self) except -1:
        self.on_end()
        return 0

    cdef int leave(self, error) except -1:
        return self.node.leave_by(error)
